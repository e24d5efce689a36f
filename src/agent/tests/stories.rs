//! Lifecycle of prompts, as events and views.

use super::*;
use crate::agent::entry::{EntryBody, PromptState};
use crate::agent::phase::{CallStatus, Phase};
use crate::agent::view::prompt_view;

fn view(draft: &Draft) -> serde_json::Value {
    let id = crate::ids::PromptId::new("pr_1");
    serde_json::to_value(prompt_view(&id, &draft.head, &draft.entries).unwrap()).unwrap()
}

#[test]
fn a_plain_prompt_tells_every_event_in_order() {
    let mut draft = draft();
    let told = play(&mut draft, &[prompt("Hi"), answer(&["Hello"])]);
    assert_eq!(
        told,
        [
            "prompt.created",
            "agent_start",
            "turn_start",
            "message_start user:Hi",
            "message_end user:Hi",
            "message_start assistant:Hello",
            "message_end assistant:Hello",
            "prompt.output",
            "turn_end 0",
            "agent_end",
            "prompt.completed",
            "agent_settled",
        ]
    );
    assert_eq!(draft.head.phase, Phase::Idle);
    assert_eq!(view(&draft)["state"], "completed");
    assert_eq!(view(&draft)["output"][0]["content"], "Hello");
}

#[test]
fn event_numbers_and_entry_seqs_have_no_gaps() {
    let mut draft = draft();
    play(
        &mut draft,
        &[
            prompt("go"),
            answer(&["echo {}"]),
            gate(0, Effect::Read, None),
            returned(0, "x"),
            answer(&["done"]),
        ],
    );
    assert!(draft.events.iter().map(|event| event.n).eq(1..=draft.head.event_seq));
    assert!(draft.entries.iter().map(|entry| entry.base.seq).eq(1..=draft.head.seq));
}

#[test]
fn a_tool_round_is_a_turn_of_its_own() {
    let mut draft = draft();
    play(&mut draft, &[prompt("go"), answer(&["echo {}"])]);
    let told =
        play(&mut draft, &[gate(0, Effect::Read, None), returned(0, "echo:x"), answer(&["done"])]);
    assert_eq!(
        told,
        [
            "tool_execution_start echo",
            "tool_execution_end echo",
            "message_start toolResult:echo:x",
            "message_end toolResult:echo:x",
            "prompt.output",
            "turn_end 1",
            "turn_start",
            "message_start assistant:done",
            "message_end assistant:done",
            "prompt.output",
            "turn_end 0",
            "agent_end",
            "prompt.completed",
            "agent_settled",
        ]
    );
    assert_eq!(draft.head.turn, 2);
}

#[test]
fn the_intent_is_in_the_record_before_the_result() {
    let mut draft = draft();
    play(&mut draft, &[prompt("go"), answer(&["pay {}"]), gate(0, Effect::Write, None)]);
    assert!(matches!(draft.entries.last().unwrap().body, EntryBody::ToolStarted(_)));
    assert!(matches!(draft.calls()[0].status, CallStatus::Started { .. }));
}

#[test]
fn every_call_gets_exactly_one_result() {
    let mut draft = draft();
    play(&mut draft, &[prompt("go"), answer(&["a {}", "b {}", "c {}"])]);
    let inputs = [
        refused(0, "no"),
        gate(1, Effect::Read, None),
        returned(1, "1"),
        returned(1, "again"),
        gate(2, Effect::Read, None),
        returned(2, "2"),
    ];
    play(&mut draft, &inputs);
    let results: Vec<String> = draft
        .entries
        .iter()
        .filter_map(|entry| entry.body.message())
        .filter(|message| message.role() == "toolResult")
        .map(|message| {
            serde_json::to_value(message).unwrap()["content"][0]["text"]
                .as_str()
                .unwrap()
                .to_owned()
        })
        .collect();
    assert_eq!(results, ["no", "1", "2"]);
}

#[test]
fn a_gated_call_waits_and_holds_the_later_ones() {
    let mut draft = draft();
    let told = play(
        &mut draft,
        &[
            prompt("Go"),
            answer(&["first {}", "gated {}", "last {}"]),
            gate(0, Effect::Read, None),
            returned(0, "1"),
            gate(1, Effect::Write, Some("Gated")),
        ],
    );
    assert_eq!(told.last().unwrap(), "prompt.approval-requested");
    assert_eq!(draft.head.state(), crate::agent::head::State::WaitingForApproval);
    assert_eq!(draft.head.owed_at(NOW), Some(Timestamp(NOW.0 + 1_000)));
    let output = &view(&draft)["output"];
    assert_eq!(output[0]["result"]["type"], "success");
    assert_eq!(output[1]["result"], json!({"type": "pending", "reason": "Gated"}));
    assert_eq!(output.as_array().unwrap().len(), 2);
    // The call does not start while its request is open.
    assert!(play(&mut draft, &[gate(1, Effect::Write, Some("Gated"))]).is_empty());
}

