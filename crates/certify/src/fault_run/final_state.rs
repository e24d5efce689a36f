//! Reads the store during a run, and builds the result at its end.

use std::sync::Arc;
use std::time::Duration;

use crate::ToolMode;
use crate::client::fork_key;
use crate::fault_run::FaultRun;
use crate::oracle::{CopiedConversation, Outcome};
use turnwheel_agent_files::AgentDefinition;
use turnwheel_conversation::entry::{Entry, EntryBody, Source};
use turnwheel_conversation::head::Head;
use turnwheel_conversation::inbox::InboxItem;
use turnwheel_conversation::message::Message;
use turnwheel_conversation::notification::Notification;
use turnwheel_conversation::phase::Phase;
use turnwheel_conversation::request::Effect;
use turnwheel_conversation::settings::{Settings, ToolExecution};
use turnwheel_platform::clock::{Clock as _, Timestamp};
use turnwheel_platform::ids::EntryId;
use turnwheel_record::documents::{self, EventsBody};
use turnwheel_storage::store::{
    ConversationStore, DocumentKind, Freshness, HEAD_ID, Partition, Selection, StoredDocument,
};

/// No pending work is due later than this.
const HORIZON: Duration = Duration::from_hours(24 * 366);
/// One conversation and its tenant's ledger have fewer due documents.
const DUE_MAX: usize = 200;

impl FaultRun<'_> {
    fn store(&self) -> Arc<dyn ConversationStore> {
        self.environment.store.instance_store()
    }

    fn partition(&self) -> Partition {
        Partition::Conversation(self.key.clone())
    }

    /// Reads all documents of a kind. An unreadable document shows up as missing.
    async fn read_all(&self, kind: DocumentKind) -> Vec<StoredDocument> {
        self.read_all_of(&self.partition(), kind).await
    }

    async fn read_all_of(&self, partition: &Partition, kind: DocumentKind) -> Vec<StoredDocument> {
        let selection = Selection::all(kind);
        let found = self.store().select(partition, &selection, Freshness::Latest).await;
        found.unwrap_or_default()
    }

    async fn read_entries(&self, partition: &Partition) -> Vec<Entry> {
        let stored = self.read_all_of(partition, DocumentKind::Entry).await;
        let mut entries: Vec<Entry> = stored
            .chunks(1)
            .filter_map(|stored| documents::read_entries(stored).ok())
            .flatten()
            .map(Arc::unwrap_or_clone)
            .collect();
        entries.sort_by_key(|entry| entry.base.seq);
        entries
    }

    /// The user message of the prompt with that number, from 1.
    pub(super) async fn find_prompt_input(&self, number: usize) -> Option<EntryId> {
        let entries = self.read_entries(&self.partition()).await;
        let is_of_user = |entry: &&Entry| matches!(&entry.body, EntryBody::Prompt(prompt) if prompt.source == Source::User);
        let prompt = entries.iter().filter(is_of_user).nth(number.checked_sub(1)?)?;
        let is_input = |entry: &&Entry| {
            entry.base.seq > prompt.base.seq
                && matches!(entry.body.message(), Some(Message::User(_)))
        };
        entries.iter().find(is_input).map(|entry| entry.base.entry_id.clone())
    }

    pub(super) async fn read_head(&self) -> Option<Head> {
        self.read_head_of(&self.partition()).await
    }

    async fn read_head_of(&self, partition: &Partition) -> Option<Head> {
        let found = self.store().read(partition, HEAD_ID, Freshness::Latest).await;
        documents::read_head(&found.ok()??).ok()
    }

    async fn read_fork(&self) -> Option<CopiedConversation> {
        let partition = Partition::Conversation(fork_key());
        let head = self.read_head_of(&partition).await?;
        Some(CopiedConversation { head, entries: self.read_entries(&partition).await })
    }

    pub(super) async fn is_idle(&self, head: Option<&Head>) -> bool {
        let Some(head) = head else { return false };
        let is_held = |stored: &StoredDocument| {
            documents::read::<InboxItem>(&stored.document)
                .is_ok_and(|item| !item.has_effect_when_idle())
        };
        head.phase == Phase::Idle
            && head.prompt.is_none()
            && !head.prompts.is_empty()
            && head.waiting_items == 0
            && head.waiting_commands.is_empty()
            && self.read_all(DocumentKind::Inbox).await.iter().all(is_held)
    }

    /// Time of the conversation's next pending work.
    pub(super) async fn next_due(&self) -> Option<Timestamp> {
        let (horizon, partition) = (self.environment.clock.now().plus(HORIZON), self.partition());
        let due = self.store().list_due(horizon, DUE_MAX, None).await.ok()?;
        let own = due.items.iter().filter(|due| due.partition == partition);
        own.map(|due| due.due).min()
    }

    pub(super) async fn into_outcome(mut self, agent: &AgentDefinition) -> Outcome {
        if self.injection.is_some() && !self.is_injected {
            self.skip_reason = Some("this run did not reach the fail point");
        }
        let entries = self.read_entries(&self.partition()).await;
        let fork = self.read_fork().await;
        let events = self.read_all(DocumentKind::Events).await;
        let events = events.iter().filter_map(|stored| documents::read(&stored.document).ok());
        let events = events.flat_map(|body: EventsBody| body.events).collect();
        let notices = self.read_all(DocumentKind::Notification).await;
        let unsent = notices.iter().filter(|stored| {
            let notice = documents::read::<Notification>(&stored.document);
            !notice.is_ok_and(|notice| self.environment.notifications.has_sent(&notice.id))
        });
        let unsent = unsent.count();
        let tools = agent.active_tools(&Settings::default());
        let writes = tools.iter().map(|tool| tool.definition());
        let writes = writes.filter(|tool| tool.effect == Effect::Write);
        Outcome {
            fail_points: self.environment.trap.hits(),
            skip_reason: self.skip_reason,
            prompts: self.conversation.prompts.len(),
            head: self.read_head().await,
            events,
            inbox_count: self.read_all(DocumentKind::Inbox).await.len(),
            unsent_notifications: unsent,
            calls_by_effect: self.environment.call_log.calls_by_effect(),
            calls_by_tool: self.environment.call_log.calls_by_tool(),
            responses: self.environment.model.paid_responses(),
            failed_tools: self.environment.call_log.failed_tools(),
            changed_results: self.environment.call_log.changed_results(),
            incomplete_prompts: self
                .environment
                .model
                .incomplete_prompts()
                .iter()
                .cloned()
                .collect(),
            write_tools: writes.map(|tool| tool.name.clone()).collect(),
            has_variable_results: self.options.tools == ToolMode::Real,
            is_parallel: agent.settings.tool_execution == Some(ToolExecution::Parallel),
            entries,
            fork,
            problems: self.problems,
            log: self.log,
        }
    }
}
