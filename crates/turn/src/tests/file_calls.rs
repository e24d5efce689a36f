//! Parallel calls of file tools.

use serde_json::{Value, json};
use tokio::time::Instant;

use super::parallel_calls::{end_and_result_order, handle_nudge_if_any, new_env, result_texts};
use super::store_requests::handle_next_nudge;
use super::test_env::{call, text};
use turnwheel_conversation::message::Message;

/// A call of a built-in file tool.
fn file_call(id: &str, tool: &str, arguments: &Value) -> Value {
    json!({"type": "toolCall", "id": id, "name": tool, "arguments": arguments})
}

fn edits_one_file(results: usize, _input: &str) -> Vec<Value> {
    let edit = |id: &str, old: &str, new: &str| {
        file_call(id, "edit", &json!({"path": "a.txt", "old_text": old, "new_text": new}))
    };
    match results {
        0 => vec![
            call("c0", "nap", 20),
            file_call("c1", "write", &json!({"path": "a.txt", "content": "one"})),
            edit("c2", "one", "one two"),
            edit("c3", "two", "two three"),
        ],
        4 => vec![edit("c4", "one two three", "all")],
        _ => vec![text("done")],
    }
}

#[tokio::test(start_paused = true)]
async fn file_calls_run_in_order() {
    let (mut env, services, counting) = new_env(8, edits_one_file).await;
    let began = Instant::now();
    handle_next_nudge(&env, &services, &counting).await;
    assert_eq!(began.elapsed().as_secs(), 20, "the file calls do not wait for `nap`");
    assert_eq!(end_and_result_order(&env).await.0, ["c1", "c2", "c3", "c0"]);
    while handle_nudge_if_any(&env, &services).await {}
    env.run_until_idle().await;
    let entries = env.entries().await;
    let is_error = entries.iter().any(|entry| {
        matches!(entry.body.message(), Some(Message::ToolResult(result)) if result.is_error)
    });
    assert!(!is_error, "{:?}", result_texts(&env).await);
}
