//! Performs the actions of a case in order, each at the moment that the case states.

use serde_json::{Value, json};

use super::case::Case;
use super::test_app::{CONVERSATION, TestApp};
use crate::support::event_stream::{EventStream, Frame};

/// Lists of inputs that a case queues before the first run, each with its prompt mode.
pub(super) const QUEUED_BEFORE: [(&str, &str); 2] =
    [("steering_queue_before_run", "steer"), ("follow_up_queue_before_run", "followUp")];

/// Results of the actions.
pub(super) struct ActionResults {
    /// Every event received live, up to the end of the last run.
    pub(super) live: Vec<Frame>,
    /// Texts of the errors, in order.
    pub(super) errors: Vec<String>,
}

/// Performs all actions and waits for the end of the runs that they start.
pub(super) async fn perform_actions(
    case: &Case,
    app: &TestApp,
    stream: EventStream,
) -> ActionResults {
    let mut runner =
        ActionRunner { case, app, stream, live: Vec::new(), errors: Vec::new(), is_running: false };
    for (given, mode) in QUEUED_BEFORE {
        for text in case.given(given).as_array().into_iter().flatten() {
            let body = json!({"input": text, "mode": mode, "whenIdle": "hold"});
            runner.post("prompts", &body).await.unwrap_or_else(|error| panic!("{error}"));
        }
    }
    // Calls are blocked before the first run; otherwise a call could end before its action.
    for call in case.actions().iter().filter_map(during_call) {
        app.gate.block(&case.call_id(call));
    }
    for action in case.actions() {
        runner.perform_when_due(action).await;
    }
    runner.wait_for_end().await;
    ActionResults { live: runner.live, errors: runner.errors }
}

/// Id of the call during which the action happens.
pub(super) fn during_call(action: &Value) -> Option<&str> {
    let call = action["when"].as_str()?.strip_prefix("while tool call ")?;
    Some(call.strip_suffix(" is executing").unwrap_or(call))
}

struct ActionRunner<'a> {
    case: &'a Case,
    app: &'a TestApp,
    stream: EventStream,
    live: Vec<Frame>,
    errors: Vec<String>,
    /// True from the start of a run until its end was received.
    is_running: bool,
}

impl ActionRunner<'_> {
    async fn perform_when_due(&mut self, action: &Value) {
        let starts_run = matches!(action["do"].as_str(), Some("prompt" | "continue"));
        match action["when"].as_str() {
            None if starts_run => self.wait_for_end().await,
            None => {}
            Some("running") => self.wait_for_update(|event| !event.is_null()).await,
            Some("after the first text_delta") => {
                self.wait_for_update(|event| event["type"] == "text_delta").await;
            }
            Some(when) => {
                let call = during_call(action).unwrap_or_else(|| panic!("unknown moment: {when}"));
                self.app.gate.started(&self.case.call_id(call)).await;
            }
        }
        let outcome = self.perform(action).await;
        if let Some(call) = during_call(action) {
            self.app.gate.release(&self.case.call_id(call));
        }
        match (outcome, action.get("expect_error_index")) {
            (Ok(()), None) => self.is_running |= starts_run,
            (Err(error), Some(index)) => {
                assert_eq!(*index, json!(self.errors.len()), "errors come in order");
                self.errors.push(error);
            }
            (outcome, _) => panic!("{action}: {outcome:?}"),
        }
    }

    async fn perform(&self, action: &Value) -> Result<(), String> {
        let input = |mode: &str| json!({"input": action["text"], "mode": mode});
        match action["do"].as_str().unwrap() {
            "prompt" => self.post("prompts", &input("prompt")).await,
            "steer" => self.post("prompts", &input("steer")).await,
            "followUp" | "follow_up" => self.post("prompts", &input("followUp")).await,
            "continue" => self.post("continue", &json!({})).await,
            "abort" => self.post("abort", &json!({})).await,
            other => panic!("unknown action: {other}"),
        }
    }

    /// Posts to the conversation. `Err` holds the `detail` of the problem.
    async fn post(&self, resource: &str, body: &Value) -> Result<(), String> {
        let path = format!("/api/conversations/{CONVERSATION}/{resource}");
        let (status, answer) = self.app.service.post(&path, body).await;
        if status == 202 {
            return Ok(());
        }
        assert!((400..500).contains(&status), "{path}: {status} {answer}");
        Err(answer["detail"].as_str().unwrap().to_owned())
    }

    /// Reads events until one has a matching `assistantMessageEvent`.
    async fn wait_for_update(&mut self, is_wanted: fn(&Value) -> bool) {
        let matches_frame = |frame: &Frame| is_wanted(&frame.data["assistantMessageEvent"]);
        while !self.live.iter().any(matches_frame) {
            let frame = self.stream.next_frame().await.expect("the stream has another event");
            self.live.push(frame);
        }
    }

    /// Reads events up to the end of the run.
    async fn wait_for_end(&mut self) {
        if std::mem::take(&mut self.is_running) {
            self.live.extend(self.stream.read_until("agent_settled").await);
        }
    }
}
