//! Tests of the rows that events add.

use serde_json::{Value, json};
use tokio::time::Instant;

use super::*;
use crate::members::{exact, parse_json};

fn transcript() -> Transcript {
    let layout = Layout { width: 60, is_coloured: false };
    Transcript::new(TranscriptOptions { layout, is_markdown: true })
}

fn apply(transcript: &mut Transcript, events: &[Value]) -> Vec<String> {
    let now = Instant::now();
    let rows = events.iter().flat_map(|event| transcript.apply(&exact(event), now));
    rows.map(|printed| printed.row().to_owned()).collect()
}

fn start(id: &str) -> Value {
    json!({"type": "message_start", "messageId": id, "message": {"role": "assistant", "content": []}})
}

fn delta(id: &str, text: &str) -> Value {
    let update = json!({"type": "text_delta", "contentIndex": 0, "delta": text});
    json!({"type": "message_update", "messageId": id, "assistantMessageEvent": update})
}

fn end(id: &str, text: &str) -> Value {
    let message = json!({"role": "assistant", "content": [{"type": "text", "text": text}]});
    json!({"type": "message_end", "messageId": id, "message": message})
}

#[test]
fn streamed_text_is_printed_once() {
    let mut transcript = transcript();
    let rows = apply(&mut transcript, &[start("m"), delta("m", "one\ntw")]);
    assert_eq!(rows, ["one"]);
    let rows = apply(&mut transcript, &[delta("m", "o"), end("m", "one\ntwo")]);
    assert_eq!(rows, ["two"]);
}

#[test]
fn response_without_stream_is_printed_at_its_end() {
    assert_eq!(apply(&mut transcript(), &[end("m", "one\ntwo")]), ["one", "two"]);
}

#[test]
fn reconnect_continues_after_the_printed_text() {
    let mut transcript = transcript();
    apply(&mut transcript, &[start("m"), delta("m", "one\ntwo\n")]);
    let content = json!([{"type": "text", "text": "one\ntwo\nthree\n"}]);
    let snapshot = json!({"type": "message_snapshot", "messageId": "m", "content": content});
    let rows = apply(
        &mut transcript,
        &[start("m"), snapshot, delta("m", "four"), end("m", "one\ntwo\nthree\nfour")],
    );
    assert_eq!(rows, ["three", "four"]);
}

#[test]
fn lost_pieces_print_the_whole_text_again() {
    let mut transcript = transcript();
    let rows = apply(
        &mut transcript,
        &[start("m"), delta("m", "one "), delta("m", "three"), end("m", "one two three")],
    );
    assert_eq!(
        rows,
        ["one three", "the text above lacks a part; the whole text:", "one two three"]
    );
}

#[test]
fn reset_message_is_named_and_printed_again() {
    let mut transcript = transcript();
    let reset = json!({"type": "message_reset", "messageId": "m"});
    let rows = apply(
        &mut transcript,
        &[start("m"), delta("m", "half"), reset.clone(), start("m"), end("m", "whole")],
    );
    assert_eq!(rows, ["half", "discarded: the model is called again", "whole"]);
    assert_eq!(apply(&mut transcript, &[reset]), [""; 0]);
}

#[test]
fn inputs_of_others_and_joined_steers_are_shown() {
    let mut transcript = transcript();
    transcript.add_own_input("in_1", false);
    transcript.add_own_input("in_2", true);
    let input = |id: &str| json!({"type": "message_end", "messageId": id, "inputId": id, "message": {"role": "user", "content": "Pay"}});
    assert_eq!(apply(&mut transcript, &[input("in_1")]), [""; 0]);
    assert_eq!(
        apply(&mut transcript, &[input("in_2"), input("in_3")]),
        ["> joined: Pay", "> input: Pay"]
    );
}

