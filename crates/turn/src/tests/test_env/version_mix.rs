//! Two versions side by side, as in a deployment: the current one in the role of the older, and a
//! simulated newer one. The newer one writes unknown members and heads that the older must not
//! touch; its agents may differ.

use std::sync::Arc;

use serde_json::json;

use super::TestEnv;
use super::store_decorator::StoreDecorator;
use turnwheel_agent_files::SharedCatalog;
use turnwheel_conversation::head::READER_VERSION;
use turnwheel_json::raw::RawJson;
use turnwheel_platform::ids::ConversationKey;
use turnwheel_record::entry_cache::EntryCache;
use turnwheel_record::services::{Limits, Services};
use turnwheel_storage::store::memory::MemoryStore;
use turnwheel_storage::store::{Document, DocumentKind, HEAD_ID, Partition};

/// Reader version of the newer workers.
pub(crate) const NEWER_READER: u32 = READER_VERSION + 1;

/// How the two versions share the work.
#[derive(Clone, Debug)]
pub(crate) struct VersionMix {
    /// Percentage of workers and clients of the older version.
    pub older_percent: u8,
    newer_agents: Option<SharedCatalog>,
}

impl VersionMix {
    /// Each version takes about half of the work, with the same agents.
    pub(crate) fn half_and_half() -> Self {
        Self { older_percent: 50, newer_agents: None }
    }
}

impl TestEnv {
    /// The newer version's agents get other instructions and one tool less from now on.
    pub(crate) fn change_newer_agents(&mut self, mix: &mut VersionMix) {
        let plugins = self.agents.find(None).unwrap().plugins.clone();
        let catalog = self.changed_agents(|agent| {
            agent.instructions = "Be better.".into();
            agent.revision = "s".to_owned();
            agent.plugins.clone_from(&plugins);
            agent.tools.retain(|tool| tool.definition().name != "put");
        });
        mix.newer_agents = Some(catalog.into());
    }

    /// Workers created from now on have agents with these instructions.
    pub(crate) fn set_instructions(&mut self, instructions: &str) {
        let catalog = self.changed_agents(|agent| agent.instructions = instructions.into());
        self.agents = catalog.into();
    }

    /// Picks the version of a new worker.
    pub(super) fn pick_version(&mut self, services: Services) -> Services {
        let Some(mix) = self.version_mix.clone() else { return services };
        if self.should_inject("an older version took over", "a worker", mix.older_percent) {
            return services;
        }
        Services {
            store: StoreDecorator::with_document_map(Arc::clone(&services.store), write_as_newer),
            limits: Limits { reader_version: NEWER_READER, ..services.limits },
            agents: mix.newer_agents.unwrap_or_else(|| services.agents.clone()),
            entry_cache: Arc::new(EntryCache::without_heads()),
            ..services
        }
    }

    /// Name of a worker in the log of the run.
    pub(super) fn worker_name(&self, services: &Services) -> String {
        let version = match (&self.version_mix, services.limits.reader_version) {
            (None, _) => "",
            (Some(_), NEWER_READER) => " (newer)",
            (Some(_), _) => " (older)",
        };
        format!("worker {}{version}", self.worker_count)
    }
}

/// Writes a document as the newer version does: with an additional member.
fn write_as_newer(document: Document) -> Document {
    let is_head = document.kind == DocumentKind::Head;
    if !is_head
        && !matches!(
            document.kind,
            DocumentKind::Entry | DocumentKind::Events | DocumentKind::Inbox
        )
    {
        return document;
    }
    let mut body = document.body.to_value();
    let commit = body["commitId"].clone();
    body["next"] = json!({"commit": commit});
    // A state that the older version would mishandle.
    if is_head && body["phase"]["owed"] == "calls" && body["turn"].as_u64() == Some(2) {
        body["minReader"] = json!(NEWER_READER);
    }
    Document { body: RawJson::from_value(&body), ..document }
}

/// Facts about one version of a head.
struct HeadVersion {
    has_next: bool,
    /// True if the newer version wrote it.
    is_newer: bool,
    needs_newer: bool,
}

/// Returns the updates of a conversation's heads that the older version lost.
pub(crate) fn find_lost_updates(store: &MemoryStore, key: &ConversationKey) -> Vec<String> {
    let heads = store.history(&Partition::Conversation(key.clone()), HEAD_ID);
    let versions = heads.iter().flatten().map(|stored| {
        let body = stored.document.body.to_value();
        let is_newer = body["next"]["commit"] == body["commitId"];
        let needs_newer = body["minReader"].as_u64() == Some(u64::from(NEWER_READER));
        HeadVersion { has_next: !body["next"].is_null(), is_newer, needs_newer }
    });
    let versions: Vec<HeadVersion> = versions.collect();
    let mut lost = Vec::new();
    for (before, after) in versions.iter().zip(versions.iter().skip(1)) {
        if before.has_next && !after.has_next {
            lost.push(format!("{key}: the older version dropped a member of the newer version"));
        }
        if before.needs_newer && !after.is_newer {
            lost.push(format!(
                "{key}: the older version replaced a head that requires the newer version"
            ));
        }
    }
    lost
}
