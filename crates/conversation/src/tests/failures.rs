//! Failures around calls and prompts: lost outcomes, late results, exceeded limits.

use super::*;
use crate::entry::{EntryBody, PromptState};
use crate::phase::{CallStatus, Phase};
use crate::prompt_view::build_prompt_view;
use crate::step::CALLS_MAX;

fn count_tool_starts(transition: &Transition) -> usize {
    let is_start = |body: &EntryBody| matches!(body, EntryBody::ToolStarted(_));
    transition.entries.iter().filter(|entry| is_start(&entry.body)).count()
}

fn late_result(transition: &Transition, text: &str) -> Input {
    let Phase::Calls { response_seq: answer, .. } = transition.head.phase else {
        panic!("no call is open")
    };
    let message = json!({"toolCallId": "c0|fc_0", "toolName": "pay", "isError": false, "timestamp": 1,
        "content": [{"type": "text", "text": text}]});
    let body = json!({"lateResult": {"call": {"answer": answer, "index": 0}, "message": message}});
    inbox_read_one(item("late-1", body))
}

#[test]
fn queued_prompt_starts_after_previous_one_ends() {
    let body = json!({"followUp": {"promptId": "pr_2", "user": "default", "input": "two", "visible": true, "source": "queue"}});
    let queued = inbox_read(&[item("in_2", body)]);
    let mut transition = transition();
    apply_inputs(&mut transition, &[prompt("one")]);
    assert!(apply_inputs(&mut transition, &[queued]).is_empty(), "it waits for the first prompt");
    let events = apply_inputs(&mut transition, &[response(&["done"])]);
    let end = events.iter().position(|event| event == "turn_end 0").unwrap();
    assert_eq!(
        events[end + 1..],
        [
            "prompt.completed",
            "prompt.created",
            "turn_start",
            "message_start user:two",
            "message_end user:two"
        ],
        "the run continues"
    );
    assert_eq!(transition.head.prompts[1].state, PromptState::Running);
    assert_eq!(transition.receipts.len(), 2);
    let events = apply_inputs(&mut transition, &[response(&["done"])]);
    assert_eq!(events[events.len() - 3..], ["agent_end", "prompt.completed", "agent_settled"]);
    let Some(EventBody::AgentEnd(end)) = transition
        .events
        .iter()
        .rev()
        .map(|event| &event.body)
        .find(|body| body.name() == "agent_end")
    else {
        panic!("no agent_end event")
    };
    assert_eq!(end.from_seq, 1, "the span covers the whole run");
}

#[test]
fn expired_outcome_request_still_blocks_equal_calls() {
    let mut transition = transition();
    apply_inputs(
        &mut transition,
        &[
            prompt("go"),
            response(&["pay {}", "pay {}"]),
            admitted_call(0, Effect::Write, None),
            lost_result(0),
        ],
    );
    let expired = decision(&transition, Verdict::Expired, None);
    let events = apply_inputs(&mut transition, &[expired, admitted_call(1, Effect::Write, None)]);
    assert!(events.contains(&"tool_execution_end pay error".to_owned()), "{events:?}");
    assert_eq!(count_tool_starts(&transition), 1, "the second payment was not made");
}

#[test]
fn started_write_of_poisoned_prompt_blocks_equal_calls() {
    let mut transition = transition();
    let poison = Input::Poisoned { reason: "five claims".to_owned() };
    apply_inputs(
        &mut transition,
        &[prompt("go"), response(&["pay {}"]), admitted_call(0, Effect::Write, None), poison],
    );
    apply_inputs(
        &mut transition,
        &[prompt("again"), response(&["pay {}"]), admitted_call(0, Effect::Write, None)],
    );
    assert_eq!(count_tool_starts(&transition), 1, "the second payment was not made");
}

#[test]
fn unknown_outcome_is_reported_when_prompt_is_poisoned() {
    let mut transition = transition();
    let poison = Input::Poisoned { reason: "too large".to_owned() };
    apply_inputs(
        &mut transition,
        &[
            prompt("go"),
            response(&["pay {}"]),
            admitted_call(0, Effect::Write, None),
            lost_result(0),
            poison,
        ],
    );
    let error = view(&transition)["output"][0]["result"]["error"].as_str().unwrap().to_owned();
    assert!(error.contains("may have happened"), "{error}");
}

