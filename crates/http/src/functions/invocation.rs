//! Envelopes of invocations: `{"Data": {<binding>: …}, "Metadata": {…}}`, most of it JSON inside
//! JSON strings.

use std::collections::BTreeMap;

use axum::http::HeaderMap;
use serde::Deserialize;
use serde_json::Value;

use turnwheel_json::raw::RawJson;

/// The binding's name in every queue function's `function.json`.
pub const MESSAGE_BINDING: &str = "message";
/// The binding's name in `sweep`'s `function.json`.
pub const TIMER_BINDING: &str = "timer";

#[derive(Debug, thiserror::Error)]
pub enum EnvelopeError {
    /// Names the position only: the JSON error itself quotes content.
    #[error("the envelope is not the host's JSON (line {line}, column {column})")]
    NotJson { line: usize, column: usize },
    #[error(
        "the envelope has no binding `{name}`: name the trigger of functions/{function}/function.json `{name}`"
    )]
    NoBinding { function: String, name: &'static str },
}

/// One invocation by the host.
#[derive(Clone, Debug, PartialEq)]
pub struct Invocation {
    /// Name of the function folder, from the path.
    pub function: String,
    pub data: BTreeMap<String, RawJson>,
    /// Untrusted: the host copies the members of a JSON message over its own, so a message can
    /// forge even `DequeueCount`. Decide nothing by it.
    pub metadata: BTreeMap<String, RawJson>,
    pub invocation_id: Option<String>,
    pub traceparent: Option<String>,
}

/// Metadata of an invocation, apart from its input.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InvocationMeta {
    pub invocation_id: Option<String>,
    pub traceparent: Option<String>,
    /// The queue's id of the message. `None` if the message could have forged it.
    pub message_id: Option<String>,
}

/// Timer data of an invocation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TimerInfo {
    /// True if a run was missed while no host was running.
    pub is_past_due: bool,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Envelope {
    #[serde(default)]
    data: BTreeMap<String, RawJson>,
    #[serde(default)]
    metadata: BTreeMap<String, RawJson>,
}

impl Invocation {
    /// Reads the envelope of an invocation.
    ///
    /// # Errors
    /// The body is not an envelope. Respond to the host that the invocation failed.
    pub fn decode(
        function: String,
        headers: &HeaderMap,
        body: &[u8],
    ) -> Result<Self, EnvelopeError> {
        let envelope: Envelope = serde_json::from_slice(body).map_err(|error| {
            EnvelopeError::NotJson { line: error.line(), column: error.column() }
        })?;
        let header =
            |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).map(str::to_owned);
        Ok(Self {
            function,
            data: envelope.data,
            metadata: envelope.metadata,
            invocation_id: header("x-azure-functions-invocationid"),
            traceparent: header("traceparent"),
        })
    }

    /// Returns the text of the queue message and the metadata.
    ///
    /// # Errors
    /// The trigger has another name, a mistake in `function.json`. Respond that the invocation
    /// failed.
    pub fn message(&self) -> Result<(String, InvocationMeta), EnvelopeError> {
        let binding = self.data.get(MESSAGE_BINDING).ok_or_else(|| EnvelopeError::NoBinding {
            function: self.function.clone(),
            name: MESSAGE_BINDING,
        })?;
        let text = binding_text(binding);
        let meta = self.meta(Some(&text));
        Ok((text, meta))
    }

    /// Returns the timer data. Unreadable timer data counts as a regular run.
    pub fn timer(&self) -> TimerInfo {
        let is_past_due = self
            .data
            .get(TIMER_BINDING)
            .map(RawJson::to_value)
            .and_then(|timer| timer.get("IsPastDue").and_then(Value::as_bool))
            .unwrap_or_default();
        TimerInfo { is_past_due }
    }

    /// Returns the metadata. `message` is the text of the queue message, if there is one.
    pub fn meta(&self, message: Option<&str>) -> InvocationMeta {
        let message_id = message
            .filter(|text| !is_metadata_overwritten(text, "id"))
            .and_then(|_| self.metadata.get("Id"))
            .map(binding_text);
        InvocationMeta {
            invocation_id: self.invocation_id.clone(),
            traceparent: self.traceparent.clone(),
            message_id,
        }
    }
}