#[test]
fn an_approved_call_runs_and_its_output_is_settled_in_place() {
    let mut draft = draft();
    play(&mut draft, &[prompt("Go"), answer(&["gated {}"]), gate(0, Effect::Write, Some("Gated"))]);
    let approve = decision(&draft, Verdict::Approve, None);
    let told =
        play(&mut draft, &[approve, gate(0, Effect::Write, Some("Gated")), returned(0, "paid")]);
    assert_eq!(told[..2], ["prompt.approval-settled", "tool_execution_start gated"]);
    assert!(told.contains(&"prompt.output-updated".to_owned()));
    assert_eq!(view(&draft)["output"][0]["result"], json!({"type": "success", "output": "paid"}));
    assert!(draft.head.requests.is_empty());
}

#[test]
fn an_approval_of_another_definition_is_asked_again() {
    let mut draft = draft();
    play(&mut draft, &[prompt("Go"), answer(&["gated {}"]), gate(0, Effect::Write, Some("Gated"))]);
    let approve = decision(&draft, Verdict::Approve, None);
    let Input::Prepared { gate: Gate::Open(mut changed), .. } =
        gate(0, Effect::Write, Some("Changed"))
    else {
        panic!()
    };
    changed.binding = "another".to_owned();
    let told =
        play(&mut draft, &[approve, Input::Prepared { index: 0, gate: Gate::Open(changed) }]);
    assert_eq!(told.last().unwrap(), "prompt.approval-requested");
    assert_eq!(draft.head.requests.len(), 1);
    assert_eq!(
        draft.head.requests[0].reason,
        "The tool changed after this call was approved, so it needs a new decision. Changed"
    );
}

#[test]
fn rejected_call_never_runs_and_model_receives_rejection() {
    let rejection = |reason: Option<&str>| match reason {
        Some(reason) => json!({"by": "default", "reason": reason}),
        None => json!({"by": "default"}),
    };
    for (verdict, reason, result, model_text) in [
        (
            Verdict::Reject,
            None,
            json!({"type": "error", "error": "Rejected by user", "rejected": rejection(None)}),
            "Rejected by user",
        ),
        (
            Verdict::Reject,
            Some("paid by hand"),
            json!({"type": "error", "error": "paid by hand", "rejected": rejection(Some("paid by hand"))}),
            "Rejected by user: paid by hand",
        ),
        (
            Verdict::Expired,
            None,
            json!({"type": "error", "error": "Approval expired"}),
            "Approval expired",
        ),
    ] {
        let mut draft = draft();
        play(
            &mut draft,
            &[prompt("Go"), answer(&["gated {}"]), gate(0, Effect::Write, Some("Gated"))],
        );
        let decided = decision(&draft, verdict, reason);
        let told = play(&mut draft, &[decided]);
        let position = |event: &str| told.iter().position(|it| it == event);
        let (start, end) =
            (position("tool_execution_start gated"), position("tool_execution_end gated error"));
        assert!(start.is_some() && start < end, "{told:?}");
        assert_eq!(view(&draft)["output"][0]["result"], result);
        assert_eq!(results(&draft.entries), [model_text]);
        assert_eq!(draft.head.phase, Phase::Model { attempt: 1, not_before: None });
    }
}

#[test]
fn a_decision_nobody_waits_for_changes_nothing() {
    let mut draft = draft();
    play(&mut draft, &[prompt("Go"), answer(&["gated {}"]), gate(0, Effect::Write, Some("Gated"))]);
    let approve = decision(&draft, Verdict::Approve, None);
    play(
        &mut draft,
        &[approve.clone(), gate(0, Effect::Write, Some("Gated")), returned(0, "paid")],
    );
    assert!(play(&mut draft, &[approve]).is_empty());
    assert_eq!(draft.receipts.last().unwrap().outcome, crate::agent::inbox::Outcome::Ignored);
}

