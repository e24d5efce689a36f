//! Arguments that extensions change: later extensions, approvals, the tool and the record see them.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use serde_json::{Value, json};

use super::call_approval::{handle_nudges, only_request};
use super::parallel_calls::result_texts;
use super::test_env::{PauseFailPoint, TestEnv, call, text};
use crate::delivery::handle;
use turnwheel_conversation::entry::EntryBody;
use turnwheel_extensions::{
    ApprovalRequest, Extension, HookContext, HookError, PendingToolCall, ToolCallDecision,
};
use turnwheel_json::raw::RawJson;
use turnwheel_platform::fail_points::NoFailPoints;
use turnwheel_queries::approvals::call_arguments;
use turnwheel_record::services::Services;

#[derive(Debug)]
struct Changing(fn(u64) -> ToolCallDecision);

#[async_trait]
impl Extension for Changing {
    fn name(&self) -> &'static str {
        "changing"
    }

    async fn before_tool_call(
        &self,
        _cx: &HookContext,
        call: &PendingToolCall<'_>,
    ) -> Result<ToolCallDecision, HookError> {
        assert_eq!(call.arguments.value, call.arguments.text.to_value());
        Ok((self.0)(call.arguments.value["n"].as_u64().unwrap()))
    }
}

fn change(n: u64) -> ToolCallDecision {
    ToolCallDecision::Change(json!({"n": n}))
}

fn needs_approval(n: u64) -> ToolCallDecision {
    ToolCallDecision::RequireApproval(ApprovalRequest::because(format!("Sleep {n} s?")))
}

/// A call of `nap`, whose result is its argument.
fn naps(results: usize, _input: &str) -> Vec<Value> {
    if results == 0 { vec![call("c1", "nap", 0)] } else { vec![text("done")] }
}

async fn env_with(hooks: &[fn(u64) -> ToolCallDecision]) -> (TestEnv, Services) {
    let mut env = TestEnv::with_script(31, naps);
    env.extensions = hooks.iter().map(|hook| Arc::new(Changing(*hook)) as _).collect();
    let worker = env.new_worker(Arc::new(NoFailPoints));
    env.send_prompt(&worker).await;
    (env, worker)
}

/// Arguments of the attempts and of the approval requests, as recorded.
async fn recorded_changes(env: &TestEnv) -> Vec<Option<Value>> {
    let entries = env.entries().await;
    let changes = entries.iter().filter_map(|entry| {
        if let EntryBody::ToolStarted(started) = &entry.body {
            Some(started.arguments.as_ref().map(RawJson::to_value))
        } else if let EntryBody::Request(request) = &entry.body {
            Some(request.request.arguments.as_ref().map(RawJson::to_value))
        } else {
            None
        }
    });
    changes.collect()
}

/// The arguments of the model's call.
async fn original(env: &TestEnv) -> Value {
    let entries = env.entries().await;
    let arguments = entries.iter().find_map(|entry| call_arguments(entry, 0));
    arguments.unwrap().to_value()
}

#[tokio::test(start_paused = true)]
async fn each_extension_changes_the_arguments_of_the_earlier_one() {
    let (env, worker) =
        env_with(&[|n| change(n + 1), |_| ToolCallDecision::Allow, |n| change(n + 10)]).await;
    handle_nudges(&env, &worker).await;
    assert_eq!(result_texts(&env).await, ["11"]);
    assert_eq!(recorded_changes(&env).await, [Some(json!({"n": 11}))]);
    assert_eq!(original(&env).await, json!({"n": 0}), "the model's call stays as it is");
    let head = env.head().await.unwrap();
    assert_eq!(head.min_reader, head.required_reader());
    assert!(head.min_reader < 6, "nothing is changed any more");
}

#[tokio::test(start_paused = true)]
async fn approval_covers_the_changed_arguments() {
    let (mut env, worker) = env_with(&[|_| change(3), needs_approval]).await;
    handle_nudges(&env, &worker).await;
    let request = only_request(&env).await;
    assert_eq!(request.reason, "Sleep 3 s?");
    assert_eq!(request.arguments.unwrap().to_value(), json!({"n": 3}));
    assert_eq!(env.head().await.unwrap().min_reader, 6);

    // A later version of the extension changes them in another way.
    env.extensions[0] = Arc::new(Changing(|_| change(4)));
    let worker = env.new_worker(Arc::new(NoFailPoints));
    env.decide_all("approve").await;
    handle_nudges(&env, &worker).await;
    let request = only_request(&env).await;
    assert_eq!(request.arguments.unwrap().to_value(), json!({"n": 4}), "a new approval");
    env.decide_all("approve").await;
    handle_nudges(&env, &worker).await;
    assert_eq!(result_texts(&env).await, ["4"]);
    let recorded = [3, 4, 4].map(|n| Some(json!({"n": n})));
    assert_eq!(recorded_changes(&env).await, recorded);
}

