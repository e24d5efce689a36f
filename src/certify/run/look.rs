//! Reads the store during a run, and builds the result at its end.

use std::time::Duration;

use crate::agent::head::Head;
use crate::agent::inbox::InboxItem;
use crate::agent::notice::Notice;
use crate::agent::phase::Phase;
use crate::agent::request::Effect;
use crate::agent::settings::ToolExecution;
use crate::agents::Agent;
use crate::certify::Tools;
use crate::certify::judge::Outcome;
use crate::certify::run::Play;
use crate::clock::{Clock as _, Timestamp};
use crate::store::{
    ConversationStore as _, Freshness, HEAD_ID, Kind, Partition, Selection, Stored,
};
use crate::turn::record::{self, EventsBody};

/// No pending work is due later than this.
const HORIZON: Duration = Duration::from_hours(24 * 366);
/// One conversation and its tenant's ledger have fewer due documents.
const DUE_MAX: usize = 200;

impl Play<'_> {
    fn partition(&self) -> Partition {
        Partition::Conversation(self.key.clone())
    }

    /// Reads all documents of a kind. An unreadable document shows up as missing.
    async fn all(&self, kind: Kind) -> Vec<Stored> {
        let all = Selection::all(kind);
        let found = self.stage.store.select(&self.partition(), &all, Freshness::Latest).await;
        found.unwrap_or_default()
    }

    pub(super) async fn head(&self) -> Option<Head> {
        let found = self.stage.store.read(&self.partition(), HEAD_ID, Freshness::Latest).await;
        record::read_head(&found.ok()??).ok()
    }

    pub(super) async fn is_at_rest(&self, head: Option<&Head>) -> bool {
        let Some(head) = head else { return false };
        let is_held = |stored: &Stored| {
            record::read::<InboxItem>(&stored.document).is_ok_and(|item| !item.starts_when_idle())
        };
        head.phase == Phase::Idle
            && head.prompt.is_none()
            && !head.prompts.is_empty()
            && head.waiting == 0
            && self.all(Kind::Inbox).await.iter().all(is_held)
    }

    /// Time of the conversation's next pending work.
    pub(super) async fn next_due(&self) -> Option<Timestamp> {
        let (horizon, partition) = (self.stage.time.now().plus(HORIZON), self.partition());
        let owed = self.stage.store.due(horizon, DUE_MAX, None).await.ok()?;
        let mine = owed.items.iter().filter(|owed| owed.partition == partition);
        mine.map(|owed| owed.due).min()
    }

    pub(super) async fn outcome(mut self, agent: &Agent) -> Outcome {
        if self.cut.is_some() && !self.has_struck {
            self.missed = Some("this run did not reach the fail point");
        }
        let entries = self.all(Kind::Entry).await;
        let entries = entries.iter().filter_map(|stored| record::read(&stored.document).ok());
        let entries = entries.collect();
        let events = self.all(Kind::Events).await;
        let events = events.iter().filter_map(|stored| record::read(&stored.document).ok());
        let events = events.flat_map(|body: EventsBody| body.events).collect();
        let notices = self.all(Kind::Notice).await;
        let untold = notices.iter().filter(|stored| {
            let notice = record::read::<Notice>(&stored.document);
            !notice.is_ok_and(|notice| self.stage.crier.has_told(&notice.id))
        });
        let untold = untold.count();
        let writes = agent.tools.iter().map(|tool| tool.definition());
        let writes = writes.filter(|tool| tool.effect == Effect::Write);
        Outcome {
            reached: self.stage.trap.seen(),
            missed: self.missed,
            prompts: self.conversation.prompts.len(),
            head: self.head().await,
            events,
            inbox: self.all(Kind::Inbox).await.len(),
            untold,
            done: self.stage.ledger.done(),
            called: self.stage.ledger.called(),
            answers: self.stage.model.paid(),
            failed: self.stage.ledger.failed(),
            otherwise: self.stage.ledger.otherwise(),
            unanswered: self.stage.model.unanswered().iter().cloned().collect(),
            writes: writes.map(|tool| tool.name.clone()).collect(),
            is_vague: self.order.tools == Tools::Real,
            is_at_once: agent.settings.tool_execution == Some(ToolExecution::Parallel),
            entries,
            wrong: self.wrong,
            story: self.story,
        }
    }
}
