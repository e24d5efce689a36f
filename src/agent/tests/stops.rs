//! Aborts and their receipts, and prompts that continue without a new input.

use super::*;
use crate::agent::budget::{Level, Shortage, Unit};
use crate::agent::entry::{EntryBody, PromptState};
use crate::agent::inbox::{Outcome, Receipt};
use crate::agent::phase::Phase;
use crate::agent::step::{Asks, Paying};

fn abort(prompt: &str) -> InboxItem {
    item(&format!("stop-{prompt}"), json!({"abort": {"promptId": prompt}}))
}

fn said(id: &str, mode: &str, text: &str) -> InboxItem {
    let prompt = json!({"promptId": format!("pr_{id}"), "user": "default", "whenIdle": "hold", "input": text, "visible": true, "source": "user"});
    item(id, json!({ mode: prompt }))
}

fn go_on(is_answered: bool, turn: u64) -> InboxItem {
    let input =
        json!({"promptId": "pr_9", "user": "default", "isAnswered": is_answered, "turn": turn});
    item("in_9", json!({ "continue": input }))
}

/// Applies the inputs in the driver's order: the inbox read, the given input, the drain.
fn play_with(draft: &mut Draft, waiting: &[InboxItem], done: Input) -> Vec<String> {
    let before = draft.events.len();
    for input in [looked(waiting), done, Input::TakeIn] {
        step(draft, &input);
    }
    draft.events.iter().skip(before).map(|event| line(draft, event)).collect()
}

fn receipt(draft: &Draft) -> &Receipt {
    let is_stop = |receipt: &&Receipt| receipt.input_id.as_str().starts_with("stop-");
    draft.receipts.iter().find(is_stop).expect("the abort has a receipt")
}

fn ends(draft: &Draft, state: PromptState, outcome: Outcome) {
    assert_eq!(draft.head.phase, Phase::Idle);
    assert_eq!(draft.head.prompts.last().unwrap().state, state);
    assert_eq!(receipt(draft).outcome, outcome);
    assert_eq!((draft.head.waiting, draft.pending.len()), (0, 0));
    assert_eq!(draft.events.last().unwrap().body.name(), "agent_settled");
}

#[test]
fn a_stop_before_the_answer_ends_the_turn_with_an_empty_one() {
    let mut draft = draft();
    play(&mut draft, &[prompt("go")]);
    let told = play(&mut draft, &[looked(&[abort("pr_1")])]);
    let expected = [
        "message_start assistant:",
        "message_end assistant:",
        "turn_end 0",
        "agent_end",
        "prompt.completed",
        "agent_settled",
    ];
    assert_eq!(told, expected);
    ends(&draft, PromptState::Aborted, Outcome::Landed);
}

#[test]
fn a_cut_answer_stays_and_its_prompt_is_aborted() {
    let mut draft = draft();
    play(&mut draft, &[prompt("go")]);
    let cut = answer_with(&[json!({"type": "text", "text": "par"})], "aborted");
    let told = play_with(&mut draft, &[abort("pr_1")], cut);
    assert_eq!(told[0], "message_start assistant:par");
    ends(&draft, PromptState::Aborted, Outcome::Landed);
}

#[test]
fn calls_of_an_answer_that_came_with_the_stop_do_not_run() {
    let mut draft = draft();
    play(&mut draft, &[prompt("go")]);
    let told = play_with(&mut draft, &[abort("pr_1")], answer(&["look {}", "pay {}"]));
    let results: Vec<&String> =
        told.iter().filter(|event| event.starts_with("message_end toolResult")).collect();
    assert_eq!(results, ["message_end toolResult:Operation aborted"; 2].iter().collect::<Vec<_>>());
    assert_eq!(receipt(&draft).skipped_calls, ["c0|fc_0", "c1|fc_1"]);
    ends(&draft, PromptState::Aborted, Outcome::Landed);
}

#[test]
fn a_stop_says_what_ran_what_did_not_and_what_nobody_knows() {
    let mut draft = draft();
    let calls = answer(&["nope {}", "look {}", "pay {}", "pay {\"n\": 2}"]);
    play(&mut draft, &[prompt("go"), calls, refused(0, "not found"), gate(1, Effect::Read, None)]);
    play(&mut draft, &[returned(1, "seen"), gate(2, Effect::Write, None)]);
    let told = play(&mut draft, &[looked(&[abort("pr_1")])]);
    let receipt = receipt(&draft);
    assert_eq!(receipt.ran_calls, ["c1|fc_1"]);
    assert_eq!(receipt.skipped_calls, ["c3|fc_3"]);
    assert_eq!(receipt.unknown_calls, ["c2|fc_2"]);
    let unknown = told.iter().find(|event| event.contains("outcome of this call")).unwrap();
    assert!(unknown.ends_with("(The prompt was stopped.)"), "{unknown}");
    assert_eq!(told.iter().filter(|event| event.starts_with("tool_execution_start")).count(), 1);
    assert!(draft.head.unknown_writes.contains_key("print"), "equal calls are blocked");
    ends(&draft, PromptState::Aborted, Outcome::Landed);
}

