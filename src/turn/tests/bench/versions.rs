//! Two versions side by side, as in the middle of a deployment: ours, which is the older one, and one that does not exist yet.
//! It writes members that ours does not know and heads that ours must leave alone, and its agents may be others.

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

/// What the newer version may act on.
pub(in crate::turn::tests) const NEWER_READER: u32 = READER + 1;

/// How the two share the work.
#[derive(Clone, Debug)]
pub(in crate::turn::tests) struct Mix {
    /// Of a hundred workers and clients, ours.
    pub(in crate::turn::tests) older_in_a_hundred: u8,
    newer: Option<Agents>,
}

impl Mix {
    /// Each takes about half of the work, with the same agents.
    pub(in crate::turn::tests) fn of_versions() -> Self {
        Self { older_in_a_hundred: 50, newer: None }
    }
}

impl Bench {
    /// From now on the newer version's agents are others: told otherwise, with a tool less.
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

    /// The version of who starts now.
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

    /// How the story calls a worker.
    pub(super) fn called(&self, world: &World) -> String {
        let version = match (&self.mix, world.limits.reader) {
            (None, _) => "",
            (Some(_), NEWER_READER) => " (newer)",
            (Some(_), _) => " (older)",
        };
        format!("worker {}{version}", self.workers)
    }
}

/// What the newer version writes: the same, and more.
fn newer(document: Document) -> Document {
    let is_head = document.kind == Kind::Head;
    if !is_head && !matches!(document.kind, Kind::Entry | Kind::Events | Kind::Inbox) {
        return document;
    }
    let mut body = document.body.value();
    let commit = body["commitId"].clone();
    body["next"] = json!({"commit": commit});
    // A state that the older version would do wrong with.
    if is_head && body["phase"]["owed"] == "calls" && body["turn"].as_u64() == Some(2) {
        body["minReader"] = json!(NEWER_READER);
    }
    Document { body: RawJson::of(&body), ..document }
}

/// What one version of a head tells.
struct Known {
    has_next: bool,
    /// Whether the newer version wrote it.
    is_newer: bool,
    needs_newer: bool,
}

/// What a conversation's heads lost to the older version; empty: nothing.
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
            lost.push(format!("{key}: the older version dropped what the newer one wrote"));
        }
        if before.needs_newer && !after.is_newer {
            lost.push(format!("{key}: the older version wrote over a head that it must leave"));
        }
    }
    lost
}
