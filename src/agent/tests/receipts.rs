//! Prompt summaries, built from stored entries only.

use std::sync::Arc;

use serde_json::{Value, json};

use crate::agent::entry::Entry;
use crate::agent::receipt::{Writes, receipt};
use crate::agent::step::UNKNOWN_OUTCOME;
use crate::ids::PromptId;

/// Entries of the prompt `pr_1`, one second apart.
fn record(bodies: &[Value]) -> Vec<Arc<Entry>> {
    let entries = bodies.iter().enumerate().map(|(place, body)| {
        let mut entry = json!({
            "entryId": format!("{place:08x}"), "parentId": null, "seq": place + 1, "promptId": "pr_1",
            "timestamp": format!("2026-11-21T20:19:{place:02}.000Z"),
        });
        entry.as_object_mut().unwrap().extend(body.as_object().unwrap().clone());
        Arc::new(serde_json::from_str(&entry.to_string()).unwrap())
    });
    entries.collect()
}

fn begin() -> Value {
    json!({"type": "prompt", "inputId": "in_1", "user": "ada", "model": "normal", "visible": true, "source": "user"})
}

fn end() -> Value {
    json!({"type": "prompt_end", "state": "completed", "stopReason": "end"})
}

fn answer(provider: &str, stop: &str, tokens: u64) -> Value {
    json!({"type": "message", "revision": "r", "message": {
        "role": "assistant", "content": [], "api": "a", "provider": provider, "model": "m", "stopReason": stop,
        "timestamp": 0, "usage": {"input": tokens, "totalTokens": tokens, "cost": {"total": 0.5}},
    }})
}

fn started(index: usize, attempt: u32, effect: Option<&str>) -> Value {
    let mut started = json!({
        "type": "tool_started", "call": {"answer": 2, "index": index}, "effectId": "e", "toolName": "pay",
        "attempt": attempt,
    });
    if let Some(effect) = effect {
        started["effect"] = json!(effect);
    }
    started
}

fn result(index: usize, said: &str, is_error: bool) -> Value {
    json!({"type": "message", "call": {"answer": 2, "index": index}, "message": {
        "role": "toolResult", "toolCallId": "c1", "toolName": "pay", "content": [{"type": "text", "text": said}],
        "isError": is_error, "timestamp": 0,
    }})
}

fn asked(id: &str, kind: &str, index: usize) -> Value {
    json!({"type": "request", "request": {
        "id": id, "kind": kind, "title": "Did pay happen?", "reason": "cut", "promptId": "pr_1",
        "call": {"answer": 2, "index": index}, "effect": "write", "requestedAt": "2026-11-21T20:19:09.000Z",
        "requestedBy": "ada", "approvers": ["owner"],
    }})
}

fn decided(id: &str, decision: &str) -> Value {
    json!({"type": "decision", "decision": {
        "requestId": id, "decision": decision, "decidedBy": "ada", "decidedAt": "2026-11-21T20:19:10.000Z",
    }})
}

fn writes(bodies: &[Value]) -> Writes {
    let mut all = vec![begin(), answer("openai", "toolUse", 1)];
    all.extend(bodies.iter().cloned());
    receipt(&PromptId::new("pr_1"), &record(&all)).unwrap().writes
}

#[test]
fn a_receipt_adds_up_what_the_record_says() {
    let entries = record(&[
        begin(),
        answer("openai", "error", 5),
        answer("openai", "toolUse", 10),
        started(0, 1, Some("read")),
        result(0, "seen", false),
        json!({"type": "lost_call", "estimate": {"totalTokens": 100}}),
        json!({"type": "failed_summary", "calls": 1, "usage": {"totalTokens": 1_000}}),
        json!({"type": "compaction", "summary": "S", "firstKeptEntryId": "0000000a", "tokensBefore": 9,
            "usage": {"totalTokens": 2_000}, "calls": 2}),
        json!({"type": "compaction", "summary": "of an extension", "firstKeptEntryId": "0000000a", "tokensBefore": 9}),
        answer("openai", "stop", 20),
        answer("turnwheel", "stop", 0),
        end(),
    ]);
    let told = receipt(&PromptId::new("pr_1"), &entries).unwrap();
    assert_eq!((told.turns, told.model_calls, told.tool_calls), (2, 7, 1));
    assert_eq!((told.usage.total_tokens, told.lost_usage.unwrap().total_tokens), (3_035, 100));
    assert_eq!(told.writes, Writes::default());
    assert_eq!(told.started_at.until(told.ended_at.unwrap()).as_secs(), 11);
    assert!(receipt(&PromptId::new("pr_2"), &entries).is_none());
}

#[test]
fn a_prompt_that_ends_by_a_failure_ends_by_that_turn() {
    let failed = json!({"type": "prompt_end", "state": "failed", "stopReason": "error"});
    let entries = record(&[begin(), answer("p", "error", 1), answer("p", "error", 1), failed]);
    let told = receipt(&PromptId::new("pr_1"), &entries).unwrap();
    assert_eq!((told.turns, told.model_calls), (1, 2));
}

#[test]
fn writes_are_told_by_what_became_of_them() {
    let write = Some("write");
    let done = [started(0, 1, write), result(0, "paid", false)];
    assert_eq!(writes(&done), Writes { done: 1, ..Writes::default() });
    let told = [started(0, 1, write), result(0, &format!("{UNKNOWN_OUTCOME} (cut)"), true), end()];
    assert_eq!(writes(&told), Writes { unknown: 1, ..Writes::default() });
    let failed = [started(0, 1, write), result(0, "404", true)];
    assert_eq!(writes(&failed), Writes { failed: 1, ..Writes::default() });
    let open = [started(0, 1, write), asked("rq_1", "outcome", 0)];
    assert_eq!(writes(&open), Writes { open: 1, ..Writes::default() });
    let again = [
        started(0, 1, write),
        asked("rq_1", "outcome", 0),
        decided("rq_1", "again"),
        started(0, 2, write),
        result(0, "paid", false),
    ];
    assert_eq!(writes(&again), Writes { done: 1, again: 1, ..Writes::default() });
    // This must never happen; the summary would report it.
    let repeated = [started(0, 1, write), started(0, 2, write), result(0, "paid", false)];
    assert_eq!(writes(&repeated), Writes { done: 1, repeated: 1, ..Writes::default() });
    // Reads may run again. Entries of earlier versions have no effect and are not counted.
    let reads = [started(0, 1, Some("read")), started(0, 2, Some("read")), started(1, 1, None)];
    assert_eq!(writes(&reads), Writes::default());
}

#[test]
fn who_agreed_to_what_is_told() {
    let entries = record(&[
        begin(),
        answer("p", "toolUse", 1),
        asked("rq_1", "tool", 0),
        decided("rq_1", "approve"),
        asked("rq_2", "tool", 1),
    ]);
    let told = serde_json::to_value(receipt(&PromptId::new("pr_1"), &entries).unwrap()).unwrap();
    let first = &told["requests"][0];
    assert_eq!((&first["decision"], &first["decidedBy"]), (&json!("approve"), &json!("ada")));
    assert_eq!(first["decidedAt"], "2026-11-21T20:19:10.000Z");
    assert_eq!(told["requests"][1].get("decision"), None);
    assert_eq!((told.get("endedAt"), &told["state"]), (None, &json!("running")));
}