#[test]
fn a_result_that_came_with_the_stop_stands_and_nothing_comes_after_it() {
    let mut draft = draft();
    play(&mut draft, &[prompt("go"), answer(&["pay {}", "pay {}"]), gate(0, Effect::Write, None)]);
    play_with(&mut draft, &[abort("pr_1")], returned(0, "paid"));
    assert_eq!(receipt(&draft).ran_calls, ["c0|fc_0"]);
    assert_eq!(receipt(&draft).skipped_calls, ["c1|fc_1"]);
    assert!(draft.head.unknown_writes.is_empty());
    ends(&draft, PromptState::Aborted, Outcome::Landed);
}

#[test]
fn an_outcome_that_is_lost_with_the_stop_asks_nobody() {
    let mut draft = draft();
    play(&mut draft, &[prompt("go"), answer(&["pay {}"]), gate(0, Effect::Write, None)]);
    play_with(&mut draft, &[abort("pr_1")], lost(0));
    assert!(draft.head.requests.is_empty());
    assert!(draft.entries.iter().all(|entry| !matches!(entry.body, EntryBody::Request(_))));
    assert!(draft.head.unknown_writes.contains_key("print"));
    // The last call has its result, so the turn is over; the unknown outcome is stored.
    ends(&draft, PromptState::Aborted, Outcome::Landed);
}

#[test]
fn what_a_person_was_asked_is_decided_by_the_stop() {
    for (effect, is_lost) in [(Effect::Write, false), (Effect::Write, true)] {
        let mut draft = draft();
        let ask = (!is_lost).then_some("May I?");
        play(&mut draft, &[prompt("go"), answer(&["pay {}"]), gate(0, effect, ask)]);
        if is_lost {
            play(&mut draft, &[lost(0)]);
        }
        assert_eq!(draft.head.requests.len(), 1);
        let told = play(&mut draft, &[looked(&[abort("pr_1")])]);
        assert_eq!(told[0], "prompt.approval-settled");
        let decided = draft.entries.iter().find_map(|entry| match &entry.body {
            EntryBody::Decision(entry) => Some(&entry.decision),
            _ => None,
        });
        let decided = decided.expect("the request is decided");
        assert_eq!((decided.verdict, decided.decided_by.as_str()), (Verdict::Aborted, "abort"));
        let receipt = receipt(&draft);
        let told = if is_lost { &receipt.unknown_calls } else { &receipt.skipped_calls };
        assert_eq!(*told, ["c0|fc_0"]);
        assert_eq!(draft.head.unknown_writes.contains_key("print"), is_lost);
        ends(&draft, PromptState::Aborted, Outcome::Landed);
    }
}

#[test]
fn a_late_result_tells_what_the_stop_left_open() {
    let mut draft = draft();
    play(&mut draft, &[prompt("go"), answer(&["pay {}"]), gate(0, Effect::Write, None)]);
    let Phase::Calls { answer: seq, .. } = draft.head.phase else { panic!("no call is open") };
    play(&mut draft, &[looked(&[abort("pr_1")])]);
    let message = json!({"toolCallId": "c0|fc_0", "toolName": "pay", "isError": false, "timestamp": 1,
        "content": [{"type": "text", "text": "paid"}]});
    let late = json!({"lateResult": {"call": {"answer": seq, "index": 0}, "message": message}});
    play(&mut draft, &[landed(item("late-1", late.clone()))]);
    assert_eq!(draft.receipts.last().unwrap().outcome, Outcome::Landed);
    assert!(draft.head.unknown_writes.is_empty(), "the outcome is known");
    let kept = draft.entries.last().unwrap();
    let EntryBody::Custom(kept) = &kept.body else { panic!("{kept:?}") };
    assert!(kept.data.as_ref().unwrap().text().contains("paid"));
    play(&mut draft, &[landed(item("late-2", late))]);
    assert_eq!(draft.receipts.last().unwrap().outcome, Outcome::Ignored);
}

#[test]
fn a_stop_that_comes_too_late_changes_nothing() {
    let mut draft = draft();
    play(&mut draft, &[prompt("go")]);
    play_with(&mut draft, &[abort("pr_1")], answer(&["done"]));
    ends(&draft, PromptState::Completed, Outcome::Ignored);

    let mut draft = super::draft();
    play(&mut draft, &[prompt("go"), answer(&["done"])]);
    play(&mut draft, &[looked(&[abort("pr_0")])]);
    assert_eq!(receipt(&draft).outcome, Outcome::Ignored);
}

