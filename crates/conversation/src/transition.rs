//! A transition: the next head and all new documents, which one commit writes.

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;

use crate::action::StartChanges;
use crate::budget::{Budget, BudgetAlert};
use crate::call_batch::CallBatch;
use crate::compaction::ContextBudget;
use crate::entry::{Entry, EntryBase, EntryBody, MessageEntry, PromptEnd, SessionInfo};
use crate::event::{Empty, Event, EventBody, MessageRef, SessionInfoChanged};
use crate::head::Head;
use crate::inbox::{InboxItem, Receipt};
use crate::message::AssistantMessage;
use crate::notification::Notification;
use crate::person_messages::PersonMessages;
use crate::phase::{CallState, Phase};
use crate::request::Request;
use crate::settings::{QueueMode, RetrySettings};
use turnwheel_json::raw::RawJson;
use turnwheel_json::text::{LINE_CHARS_MAX, sanitize_line};
use turnwheel_platform::clock::Timestamp;
use turnwheel_platform::ids::{EntryId, InputId, PromptId};

/// The settings in force that the core needs.
#[derive(Clone, Debug, PartialEq)]
#[expect(clippy::struct_excessive_bools, reason = "each is an independent setting")]
pub struct Policy {
    /// Model responses per prompt. `None`: only the hard limit applies.
    pub rounds_max: Option<u32>,
    pub hard_rounds_max: u32,
    /// Calls of one response that may run in parallel.
    pub concurrency: u32,
    pub retry: RetrySettings,
    /// Context budget of the next model call.
    pub context_budget: ContextBudget,
    /// Model of prompts that name none.
    pub model: String,
    pub steering_mode: QueueMode,
    pub follow_up_mode: QueueMode,
    /// True if a steer skips the calls of its batch that have not started.
    pub should_steer_skip_tools: bool,
    /// Operations and bytes that draining the inbox may use. The rest is left for later inputs of
    /// the same commit.
    pub drained_operations_max: usize,
    pub drained_bytes_max: usize,
    /// True if extensions may change an agent run before it starts. A waiting prompt then starts only
    /// after their changes.
    pub has_start_hook: bool,
    /// True in the loop `protocol`: several failures in a row end a prompt.
    pub is_protocol: bool,
    /// True in the protocol mode `resume`, which has its own text at the round limit.
    pub is_resume: bool,
    /// True if a receiver of notifications is configured.
    pub has_notification_receiver: bool,
    /// True if the profile of the user learns from messages of this conversation.
    pub learns_profile: bool,
    /// True if a notification reports tool results.
    pub should_notify_results: bool,
    /// Budget of the conversation and its prompts.
    pub budget: Option<Budget>,
    /// Maximum delay between a call and the report of its cost to the tenant's usage ledger.
    pub settle_after: Duration,
    /// Prompts in a row that extensions may start.
    pub extension_prompts_max: u32,
}

/// An inbox item that was read and not yet applied.
#[derive(Clone, Debug)]
pub struct PendingItem {
    pub item: Arc<InboxItem>,
    /// Size as stored.
    pub bytes: usize,
    /// True if this commit makes the item: it has no document yet.
    pub is_new: bool,
}

/// How a prompt continues after a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FinishTurn {
    /// The prompt ends as completed. Steers and follow-ups are not polled: they stay queued and
    /// start the next prompt, or wait for one if they have `whenIdle: hold`. A response that does
    /// not fit the agent's response schema fails the prompt instead.
    End,
    /// The model receives one more request, also if the response has no tool calls or all results
    /// ask for an end. Round limits and budgets apply.
    Continue,
}

/// A turn that a transition closes and on which an extension may decide.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClosedTurn {
    /// Index of its `turn_end` among the events of the transition.
    pub event: usize,
    /// Number of model responses of the prompt, including that of this turn.
    pub rounds: u32,
    /// Index of the turn in its agent run, from 0.
    pub turn_index: u32,
}

impl Phase {
    /// The first attempt of a model call that is due now.
    pub(super) const MODEL_CALL: Self = Self::Model { attempt: 1, not_before: None };
}

