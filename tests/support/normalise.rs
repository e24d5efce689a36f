//! Normalised entries for comparing two records: ids renumbered by first use; times, attempts and
//! leases removed.

use std::collections::HashMap;

use serde_json::Value;

/// Members whose values differ between equal runs.
const VOLATILE_MEMBERS: [&str; 12] = [
    "timestamp",
    "startedAt",
    "endedAt",
    "requestedAt",
    "decidedAt",
    "expiresAt",
    "createdAt",
    "updatedAt",
    "at",
    "acceptedAt",
    "attempt",
    "until",
];

/// Members whose values are ids.
const ID_MEMBERS: [&str; 18] = [
    "id",
    "entryId",
    "parentId",
    "promptId",
    "inputId",
    "requestId",
    "approvalId",
    "messageId",
    "effectId",
    "conversationId",
    "artifactId",
    "binding",
    "toolCallId",
    "targetId",
    "leafId",
    // A server of a test has a port of its own in each run.
    "host",
    // And therefore the frames have hashes of their own.
    "hash",
    "document",
];

#[derive(Default)]
struct IdRenumbering {
    names: HashMap<String, String>,
}

/// Normalises a record (entries as the API lists them), so that equal runs have equal records.
/// Later attempts of a call and resets of responses result from faults, not from the work.
pub(crate) fn normalise_entries(entries: &[Value]) -> Vec<Value> {
    let kept = entries.iter().filter(|entry| {
        let is_later_try =
            entry["type"] == "tool_started" && entry["attempt"].as_u64().unwrap_or(1) > 1;
        !is_later_try
    });
    let mut renumbering = IdRenumbering::default();
    let mut normalised = Vec::new();
    let mut parent = Value::Null;
    for (number, entry) in kept.enumerate() {
        let mut entry = entry.clone();
        // Removed entries must not change the numbers of the others.
        entry["seq"] = Value::from(number + 1);
        entry["parentId"] = parent;
        parent = entry["id"].clone();
        normalised.push(renumbering.normalise_value(None, &entry));
    }
    normalised
}

impl IdRenumbering {
    fn normalise_value(&mut self, name: Option<&str>, value: &Value) -> Value {
        match value {
            Value::Object(members) => Value::Object(
                members
                    .iter()
                    .filter(|(name, _)| !VOLATILE_MEMBERS.contains(&name.as_str()))
                    .map(|(name, value)| (name.clone(), self.normalise_value(Some(name), value)))
                    .collect(),
            ),
            Value::Array(items) => {
                Value::Array(items.iter().map(|item| self.normalise_value(name, item)).collect())
            }
            Value::String(text) if name.is_some_and(|name| ID_MEMBERS.contains(&name)) => {
                let next = format!("#{}", self.names.len() + 1);
                Value::String(self.names.entry(text.clone()).or_insert(next).clone())
            }
            Value::String(text) => Value::String(replace_receipt_ids(text)),
            Value::Null | Value::Bool(_) | Value::Number(_) => value.clone(),
        }
    }
}

/// Replaces receipt ids in a text, because such an id is a hash of the effect id.
fn replace_receipt_ids(text: &str) -> String {
    let mut parts = text.split("rcpt_");
    let mut whole = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        whole.push_str("receipt");
        whole.push_str(part.trim_start_matches(|letter: char| letter.is_ascii_alphanumeric()));
    }
    whole
}

#[test]
fn normalised_entries_differ_only_for_different_work() {
    use serde_json::json;
    let run = |id: &str, text: &str| {
        vec![
            json!({"id": id, "parentId": null, "seq": 1, "timestamp": "t1", "type": "message", "message": {"role": "user", "content": text, "timestamp": 5}}),
            json!({"id": format!("{id}2"), "parentId": id, "seq": 2, "type": "tool_started", "attempt": 2}),
        ]
    };
    assert_eq!(normalise_entries(&run("a", "hi")), normalise_entries(&run("b", "hi")[..1]));
    assert_ne!(normalise_entries(&run("a", "hi")), normalise_entries(&run("a", "ho")));
}
