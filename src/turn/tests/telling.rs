//! Telemetry of a prompt: one trace, the fault domain of each failure, and no content unless
//! enabled.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use super::bench::{Bench, HookProbe, call, text};
use crate::agents::Agents;
use crate::queue::{self, Queue as _};
use crate::store::memory::Faults;
use crate::telemetry::fault::FaultDomain;
use crate::telemetry::testing::{Recorded, Recorder};
use crate::telemetry::trace::{self, Role};
use crate::turn::delivery::{TurnError, handle};
use crate::turn::{NoProbe, faults, sweep};

/// Returns an environment whose workers report to the recorder.
fn told(seed: u64, recorder: &Recorder) -> Bench {
    let mut bench = Bench::new(seed);
    bench.telemetry = recorder.telemetry();
    bench
}

/// Accepts the prompt within a request's span, as the HTTP layer does.
async fn ask(bench: &mut Bench, recorder: &Recorder) {
    let world = bench.worker(Arc::new(NoProbe));
    let request = recorder.telemetry().span("request").role(Role::Server).under(None).start();
    request.run(Box::pin(bench.ask(&world))).await;
}

/// Runs until idle; each decision has its own request span, and `lost` selects the rounds in which
/// nudges are lost.
async fn run(bench: &mut Bench, recorder: &Recorder, lost: impl Fn(u32) -> bool) {
    for round in 0..200 {
        if lost(round) {
            bench.queue.drop_queue(queue::TURNS);
        }
        let is_busy = bench.deliver().await;
        if bench.has_come_to_rest().await {
            return;
        }
        if bench.head().await.is_some_and(|head| !head.requests.is_empty()) {
            let decision = recorder.telemetry().span("decision").under(None).start();
            decision.run(Box::pin(bench.decide())).await;
        }
        if !is_busy {
            tokio::time::sleep(sweep::GRACE * 2).await;
            bench.sweep().await;
        }
    }
    panic!("the prompt never ended: {:#?}", bench.story);
}

fn named<'a>(spans: &'a [Recorded], name: &str) -> Vec<&'a Recorded> {
    spans.iter().filter(|span| span.name == name).collect()
}

#[tokio::test(start_paused = true)]
async fn all_turns_of_a_prompt_are_in_the_trace_of_its_request() {
    for lost in [(|_| false) as fn(u32) -> bool, |round| round % 3 == 0] {
        let recorder = Recorder::new();
        let mut bench = told(1, &recorder);
        ask(&mut bench, &recorder).await;
        run(&mut bench, &recorder, lost).await;
        let spans = recorder.spans();
        let request = named(&spans, "request")[0];
        let turns = named(&spans, "turn");
        assert!(turns.len() >= 3, "{}", turns.len());
        for turn in &turns {
            assert_eq!((&turn.trace, &turn.parent), (&request.trace, &request.id), "{turn:?}");
            assert_eq!(turn.kind, "Consumer");
            assert_eq!(turn.get("conversation.id"), "c");
        }
        for (before, turn) in turns.iter().zip(turns.iter().skip(1)) {
            assert!(turn.links.contains(&before.id), "{turn:?}");
        }
        let decisions = named(&spans, "decision");
        assert!(!decisions.is_empty());
        assert!(decisions.iter().all(|decision| decision.trace != request.trace));
        let is_let_go =
            |turn: &&&Recorded| decisions.iter().any(|decision| turn.links.contains(&decision.id));
        assert_eq!(turns.iter().filter(is_let_go).count(), 1, "one turn continues after the approval");
    }
}

