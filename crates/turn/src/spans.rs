//! Spans of the driver. A delivery with pending work has one span, with spans for model and tool
//! calls in it, all in the trace of their prompt.

mod content;

use std::time::{Duration, SystemTime};

use crate::conversation_state::CallAttemptId;
use turnwheel_conversation::content::ToolCall;
use turnwheel_conversation::head::Head;
use turnwheel_conversation::inbox::InboxItem;
use turnwheel_conversation::message::{AssistantMessage, StopReason};
use turnwheel_model::{ModelRecord, ModelRequest, ModelResponse};
use turnwheel_platform::ids::ConversationKey;
use turnwheel_platform::telemetry::cost_meter;
use turnwheel_platform::telemetry::error_class::ErrorClass;
use turnwheel_platform::telemetry::metrics::ModelCall;
use turnwheel_platform::telemetry::trace::{self, Span, SpanRole};
use turnwheel_record::error::TurnError;
use turnwheel_record::error_domain;
use turnwheel_record::nudge::Nudge;
use turnwheel_record::services::Services;
use turnwheel_storage::queue;
use turnwheel_tools::{Arguments, ToolOutcome};

/// One processing round of a conversation, from the lease on.
pub(crate) struct DeliverySpan<'w> {
    services: &'w Services,
    nudge: &'w Nudge,
    began: SystemTime,
    began_monotonic: Duration,
    /// Request units spent before this round.
    request_units_before: f64,
    has_turn_span: bool,
    /// True if no message of the queue brought it.
    is_for_client: bool,
}

impl<'w> DeliverySpan<'w> {
    pub(crate) fn start(services: &'w Services, nudge: &'w Nudge, is_for_client: bool) -> Self {
        Self {
            services,
            nudge,
            began: trace::now(),
            began_monotonic: services.clock.monotonic(),
            request_units_before: request_units(),
            has_turn_span: false,
            is_for_client,
        }
    }

    pub(crate) fn key(&self) -> &'w ConversationKey {
        &self.nudge.key
    }

    /// Starts the span of the turn. Its parent is the request that started the prompt: from the
    /// head if the prompt runs, else from the applied items, else from the nudge. It links the
    /// current span and the previous turn.
    pub(crate) fn start_turn(
        &mut self,
        head: &Head,
        applied: &[std::sync::Arc<InboxItem>],
    ) -> Span {
        self.has_turn_span = true;
        let run = head.prompt.as_ref();
        let mut builder = self.span();
        let of_prompt = applied.iter().find_map(|item| item.prompt());
        let parent = match run {
            Some(run) => run.traceparent.as_deref(),
            None => of_prompt
                .and_then(|prompt| prompt.traceparent.as_deref())
                .or(self.nudge.traceparent.as_deref()),
        };
        builder =
            builder.with_parent(parent).with_link(run.and_then(|run| run.last_turn.as_deref()));
        let prompt_id = run.map(|run| &run.id).or(of_prompt.map(|prompt| &prompt.prompt_id));
        let span = builder.with_attribute("gen_ai.agent.name", head.agent.clone()).start();
        if let Some(prompt_id) = prompt_id {
            span.set_attribute("prompt.id", prompt_id.to_string());
        }
        span.set_attribute("turn", saturating_i64(head.turn));
        span
    }

    /// Links the current span, which is the host's span of the invocation.
    fn span(&self) -> trace::PendingSpan {
        let id = self.nudge.key.conversation_id.to_string();
        let span = self
            .services
            .telemetry
            .span("turn")
            .with_start_time(self.began)
            .with_link(trace::current_traceparent().as_deref())
            .with_attribute("gen_ai.conversation.id", id.clone())
            .with_attribute("conversation.id", id);
        if self.is_for_client {
            return span.with_role(SpanRole::Internal);
        }
        span.with_role(SpanRole::Consumer)
            .with_attribute("messaging.system", "azure_storage_queue")
            .with_attribute("messaging.operation.name", "process")
            .with_attribute("messaging.destination.name", queue::TURNS)
    }

    pub(crate) fn end_turn(&self, span: &Span, agent: &str, error: Option<&TurnError>) {
        let fault = error.map(error_domain::classify_turn_error);
        if let Some(fault) = &fault {
            span.record_error(fault);
        }
        if span.is_recording() {
            let charged = request_units() - self.request_units_before;
            if charged > 0.0 {
                span.set_attribute("turnwheel.request_units", charged);
            }
        }
        if let Some(metrics) = self.services.telemetry.metrics() {
            metrics.record_turn(agent, self.elapsed(), fault.as_ref());
        }
    }

    /// Records an error. If the turn has no span yet, this starts and ends one.
    pub(crate) fn record_failure(&self, error: &TurnError) {
        if let (TurnError::LeaseLost { .. }, Some(metrics)) =
            (error, self.services.telemetry.metrics())
        {
            metrics.record_lost_lease();
        }
        if !self.has_turn_span {
            let span = self.span().with_parent(self.nudge.traceparent.as_deref()).start();
            self.end_turn(&span, "", Some(error));
        }
    }

    fn elapsed(&self) -> Duration {
        self.services.clock.monotonic().saturating_sub(self.began_monotonic)
    }
}

