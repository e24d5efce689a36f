//! Tests of responses, bounds, the messages in a head and the document of a profile.

use std::time::Duration;

use serde_json::json;

use super::document::{
    ATTEMPTS_MAX, LEARNING_MIN, Posting, ProfileDocument, UNSEEN_MAX, UnseenMessage,
};
use super::messages::{MESSAGES_MAX, PASS_ON_WITHIN, ProfileMessage, ProfileMessages};
use super::*;
use crate::entry::{EntryBody, PromptEnd, PromptState, PromptStop};
use crate::step::{record_messages, step};
use crate::tests::{NOW, prompt, transition};
use crate::transition::Transition;
use crate::unknown_members::Extra;
use turnwheel_platform::ids::ConversationId;

fn fields(who: &str) -> ProfileFields {
    ProfileFields { who: who.to_owned(), ..ProfileFields::default() }
}

#[test]
fn response_is_skip_or_an_object_of_texts() {
    for (response, update) in [
        ("SKIP", Ok(ProfileUpdate::Unchanged)),
        (" \"skip\".\n", Ok(ProfileUpdate::Unchanged)),
        ("```\nSKIP\n```", Ok(ProfileUpdate::Unchanged)),
        (r#"{"who": "a pilot"}"#, Ok(ProfileUpdate::Replaced(fields("a pilot")))),
        ("```json\n{\"who\": \"a pilot\"}\n```", Ok(ProfileUpdate::Replaced(fields("a pilot")))),
        (
            r##"{"who": "# a\n\u202e pilot", "misc": ""}"##,
            Ok(ProfileUpdate::Replaced(fields("a pilot"))),
        ),
        ("SKIP this", Err("the response is not JSON")),
        ("", Err("the response is not JSON")),
        (r#"["who"]"#, Err("the response is no object")),
        (r#"{"who": ["a pilot"]}"#, Err("a member is no string")),
        (r#"{"who": null}"#, Err("a member is no string")),
        (r#"{"who": "a", "password": "b"}"#, Err("a member is unknown")),
        (r#"{"_meta": "now"}"#, Err("a member is unknown")),
        (r#"{"who": " "}"#, Err("all members are empty")),
        ("{}", Err("all members are empty")),
    ] {
        assert_eq!(ProfileUpdate::parse(response), update, "{response}");
    }
    let long = format!(r#"{{"who": "{}"}}"#, "x".repeat(RESPONSE_BYTES_MAX));
    assert_eq!(ProfileUpdate::parse(&long), Err("the response is too long"));
}

#[test]
fn cut_profile_fits_its_bound() {
    let edge = fields(&"ä".repeat(PROFILE_CHARS_MAX - r#"{"who":""}"#.len()));
    assert!(!edge.is_too_long());
    assert_eq!(edge.clone().cut(), edge, "nothing is cut");
    for letter in ["x", "ä", "\"", "\\"] {
        let long = letter.repeat(3_000);
        let all = ProfileFields {
            who: long.clone(),
            style: long.clone(),
            focus: "short".to_owned(),
            interests: long.clone(),
            misc: long,
        };
        assert!(all.is_too_long());
        let cut = all.cut();
        assert!(!cut.is_too_long() && cut.who.chars().count() >= 190, "{letter}");
        assert_eq!(cut.focus, "short");
    }
}

#[test]
fn system_prompt_has_the_profile_as_indented_json() {
    let profile = Profile::new(fields("a \"pilot\""), NOW);
    assert_eq!(
        profile.render(),
        "USER PROFILE:\n{\n  \"who\": \"a \\\"pilot\\\"\",\n  \"_meta\": {\n    \"last_learned_at\": \"2026-11-21T20:19:09.669Z\"\n  }\n}"
    );
}

#[test]
fn debug_output_has_no_text_of_the_user() {
    let mut document = ProfileDocument::default();
    post(&mut document, "a", &[message(1, 1)]);
    document.profile = Some(Profile::new(fields("secret"), NOW));
    let debug = format!("{document:?} {:?}", message(1, 1));
    assert!(!debug.contains("secret") && !debug.contains("message 1"), "{debug}");
}

fn message(seq: u64, at: u64) -> ProfileMessage {
    ProfileMessage { seq, at: Timestamp(at), text: format!("message {seq}"), extra: Extra::new() }
}

fn post(document: &mut ProfileDocument, conversation: &str, messages: &[ProfileMessage]) {
    let conversation_id = &ConversationId::new(conversation);
    document.post(&Posting { conversation_id, incarnation: "0a1b2c3d", messages });
}

fn unseen(document: &ProfileDocument) -> Vec<(String, u64)> {
    let key = |it: &UnseenMessage| (it.conversation_id.to_string(), it.seq);
    document.unseen.iter().map(key).collect()
}

#[test]
fn repeated_post_changes_nothing() {
    let mut document = ProfileDocument::default();
    post(&mut document, "a", &[message(2, 20), message(4, 40)]);
    post(&mut document, "b", &[message(2, 30)]);
    let expected = [("a", 2), ("b", 2), ("a", 4)].map(|(id, seq)| (id.to_owned(), seq));
    assert_eq!(unseen(&document), expected, "by time");
    let before = document.clone();
    post(&mut document, "a", &[message(2, 20), message(4, 40)]);
    post(&mut document, "b", &[message(2, 30)]);
    assert_eq!(document, before);
    // Also after they were learnt from.
    let received = document.unseen.clone();
    document.record_learning(&received, None, NOW);
    post(&mut document, "a", &[message(2, 20), message(4, 40), message(6, 60)]);
    assert_eq!(unseen(&document), [("a".to_owned(), 6)]);
    // A message that a worker posts late counts, although later ones were learnt from.
    post(&mut document, "c", &[message(2, 1)]);
    assert_eq!(unseen(&document).len(), 2);
    assert_eq!(document.learned_until, Some(Timestamp(40)));
}

#[test]
fn newest_ten_messages_of_all_conversations_stay_unseen() {
    let mut document = ProfileDocument::default();
    for number in 0..UNSEEN_MAX as u64 + 3 {
        post(&mut document, &format!("c{number}"), &[message(2, 100 + number)]);
    }
    assert_eq!(document.unseen.len(), UNSEEN_MAX);
    assert_eq!(document.unseen[0].conversation_id.as_str(), "c3");
    for number in 0..200 {
        post(&mut document, &format!("d{number}"), &[message(2, 1_000 + number)]);
    }
    assert_eq!(document.posted.len(), 64);
    assert!(serde_json::to_string(&document).unwrap().len() < 16 * 1024);
}

#[test]
fn one_claim_learns_from_five_messages() {
    let mut document = ProfileDocument::default();
    let messages: Vec<ProfileMessage> = (1..=4).map(|seq| message(seq, seq)).collect();
    post(&mut document, "a", &messages);
    assert!(!document.is_learning_due(NOW));
    post(&mut document, "b", &[message(2, 9)]);
    assert_eq!(document.unseen.len(), LEARNING_MIN);
    assert!(document.is_learning_due(NOW));
    document.claim("one", NOW);
    assert!(!document.is_learning_due(NOW), "another worker learns");
    assert!(document.is_claimed_by("one") && !document.is_claimed_by("two"));
    let received = document.unseen.clone();
    post(&mut document, "b", &[message(4, 10)]);
    document.record_learning(&received, Some(fields("a pilot")), NOW);
    assert_eq!(unseen(&document), [("b".to_owned(), 4)], "it came after the claim");
    assert_eq!(document.profile, Some(Profile::new(fields("a pilot"), NOW)));
    assert_eq!((document.learned_until, document.attempts), (Some(Timestamp(9)), 0));
    let later = NOW.plus(PASS_ON_WITHIN);
    let before = document.clone();
    let skipped = document.unseen.clone();
    document.record_learning(&skipped, None, later);
    assert_eq!(document.profile, before.profile, "only the time of the messages moves");
    assert_eq!(document.learned_until, Some(Timestamp(10)));
}

#[test]
fn messages_are_dropped_after_three_attempts() {
    let messages: Vec<ProfileMessage> = (1..=5).map(|seq| message(seq, seq)).collect();
    let mut failed = ProfileDocument::default();
    post(&mut failed, "a", &messages);
    let mut expired = failed.clone();
    for attempt in 1..=ATTEMPTS_MAX {
        assert!(failed.is_learning_due(NOW));
        failed.claim("one", NOW);
        let received = failed.unseen.clone();
        post(&mut failed, "b", &[message(10 + u64::from(attempt), 10)]);
        let dropped = failed.record_failure(&received, NOW);
        assert_eq!(dropped > 0, attempt == ATTEMPTS_MAX, "{attempt}");
    }
    assert_eq!(unseen(&failed), [("b".to_owned(), 13)], "only those that the model received");
    assert_eq!(failed.attempts, 0);
    for _ in 0..ATTEMPTS_MAX {
        assert_eq!(expired.drop_after_last_attempt(NOW), 0);
        assert!(expired.is_learning_due(NOW));
        // The worker is killed, and the claim expires.
        expired.claim("one", NOW.minus(PASS_ON_WITHIN));
    }
    assert_eq!(expired.drop_after_last_attempt(NOW.minus(PASS_ON_WITHIN)), 0, "it may still run");
    assert_eq!(expired.drop_after_last_attempt(NOW), 5);
    assert_eq!((expired.unseen.len(), expired.attempts, expired.learning), (0, 0, None));
}

#[test]
fn waits_of_a_clock_that_was_ahead_are_over() {
    let messages: Vec<ProfileMessage> = (1..=5).map(|seq| message(seq, seq)).collect();
    let ahead = NOW.plus(Duration::from_hours(72));
    let mut claimed = ProfileDocument::default();
    post(&mut claimed, "a", &messages);
    let mut failed = claimed.clone();
    claimed.claim("one", ahead);
    assert!(!claimed.is_learning_due(ahead));
    assert!(claimed.is_learning_due(NOW), "no claim is that long");
    for failures in 0..4 {
        failed.failures = failures;
        for _ in 0..ATTEMPTS_MAX {
            failed.claim("one", ahead);
            failed.record_failure(&[], ahead);
        }
        assert!(!failed.is_learning_due(ahead), "it waits after {} failures", failures + 1);
        assert!(failed.is_learning_due(NOW), "no wait is that long");
    }
}

#[test]
fn retracted_conversation_leaves_nothing() {
    let mut document = ProfileDocument::default();
    post(&mut document, "a", &[message(1, 1)]);
    let mut alone = document.clone();
    alone.retract(&ConversationId::new("a"));
    assert!(alone.is_blank());
    post(&mut document, "b", &[message(1, 1)]);
    document.retract(&ConversationId::new("a"));
    assert_eq!(unseen(&document), [("b".to_owned(), 1)]);
    assert_eq!(document.posted.len(), 1);
}

/// A transition whose agent has a profile.
fn learning() -> Transition {
    let mut transition = transition();
    transition.policy.learns_profile = true;
    transition
}

fn end(transition: &mut Transition, state: PromptState) {
    let end = PromptEnd {
        state,
        stop_reason: PromptStop::End,
        error: None,
        incomplete: None,
        extra: Extra::new(),
    };
    transition.append(EntryBody::PromptEnd(end));
}

fn start(transition: &mut Transition, text: &str) {
    step(transition, &prompt(text));
    step(transition, &crate::step::Input::DrainInbox);
}

#[test]
fn messages_of_a_prompt_count_when_it_completes() {
    for (state, count) in
        [(PromptState::Completed, 1), (PromptState::Failed, 0), (PromptState::Aborted, 0)]
    {
        let mut transition = learning();
        start(&mut transition, "Hi\nthere");
        record_messages(&mut transition);
        let messages = transition.head.profile_messages.clone().unwrap();
        assert_eq!(messages.running[0].text, "Hi there");
        assert_eq!((messages.completed.len(), messages.due), (0, None));
        transition.entries.clear();
        end(&mut transition, state);
        record_messages(&mut transition);
        let messages = transition.head.profile_messages.clone();
        let completed = messages.as_ref().map_or(0, |it| it.completed.len());
        assert_eq!((completed, messages.is_some()), (count, count > 0), "{state:?}");
        let due = messages.and_then(|it| it.due);
        assert_eq!(due, (count > 0).then(|| NOW.plus(PASS_ON_WITHIN)), "{state:?}");
    }
}

#[test]
fn agent_without_profile_keeps_no_message() {
    let mut transition = transition();
    start(&mut transition, "Hi");
    end(&mut transition, PromptState::Completed);
    record_messages(&mut transition);
    assert_eq!(transition.head.profile_messages, None);
}

#[test]
fn passed_messages_leave_the_head() {
    let mut messages = Box::<ProfileMessages>::default();
    messages.completed = vec![message(2, 2), message(5, 5)];
    messages.due = Some(NOW);
    let left = messages.clone().without_passed(2).unwrap();
    assert_eq!((left.completed.len(), left.due), (1, Some(NOW)));
    assert_eq!(messages.clone().without_passed(5), None);
    messages.running = vec![message(7, 7)];
    let left = messages.without_passed(5).unwrap();
    assert_eq!((left.running.len(), left.due), (1, None));
}

#[test]
fn messages_in_a_head_are_bounded() {
    let mut transition = learning();
    transition.head.profile_messages = None;
    let texts: Vec<String> =
        (0..MESSAGES_MAX + 5).map(|n| format!("{n} {}", "語".repeat(3_000))).collect();
    for text in &texts {
        transition.entries.clear();
        transition.head.prompt = None;
        transition.head.phase = crate::phase::Phase::Idle;
        start(&mut transition, text);
        end(&mut transition, PromptState::Completed);
        record_messages(&mut transition);
    }
    let messages = transition.head.profile_messages.unwrap();
    assert!(messages.completed.len() < MESSAGES_MAX, "the bound of bytes");
    let newest = messages.completed.last().unwrap();
    assert_eq!(newest.text.chars().count(), 512);
    assert!(newest.text.starts_with("14 "), "the newest stay");
    let bytes = serde_json::to_string(&json!(messages)).unwrap().len();
    assert!(bytes < 10 * 1024, "{bytes}");
}
