//! Results of commands that clients ran.

use super::*;
use crate::inbox::InputOutcome;
use crate::projection::{project_messages, to_model_messages};
use crate::step::is_supported;

fn bash(id: &str, args: serde_json::Value) -> InboxItem {
    item(id, json!({"command": {"name": "bash", "args": args}}))
}

fn result(id: &str) -> InboxItem {
    bash(id, json!({"command": format!("run {id}"), "output": "x", "exitCode": 0}))
}

fn prompt_item(kind: &str, id: &str) -> InboxItem {
    let prompt = json!({"promptId": format!("pr_{id}"), "user": "default", "input": id, "visible": true, "source": "user"});
    item(id, json!({ kind: prompt }))
}

/// The messages in order: the input of a user message, or the command.
fn messages(transition: &Transition) -> Vec<String> {
    let messages = transition.entries.iter().filter_map(|entry| entry.body.message());
    let texts = messages.filter_map(|message| match message {
        Message::User(user) => {
            serde_json::to_value(&user.content).unwrap().as_str().map(str::to_owned)
        }
        Message::BashExecution(bash) => Some(bash.command.clone()),
        _ => None,
    });
    texts.collect()
}

#[test]
fn result_is_appended_when_idle() {
    let mut transition = transition();
    assert!(is_supported(&result("b").body));
    let events = apply_inputs(&mut transition, &[inbox_read(&[result("b")])]);
    assert_eq!(events, ["message_start bashExecution:", "message_end bashExecution:"]);
    assert_eq!((transition.receipts.len(), transition.head.waiting_items), (1, 0));
}

#[test]
fn result_during_a_run_waits_for_the_next_prompt() {
    let mut transition = transition();
    apply_inputs(&mut transition, &[prompt("go")]);
    let queued = [result("b1"), prompt_item("followUp", "more"), result("b2")];
    apply_inputs(&mut transition, &[inbox_read(&queued)]);
    assert_eq!(messages(&transition), ["go"], "never inside a prompt");
    apply_inputs(&mut transition, &[response(&["done"]), Input::DrainInbox]);
    assert_eq!(messages(&transition), ["go", "more"], "not before a follow-up of the run");
    let pending = transition.pending.iter().map(|pending| (*pending.item).clone());
    let again: Vec<InboxItem> = pending.chain([prompt_item("prompt", "next")]).collect();
    step(&mut transition, &inbox_read(&again));
    let events = apply_inputs(&mut transition, &[response(&["done"]), Input::DrainInbox]);
    assert_eq!(messages(&transition), ["go", "more", "next"]);
    assert!(!events.contains(&"agent_settled".to_owned()));
    let events = apply_inputs(&mut transition, &[response(&["done"]), Input::DrainInbox]);
    assert_eq!(messages(&transition)[3..], ["run b1", "run b2"]);
    assert_eq!(events.last().unwrap(), "agent_settled");
    assert_eq!(events.iter().filter(|event| *event == "agent_settled").count(), 1);
}

#[test]
fn results_precede_the_prompt_that_starts() {
    let mut transition = transition();
    let queued = [prompt_item("prompt", "go"), result("b1"), result("b2")];
    apply_inputs(&mut transition, &[inbox_read(&queued)]);
    assert_eq!(messages(&transition), ["run b1", "run b2", "go"]);
    let before = transition.entries.first().unwrap();
    assert_eq!(before.base.prompt_id, None, "it belongs to no prompt");
}

#[test]
fn excluded_result_is_not_sent() {
    let mut transition = transition();
    let excluded = json!({"command": "ls", "output": "secret", "excludeFromContext": true});
    apply_inputs(&mut transition, &[inbox_read(&[bash("b", excluded)])]);
    let projected = project_messages(&transition.entries);
    let sent = to_model_messages(projected);
    assert!(sent.is_empty(), "{sent:?}");
    assert_eq!(messages(&transition), ["ls"]);
}

#[test]
fn unreadable_result_is_ignored() {
    let mut transition = transition();
    apply_inputs(&mut transition, &[inbox_read(&[bash("b", json!({"output": 1}))])]);
    assert_eq!(transition.receipts[0].outcome, InputOutcome::Ignored);
    assert!(transition.entries.is_empty());
}
