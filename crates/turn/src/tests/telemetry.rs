//! Telemetry of a prompt: one trace, the fault domain of each failure, and no content unless
//! enabled.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use super::test_env::{HookFailPoint, PauseFailPoint, TestEnv, call, text};
use crate::delivery::handle;
use crate::sweep;
use turnwheel_agent_files::SharedCatalog;
use turnwheel_platform::fail_points::NoFailPoints;
use turnwheel_platform::telemetry::error_class::ErrorDomain;
use turnwheel_platform::telemetry::testing::{RecordedSpan, Recorder};
use turnwheel_platform::telemetry::trace::{self, SpanRole};
use turnwheel_record::error::TurnError;
use turnwheel_record::error_domain;
use turnwheel_storage::queue::{self, Queue as _};
use turnwheel_storage::store::memory::StoreFaults;

/// Returns an environment whose workers report to the recorder.
fn recorded_env(seed: u64, recorder: &Recorder) -> TestEnv {
    let mut env = TestEnv::new(seed);
    env.telemetry = recorder.telemetry();
    env
}

/// Accepts the prompt within a request's span, as the HTTP layer does.
async fn send_prompt_in_span(env: &mut TestEnv, recorder: &Recorder) {
    let services = env.new_worker(Arc::new(NoFailPoints));
    let request =
        recorder.telemetry().span("request").with_role(SpanRole::Server).with_parent(None).start();
    request.run(Box::pin(env.send_prompt(&services))).await;
}

/// Runs until idle; each decision has its own request span, and `lost` selects the rounds in which
/// nudges are lost.
async fn run_with_lost_nudges(env: &mut TestEnv, recorder: &Recorder, lost: impl Fn(u32) -> bool) {
    for round in 0..200 {
        if lost(round) {
            env.queue.drop_queue(queue::TURNS);
        }
        let is_busy = env.deliver().await;
        if env.is_idle().await {
            return;
        }
        if env.head().await.is_some_and(|head| !head.requests.is_empty()) {
            let decision = recorder.telemetry().span("decision").with_parent(None).start();
            decision.run(Box::pin(env.decide_requests())).await;
        }
        if !is_busy {
            tokio::time::sleep(sweep::GRACE_PERIOD * 2).await;
            env.run_sweep().await;
        }
    }
    panic!("the prompt never ended: {:#?}", env.run_log);
}

fn spans_named<'a>(spans: &'a [RecordedSpan], name: &str) -> Vec<&'a RecordedSpan> {
    spans.iter().filter(|span| span.name == name).collect()
}

#[tokio::test(start_paused = true)]
async fn turns_of_prompt_belong_to_trace_of_request() {
    for lost in [(|_| false) as fn(u32) -> bool, |round| round % 3 == 0] {
        let recorder = Recorder::new();
        let mut env = recorded_env(1, &recorder);
        send_prompt_in_span(&mut env, &recorder).await;
        run_with_lost_nudges(&mut env, &recorder, lost).await;
        let spans = recorder.spans();
        let request = spans_named(&spans, "request")[0];
        let mut turns = spans_named(&spans, "turn");
        turns.retain(|turn| !turn.attributes.contains_key("turnwheel.old_head"));
        assert!(turns.len() >= 3, "{}", turns.len());
        for turn in &turns {
            assert_eq!((&turn.trace, &turn.parent), (&request.trace, &request.id), "{turn:?}");
            assert_eq!(turn.kind, "Consumer");
            assert_eq!(turn.get("conversation.id"), "c");
        }
        for (before, turn) in turns.iter().zip(turns.iter().skip(1)) {
            assert!(turn.links.contains(&before.id), "{turn:?}");
        }
        let decisions = spans_named(&spans, "decision");
        assert!(!decisions.is_empty());
        assert!(decisions.iter().all(|decision| decision.trace != request.trace));
        let is_linked = |turn: &&&RecordedSpan| {
            decisions.iter().any(|decision| turn.links.contains(&decision.id))
        };
        assert_eq!(
            turns.iter().filter(is_linked).count(),
            1,
            "one turn continues after the approval"
        );
    }
}