#[test]
fn a_stop_never_ends_another_prompt() {
    let mut draft = draft();
    play(&mut draft, &[prompt("go")]);
    let told = play(&mut draft, &[looked(&[abort("pr_0")])]);
    assert!(told.is_empty());
    assert_eq!(receipt(&draft).outcome, Outcome::Ignored);
    assert!(matches!(draft.head.phase, Phase::Model { .. }));
}

#[test]
fn a_stop_comes_before_steers_and_leaves_the_queues_alone() {
    for done in [answer(&["done"]), answer(&["look {}"])] {
        let mut draft = draft();
        play(&mut draft, &[prompt("go")]);
        let steer = said("in_2", "steer", "and this");
        play_with(&mut draft, &[steer, abort("pr_1")], done);
        assert_eq!(draft.head.prompts.last().unwrap().state, PromptState::Aborted);
        assert_eq!(receipt(&draft).outcome, Outcome::Landed);
        assert_eq!(draft.pending.len(), 1, "the steer waits");
    }
}

#[test]
fn a_prompt_that_waits_with_its_stop_begins_and_ends() {
    let Input::Looked(waiting) = prompt("go") else { panic!("not an inbox read") };
    let mut draft = draft();
    let stop = Pending { item: Arc::new(abort("pr_1")), bytes: 100 };
    play(&mut draft, &[Input::Looked([vec![stop], waiting].concat())]);
    ends(&draft, PromptState::Aborted, Outcome::Landed);
}

#[test]
fn going_on_says_nothing_for_the_person() {
    let mut draft = draft();
    let told = play(&mut draft, &[landed(go_on(false, 0)), answer(&["reply"])]);
    assert_eq!(
        told[..4],
        ["prompt.created", "agent_start", "turn_start", "message_start assistant:reply"]
    );
    assert_eq!(draft.receipts[0].prompt_id, Some(crate::ids::PromptId::new("pr_9")));
}

#[test]
fn going_on_from_an_answer_takes_steers_first_and_follow_ups_then() {
    let (steer, follow_up) = (said("in_2", "steer", "s1"), said("in_3", "followUp", "f1"));
    let again = said("in_4", "steer", "s2");
    for (waiting, joined, left) in
        [(vec![follow_up.clone(), steer, again], "s1", 2), (vec![follow_up], "f1", 0)]
    {
        let mut draft = draft();
        let told = play(&mut draft, &[looked(&[waiting, vec![go_on(true, 0)]].concat())]);
        let expected = format!("message_end user:{joined}");
        assert_eq!(told.last(), Some(&expected));
        assert_eq!(told.iter().filter(|event| event.contains("user:")).count(), 2, "one queued message joins");
        assert_eq!(draft.pending.len(), left, "no second poll before the response");
        assert!(matches!(draft.head.phase, Phase::Model { .. }));
    }
}

#[test]
fn going_on_from_an_answer_with_nothing_that_waits_fails_with_the_sources_text() {
    let mut draft = draft();
    play(&mut draft, &[prompt("go"), answer(&["done"])]);
    // At acceptance a message had no response yet; a prompt has run since.
    let told = play(&mut draft, &[landed(go_on(false, 0))]);
    // No turn starts.
    let expected = ["prompt.created", "agent_start", "agent_end", "prompt.error", "agent_settled"];
    assert_eq!(told, expected);
    assert!(draft.events.iter().map(|event| event.n).eq(1..=draft.head.event_seq));
    let end = draft.entries.last().unwrap();
    let EntryBody::PromptEnd(end) = &end.body else { panic!("{end:?}") };
    assert_eq!(end.error.as_ref().unwrap().message, "Cannot continue from message role: assistant");
    assert_eq!(draft.head.phase, Phase::Idle);
}

#[test]
fn a_stop_while_a_person_is_asked_for_money_is_a_stop() {
    let mut draft = draft();
    play(&mut draft, &[prompt("go")]);
    let shortage = Shortage {
        level: Level::Conversation,
        period: None,
        span: None,
        unit: Unit::Tokens,
        set: 10,
        limit: 10,
        used: 12,
    };
    let asks = Asks { approvers: Vec::new(), expires_at: NOW, look_at: NOW };
    step(&mut draft, &Input::Paying(Box::new(Paying::UsedUp { shortage, asks })));
    assert!(draft.head.is_paused());
    assert!(play(&mut draft, &[looked(&[said("in_2", "steer", "wait")])]).is_empty());
    play(&mut draft, &[looked(&[abort("pr_1")])]);
    ends(&draft, PromptState::Aborted, Outcome::Landed);
    assert!(!draft.head.is_paused() && draft.head.books.look_at.is_none());
}
