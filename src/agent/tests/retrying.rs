//! Retries of failed model calls.

use super::*;
use crate::agent::entry::PromptState;
use crate::agent::phase::Phase;
use crate::agent::projection::{convert, messages};
use crate::agent::settings::Retry;
use crate::agent::view::{RetryView, prompt_view};

/// A response that breaks off with a transient failure.
fn failing(said: &str) -> Input {
    let Input::Answered(mut answered) =
        answer_with(&[json!({"type": "text", "text": said})], "error")
    else {
        panic!("not a response")
    };
    answered.setback = Setback::Passing { after: None, chance: 0.0 };
    Input::Answered(answered)
}

fn view(draft: &Draft) -> serde_json::Value {
    let id = crate::ids::PromptId::new("pr_1");
    serde_json::to_value(prompt_view(&id, &draft.head, &draft.entries).unwrap()).unwrap()
}

#[test]
fn a_call_that_fails_twice_is_made_a_third_time() {
    let mut draft = draft();
    play(&mut draft, &[prompt("go")]);
    let told = play(&mut draft, &[failing("par")]);
    assert_eq!(
        told,
        [
            "message_start assistant:par",
            "message_end assistant:par",
            "turn_end 0",
            "agent_end will retry",
            "message_reset",
            "auto_retry_start 1 of 3 in 2000",
        ]
    );
    assert_eq!(draft.head.owed_at(NOW), Some(Timestamp(NOW.0 + 2_000)), "the phase stores the retry time");
    assert_eq!(view(&draft)["state"], "running");
    assert_eq!(view(&draft)["retry"]["attempt"], 1);
    assert_eq!(view(&draft)["output"], json!([]), "the failed output is void");

    let told = play(&mut draft, &[failing("part")]);
    assert_eq!(told[..2], ["agent_start", "turn_start"]);
    assert_eq!(told.last().unwrap(), "auto_retry_start 2 of 3 in 4000");
    let told = play(&mut draft, &[answer(&["partial no more"])]);
    assert_eq!(
        told,
        [
            "agent_start",
            "turn_start",
            "message_start assistant:partial no more",
            "message_end assistant:partial no more",
            "auto_retry_end 2 None",
            "prompt.output",
            "turn_end 0",
            "agent_end",
            "prompt.completed",
            "agent_settled",
        ]
    );
    let view = view(&draft);
    assert_eq!((&view["state"], &view["retry"]), (&json!("completed"), &json!(null)));
    assert_eq!(view["output"].as_array().unwrap().len(), 1);
    assert_eq!(view["usage"]["totalTokens"], 45, "failed attempts count too");
    assert_eq!(draft.head.turn, 3);
}

#[test]
fn failed_answers_stay_in_the_record_and_out_of_the_context() {
    let mut draft = draft();
    play(&mut draft, &[prompt("go"), failing("par"), answer(&["whole"])]);
    let spoken: Vec<_> = messages(&draft.entries);
    assert_eq!(spoken.len(), 3);
    let sent = convert(spoken);
    let said: Vec<_> = sent.iter().map(|message| message.role()).collect();
    assert_eq!(said, ["user", "assistant"]);
    let ids: std::collections::HashSet<_> =
        draft.entries.iter().map(|entry| entry.base.entry_id.clone()).collect();
    assert_eq!(ids.len(), draft.entries.len(), "each attempt is a separate message");
}

#[test]
fn each_end_of_the_agent_names_the_messages_since_its_beginning() {
    let mut draft = draft();
    play(&mut draft, &[prompt("go"), failing("par"), answer(&["whole"])]);
    let spans: Vec<usize> = draft
        .events
        .iter()
        .filter_map(|event| match &event.body {
            EventBody::AgentEnd(end) => Some(end.from_seq..=end.to_seq),
            _ => None,
        })
        .map(|span| {
            let of_span = draft.entries.iter().filter(|entry| span.contains(&entry.base.seq));
            of_span.filter(|entry| entry.body.message().is_some()).count()
        })
        .collect();
    assert_eq!(spans, [2, 1], "user message and failure, then the response alone");
}

