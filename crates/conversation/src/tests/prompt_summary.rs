//! Prompt summaries, built from stored entries only.

use std::sync::Arc;

use serde_json::{Value, json};

use crate::entry::Entry;
use crate::prompt_receipt::{WriteCounts, build_receipt};
use crate::step::UNKNOWN_OUTCOME;
use turnwheel_platform::ids::PromptId;

/// Entries of the prompt `pr_1`, one second apart.
fn entries(bodies: &[Value]) -> Vec<Arc<Entry>> {
    let entries = bodies.iter().enumerate().map(|(position, body)| {
        let mut entry = json!({
            "entryId": format!("{position:08x}"), "parentId": null, "seq": position + 1, "promptId": "pr_1",
            "timestamp": format!("2026-11-21T20:19:{position:02}.000Z"),
        });
        entry.as_object_mut().unwrap().extend(body.as_object().unwrap().clone());
        Arc::new(serde_json::from_str(&entry.to_string()).unwrap())
    });
    entries.collect()
}

fn prompt_start() -> Value {
    json!({"type": "prompt", "inputId": "in_1", "user": "ada", "model": "normal", "visible": true, "source": "user"})
}

fn prompt_end() -> Value {
    json!({"type": "prompt_end", "state": "completed", "stopReason": "end"})
}

fn response(provider: &str, stop: &str, tokens: u64) -> Value {
    json!({"type": "message", "revision": "r", "message": {
        "role": "assistant", "content": [], "api": "a", "provider": provider, "model": "m", "stopReason": stop,
        "timestamp": 0, "usage": {"input": tokens, "totalTokens": tokens, "cost": {"total": 0.5}},
    }})
}

fn tool_started(index: usize, attempt: u32, effect: Option<&str>) -> Value {
    let mut started = json!({
        "type": "tool_started", "call": {"answer": 2, "index": index}, "effectId": "e", "toolName": "pay",
        "attempt": attempt,
    });
    if let Some(effect) = effect {
        started["effect"] = json!(effect);
    }
    started
}

fn tool_result(index: usize, text: &str, is_error: bool) -> Value {
    json!({"type": "message", "call": {"answer": 2, "index": index}, "message": {
        "role": "toolResult", "toolCallId": "c1", "toolName": "pay", "content": [{"type": "text", "text": text}],
        "isError": is_error, "timestamp": 0,
    }})
}

fn approval_request(id: &str, kind: &str, index: usize) -> Value {
    json!({"type": "request", "request": {
        "id": id, "kind": kind, "title": "Did pay happen?", "reason": "cut", "promptId": "pr_1",
        "call": {"answer": 2, "index": index}, "effect": "write", "requestedAt": "2026-11-21T20:19:09.000Z",
        "requestedBy": "ada", "approvers": ["owner"],
    }})
}

fn approval_decision(id: &str, decision: &str) -> Value {
    json!({"type": "decision", "decision": {
        "requestId": id, "decision": decision, "decidedBy": "ada", "decidedAt": "2026-11-21T20:19:10.000Z",
    }})
}

fn write_counts(bodies: &[Value]) -> WriteCounts {
    let mut all = vec![prompt_start(), response("openai", "toolUse", 1)];
    all.extend(bodies.iter().cloned());
    build_receipt(&PromptId::new("pr_1"), &entries(&all)).unwrap().writes
}

