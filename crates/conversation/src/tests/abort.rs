//! Aborts and their receipts, and prompts that continue without a new input.

use super::*;
use crate::budget::{BudgetExceeded, BudgetLevel, BudgetUnit};
use crate::entry::{EntryBody, PromptState};
use crate::inbox::{InputOutcome, Receipt};
use crate::phase::Phase;
use crate::step::{BudgetApprovalSpec, BudgetInput};

fn abort(prompt: &str) -> InboxItem {
    item(&format!("stop-{prompt}"), json!({"abort": {"promptId": prompt}}))
}

fn queued_input(id: &str, mode: &str, text: &str) -> InboxItem {
    let prompt = json!({"promptId": format!("pr_{id}"), "user": "default", "whenIdle": "hold", "input": text, "visible": true, "source": "user"});
    item(id, json!({ mode: prompt }))
}

fn continue_item(is_answered: bool, turn: u64) -> InboxItem {
    let input =
        json!({"promptId": "pr_9", "user": "default", "isAnswered": is_answered, "turn": turn});
    item("in_9", json!({ "continue": input }))
}

/// Applies the inputs in the driver's order: the inbox read, the given input, the drain.
fn apply_with_inbox(
    transition: &mut Transition,
    waiting: &[InboxItem],
    given_input: Input,
) -> Vec<String> {
    let before = transition.events.len();
    for input in [inbox_read(waiting), given_input, Input::DrainInbox] {
        step(transition, &input);
    }
    transition.finish();
    transition.events.iter().skip(before).map(|event| event_line(transition, event)).collect()
}

fn abort_receipt(transition: &Transition) -> &Receipt {
    let is_abort = |receipt: &&Receipt| receipt.input_id.as_str().starts_with("stop-");
    transition.receipts.iter().find(is_abort).expect("the abort has a receipt")
}

fn assert_ended(transition: &Transition, state: PromptState, outcome: InputOutcome) {
    assert_eq!(transition.head.phase, Phase::Idle);
    assert_eq!(transition.head.prompts.last().unwrap().state, state);
    assert_eq!(abort_receipt(transition).outcome, outcome);
    assert_eq!((transition.head.waiting_items, transition.pending.len()), (0, 0));
    assert_eq!(transition.events.last().unwrap().body.name(), "agent_settled");
}

#[test]
fn abort_before_response_ends_turn_with_empty_response() {
    let mut transition = transition();
    apply_inputs(&mut transition, &[prompt("go")]);
    let events = apply_inputs(&mut transition, &[inbox_read(&[abort("pr_1")])]);
    let expected = [
        "message_start assistant:",
        "message_end assistant:",
        "turn_end 0",
        "agent_end",
        "prompt.completed",
        "agent_settled",
    ];
    assert_eq!(events, expected);
    assert_ended(&transition, PromptState::Aborted, InputOutcome::Applied);
}

#[test]
fn aborted_response_is_stored() {
    let mut transition = transition();
    apply_inputs(&mut transition, &[prompt("go")]);
    let cut = response_with(&[json!({"type": "text", "text": "par"})], "aborted");
    let events = apply_with_inbox(&mut transition, &[abort("pr_1")], cut);
    assert_eq!(events[0], "message_start assistant:par");
    assert_ended(&transition, PromptState::Aborted, InputOutcome::Applied);
}

#[test]
fn abort_skips_calls_of_simultaneous_response() {
    let mut transition = transition();
    apply_inputs(&mut transition, &[prompt("go")]);
    let events =
        apply_with_inbox(&mut transition, &[abort("pr_1")], response(&["look {}", "pay {}"]));
    let results: Vec<&String> =
        events.iter().filter(|event| event.starts_with("message_end toolResult")).collect();
    assert_eq!(results, ["message_end toolResult:Operation aborted"; 2].iter().collect::<Vec<_>>());
    assert_eq!(abort_receipt(&transition).skipped_calls, ["c0|fc_0", "c1|fc_1"]);
    assert_ended(&transition, PromptState::Aborted, InputOutcome::Applied);
}