fn request_units() -> f64 {
    cost_meter::current_meter().map_or(0.0, |meter| meter.total("").request_units)
}

/// Counts the cost of the work, if metrics are enabled.
pub(crate) async fn record_costs<T>(services: &Services, work: impl Future<Output = T>) -> T {
    let Some(metrics) = services.telemetry.metrics() else { return work.await };
    let meter = cost_meter::current_meter().unwrap_or_default();
    let before = meter.costs();
    let outcome = cost_meter::with_meter(std::sync::Arc::clone(&meter), work).await;
    for (operation, cost) in meter.costs() {
        let earlier = before.get(operation).copied().unwrap_or_default();
        let requests = cost.requests.saturating_sub(earlier.requests);
        if requests > 0 {
            metrics.record_cost(operation, requests, cost.request_units - earlier.request_units);
        }
    }
    outcome
}

/// Starts the span of the agent, which contains its model calls and tool calls.
pub(crate) fn start_agent_span(services: &Services, head: &Head) -> Span {
    let name = format!("invoke_agent {}", head.agent);
    services
        .telemetry
        .span(name)
        .with_attribute("gen_ai.operation.name", "invoke_agent")
        .with_attribute("gen_ai.provider.name", "turnwheel")
        .with_attribute("gen_ai.agent.name", head.agent.clone())
        .with_attribute("gen_ai.conversation.id", head.conversation_id.to_string())
        .start()
}

/// Span and metrics of one model call.
pub(crate) struct ModelCallSpan<'w> {
    services: &'w Services,
    pub span: Span,
    agent: String,
    model: String,
    provider: &'static str,
    began: Duration,
}

impl<'w> ModelCallSpan<'w> {
    pub(crate) fn start(
        services: &'w Services,
        head: &Head,
        record: &ModelRecord,
        attempt: u32,
    ) -> Self {
        let provider = provider_name(record);
        let span = services
            .telemetry
            .span(format!("chat {}", record.id))
            .with_role(SpanRole::Client)
            .with_attribute("gen_ai.operation.name", "chat")
            .with_attribute("gen_ai.provider.name", provider)
            .with_attribute("gen_ai.request.model", record.id.clone())
            .with_attribute("gen_ai.request.stream", true)
            .with_attribute("gen_ai.agent.name", head.agent.clone())
            .with_attribute("gen_ai.conversation.id", head.conversation_id.to_string())
            .with_attribute("attempt", i64::from(attempt))
            .start();
        Self {
            services,
            span,
            agent: head.agent.clone(),
            model: record.id.clone(),
            provider,
            began: services.clock.monotonic(),
        }
    }

    pub(crate) fn set_request(&self, request: &ModelRequest<'_>) {
        if let Some(temperature) = request.temperature {
            self.span.set_attribute("gen_ai.request.temperature", temperature);
        }
        if let Some(max) = request.max_output_tokens {
            self.span.set_attribute("gen_ai.request.max_tokens", saturating_i64(max));
        }
        if self.services.telemetry.should_capture_content() && self.span.is_recording() {
            content::set_request(&self.span, request);
        }
    }

    pub(crate) fn end(&self, response: Result<&ModelResponse, &TurnError>) {
        let fault = match response {
            Ok(response) => {
                self.set_response(response);
                error_domain::classify_response(response)
            }
            Err(error) => Some(error_domain::classify_turn_error(error)),
        };
        if let Some(fault) = &fault {
            self.span.record_error(fault);
        }
        let Some(metrics) = self.services.telemetry.metrics() else { return };
        let usage = response.map(|response| *response.message.usage).unwrap_or_default();
        let call = ModelCall {
            provider: self.provider,
            model: &self.model,
            agent: &self.agent,
            input_tokens: usage.input + usage.cache_read + usage.cache_write,
            output_tokens: usage.output,
            duration: self.services.clock.monotonic().saturating_sub(self.began),
        };
        metrics.record_model_call(call, fault.as_ref());
    }