#[test]
fn late_result_settles_call_ready_after_take_over() {
    let mut transition = transition();
    apply_inputs(
        &mut transition,
        &[
            prompt("go"),
            response(&["pay {}"]),
            admitted_call(0, Effect::Idempotent, None),
            Input::LeaseTakenOver,
        ],
    );
    assert_eq!(transition.calls()[0].status, CallStatus::Ready);
    let late_input = late_result(&transition, "paid");
    apply_inputs(&mut transition, &[late_input]);
    assert_eq!(
        view(&transition)["output"][0]["result"],
        json!({"type": "success", "output": "paid"})
    );
    assert_eq!(transition.head.phase, Phase::Model { attempt: 1, not_before: None });
}

#[test]
fn late_result_of_unsent_call_is_ignored() {
    let mut transition = transition();
    apply_inputs(&mut transition, &[prompt("go"), response(&["pay {}"])]);
    let late_input = late_result(&transition, "paid");
    assert!(apply_inputs(&mut transition, &[late_input]).is_empty());
}

#[test]
fn response_with_too_many_calls_fails() {
    let calls = vec!["look {}"; CALLS_MAX + 1];
    let mut transition = transition();
    apply_inputs(&mut transition, &[prompt("go"), response(&calls)]);
    assert_eq!(count_tool_starts(&transition), 0);
    let view = view(&transition);
    assert_eq!(view["state"], "failed");
    let message = view["error"]["message"].as_str().unwrap();
    assert!(
        message.contains("65 tool calls") && message.contains("the maximum is 64"),
        "{message}"
    );
    assert_eq!(view["usage"]["totalTokens"], 15, "its usage is counted");
}

