//! Compaction as a step: when it starts, and the effects of its outcome.

use serde_json::Value;

use super::*;
use crate::agent::compaction::{Reason, Room, silent_overflow};
use crate::agent::entry::Compaction;
use crate::agent::settings::CompactionSettings;
use crate::agent::step::{CompactInput, Setback, Summarised, SummaryOutcome};
use crate::agent::usage::Usage;

fn window(tokens: u64) -> Draft {
    let mut draft = draft();
    draft.rules.room = Room::new(tokens, &CompactionSettings::default());
    draft
}

fn overflow() -> Input {
    let Input::Answered(mut answered) = answer_with(&[], "error") else { unreachable!() };
    answered.setback = Setback::Overflow;
    answered.message.error_message = Some("Your input exceeds the context window.".to_owned());
    Input::Answered(answered)
}

fn summary(draft: &Draft) -> Input {
    let first = draft.entries.first().unwrap().base.entry_id.clone();
    let usage = Usage { input: 7, total_tokens: 7, ..Usage::default() };
    let entry = Compaction {
        summary: "S".to_owned(),
        first_kept_entry_id: first,
        tokens_before: 9,
        details: None,
        from_hook: None,
        usage: Some(usage),
        calls: Some(1),
    };
    Input::Summarised(Box::new(Summarised {
        usage,
        calls: 1,
        outcome: SummaryOutcome::Done(Box::new(entry)),
    }))
}

fn lost_summary(text: &str, setback: Setback) -> Input {
    let outcome = SummaryOutcome::Failed { text: text.to_owned(), setback };
    let usage = Usage { input: 3, total_tokens: 3, ..Usage::default() };
    Input::Summarised(Box::new(Summarised { usage, calls: 1, outcome }))
}

fn last_end(draft: &Draft) -> Value {
    let end = draft
        .events
        .iter()
        .rev()
        .find(|event| matches!(event.body, EventBody::AutoCompactionEnd(_)));
    serde_json::to_value(&end.expect("the compaction has an end event").body).unwrap()
}

fn told_end(draft: &Draft) -> Option<String> {
    draft.entries.iter().rev().find_map(|entry| match &entry.body {
        crate::agent::entry::EntryBody::PromptEnd(end) => {
            end.error.as_ref().map(|error| error.message.clone())
        }
        _ => None,
    })
}