/// Returns the text of a binding. The host sends strings as JSON inside a JSON string, but its
/// documentation shows plain strings, so both are accepted. Other values are returned as JSON.
pub fn binding_text(binding: &RawJson) -> String {
    match binding.read::<String>() {
        Ok(outer) => serde_json::from_str::<String>(&outer).unwrap_or(outer),
        Err(_) => binding.text().to_owned(),
    }
}

/// True if the host may have replaced its metadata `name` by a member of the message. The host
/// ignores case, and also reads objects with comments, single quotes, bare names and trailing commas.
/// Unicode white space around an object has no members, and the host reads the same ones within it.
fn is_metadata_overwritten(message: &str, name: &str) -> bool {
    let message = message.trim();
    let Ok(members) = serde_json::from_str::<BTreeMap<String, RawJson>>(message) else {
        return message.starts_with('{');
    };
    members
        .keys()
        .any(|key| key.to_lowercase() == name || key.to_uppercase() == name.to_uppercase())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn raw(text: &str) -> RawJson {
        RawJson::from_text(text).unwrap()
    }

    #[test]
    fn binding_text_reads_double_encoded_and_plain_strings() {
        for (binding, text) in [
            (r#""\"hello\"""#, "hello"),
            (r#""hello""#, "hello"),
            (r#""\"{\\\"n\\\":3}\"""#, r#"{"n":3}"#),
            (r#""{\"n\":3}""#, r#"{"n":3}"#),
            (r#"{"n":3}"#, r#"{"n":3}"#),
            (r#""\"\"""#, ""),
            (r#""""#, ""),
            ("3", "3"),
            (r#""\"a\\nb\\u00fc\"""#, "a\nbü"),
        ] {
            assert_eq!(binding_text(&raw(binding)), text, "{binding}");
        }
    }

    #[test]
    fn forged_message_id_is_ignored() {
        let meta = |message: &str| {
            let invocation = Invocation {
                function: "prompt".into(),
                data: BTreeMap::new(),
                metadata: BTreeMap::from([("Id".into(), raw(r#""\"7\"""#))]),
                invocation_id: None,
                traceparent: None,
            };
            invocation.meta(Some(message)).message_id
        };
        assert_eq!(meta(r#"{"input":"hello"}"#).as_deref(), Some("7"));
        assert_eq!(meta("aWQ=").as_deref(), Some("7"));
        assert_eq!(meta("\u{feff}{id: 7}").as_deref(), Some("7"), "the host reads no object here");
        for space in ["\u{a0}", "\u{3000}", "\u{2028}\n"] {
            let spaced = format!("{space}{{\"input\":\"a\"}}{space}");
            assert_eq!(meta(&spaced).as_deref(), Some("7"), "{spaced:?}");
            for forged in ["{\"Id\":\"7\"}", "{id:7}", "{\"input\":\"a\",}"] {
                let spaced = format!("{space}{forged}{space}");
                assert_eq!(meta(&spaced), None, "{spaced:?}");
            }
        }
        for forged in [
            r#"{"id":"7"}"#,
            r#"{"ID":"7"}"#,
            r#"{"a":1,"Id":"7"}"#,
            r#"{"\u0069d":"7"}"#,
            "{'id':'7'}",
            "{id:7}",
            "\u{2003}\n{/* x */\"id\":7,}",
            "{\"id\":\"7\"} rest",
        ] {
            assert_eq!(meta(forged), None, "{forged}");
        }
    }

    #[test]
    fn invalid_envelope_error_quotes_no_content() {
        let headers = HeaderMap::new();
        for body in ["", "\"secret\"", "null", "{\"Data\":", "\u{0}"] {
            let error = Invocation::decode("turn".into(), &headers, body.as_bytes()).unwrap_err();
            assert!(
                error.to_string().starts_with("the envelope is not the host's JSON"),
                "{error}"
            );
            assert!(!error.to_string().contains("secret"), "content is in {error}");
        }
        let empty = Invocation::decode("turn".into(), &headers, b"{}").unwrap();
        assert_eq!(
            empty.message().unwrap_err().to_string(),
            "the envelope has no binding `message`: name the trigger of functions/turn/function.json `message`"
        );
    }
}