    fn set_response(&self, response: &ModelResponse) {
        let (span, usage) = (&self.span, *response.message.usage);
        if !span.is_recording() {
            return;
        }
        // OpenTelemetry's input tokens include the cached ones; ours do not.
        span.set_attribute(
            "gen_ai.usage.input_tokens",
            saturating_i64(usage.input + usage.cache_read + usage.cache_write),
        );
        span.set_attribute("gen_ai.usage.output_tokens", saturating_i64(usage.output));
        span.set_attribute(
            "gen_ai.usage.cache_read.input_tokens",
            saturating_i64(usage.cache_read),
        );
        span.set_attribute(
            "gen_ai.usage.cache_creation.input_tokens",
            saturating_i64(usage.cache_write),
        );
        span.set_attribute("gen_ai.usage.reasoning.output_tokens", saturating_i64(usage.reasoning));
        span.set_list_attribute(
            "gen_ai.response.finish_reasons",
            &[finish_reason(&response.message)],
        );
        if let Some(id) = &response.metadata.id {
            span.set_attribute("gen_ai.response.id", id.clone());
        }
        if let Some(model) = &response.metadata.model {
            span.set_attribute("gen_ai.response.model", model.clone());
        }
        if self.services.telemetry.should_capture_content() {
            content::set_response(span, &response.message);
        }
    }
}

/// Span and metrics of one tool call.
pub(crate) struct ToolCallSpan<'w> {
    services: &'w Services,
    pub span: Span,
    agent: String,
    tool: String,
    began: Duration,
}

impl<'w> ToolCallSpan<'w> {
    /// `call` names a tool that the agent has.
    pub(crate) fn start(
        services: &'w Services,
        head: &Head,
        call: &ToolCall,
        arguments: &Arguments,
        attempt: &CallAttemptId,
    ) -> Self {
        let span = services
            .telemetry
            .span(format!("execute_tool {}", call.name))
            .with_attribute("gen_ai.operation.name", "execute_tool")
            .with_attribute("gen_ai.tool.name", call.name.clone())
            .with_attribute("gen_ai.tool.call.id", call.id.clone())
            .with_attribute("gen_ai.tool.type", "function")
            .with_attribute("gen_ai.agent.name", head.agent.clone())
            .with_attribute("gen_ai.conversation.id", head.conversation_id.to_string())
            .with_attribute("effect.id", attempt.effect_id.to_string())
            .with_attribute("attempt", i64::from(attempt.number))
            .start();
        if services.telemetry.should_capture_content() && span.is_recording() {
            content::set_arguments(&span, arguments);
        }
        Self {
            services,
            span,
            agent: head.agent.clone(),
            tool: call.name.clone(),
            began: services.clock.monotonic(),
        }
    }

    pub(crate) fn end(&self, outcome: Result<&ToolOutcome, &TurnError>) {
        let fault: Option<ErrorClass> = match outcome {
            Ok(outcome) => {
                if self.services.telemetry.should_capture_content() && self.span.is_recording() {
                    content::set_outcome(&self.span, outcome);
                }
                error_domain::classify_tool_outcome(outcome)
            }
            Err(error) => Some(error_domain::classify_turn_error(error)),
        };
        if let Some(fault) = &fault {
            self.span.record_error(fault);
        }
        self.count(fault.as_ref());
    }

    /// Counts a call that an abort cancelled, without an error.
    pub(crate) fn end_aborted(&self) {
        self.count(None);
    }

    fn count(&self, fault: Option<&ErrorClass>) {
        if let Some(metrics) = self.services.telemetry.metrics() {
            let took = self.services.clock.monotonic().saturating_sub(self.began);
            metrics.record_tool_call(&self.agent, &self.tool, took, fault);
        }
    }
}

/// Provider name of OpenTelemetry's semantic conventions.
fn provider_name(record: &ModelRecord) -> &'static str {
    if record.api == "scripted" { "turnwheel.scripted" } else { "azure.ai.openai" }
}

fn finish_reason(message: &AssistantMessage) -> &'static str {
    match message.stop_reason {
        StopReason::Stop => "stop",
        StopReason::Length => "length",
        StopReason::ToolUse => "tool_call",
        StopReason::Error => "error",
        StopReason::Aborted => "aborted",
    }
}

fn saturating_i64(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}
