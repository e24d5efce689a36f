//! The body of an invocation, encoded as the Functions host does. A text is JSON inside a JSON
//! string, a date has whole seconds, and the members of a message are merged into the metadata.
//!
//! Source: azure-functions-host,
//! `ScriptInvocationContextExtensions.ToHttpScriptInvocationContext` and
//! `Utility.ApplyBindingData`; the queue's names are from `QueueTriggerBinding.cs`.

use serde_json::{Map, Value, json};

use super::function::Function;
use crate::clock::Timestamp;
use crate::ids::Ids;
use crate::queue::QueueMessage;

/// The runs of a timer. `None`: it has not run yet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct TimerStatus {
    pub(crate) last_run: Option<Timestamp>,
    pub(crate) next_run: Option<Timestamp>,
}

/// .NET's smallest date: the timer never ran.
const NEVER: &str = "0001-01-01T00:00:00+00:00";

pub(crate) fn message_envelope(
    function: &Function,
    message: &QueueMessage,
    now: Timestamp,
    ids: &dyn Ids,
) -> Value {
    let mut metadata = Map::new();
    metadata.insert("DequeueCount".into(), json_string(&message.dequeue_count.into()));
    metadata.insert("ExpirationTime".into(), format_date(message.expires_at));
    metadata.insert("Id".into(), json_string(&message.id.as_str().into()));
    metadata.insert("InsertionTime".into(), format_date(message.inserted_at));
    metadata.insert("NextVisibleTime".into(), format_date(message.next_visible_at));
    metadata.insert("PopReceipt".into(), json_string(&message.pop_receipt.as_str().into()));
    metadata.insert("sys".into(), system_metadata(function, now, ids));
    merge_members(&message.text, &mut metadata);
    let mut data = Map::new();
    data.insert(function.binding.clone(), json_string(&message.text.as_str().into()));
    json!({ "Data": data, "Metadata": metadata })
}

pub(crate) fn timer_envelope(
    function: &Function,
    status: TimerStatus,
    is_past_due: bool,
    (now, ids): (Timestamp, &dyn Ids),
) -> Value {
    let last = status.last_run.map_or_else(|| NEVER.into(), format_date);
    let timer = json!({
        "Schedule": { "AdjustForDST": true },
        "ScheduleStatus": {
            "Last": last,
            "Next": status.next_run.map_or_else(|| NEVER.into(), format_date),
            "LastUpdated": last,
        },
        "IsPastDue": is_past_due,
    });
    let mut data = Map::new();
    data.insert(function.binding.clone(), timer);
    json!({ "Data": data, "Metadata": { "sys": system_metadata(function, now, ids) } })
}

/// JSON as a string of JSON: the host's form of everything but objects and dates.
fn json_string(value: &Value) -> Value {
    value.to_string().into()
}

fn format_date(time: Timestamp) -> Value {
    format!("{}+00:00", format_seconds(time)).into()
}

/// `2026-11-21T20:15:00`
fn format_seconds(time: Timestamp) -> String {
    let text = Timestamp(time.0 / 1_000 * 1_000).to_string();
    text.trim_end_matches(".000Z").to_owned()
}

fn system_metadata(function: &Function, now: Timestamp, ids: &dyn Ids) -> Value {
    json!({
        "MethodName": function.name,
        "UtcNow": format!("{}.{:03}0000Z", format_seconds(now), now.0 % 1_000),
        "RandGuid": new_guid(ids),
    })
}

/// A new id with hyphens, as .NET writes one.
pub(crate) fn new_guid(ids: &dyn Ids) -> String {
    let fresh = ids.new_id();
    uuid::Uuid::try_parse(&fresh).map_or(fresh, |id| id.to_string())
}