#[test]
fn a_failed_answer_ends_the_prompt_and_stays_in_the_record() {
    let mut draft = draft();
    let told = play(
        &mut draft,
        &[prompt("go"), answer_with(&[json!({"type": "text", "text": "par"})], "error")],
    );
    assert_eq!(
        told[5..],
        [
            "message_start assistant:par",
            "message_end assistant:par",
            "prompt.output",
            "turn_end 0",
            "agent_end",
            "prompt.error",
            "agent_settled"
        ]
    );
    let view = view(&draft);
    assert_eq!(view["state"], "failed");
    assert_eq!(view["error"], json!({"type": "model", "message": "503 service unavailable"}));
}

#[test]
fn calls_of_a_length_cut_answer_are_failed_and_not_run() {
    let mut draft = draft();
    let call = json!({"type": "toolCall", "id": "c1", "name": "pay", "arguments": {}});
    play(&mut draft, &[prompt("go"), answer_with(&[call], "length")]);
    assert!(!draft.entries.iter().any(|entry| matches!(entry.body, EntryBody::ToolStarted(_))));
    assert_eq!(view(&draft)["output"][0]["result"]["type"], "error");
    assert_eq!(draft.head.phase, Phase::Model { attempt: 1, not_before: None });
}

#[test]
fn rounds_are_bounded_and_the_end_says_so() {
    let mut draft = draft();
    play(&mut draft, &[prompt("go")]);
    for _ in 0..25 {
        play(&mut draft, &[answer(&["echo {}"]), gate(0, Effect::Read, None), returned(0, "x")]);
    }
    let view = view(&draft);
    assert_eq!((&view["state"], &view["stopReason"]), (&json!("completed"), &json!("max_rounds")));
    let last = view["output"].as_array().unwrap().last().unwrap().clone();
    assert_eq!(last["content"], "Exceeded maximum number of rounds (25). Stopping.");
}

#[test]
fn the_hard_limit_has_its_own_words() {
    let mut draft = draft();
    draft.rules.rounds_max = None;
    draft.rules.hard_rounds_max = 2;
    play(&mut draft, &[prompt("go")]);
    for _ in 0..2 {
        play(&mut draft, &[answer(&["echo {}"]), gate(0, Effect::Read, None), returned(0, "x")]);
    }
    let last = view(&draft)["output"].as_array().unwrap().last().unwrap().clone();
    assert_eq!(last["content"], "Stopped after 2 rounds: the service's hard limit.");
}

#[test]
fn a_write_whose_answer_is_lost_asks_a_person_and_equal_calls_do_not_start() {
    let mut draft = draft();
    play(
        &mut draft,
        &[prompt("go"), answer(&["pay {}", "pay {}"]), gate(0, Effect::Write, None), lost(0)],
    );
    assert_eq!(draft.head.requests[0].kind, crate::agent::request::RequestKind::Outcome);
    assert_eq!(draft.head.unknown_writes.len(), 1);
    let settled = decision(&draft, Verdict::DidNotHappen, None);
    play(&mut draft, &[settled]);
    assert!(draft.head.unknown_writes.is_empty());
    play(&mut draft, &[gate(1, Effect::Write, None)]);
    assert!(matches!(draft.calls()[1].status, CallStatus::Started { .. }));
}

#[test]
fn a_told_unknown_outcome_blocks_the_same_call_for_good() {
    let mut draft = draft();
    let Input::Prepared { gate: Gate::Open(mut start), .. } = gate(0, Effect::Write, None) else {
        panic!()
    };
    start.on_unknown = OnUnknown::Tell;
    let prepared = Input::Prepared { index: 0, gate: Gate::Open(start) };
    play(&mut draft, &[prompt("go"), answer(&["pay {}", "pay {}"]), prepared, lost(0)]);
    assert!(draft.head.requests.is_empty());
    let told = play(&mut draft, &[gate(1, Effect::Write, None)]);
    assert!(told.contains(&"tool_execution_end pay error".to_owned()));
}

#[test]
fn again_runs_the_same_effect_once_more_without_asking_twice() {
    let mut draft = draft();
    play(&mut draft, &[prompt("go"), answer(&["pay {}"]), gate(0, Effect::Write, Some("Gated"))]);
    let approve = decision(&draft, Verdict::Approve, None);
    play(&mut draft, &[approve, gate(0, Effect::Write, Some("Gated")), lost(0)]);
    let again = decision(&draft, Verdict::Again, None);
    play(&mut draft, &[again, gate(0, Effect::Write, Some("Gated"))]);
    let effects: Vec<_> = draft
        .entries
        .iter()
        .filter_map(|entry| {
            if let EntryBody::ToolStarted(started) = &entry.body { Some(started) } else { None }
        })
        .map(|started| (started.effect_id.to_string(), started.attempt))
        .collect();
    assert_eq!(effects.len(), 2);
    assert_eq!(effects[0].0, effects[1].0);
    assert_eq!((effects[0].1, effects[1].1), (1, 2));
}