#[tokio::test(start_paused = true)]
async fn calls_are_told_by_the_genai_conventions_and_carry_their_own_span() {
    let recorder = Recorder::new();
    let mut bench = told(1, &recorder);
    ask(&mut bench, &recorder).await;
    run(&mut bench, &recorder, |_| false).await;
    let spans = recorder.spans();
    let agents = named(&spans, "invoke_agent clerk");
    let chats = named(&spans, "chat normal");
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
    let asked: Vec<String> =
        bench.model.callers.lock().unwrap().iter().flatten().cloned().collect();
    let expected: Vec<String> =
        chats.iter().map(|chat| format!("00-{}-{}-01", chat.trace, chat.id)).collect();
    assert_eq!(asked, expected);
    let looks = named(&spans, "execute_tool look");
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
fn fault(recorder: &Recorder, name: &str) -> (String, String) {
    let spans = recorder.spans();
    let failed: Vec<_> = named(&spans, name).into_iter().filter_map(Recorded::fault).collect();
    assert_eq!(failed.len(), 1, "{name}: {spans:#?}");
    (failed[0].0.to_owned(), failed[0].1.to_owned())
}

fn pair(domain: &str, kind: &str) -> (String, String) {
    (domain.to_owned(), kind.to_owned())
}

#[tokio::test(start_paused = true)]
async fn a_model_that_refuses_is_the_models_fault() {
    let recorder = Recorder::new();
    let mut bench = told(1, &recorder);
    *bench.model.refusal.lock().unwrap() = Some("rate_limit_exceeded");
    ask(&mut bench, &recorder).await;
    run(&mut bench, &recorder, |_| false).await;
    assert_eq!(fault(&recorder, "chat normal"), pair("model", "rate_limit_exceeded"));
    assert!(recorder.metrics().contains_key("turnwheel.retries{turnwheel.retry.of=model}"));
}

#[tokio::test(start_paused = true)]
async fn a_tool_whose_answer_is_lost_is_the_tools_fault() {
    let recorder = Recorder::new();
    for seed in 0..20 {
        let mut bench = told(seed, &recorder);
        *bench.model.script.lock().unwrap() = |results, _| match results {
            0 => vec![call("c1", "wire", 0)],
            _ => vec![text("done")],
        };
        ask(&mut bench, &recorder).await;
        run(&mut bench, &recorder, |_| false).await;
        if bench.was_asked_for_outcome {
            break;
        }
    }
    assert_eq!(fault(&recorder, "execute_tool wire"), pair("tool", "outcome_unknown"));
}

#[tokio::test(start_paused = true)]
async fn a_store_that_is_away_is_the_platforms_fault() {
    let recorder = Recorder::new();
    let mut bench = told(1, &recorder);
    ask(&mut bench, &recorder).await;
    let world = bench.worker(Arc::new(NoProbe));
    bench.store.set_faults(Faults {
        unavailable_before: 1.0,
        unavailable_reads: 1.0,
        ..Faults::default()
    });
    assert!(handle(&world, &Bench::nudge()).await.is_err());
    assert_eq!(fault(&recorder, "turn"), pair("platform", "store_unavailable"));
}

#[tokio::test(start_paused = true)]
async fn an_agent_that_is_not_there_is_the_apps_fault() {
    let recorder = Recorder::new();
    let mut bench = told(1, &recorder);
    ask(&mut bench, &recorder).await;
    let mut world = bench.worker(Arc::new(NoProbe));
    world.agents = Agents::default();
    handle(&world, &Bench::nudge()).await.unwrap();
    assert_eq!(fault(&recorder, "invoke_agent clerk"), pair("app", "agent_unavailable"));
}

#[tokio::test(start_paused = true)]
async fn a_claim_that_is_lost_is_the_runtimes_fault() {
    let recorder = Recorder::new();
    let mut bench = told(1, &recorder);
    ask(&mut bench, &recorder).await;
    *bench.model.span.lock().unwrap() = Duration::from_mins(4);
    let store = bench.store.clone();
    let away = Faults { unavailable_before: 1.0, unavailable_reads: 1.0, ..Faults::default() };
    let world = bench.worker(Arc::new(HookProbe("model.before", move || store.set_faults(away))));
    let handled = handle(&world, &Bench::nudge()).await;
    assert!(matches!(handled, Err(TurnError::ClaimLost { .. })), "{handled:?}");
    assert_eq!(fault(&recorder, "chat normal"), pair("runtime", "claim_lost"));
    assert_eq!(fault(&recorder, "turn"), pair("runtime", "claim_lost"));
    assert!(recorder.metrics().contains_key("turnwheel.claims.lost{}"));
}

#[tokio::test(start_paused = true)]
async fn a_step_that_kills_its_workers_is_told_as_recovered_and_then_as_poison() {
    let recorder = Recorder::new();
    let mut bench = told(1, &recorder);
    ask(&mut bench, &recorder).await;
    bench.crash_in_a_hundred = 100;
    for _ in 0..200 {
        bench.deliver().await;
        tokio::time::sleep(Duration::from_mins(2)).await;
        bench.sweep().await;
        let Some(head) = bench.head().await else { continue };
        if head.is_hopeless() {
            break;
        }
        // The worker dies during its model call, each time.
        bench.crash_in_a_hundred = 0;
        let world = bench.worker(Arc::new(NoProbe));
        let nudge = Bench::nudge();
        let dying = handle(&world, &nudge);
        let _ = tokio::time::timeout(Duration::from_millis(50), dying).await;
    }
    bench.crash_in_a_hundred = 0;
    tokio::time::sleep(Duration::from_mins(5)).await;
    bench.sweep().await;
    bench.run().await;
    let spans = recorder.spans();
    assert!(spans.iter().any(|span| span.get("turnwheel.recovered") == "true"));
    let poisoned = spans.iter().filter(|span| span.fault() == Some(("runtime", "poisoned")));
    assert_eq!(poisoned.count(), 1);
    let metrics = recorder.metrics();
    assert!(metrics.keys().any(|name| name.starts_with("turnwheel.recoveries{")), "{metrics:#?}");
    assert!(metrics.contains_key("turnwheel.poison{turnwheel.poison.of=prompt}"), "{metrics:#?}");
}

#[test]
fn every_domain_has_its_name() {
    let named = [
        FaultDomain::App,
        FaultDomain::Runtime,
        FaultDomain::Platform,
        FaultDomain::Model,
        FaultDomain::Tool,
    ]
    .map(FaultDomain::name);
    assert_eq!(named, ["app", "runtime", "platform", "model", "tool"]);
    let corrupt = crate::store::StoreError::Corrupt("x".into());
    assert_eq!(faults::of_store(&corrupt).domain, FaultDomain::Runtime);
}

/// A response with a call, and the last response, each with a canary in its text.
fn canaries(results: usize, _said: &str) -> Vec<Value> {
    match results {
        0 => vec![
            text("CANARY-ANSWER"),
            json!({"type": "toolCall", "id": "c1", "name": "gated", "arguments": {"n": "CANARY-ARGUMENT"}}),
        ],
        _ => vec![text("CANARY-LAST")],
    }
}

async fn sing(recorder: &Recorder) -> String {
    let mut bench = told(1, recorder);
    *bench.model.script.lock().unwrap() = canaries;
    let world = bench.worker(Arc::new(NoProbe));
    let request = recorder.telemetry().span("request").role(Role::Server).under(None).start();
    request.run(Box::pin(bench.ask_in(&world, "c", "CANARY-PROMPT"))).await;
    drop(request);
    run(&mut bench, recorder, |_| false).await;
    assert_eq!(*bench.model.answers.lock().unwrap(), 2);
    let spans: Vec<String> = recorder.spans().into_iter().map(|span| span.whole).collect();
    format!("{}{:?}", spans.join("\n"), recorder.metrics())
}

#[tokio::test(start_paused = true)]
async fn content_is_told_only_when_it_is_asked_for() {
    let silent = Box::pin(sing(&Recorder::new())).await;
    assert!(silent.contains("execute_tool gated"));
    assert!(!silent.contains("CANARY") && !silent.contains("gated done"), "{silent}");
    assert!(!silent.contains("Be good."), "{silent}");
    let open = Box::pin(sing(&Recorder::with_content(true))).await;
    for canary in ["PROMPT", "ANSWER", "ARGUMENT", "LAST"] {
        assert!(open.contains(&format!("CANARY-{canary}")), "{canary}");
    }
    assert!(open.contains("gated done") && open.contains("Be good."));
}

#[tokio::test(start_paused = true)]
async fn without_a_collector_the_callers_trace_goes_to_the_model_and_nothing_else_changes() {
    let mut bench = Bench::new(1);
    let caller = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let world = bench.worker(Arc::new(NoProbe));
    trace::called_by(Some(caller), Box::pin(bench.ask(&world))).await;
    bench.run().await;
    let callers = bench.model.callers.lock().unwrap().clone();
    assert_eq!(callers, vec![Some(caller.to_owned()); 3]);
    assert_eq!(bench.queue.length(queue::TURNS).await.unwrap(), 0);
}
