//! Tests of one attempt: tools that hang, panic or lose their response.

use std::time::Duration;

use async_trait::async_trait;
use serde_json::json;

use super::*;
use crate::test_env::TestEnv;
use crate::{ApprovalRequirement, ToolDefinition};
use turnwheel_conversation::content::joined_text;
use turnwheel_conversation::phase::OnUnknown;
use turnwheel_json::raw::RawJson;
use turnwheel_test_support::captured_log::CapturedLog;

#[derive(Debug)]
enum Behaviour {
    Hangs,
    Panics,
    LosesResponse,
    ReturnsLongText,
    /// It returns an error result that quotes the caller.
    ReturnsErrorResult,
}

#[derive(Debug)]
struct StubTool {
    definition: ToolDefinition,
    behaviour: Behaviour,
}

#[async_trait]
impl CallableTool for StubTool {
    fn definition(&self) -> &ToolDefinition {
        &self.definition
    }

    fn required_approval(&self, _arguments: &Arguments) -> Option<ApprovalRequirement> {
        None
    }

    async fn call(&self, _arguments: Arguments, _context: ToolContext) -> ToolOutcome {
        match self.behaviour {
            Behaviour::Hangs => std::future::pending().await,
            Behaviour::Panics => panic!("a secret of the caller"),
            Behaviour::LosesResponse => ToolOutcome::Unknown { reason: "cut off".to_owned() },
            Behaviour::ReturnsErrorResult => {
                ToolOutcome::Returned(ToolResult::error("a secret of the caller"))
            }
            Behaviour::ReturnsLongText => {
                ToolOutcome::Returned(ToolResult::text("x\n".repeat(10_000)))
            }
        }
    }
}

async fn run_stub(effect: Effect, behaviour: Behaviour) -> ToolOutcome {
    let tool = StubTool {
        definition: ToolDefinition {
            is_strict: false,
            name: "script".to_owned(),
            label: "script".to_owned(),
            description: String::new(),
            parameters: json!({"type": "object"}),
            effect,
            on_unknown: OnUnknown::Ask,
            timeout: Duration::from_millis(1),
            revision: "1".to_owned(),
        },
        behaviour,
    };
    let arguments = Arguments { value: json!({}), text: RawJson::from_value(&json!({})) };
    attempt_call(&tool, arguments, TestEnv::new().context(), ReadAccess::Available).await
}

fn failed(text: &str) -> ToolOutcome {
    ToolOutcome::Failed(text.to_owned())
}

fn unknown(reason: &str) -> ToolOutcome {
    ToolOutcome::Unknown { reason: reason.to_owned() }
}

#[tokio::test]
async fn hanging_tool_times_out() {
    for effect in [Effect::Read, Effect::Idempotent] {
        assert_eq!(run_stub(effect, Behaviour::Hangs).await, failed("timed out after 0.001s"));
    }
    assert_eq!(run_stub(Effect::Write, Behaviour::Hangs).await, unknown("timed out after 0.001s"));
}

#[tokio::test]
async fn tool_panic_is_caught_without_revealing_its_payload() {
    for effect in [Effect::Read, Effect::Idempotent] {
        assert_eq!(run_stub(effect, Behaviour::Panics).await, failed("it stopped unexpectedly"));
    }
    assert_eq!(
        run_stub(Effect::Write, Behaviour::Panics).await,
        unknown("it stopped unexpectedly")
    );
}

#[tokio::test]
async fn lost_response_is_unknown_only_for_writes() {
    assert_eq!(run_stub(Effect::Write, Behaviour::LosesResponse).await, unknown("cut off"));
    assert_eq!(run_stub(Effect::Read, Behaviour::LosesResponse).await, failed("cut off"));
}

#[tokio::test]
async fn tool_result_is_bounded() {
    let ToolOutcome::Returned(result) = run_stub(Effect::Write, Behaviour::ReturnsLongText).await
    else {
        panic!("the tool returns a result")
    };
    assert!(
        joined_text(&result.content).contains("[Output truncated: showing lines 1-2000 of 10001")
    );
}

async fn log_lines_of(behaviour: Behaviour) -> String {
    let log = CapturedLog::start();
    run_stub(Effect::Write, behaviour).await;
    log.text().lines().filter(|line| line.contains("tool call")).collect()
}

#[tokio::test]
async fn failed_call_logs_its_cause_without_data() {
    for (behaviour, cause) in [
        (Behaviour::Hangs, "timed out after 0.001s"),
        (Behaviour::Panics, "it panicked"),
        (Behaviour::LosesResponse, "its outcome is unknown"),
        (Behaviour::ReturnsErrorResult, "it returned an error result"),
    ] {
        let line = log_lines_of(behaviour).await;
        assert!(line.trim().starts_with("WARN"), "{line}");
        assert!(line.contains("tool call failed tool=\"script\" attempt=1"), "{line}");
        assert!(line.contains(cause) && !line.contains("secret"), "{line}");
    }
    let line = log_lines_of(Behaviour::ReturnsLongText).await;
    assert!(line.trim().starts_with("INFO") && line.contains("tool call completed"), "{line}");
}

#[test]
fn durations_are_formatted_as_seconds() {
    assert_eq!([30_000, 500, 1_250, 0].map(format_seconds), ["30", "0.5", "1.25", "0"]);
}
