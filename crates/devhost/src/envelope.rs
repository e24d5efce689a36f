//! The body of an invocation, encoded as the Functions host does. A text is JSON inside a JSON
//! string, a date has whole seconds, and the members of a message are merged into the metadata.
//!
//! Source: azure-functions-host,
//! `ScriptInvocationContextExtensions.ToHttpScriptInvocationContext` and
//! `Utility.ApplyBindingData`; the queue's names are from `QueueTriggerBinding.cs`.

use serde_json::{Map, Value, json};

use super::function::Function;
use super::json::{Json, JsonReader, quote};
use turnwheel_platform::clock::Timestamp;
use turnwheel_platform::ids::Ids;
use turnwheel_storage::queue::QueueMessage;

/// The runs of a timer. `None`: it has not run yet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct TimerStatus {
    pub last_run: Option<Timestamp>,
    /// In the envelope of a scheduled run, this is the run itself.
    pub next_run: Option<Timestamp>,
}

/// Facts of every envelope besides its input.
#[derive(Clone, Copy)]
pub(crate) struct EnvelopeContext<'a> {
    pub now: Timestamp,
    pub ids: &'a dyn Ids,
    pub json: JsonReader,
}

/// .NET's smallest and greatest dates: the timer never ran, the message never expires.
const NEVER: &str = "0001-01-01T00:00:00+00:00";
const FOREVER: &str = "9999-12-31T23:59:59+00:00";

pub(crate) fn message_envelope(
    function: &Function,
    message: &QueueMessage,
    context: EnvelopeContext<'_>,
) -> Value {
    let mut metadata = Map::new();
    metadata.insert("DequeueCount".into(), message.dequeue_count.to_string().into());
    metadata.insert("ExpirationTime".into(), format_date(message.expires_at));
    metadata.insert("Id".into(), quote(&message.id).into());
    metadata.insert("InsertionTime".into(), format_date(message.inserted_at));
    metadata.insert("NextVisibleTime".into(), format_date(message.next_visible_at));
    metadata.insert("PopReceipt".into(), quote(&message.pop_receipt).into());
    metadata.insert("sys".into(), system_metadata(function, context));
    text_envelope(function, &message.text, metadata, context.json)
}

/// The envelope of a queue function that an operator runs: it has no message.
pub(crate) fn manual_envelope(
    function: &Function,
    input: &str,
    context: EnvelopeContext<'_>,
) -> Value {
    let mut metadata = Map::new();
    metadata.insert("DequeueCount".into(), "0".into());
    metadata.insert("ExpirationTime".into(), FOREVER.into());
    metadata.insert("InsertionTime".into(), format_date(context.now));
    metadata.insert("NextVisibleTime".into(), FOREVER.into());
    metadata.insert(function.binding.clone(), quote(input).into());
    metadata.insert("sys".into(), system_metadata(function, context));
    text_envelope(function, input, metadata, context.json)
}

fn text_envelope(
    function: &Function,
    text: &str,
    mut metadata: Map<String, Value>,
    json: JsonReader,
) -> Value {
    merge_members(text, &mut metadata, json);
    let mut data = Map::new();
    data.insert(function.binding.clone(), quote(text).into());
    json!({ "Data": data, "Metadata": metadata })
}

/// One run of a timer.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct TimerRun<'a> {
    pub status: TimerStatus,
    /// True if the run was missed while no host ran.
    pub is_past_due: bool,
    /// The input of an operator who runs the function.
    pub input: Option<&'a str>,
}

pub(crate) fn timer_envelope(
    function: &Function,
    run: TimerRun<'_>,
    context: EnvelopeContext<'_>,
) -> Value {
    let TimerRun { status, is_past_due, input } = run;
    let last = status.last_run.map_or_else(|| NEVER.into(), format_moment);
    let timer = json!({
        "Schedule": { "AdjustForDST": true },
        "ScheduleStatus": {
            "Last": last,
            "Next": status.next_run.map_or_else(|| NEVER.into(), format_moment),
            "LastUpdated": last,
        },
        "IsPastDue": is_past_due,
    });
    let mut data = Map::new();
    data.insert(function.binding.clone(), timer);
    let mut metadata = Map::new();
    if let Some(input) = input {
        metadata.insert(function.binding.clone(), quote(input).into());
    }
    metadata.insert("sys".into(), system_metadata(function, context));
    json!({ "Data": data, "Metadata": metadata })
}

