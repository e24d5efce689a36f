//! Tests of one attempt: tools that hang, panic or lose their response.

use std::time::Duration;

use async_trait::async_trait;
use serde_json::json;

use super::*;
use crate::agent::content::joined_text;
use crate::agent::phase::OnUnknown;
use crate::agent::raw::RawJson;
use crate::tools::testing::Desk;
use crate::tools::{Ask, ToolDefinition};

#[derive(Debug)]
enum Behaviour {
    Hangs,
    Panics,
    LosesItsAnswer,
    SaysALot,
    /// It returns an error result that quotes the caller.
    ReportsAnError,
}

#[derive(Debug)]
struct Script {
    definition: ToolDefinition,
    behaviour: Behaviour,
}

#[async_trait]
impl RunTool for Script {
    fn definition(&self) -> &ToolDefinition {
        &self.definition
    }

    fn ask(&self, _arguments: &Arguments) -> Option<Ask> {
        None
    }

    async fn call(&self, _arguments: Arguments, _context: ToolContext) -> ToolOutcome {
        match self.behaviour {
            Behaviour::Hangs => std::future::pending().await,
            Behaviour::Panics => panic!("a secret of the caller"),
            Behaviour::LosesItsAnswer => ToolOutcome::Unknown { reason: "cut off".to_owned() },
            Behaviour::ReportsAnError => {
                ToolOutcome::Returned(ToolResult::error("a secret of the caller"))
            }
            Behaviour::SaysALot => ToolOutcome::Returned(ToolResult::text("x\n".repeat(10_000))),
        }
    }
}

async fn outcome(effect: Effect, behaviour: Behaviour) -> ToolOutcome {
    let tool = Script {
        definition: ToolDefinition {
            strict: false,
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
    let arguments = Arguments { value: json!({}), text: RawJson::of(&json!({})) };
    run(&tool, arguments, Desk::new().context(), ReadOn::WithRead).await
}

fn failed(text: &str) -> ToolOutcome {
    ToolOutcome::Failed(text.to_owned())
}

fn unknown(reason: &str) -> ToolOutcome {
    ToolOutcome::Unknown { reason: reason.to_owned() }
}

#[tokio::test]
async fn a_tool_that_hangs_is_dropped_at_its_time() {
    for effect in [Effect::Read, Effect::Idempotent] {
        assert_eq!(outcome(effect, Behaviour::Hangs).await, failed("timed out after 0.001s"));
    }
    assert_eq!(outcome(Effect::Write, Behaviour::Hangs).await, unknown("timed out after 0.001s"));
}

#[tokio::test]
async fn a_panic_stays_in_its_call_and_tells_nothing() {
    for effect in [Effect::Read, Effect::Idempotent] {
        assert_eq!(outcome(effect, Behaviour::Panics).await, failed("it stopped unexpectedly"));
    }
    assert_eq!(outcome(Effect::Write, Behaviour::Panics).await, unknown("it stopped unexpectedly"));
}

#[tokio::test]
async fn only_a_write_ends_in_not_knowing() {
    assert_eq!(outcome(Effect::Write, Behaviour::LosesItsAnswer).await, unknown("cut off"));
    assert_eq!(outcome(Effect::Read, Behaviour::LosesItsAnswer).await, failed("cut off"));
}

#[tokio::test]
async fn whatever_a_tool_says_is_bounded() {
    let ToolOutcome::Returned(result) = outcome(Effect::Write, Behaviour::SaysALot).await else {
        panic!("the tool returns a result")
    };
    assert!(
        joined_text(&result.content).contains("[Output truncated: showing lines 1-2000 of 10001")
    );
}

#[derive(Clone, Default)]
struct Log(std::sync::Arc<std::sync::Mutex<Vec<u8>>>);

impl std::io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

async fn logged(behaviour: Behaviour) -> String {
    let log = Log::default();
    let out = log.clone();
    let lines = tracing_subscriber::fmt()
        .with_ansi(false)
        .without_time()
        .with_max_level(tracing::Level::DEBUG)
        .with_writer(move || out.clone())
        .finish();
    // With a second dispatcher, a callsite asks every subscriber whether it is enabled, and not
    // only the subscriber of the first thread that hits it.
    let _other = tracing::Dispatch::new(tracing::subscriber::NoSubscriber::default());
    let guard = tracing::subscriber::set_default(lines);
    outcome(Effect::Write, behaviour).await;
    drop(guard);
    let text = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
    text.lines().filter(|line| line.contains("tool call")).collect()
}

#[tokio::test]
async fn failed_call_is_a_warning_with_its_cause_and_no_data() {
    for (behaviour, cause) in [
        (Behaviour::Hangs, "timed out after 0.001s"),
        (Behaviour::Panics, "it panicked"),
        (Behaviour::LosesItsAnswer, "its outcome is unknown"),
        (Behaviour::ReportsAnError, "it returned an error result"),
    ] {
        let line = logged(behaviour).await;
        assert!(line.trim().starts_with("WARN"), "{line}");
        assert!(line.contains("tool call failed tool=\"script\" attempt=1"), "{line}");
        assert!(line.contains(cause) && !line.contains("secret"), "{line}");
    }
    let line = logged(Behaviour::SaysALot).await;
    assert!(line.trim().starts_with("DEBUG") && line.contains("tool call succeeded"), "{line}");
}

#[test]
fn a_span_reads_as_seconds() {
    assert_eq!([30_000, 500, 1_250, 0].map(seconds), ["30", "0.5", "1.25", "0"]);
}
