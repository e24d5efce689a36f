//! Spans of the driver. A delivery with pending work has one span, with spans for model and tool
//! calls in it, all in the trace of their prompt.

mod content;

use std::time::{Duration, SystemTime};

use crate::agent::content::ToolCall;
use crate::agent::head::Head;
use crate::agent::inbox::InboxItem;
use crate::agent::message::{AssistantMessage, StopReason};
use crate::ids::ConversationKey;
use crate::model::{Answer, ModelRecord, ModelRequest};
use crate::queue;
use crate::telemetry::fault::Fault;
use crate::telemetry::meter;
use crate::telemetry::metrics::ModelCall;
use crate::telemetry::trace::{self, Role, Span};
use crate::tools::{Arguments, ToolOutcome};
use crate::turn::delivery::TurnError;
use crate::turn::hold::Hold;
use crate::turn::{Nudge, World, faults};

/// One processing round of a conversation, from the lease on.
pub(super) struct Visit<'w> {
    world: &'w World,
    nudge: &'w Nudge,
    began: SystemTime,
    began_monotonic: Duration,
    /// Request units spent before this round.
    units: f64,
    is_told: bool,
}

impl<'w> Visit<'w> {
    pub(super) fn begin(world: &'w World, nudge: &'w Nudge) -> Self {
        Self {
            world,
            nudge,
            began: trace::now(),
            began_monotonic: world.clock.monotonic(),
            units: units(),
            is_told: false,
        }
    }

    pub(super) fn key(&self) -> &'w ConversationKey {
        &self.nudge.key
    }

    /// Starts the span of the turn. Its parent is the request that started the prompt: from the
    /// head if the prompt runs, else from the applied items, else from the nudge. It links the
    /// current span, the previous turn, and the requests of the applied items.
    pub(super) fn turn(&mut self, head: &Head, landing: &[std::sync::Arc<InboxItem>]) -> Span {
        self.is_told = true;
        let run = head.prompt.as_ref();
        let mut beginning = self.span();
        let of_prompt = landing.iter().find_map(|item| item.prompt());
        let parent = match run {
            Some(run) => run.traceparent.as_deref(),
            None => of_prompt
                .and_then(|prompt| prompt.traceparent.as_deref())
                .or(self.nudge.traceparent.as_deref()),
        };
        beginning = beginning.under(parent).link(run.and_then(|run| run.last_turn.as_deref()));
        for item in landing {
            beginning = beginning.link(item.traceparent.as_deref());
        }
        let prompt_id = run.map(|run| &run.id).or(of_prompt.map(|prompt| &prompt.prompt_id));
        let span = beginning.with("gen_ai.agent.name", head.agent.clone()).start();
        if let Some(prompt_id) = prompt_id {
            span.set("prompt.id", prompt_id.to_string());
        }
        span.set("turn", signed(head.turn));
        span
    }

    /// Links the current span, which is the host's span of the invocation.
    fn span(&self) -> trace::Beginning {
        let id = self.nudge.key.conversation_id.to_string();
        self.world
            .telemetry
            .span("turn")
            .role(Role::Consumer)
            .began(self.began)
            .link(trace::traceparent().as_deref())
            .with("messaging.system", "azure_storage_queue")
            .with("messaging.operation.name", "process")
            .with("messaging.destination.name", queue::TURNS)
            .with("gen_ai.conversation.id", id.clone())
            .with("conversation.id", id)
    }

    pub(super) fn end(&self, span: &Span, agent: &str, error: Option<&TurnError>) {
        let fault = error.map(faults::of_turn);
        if let Some(fault) = &fault {
            span.fail(fault);
        }
        if span.is_recording() {
            let charged = units() - self.units;
            if charged > 0.0 {
                span.set("turnwheel.request_units", charged);
            }
        }
        if let Some(metrics) = self.world.telemetry.metrics() {
            metrics.turn(agent, self.took(), fault.as_ref());
        }
    }

    /// Records an error. If the turn has no span yet, this starts and ends one.
    pub(super) fn failed(&self, error: &TurnError) {
        if let (TurnError::ClaimLost { .. }, Some(metrics)) =
            (error, self.world.telemetry.metrics())
        {
            metrics.claim_lost();
        }
        if !self.is_told {
            let span = self.span().under(self.nudge.traceparent.as_deref()).start();
            self.end(&span, "", Some(error));
        }
    }

    fn took(&self) -> Duration {
        self.world.clock.monotonic().saturating_sub(self.began_monotonic)
    }
}