#[test]
fn json_text_of_last_response_is_prompt_result() {
    let prompt_result = |texts: &[&str]| {
        let mut transition = transition();
        apply_inputs(&mut transition, &[prompt("go"), response(texts)]);
        let id = turnwheel_platform::ids::PromptId::new("pr_1");
        let mut view = build_prompt_view(&id, &transition.head, &transition.entries).unwrap();
        view.set_result(|_| true);
        view.result.map(|result| result.text().to_owned())
    };
    assert_eq!(
        prompt_result(&["thinking aloud", r#"{"a":1.50}"#]),
        Some(r#"{"a":1.50}"#.to_owned())
    );
    assert_eq!(prompt_result(&["no JSON"]), None);
    let mut running = transition();
    apply_inputs(&mut running, &[prompt("go"), response(&["{}", "look {}"])]);
    let id = turnwheel_platform::ids::PromptId::new("pr_1");
    let mut view = build_prompt_view(&id, &running.head, &running.entries).unwrap();
    view.set_result(|_| true);
    assert!(view.result.is_none(), "the prompt still runs");
}

#[test]
fn tool_usage_counts_for_prompt_conversation_and_ledger() {
    let mut transition = transition();
    let usage = serde_json::from_value(json!({
        "input": 100, "totalTokens": 100, "cost": {"total": 0.5},
    }));
    let content = vec![crate::content::Block::text("12 degrees")];
    let result =
        CallResult { content, usage: Some(Box::new(usage.unwrap())), ..CallResult::default() };
    let returned = Input::ToolCallReturned { index: 0, result: Box::new(result) };
    let call = response(&["weather {}"]);
    apply_inputs(
        &mut transition,
        &[prompt("one"), call, admitted_call(0, Effect::Read, None), returned],
    );
    let usage = &view(&transition)["usage"];
    assert_eq!((&usage["totalTokens"], &usage["cost"]["total"]), (&json!(115), &json!(0.5)));
    let id = turnwheel_platform::ids::PromptId::new("pr_1");
    let receipt = crate::prompt_receipt::build_receipt(&id, &transition.entries).unwrap();
    assert_eq!((receipt.model_calls, receipt.usage.total_tokens), (1, 115));
    let head = &transition.head;
    assert_eq!((head.usage.total_tokens, head.metering.spent.total_tokens), (115, 115));
    assert_eq!((head.metering.spent.calls, head.metering.spent.nanos), (1, 500_000_000));
    // The ledger includes the model call only; the tool's usage stays unsettled.
    let settlement = crate::step::BudgetInput::Settled {
        spent: crate::usage::UsageTotals {
            calls: 1,
            input: 10,
            output: 5,
            total_tokens: 15,
            ..Default::default()
        },
        increases: Vec::new(),
        alerts: Vec::new(),
    };
    apply_inputs(&mut transition, &[Input::BudgetChecked(Box::new(settlement))]);
    assert_eq!(transition.head.metering.days.len(), 1);
    let entry = transition.entries.iter().find(|entry| entry.body.tool_result().is_some()).unwrap();
    let stored = serde_json::to_value(entry.body.message().unwrap()).unwrap();
    assert_eq!(stored["usage"]["totalTokens"], 100);
}

#[test]
fn imported_result_with_invalid_usage_loads() {
    let odd = json!({"role": "toolResult", "toolCallId": "c", "toolName": "x", "content": [], "isError": false,
        "timestamp": 1, "usage": "none"});
    let message: Message = serde_json::from_str(&odd.to_string()).unwrap();
    let Message::ToolResult(result) = message else { panic!("{message:?}") };
    assert_eq!(result.usage, None);
}

#[test]
fn notification_reports_incomplete_response() {
    let mut transition = transition();
    transition.policy.has_notification_receiver = true;
    let text = [json!({"type": "text", "text": "half"})];
    apply_inputs(&mut transition, &[prompt("go"), response_with(&text, "length")]);
    let data = transition.notifications.last().unwrap().data.to_value();
    assert_eq!(
        (&data["state"], &data["incomplete"]["reason"]),
        (&json!("completed"), &json!("max_output_tokens"))
    );
}

#[test]
fn second_schema_error_fails_prompt() {
    let with_schema_error = |mut input: Input| {
        let Input::ResponseReceived(response_input) = &mut input else { panic!("not a response") };
        response_input.schema_error = Some("it is not JSON".to_owned());
        input
    };
    let mut transition = transition();
    apply_inputs(&mut transition, &[prompt("go"), with_schema_error(response(&["no JSON"]))]);
    assert_eq!(transition.head.phase, Phase::Model { attempt: 1, not_before: None });
    assert!(transition.head.prompt.as_ref().unwrap().has_requested_repair);
    apply_inputs(&mut transition, &[with_schema_error(response(&["again no JSON"]))]);
    assert_eq!(view(&transition)["error"]["type"], "schema");
    assert_eq!(transition.head.phase, Phase::Idle);
}

/// The model calls so far, and the end of the prompt if it has ended.
fn end_of_prompt(transition: &Transition) -> (u32, serde_json::Value) {
    let view = view(transition);
    (u32::try_from(transition.head.response_count).unwrap(), view["incomplete"]["reason"].clone())
}

#[test]
fn empty_response_is_requested_once_more() {
    let thinking = [json!({"type": "thinking", "thinking": "Hm"})];
    let blank = [json!({"type": "text", "text": " \n"})];
    for empty in [&[][..], &thinking, &blank] {
        let mut transition = transition();
        transition.policy.has_notification_receiver = true;
        apply_inputs(&mut transition, &[prompt("go"), response_with(empty, "stop")]);
        assert_eq!(transition.head.phase, Phase::MODEL_CALL, "{empty:?}");
        apply_inputs(&mut transition, &[response_with(empty, "stop")]);
        assert_eq!(transition.head.phase, Phase::Idle);
        assert_eq!(view(&transition)["state"], "completed");
        assert_eq!(end_of_prompt(&transition), (2, json!("empty")));
        let data = transition.notifications.last().unwrap().data.to_value();
        assert_eq!(data["incomplete"]["reason"], "empty");
    }
    let mut answered = transition();
    apply_inputs(&mut answered, &[prompt("go"), response_with(&[], "stop"), response(&["hi"])]);
    assert_eq!(end_of_prompt(&answered), (2, serde_json::Value::Null));
    let mut once = transition();
    once.policy.retry.enabled = false;
    apply_inputs(&mut once, &[prompt("go"), response_with(&[], "stop")]);
    assert_eq!(end_of_prompt(&once), (1, json!("empty")), "retries are switched off");
    let mut cut = transition();
    apply_inputs(&mut cut, &[prompt("go"), response_with(&[], "length")]);
    assert_eq!(end_of_prompt(&cut), (1, json!("max_output_tokens")));
    let mut last_round = transition();
    last_round.policy.rounds_max = Some(1);
    apply_inputs(&mut last_round, &[prompt("go"), response_with(&[], "stop")]);
    assert_eq!(end_of_prompt(&last_round), (1, json!("empty")));
}