/// Copies the members of a JSON message over the metadata, ignoring case. The author of a message
/// thus controls metadata. Arrays and nulls are skipped, and `…Trigger` members are dropped.
fn merge_members(text: &str, metadata: &mut Map<String, Value>) {
    let Ok(Value::Object(members)) = serde_json::from_str::<Value>(text) else { return };
    for (name, value) in members {
        let lower = name.to_lowercase();
        let value = match value {
            _ if lower.ends_with("trigger") => continue,
            Value::Null | Value::Array(_) => continue,
            Value::Object(_) => value,
            Value::Bool(flag) => json_string(&(if flag { "True" } else { "False" }).into()),
            Value::Number(number) => json_string(&number.to_string().into()),
            Value::String(_) => json_string(&value),
        };
        let same = metadata.keys().find(|key| key.to_lowercase() == lower).cloned();
        metadata.insert(same.unwrap_or(name), value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::parse_iso;
    use crate::host::ScriptRoot;
    use crate::ids::SeededIds;

    fn read_function(name: &str) -> Function {
        let text = ScriptRoot::embedded().functions.remove(name).unwrap();
        Function::read(name, name, &text).unwrap().unwrap()
    }

    fn new_message(text: &str) -> QueueMessage {
        QueueMessage {
            id: "800ae4b3-bdd2-4c08-badd-f08e5a34b865".into(),
            pop_receipt: "AgAAAAMAAAAAAAAAAgtnj8x+1QE=".into(),
            dequeue_count: 1,
            text: text.into(),
            inserted_at: parse_iso("2026-11-21T20:15:00.999Z").unwrap(),
            expires_at: parse_iso("2026-11-28T20:15:00Z").unwrap(),
            next_visible_at: parse_iso("2026-11-21T20:25:02.220Z").unwrap(),
        }
    }

    fn encode_message(text: &str) -> Value {
        let now = parse_iso("2026-11-21T20:15:02.220Z").unwrap();
        message_envelope(&read_function("turn"), &new_message(text), now, &SeededIds::new(7))
    }

    #[test]
    fn message_envelope_matches_functions_host() {
        let envelope =
            encode_message(r#"{"jobId":"j-1","n":3,"ok":true,"o":{"a":1},"list":[1],"none":null}"#);
        insta::assert_snapshot!(serde_json::to_string_pretty(&envelope).unwrap(), @r#"
        {
          "Data": {
            "message": "\"{\\\"jobId\\\":\\\"j-1\\\",\\\"n\\\":3,\\\"ok\\\":true,\\\"o\\\":{\\\"a\\\":1},\\\"list\\\":[1],\\\"none\\\":null}\""
          },
          "Metadata": {
            "DequeueCount": "1",
            "ExpirationTime": "2026-11-28T20:15:00+00:00",
            "Id": "\"800ae4b3-bdd2-4c08-badd-f08e5a34b865\"",
            "InsertionTime": "2026-11-21T20:15:00+00:00",
            "NextVisibleTime": "2026-11-21T20:25:02+00:00",
            "PopReceipt": "\"AgAAAAMAAAAAAAAAAgtnj8x+1QE=\"",
            "sys": {
              "MethodName": "turn",
              "UtcNow": "2026-11-21T20:15:02.2200000Z",
              "RandGuid": "00000000-0000-0001-0000-000000000007"
            },
            "jobId": "\"j-1\"",
            "n": "\"3\"",
            "ok": "\"True\"",
            "o": {
              "a": 1
            }
          }
        }
        "#);
    }

    #[test]
    fn message_members_overwrite_host_metadata() {
        let envelope = encode_message(r#"{"dequeueCount":"0","ID":"x","queueTrigger":"y"}"#);
        let metadata = envelope["Metadata"].as_object().unwrap();
        assert_eq!(metadata["DequeueCount"], r#""0""#);
        assert_eq!(metadata["Id"], r#""x""#);
        assert_eq!(metadata.len(), 7, "{metadata:?}");
    }

    #[test]
    fn timer_envelope_has_smallest_date_before_first_run() {
        let now = parse_iso("2026-11-21T20:15:02.220Z").unwrap();
        let ids = SeededIds::new(7);
        let status = TimerStatus { last_run: None, next_run: Some(now) };
        let envelope = timer_envelope(&read_function("sweep"), status, false, (now, &ids));
        insta::assert_snapshot!(envelope["Data"], @r#"{"timer":{"Schedule":{"AdjustForDST":true},"ScheduleStatus":{"Last":"0001-01-01T00:00:00+00:00","Next":"2026-11-21T20:15:02+00:00","LastUpdated":"0001-01-01T00:00:00+00:00"},"IsPastDue":false}}"#);
    }
}