fn units() -> f64 {
    meter::running().map_or(0.0, |meter| meter.total("").request_units)
}

/// Counts the cost of the work, if metrics are enabled.
pub(super) async fn priced<T>(world: &World, work: impl Future<Output = T>) -> T {
    let Some(metrics) = world.telemetry.metrics() else { return work.await };
    let meter = meter::running().unwrap_or_default();
    let before = meter.costs();
    let outcome = meter::metered(std::sync::Arc::clone(&meter), work).await;
    for (operation, cost) in meter.costs() {
        let earlier = before.get(operation).copied().unwrap_or_default();
        let requests = cost.requests.saturating_sub(earlier.requests);
        if requests > 0 {
            metrics.cost(operation, requests, cost.request_units - earlier.request_units);
        }
    }
    outcome
}

/// Starts the span of the agent, which contains its model calls and tool calls.
pub(super) fn agent(hold: &Hold<'_>) -> Span {
    let name = format!("invoke_agent {}", hold.head.agent);
    let telemetry = &hold.world.telemetry;
    telemetry
        .span(name)
        .with("gen_ai.operation.name", "invoke_agent")
        .with("gen_ai.provider.name", "turnwheel")
        .with("gen_ai.agent.name", hold.head.agent.clone())
        .with("gen_ai.conversation.id", hold.key.conversation_id.to_string())
        .start()
}

/// Span and metrics of one model call.
pub(super) struct Asking<'w> {
    world: &'w World,
    pub(super) span: Span,
    agent: String,
    model: String,
    provider: &'static str,
    began: Duration,
}

impl<'w> Asking<'w> {
    pub(super) fn begin(hold: &Hold<'w>, record: &ModelRecord, attempt: u32) -> Self {
        let world = hold.world;
        let provider = provider(record);
        let span = world
            .telemetry
            .span(format!("chat {}", record.id))
            .role(Role::Client)
            .with("gen_ai.operation.name", "chat")
            .with("gen_ai.provider.name", provider)
            .with("gen_ai.request.model", record.id.clone())
            .with("gen_ai.request.stream", true)
            .with("gen_ai.agent.name", hold.head.agent.clone())
            .with("gen_ai.conversation.id", hold.key.conversation_id.to_string())
            .with("attempt", i64::from(attempt))
            .start();
        Self {
            world,
            span,
            agent: hold.head.agent.clone(),
            model: record.id.clone(),
            provider,
            began: world.clock.monotonic(),
        }
    }

    pub(super) fn ask(&self, request: &ModelRequest<'_>) {
        if let Some(temperature) = request.temperature {
            self.span.set("gen_ai.request.temperature", temperature);
        }
        if let Some(max) = request.max_output_tokens {
            self.span.set("gen_ai.request.max_tokens", signed(max));
        }
        if self.world.telemetry.captures_content() && self.span.is_recording() {
            content::put_request(&self.span, request);
        }
    }

    pub(super) fn end(&self, answer: Result<&Answer, &TurnError>) {
        let fault = match answer {
            Ok(answer) => {
                self.heard(answer);
                faults::of_answer(answer)
            }
            Err(error) => Some(faults::of_turn(error)),
        };
        if let Some(fault) = &fault {
            self.span.fail(fault);
        }
        let Some(metrics) = self.world.telemetry.metrics() else { return };
        let usage = answer.map(|answer| answer.message.usage).unwrap_or_default();
        let call = ModelCall {
            provider: self.provider,
            model: &self.model,
            agent: &self.agent,
            input_tokens: usage.input + usage.cache_read + usage.cache_write,
            output_tokens: usage.output,
            took: self.world.clock.monotonic().saturating_sub(self.began),
        };
        metrics.model_call(call, fault.as_ref());
    }