/// Whole seconds.
fn format_date(time: Timestamp) -> Value {
    format!("{}+00:00", format_seconds(time)).into()
}

/// A fraction has seven digits.
fn format_moment(time: Timestamp) -> Value {
    match time.0 % 1_000 {
        0 => format_date(time),
        fraction => format!("{}.{fraction:03}0000+00:00", format_seconds(time)).into(),
    }
}

/// `2026-11-21T20:15:00`
fn format_seconds(time: Timestamp) -> String {
    let text = Timestamp(time.0 / 1_000 * 1_000).to_string();
    text.trim_end_matches(".000Z").to_owned()
}

fn system_metadata(function: &Function, context: EnvelopeContext<'_>) -> Value {
    json!({
        "MethodName": function.name,
        "UtcNow": format!("{}.{:03}0000Z", format_seconds(context.now), context.now.0 % 1_000),
        "RandGuid": new_guid(context.ids),
    })
}

/// A new id with hyphens, as .NET writes one.
pub(crate) fn new_guid(ids: &dyn Ids) -> String {
    let fresh = ids.new_id();
    uuid::Uuid::try_parse(&fresh).map_or(fresh, |id| id.to_string())
}

/// Copies the members of a JSON message over the metadata, ignoring case. The author of a message
/// thus controls metadata. Arrays and nulls are skipped, and `…Trigger` members are dropped.
fn merge_members(text: &str, metadata: &mut Map<String, Value>, json: JsonReader) {
    let Some(Json::Object(members)) = json.read_container(text) else { return };
    for (name, value) in members {
        let lower = name.to_lowercase();
        let value = match &value {
            _ if lower.ends_with("trigger") => continue,
            Json::Null | Json::Array(_) => continue,
            Json::Object(_) => value.to_value(),
            Json::Bool(_) | Json::Integer(_) | Json::Float(_) | Json::Text(_) => {
                quote(&value.scalar_text().unwrap_or_default()).into()
            }
        };
        let same = metadata.keys().find(|key| key.to_lowercase() == lower).cloned();
        // A manual run has no value of these two, but their names.
        let own = ["Id", "PopReceipt"].into_iter().find(|own| own.to_lowercase() == lower);
        metadata.insert(same.or(own.map(ToOwned::to_owned)).unwrap_or(name), value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ScriptRoot;
    use turnwheel_platform::clock::parse_iso;
    use turnwheel_platform::ids::SeededIds;

    fn read_function(name: &str) -> Function {
        let text = ScriptRoot::embedded().functions.remove(name).unwrap();
        Function::read(name, name, &text).unwrap()
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

    fn context(now: Timestamp, ids: &dyn Ids) -> EnvelopeContext<'_> {
        EnvelopeContext { now, ids, json: JsonReader::default() }
    }

    fn encode_message(text: &str) -> Value {
        let now = parse_iso("2026-11-21T20:15:02.220Z").unwrap();
        let ids = SeededIds::new(7);
        message_envelope(&read_function("turn"), &new_message(text), context(now, &ids))
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
        let run = TimerRun { status, ..TimerRun::default() };
        let envelope = timer_envelope(&read_function("sweep"), run, context(now, &ids));
        insta::assert_snapshot!(envelope["Data"], @r#"{"timer":{"Schedule":{"AdjustForDST":true},"ScheduleStatus":{"Last":"0001-01-01T00:00:00+00:00","Next":"2026-11-21T20:15:02.2200000+00:00","LastUpdated":"0001-01-01T00:00:00+00:00"},"IsPastDue":false}}"#);
    }
}
