//! Steers and follow-ups: when they are appended, and which calls they skip.

use super::*;
use crate::agent::entry::EntryBody;
use crate::agent::phase::Phase;
use crate::agent::view::prompt_view;

fn steer(id: &str, text: &str) -> InboxItem {
    item(
        id,
        json!({"steer": {"promptId": format!("pr_{id}"), "user": "default", "input": text, "visible": true, "source": "user"}}),
    )
}

fn held_steer(id: &str, text: &str) -> InboxItem {
    item(
        id,
        json!({"steer": {"promptId": format!("pr_{id}"), "user": "default", "whenIdle": "hold", "input": text, "visible": true, "source": "user"}}),
    )
}

fn follow_up(id: &str, text: &str) -> InboxItem {
    item(
        id,
        json!({"followUp": {"promptId": format!("pr_{id}"), "user": "default", "input": text, "visible": true, "source": "user"}}),
    )
}

/// Role and text of each stored message, in order.
fn said(draft: &Draft) -> Vec<String> {
    let messages = draft.entries.iter().filter_map(|entry| entry.body.message());
    messages
        .map(|message| {
            let message = serde_json::to_value(message).unwrap();
            let content = &message["content"];
            let text = content.as_str().or_else(|| content[0]["text"].as_str()).unwrap_or("");
            format!("{}:{text}", message["role"].as_str().unwrap())
        })
        .collect()
}

const SKIPPED: &str = "toolResult:Skipped due to queued user message.";

#[test]
fn a_steer_after_the_first_call_skips_the_others_and_is_answered_next() {
    let mut draft = draft();
    play(
        &mut draft,
        &[prompt("go"), answer(&["echo {}", "echo {}", "echo {}"]), gate(0, Effect::Read, None)],
    );
    let told =
        play(&mut draft, &[returned(0, "echo:1"), looked(&[steer("in_2", "stop, do this")])]);
    assert_eq!(
        told,
        [
            "tool_execution_end echo",
            "message_start toolResult:echo:1",
            "message_end toolResult:echo:1",
            "prompt.output",
            "tool_execution_start echo",
            "tool_execution_end echo error",
            "message_start toolResult:Skipped due to queued user message.",
            "message_end toolResult:Skipped due to queued user message.",
            "prompt.output",
            "tool_execution_start echo",
            "tool_execution_end echo error",
            "message_start toolResult:Skipped due to queued user message.",
            "message_end toolResult:Skipped due to queued user message.",
            "prompt.output",
            "turn_end 3",
            "turn_start",
            "message_start user:stop, do this",
            "message_end user:stop, do this",
        ]
    );
    let receipt = draft.receipts.last().unwrap();
    assert_eq!(receipt.ran_calls, ["c0|fc_0"]);
    assert_eq!(receipt.skipped_calls, ["c1|fc_1", "c2|fc_2"]);
    assert_eq!(receipt.prompt_id, Some(crate::ids::PromptId::new("pr_1")));
    assert_eq!(draft.head.phase, Phase::Model { attempt: 1, not_before: None });
}

#[test]
fn a_steer_that_came_while_the_answer_streamed_lets_none_of_its_calls_start() {
    let mut draft = draft();
    play(
        &mut draft,
        &[prompt("go"), answer(&["pay {}", "pay {}"]), looked(&[steer("in_2", "no")])],
    );
    assert_eq!(said(&draft), ["user:go", "assistant:", SKIPPED, SKIPPED, "user:no"]);
}

#[test]
fn a_steer_waits_while_a_call_runs_or_a_person_is_asked() {
    let mut draft = draft();
    let asked = gate(0, Effect::Write, Some("much"));
    play(&mut draft, &[prompt("go"), answer(&["pay {}", "pay {}"]), asked]);
    assert!(play(&mut draft, &[looked(&[steer("in_2", "wait")])]).is_empty());
    assert_eq!(draft.head.waiting, 1);
    let settled = decision(&draft, Verdict::Reject, Some("no"));
    play(&mut draft, &[settled, looked(&[steer("in_2", "wait")])]);
    assert_eq!(said(&draft)[2..], ["toolResult:Rejected by user: no", SKIPPED, "user:wait"]);
    let receipt = draft.receipts.last().unwrap();
    assert!(receipt.ran_calls.is_empty(), "a rejected call did not run");
    assert_eq!(receipt.skipped_calls, ["c1|fc_1"]);
}

#[test]
fn without_skipping_the_batch_is_finished_first() {
    let mut draft = draft();
    draft.rules.steering_skips_tools = false;
    play(&mut draft, &[prompt("go"), answer(&["a {}", "b {}"]), gate(0, Effect::Read, None)]);
    play(&mut draft, &[returned(0, "1"), looked(&[steer("in_2", "then")])]);
    play(&mut draft, &[gate(1, Effect::Read, None), returned(1, "2")]);
    step(&mut draft, &Input::TakeIn);
    assert_eq!(said(&draft)[2..], ["toolResult:1", "toolResult:2", "user:then"]);
    assert_eq!(draft.receipts.last().unwrap().ran_calls.len(), 2);
}

#[test]
fn steers_are_taken_one_at_a_time_or_all() {
    for (mode, expected) in [
        (QueueMode::OneAtATime, vec!["user:go", "user:a", "assistant:1", "user:b", "assistant:2"]),
        (QueueMode::All, vec!["user:go", "user:a", "user:b", "assistant:1"]),
    ] {
        let mut draft = draft();
        draft.rules.steering_mode = mode;
        play(&mut draft, &[prompt("go"), looked(&[steer("in_2", "a"), steer("in_3", "b")])]);
        // A second drain before the response appends no other steer: repeated deliveries are safe.
        step(&mut draft, &Input::TakeIn);
        play(&mut draft, &[answer(&["1"])]);
        if mode == QueueMode::OneAtATime {
            play(&mut draft, &[answer(&["2"])]);
        }
        assert_eq!(said(&draft), expected);
        assert_eq!(draft.head.phase, Phase::Idle);
    }
}