    fn heard(&self, answer: &Answer) {
        let (span, usage) = (&self.span, answer.message.usage);
        if !span.is_recording() {
            return;
        }
        // OpenTelemetry's input tokens include the cached ones; ours do not.
        span.set(
            "gen_ai.usage.input_tokens",
            signed(usage.input + usage.cache_read + usage.cache_write),
        );
        span.set("gen_ai.usage.output_tokens", signed(usage.output));
        span.set("gen_ai.usage.cache_read.input_tokens", signed(usage.cache_read));
        span.set("gen_ai.usage.cache_creation.input_tokens", signed(usage.cache_write));
        span.set("gen_ai.usage.reasoning.output_tokens", signed(usage.reasoning));
        span.set_list("gen_ai.response.finish_reasons", &[finish_reason(&answer.message)]);
        if let Some(id) = &answer.reply.id {
            span.set("gen_ai.response.id", id.clone());
        }
        if let Some(model) = &answer.reply.model {
            span.set("gen_ai.response.model", model.clone());
        }
        if self.world.telemetry.captures_content() {
            content::put_answer(span, &answer.message);
        }
    }
}

/// Span and metrics of one tool call.
pub(super) struct Calling<'w> {
    world: &'w World,
    pub(super) span: Span,
    agent: String,
    tool: String,
    began: Duration,
}

impl<'w> Calling<'w> {
    /// `call` names a tool that the agent has.
    pub(super) fn begin(
        hold: &Hold<'w>,
        call: &ToolCall,
        arguments: &Arguments,
        (effect_id, attempt): (&crate::ids::EffectId, u32),
    ) -> Self {
        let world = hold.world;
        let span = world
            .telemetry
            .span(format!("execute_tool {}", call.name))
            .with("gen_ai.operation.name", "execute_tool")
            .with("gen_ai.tool.name", call.name.clone())
            .with("gen_ai.tool.call.id", call.id.clone())
            .with("gen_ai.tool.type", "function")
            .with("gen_ai.agent.name", hold.head.agent.clone())
            .with("gen_ai.conversation.id", hold.key.conversation_id.to_string())
            .with("effect.id", effect_id.to_string())
            .with("attempt", i64::from(attempt))
            .start();
        if world.telemetry.captures_content() && span.is_recording() {
            content::put_arguments(&span, arguments);
        }
        Self {
            world,
            span,
            agent: hold.head.agent.clone(),
            tool: call.name.clone(),
            began: world.clock.monotonic(),
        }
    }

    pub(super) fn end(&self, outcome: Result<&ToolOutcome, &TurnError>) {
        let fault: Option<Fault> = match outcome {
            Ok(outcome) => {
                if self.world.telemetry.captures_content() && self.span.is_recording() {
                    content::put_outcome(&self.span, outcome);
                }
                faults::of_outcome(outcome)
            }
            Err(error) => Some(faults::of_turn(error)),
        };
        if let Some(fault) = &fault {
            self.span.fail(fault);
        }
        self.count(fault.as_ref());
    }

    /// Counts a call that an abort cancelled, without an error.
    pub(super) fn cut(&self) {
        self.count(None);
    }

    fn count(&self, fault: Option<&Fault>) {
        if let Some(metrics) = self.world.telemetry.metrics() {
            let took = self.world.clock.monotonic().saturating_sub(self.began);
            metrics.tool_call(&self.agent, &self.tool, took, fault);
        }
    }
}

/// Provider name of OpenTelemetry's semantic conventions.
fn provider(record: &ModelRecord) -> &'static str {
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

fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}