#[test]
fn a_take_over_reruns_reads_and_leaves_writes_for_a_person() {
    for (effect, is_ready) in
        [(Effect::Read, true), (Effect::Idempotent, true), (Effect::Write, false)]
    {
        let mut draft = draft();
        play(
            &mut draft,
            &[prompt("go"), answer(&["tool {}"]), gate(0, effect, None), Input::TakenOver],
        );
        assert_eq!(draft.calls()[0].status == CallStatus::Ready, is_ready, "{effect:?}");
    }
}

#[test]
fn a_late_result_settles_what_a_person_was_asked() {
    let mut draft = draft();
    play(&mut draft, &[prompt("go"), answer(&["pay {}"]), gate(0, Effect::Write, None), lost(0)]);
    let Phase::Calls { answer, .. } = draft.head.phase.clone() else { panic!() };
    let body = json!({"lateResult": {"call": {"answer": answer, "index": 0}, "message":
        {"toolCallId": "c0|fc_0", "toolName": "pay", "content": [{"type": "text", "text": "paid"}], "isError": false, "timestamp": 1}}});
    play(&mut draft, &[landed(item("late-1", body))]);
    assert!(draft.head.requests.is_empty() && draft.head.unknown_writes.is_empty());
    assert_eq!(view(&draft)["output"][0]["result"], json!({"type": "success", "output": "paid"}));
}

#[test]
fn a_poisoned_step_fails_the_prompt_and_the_conversation_goes_on() {
    let mut draft = draft();
    play(
        &mut draft,
        &[
            prompt("go"),
            answer(&["a {}", "b {}"]),
            gate(0, Effect::Write, None),
            Input::Poisoned { reason: "five claims".to_owned() },
        ],
    );
    let view = view(&draft);
    assert_eq!(view["state"], "failed");
    assert_eq!(view["error"]["type"], "poisoned");
    assert_eq!(view["output"].as_array().unwrap().len(), 2);
    assert_eq!(draft.head.phase, Phase::Idle);
    let told = play(&mut draft, &[prompt("next")]);
    assert_eq!(told[0], "prompt.created");
}

#[test]
fn a_call_that_kills_its_workers_ends_its_turn_with_the_reason() {
    let mut draft = draft();
    play(&mut draft, &[prompt("go")]);
    let told = play(&mut draft, &[Input::Poisoned { reason: "five claims".to_owned() }]);
    let expected = [
        "message_start assistant:",
        "message_end assistant:",
        "turn_end 0",
        "agent_end",
        "prompt.error",
        "agent_settled",
    ];
    assert_eq!(told, expected);
    let view = view(&draft);
    assert_eq!((&view["state"], &view["error"]["type"]), (&json!("failed"), &json!("poisoned")));
    assert_eq!(view["output"], json!([]));
}

#[test]
fn a_second_prompt_waits_for_the_first() {
    let mut draft = draft();
    play(&mut draft, &[prompt("one")]);
    assert!(play(&mut draft, &[prompt("two")]).is_empty());
    assert_eq!((draft.receipts.len(), draft.head.waiting), (1, 1));
    // A failed response ends the run; the waiting prompt is pending work.
    let told = play(&mut draft, &[answer_with(&[], "error")]);
    assert!(told.contains(&"agent_end".to_owned()));
    assert!(!told.contains(&"agent_settled".to_owned()), "a prompt still waits");
    assert_eq!(draft.head.owed_at(NOW), Some(NOW));
    assert_eq!(draft.head.prompts[0].state, PromptState::Failed);
}

#[test]
fn the_same_inputs_on_the_same_head_give_the_same_draft() {
    let inputs = [
        prompt("go"),
        answer(&["x {\"a\":1}"]),
        gate(0, Effect::Read, None),
        returned(0, "r"),
        answer(&["done"]),
    ];
    let (mut one, mut two) = (draft(), draft());
    play(&mut one, &inputs);
    play(&mut two, &inputs);
    assert_eq!((one.head, one.entries, one.events), (two.head, two.entries, two.events));
}