#[test]
fn summary_totals_stored_entries() {
    let entries = entries(&[
        prompt_start(),
        response("openai", "error", 5),
        response("openai", "toolUse", 10),
        tool_started(0, 1, Some("read")),
        tool_result(0, "seen", false),
        json!({"type": "lost_call", "estimate": {"totalTokens": 100}}),
        json!({"type": "failed_summary", "calls": 1, "usage": {"totalTokens": 1_000}}),
        json!({"type": "compaction", "summary": "S", "firstKeptEntryId": "0000000a", "tokensBefore": 9,
            "usage": {"totalTokens": 2_000}, "calls": 2}),
        json!({"type": "compaction", "summary": "of an extension", "firstKeptEntryId": "0000000a", "tokensBefore": 9}),
        response("openai", "stop", 20),
        response("turnwheel", "stop", 0),
        prompt_end(),
    ]);
    let summary = build_receipt(&PromptId::new("pr_1"), &entries).unwrap();
    assert_eq!((summary.turns, summary.model_calls, summary.tool_calls), (2, 7, 1));
    assert_eq!(
        (summary.usage.total_tokens, summary.lost_usage.unwrap().total_tokens),
        (3_035, 100)
    );
    assert_eq!(summary.writes, WriteCounts::default());
    assert_eq!(summary.started_at.until(summary.ended_at.unwrap()).as_secs(), 11);
    assert!(build_receipt(&PromptId::new("pr_2"), &entries).is_none());
}

#[test]
fn failed_prompt_counts_its_failed_turn() {
    let failed = json!({"type": "prompt_end", "state": "failed", "stopReason": "error"});
    let entries =
        entries(&[prompt_start(), response("p", "error", 1), response("p", "error", 1), failed]);
    let summary = build_receipt(&PromptId::new("pr_1"), &entries).unwrap();
    assert_eq!((summary.turns, summary.model_calls), (1, 2));
}

#[test]
fn writes_are_counted_by_outcome() {
    let write = Some("write");
    let done = [tool_started(0, 1, write), tool_result(0, "paid", false)];
    assert_eq!(write_counts(&done), WriteCounts { done: 1, ..WriteCounts::default() });
    let unknown = [
        tool_started(0, 1, write),
        tool_result(0, &format!("{UNKNOWN_OUTCOME} (cut)"), true),
        prompt_end(),
    ];
    assert_eq!(write_counts(&unknown), WriteCounts { unknown: 1, ..WriteCounts::default() });
    let failed = [tool_started(0, 1, write), tool_result(0, "404", true)];
    assert_eq!(write_counts(&failed), WriteCounts { failed: 1, ..WriteCounts::default() });
    let open = [tool_started(0, 1, write), approval_request("rq_1", "outcome", 0)];
    assert_eq!(write_counts(&open), WriteCounts { open: 1, ..WriteCounts::default() });
    let again = [
        tool_started(0, 1, write),
        approval_request("rq_1", "outcome", 0),
        approval_decision("rq_1", "again"),
        tool_started(0, 2, write),
        tool_result(0, "paid", false),
    ];
    assert_eq!(write_counts(&again), WriteCounts { done: 1, again: 1, ..WriteCounts::default() });
    // This must never happen; the summary would report it.
    let repeated =
        [tool_started(0, 1, write), tool_started(0, 2, write), tool_result(0, "paid", false)];
    assert_eq!(
        write_counts(&repeated),
        WriteCounts { done: 1, repeated: 1, ..WriteCounts::default() }
    );
    // Reads may run again. Entries of earlier versions have no effect and are not counted.
    let reads = [
        tool_started(0, 1, Some("read")),
        tool_started(0, 2, Some("read")),
        tool_started(1, 1, None),
    ];
    assert_eq!(write_counts(&reads), WriteCounts::default());
}

#[test]
fn summary_lists_decisions_and_approvers() {
    let entries = entries(&[
        prompt_start(),
        response("p", "toolUse", 1),
        approval_request("rq_1", "tool", 0),
        approval_decision("rq_1", "approve"),
        approval_request("rq_2", "tool", 1),
    ]);
    let summary =
        serde_json::to_value(build_receipt(&PromptId::new("pr_1"), &entries).unwrap()).unwrap();
    let first = &summary["requests"][0];
    assert_eq!((&first["decision"], &first["decidedBy"]), (&json!("approve"), &json!("ada")));
    assert_eq!(first["decidedAt"], "2026-11-21T20:19:10.000Z");
    assert_eq!(summary["requests"][1].get("decision"), None);
    assert_eq!((summary.get("endedAt"), &summary["state"]), (None, &json!("running")));
}