#[test]
fn settled_request_is_no_longer_open() {
    let mut transcript = transcript();
    let approval = json!({"id": "rq_1", "title": "May pay run?", "kind": "tool"});
    let requested = json!({"type": "prompt.approval-requested", "approval": approval});
    assert_eq!(apply(&mut transcript, &[requested]), ["? May pay run? [rq_1]"]);
    assert_eq!(transcript.approvals.len(), 1);
    let decided = json!({"id": "rq_1", "title": "May pay run?", "decision": "reject", "decidedBy": "ada", "decisionReason": "late"});
    let settled = json!({"type": "prompt.approval-settled", "approval": decided});
    assert_eq!(
        apply(&mut transcript, &[settled]),
        ["✓ May pay run? reject, decided by `ada` (late)"]
    );
    assert!(transcript.approvals.is_empty());
}

#[test]
fn events_show_each_digit_of_arguments() {
    let arguments = r#"{"account":25122920421210000012345,"rate":1.10}"#;
    let started =
        format!(r#"{{"type":"tool_execution_start","toolName":"pay","args":{arguments}}}"#);
    let approval = format!(r#"{{"id":"rq_1","title":"May pay run?","arguments":{arguments}}}"#);
    let requested = format!(r#"{{"type":"prompt.approval-requested","approval":{approval}}}"#);
    let mut transcript = transcript();
    let rows = [started, requested]
        .into_iter()
        .flat_map(|event| transcript.apply(&parse_json(event.as_bytes()).unwrap(), Instant::now()));
    let rows: Vec<String> = rows.map(|printed| printed.row().to_owned()).collect();
    let expected = [
        r#"▸ pay {"account":25122920421210000012345,"rate":1.10}"#,
        "? May pay run? [rq_1]",
        "  {",
        r#"    "account": 25122920421210000012345,"#,
        r#"    "rate": 1.10"#,
        "  }",
    ];
    assert_eq!(rows, expected);
}

#[test]
fn failures_name_their_cause() {
    let failed = json!({"type": "prompt.error", "promptId": "pr_1", "state": "failed", "error": {"type": "model", "message": "no\u{1b}[2J model"}});
    let mut transcript = transcript();
    assert_eq!(apply(&mut transcript, &[failed]), ["✗ the prompt failed: no model"]);
    assert_eq!(transcript.last_outcome.unwrap().state, "failed");
}

#[test]
fn every_text_of_an_event_is_cleaned() {
    let evil = "x\u{1b}]0;t\u{7}\u{202e}y\u{9b}2J";
    let events = [
        end("m", evil),
        json!({"type": "tool_execution_start", "toolName": evil, "args": {"a": evil}}),
        json!({"type": "tool_execution_end", "toolName": evil, "result": {"content": [{"type": "text", "text": evil}]}}),
        json!({"type": "prompt.approval-requested", "approval": {"id": "rq", "title": evil, "reason": evil, "arguments": {"a": evil, (evil): 1}, "approvers": [evil], "effect": evil, "destination": {"host": evil}}}),
        json!({"type": "prompt.approval-settled", "approval": {"title": evil, "decision": evil, "decidedBy": evil, "decisionReason": evil}}),
        json!({"type": "prompt.error", "state": "failed", "error": {"message": evil}, "incomplete": {"message": evil}}),
        json!({"type": "prompt.output", "output": {"type": "file", "path": evil, "mimeType": evil}}),
        json!({"type": "notify", "extension": evil, "text": evil}),
        json!({"type": "session_info_changed", "name": evil}),
        json!({"type": "tool_definition_changed", "tools": [evil]}),
        json!({"type": "input_queued", "inputId": "i", "item": {"state": "queued", "input": evil}}),
        json!({"type": "message_end", "message": {"role": "custom", "display": true, "customType": evil, "content": evil}}),
        json!({"type": "message_end", "message": {"role": "user", "content": evil}}),
    ];
    for event in &events {
        let rows = apply(&mut transcript(), std::slice::from_ref(event));
        let printed = rows.join("\n");
        assert!(printed.contains('x'), "{event}: {printed:?}");
        let is_clean = |c: char| c == '\n' || !(c.is_control() || c == '\u{202e}');
        assert!(printed.chars().all(is_clean), "{event}: {printed:?}");
    }
}