#[derive(Clone, Debug)]
pub struct Transition {
    pub head: Head,
    pub entries: Vec<Arc<Entry>>,
    pub events: Vec<Event>,
    pub receipts: Vec<Receipt>,
    pub notifications: Vec<Notification>,
    /// Logged and counted after the commit. Their notifications are in `notifications`.
    pub alerts: Vec<BudgetAlert>,
    /// Inbox items read so far and not yet applied, oldest first.
    pub pending: Vec<PendingItem>,
    /// Ids of the inbox items that this commit creates, for actions of extensions. Those in
    /// `pending` stay in the inbox; the others are applied by the same commit.
    pub new_items: Vec<InputId>,
    /// `seq` of the user messages that no person wrote.
    pub(super) other_messages: Vec<u64>,
    /// True if an extension aborts the running prompt. The next input that can end it does.
    pub(super) is_abort_requested: bool,
    /// Changes of extensions to the runs of prompts that have not started yet.
    pub(super) start_changes: Vec<StartChanges>,
    /// The waiting item that starts an agent run as soon as extensions have made their changes.
    pub held_start: Option<Arc<InboxItem>>,
    pub drained_bytes: usize,
    /// True if nothing runs, but the last run ended with inbox items left to check. `agent_settled`
    /// is then still due.
    pub is_settled_event_due: bool,
    /// `agent_settled` of this transition, without its number. [`Self::finish`] emits it, unless a
    /// compaction starts before.
    pub(super) settled_event: Option<Event>,
    /// Provider ids of the calls that ran, in the batch that this commit closes.
    pub ran_calls: Vec<String>,
    /// Provider ids of its calls with an unknown outcome.
    pub outcome_unknown_calls: Vec<String>,
    pub skipped_calls: Vec<String>,
    /// Indexes of the calls that a steer skipped.
    pub(super) skipped: Vec<usize>,
    /// The response whose calls are open. The driver loads it if the phase names one.
    pub response: Option<Arc<Entry>>,
    /// Entries with its buffered results.
    pub buffered: Vec<Arc<Entry>>,
    pub policy: Policy,
    pub now: Timestamp,
    /// The turn that this commit closes, if an extension may decide how the prompt continues.
    pub closed_turn: Option<ClosedTurn>,
    /// The extension's decision, until the turn closes.
    pub(super) finish_turn: Option<FinishTurn>,
    /// Bytes of buffered results appended to the path.
    pub(super) flushed_bytes: u64,
    /// True if the prompt ends with this commit even with open calls. Each open call then needs
    /// space for a result.
    pub(super) is_prompt_ending: bool,
}

impl Transition {
    pub fn new(head: Head, response: Option<Arc<Entry>>, policy: Policy, now: Timestamp) -> Self {
        let deferral = head.deferral().cloned();
        let waiting_message = head.waiting_message.clone().filter(|message| message.until > now);
        Self {
            head: Head { waiting_message, deferral, ..head },
            entries: Vec::new(),
            events: Vec::new(),
            receipts: Vec::new(),
            notifications: Vec::new(),
            alerts: Vec::new(),
            pending: Vec::new(),
            new_items: Vec::new(),
            other_messages: Vec::new(),
            is_abort_requested: false,
            start_changes: Vec::new(),
            held_start: None,
            drained_bytes: 0,
            is_settled_event_due: false,
            settled_event: None,
            ran_calls: Vec::new(),
            outcome_unknown_calls: Vec::new(),
            skipped_calls: Vec::new(),
            skipped: Vec::new(),
            response,
            buffered: Vec::new(),
            policy,
            now,
            closed_turn: None,
            finish_turn: None,
            flushed_bytes: 0,
            is_prompt_ending: false,
        }
    }

    /// Selects the messages of persons among the entries.
    pub fn person_messages(&self) -> PersonMessages {
        PersonMessages::without(&self.other_messages)
    }

