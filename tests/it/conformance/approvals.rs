//! Cases with an approval request.

use serde_json::{Value, json};

use super::case::Case;
use super::compare::assert_fits;
use super::notation::call_id;
use super::stage::{CONVERSATION, Needs, Stage};
use crate::support::fake_model::Play;
use crate::support::stream::{Frame, Stream};

/// Events that the source lacks: they settle the pending item in place and name the approver.
const BESIDE: [&str; 3] = ["prompt.created", "prompt.output-updated", "prompt.approval-settled"];

pub(super) async fn play(case: &Case) {
    let expected = case.expected();
    let [prompt, decision] = case.actions() else { panic!("{}: prompt, decide", case.id()) };
    let reason = decision["reason"].as_str().filter(|reason| *reason != "(none)");
    let decision = (decision["do"].as_str().unwrap(), &decision["tool_call_id"]);
    let after = &expected["after_approve"];
    if after.is_null() {
        is_rejected(case, (prompt, decision), (reason, expected)).await;
        let with_reason = &expected["with_reason"];
        let reason = with_reason["reason"].as_str();
        let mut other = expected.clone();
        other["result"] = with_reason["result"].clone();
        is_rejected(case, (prompt, decision), (reason, &other)).await;
    } else {
        is_approved(case, (prompt, decision), expected).await;
    }
}

async fn is_approved(case: &Case, (prompt, decision): Asked<'_>, expected: &Value) {
    let id = case.id();
    let run = Run::start(case, prompt).await;
    let waiting = run.stage.service.settled(CONVERSATION, &run.prompt_id).await;
    let first = run.events().await;
    run.is_at(&waiting, &expected["after_prompt"], id);
    has_events(id, &first, &expected["after_prompt"]["events"]);

    run.decide(decision, None).await;
    let done = run.stage.service.settled(CONVERSATION, &run.prompt_id).await;
    let all = run.events().await;
    let after = &expected["after_approve"];
    run.is_at(&done, after, id);
    has_events(id, &all[first.len()..], &after["events_added"]);
    let sent = after["second_request_has"].as_str().unwrap();
    let sent = sent.strip_prefix("function_call_output with JSON ").unwrap();
    assert_eq!(run.told_output(), serde_json::from_str::<Value>(sent).unwrap(), "{id}");
    run.stage.service.stop().await;
}

async fn is_rejected(
    case: &Case,
    (prompt, decision): Asked<'_>,
    (reason, expected): (Option<&str>, &Value),
) {
    let run = Run::start(case, prompt).await;
    run.stage.service.settled(CONVERSATION, &run.prompt_id).await;
    run.decide(decision, reason).await;
    let done = run.stage.service.settled(CONVERSATION, &run.prompt_id).await;
    run.is_at(&done, expected, case.id());
    assert_fits(case.id(), &done["output"][0]["result"], &expected["result"]);
    run.stage.service.stop().await;
}

/// The prompt action; the decision and its call.
type Asked<'a> = (&'a Value, (&'a str, &'a Value));

struct Run {
    stage: Stage,
    prompt_id: String,
}

impl Run {
    async fn start(case: &Case, prompt: &Value) -> Self {
        let plays = Play::script(case.given("model_script"));
        let stage = Stage::set(case, plays, Needs::of_loop("prompt")).await;
        let prompt_id = stage.prompt(&prompt["text"]).await;
        Self { stage, prompt_id }
    }

    /// Decides by the provider's id of the call, as the cases do.
    async fn decide(&self, (decision, call): (&str, &Value), reason: Option<&str>) {
        let call = call.as_str().unwrap();
        let path = format!("/api/conversations/{CONVERSATION}/approvals/{call}");
        let mut body = json!({"decision": decision});
        if let Some(reason) = reason {
            body["reason"] = json!(reason);
        }
        let (status, answer) = self.stage.service.post(&path, &body).await;
        assert_eq!(status, 200, "{answer}");
    }

    async fn events(&self) -> Vec<Frame> {
        let service = &self.stage.service;
        let all = Stream::open(service, CONVERSATION, "?follow=false", None).await.rest().await;
        let is_kept = |frame: &Frame| {
            frame.name.starts_with("prompt.") && !BESIDE.contains(&frame.name.as_str())
        };
        all.into_iter().filter(is_kept).collect()
    }

    fn is_at(&self, prompt: &Value, expected: &Value, id: &str) {
        assert_eq!(prompt["state"], expected["state"], "{id}: {prompt}");
        if let Some(outputs) = expected.get("outputs") {
            let mut told = prompt["output"].clone();
            for output in told.as_array_mut().unwrap() {
                output["id"] = call_id(&output["id"]);
            }
            assert_fits(id, &told, outputs);
        }
        assert_eq!(json!(self.stage.model.requests().len()), expected["model_calls"], "{id}");
        assert_eq!(json!(self.stage.runs().len()), expected["tool_runs"], "{id}");
    }

    /// Output of the last call in the second model request.
    fn told_output(&self) -> Value {
        let requests = self.stage.model.requests();
        let items = requests[1]["input"].as_array().unwrap();
        let output = items.iter().rfind(|item| item["type"] == "function_call_output").unwrap();
        serde_json::from_str(output["output"].as_str().unwrap()).unwrap()
    }
}

/// Asserts events such as `prompt.output` or `prompt.approval-requested {toolCallId:call_1, …}`.
fn has_events(id: &str, frames: &[Frame], expected: &Value) {
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
            assert_fits(id, &data, &serde_json::from_str(&members).unwrap());
        }
    }
}
