//! What one commit will write: the head as it will be, and everything new.

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;

use crate::agent::batch::Batch;
use crate::agent::budget::{Budget, BudgetAlert};
use crate::agent::compaction::Room;
use crate::agent::entry::{Entry, EntryBase, EntryBody, MessageEntry};
use crate::agent::event::{Event, EventBody, MessageRef};
use crate::agent::head::Head;
use crate::agent::inbox::{InboxItem, Receipt};
use crate::agent::message::AssistantMessage;
use crate::agent::notice::Notice;
use crate::agent::phase::{CallState, Phase};
use crate::agent::raw::RawJson;
use crate::agent::settings::{QueueMode, Retry};
use crate::agent::step::{ClosedTurn, FinishTurn};
use crate::clock::Timestamp;
use crate::ids::{EntryId, PromptId};

/// What the settings in force say to the core.
#[derive(Clone, Debug, PartialEq)]
pub struct Rules {
    /// Model answers in one prompt; `None`: no limit but the hard one.
    pub rounds_max: Option<u32>,
    pub hard_rounds_max: u32,
    /// Calls of one answer that may run at once.
    pub calls_at_once: u32,
    pub retry: Retry,
    /// Of the model that is asked next.
    pub room: Room,
    /// Of prompts that name none.
    pub model: String,
    pub steering_mode: QueueMode,
    pub follow_up_mode: QueueMode,
    /// Whether a steer skips the calls of its batch that have not been started.
    pub steering_skips_tools: bool,
    /// Operations and bytes that taking in may fill; what follows in the same commit has the rest.
    pub taken_in_operations_max: usize,
    pub taken_in_bytes_max: usize,
    /// Whether there is somebody to send notices to.
    pub writes_notices: bool,
    /// Of the conversation and its prompts.
    pub budget: Option<Budget>,
    /// How long after a call the tenant's books are told of its cost, at the latest.
    pub settle_after: Duration,
}

/// An inbox item that was looked at and has not landed.
#[derive(Clone, Debug)]
pub struct Pending {
    pub item: Arc<InboxItem>,
    /// As stored.
    pub bytes: usize,
}

#[derive(Clone, Debug)]
pub struct Draft {
    pub head: Head,
    pub entries: Vec<Arc<Entry>>,
    pub events: Vec<Event>,
    pub receipts: Vec<Receipt>,
    pub notices: Vec<Notice>,
    /// Logged and counted once the commit is made; their notifications are among the others.
    pub alerts: Vec<BudgetAlert>,
    /// What waits in the inbox, as far as somebody has looked, oldest first.
    pub pending: Vec<Pending>,
    pub taken_in_bytes: usize,
    /// Whether nothing runs, and the end of the last run was not the end of everything: something was still to be looked at.
    pub is_unsettled: bool,
    /// Of the batch that this commit closes: what ran, and what gave way to a steer. The provider's ids.
    pub ran_calls: Vec<String>,
    /// Those of which nobody knows whether they ran.
    pub unknown_calls: Vec<String>,
    pub skipped_calls: Vec<String>,
    /// Their indexes.
    pub(super) skipped: Vec<usize>,
    /// The answer whose calls are open; the driver loads it when the phase names one.
    pub answer: Option<Arc<Entry>>,
    /// Of its calls: the entries that keep results until their turn comes.
    pub kept: Vec<Arc<Entry>>,
    pub rules: Rules,
    pub now: Timestamp,
    /// The turn that this commit closes, where an extension may decide how the prompt goes on.
    pub closed_turn: Option<ClosedTurn>,
    /// The decision, until the turn closes.
    pub(super) finish_turn: Option<FinishTurn>,
    /// Bytes of kept results that were put on the path.
    pub(super) bytes_placed: u64,
    /// Whether the prompt ends with this commit, whatever is open: each call needs room for a result.
    pub(super) gives_up: bool,
}

impl Draft {
    pub fn new(head: Head, answer: Option<Arc<Entry>>, rules: Rules, now: Timestamp) -> Self {
        let put_off = head.put_off().cloned();
        Self {
            head: Head { put_off, ..head },
            entries: Vec::new(),
            events: Vec::new(),
            receipts: Vec::new(),
            notices: Vec::new(),
            alerts: Vec::new(),
            pending: Vec::new(),
            taken_in_bytes: 0,
            is_unsettled: false,
            ran_calls: Vec::new(),
            unknown_calls: Vec::new(),
            skipped_calls: Vec::new(),
            skipped: Vec::new(),
            answer,
            kept: Vec::new(),
            rules,
            now,
            closed_turn: None,
            finish_turn: None,
            bytes_placed: 0,
            gives_up: false,
        }
    }