#[test]
fn abort_receipt_lists_ran_skipped_and_unknown_calls() {
    let mut transition = transition();
    let calls = response(&["nope {}", "look {}", "pay {}", "pay {\"n\": 2}"]);
    apply_inputs(
        &mut transition,
        &[prompt("go"), calls, rejected_call(0, "not found"), admitted_call(1, Effect::Read, None)],
    );
    apply_inputs(
        &mut transition,
        &[returned_call(1, "seen"), admitted_call(2, Effect::Write, None)],
    );
    let events = apply_inputs(&mut transition, &[inbox_read(&[abort("pr_1")])]);
    let receipt = abort_receipt(&transition);
    assert_eq!(receipt.ran_calls, ["c1|fc_1"]);
    assert_eq!(receipt.skipped_calls, ["c3|fc_3"]);
    assert_eq!(receipt.outcome_unknown_calls, ["c2|fc_2"]);
    let unknown = events.iter().find(|event| event.contains("outcome of this call")).unwrap();
    assert!(unknown.ends_with("(The prompt was stopped.)"), "{unknown}");
    assert_eq!(events.iter().filter(|event| event.starts_with("tool_execution_start")).count(), 1);
    assert!(transition.head.indeterminate_writes.contains_key("print"), "equal calls are blocked");
    assert_ended(&transition, PromptState::Aborted, InputOutcome::Applied);
}

#[test]
fn abort_keeps_simultaneous_result_and_skips_the_rest() {
    let mut transition = transition();
    apply_inputs(
        &mut transition,
        &[prompt("go"), response(&["pay {}", "pay {}"]), admitted_call(0, Effect::Write, None)],
    );
    apply_with_inbox(&mut transition, &[abort("pr_1")], returned_call(0, "paid"));
    assert_eq!(abort_receipt(&transition).ran_calls, ["c0|fc_0"]);
    assert_eq!(abort_receipt(&transition).skipped_calls, ["c1|fc_1"]);
    assert!(transition.head.indeterminate_writes.is_empty());
    assert_ended(&transition, PromptState::Aborted, InputOutcome::Applied);
}

#[test]
fn lost_outcome_creates_no_request_during_abort() {
    let mut transition = transition();
    apply_inputs(
        &mut transition,
        &[prompt("go"), response(&["pay {}"]), admitted_call(0, Effect::Write, None)],
    );
    apply_with_inbox(&mut transition, &[abort("pr_1")], lost_result(0));
    assert!(transition.head.requests.is_empty());
    assert!(transition.entries.iter().all(|entry| !matches!(entry.body, EntryBody::Request(_))));
    assert!(transition.head.indeterminate_writes.contains_key("print"));
    // The last call has its result, so the turn is over; the unknown outcome is stored.
    assert_ended(&transition, PromptState::Aborted, InputOutcome::Applied);
}

#[test]
fn abort_decides_open_requests() {
    for (effect, is_lost) in [(Effect::Write, false), (Effect::Write, true)] {
        let mut transition = transition();
        let ask = (!is_lost).then_some("May I?");
        apply_inputs(
            &mut transition,
            &[prompt("go"), response(&["pay {}"]), admitted_call(0, effect, ask)],
        );
        if is_lost {
            apply_inputs(&mut transition, &[lost_result(0)]);
        }
        assert_eq!(transition.head.requests.len(), 1);
        let reported = apply_inputs(&mut transition, &[inbox_read(&[abort("pr_1")])]);
        assert_eq!(reported[0], "prompt.approval-settled");
        let decision_entry = transition.entries.iter().find_map(|entry| match &entry.body {
            EntryBody::Decision(entry) => Some(&entry.decision),
            _ => None,
        });
        let decision_entry = decision_entry.expect("the request is decided");
        assert_eq!(
            (decision_entry.verdict, decision_entry.decided_by.as_str()),
            (Verdict::Aborted, "abort")
        );
        let receipt = abort_receipt(&transition);
        let reported =
            if is_lost { &receipt.outcome_unknown_calls } else { &receipt.skipped_calls };
        assert_eq!(*reported, ["c0|fc_0"]);
        assert_eq!(transition.head.indeterminate_writes.contains_key("print"), is_lost);
        assert_ended(&transition, PromptState::Aborted, InputOutcome::Applied);
    }
}