#[test]
fn when_the_tries_are_used_up_the_prompt_fails_with_the_last_error() {
    let mut draft = draft();
    play(&mut draft, &[prompt("go"), failing("1"), failing("2"), failing("3")]);
    let told = play(&mut draft, &[failing("4")]);
    assert_eq!(
        told[2..],
        [
            "message_start assistant:4",
            "message_end assistant:4",
            "prompt.output",
            "turn_end 0",
            "agent_end",
            "auto_retry_end 3 Some(\"503 service unavailable\")",
            "prompt.error",
            "agent_settled",
        ]
    );
    assert_eq!((view(&draft)["state"].as_str(), draft.head.phase), (Some("failed"), Phase::Idle));
}

#[test]
fn an_answer_sets_the_count_back() {
    let mut draft = draft();
    play(&mut draft, &[prompt("go"), failing("1"), failing("2"), answer(&["echo {}"])]);
    play(&mut draft, &[gate(0, Effect::Read, None), returned(0, "x")]);
    let told = play(&mut draft, &[failing("3")]);
    assert_eq!(told.last().unwrap(), "auto_retry_start 1 of 3 in 2000");
    assert_eq!(draft.head.prompt.as_ref().unwrap().rounds, 1, "a failure does not count as a round");
}

#[test]
fn what_fails_for_good_is_not_tried_again() {
    let without = Retry { enabled: false, ..Retry::default() };
    for (retry, input) in [
        (without, failing("par")),
        (Retry::default(), answer_with(&[json!({"type": "text", "text": "par"})], "error")),
    ] {
        let mut draft = draft();
        draft.rules.retry = retry;
        let told = play(&mut draft, &[prompt("go"), input]);
        assert!(!told.iter().any(|line| line.contains("retry")), "{told:?}");
        assert_eq!(draft.head.prompts[0].state, PromptState::Failed);
    }
}

#[test]
fn a_steer_during_the_wait_begins_the_agent_anew_and_does_not_shorten_it() {
    let mut draft = draft();
    play(&mut draft, &[prompt("go"), failing("par")]);
    let body = json!({"promptId": "pr_2", "user": "default", "input": "also", "visible": true, "source": "user"});
    let told = play(&mut draft, &[looked(&[item("in_2", json!({"steer": body}))])]);
    assert_eq!(
        told,
        ["agent_start", "turn_start", "message_start user:also", "message_end user:also"]
    );
    assert_eq!(draft.head.owed_at(NOW), Some(Timestamp(NOW.0 + 2_000)));
    let told = play(&mut draft, &[answer(&["both"])]);
    assert_eq!(
        told[..3],
        ["message_start assistant:both", "message_end assistant:both", "auto_retry_end 1 None"]
    );
}

#[test]
fn what_waits_is_stored_whole() {
    let mut draft = draft();
    play(&mut draft, &[prompt("go"), failing("par")]);
    let stored = serde_json::to_string(&draft.head).unwrap();
    assert_eq!(serde_json::from_str::<Head>(&stored).unwrap(), draft.head);
    let failed = draft.entries.last().unwrap();
    let stored = serde_json::to_string(failed).unwrap();
    let read: Entry = serde_json::from_str(&stored).unwrap();
    assert_eq!(&read, failed.as_ref());
    assert!(stored.contains("\"isRetried\":true"), "{stored}");
}

#[test]
fn an_end_while_it_waits_is_told_once() {
    let mut draft = draft();
    play(&mut draft, &[prompt("go"), failing("par")]);
    assert!(RetryView::of(&draft.head).is_some());
    let told = play(&mut draft, &[Input::Poisoned { reason: "five workers".to_owned() }]);
    assert_eq!(
        told,
        ["auto_retry_end 1 Some(\"five workers\")", "prompt.error", "agent_settled"],
        "the run ended with the failed response"
    );
    assert_eq!(RetryView::of(&draft.head), None);
}
