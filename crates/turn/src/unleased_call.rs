//! Model calls after the release of the lease: for the title of the conversation and the profile of
//! its user. Nothing of the conversation waits for them.

use std::time::Duration;

use crate::compaction::NullListener;
use crate::failed_response::aborted_response;
use crate::leased_conversation::LeasedConversation;
use crate::spans::ModelCallSpan;
use turnwheel_conversation::compaction::tokens;
use turnwheel_conversation::content::Content;
use turnwheel_conversation::head::Head;
use turnwheel_conversation::message::{Message, UserMessage};
use turnwheel_conversation::settings::{DEFAULT_MODEL, Settings, ThinkingLevel};
use turnwheel_conversation::unknown_members::Extra;
use turnwheel_extensions::context::Anchor;
use turnwheel_extensions::{Hook, HookSet};
use turnwheel_model::tokens::count_tokens;
use turnwheel_model::{ModelRecord, ModelRequest, ModelResponse};
use turnwheel_platform::clock::Timestamp;
use turnwheel_record::event_log::truncate_error;
use turnwheel_record::ledger;
use turnwheel_record::services::Services;
use turnwheel_storage::store::StoreError;

/// Longest wait for the model.
const TIMEOUT: Duration = Duration::from_secs(30);

/// The conversation and the model of calls without the lease.
pub(crate) struct UnleasedCall<'w> {
    pub services: &'w Services,
    /// At the release of the lease.
    pub head: Head,
    pub traceparent: Option<String>,
    settings: Settings,
    /// `None`: there is no model for such calls.
    record: Option<ModelRecord>,
    session_id: String,
    payload: Option<HookSet<'w>>,
    /// End of the time of the delivery, on the monotonic clock.
    ends: Duration,
}

/// A request of one user message without tools.
pub(crate) struct UnleasedRequest<'a> {
    pub system: &'a str,
    pub text: String,
    /// Output tokens of a model without reasoning.
    pub output_tokens: u64,
    /// Output tokens of a reasoning model, which include those of the reasoning.
    pub thinking_output_tokens: u64,
}

impl<'w> UnleasedCall<'w> {
    pub(crate) fn new(conversation: &LeasedConversation<'w>) -> Self {
        let (services, head) = (conversation.services, &conversation.state.head);
        let context = conversation.state.context(services);
        let left = conversation.progress.time_left(&*services.clock);
        Self {
            services,
            record: services.model.record(DEFAULT_MODEL).ok(),
            session_id: context.session_id(head),
            payload: conversation.hook_set(Hook::OnPayload, &context, Anchor::Entry(head.seq)),
            traceparent: conversation.telemetry.traceparent.clone(),
            ends: services.clock.monotonic() + left,
            head: head.clone(),
            settings: context.settings,
        }
    }

    /// True if limits leave room for a call, and the process does not end. Its cost is small and not
    /// reserved.
    ///
    /// # Errors
    /// The store is unavailable: make no call.
    pub(crate) async fn may_call_model(&self) -> Result<bool, StoreError> {
        let Self { services, head, .. } = self;
        let limits = &services.spending_limits;
        let budget = self.settings.parse_budget();
        if services.shutdown.is_begun()
            || self.record.is_none()
            || head.is_conversation_budget_exceeded(budget.as_ref())
        {
            return Ok(false);
        }
        let now = services.clock.monotonic();
        Ok(ledger::has_budget(services, head).await?
            && limits.rate_limiter.take_model_call(&head.tenant, &head.user, now).is_ok())
    }

    /// Calls the model. A response that does not come in time, or before the process has to stop, is
    /// aborted. `None`: there is no model.
    pub(crate) async fn respond(&self, request: UnleasedRequest<'_>) -> Option<ModelResponse> {
        let Self { services, head, .. } = self;
        let record = self.record.as_ref()?;
        let UnleasedRequest { system, text, output_tokens, thinking_output_tokens } = request;
        let message = Message::User(UserMessage {
            content: Content::Text(text),
            timestamp: Timestamp(0),
            extra: Extra::new(),
        });
        let span = ModelCallSpan::start(services, head, record, 1);
        let traceparent = span.span.traceparent().or_else(|| self.traceparent.clone());
        let wanted = if record.reasoning { thinking_output_tokens } else { output_tokens };
        let messages = [&message];
        let request = ModelRequest {
            payload: self.payload.as_ref().map(|hooks| hooks as _),
            model: record,
            system: Some(system),
            messages: &messages,
            tools: &[],
            thinking: ThinkingLevel::Off,
            temperature: None,
            max_output_tokens: Some(wanted.min(record.max_tokens).max(1)),
            response_schema: None,
            session_id: &self.session_id,
            traceparent: traceparent.as_deref(),
        };
        span.set_request(&request);
        let timeout = TIMEOUT.min(self.ends.saturating_sub(services.clock.monotonic()));
        let responding = services.model.respond(request, &NullListener);
        let received = span.span.run(async {
            tokio::select! {
                biased;
                () = services.shutdown.wait_for_deadline(false) => None,
                received = tokio::time::timeout(timeout, responding) => received.ok(),
            }
        });
        // The provider bills a call whose response is not read to its end.
        let response = received.await.unwrap_or_else(|| {
            let sent = tokens::count_message(&message, &count_tokens) + count_tokens(system);
            aborted_response(record, Vec::new(), sent)
        });
        span.end(Ok(&response));
        Some(response)
    }

    /// Logs the outcome of a call for this purpose.
    pub(crate) fn log(&self, purpose: &str, response: &ModelResponse, is_usable: bool) {
        let (id, agent, message) =
            (&self.head.conversation_id, &self.head.agent, &response.message);
        if message.is_failed() {
            let error = message.error_message.as_deref().unwrap_or("no reason was given");
            tracing::warn!(conversation.id = %id, agent = %agent, gen_ai.request.model = %message.model, status = response.metadata.status, error.type = response.metadata.error.as_deref(), error = truncate_error(error), "{purpose} call failed");
            return;
        }
        tracing::info!(conversation.id = %id, agent = %agent, gen_ai.request.model = %message.model, gen_ai.usage.input_tokens = message.usage.input, gen_ai.usage.output_tokens = message.usage.output, usable = is_usable, "{purpose} call completed");
    }
}
