//! Failures around calls and prompts: lost outcomes, late results, exceeded limits.

use super::*;
use crate::agent::entry::{EntryBody, PromptState};
use crate::agent::phase::{CallStatus, Phase};
use crate::agent::step::CALLS_MAX;
use crate::agent::view::prompt_view;

fn view(draft: &Draft) -> serde_json::Value {
    let id = crate::ids::PromptId::new("pr_1");
    serde_json::to_value(prompt_view(&id, &draft.head, &draft.entries).unwrap()).unwrap()
}

fn starts(draft: &Draft) -> usize {
    let is_start = |body: &EntryBody| matches!(body, EntryBody::ToolStarted(_));
    draft.entries.iter().filter(|entry| is_start(&entry.body)).count()
}

fn late(draft: &Draft, text: &str) -> Input {
    let Phase::Calls { answer, .. } = draft.head.phase else { panic!("no call is open") };
    let message = json!({"toolCallId": "c0|fc_0", "toolName": "pay", "isError": false, "timestamp": 1,
        "content": [{"type": "text", "text": text}]});
    let body = json!({"lateResult": {"call": {"answer": answer, "index": 0}, "message": message}});
    landed(item("late-1", body))
}

#[test]
fn a_prompt_that_was_queued_behind_another_begins_when_that_one_has_ended() {
    let body = json!({"followUp": {"promptId": "pr_2", "user": "default", "input": "two", "visible": true, "source": "queue"}});
    let queued = looked(&[item("in_2", body)]);
    let mut draft = draft();
    play(&mut draft, &[prompt("one")]);
    assert!(play(&mut draft, &[queued]).is_empty(), "it waits for the first prompt");
    let told = play(&mut draft, &[answer(&["done"])]);
    let end = told.iter().position(|event| event == "turn_end 0").unwrap();
    assert_eq!(
        told[end + 1..],
        [
            "prompt.completed",
            "prompt.created",
            "turn_start",
            "message_start user:two",
            "message_end user:two"
        ],
        "the run continues"
    );
    assert_eq!(draft.head.prompts[1].state, PromptState::Running);
    assert_eq!(draft.receipts.len(), 2);
    let told = play(&mut draft, &[answer(&["done"])]);
    assert_eq!(told[told.len() - 3..], ["agent_end", "prompt.completed", "agent_settled"]);
    let Some(EventBody::AgentEnd(end)) =
        draft.events.iter().rev().map(|event| &event.body).find(|body| body.name() == "agent_end")
    else {
        panic!("no agent_end event")
    };
    assert_eq!(end.from_seq, 1, "the span covers the whole run");
}

#[test]
fn an_outcome_that_nobody_told_in_time_still_blocks_equal_calls() {
    let mut draft = draft();
    play(
        &mut draft,
        &[prompt("go"), answer(&["pay {}", "pay {}"]), gate(0, Effect::Write, None), lost(0)],
    );
    let expired = decision(&draft, Verdict::Expired, None);
    let told = play(&mut draft, &[expired, gate(1, Effect::Write, None)]);
    assert!(told.contains(&"tool_execution_end pay error".to_owned()), "{told:?}");
    assert_eq!(starts(&draft), 1, "the second payment was not made");
}

#[test]
fn a_write_under_way_when_its_prompt_is_given_up_blocks_equal_calls() {
    let mut draft = draft();
    let poison = Input::Poisoned { reason: "five claims".to_owned() };
    play(&mut draft, &[prompt("go"), answer(&["pay {}"]), gate(0, Effect::Write, None), poison]);
    play(&mut draft, &[prompt("again"), answer(&["pay {}"]), gate(0, Effect::Write, None)]);
    assert_eq!(starts(&draft), 1, "the second payment was not made");
}

#[test]
fn a_call_whose_outcome_is_asked_is_not_called_unrun_when_its_prompt_is_given_up() {
    let mut draft = draft();
    let poison = Input::Poisoned { reason: "too large".to_owned() };
    play(
        &mut draft,
        &[prompt("go"), answer(&["pay {}"]), gate(0, Effect::Write, None), lost(0), poison],
    );
    let error = view(&draft)["output"][0]["result"]["error"].as_str().unwrap().to_owned();
    assert!(error.contains("may have happened"), "{error}");
}

#[test]
fn a_late_result_of_a_call_that_waits_to_be_sent_again_saves_sending_it() {
    let mut draft = draft();
    play(
        &mut draft,
        &[prompt("go"), answer(&["pay {}"]), gate(0, Effect::Idempotent, None), Input::TakenOver],
    );
    assert_eq!(draft.calls()[0].status, CallStatus::Ready);
    let late = late(&draft, "paid");
    play(&mut draft, &[late]);
    assert_eq!(view(&draft)["output"][0]["result"], json!({"type": "success", "output": "paid"}));
    assert_eq!(draft.head.phase, Phase::Model { attempt: 1, not_before: None });
}

#[test]
fn a_late_result_of_a_call_that_was_never_sent_changes_nothing() {
    let mut draft = draft();
    play(&mut draft, &[prompt("go"), answer(&["pay {}"])]);
    let late = late(&draft, "paid");
    assert!(play(&mut draft, &[late]).is_empty());
}