#[test]
fn an_answer_that_fills_the_window_is_followed_by_a_summary_and_then_the_end() {
    let mut draft = window(100_000);
    let mut told = play(&mut draft, &[prompt("go"), answer(&["done"]), Input::Crowded]);
    assert_eq!(draft.head.reader_needed(), 2, "older workers do not process it");
    let summary = summary(&draft);
    told.extend(play(&mut draft, &[summary]));
    insta::assert_snapshot!(told[8..].join("\n"), @r"
    turn_end 0
    agent_end
    prompt.completed
    auto_compaction_start
    auto_compaction_end
    agent_settled
    ");
    assert_eq!(draft.head.phase, crate::agent::phase::Phase::Idle);
    assert_eq!(draft.head.usage.total_tokens, 15 + 7, "the summary counts too");
    assert_eq!(last_end(&draft)["willRetry"], false);
    let numbers: Vec<u64> = draft.events.iter().map(|event| event.n).collect();
    assert_eq!(numbers, (1..=draft.head.event_seq).collect::<Vec<_>>());
}

#[test]
fn a_summary_between_a_tool_round_and_the_next_answer_keeps_the_prompt_running() {
    let mut draft = window(100_000);
    let round =
        [prompt("go"), answer(&["look {}"]), gate(0, Effect::Read, None), returned(0, "seen")];
    play(&mut draft, &round);
    play(&mut draft, &[Input::Crowded]);
    let summary = summary(&draft);
    let told = play(&mut draft, &[summary, Input::Crowded, answer(&["done"])]);
    assert_eq!(told[0], "auto_compaction_end");
    assert!(told.contains(&"agent_settled".to_owned()), "{told:?}");
    assert!(
        !told.contains(&"auto_compaction_start".to_owned()),
        "no new entry since: {told:?}"
    );
    let usage = draft.entries.iter().find_map(|entry| entry.body.compaction()?.usage);
    assert_eq!(usage.unwrap().input, 7);
}

#[test]
fn what_no_longer_fits_is_summed_up_and_asked_for_once_more() {
    let mut draft = window(100_000);
    let mut told = play(&mut draft, &[prompt("go"), overflow()]);
    let summary_1 = summary(&draft);
    told.extend(play(&mut draft, &[summary_1, answer(&["done"])]));
    let told: Vec<&str> =
        told.iter().map(String::as_str).filter(|line| !line.starts_with("prompt.")).collect();
    assert_eq!(last_end(&draft)["willRetry"], true);
    assert!(
        told.contains(&"auto_compaction_start") && told.last() == Some(&"agent_settled"),
        "{told:?}"
    );
    assert!(!told.iter().any(|line| line.starts_with("auto_retry")), "no retry in addition");
}

#[test]
fn a_second_overflow_fails_with_what_was_tried() {
    let mut draft = window(100_000);
    play(&mut draft, &[prompt("go"), overflow()]);
    let summary = summary(&draft);
    play(&mut draft, &[summary, overflow()]);
    assert_eq!(
        told_end(&draft).unwrap(),
        "Context overflow recovery failed: Your input exceeds the context window."
    );
    assert!(draft.head.prompt.is_none());
}

#[test]
fn a_summary_that_fails_for_good_ends_a_prompt_only_when_it_cannot_go_on_without() {
    let why = lost_summary("Summarization failed: no", Setback::Final);
    let mut draft = window(100_000);
    play(&mut draft, &[prompt("go"), overflow(), why.clone()]);
    let text = "Context overflow recovery failed: Summarization failed: no";
    assert_eq!(told_end(&draft).unwrap(), text);
    assert_eq!(last_end(&draft)["errorMessage"], text);
    let mut draft = window(100_000);
    play(&mut draft, &[prompt("go"), Input::Crowded, why]);
    assert_eq!(
        last_end(&draft)["errorMessage"],
        "Auto-compaction failed: Summarization failed: no"
    );
    assert!(matches!(draft.head.phase, crate::agent::phase::Phase::Model { .. }));
    play(&mut draft, &[answer(&["done"])]);
    assert_eq!(told_end(&draft), None, "the prompt continued");
}

#[test]
fn a_summary_is_tried_again_like_an_answer() {
    let mut draft = window(100_000);
    let passing = Setback::Passing { after: None, chance: 0.0 };
    play(&mut draft, &[prompt("go"), Input::Crowded]);
    let told = play(&mut draft, &[lost_summary("503", passing)]);
    assert_eq!(told, ["summarization_retry_scheduled"]);
    assert_eq!(draft.head.owed_at(NOW), Some(Timestamp(NOW.0 + 2_000)));
    for _ in 0..2 {
        play(&mut draft, &[lost_summary("503", passing)]);
    }
    let told = play(&mut draft, &[lost_summary("503", passing)]);
    assert_eq!(told, ["summarization_retry_finished", "auto_compaction_end"], "four attempts");
}

#[test]
fn a_summary_that_kills_its_workers_is_given_up_and_not_the_prompt() {
    let mut draft = window(100_000);
    let poison = Input::Poisoned { reason: "5 workers tried".to_owned() };
    play(&mut draft, &[prompt("go"), Input::Crowded, poison]);
    assert_eq!(last_end(&draft)["errorMessage"], "Auto-compaction failed: 5 workers tried");
    assert!(draft.head.prompt.is_some());
}

#[test]
fn a_stop_while_a_prompt_is_summed_up_ends_summary_turn_and_prompt() {
    let stopped = || {
        let outcome = SummaryOutcome::Stopped;
        Input::Summarised(Box::new(Summarised { usage: Usage::default(), calls: 1, outcome }))
    };
    let passing = Setback::Passing { after: None, chance: 0.0 };
    let end = [
        "auto_compaction_end",
        "message_start assistant:",
        "message_end assistant:",
        "turn_end 0",
        "agent_end",
        "prompt.completed",
        "agent_settled",
    ];
    for before in [vec![], vec![stopped()], vec![lost_summary("503", passing)]] {
        let mut draft = window(100_000);
        play(&mut draft, &[prompt("go"), Input::Crowded]);
        let is_tried_again = matches!(&before[..], [Input::Summarised(it)] if matches!(it.outcome, SummaryOutcome::Failed { .. }));
        play(&mut draft, &before);
        let abort = item("stop-pr_1", json!({"abort": {"promptId": "pr_1"}}));
        let told = play(&mut draft, &[looked(&[abort])]);
        let finished = is_tried_again.then_some("summarization_retry_finished");
        let expected: Vec<&str> = finished.into_iter().chain(end).collect();
        assert_eq!(told, expected);
        assert_eq!(last_end(&draft)["aborted"], true);
        let state = draft.head.prompts.last().unwrap().state;
        assert_eq!(state, crate::agent::entry::PromptState::Aborted);
        assert_eq!(draft.head.phase, crate::agent::phase::Phase::Idle);
        assert_eq!((draft.head.held.clone(), draft.head.prompt.is_none()), (None, true));
    }
}

#[test]
fn a_prompts_usage_and_receipt_have_its_summaries_and_their_failed_tries() {
    let mut draft = window(100_000);
    let passing = Setback::Passing { after: None, chance: 0.0 };
    play(
        &mut draft,
        &[prompt("go"), answer(&["look {}"]), gate(0, Effect::Read, None), returned(0, "seen")],
    );
    play(&mut draft, &[Input::Crowded, lost_summary("503", passing)]);
    let summary = summary(&draft);
    play(&mut draft, &[summary, answer(&["done"])]);
    let id = crate::ids::PromptId::new("pr_1");
    let view = crate::agent::view::prompt_view(&id, &draft.head, &draft.entries).unwrap();
    assert_eq!(view.usage.total_tokens, 15 + 3 + 7 + 15);
    assert_eq!(view.usage, draft.head.usage);
    let receipt = crate::agent::receipt::receipt(&id, &draft.entries).unwrap();
    assert_eq!((receipt.usage, receipt.model_calls, receipt.turns), (view.usage, 4, 2));
    assert_eq!(draft.head.books.spent.calls, 4);
    assert_eq!(draft.head.books.spent.total_tokens, 40);
}

fn compact(instructions: Option<&str>) -> Vec<Input> {
    let asked = CompactInput { instructions: instructions.map(ToOwned::to_owned) };
    vec![landed(InboxItem { body: asked.body(), ..item("in_9", json!({"abort": {}})) })]
}

#[test]
fn somebody_may_ask_for_it_when_nothing_runs() {
    let mut draft = window(100_000);
    play(&mut draft, &[prompt("go"), answer(&["done"])]);
    let told = play(&mut draft, &compact(Some("the prices")));
    assert_eq!(told, ["auto_compaction_start"]);
    let crate::agent::phase::Phase::Summary { reason, instructions, .. } = &draft.head.phase else {
        panic!()
    };
    assert_eq!((*reason, instructions.as_deref()), (Reason::Manual, Some("the prices")));
    let told = play(&mut draft, &[lost_summary("Already compacted", Setback::Final)]);
    assert_eq!(told, ["auto_compaction_end", "agent_settled"]);
    assert_eq!(last_end(&draft)["errorMessage"], "Already compacted");
    play(&mut draft, &compact(None));
    let outcome = SummaryOutcome::Cancelled;
    let cancelled = Summarised { usage: Usage::default(), calls: 0, outcome };
    play(&mut draft, &[Input::Summarised(Box::new(cancelled))]);
    assert_eq!(last_end(&draft)["errorMessage"], "Compaction cancelled");
    assert_eq!(last_end(&draft)["aborted"], true);
}

#[test]
fn answers_in_a_window_that_was_full_are_overflows_too() {
    let answer = |stop: &str, usage: Value| -> AssistantMessage {
        serde_json::from_str(&json!({"content": [], "api": "a", "provider": "p", "model": "m", "stopReason": stop, "timestamp": 0, "usage": usage}).to_string()).unwrap()
    };
    let of = |stop, usage| silent_overflow(&answer(stop, usage), 1_000).is_some();
    assert!(of("stop", json!({"input": 900, "cacheRead": 101})));
    assert!(!of("stop", json!({"input": 900, "cacheRead": 100})));
    assert!(of("length", json!({"input": 900, "output": 95})));
    assert!(!of("length", json!({"input": 500, "output": 95})), "the output limit was reached, not the window");
    assert!(!of("toolUse", json!({"input": 5_000})) && !of("error", json!({"input": 5_000})));
    let mut draft = window(100_000);
    let Input::Answered(mut given) = super::answer(&["cut"]) else { unreachable!() };
    given.message.usage.input = 100_001;
    play(&mut draft, &[prompt("go"), Input::Answered(given)]);
    assert!(matches!(
        draft.head.phase,
        crate::agent::phase::Phase::Summary { reason: Reason::Overflow, .. }
    ));
}
