//! Calls that a tool would refuse ask no approver: the model reads the mistake.

#![expect(clippy::needless_pass_by_value, reason = "the helpers take `json!` values")]

use std::sync::Arc;

use serde_json::{Value, json};

use super::memory::remember;
use super::parallel_calls::result_texts;
use super::test_env::{Script, TestEnv, text};
use super::user_skills::{handle_nudges, put};
use turnwheel_platform::fail_points::NoFailPoints;

fn tool_call(name: &str, arguments: Value) -> Vec<Value> {
    vec![json!({"type": "toolCall", "id": "c1", "name": name, "arguments": arguments})]
}

/// Number of open requests after the call, and the result of the first call.
async fn run(script: Script) -> (usize, Option<String>) {
    let is_about_skills = script(0, "")[0]["name"] == "create_skill";
    let mut env = TestEnv::with_script(1, script);
    if is_about_skills {
        env.set_user_skills();
    } else {
        env.set_memory("ask", false);
    }
    let services = env.new_worker(Arc::new(NoFailPoints));
    put(&services, "mine", &[]).await;
    remember(&services, &TestEnv::key(), 1, "likes tea").await;
    env.send_prompt(&services).await;
    handle_nudges(&env, &services).await;
    let open = env.head().await.unwrap().requests.len();
    (open, result_texts(&env).await.into_iter().next())
}

fn creates(name: &str, description: &str, tools: &[&str]) -> Vec<Value> {
    tool_call(
        "create_skill",
        json!({"name": name, "description": description, "instructions": "Do it.", "tools": tools}),
    )
}

#[tokio::test(start_paused = true)]
#[expect(clippy::too_many_lines, reason = "one row for each kind of call")]
async fn invalid_call_asks_no_approver() {
    let cases: [(Script, &str); 10] = [
        (
            |results, _| {
                if results == 0 { creates("Bad Name", "x", &[]) } else { vec![text("ok")] }
            },
            "a-z",
        ),
        (
            |results, _| if results == 0 { creates("closing", " ", &[]) } else { vec![text("ok")] },
            "A skill needs a description.",
        ),
        (
            |results, _| if results == 0 { creates("restart", "x", &[]) } else { vec![text("ok")] },
            "The app has a skill `restart`",
        ),
        (
            |results, _| if results == 0 { creates("mine", "x", &[]) } else { vec![text("ok")] },
            "The user has a skill `mine`",
        ),
        (
            |results, _| {
                if results == 0 { creates("closing", "x", &["pay"]) } else { vec![text("ok")] }
            },
            "these are not: pay",
        ),
        (
            |results, _| {
                if results == 0 {
                    tool_call("remember", json!({"text": " \n"}))
                } else {
                    vec![text("ok")]
                }
            },
            "A note needs a text.",
        ),
        (
            |results, _| {
                if results == 0 {
                    tool_call("remember", json!({"text": "x".repeat(9_999)}))
                } else {
                    vec![text("ok")]
                }
            },
            "Write a shorter one.",
        ),
        (
            |results, _| {
                if results == 0 { tool_call("forget", json!({})) } else { vec![text("ok")] }
            },
            "Give either the `text` or the `id`",
        ),
        (
            |results, _| {
                if results == 0 {
                    tool_call("forget", json!({"text": "a", "id": "b"}))
                } else {
                    vec![text("ok")]
                }
            },
            "Give either the `text` or the `id`",
        ),
        (
            |results, _| {
                if results == 0 {
                    tool_call("forget", json!({"text": "likes coffee"}))
                } else {
                    vec![text("ok")]
                }
            },
            "There is no such note.",
        ),
    ];
    for (script, expected) in cases {
        let (open, result) = run(script).await;
        assert_eq!(open, 0, "nobody is asked: {expected}");
        let result = result.unwrap_or_default();
        assert!(result.contains(expected), "{expected}: {result}");
    }
}

#[tokio::test(start_paused = true)]
async fn valid_call_asks_an_approver() {
    let cases: [Script; 3] = [
        |results, _| {
            if results == 0 { creates("closing", "x", &["put"]) } else { vec![text("ok")] }
        },
        |results, _| {
            if results == 0 {
                tool_call("remember", json!({"text": "likes tea"}))
            } else {
                vec![text("ok")]
            }
        },
        |results, _| {
            if results == 0 {
                tool_call("forget", json!({"text": "likes tea"}))
            } else {
                vec![text("ok")]
            }
        },
    ];
    for script in cases {
        assert_eq!(run(script).await, (1, None));
    }
}
