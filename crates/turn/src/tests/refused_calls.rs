//! Log lines of calls that do not start.

use std::sync::Arc;

use async_trait::async_trait;
use serde_json::{Value, json};

use super::compaction::handle_until_idle;
use super::test_env::{TestEnv, text};
use turnwheel_extensions::{
    CallBlock, Extension, HookContext, HookError, PendingToolCall, ToolCallDecision,
};
use turnwheel_platform::fail_points::NoFailPoints;
use turnwheel_test_support::captured_log::CapturedLog;

#[derive(Debug)]
struct BlocksPayments;

#[async_trait]
impl Extension for BlocksPayments {
    fn name(&self) -> &'static str {
        "guard"
    }

    async fn before_tool_call(
        &self,
        _cx: &HookContext,
        call: &PendingToolCall<'_>,
    ) -> Result<ToolCallDecision, HookError> {
        let is_payment = call.tool_name == "pay";
        let block = ToolCallDecision::Block(CallBlock::default());
        Ok(if is_payment { block } else { ToolCallDecision::Allow })
    }
}

/// Each call is refused for another reason.
fn refused_calls(results: usize, _input: &str) -> Vec<Value> {
    if results > 0 {
        return vec![text("done")];
    }
    let call = |(id, name, member): (&str, &str, &str)| {
        let arguments = json!({member: "the secret"});
        json!({"type": "toolCall", "id": id, "name": name, "arguments": arguments})
    };
    let calls = [
        ("c1", "pay", "to"),
        ("c2", "gone", "to"),
        ("c3", "pay the secret", "to"),
        ("c4", "read", "secret"),
    ];
    calls.map(call).into()
}

#[tokio::test(start_paused = true)]
async fn refused_call_is_logged_with_its_cause_and_no_data() {
    let mut env = TestEnv::with_script(1, refused_calls);
    let mut worker = env.new_worker(Arc::new(NoFailPoints));
    worker.extensions = vec![Arc::new(BlocksPayments)];
    let log = CapturedLog::start();
    env.send_prompt(&worker).await;
    handle_until_idle(&env, &worker).await;
    let text = log.text();
    let lines: Vec<&str> = text.lines().filter(|line| line.contains("tool call refused")).collect();
    let expected = [
        r#"tool="pay" cause="an extension blocked it""#,
        r#"tool="gone" cause="there is no such tool""#,
        // The model chose the name, which may be any text.
        r#"tool="(no name)" cause="there is no such tool""#,
        r#"tool="read" cause="its arguments are invalid""#,
    ];
    assert_eq!(lines.len(), expected.len(), "{text}");
    for (line, expected) in lines.into_iter().zip(expected) {
        assert!(line.trim().starts_with("WARN") && line.contains(expected), "{line}");
        assert!(line.contains("conversation.id=c") && !line.contains("secret"), "{line}");
    }
    assert!(env.executions.lock().unwrap().is_empty(), "no call ran");
}
