//! Metrics. Attributes have few values: agents, tools, queues and outcomes, never conversations.

use std::time::Duration;

use opentelemetry::KeyValue;
use opentelemetry::metrics::{Counter, Gauge, Histogram, Meter};

use crate::telemetry::error_class::ErrorClass;

/// Histogram bounds that OpenTelemetry recommends for model calls, in seconds.
const CALL_SECONDS: [f64; 14] =
    [0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92];
/// Histogram bounds that OpenTelemetry recommends for tokens.
const TOKENS: [f64; 14] = [
    1.0,
    4.0,
    16.0,
    64.0,
    256.0,
    1_024.0,
    4_096.0,
    16_384.0,
    65_536.0,
    262_144.0,
    1_048_576.0,
    4_194_304.0,
    16_777_216.0,
    67_108_864.0,
];
/// Histogram bounds that OpenTelemetry recommends for HTTP, in seconds.
const REQUEST_SECONDS: [f64; 14] =
    [0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0];

#[derive(Debug)]
pub struct Metrics {
    turns: Histogram<f64>,
    leases_lost: Counter<u64>,
    recoveries: Counter<u64>,
    retries: Counter<u64>,
    commits: Counter<u64>,
    requests: Counter<u64>,
    request_units: Counter<f64>,
    messages: Counter<u64>,
    backlog: Gauge<u64>,
    poison: Counter<u64>,
    hook_failures: Counter<u64>,
    budget_alerts: Counter<u64>,
    calls: Histogram<f64>,
    tokens: Histogram<u64>,
    tools: Histogram<f64>,
    http: Histogram<f64>,
}

/// A model call, with the terms of OpenTelemetry's conventions.
#[derive(Clone, Copy, Debug)]
pub struct ModelCall<'a> {
    pub provider: &'a str,
    pub model: &'a str,
    pub agent: &'a str,
    /// Includes cached tokens.
    pub input_tokens: u64,
    pub output_tokens: u64,
    pub duration: Duration,
}