#[test]
fn more_calls_than_one_commit_holds_fail_the_answer_with_the_reason() {
    let calls = vec!["look {}"; CALLS_MAX + 1];
    let mut draft = draft();
    play(&mut draft, &[prompt("go"), answer(&calls)]);
    assert_eq!(starts(&draft), 0);
    let view = view(&draft);
    assert_eq!(view["state"], "failed");
    let message = view["error"]["message"].as_str().unwrap();
    assert!(message.contains("65 tool calls") && message.contains("the maximum is 64"), "{message}");
    assert_eq!(view["usage"]["totalTokens"], 15, "its usage is counted");
}

#[test]
fn the_last_text_of_a_finished_prompt_is_its_result_when_it_is_json() {
    let read = |texts: &[&str]| {
        let mut draft = draft();
        play(&mut draft, &[prompt("go"), answer(texts)]);
        let id = crate::ids::PromptId::new("pr_1");
        let mut view = prompt_view(&id, &draft.head, &draft.entries).unwrap();
        view.read_result(|_| true);
        view.result.map(|result| result.text().to_owned())
    };
    assert_eq!(read(&["thinking aloud", r#"{"a":1.50}"#]), Some(r#"{"a":1.50}"#.to_owned()));
    assert_eq!(read(&["no JSON"]), None);
    let mut running = draft();
    play(&mut running, &[prompt("go"), answer(&["{}", "look {}"])]);
    let id = crate::ids::PromptId::new("pr_1");
    let mut view = prompt_view(&id, &running.head, &running.entries).unwrap();
    view.read_result(|_| true);
    assert!(view.result.is_none(), "the prompt still runs");
}

#[test]
fn usage_of_a_tool_counts_for_prompt_conversation_and_ledger() {
    let mut draft = draft();
    let usage = serde_json::from_value(json!({
        "input": 100, "totalTokens": 100, "cost": {"total": 0.5},
    }));
    let content = vec![crate::agent::content::Block::text("12 degrees")];
    let result =
        CallResult { content, usage: Some(Box::new(usage.unwrap())), ..CallResult::default() };
    let returned = Input::Returned { index: 0, result: Box::new(result) };
    let call = answer(&["weather {}"]);
    play(&mut draft, &[prompt("one"), call, gate(0, Effect::Read, None), returned]);
    let usage = &view(&draft)["usage"];
    assert_eq!((&usage["totalTokens"], &usage["cost"]["total"]), (&json!(115), &json!(0.5)));
    let id = crate::ids::PromptId::new("pr_1");
    let receipt = crate::agent::receipt::receipt(&id, &draft.entries).unwrap();
    assert_eq!((receipt.model_calls, receipt.usage.total_tokens), (1, 115));
    let head = &draft.head;
    assert_eq!((head.usage.total_tokens, head.books.spent.total_tokens), (115, 115));
    assert_eq!((head.books.spent.calls, head.books.spent.nanos), (1, 500_000_000));
    // The ledger includes the model call only; the tool's usage stays unsettled.
    let paid = crate::agent::step::Paying::Settled {
        spent: crate::agent::usage::Tally {
            calls: 1,
            input: 10,
            output: 5,
            total_tokens: 15,
            ..Default::default()
        },
        agreed: Vec::new(),
        alerts: Vec::new(),
    };
    play(&mut draft, &[Input::Paying(Box::new(paid))]);
    assert_eq!(draft.head.books.days.len(), 1);
    let entry = draft.entries.iter().find(|entry| entry.body.result().is_some()).unwrap();
    let stored = serde_json::to_value(entry.body.message().unwrap()).unwrap();
    assert_eq!(stored["usage"]["totalTokens"], 100);
}

#[test]
fn imported_result_with_an_odd_usage_still_loads() {
    let odd = json!({"role": "toolResult", "toolCallId": "c", "toolName": "x", "content": [], "isError": false,
        "timestamp": 1, "usage": "none"});
    let message: Message = serde_json::from_str(&odd.to_string()).unwrap();
    let Message::ToolResult(result) = message else { panic!("{message:?}") };
    assert_eq!(result.usage, None);
}

#[test]
fn cut_response_is_in_the_notification() {
    let mut draft = draft();
    draft.rules.writes_notices = true;
    let text = [json!({"type": "text", "text": "half"})];
    play(&mut draft, &[prompt("go"), answer_with(&text, "length")]);
    let data = draft.notices.last().unwrap().data.value();
    assert_eq!(
        (&data["state"], &data["incomplete"]["reason"]),
        (&json!("completed"), &json!("max_output_tokens"))
    );
}

#[test]
fn second_misfit_ends_the_prompt() {
    let misfit = |mut input: Input| {
        let Input::Answered(answered) = &mut input else { panic!("not a response") };
        answered.misfit = Some("it is not JSON".to_owned());
        input
    };
    let mut draft = draft();
    play(&mut draft, &[prompt("go"), misfit(answer(&["no JSON"]))]);
    assert_eq!(draft.head.phase, Phase::Model { attempt: 1, not_before: None });
    assert!(draft.head.prompt.as_ref().unwrap().is_repaired);
    play(&mut draft, &[misfit(answer(&["again no JSON"]))]);
    assert_eq!(view(&draft)["error"]["type"], "schema");
    assert_eq!(draft.head.phase, Phase::Idle);
}
