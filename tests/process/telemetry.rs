//! Telemetry end to end: the built binary, a local collector and Application Insights, and a kill.

mod collector;

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use turnwheel::testing::payments::PaymentsServer;

use crate::support::dev_process::DevProcess;
use crate::support::openapi_check;
use collector::{Collector, Exports};
use turnwheel_test_support::time_bound::check_time;

const TIMEOUT: Duration = Duration::from_mins(2);

/// A client that starts one prompt and approves its call.
struct Client {
    http: reqwest::Client,
}

impl Client {
    fn new() -> Self {
        Self { http: reqwest::Client::new() }
    }

    async fn post(&self, dev: &DevProcess, path: &str, body: &Value) -> Value {
        let request = self.http.post(dev.url(path)).json(body).timeout(TIMEOUT);
        let response = openapi_check::send(request).await.unwrap();
        assert!(response.status.is_success(), "{path}: {response:?}");
        response.json()
    }

    async fn get(&self, dev: &DevProcess, path: &str) -> Value {
        let request = self.http.get(dev.url(path)).timeout(TIMEOUT);
        openapi_check::send(request).await.unwrap().json()
    }

    /// Starts the prompt and waits until it needs an approval.
    async fn start_prompt(&self, dev: &DevProcess) -> Value {
        let body = json!({"agent": "payments-clerk", "conversationId": "story", "input": "Pay 250 to CANARY"});
        let prompt = self.post(dev, "/api/prompts?wait=60", &body).await;
        assert_eq!(prompt["state"], "waiting_for_approval", "{prompt}");
        prompt
    }

    /// Approves the call and waits until the prompt has ended.
    async fn approve_and_wait(&self, dev: &DevProcess) -> Value {
        let conversation = self.get(dev, "/api/conversations/story").await;
        let approval = conversation["pendingApprovals"][0]["id"].as_str().unwrap();
        let path = format!("/api/conversations/story/approvals/{approval}");
        self.post(dev, &path, &json!({"decision": "approve"})).await;
        let deadline = Instant::now() + TIMEOUT;
        loop {
            let prompts = self.get(dev, "/api/conversations/story/prompts").await;
            let prompt = &prompts["items"][0];
            if prompt["state"] == "completed" {
                return prompt.clone();
            }
            assert!(Instant::now() < deadline, "the prompt did not end: {prompts}; {}", dev.log());
        }
    }
}

/// Settings with short export delays, so that a kill loses little.
fn settings(collector: &Collector, payments: &PaymentsServer) -> Vec<(&'static str, String)> {
    vec![
        ("PAYMENTS_URL", payments.base_url.clone()),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", collector.base_url()),
        ("OTEL_EXPORTER_OTLP_HEADERS", "x-key=hush%20key".to_owned()),
        ("OTEL_SERVICE_NAME", "wheel".to_owned()),
        // A batch that takes longer on a busy machine is lost.
        ("OTEL_EXPORTER_OTLP_TIMEOUT", "120000".to_owned()),
        ("OTEL_BSP_SCHEDULE_DELAY", "20".to_owned()),
        ("OTEL_BLRP_SCHEDULE_DELAY", "20".to_owned()),
        ("APPLICATIONINSIGHTS_CONNECTION_STRING", collector.connection_string()),
    ]
}

const SPANS_OF_TRACE: [&str; 3] =
    ["chat scripted", "invoke_agent payments-clerk", "execute_tool send_payment"];
const INSIGHTS_KINDS: [&str; 3] = ["RequestData", "RemoteDependencyData", "MessageData"];

/// True if the exports of both processes have arrived: spans, the link of the decision to a turn,
/// logs, and items of Application Insights. Metrics follow at the stop.
/// A late nudge may find no prompt, and its turn belongs to none.
fn turns_of_prompts(exports: &Exports) -> Vec<collector::Span> {
    let mut turns = exports.spans_named("turn");
    turns.retain(|turn| turn.has_prompt);
    turns
}