impl Metrics {
    pub(super) fn new(meter: &Meter) -> Self {
        let counter = |name: &'static str, unit: &'static str, text: &'static str| {
            meter.u64_counter(name).with_unit(unit).with_description(text).build()
        };
        let seconds = |name: &'static str, text: &'static str, bounds: &[f64]| {
            let histogram = meter.f64_histogram(name).with_unit("s").with_description(text);
            histogram.with_boundaries(bounds.to_vec()).build()
        };
        Self {
            turns: seconds(
                "turnwheel.turn.duration",
                "Deliveries that found pending work",
                &CALL_SECONDS,
            ),
            leases_lost: counter(
                "turnwheel.claims.lost",
                "{claim}",
                "Deliveries that lost their lease to another worker",
            ),
            recoveries: counter(
                "turnwheel.recoveries",
                "{turn}",
                "Turns taken over from a stopped or stalled worker",
            ),
            retries: counter(
                "turnwheel.retries",
                "{attempt}",
                "Failures followed by another attempt",
            ),
            commits: counter("turnwheel.commits", "{commit}", "Commits by outcome"),
            requests: counter(
                "turnwheel.service.requests",
                "{request}",
                "Requests to Azure services by operation",
            ),
            request_units: build_request_units(meter),
            messages: counter(
                "turnwheel.queue.messages",
                "{message}",
                "Messages sent and received",
            ),
            backlog: meter
                .u64_gauge("turnwheel.due.backlog")
                .with_unit("{document}")
                .with_description("Overdue documents found by the recovery sweep")
                .build(),
            poison: counter(
                "turnwheel.poison",
                "{message}",
                "Messages rejected or moved to a poison queue, and prompts failed after five attempts",
            ),
            hook_failures: build_hook_failures(meter),
            budget_alerts: build_budget_alerts(meter),
            calls: seconds(
                "gen_ai.client.operation.duration",
                "GenAI operation duration",
                &CALL_SECONDS,
            ),
            tokens: build_token_usage(meter),
            tools: seconds(
                "gen_ai.execute_tool.duration",
                "Duration of tool executions",
                &CALL_SECONDS,
            ),
            http: seconds(
                "http.server.request.duration",
                "Duration of HTTP server requests",
                &REQUEST_SECONDS,
            ),
        }
    }

    /// Records a delivery that found pending work. `error_class` is set if it failed.
    pub fn record_turn(&self, agent: &str, duration: Duration, error_class: Option<&ErrorClass>) {
        let mut pairs = vec![KeyValue::new("gen_ai.agent.name", agent.to_owned())];
        pairs.push(KeyValue::new(
            "turnwheel.outcome",
            if error_class.is_some() { "failed" } else { "done" },
        ));
        pairs.extend(error_attributes(error_class));
        self.turns.record(duration.as_secs_f64(), &pairs);
    }

    pub fn record_lost_lease(&self) {
        self.leases_lost.add(1, &[]);
    }

    pub fn record_recovery(&self, agent: &str) {
        self.recoveries.add(1, &[KeyValue::new("gen_ai.agent.name", agent.to_owned())]);
    }

    /// Records a retry. `operation` is `model`, or `claim` for a step that is leased again without
    /// progress.
    pub fn record_retry(&self, operation: &'static str) {
        self.retries.add(1, &[KeyValue::new("turnwheel.retry.of", operation)]);
    }

    /// Records a commit. `outcome` is `won`, `lost` or `failed`.
    pub fn record_commit(&self, name: &'static str, outcome: &'static str) {
        let pairs = [
            KeyValue::new("turnwheel.commit.name", name),
            KeyValue::new("turnwheel.outcome", outcome),
        ];
        self.commits.add(1, &pairs);
    }

    /// Records the requests of one delivery to a service.
    pub fn record_cost(&self, operation: &'static str, requests: u32, request_units: f64) {
        let pairs = [KeyValue::new("turnwheel.operation", operation)];
        self.requests.add(u64::from(requests), &pairs);
        if request_units > 0.0 {
            self.request_units.add(request_units, &pairs);
        }
    }

    /// Records a queue message. `operation` is `send` or `process`.
    pub fn record_queue_message(&self, queue: &str, operation: &'static str, is_done: bool) {
        let pairs = [
            KeyValue::new("messaging.destination.name", queue.to_owned()),
            KeyValue::new("messaging.operation.name", operation),
            KeyValue::new("turnwheel.outcome", if is_done { "done" } else { "failed" }),
        ];
        self.messages.add(1, &pairs);
    }

    /// Records the number of overdue documents.
    pub fn record_backlog(&self, overdue: usize) {
        self.backlog.record(overdue as u64, &[]);
    }

    pub fn record_poison(&self, subject: &str) {
        self.poison.add(1, &[KeyValue::new("turnwheel.poison.of", subject.to_owned())]);
    }

    /// Records a failed hook. `cause` is `error`, `panic` or `timeout`.
    pub fn record_hook_failure(&self, extension: &str, hook: &'static str, cause: &'static str) {
        let pairs = [
            KeyValue::new("turnwheel.extension.name", extension.to_owned()),
            KeyValue::new("turnwheel.hook.name", hook),
            KeyValue::new("error.type", cause),
        ];
        self.hook_failures.add(1, &pairs);
    }

    /// Records a budget alert. `period` is set for an account's budget.
    pub fn record_budget_alert(
        &self,
        level: &'static str,
        period: Option<&'static str>,
        percent: u8,
    ) {
        let mut pairs = vec![
            KeyValue::new("turnwheel.budget.level", level),
            KeyValue::new("turnwheel.budget.percent", i64::from(percent)),
        ];
        pairs.extend(period.map(|period| KeyValue::new("turnwheel.budget.period", period)));
        self.budget_alerts.add(1, &pairs);
    }

    pub fn record_model_call(&self, call: ModelCall<'_>, error_class: Option<&ErrorClass>) {
        let mut pairs = vec![
            KeyValue::new("gen_ai.operation.name", "chat"),
            KeyValue::new("gen_ai.provider.name", call.provider.to_owned()),
            KeyValue::new("gen_ai.request.model", call.model.to_owned()),
            KeyValue::new("gen_ai.agent.name", call.agent.to_owned()),
        ];
        for (kind, tokens) in [("input", call.input_tokens), ("output", call.output_tokens)] {
            if tokens > 0 {
                let mut pairs = pairs.clone();
                pairs.push(KeyValue::new("gen_ai.token.type", kind));
                self.tokens.record(tokens, &pairs);
            }
        }
        pairs.extend(error_attributes(error_class));
        self.calls.record(call.duration.as_secs_f64(), &pairs);
    }

    /// Records a tool call. `tool` is one of the agent's tools.
    pub fn record_tool_call(
        &self,
        agent: &str,
        tool: &str,
        duration: Duration,
        error_class: Option<&ErrorClass>,
    ) {
        let mut pairs = vec![
            KeyValue::new("gen_ai.operation.name", "execute_tool"),
            KeyValue::new("gen_ai.tool.name", tool.to_owned()),
            KeyValue::new("gen_ai.agent.name", agent.to_owned()),
        ];
        pairs.extend(error_attributes(error_class));
        self.tools.record(duration.as_secs_f64(), &pairs);
    }

    /// Records an HTTP request. `route` is the route template.
    pub fn record_http_request(
        &self,
        method: &'static str,
        route: &str,
        status: u16,
        duration: Duration,
    ) {
        let mut pairs = vec![
            KeyValue::new("http.request.method", method),
            KeyValue::new("http.route", route.to_owned()),
            KeyValue::new("http.response.status_code", i64::from(status)),
        ];
        if status >= 500 {
            pairs.push(KeyValue::new("error.type", status.to_string()));
        }
        self.http.record(duration.as_secs_f64(), &pairs);
    }
}

fn build_budget_alerts(meter: &Meter) -> Counter<u64> {
    let counter = meter.u64_counter("turnwheel.budget.alerts").with_unit("{alert}");
    counter.with_description("Budget thresholds reached").build()
}

fn build_request_units(meter: &Meter) -> Counter<f64> {
    let counter = meter.f64_counter("turnwheel.store.request_units").with_unit("{request_unit}");
    counter.with_description("Request units that Cosmos DB charged").build()
}

fn build_hook_failures(meter: &Meter) -> Counter<u64> {
    let counter = meter.u64_counter("turnwheel.hook.failures").with_unit("{call}");
    counter.with_description("Extension hooks that failed, panicked or timed out").build()
}

fn build_token_usage(meter: &Meter) -> Histogram<u64> {
    let histogram = meter.u64_histogram("gen_ai.client.token.usage").with_unit("{token}");
    let histogram = histogram.with_description("Number of input and output tokens used");
    histogram.with_boundaries(TOKENS.to_vec()).build()
}

fn error_attributes(error_class: Option<&ErrorClass>) -> Vec<KeyValue> {
    error_class.map_or_else(Vec::new, |error_class| {
        vec![
            KeyValue::new("error.type", error_class.kind.clone()),
            KeyValue::new("turnwheel.fault_domain", error_class.domain.name()),
        ]
    })
}
