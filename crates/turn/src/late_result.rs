//! Results of calls that no commit holds yet, stored as inbox items (invariant 3).

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};

use crate::conversation_state::ConversationState;
use crate::inbox::WaitingItem;
use turnwheel_conversation::content::ToolCall;
use turnwheel_conversation::head::Head;
use turnwheel_conversation::inbox::{IdempotencyRecord, InboxBody, InboxItem, LateResult};
use turnwheel_conversation::phase::{CallStatus, Phase};
use turnwheel_conversation::request::{CallRef, Effect};
use turnwheel_conversation::step::{CallResult, Input};
use turnwheel_platform::clock::Timestamp;
use turnwheel_platform::error_chain::error_chain;
use turnwheel_platform::ids::{ConversationKey, EffectId, InputId};
use turnwheel_platform::telemetry::trace;
use turnwheel_record::certain_write::{with_inbox_count, write_until_certain};
use turnwheel_record::contract::CommandError;
use turnwheel_record::documents;
use turnwheel_record::error::OUTCOME_REQUEST_EXPIRES;
use turnwheel_record::services::Services;
use turnwheel_storage::store::Write;
use turnwheel_storage::store::outage_retry::retry_while_unavailable;

/// Stores the result of one call as an inbox item. It borrows nothing from the conversation.
pub(crate) struct LateResultWriter<'w> {
    services: &'w Services,
    key: ConversationKey,
    effect: EffectId,
    call: CallRef,
    tool_call_id: String,
    tool_name: String,
}

impl<'w> LateResultWriter<'w> {
    pub(crate) fn new(
        services: &'w Services,
        state: &ConversationState,
        call: CallRef,
        tool_call: &ToolCall,
    ) -> Self {
        Self {
            services,
            key: state.key.clone(),
            effect: EffectId::from_call(
                &state.key.conversation_id,
                &state.head.incarnation,
                call.response_seq,
                call.index,
            ),
            call,
            tool_call_id: tool_call.id.clone(),
            tool_name: tool_call.name.clone(),
        }
    }

    pub(crate) fn call(&self) -> CallRef {
        self.call
    }

    /// An item that exists already stays. While the store is unavailable, the write is
    /// retried for a limited time.
    pub(crate) async fn store(&self, result: &CallResult) {
        let now = self.services.clock.now();
        let message = result.to_message(&self.tool_call_id, &self.tool_name, now);
        let late = LateResult {
            call: self.call,
            message,
            outputs: result.outputs.clone(),
            state: result.state.clone(),
        };
        let item = InboxItem {
            input_id: InputId::new(format!("late-{}", self.effect)),
            accepted_at: now,
            idempotency: IdempotencyRecord::default(),
            traceparent: trace::current_traceparent(),
            body: InboxBody::LateResult(late),
        };
        let writes = vec![Write::Create(documents::inbox_document(&item))];
        let writes = with_inbox_count(writes, Some(now));
        let write = || write_until_certain(self.services, &self.key, writes.clone());
        let warn = |error: &CommandError, event: &str| {
            let (id, call) = (&self.key.conversation_id, &self.tool_call_id);
            tracing::warn!(conversation.id = %id, tool = %self.tool_name, call = %call, error = %error_chain(error), "{event}");
        };
        let report = |error: &CommandError| {
            warn(error, "late tool result not stored yet; the write is retried");
        };
        let stored = retry_while_unavailable(&self.services.shutdown, write, report).await;
        if let Err(error) = stored {
            warn(
                &error,
                "late tool result not stored; unless a commit has it, a read runs again and the outcome of a write is unknown",
            );
        }
    }
}

/// The calls whose results this worker stored before hooks change them. Only the commit of the
/// changed result reads such an item.
#[derive(Clone, Debug, Default)]
pub struct KeptResults(Arc<Mutex<HashSet<CallRef>>>);

impl KeptResults {
    pub fn add(&self, call: CallRef) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(call);
    }

    /// Leaves out the results of calls that no input settles.
    pub fn filter(&self, mut inbox: Vec<WaitingItem>, inputs: &[Input]) -> Vec<WaitingItem> {
        let kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_settled = |call: CallRef| {
            inputs.iter().any(
                |input| matches!(input, Input::ToolCallReturned { index, .. } if *index == call.index),
            )
        };
        inbox.retain(|waiting| {
            let InboxBody::LateResult(late) = &waiting.item.body else { return true };
            !kept.contains(&late.call) || is_settled(late.call)
        });
        inbox
    }
}

/// The started writes whose result no item of the inbox has: their outcome is unknown.
pub(crate) fn lost_writes(head: &Head, inbox: &[WaitingItem], now: Timestamp) -> Vec<Input> {
    let sent = sent_writes(head).map(|write| write.call.index);
    let lost = sent.filter(|index| !has_late_result(head, inbox, *index));
    lost.map(|index| Input::ToolOutcomeUnknown {
        index,
        reason:
            "The worker stopped while this call was under way; whether it happened is not known."
                .to_owned(),
        expires_at: now.plus(OUTCOME_REQUEST_EXPIRES),
    })
    .collect()
}

/// True if an item of the inbox has the result of that open call.
fn has_late_result(head: &Head, inbox: &[WaitingItem], index: usize) -> bool {
    let Phase::Calls { response_seq, .. } = head.phase else { return false };
    let call = CallRef { response_seq, index };
    inbox.iter().any(
        |waiting| matches!(&waiting.item.body, InboxBody::LateResult(late) if late.call == call),
    )
}

/// The inputs of a commit whose inbox has changed, without the lost writes whose results have
/// arrived since. `is_commit_only`: nothing follows the commit.
pub(crate) async fn without_known_outcomes(
    services: &Services,
    state: &mut ConversationState,
    inputs: &[Input],
    is_commit_only: bool,
) -> Vec<Input> {
    let inbox = state.read_inbox(services).await;
    let is_known = |index: usize| match &inbox {
        Ok(inbox) => has_late_result(&state.head, inbox, index),
        // The next delivery decides.
        Err(_) => is_commit_only,
    };
    // The stages of a drained inbox would start calls, and nothing follows a commit alone.
    let is_left = |input: &Input| is_commit_only && matches!(input, Input::DrainInbox);
    let mut kept = inputs.to_vec();
    kept.retain(|input| {
        !is_left(input)
            && !matches!(input, Input::ToolOutcomeUnknown { index, .. } if is_known(*index))
    });
    kept
}

/// A write that a worker has started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SentWrite {
    pub(crate) call: CallRef,
    attempt: u32,
}

/// The started writes of a head, in source order.
pub(crate) fn sent_writes(head: &Head) -> impl Iterator<Item = SentWrite> {
    let response_seq =
        if let Phase::Calls { response_seq, .. } = head.phase { Some(response_seq) } else { None };
    let calls = head.phase.call_batch().calls.iter().enumerate();
    let writes = calls.filter(|(_, call)| {
        matches!(call.status, CallStatus::Started { effect: Effect::Write, .. })
    });
    writes.filter_map(move |(index, call)| {
        let call_ref = CallRef { response_seq: response_seq?, index };
        Some(SentWrite { call: call_ref, attempt: call.attempts })
    })
}