    /// True if a commit would write nothing but the head.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
            && self.events.is_empty()
            && self.settled_event.is_none()
            && self.receipts.is_empty()
            && self.notifications.is_empty()
            && self.alerts.is_empty()
            && self.new_items.is_empty()
    }

    /// Operations of the commit: head, entries, one events document, receipts, notifications, new
    /// inbox items.
    pub fn operation_count(&self) -> usize {
        let items = self.queued_new_items().count();
        2 + self.entries.len() + self.receipts.len() + self.notifications.len() + items
    }

    /// The new inbox items that this commit does not apply.
    pub fn queued_new_items(&self) -> impl Iterator<Item = &InboxItem> {
        let items = self.pending.iter().map(|pending| &*pending.item);
        items.filter(|item| self.new_items.contains(&item.input_id))
    }

    /// Appends an entry after the leaf and makes it the leaf.
    pub(super) fn append(&mut self, body: EntryBody) -> Arc<Entry> {
        let seq = self.head.seq + 1;
        let entry_id = EntryId::from_seq(&self.head.incarnation, seq);
        self.append_with_id(entry_id, body)
    }

    /// Like [`Self::append`], with an id that an earlier response promised.
    pub(super) fn append_with_id(&mut self, entry_id: EntryId, body: EntryBody) -> Arc<Entry> {
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

    /// Appends the end of a prompt, without events.
    pub(super) fn append_prompt_end(&mut self, id: &PromptId, end: PromptEnd) {
        let (state, stop_reason) = (end.state, end.stop_reason);
        let entry = self.append(EntryBody::PromptEnd(end));
        if let Some(span) = self.head.prompts.iter_mut().rev().find(|span| span.id == *id) {
            span.state = state;
            span.stop_reason = Some(stop_reason);
            span.to_seq = Some(entry.base.seq);
        }
    }

    pub(super) fn emit(&mut self, body: EventBody) {
        self.finish();
        let event = self.new_event(body);
        self.push_event(event);
    }

    /// Emits an event about a request. The question of a command belongs to no prompt.
    pub(super) fn emit_about(&mut self, request: &Request, body: EventBody) {
        if request.input_id.is_some() {
            self.emit_outside_prompt(body);
        } else {
            self.emit(body);
        }
    }

    /// Emits an event that does not concern the running prompt.
    pub(super) fn emit_outside_prompt(&mut self, body: EventBody) {
        // Not `emit`: a planned `agent_settled` stays planned.
        let event = self.new_event(body);
        self.push_event(Event { prompt_id: None, ..event });
    }

    /// Gives the conversation another name, or none.
    pub(super) fn set_name(&mut self, name: Option<String>) {
        self.head.name.clone_from(&name);
        self.append(EntryBody::SessionInfo(SessionInfo::new(name.clone())));
        // Not `emit`: a planned `agent_settled` stays planned, because a message may still follow.
        let event = self.new_event(EventBody::SessionInfoChanged(SessionInfoChanged { name }));
        self.push_event(event);
    }

    /// Plans `agent_settled` if nothing waits. It is emitted after all inputs of the commit, because
    /// one of them may still start a compaction.
    pub(super) fn settle(&mut self) {
        self.is_settled_event_due = self.head.waiting_items > 0;
        if !self.is_settled_event_due {
            self.settled_event = Some(self.new_event(EventBody::AgentSettled(Empty {})));
        }
    }

    /// Something waits again.
    pub(super) fn postpone_settled_event(&mut self) {
        self.is_settled_event_due |= self.settled_event.take().is_some();
    }

    /// Emits `agent_settled` if it is planned. The commit calls it after the last input.
    pub fn finish(&mut self) {
        if let Some(event) = self.settled_event.take() {
            self.push_event(event);
        }
    }

    fn new_event(&self, body: EventBody) -> Event {
        let turn = self.head.turn;
        Event { n: 0, at: self.now, prompt_id: self.prompt_id(), turn, body }
    }

    fn push_event(&mut self, event: Event) {
        self.head.event_seq += 1;
        self.events.push(Event { n: self.head.event_seq, ..event });
    }

    /// Appends a message and emits its start and end.
    pub(super) fn append_message(&mut self, entry: MessageEntry) -> Arc<Entry> {
        let entry = self.append(EntryBody::Message(entry));
        self.emit_message(&entry);
        entry
    }

    pub(super) fn emit_message(&mut self, entry: &Entry) {
        self.emit_message_of(entry, None);
    }

    /// Emits start and end of a message. `input_id`: the input that it was.
    pub(super) fn emit_message_of(&mut self, entry: &Entry, input_id: Option<&InputId>) {
        let (message_id, seq) = (entry.base.entry_id.clone(), entry.base.seq);
        let message = MessageRef { message_id, seq, input_id: input_id.cloned() };
        self.emit(EventBody::MessageStart(message.clone()));
        self.emit(EventBody::MessageEnd(message));
    }

    pub(super) fn enqueue_notification(
        &mut self,
        kind: &str,
        data: &serde_json::Value,
        text: &str,
    ) {
        if !self.policy.has_notification_receiver {
            return;
        }
        // The event number is unique in the conversation, so the id is, too.
        let id = format!(
            "nt_{}_{}_{}",
            self.head.conversation_id, self.head.incarnation, self.head.event_seq
        );
        self.notifications.push(Notification {
            id,
            kind: kind.to_owned(),
            at: self.now,
            data: RawJson::from_value(&self.head.notification_data(data)),
            text: sanitize_line(text, LINE_CHARS_MAX),
            attempts: 0,
            settled_at: None,
            is_given_up: false,
        });
    }

    /// Adds an alert and its notification. `number` is unique among the alerts of the conversation.
    pub(super) fn issue_alert(&mut self, alert: BudgetAlert, number: &str) {
        if self.policy.has_notification_receiver {
            self.notifications.push(alert.notification(&self.head, number, self.now));
        }
        self.alerts.push(alert);
    }

    /// True if an extension has aborted the prompt, which ends with this commit.
    pub fn is_abort_requested(&self) -> bool {
        self.is_abort_requested
    }

    pub fn prompt_id(&self) -> Option<PromptId> {
        self.head.prompt.as_ref().map(|run| run.id.clone())
    }

    /// The response whose calls are open.
    pub fn open_response(&self) -> Option<&AssistantMessage> {
        self.response.as_ref()?.body.message()?.as_assistant()
    }

    pub fn calls(&self) -> &[CallState] {
        self.call_batch().calls
    }

    pub(super) fn call_mut(&mut self, index: usize) -> Option<&mut CallState> {
        match &mut self.head.phase {
            Phase::Calls { calls, .. } => calls.get_mut(index),
            Phase::Idle | Phase::Model { .. } | Phase::Summary { .. } | Phase::Deleted => None,
        }
    }

    pub fn call_batch(&self) -> CallBatch<'_> {
        self.head.phase.call_batch()
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
            let run = self.prompt.as_ref().filter(|_| data.contains_key("promptId"));
            if let Some(key) = run.and_then(|run| run.idempotency_key.as_ref()) {
                whole.insert("idempotencyKey".to_owned(), json!(key));
            }
            if !self.metadata.is_empty() {
                whole.insert("metadata".to_owned(), json!(self.metadata));
            }
            whole.extend(data.clone());
        }
        whole
    }

    /// Sets the time of the next delivery that the conversation needs while no worker has the lease.
    /// `inbox_wait`: time until the inbox needs a delivery. `None`: its items wait for the phase.
    pub fn set_due(&mut self, now: Timestamp, inbox_wait: Option<Duration>) {
        let inbox = inbox_wait.map(|wait| now.plus(wait));
        let due = self.next_due(now).into_iter().chain(inbox).min();
        self.due = due.map(|due| self.suspicion.retry_at.map_or(due, |retry_at| due.max(retry_at)));
    }

    /// Time of the next delivery, apart from the inbox. `None`: no work is pending.
    pub(crate) fn next_due(&self, now: Timestamp) -> Option<Timestamp> {
        let passing_on = self.profile_messages.as_ref().and_then(|messages| messages.due);
        let mark = self.waiting_message.as_ref().map(|message| message.until);
        let unleased = passing_on.into_iter().chain(mark).filter(|_| self.phase != Phase::Deleted);
        self.next_leased_due(now).into_iter().chain(unleased).min()
    }

    /// Time of the next work that needs the lease.
    pub fn next_leased_due(&self, now: Timestamp) -> Option<Timestamp> {
        let step = self.next_step_due(now);
        // Settlement happens in the same delivery, or in one of its own.
        let settling = self.metering.settle_at.filter(|_| self.phase != Phase::Deleted);
        step.into_iter().chain(settling).min()
    }

    /// Time of the next step, without settlement.
    pub fn next_step_due(&self, now: Timestamp) -> Option<Timestamp> {
        let due = self.next_unpaused_due(now)?;
        Some(self.pause.as_ref().map_or(due, |pause| due.max(pause.recheck_at)))
    }

    fn next_unpaused_due(&self, now: Timestamp) -> Option<Timestamp> {
        if self.waiting_commands.is_empty() {
            return self.next_phase_due(now);
        }
        let commands = self.waiting_commands.iter().filter_map(|command| {
            let open = self.question_of(&command.input_id);
            open.map_or(Some(now), |request| request.expires_at)
        });
        self.next_phase_due(now).into_iter().chain(commands).min()
    }

    fn next_phase_due(&self, now: Timestamp) -> Option<Timestamp> {
        match &self.phase {
            Phase::Deleted => None,
            Phase::Model { .. } | Phase::Summary { .. } if self.is_waiting_for_decision() => {
                let expiries = self.requests.iter().filter_map(|request| request.expires_at);
                expiries.chain(self.metering.recheck_at).min()
            }
            Phase::Idle => (self.waiting_items > 0).then_some(now),
            Phase::Model { not_before, .. } | Phase::Summary { not_before, .. } => {
                Some(not_before.unwrap_or(now))
            }
            Phase::Calls { .. } if self.phase.call_batch().has_pending_work() => Some(now),
            Phase::Calls { .. } => {
                self.requests.iter().filter_map(|request| request.expires_at).min()
            }
        }
    }
}
