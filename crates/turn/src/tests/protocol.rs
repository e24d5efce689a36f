//! Prompts in the loop `protocol`: the model receives text, and all other parts work as with native
//! calls.

use std::sync::Arc;

use async_trait::async_trait;
use serde_json::{Value, json};

use super::budgets::limit_users;
use super::compaction::handle_until_idle;
use super::parallel_calls::{end_and_result_order, result_texts, three_short_naps};
use super::recorded_requests::RecordingModel;
use super::test_env::{PauseFailPoint, Script, TestEnv, call, text};
use crate::context::TurnContext;
use crate::delivery::handle;
use turnwheel_conversation::entry::{EntryBody, PromptState};
use turnwheel_conversation::settings::LoopKind;
use turnwheel_conversation::usage::Usage;
use turnwheel_model::scripted::protocol;
use turnwheel_model::tokens::count_tokens;
use turnwheel_model::{Listener, Model, ModelRecord, ModelRequest, ModelResponse};
use turnwheel_platform::fail_points::NoFailPoints;
use turnwheel_record::services::{Limits, Services};

/// Reads and writes protocol text for a native model.
#[derive(Debug)]
struct TextModel(Arc<dyn Model>);

#[async_trait]
impl Model for TextModel {
    async fn respond(&self, request: ModelRequest<'_>, listener: &dyn Listener) -> ModelResponse {
        assert!(protocol::is_protocol(&request), "a native request");
        protocol::respond(&*self.0, &request, listener).await
    }

    fn record(&self, model: &str) -> Result<ModelRecord, String> {
        self.0.record(model)
    }
}

fn looks_and_fails(results: usize, _input: &str) -> Vec<Value> {
    match results {
        0 => vec![call("c1", "look", 0), call("c2", "nope", 0)],
        _ => vec![text("done")],
    }
}

pub(super) fn protocol_env(seed: u64) -> (TestEnv, Arc<RecordingModel>) {
    let mut env = TestEnv::new(seed);
    env.settings.loop_kind = Some(LoopKind::Protocol);
    let model: Arc<dyn Model> = Arc::new(TextModel(env.model.clone()));
    let model = RecordingModel::install(&mut env, model);
    (env, model)
}

async fn run_prompt(max_rounds: u32) -> (TestEnv, Services, Vec<Value>) {
    let (mut env, model) = protocol_env(1);
    *env.model.script.lock().unwrap() = looks_and_fails;
    env.settings.max_rounds = Some(max_rounds);
    let services = env.new_worker(Arc::new(NoFailPoints));
    env.send_prompt(&services).await;
    handle_until_idle(&env, &services).await;
    let bodies = model.bodies();
    assert_eq!(bodies.len(), 2);
    (env, services, bodies)
}

fn system(body: &Value) -> &str {
    body["input"][0]["content"].as_str().unwrap()
}

const FINAL: &str = "Final iteration: Please conclude naturally with what you've accomplished.";

#[tokio::test(start_paused = true)]
async fn prompt_runs_over_text_with_clean_entries() {
    let (env, services, bodies) = run_prompt(10).await;
    assert!(bodies.iter().all(|body| body.get("tools").is_none()));
    assert_eq!(system(&bodies[0]), system(&bodies[1]), "the frame is stable");
    assert!(system(&bodies[0]).contains("\nlook(") && !system(&bodies[0]).contains(FINAL));
    let results = bodies[1]["input"].as_array().unwrap().last().unwrap();
    assert_eq!(
        results["content"][0]["text"],
        "<results>\n[{\"tool\": \"look\", \"status\": \"success\", \"content\": \"look done\"}, {\"tool\": \"nope\", \"status\": \"failure\", \"content\": \"Tool 'nope' not registered\"}]\n</results>"
    );
    assert_eq!(result_texts(&env).await, ["look done", "Tool 'nope' not registered"]);
    let entries = env.entries().await;
    let stored = serde_json::to_string(&entries).unwrap();
    assert!(!stored.contains("<execute>") && !stored.contains("<results>"));
    // The tokens of the frame are those of its text.
    let head = env.head().await.unwrap();
    let context = TurnContext::resolve(&services, &head, None);
    let frame = context.own_frame();
    assert_eq!(frame.system().unwrap(), system(&bodies[0]));
    let tokens = count_tokens(system(&bodies[0]));
    assert_eq!(
        (frame.tokens(&count_tokens), context.frame_tokens(&head, &count_tokens)),
        (tokens, tokens)
    );
    assert_eq!(frame.bytes(), system(&bodies[0]).len());
    let frames = entries.iter().filter(|entry| matches!(entry.body, EntryBody::Frame(_)));
    assert_eq!(frames.count(), 1, "one frame for both responses");
}