    /// Whether a commit would tell anyone anything.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
            && self.events.is_empty()
            && self.receipts.is_empty()
            && self.notices.is_empty()
            && self.alerts.is_empty()
    }

    /// Operations of the batch that this draft becomes: head, entries, one events document, receipts, notices.
    pub fn operations(&self) -> usize {
        2 + self.entries.len() + self.receipts.len() + self.notices.len()
    }

    /// Appends after the leaf, which it becomes.
    pub(super) fn append(&mut self, body: EntryBody) -> Arc<Entry> {
        let seq = self.head.seq + 1;
        let entry_id = EntryId::of_entry(&self.head.incarnation, seq);
        self.append_as(entry_id, body)
    }

    /// The same under an id that was promised before.
    pub(super) fn append_as(&mut self, entry_id: EntryId, body: EntryBody) -> Arc<Entry> {
        self.head.seq += 1;
        let base = EntryBase {
            entry_id: entry_id.clone(),
            parent_id: self.head.leaf_id.replace(entry_id),
            seq: self.head.seq,
            timestamp: self.now,
            prompt_id: self.prompt_id(),
        };
        let entry = Arc::new(Entry { base, body });
        self.entries.push(Arc::clone(&entry));
        entry
    }

    pub(super) fn tell(&mut self, body: EventBody) {
        self.head.event_seq += 1;
        let event = Event {
            n: self.head.event_seq,
            at: self.now,
            prompt_id: self.prompt_id(),
            turn: self.head.turn,
            body,
        };
        self.events.push(event);
    }

    /// Appends a message and tells its start and end.
    pub(super) fn speak(&mut self, entry: MessageEntry) -> Arc<Entry> {
        let entry = self.append(EntryBody::Message(entry));
        self.tell_message(&entry);
        entry
    }

    pub(super) fn tell_message(&mut self, entry: &Entry) {
        let message = MessageRef { message_id: entry.base.entry_id.clone(), seq: entry.base.seq };
        self.tell(EventBody::MessageStart(message.clone()));
        self.tell(EventBody::MessageEnd(message));
    }

    pub(super) fn owe_notice(&mut self, kind: &str, data: &serde_json::Value, text: String) {
        if !self.rules.writes_notices {
            return;
        }
        // The event that says the same has this number, so a conversation never names two notices alike.
        let id = format!(
            "nt_{}_{}_{}",
            self.head.conversation_id, self.head.incarnation, self.head.event_seq
        );
        self.notices.push(Notice {
            id,
            kind: kind.to_owned(),
            at: self.now,
            data: RawJson::of(&self.head.notification_data(data)),
            text,
            attempts: 0,
            settled_at: None,
            gave_up: false,
        });
    }

    /// `number` is unique among the alerts of the conversation.
    pub(super) fn issue_alert(&mut self, alert: BudgetAlert, number: &str) {
        if self.rules.writes_notices {
            self.notices.push(alert.notification(&self.head, number, self.now));
        }
        self.alerts.push(alert);
    }

    pub fn prompt_id(&self) -> Option<PromptId> {
        self.head.prompt.as_ref().map(|run| run.id.clone())
    }

    /// The answer whose calls are open.
    pub fn open_answer(&self) -> Option<&AssistantMessage> {
        self.answer.as_ref()?.body.message()?.as_assistant()
    }

    pub fn calls(&self) -> &[CallState] {
        self.batch().calls
    }

    pub(super) fn call_mut(&mut self, index: usize) -> Option<&mut CallState> {
        match &mut self.head.phase {
            Phase::Calls { calls, .. } => calls.get_mut(index),
            Phase::Idle | Phase::Model { .. } | Phase::Summary { .. } | Phase::Deleted => None,
        }
    }

    pub fn batch(&self) -> Batch<'_> {
        self.head.phase.batch()
    }
}

impl Head {
    /// The data of a notification about this conversation.
    pub(super) fn notification_data(&self, data: &serde_json::Value) -> serde_json::Value {
        let mut whole = json!({
            "conversationId": self.conversation_id,
            "tenantId": self.tenant,
            "userId": self.user,
            "agent": self.agent,
        });
        if let (Some(whole), Some(data)) = (whole.as_object_mut(), data.as_object()) {
            whole.extend(data.clone());
        }
        whole
    }

    /// When somebody has to look at this conversation again, if nobody holds it; `None`: nothing is owed.
    pub fn owed_at(&self, now: Timestamp) -> Option<Timestamp> {
        let step = self.step_owed_at(now);
        // The books are settled by the same visit, or by one of their own.
        let settling = self.books.settle_at.filter(|_| self.phase != Phase::Deleted);
        step.into_iter().chain(settling).min()
    }

    /// When the next step is due; telling the books is none.
    pub fn step_owed_at(&self, now: Timestamp) -> Option<Timestamp> {
        let owed_at = self.unbraked_at(now)?;
        Some(self.brake.as_ref().map_or(owed_at, |brake| owed_at.max(brake.look_at)))
    }

    fn unbraked_at(&self, now: Timestamp) -> Option<Timestamp> {
        match &self.phase {
            Phase::Deleted => None,
            Phase::Model { .. } | Phase::Summary { .. } if self.is_paused() => {
                let expiries = self.requests.iter().filter_map(|request| request.expires_at);
                expiries.chain(self.books.look_at).min()
            }
            Phase::Idle => (self.waiting > 0).then_some(now),
            Phase::Model { not_before, .. } | Phase::Summary { not_before, .. } => {
                Some(not_before.unwrap_or(now))
            }
            Phase::Calls { .. } if self.phase.batch().is_owed() => Some(now),
            Phase::Calls { .. } => {
                self.requests.iter().filter_map(|request| request.expires_at).min()
            }
        }
    }
}