/// Handles the nudge on a worker that pauses at the fail point, and meanwhile sends a request in a span
/// of its own. Returns the id of that span.
async fn request_at(
    env: &mut TestEnv,
    recorder: &Recorder,
    fail_point: &'static str,
    send: impl AsyncFnOnce(&mut TestEnv),
) -> String {
    let pause = Arc::new(PauseFailPoint::new(fail_point));
    let worker = env.new_worker(pause.clone());
    let nudge = TestEnv::nudge();
    let mut turn = Box::pin(handle(&worker, &nudge));
    tokio::select! {
        ended = &mut turn => panic!("{fail_point} was not reached: {ended:?}"),
        () = pause.reached.notified() => {}
    }
    let request = recorder.telemetry().span("later request").with_parent(None).start();
    request.run(Box::pin(send(env))).await;
    drop(request);
    pause.resume.notify_one();
    turn.await.unwrap();
    spans_named(&recorder.spans(), "later request")[0].id.clone()
}

#[tokio::test(start_paused = true)]
async fn turn_links_requests_that_arrive_while_it_runs() {
    for fail_point in ["pending-work.before", "model.before", "model.after"] {
        let recorder = Recorder::new();
        let mut env = TestEnv::with_script(1, |_, _| vec![text("hello")]);
        env.telemetry = recorder.telemetry();
        send_prompt_in_span(&mut env, &recorder).await;
        let send = async |env: &mut TestEnv| {
            let client = env.new_worker(Arc::new(NoFailPoints));
            env.steer(&client, "more").await.unwrap();
        };
        let steer = request_at(&mut env, &recorder, fail_point, send).await;
        let spans = recorder.spans();
        let turns = spans_named(&spans, "turn");
        assert_eq!(turns.len(), 1, "{fail_point}");
        assert_eq!(turns[0].links, [steer], "{fail_point}");
    }
}

#[tokio::test(start_paused = true)]
async fn call_spans_follow_genai_conventions() {
    let recorder = Recorder::new();
    let mut env = recorded_env(1, &recorder);
    send_prompt_in_span(&mut env, &recorder).await;
    run_with_lost_nudges(&mut env, &recorder, |_| false).await;
    let spans = recorder.spans();
    let agents = spans_named(&spans, "invoke_agent clerk");
    let chats = spans_named(&spans, "chat normal");
    assert_eq!(chats.len(), 3);
    for chat in &chats {
        assert_eq!(chat.kind, "Client");
        assert!(agents.iter().any(|agent| agent.id == chat.parent));
        for (name, value) in [
            ("gen_ai.operation.name", "chat"),
            ("gen_ai.provider.name", "azure.ai.openai"),
            ("gen_ai.request.model", "normal"),
            ("gen_ai.conversation.id", "c"),
            ("gen_ai.agent.name", "clerk"),
        ] {
            assert_eq!(chat.get(name), value);
        }
    }
    assert!(chats[0].get("gen_ai.response.finish_reasons").contains("tool_call"));
    assert!(chats[2].get("gen_ai.response.finish_reasons").contains("stop"));
    let sent: Vec<String> =
        env.model.traceparents.lock().unwrap().iter().flatten().cloned().collect();
    let expected: Vec<String> =
        chats.iter().map(|chat| format!("00-{}-{}-01", chat.trace, chat.id)).collect();
    assert_eq!(sent, expected);
    let looks = spans_named(&spans, "execute_tool look");
    assert_eq!(looks[0].get("gen_ai.tool.call.id"), "c1");
    assert_eq!(looks[0].get("gen_ai.tool.type"), "function");
    let metrics = recorder.metrics();
    let sum = |wanted: &str| -> f64 {
        metrics.iter().filter(|(name, _)| name.starts_with(wanted)).map(|(_, value)| value).sum()
    };
    assert!((sum("gen_ai.client.operation.duration{") - 3.0).abs() < 0.1, "{metrics:#?}");
    assert!(sum("gen_ai.execute_tool.duration{") >= 4.0, "{metrics:#?}");
    assert!(sum("turnwheel.turn.duration{") >= 3.0, "{metrics:#?}");
    assert!(sum("turnwheel.commits{turnwheel.commit.name=answer,turnwheel.outcome=won}") >= 3.0);
    assert!(sum("turnwheel.queue.messages{") >= 3.0, "{metrics:#?}");
    let has_ids = metrics.keys().any(|name| name.contains("conversation") || name.contains("=c,"));
    assert!(!has_ids, "{metrics:#?}");
}