#[test]
fn late_result_after_abort_settles_unknown_outcome() {
    let mut transition = transition();
    apply_inputs(
        &mut transition,
        &[prompt("go"), response(&["pay {}"]), admitted_call(0, Effect::Write, None)],
    );
    let Phase::Calls { response_seq: seq, .. } = transition.head.phase else {
        panic!("no call is open")
    };
    apply_inputs(&mut transition, &[inbox_read(&[abort("pr_1")])]);
    let message = json!({"toolCallId": "c0|fc_0", "toolName": "pay", "isError": false, "timestamp": 1,
        "content": [{"type": "text", "text": "paid"}]});
    let late = json!({"lateResult": {"call": {"answer": seq, "index": 0}, "message": message}});
    apply_inputs(&mut transition, &[inbox_read_one(item("late-1", late.clone()))]);
    assert_eq!(transition.receipts.last().unwrap().outcome, InputOutcome::Applied);
    assert!(transition.head.indeterminate_writes.is_empty(), "the outcome is known");
    let stored = transition.entries.last().unwrap();
    let EntryBody::Custom(stored) = &stored.body else { panic!("{stored:?}") };
    assert!(stored.data.as_ref().unwrap().text().contains("paid"));
    apply_inputs(&mut transition, &[inbox_read_one(item("late-2", late))]);
    assert_eq!(transition.receipts.last().unwrap().outcome, InputOutcome::Ignored);
}

#[test]
fn late_abort_is_ignored() {
    let mut transition = transition();
    apply_inputs(&mut transition, &[prompt("go")]);
    apply_with_inbox(&mut transition, &[abort("pr_1")], response(&["done"]));
    assert_ended(&transition, PromptState::Completed, InputOutcome::Ignored);

    let mut transition = super::transition();
    apply_inputs(&mut transition, &[prompt("go"), response(&["done"])]);
    apply_inputs(&mut transition, &[inbox_read(&[abort("pr_0")])]);
    assert_eq!(abort_receipt(&transition).outcome, InputOutcome::Ignored);
}

#[test]
fn abort_never_ends_another_prompt() {
    let mut transition = transition();
    apply_inputs(&mut transition, &[prompt("go")]);
    let events = apply_inputs(&mut transition, &[inbox_read(&[abort("pr_0")])]);
    assert!(events.is_empty());
    assert_eq!(abort_receipt(&transition).outcome, InputOutcome::Ignored);
    assert!(matches!(transition.head.phase, Phase::Model { .. }));
}

#[test]
fn abort_precedes_steers_and_keeps_queues() {
    for done in [response(&["done"]), response(&["look {}"])] {
        let mut transition = transition();
        apply_inputs(&mut transition, &[prompt("go")]);
        let steer = queued_input("in_2", "steer", "and this");
        apply_with_inbox(&mut transition, &[steer, abort("pr_1")], done);
        assert_eq!(transition.head.prompts.last().unwrap().state, PromptState::Aborted);
        assert_eq!(abort_receipt(&transition).outcome, InputOutcome::Applied);
        assert_eq!(transition.pending.len(), 1, "the steer waits");
    }
}

