//! Results of calls that no commit holds yet, stored as inbox items (invariant 3).

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};

use crate::conversation_state::ConversationState;
use crate::inbox::WaitingItem;
use turnwheel_conversation::content::ToolCall;
use turnwheel_conversation::inbox::{IdempotencyRecord, InboxBody, InboxItem, LateResult};
use turnwheel_conversation::request::CallRef;
use turnwheel_conversation::step::{CallResult, Input};
use turnwheel_platform::ids::{ConversationKey, EffectId, InputId};
use turnwheel_platform::telemetry::trace;
use turnwheel_record::certain_write::with_inbox_count;
use turnwheel_record::documents;
use turnwheel_record::services::Services;
use turnwheel_storage::store::conditional::write_once;
use turnwheel_storage::store::{Partition, Write};

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

    /// An item that exists already stays.
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
        let partition = Partition::Conversation(self.key.clone());
        if let Err(error) = write_once(&*self.services.store, &partition, writes).await {
            tracing::warn!(conversation.id = %self.key.conversation_id, error = %error, "late tool result not stored");
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
