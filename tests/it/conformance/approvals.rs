//! Cases with an approval request.

use serde_json::{Value, json};

use super::case::Case;
use super::compare::assert_covers;
use super::notation::call_id;
use super::test_app::{CONVERSATION, CaseConfig, TestApp};
use crate::support::event_stream::{EventStream, Frame};
use crate::support::fake_model::ScriptedResponse;

/// Events that the source lacks: they settle the pending item in place and name the approver.
const EVENTS_ABSENT_IN_SOURCE: [&str; 3] =
    ["prompt.created", "prompt.output-updated", "prompt.approval-settled"];

pub(super) async fn run_case(case: &Case) {
    let expected = case.expected();
    let [prompt, decision] = case.actions() else { panic!("{}: prompt, decide", case.id()) };
    let reason = decision["reason"].as_str().filter(|reason| *reason != "(none)");
    let decision = (decision["do"].as_str().unwrap(), &decision["tool_call_id"]);
    let after = &expected["after_approve"];
    if after.is_null() {
        check_rejection(case, (prompt, decision), (reason, expected)).await;
        let with_reason = &expected["with_reason"];
        let reason = with_reason["reason"].as_str();
        let mut other = expected.clone();
        other["result"] = with_reason["result"].clone();
        check_rejection(case, (prompt, decision), (reason, &other)).await;
    } else {
        check_approval(case, (prompt, decision), expected).await;
    }
}

async fn check_approval(case: &Case, (prompt, decision): PromptAndDecision<'_>, expected: &Value) {
    let id = case.id();
    let run = ApprovalRun::start(case, prompt).await;
    let waiting = run.app.service.wait_for_prompt(CONVERSATION, &run.prompt_id).await;
    let first = run.events().await;
    run.assert_state(&waiting, &expected["after_prompt"], id);
    assert_events(id, &first, &expected["after_prompt"]["events"]);

    run.decide(decision, None).await;
    let done = run.app.service.wait_for_prompt(CONVERSATION, &run.prompt_id).await;
    let all = run.events().await;
    let after = &expected["after_approve"];
    run.assert_state(&done, after, id);
    assert_events(id, &all[first.len()..], &after["events_added"]);
    let sent = after["second_request_has"].as_str().unwrap();
    let sent = sent.strip_prefix("function_call_output with JSON ").unwrap();
    assert_eq!(run.output_sent_to_model(), serde_json::from_str::<Value>(sent).unwrap(), "{id}");
    run.app.service.stop().await;
}

async fn check_rejection(
    case: &Case,
    (prompt, decision): PromptAndDecision<'_>,
    (reason, expected): (Option<&str>, &Value),
) {
    let run = ApprovalRun::start(case, prompt).await;
    run.app.service.wait_for_prompt(CONVERSATION, &run.prompt_id).await;
    run.decide(decision, reason).await;
    let done = run.app.service.wait_for_prompt(CONVERSATION, &run.prompt_id).await;
    run.assert_state(&done, expected, case.id());
    assert_covers(case.id(), &done["output"][0]["result"], &expected["result"]);
    run.app.service.stop().await;
}

/// The prompt action; the decision and its call.
type PromptAndDecision<'a> = (&'a Value, (&'a str, &'a Value));

struct ApprovalRun {
    app: TestApp,
    prompt_id: String,
}

impl ApprovalRun {
    async fn start(case: &Case, prompt: &Value) -> Self {
        let plays = ScriptedResponse::parse_script(case.given("model_script"));
        let app = TestApp::start(case, plays, CaseConfig::for_loop("prompt")).await;
        let prompt_id = app.prompt(&prompt["text"]).await;
        Self { app, prompt_id }
    }

    /// Decides by the provider's id of the call, as the cases do.
    async fn decide(&self, (decision, call): (&str, &Value), reason: Option<&str>) {
        let call = call.as_str().unwrap();
        let path = format!("/api/conversations/{CONVERSATION}/approvals/{call}");
        let mut body = json!({"decision": decision});
        if let Some(reason) = reason {
            body["reason"] = json!(reason);
        }
        let (status, answer) = self.app.service.post(&path, &body).await;
        assert_eq!(status, 200, "{answer}");
    }

    async fn events(&self) -> Vec<Frame> {
        let service = &self.app.service;
        let all =
            EventStream::open(service, CONVERSATION, "?follow=false", None).await.read_rest().await;
        let is_compared = |frame: &Frame| {
            frame.name.starts_with("prompt.")
                && !EVENTS_ABSENT_IN_SOURCE.contains(&frame.name.as_str())
        };
        all.into_iter().filter(is_compared).collect()
    }

    fn assert_state(&self, prompt: &Value, expected: &Value, id: &str) {
        assert_eq!(prompt["state"], expected["state"], "{id}: {prompt}");
        if let Some(outputs) = expected.get("outputs") {
            let mut actual = prompt["output"].clone();
            for output in actual.as_array_mut().unwrap() {
                output["id"] = call_id(&output["id"]);
            }
            assert_covers(id, &actual, outputs);
        }
        assert_eq!(json!(self.app.model.request_bodies().len()), expected["model_calls"], "{id}");
        assert_eq!(json!(self.app.runs().len()), expected["tool_runs"], "{id}");
    }

    /// Output of the last call in the second model request.
    fn output_sent_to_model(&self) -> Value {
        let requests = self.app.model.request_bodies();
        let items = requests[1]["input"].as_array().unwrap();
        let output = items.iter().rfind(|item| item["type"] == "function_call_output").unwrap();
        serde_json::from_str(output["output"].as_str().unwrap()).unwrap()
    }
}

/// Asserts events such as `prompt.output` or `prompt.approval-requested {toolCallId:call_1, …}`.
fn assert_events(id: &str, frames: &[Frame], expected: &Value) {
    let names: Vec<&str> = frames.iter().map(|frame| frame.name.as_str()).collect();
    let expected: Vec<&str> =
        expected.as_array().unwrap().iter().map(|event| event.as_str().unwrap()).collect();
    let expected_names: Vec<&str> =
        expected.iter().map(|event| event.split(' ').next().unwrap()).collect();
    assert_eq!(names, expected_names, "{id}");
    let word = regex::Regex::new(r"[\w.]+").unwrap();
    for (frame, expected) in frames.iter().zip(expected) {
        if let Some((_, members)) = expected.split_once(' ') {
            let members = word.replace_all(members, "\"$0\"");
            let mut data = frame.data.clone();
            data["toolCallId"] = call_id(&data["toolCallId"]);
            assert_covers(id, &data, &serde_json::from_str(&members).unwrap());
        }
    }
}