/// The fault of the only failed span with the name.
fn only_fault(recorder: &Recorder, name: &str) -> (String, String) {
    let spans = recorder.spans();
    let failed: Vec<_> =
        spans_named(&spans, name).into_iter().filter_map(RecordedSpan::error_class).collect();
    assert_eq!(failed.len(), 1, "{name}: {spans:#?}");
    (failed[0].0.to_owned(), failed[0].1.to_owned())
}

fn pair(domain: &str, kind: &str) -> (String, String) {
    (domain.to_owned(), kind.to_owned())
}

#[tokio::test(start_paused = true)]
async fn rejected_model_call_has_fault_domain_model() {
    let recorder = Recorder::new();
    let mut env = recorded_env(1, &recorder);
    *env.model.next_error.lock().unwrap() = Some("rate_limit_exceeded");
    send_prompt_in_span(&mut env, &recorder).await;
    run_with_lost_nudges(&mut env, &recorder, |_| false).await;
    assert_eq!(only_fault(&recorder, "chat normal"), pair("model", "rate_limit_exceeded"));
    assert!(recorder.metrics().contains_key("turnwheel.retries{turnwheel.retry.of=model}"));
}

#[tokio::test(start_paused = true)]
async fn lost_tool_response_has_fault_domain_tool() {
    let recorder = Recorder::new();
    for seed in 0..20 {
        let mut env = recorded_env(seed, &recorder);
        *env.model.script.lock().unwrap() = |results, _| match results {
            0 => vec![call("c1", "wire", 0)],
            _ => vec![text("done")],
        };
        send_prompt_in_span(&mut env, &recorder).await;
        run_with_lost_nudges(&mut env, &recorder, |_| false).await;
        if env.has_outcome_request {
            break;
        }
    }
    assert_eq!(only_fault(&recorder, "execute_tool wire"), pair("tool", "outcome_unknown"));
}

#[tokio::test(start_paused = true)]
async fn unavailable_store_has_fault_domain_platform() {
    let recorder = Recorder::new();
    let mut env = recorded_env(1, &recorder);
    send_prompt_in_span(&mut env, &recorder).await;
    let services = env.new_worker(Arc::new(NoFailPoints));
    env.store.set_faults(StoreFaults::unavailable());
    assert!(handle(&services, &TestEnv::nudge()).await.is_err());
    assert_eq!(only_fault(&recorder, "turn"), pair("platform", "store_unavailable"));
}

#[tokio::test(start_paused = true)]
async fn missing_agent_has_fault_domain_app() {
    let recorder = Recorder::new();
    let mut env = recorded_env(1, &recorder);
    send_prompt_in_span(&mut env, &recorder).await;
    let mut services = env.new_worker(Arc::new(NoFailPoints));
    services.agents = SharedCatalog::default();
    handle(&services, &TestEnv::nudge()).await.unwrap();
    assert_eq!(only_fault(&recorder, "invoke_agent clerk"), pair("app", "agent_unavailable"));
}

#[tokio::test(start_paused = true)]
async fn lost_lease_has_fault_domain_runtime() {
    let recorder = Recorder::new();
    let mut env = recorded_env(1, &recorder);
    send_prompt_in_span(&mut env, &recorder).await;
    *env.model.response_time.lock().unwrap() = Duration::from_mins(4);
    let store = env.store.clone();
    let begin_outage = move || store.set_faults(StoreFaults::unavailable());
    let services = env.new_worker(Arc::new(HookFailPoint("model.before", begin_outage)));
    let handled = handle(&services, &TestEnv::nudge()).await;
    assert!(matches!(handled, Err(TurnError::LeaseLost { .. })), "{handled:?}");
    assert_eq!(only_fault(&recorder, "chat normal"), pair("runtime", "claim_lost"));
    assert_eq!(only_fault(&recorder, "turn"), pair("runtime", "claim_lost"));
    assert!(recorder.metrics().contains_key("turnwheel.claims.lost{}"));
}