fn is_complete(exports: &Exports) -> bool {
    let turns = turns_of_prompts(exports);
    let instances: BTreeSet<&str> = turns.iter().map(|turn| turn.instance.as_str()).collect();
    let decisions = exports.spans_named("POST /api/conversations/{id}/approvals/{approvalId}");
    let kinds = turns.first().map(|turn| insights_kinds(exports, &turn.trace)).unwrap_or_default();
    instances.len() == 2
        && decisions.iter().any(|it| turns.iter().any(|turn| turn.links.contains(&it.id)))
        && SPANS_OF_TRACE.iter().all(|name| exports.has_span(name))
        && exports.logs.iter().any(|(text, _)| text.starts_with("model call completed"))
        && INSIGHTS_KINDS.iter().all(|kind| kinds.contains(kind))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn prompt_is_one_trace_across_process_kill() {
    let folder = tempfile::tempdir().unwrap();
    let collector = Collector::start().await;
    let payments = PaymentsServer::start().await.unwrap();
    let settings = settings(&collector, &payments);
    let client = Client::new();
    let mut dev = DevProcess::start(folder.path(), &settings);
    client.start_prompt(&dev).await;
    collector
        .until(TIMEOUT, |exports| exports.has_span("turn") && exports.has_span("POST /api/prompts"))
        .await;
    dev.kill();
    let mut dev = DevProcess::start(folder.path(), &settings);
    client.approve_and_wait(&dev).await;
    collector.until(TIMEOUT, is_complete).await;
    assert!(dev.interrupt(TIMEOUT).is_some(), "the process did not stop: {}", dev.log());

    let exports = collector.exports();
    let request = exports.spans_named("POST /api/prompts")[0].clone();
    let turns = turns_of_prompts(&exports);
    let instances: BTreeSet<&str> = turns.iter().map(|turn| turn.instance.as_str()).collect();
    assert_eq!(instances.len(), 2, "before the kill and after it");
    for turn in &turns {
        assert_eq!((&turn.trace, &turn.parent), (&request.trace, &request.id), "{turn:?}");
        assert_eq!(turn.service, "wheel");
    }
    for name in SPANS_OF_TRACE {
        let spans = exports.spans_named(name);
        assert!(!spans.is_empty(), "no {name}: {:?}", exports.span_names());
        assert!(spans.iter().all(|span| span.trace == request.trace), "{name}");
    }
    assert!(exports.metrics.contains("gen_ai.client.operation.duration"), "{:?}", exports.metrics);
    assert!(exports.metrics.contains("turnwheel.turn.duration"), "{:?}", exports.metrics);
    let line = exports.logs.iter().find(|(text, _)| text.starts_with("model call completed"));
    assert_eq!(line.unwrap().1, request.trace, "log lines have the trace id");
    check_insights(&exports, &request.trace);
    check_no_content_or_keys(&exports);
}

/// Kinds of the items of Application Insights in the trace.
fn insights_kinds<'a>(exports: &'a Exports, trace: &str) -> BTreeSet<&'a str> {
    let in_trace = exports.insights.iter().filter(|item| item["tags"]["ai.operation.id"] == trace);
    in_trace.filter_map(|item| item["data"]["baseType"].as_str()).collect()
}

fn check_insights(exports: &Exports, trace: &str) {
    let kinds = insights_kinds(exports, trace);
    for kind in INSIGHTS_KINDS {
        assert!(kinds.contains(kind), "{kind} of {kinds:?}");
    }
    assert!(exports.insights.iter().any(|item| item["data"]["baseType"] == "MetricData"));
    assert!(exports.insights.iter().all(|item| item["tags"]["ai.cloud.role"] == "wheel"));
}

/// Asserts that no export contains a text of the conversation or a key.
fn check_no_content_or_keys(exports: &Exports) {
    assert_eq!(exports.keys, BTreeSet::from(["hush key".to_owned()]));
    assert!(!exports.raw_requests.is_empty());
    for secret in ["CANARY", "hush key", "Pay 250"] {
        let found = exports.raw_requests.iter().find(|text| text.contains(secret));
        assert!(found.is_none(), "{secret} in {found:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unreachable_collector_only_adds_log_lines() {
    let payments = PaymentsServer::start().await.unwrap();
    let hanging = Collector::hanging().await;
    // Bound, so that no other server listens on this port.
    let bound = tokio::net::TcpSocket::new_v4().unwrap();
    bound.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let free = bound.local_addr().unwrap();
    for endpoint in [format!("http://{free}"), hanging.base_url()] {
        let folder = tempfile::tempdir().unwrap();
        let settings = [
            ("PAYMENTS_URL", payments.base_url.clone()),
            ("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint.clone()),
            ("OTEL_BSP_SCHEDULE_DELAY", "10".to_owned()),
            // Longer than the test: no turn and no stop waits for an export.
            ("OTEL_EXPORTER_OTLP_TIMEOUT", "600000".to_owned()),
            (
                "APPLICATIONINSIGHTS_CONNECTION_STRING",
                format!("InstrumentationKey=k;IngestionEndpoint={endpoint}/"),
            ),
        ];
        let mut dev = DevProcess::start(folder.path(), &settings);
        let client = Client::new();
        let began = Instant::now();
        client.start_prompt(&dev).await;
        client.approve_and_wait(&dev).await;
        check_time("turns of a prompt", began.elapsed(), Duration::from_secs(9));
        let began = Instant::now();
        assert!(dev.interrupt(TIMEOUT).is_some(), "{}", dev.log());
        check_time("stop of the process", began.elapsed(), Duration::from_secs(10));
        if endpoint.ends_with(&free.port().to_string()) {
            let log = dev.whole_log();
            let failure_lines = log.matches("telemetry export failed").count();
            assert!((1..=5).contains(&failure_lines), "once for each of five exporters: {log}");
        }
    }
}