#[tokio::test(start_paused = true)]
async fn changed_arguments_keep_each_digit() {
    const CHANGED: &str = r#"{"n":3,"id":25122920421210000012345,"rate":0.1000000000000000000001}"#;
    let changes = |_| ToolCallDecision::ChangeText(RawJson::from_text(CHANGED).unwrap());
    let adds_member = |_| {
        let rounded: Value = serde_json::from_str(CHANGED).unwrap();
        let mut changed = rounded.as_object().unwrap().clone();
        changed.insert("note".to_owned(), json!("x"));
        ToolCallDecision::Change(changed.into())
    };
    let expected = CHANGED.replace('}', r#","note":"x"}"#);
    let (mut env, worker) = env_with(&[changes, adds_member, needs_approval]).await;
    handle_nudges(&env, &worker).await;
    assert_eq!(only_request(&env).await.arguments.unwrap().text(), expected);
    let head = env.head().await.unwrap();
    assert_eq!(head.min_reader, 9, "an older worker would send the text");
    env.decide_all("approve").await;

    // The worker that starts the call dies, and the next one has no such extension.
    let pause = Arc::new(PauseFailPoint::new("tool.before"));
    let dying = env.new_worker(pause.clone());
    let nudge = TestEnv::nudge();
    pause.kill(handle(&dying, &nudge)).await;
    let head = env.head().await.unwrap();
    let sent = head.phase.call_batch().calls[0].changed_arguments.clone();
    assert_eq!(sent.unwrap().text(), expected);
    tokio::time::sleep(Duration::from_secs(66)).await;
    env.extensions.clear();
    let worker = env.new_worker(Arc::new(NoFailPoints));
    handle(&worker, &nudge).await.unwrap();
    handle_nudges(&env, &worker).await;
    assert_eq!(result_texts(&env).await, ["3"]);
    for entry in env.entries().await {
        if let EntryBody::ToolStarted(started) = &entry.body {
            assert_eq!(started.arguments.as_ref().unwrap().text(), expected);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn approver_and_tool_get_last_of_duplicate_members() {
    const CHANGED: &str = r#"{"n":1,"id":1,"n":3,"id":25122920421210000012345}"#;
    let changes = |_| ToolCallDecision::ChangeText(RawJson::from_text(CHANGED).unwrap());
    let (mut env, worker) = env_with(&[changes, needs_approval]).await;
    handle_nudges(&env, &worker).await;
    let expected = r#"{"n":3,"id":25122920421210000012345}"#;
    assert_eq!(only_request(&env).await.arguments.unwrap().text(), expected);
    env.decide_all("approve").await;
    handle_nudges(&env, &worker).await;
    assert_eq!(result_texts(&env).await, ["3"]);
    for entry in env.entries().await {
        if let EntryBody::ToolStarted(started) = &entry.body {
            assert_eq!(started.arguments.as_ref().unwrap().text(), expected);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn take_over_repeats_the_call_with_the_changed_arguments() {
    let (mut env, _) = env_with(&[|_| change(5)]).await;
    let pause = Arc::new(PauseFailPoint::new("tool.before"));
    let dying = env.new_worker(pause.clone());
    let nudge = TestEnv::nudge();
    pause.kill(handle(&dying, &nudge)).await;
    tokio::time::sleep(Duration::from_secs(66)).await;
    // The other worker has no such extension.
    env.extensions.clear();
    let worker = env.new_worker(Arc::new(NoFailPoints));
    handle(&worker, &nudge).await.unwrap();
    handle_nudges(&env, &worker).await;
    assert_eq!(result_texts(&env).await, ["5"]);
}

/// Adds two ids that are one float; then another hook removes the first.
#[tokio::test(start_paused = true)]
async fn ambiguous_number_in_a_change_blocks_the_call() {
    let adds_ids = |_| {
        let ids = r#"{"n":0,"ids":[12345678901234567890123,12345678901234567890124]}"#;
        ToolCallDecision::ChangeText(RawJson::from_text(ids).unwrap())
    };
    let removes_first = |_| {
        let left = r#"{"n":0,"ids":[1.2345678901234568e22]}"#;
        ToolCallDecision::Change(serde_json::from_str(left).unwrap())
    };
    let (env, worker) = env_with(&[adds_ids, removes_first]).await;
    handle_nudges(&env, &worker).await;
    assert_eq!(
        result_texts(&env).await,
        [
            "Tool execution was blocked: extension \"changing\" changed its arguments, and `ids[0]` could be several numbers that differ only in digits beyond a float"
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn unusable_changes_block_the_call() {
    for (hook, reason) in [
        (
            (|_| ToolCallDecision::Change(json!([1]))) as fn(u64) -> ToolCallDecision,
            "a value that is no object",
        ),
        (
            |_| ToolCallDecision::Change(json!({"n": "x".repeat(5_000)})),
            "at most 4096 and 8192 are allowed",
        ),
        (
            |_| {
                let text = r#"{"n":1,"n":1e400}"#;
                ToolCallDecision::ChangeText(RawJson::from_text(text).unwrap())
            },
            "JSON that some parsers reject",
        ),
    ] {
        let (env, worker) = env_with(&[hook]).await;
        handle_nudges(&env, &worker).await;
        let result = result_texts(&env).await.remove(0);
        let start = "Tool execution was blocked: extension \"changing\" changed its arguments to ";
        assert!(result.starts_with(start) && result.contains(reason), "{result}");
    }
}