#[tokio::test(start_paused = true)]
async fn crashing_step_is_reported_as_recovered_then_poisoned() {
    let recorder = Recorder::new();
    let mut env = recorded_env(1, &recorder);
    send_prompt_in_span(&mut env, &recorder).await;
    env.crash_percent = 100;
    for _ in 0..200 {
        env.deliver().await;
        tokio::time::sleep(Duration::from_mins(2)).await;
        env.run_sweep().await;
        let Some(head) = env.head().await else { continue };
        if head.is_poisoned() {
            break;
        }
        // The worker dies during its model call, each time.
        env.crash_percent = 0;
        let services = env.new_worker(Arc::new(NoFailPoints));
        let nudge = TestEnv::nudge();
        let dying = handle(&services, &nudge);
        let _ = tokio::time::timeout(Duration::from_millis(50), dying).await;
    }
    env.crash_percent = 0;
    tokio::time::sleep(Duration::from_mins(5)).await;
    env.run_sweep().await;
    env.run_until_idle().await;
    let spans = recorder.spans();
    assert!(spans.iter().any(|span| span.get("turnwheel.recovered") == "true"));
    let poisoned = spans.iter().filter(|span| span.error_class() == Some(("runtime", "poisoned")));
    assert_eq!(poisoned.count(), 1);
    let metrics = recorder.metrics();
    assert!(metrics.keys().any(|name| name.starts_with("turnwheel.recoveries{")), "{metrics:#?}");
    assert!(metrics.contains_key("turnwheel.poison{turnwheel.poison.of=prompt}"), "{metrics:#?}");
}

#[test]
fn fault_domains_have_names() {
    let named = [
        ErrorDomain::App,
        ErrorDomain::Runtime,
        ErrorDomain::Platform,
        ErrorDomain::Model,
        ErrorDomain::Tool,
    ]
    .map(ErrorDomain::name);
    assert_eq!(named, ["app", "runtime", "platform", "model", "tool"]);
    let corrupt = turnwheel_storage::store::StoreError::Corrupt("x".into());
    assert_eq!(error_domain::classify_store_error(&corrupt).domain, ErrorDomain::Runtime);
}

/// A response with a call, and the last response, each with a canary in its text.
fn replies_canaries(results: usize, _input: &str) -> Vec<Value> {
    match results {
        0 => vec![
            text("CANARY-ANSWER"),
            json!({"type": "toolCall", "id": "c1", "name": "gated", "arguments": {"n": "CANARY-ARGUMENT"}}),
        ],
        _ => vec![text("CANARY-LAST")],
    }
}

async fn run_canary_prompt(recorder: &Recorder) -> String {
    let mut env = recorded_env(1, recorder);
    *env.model.script.lock().unwrap() = replies_canaries;
    let services = env.new_worker(Arc::new(NoFailPoints));
    let request =
        recorder.telemetry().span("request").with_role(SpanRole::Server).with_parent(None).start();
    request.run(Box::pin(env.send_prompt_to(&services, "c", "CANARY-PROMPT"))).await;
    drop(request);
    run_with_lost_nudges(&mut env, recorder, |_| false).await;
    assert_eq!(*env.model.calls.lock().unwrap(), 2);
    let spans: Vec<String> = recorder.spans().into_iter().map(|span| span.debug_text).collect();
    format!("{}{:?}", spans.join("\n"), recorder.metrics())
}

#[tokio::test(start_paused = true)]
async fn telemetry_contains_content_only_when_enabled() {
    let silent = Box::pin(run_canary_prompt(&Recorder::new())).await;
    assert!(silent.contains("execute_tool gated"));
    assert!(!silent.contains("CANARY") && !silent.contains("gated done"), "{silent}");
    assert!(!silent.contains("Be good."), "{silent}");
    let open = Box::pin(run_canary_prompt(&Recorder::with_content(true))).await;
    for canary in ["PROMPT", "ANSWER", "ARGUMENT", "LAST"] {
        assert!(open.contains(&format!("CANARY-{canary}")), "{canary}");
    }
    assert!(open.contains("gated done") && open.contains("Be good."));
}

#[tokio::test(start_paused = true)]
async fn model_receives_caller_trace_without_collector() {
    let mut env = TestEnv::new(1);
    let caller = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let services = env.new_worker(Arc::new(NoFailPoints));
    trace::run_with_caller(Some(caller), Box::pin(env.send_prompt(&services))).await;
    env.run_until_idle().await;
    let callers = env.model.traceparents.lock().unwrap().clone();
    assert_eq!(callers, vec![Some(caller.to_owned()); 3]);
    assert_eq!(env.queue.length(queue::TURNS).await.unwrap(), 0);
}
