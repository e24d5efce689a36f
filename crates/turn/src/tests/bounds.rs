//! Bounds (invariant 11): too large or too slow output ends in a clear error, and no prompt gets
//! stuck.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use super::test_env::{TestEnv, call, text};
use turnwheel_conversation::content::joined_text;
use turnwheel_conversation::entry::PromptState;
use turnwheel_conversation::message::Message;
use turnwheel_conversation::step::CALLS_MAX;
use turnwheel_platform::fail_points::NoFailPoints;
use turnwheel_queries as queries;
use turnwheel_record::services::Limits;

async fn result_texts(env: &TestEnv) -> Vec<String> {
    let entries = env.entries().await;
    let texts = entries.iter().filter_map(|entry| match entry.body.message() {
        Some(Message::ToolResult(result)) => Some(joined_text(&result.content)),
        _ => None,
    });
    texts.collect()
}

async fn run_prompt(script: super::test_env::Script) -> TestEnv {
    let mut env = TestEnv::with_script(1, script);
    let services = env.new_worker(Arc::new(NoFailPoints));
    env.send_prompt(&services).await;
    env.run_until_idle().await;
    env
}

fn calls_max(results: usize, _input: &str) -> Vec<Value> {
    let name = |number| if number % 2 == 0 { "nope" } else { "look" };
    match results {
        0 => (0..CALLS_MAX).map(|number| call("c", name(number), number)).collect(),
        _ => vec![text("done")],
    }
}

#[tokio::test(start_paused = true)]
async fn maximum_number_of_calls_each_gets_its_result() {
    let env = run_prompt(calls_max).await;
    let results = result_texts(&env).await;
    assert_eq!(results.len(), CALLS_MAX);
    assert!(results.iter().step_by(2).all(|text| text.contains("not found")), "{results:?}");
    assert!(results.iter().skip(1).step_by(2).all(|text| text == "look done"), "{results:?}");
    assert_eq!(env.head().await.unwrap().prompts[0].state, PromptState::Completed);
}

fn calls_missing_tools(results: usize, _input: &str) -> Vec<Value> {
    match results {
        0 => (0..CALLS_MAX).map(|number| call("c", "nope", number)).collect(),
        _ => vec![text("done")],
    }
}

#[tokio::test(start_paused = true)]
async fn response_with_only_rejected_calls_fits_its_commits() {
    let env = run_prompt(calls_missing_tools).await;
    assert_eq!(result_texts(&env).await.len(), CALLS_MAX);
    assert_eq!(env.head().await.unwrap().prompts[0].state, PromptState::Completed);
}

fn calls_make(results: usize, _input: &str) -> Vec<Value> {
    if results == 0 { vec![call("c", "make", 0)] } else { vec![text("done")] }
}

#[tokio::test(start_paused = true)]
async fn too_many_widgets_do_not_fail_the_tool() {
    let env = run_prompt(calls_make).await;
    let results = result_texts(&env).await;
    assert!(
        results[0].starts_with("make done") && results[0].contains("were returned"),
        "{results:?}"
    );
    assert_eq!(env.head().await.unwrap().prompts[0].state, PromptState::Completed);
    assert!(env.executions.lock().unwrap().values().eq([&1]));
}

fn replies_too_long(_results: usize, _input: &str) -> Vec<Value> {
    vec![text(&"x".repeat(1_600_000))]
}

#[tokio::test(start_paused = true)]
async fn oversized_response_fails_prompt_after_one_model_call() {
    let env = run_prompt(replies_too_long).await;
    let head = env.head().await.unwrap();
    assert_eq!(head.prompts[0].state, PromptState::Failed);
    assert_eq!(*env.model.calls.lock().unwrap(), 1);
    let services = { env }.new_worker(Arc::new(NoFailPoints));
    let view = queries::prompts::read_prompt(&services, &head, &head.prompts[0].id).await.unwrap();
    let message = view.error.unwrap().message;
    assert!(message.contains("larger than one commit can hold"), "{message}");
}

#[tokio::test(start_paused = true)]
async fn tool_with_timeout_beyond_turn_is_rejected() {
    let mut env = TestEnv::with_script(2, |results, _| {
        if results == 0 { vec![call("c", "pay", 0)] } else { vec![text("done")] }
    });
    let mut services = env.new_worker(Arc::new(NoFailPoints));
    services.limits = Limits { turn_duration: Duration::from_secs(40), ..Limits::default() };
    env.send_prompt(&services).await;
    for _ in 0..5 {
        crate::delivery::handle(&services, &TestEnv::nudge()).await.unwrap();
    }
    let results = result_texts(&env).await;
    assert!(results[0].contains("longer than a turn"), "{results:?}");
    assert_eq!(env.head().await.unwrap().prompts[0].state, PromptState::Completed);
}

#[tokio::test(start_paused = true)]
async fn tool_without_enough_time_starts_in_next_turn() {
    let mut env = TestEnv::with_script(3, |results, _| {
        if results == 0 { vec![call("c", "pay", 0)] } else { vec![text("done")] }
    });
    // 300 s of a turn minus 260 s for the response: 30 s of time-out and 20 s of margin do not fit.
    *env.model.response_time.lock().unwrap() = Duration::from_secs(260);
    let services = env.new_worker(Arc::new(NoFailPoints));
    env.send_prompt(&services).await;
    env.deliver().await;
    assert!(env.executions.lock().unwrap().is_empty(), "the call must not start in this turn");
    env.deliver().await;
    assert_eq!(env.executions.lock().unwrap().len(), 1, "the call starts in the next turn");
    env.run_until_idle().await;
    assert_eq!(*env.model.calls.lock().unwrap(), 2, "no response is billed twice");
}

#[tokio::test(start_paused = true)]
async fn model_has_its_full_time_after_slow_tools() {
    let mut env = TestEnv::with_script(4, |results, _| {
        if results == 0 {
            vec![call("c1", "brew", 1), call("c2", "brew", 2)]
        } else {
            vec![text("done")]
        }
    });
    let services = env.new_worker(Arc::new(NoFailPoints));
    env.send_prompt(&services).await;
    env.deliver().await;
    // The second `brew` starts in the next turn, of which 100 s remain when it is done.
    *env.model.response_time.lock().unwrap() = Duration::from_mins(2);
    env.run_until_idle().await;
    assert_eq!(env.head().await.unwrap().prompts[0].state, PromptState::Completed);
    assert_eq!(*env.model.calls.lock().unwrap(), 2);
}

#[tokio::test(start_paused = true)]
async fn response_schema_makes_last_text_the_result() {
    let script: super::test_env::Script =
        |_, _| vec![text("thinking aloud"), text(r#"{"total": 12.50}"#)];
    let mut env = TestEnv::with_script(1, script);
    env.set_response_schema(&json!({"type": "object"}));
    let services = env.new_worker(Arc::new(NoFailPoints));
    env.send_prompt(&services).await;
    env.run_until_idle().await;
    let head = env.head().await.unwrap();
    let services = { env }.new_worker(Arc::new(NoFailPoints));
    let view = queries::prompts::read_prompt(&services, &head, &head.prompts[0].id).await.unwrap();
    let view = serde_json::to_value(&view).unwrap();
    assert_eq!(view["result"], json!({"total": 12.5}));
    let (listed, _) = queries::prompts::list_prompts(&services, &head, 0, 20).await.unwrap();
    assert_eq!(listed[0].result.as_ref().unwrap().text(), r#"{"total": 12.50}"#);
}