#[test]
fn queued_prompt_with_abort_starts_and_ends() {
    let Input::InboxRead(waiting) = prompt("go") else { panic!("not an inbox read") };
    let mut transition = transition();
    let abort_item = PendingItem { item: Arc::new(abort("pr_1")), bytes: 100, is_new: false };
    apply_inputs(&mut transition, &[Input::InboxRead([vec![abort_item], waiting].concat())]);
    assert_ended(&transition, PromptState::Aborted, InputOutcome::Applied);
}

#[test]
fn continue_appends_no_user_message() {
    let mut transition = transition();
    let events = apply_inputs(
        &mut transition,
        &[inbox_read_one(continue_item(false, 0)), response(&["reply"])],
    );
    assert_eq!(
        events[..4],
        ["prompt.created", "agent_start", "turn_start", "message_start assistant:reply"]
    );
    assert_eq!(
        transition.receipts[0].prompt_id,
        Some(turnwheel_platform::ids::PromptId::new("pr_9"))
    );
}

#[test]
fn continue_after_response_prefers_steers_to_follow_ups() {
    let (steer, follow_up) =
        (queued_input("in_2", "steer", "s1"), queued_input("in_3", "followUp", "f1"));
    let again = queued_input("in_4", "steer", "s2");
    for (waiting, joined, left) in
        [(vec![follow_up.clone(), steer, again], "s1", 2), (vec![follow_up], "f1", 0)]
    {
        let mut transition = transition();
        let events = apply_inputs(
            &mut transition,
            &[inbox_read(&[waiting, vec![continue_item(true, 0)]].concat())],
        );
        let expected = format!("message_end user:{joined}");
        assert_eq!(events.last(), Some(&expected));
        assert_eq!(
            events.iter().filter(|event| event.contains("user:")).count(),
            2,
            "one queued message joins"
        );
        assert_eq!(transition.pending.len(), left, "no second poll before the response");
        assert!(matches!(transition.head.phase, Phase::Model { .. }));
    }
}

#[test]
fn continue_after_response_fails_with_empty_queue() {
    let mut transition = transition();
    apply_inputs(&mut transition, &[prompt("go"), response(&["done"])]);
    // At acceptance a message had no response yet; a prompt has run since.
    let events = apply_inputs(&mut transition, &[inbox_read_one(continue_item(false, 0))]);
    // No turn starts.
    let expected = ["prompt.created", "agent_start", "agent_end", "prompt.error", "agent_settled"];
    assert_eq!(events, expected);
    assert!(transition.events.iter().map(|event| event.n).eq(1..=transition.head.event_seq));
    let end = transition.entries.last().unwrap();
    let EntryBody::PromptEnd(end) = &end.body else { panic!("{end:?}") };
    assert_eq!(end.error.as_ref().unwrap().message, "Cannot continue from message role: assistant");
    assert_eq!(transition.head.phase, Phase::Idle);
}

#[test]
fn abort_ends_prompt_waiting_for_budget_decision() {
    let mut transition = transition();
    apply_inputs(&mut transition, &[prompt("go")]);
    let exceeded = BudgetExceeded {
        level: BudgetLevel::Conversation,
        period: None,
        date: None,
        unit: BudgetUnit::Tokens,
        configured_limit: 10,
        limit: 10,
        used: 12,
    };
    let approval = BudgetApprovalSpec { approvers: Vec::new(), expires_at: NOW, recheck_at: NOW };
    step(
        &mut transition,
        &Input::BudgetChecked(Box::new(BudgetInput::AccountExceeded { exceeded, approval })),
    );
    assert!(transition.head.is_waiting_for_budget());
    assert!(
        apply_inputs(&mut transition, &[inbox_read(&[queued_input("in_2", "steer", "wait")])])
            .is_empty()
    );
    apply_inputs(&mut transition, &[inbox_read(&[abort("pr_1")])]);
    assert_ended(&transition, PromptState::Aborted, InputOutcome::Applied);
    assert!(
        !transition.head.is_waiting_for_budget() && transition.head.metering.recheck_at.is_none()
    );
}
