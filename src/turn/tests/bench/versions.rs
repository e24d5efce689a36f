//! Two versions side by side, as in a deployment: the current one in the role of the older, and a
//! simulated newer one. The newer one writes unknown members and heads that the older must not
//! touch; its agents may differ.

use std::sync::Arc;

use serde_json::json;

use super::altered::Altered;
use super::{Bench, agent};
use crate::agent::head::READER;
use crate::agent::raw::RawJson;
use crate::agents::Agents;
use crate::ids::ConversationKey;
use crate::store::memory::MemoryStore;
use crate::store::{Document, HEAD_ID, Kind, Partition};
use crate::turn::{Limits, World};

/// Reader version of the newer workers.
pub(in crate::turn::tests) const NEWER_READER: u32 = READER + 1;

/// How the two versions share the work.
#[derive(Clone, Debug)]
pub(in crate::turn::tests) struct Mix {
    /// Percentage of workers and clients of the older version.
    pub(in crate::turn::tests) older_in_a_hundred: u8,
    newer: Option<Agents>,
}

impl Mix {
    /// Each version takes about half of the work, with the same agents.
    pub(in crate::turn::tests) fn of_versions() -> Self {
        Self { older_in_a_hundred: 50, newer: None }
    }
}

impl Bench {
    /// The newer version's agents get other instructions and one tool less from now on.
    pub(in crate::turn::tests) fn change_agents(&mut self, mix: &mut Mix) {
        let mut catalog = agent::catalog(&self.done, None);
        for agent in catalog.agents.values_mut() {
            let agent = Arc::get_mut(agent).unwrap();
            agent.instructions = "Be better.".to_owned();
            agent.revision = "s".to_owned();
            agent.tools.retain(|tool| tool.definition().name != "put");
        }
        mix.newer = Some(catalog.into());
    }

    /// Picks the version of a new worker.
    pub(super) fn of_some_version(&mut self, world: World) -> World {
        let Some(mix) = self.mix.clone() else { return world };
        if self.happens("an older one came", "a worker", mix.older_in_a_hundred) {
            return world;
        }
        World {
            store: Altered::writing(Arc::clone(&world.store), newer),
            limits: Limits { reader: NEWER_READER, ..world.limits },
            agents: mix.newer.unwrap_or_else(|| world.agents.clone()),
            ..world
        }
    }

    /// Name of a worker in the log of the run.
    pub(super) fn called(&self, world: &World) -> String {
        let version = match (&self.mix, world.limits.reader) {
            (None, _) => "",
            (Some(_), NEWER_READER) => " (newer)",
            (Some(_), _) => " (older)",
        };
        format!("worker {}{version}", self.workers)
    }
}

/// Writes a document as the newer version does: with an additional member.
fn newer(document: Document) -> Document {
    let is_head = document.kind == Kind::Head;
    if !is_head && !matches!(document.kind, Kind::Entry | Kind::Events | Kind::Inbox) {
        return document;
    }
    let mut body = document.body.value();
    let commit = body["commitId"].clone();
    body["next"] = json!({"commit": commit});
    // A state that the older version would mishandle.
    if is_head && body["phase"]["owed"] == "calls" && body["turn"].as_u64() == Some(2) {
        body["minReader"] = json!(NEWER_READER);
    }
    Document { body: RawJson::of(&body), ..document }
}

/// Facts about one version of a head.
struct Known {
    has_next: bool,
    /// True if the newer version wrote it.
    is_newer: bool,
    needs_newer: bool,
}

/// Returns the updates of a conversation's heads that the older version lost.
pub(in crate::turn::tests) fn lost_to_older(
    store: &MemoryStore,
    key: &ConversationKey,
) -> Vec<String> {
    let heads = store.history(&Partition::Conversation(key.clone()), HEAD_ID);
    let known = heads.iter().flatten().map(|stored| {
        let body = stored.document.body.value();
        let is_newer = body["next"]["commit"] == body["commitId"];
        let needs_newer = body["minReader"].as_u64() == Some(u64::from(NEWER_READER));
        Known { has_next: !body["next"].is_null(), is_newer, needs_newer }
    });
    let known: Vec<Known> = known.collect();
    let mut lost = Vec::new();
    for (before, after) in known.iter().zip(known.iter().skip(1)) {
        if before.has_next && !after.has_next {
            lost.push(format!("{key}: the older version dropped a member of the newer version"));
        }
        if before.needs_newer && !after.is_newer {
            lost.push(format!("{key}: the older version replaced a head that requires the newer version"));
        }
    }
    lost
}