#[test]
fn a_steer_where_the_loop_would_stop_goes_on_with_the_prompt() {
    let mut draft = draft();
    play(&mut draft, &[prompt("go"), looked(&[])]);
    step(
        &mut draft,
        &Input::Looked(vec![Pending { item: Arc::new(steer("in_2", "more")), bytes: 1 }]),
    );
    let told = play(&mut draft, &[answer(&["done"])]);
    let end = told.iter().position(|event| event == "turn_end 0").unwrap();
    assert_eq!(told[end + 1..], ["turn_start", "message_start user:more", "message_end user:more"]);
    assert_eq!(draft.head.prompts.len(), 1);
}

#[test]
fn follow_ups_in_mode_all_are_answered_together() {
    let mut draft = draft();
    draft.rules.follow_up_mode = QueueMode::All;
    let waiting = looked(&[follow_up("in_2", "f1"), follow_up("in_3", "f2")]);
    play(&mut draft, &[prompt("go"), waiting, answer(&["r1"]), answer(&["r2"])]);
    assert_eq!(said(&draft), ["user:go", "assistant:r1", "user:f1", "user:f2", "assistant:r2"]);
    let first = Some(crate::ids::PromptId::new("pr_in_2"));
    assert!(draft.receipts[1..].iter().all(|receipt| receipt.prompt_id == first));
    assert_eq!(draft.receipts.len(), 3);
}

#[test]
fn what_is_held_joins_the_next_prompt_and_owes_nothing_before() {
    let mut draft = draft();
    assert!(play(&mut draft, &[looked(&[held_steer("in_2", "extra")])]).is_empty());
    assert_eq!((draft.head.waiting, draft.head.owed_at(NOW)), (0, None));
    let first = item(
        "in_3",
        json!({"prompt": {"promptId": "pr_1", "user": "default", "input": "go", "visible": true, "source": "user"}}),
    );
    play(&mut draft, &[looked(&[held_steer("in_2", "extra"), first]), answer(&["ok"])]);
    assert_eq!(said(&draft), ["user:go", "user:extra", "assistant:ok"]);
    assert_eq!(draft.head.turn, 1, "in the first turn");
}

#[test]
fn a_steer_alone_begins_a_prompt_of_its_own() {
    let mut draft = draft();
    let told = play(&mut draft, &[looked(&[steer("in_2", "hello")])]);
    assert_eq!(told[..3], ["prompt.created", "agent_start", "turn_start"]);
}

#[test]
fn a_failed_answer_ends_the_run_and_nothing_that_waits_is_taken() {
    let mut draft = draft();
    let waiting = looked(&[follow_up("in_2", "f1")]);
    play(&mut draft, &[prompt("go"), waiting, answer_with(&[], "error")]);
    assert_eq!((draft.head.phase.clone(), draft.head.waiting), (Phase::Idle, 1));
    assert_eq!(draft.receipts.len(), 1);
}

#[test]
fn rounds_that_are_used_up_end_the_prompt_whatever_waits() {
    let mut draft = draft();
    draft.rules.rounds_max = Some(1);
    let waiting = Input::Looked(vec![Pending { item: Arc::new(steer("in_2", "more")), bytes: 1 }]);
    play(&mut draft, &[prompt("go")]);
    step(&mut draft, &waiting);
    let told = play(&mut draft, &[answer(&["done"])]);
    assert!(told.contains(&"agent_end".to_owned()));
    assert_eq!((draft.head.waiting, draft.head.owed_at(NOW)), (1, Some(NOW)));
}

fn next_turn(id: &str, text: &str) -> InboxItem {
    let message = json!({"customType": "note", "content": text, "display": true});
    let custom = json!({"promptId": format!("pr_{id}"), "user": "default", "message": message, "deliverAs": "nextTurn"});
    item(id, json!({ "custom": custom }))
}

#[test]
fn what_is_kept_for_the_next_turn_waits_for_words_of_a_person() {
    let note = next_turn("in_2", "by the way");
    let begun_by = |source: &str| {
        let prompt = json!({"promptId": "pr_3", "user": "default", "input": "go", "visible": true, "source": source});
        item("in_3", json!({ "prompt": prompt }))
    };
    let go_on = json!({"promptId": "pr_3", "user": "default", "isAnswered": true, "turn": 0});
    let refused = item("in_3", json!({ "continue": go_on }));
    for (begins, joins) in [
        (begun_by("user"), true),
        (begun_by("queue"), true),
        (begun_by("schedule"), false),
        (refused, false),
    ] {
        let mut draft = draft();
        step(&mut draft, &looked(&[note.clone(), begins]));
        step(&mut draft, &Input::TakeIn);
        let is_said = draft.entries.iter().any(|it| matches!(it.body, EntryBody::CustomMessage(_)));
        assert_eq!((is_said, draft.pending.len()), (joins, usize::from(!joins)));
    }
}

#[test]
fn a_steer_of_a_prompt_without_words_is_not_its_input() {
    let mut draft = draft();
    let wordless = item(
        "in_1",
        json!({"prompt": {"promptId": "pr_1", "user": "default", "visible": true, "source": "user"}}),
    );
    play(&mut draft, &[looked(&[wordless, steer("in_2", "more")]), answer(&["done"])]);
    assert_eq!(said(&draft), ["user:more", "assistant:done"]);
    let view = prompt_view(&crate::ids::PromptId::new("pr_1"), &draft.head, &draft.entries);
    assert_eq!(view.unwrap().input, None);
}