/// Calls end in another order than the model wrote them; entries and results keep its order.
#[tokio::test(start_paused = true)]
async fn parallel_results_are_in_the_order_of_the_calls() {
    let (mut env, model) = protocol_env(1);
    *env.model.script.lock().unwrap() = three_short_naps;
    env.enable_parallel_calls(8);
    let services = env.new_worker(Arc::new(NoFailPoints));
    env.send_prompt(&services).await;
    handle_until_idle(&env, &services).await;
    let (ends, results) = end_and_result_order(&env).await;
    assert_eq!(ends, ["call_1_2", "call_1_3", "call_1_1"]);
    assert_eq!(results, ["call_1_1", "call_1_2", "call_1_3"]);
    let bodies = model.bodies();
    let message = bodies[1]["input"].as_array().unwrap().last().unwrap();
    let contents = message["content"][0]["text"].as_str().unwrap().split("\"content\": ").skip(1);
    let contents: Vec<&str> = contents.map(|rest| rest.split('}').next().unwrap()).collect();
    assert_eq!(contents, ["\"3\"", "\"1\"", "\"2\""]);
}

#[tokio::test(start_paused = true)]
async fn last_iteration_asks_for_a_conclusion() {
    let (env, _, bodies) = run_prompt(2).await;
    assert!(!system(&bodies[0]).contains(FINAL));
    assert_eq!(system(&bodies[1]), format!("{}\n\n{FINAL}", system(&bodies[0])));
    let frames = env.entries().await;
    let frames = frames.iter().filter(|entry| matches!(entry.body, EntryBody::Frame(_)));
    assert_eq!(frames.count(), 2);
}

#[tokio::test(start_paused = true)]
async fn version_7_leaves_a_protocol_prompt() {
    let (mut env, _) = protocol_env(1);
    let services = env.new_worker(Arc::new(NoFailPoints));
    let limits = Limits { reader_version: 7, ..services.limits };
    let older = Services { limits, ..env.new_worker(Arc::new(NoFailPoints)) };
    env.send_prompt(&services).await;
    let before = env.head().await.unwrap();
    assert_eq!(before.min_reader, 8);
    handle(&older, &TestEnv::nudge()).await.expect("a failed delivery would be repeated");
    assert_eq!(env.head().await.unwrap(), before);
    env.run_until_idle().await;
    assert!(env.is_idle().await, "a newer worker processes it");
}

/// Crashes at any fail point, lost leases and lost responses: every call has one result, no write
/// runs twice, and the prompt ends.
#[tokio::test(start_paused = true)]
async fn crashes_keep_every_invariant_in_protocol_mode() {
    for seed in 0..12 {
        let (mut env, _) = protocol_env(seed);
        env.crash_percent = 5;
        let services = env.new_worker(Arc::new(NoFailPoints));
        env.send_prompt(&services).await;
        drop(services);
        env.run_until_idle().await;
        let executions = env.executions.lock().unwrap().clone();
        let head = env.head().await.unwrap();
        let entries = env.entries().await;
        assert_eq!(head.prompts[0].state, PromptState::Completed, "{seed}: {:?}", entries.last());
        let calls = entries.iter().filter_map(|entry| entry.body.message()?.as_assistant());
        let calls = calls.filter(|message| !message.is_failed());
        let calls: usize = calls.map(|message| message.tool_calls().count()).sum();
        let results = entries.iter().filter(|entry| entry.body.tool_result().is_some()).count();
        assert_eq!(calls, results, "{seed}");
        assert!(!executions.is_empty(), "{seed}");
        assert_eq!(json!(entries).to_string().matches("<execute>").count(), 0, "{seed}");
    }
}

const LONG_ARGUMENT: usize = 1_000;

fn look_call(character: char) -> Value {
    let text = character.to_string().repeat(LONG_ARGUMENT);
    json!({"type": "toolCall", "id": "c", "name": "look", "arguments": {"n": 0, "text": text}})
}

fn calls_with_ascii(results: usize, _input: &str) -> Vec<Value> {
    if results == 0 { vec![look_call('x')] } else { vec![text("done")] }
}

fn calls_with_escapes(results: usize, _input: &str) -> Vec<Value> {
    if results == 0 { vec![look_call('é')] } else { vec![text("done")] }
}

/// Input tokens of the reservation of the call after the first response.
async fn reserved_input(script: Script) -> u64 {
    let (mut env, _) = protocol_env(1);
    *env.model.script.lock().unwrap() = script;
    *env.model.usage.lock().unwrap() = Usage { total_tokens: 100, ..Usage::default() };
    env.budget_limits = limit_users(1_000_000);
    let services = env.new_worker(Arc::new(NoFailPoints));
    env.send_prompt(&services).await;
    handle(&services, &TestEnv::nudge()).await.unwrap();
    let pause = Arc::new(PauseFailPoint::new("model.after"));
    let second = env.new_worker(pause.clone());
    let nudge = TestEnv::nudge();
    pause.kill(handle(&second, &nudge)).await;
    env.head().await.unwrap().reservation.unwrap().estimate.input
}

#[tokio::test(start_paused = true)]
async fn estimate_covers_the_escapes_of_call_arguments() {
    let escapes = reserved_input(calls_with_escapes).await;
    let ascii = reserved_input(calls_with_ascii).await;
    let escaped = count_tokens(&"\\u00e9".repeat(LONG_ARGUMENT));
    assert!(escapes - ascii >= escaped, "{escapes} - {ascii} < {escaped}");
}
