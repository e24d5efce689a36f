//! Messages of a server. Only the envelope is read here: the id and the member `error` decide what a
//! message is, and no odd part of it costs the others.

use std::borrow::Cow;

use rmcp::model::RequestId;
use serde_json::Value;

use turnwheel_json::body_kind::BodyKind;
use turnwheel_json::foreign::{ForeignJson, map_strings, read_foreign_json};
use turnwheel_json::raw::RawJson;

mod response;

use response::ResponseOutcome;
pub(super) use response::{
    ReceivedResult, ResponseError, ServerResponse, received_result, too_large_message,
};

/// Bytes of a response that an error or an approval request shows.
pub(super) const SHOWN_BYTES_MAX: usize = 2 * 1024;

/// A message of a server.
pub(super) enum ServerMessage {
    Response(ServerResponse),
    Request {
        id: RequestId,
        method: String,
    },
    Notification {
        method: String,
        params: Option<RawJson>,
    },
    /// JSON that is no message, such as a heartbeat.
    Unknown,
}

/// The texts with messages in a body: the data of each event, or the whole body.
pub(super) fn message_texts(body: Cow<'_, str>) -> Vec<Cow<'_, str>> {
    if BodyKind::of_start(body.as_bytes()) != Some(BodyKind::Stream) {
        return vec![body];
    }
    let lines = body.replace("\r\n", "\n").replace('\r', "\n");
    let data_of = |event: &str| {
        let lines = event.lines().filter_map(|line| line.strip_prefix("data:"));
        lines.map(|line| line.strip_prefix(' ').unwrap_or(line)).collect::<Vec<_>>().join("\n")
    };
    lines.split("\n\n").map(data_of).map(Cow::Owned).collect()
}

/// Reads the messages in a text: one, a batch, or one in each line. `redact` removes secrets from a
/// string. `None`: the text is not JSON.
pub(super) fn read_messages(
    text: &str,
    redact: &dyn Fn(&str) -> Option<String>,
) -> Option<Vec<ServerMessage>> {
    let whole = read_foreign_json(text).map(|whole| vec![whole]);
    let mut documents =
        whole.or_else(|| documents_in_lines(text)).unwrap_or_else(|| leading_documents(text));
    if documents.is_empty() {
        documents = trailing_document(text);
    }
    if documents.is_empty() {
        return None;
    }
    let mut messages = Vec::new();
    for ForeignJson { json, notes } in documents {
        let json = map_strings(json, redact);
        let batch = match json.read::<Vec<RawJson>>() {
            Ok(batch) => batch,
            Err(_) => vec![json],
        };
        messages.extend(batch.into_iter().map(|json| read_message(json, &notes)));
    }
    Some(messages)
}

/// One document a line, more than one.
fn documents_in_lines(text: &str) -> Option<Vec<ForeignJson>> {
    let lines = text.lines().filter(|line| !line.trim().is_empty());
    let documents: Vec<ForeignJson> = lines.map(read_foreign_json).collect::<Option<_>>()?;
    (documents.len() > 1).then_some(documents)
}

/// The objects and arrays before other text, such as a line of a log behind the response.
fn leading_documents(text: &str) -> Vec<ForeignJson> {
    let text = text.trim_start_matches('\u{feff}');
    let values = serde_json::Deserializer::from_str(text).into_iter::<RawJson>();
    let whole = values.map_while(Result::ok).filter(|it| it.text().starts_with(['{', '[']));
    whole.filter_map(|json| read_foreign_json(json.text())).collect()
}

/// The object behind other text, such as warnings of a script before its response.
fn trailing_document(text: &str) -> Vec<ForeignJson> {
    let line = text.split_inclusive('\n').scan(0, |end, line| {
        let start = *end;
        *end += line.len();
        Some((start, line))
    });
    let start = line.skip(1).find(|(_, line)| line.starts_with('{'));
    let rest = start.and_then(|(start, _)| text.get(start..));
    rest.and_then(read_foreign_json).into_iter().collect()
}

fn read_message(json: RawJson, notes: &[&'static str]) -> ServerMessage {
    let Some(members) = json.members() else { return ServerMessage::Unknown };
    let member = |name: &str| {
        members.iter().find(|(other, _)| other == name).map(|(_, value)| value.clone())
    };
    let id = member("id").filter(|id| id.text() != "null");
    let response = |outcome: ResponseOutcome| {
        let (id, notes) = (id.clone(), notes.to_vec());
        ServerMessage::Response(ServerResponse { id, outcome, notes, has_work_begun: false })
    };
    let result = member("result");
    let has_result = result.as_ref().is_some_and(|it| it.text() != "null");
    let error = member("error").filter(|it| !matches!(it.text(), "null" | "false"));
    // Some serialisers write the empty error of a request that succeeded.
    if let Some(error) = error.filter(|it| !has_result || !is_empty(&it.to_value())) {
        return response(ResponseOutcome::Error(ResponseError::read(&error)));
    }
    if let Some(result) = result {
        return response(ResponseOutcome::Result(result));
    }
    match (member("method").and_then(|it| it.read::<String>().ok()), &id) {
        (Some(method), None) => ServerMessage::Notification { method, params: member("params") },
        (Some(method), Some(id)) => match id.read::<RequestId>() {
            Ok(id) => ServerMessage::Request { id, method },
            Err(_) => ServerMessage::Unknown,
        },
        // It names a request, and so it is a response.
        (None, Some(_)) => response(ResponseOutcome::NoOutcome(json)),
        (None, None) => ServerMessage::Unknown,
    }
}

/// True if no part of it has a value.
fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(value) => !value,
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::String(text) => text.trim().is_empty(),
        Value::Array(items) => items.iter().all(is_empty),
        Value::Object(members) => members.values().all(is_empty),
    }
}

impl ServerMessage {
    /// True if the server sends such a message while it works on a request.
    pub(super) fn is_server_initiated(&self) -> bool {
        match self {
            Self::Request { .. } | Self::Notification { .. } => true,
            Self::Response(_) | Self::Unknown => false,
        }
    }
}

/// A string as its text, and other JSON as it is written.
pub(super) fn plain_text(json: &RawJson) -> String {
    json.read::<String>().unwrap_or_else(|_| json.text().to_owned())
}

/// The beginning of a text of a server.
pub(super) fn shown(text: &str, bytes_max: usize) -> String {
    let text = text.trim();
    let start = text.get(..text.floor_char_boundary(bytes_max)).unwrap_or_default();
    if start.len() < text.len() { format!("{start}…") } else { start.to_owned() }
}

#[cfg(test)]
mod tests {
    use rmcp::model::JsonRpcMessage;

    use super::*;

    fn only(text: &str) -> ServerMessage {
        let mut messages = read_messages(text, &|_| None).unwrap();
        assert_eq!(messages.len(), 1, "{text}");
        messages.remove(0)
    }

    fn response(text: &str) -> ServerResponse {
        let ServerMessage::Response(response) = only(text) else { panic!("{text}") };
        response
    }

    #[test]
    fn response_is_known_by_its_id() {
        for text in [
            r#"{"jsonrpc":"2.0","id":7,"result":{}}"#,
            r#"{"id":"7","result":{},"error":null}"#,
            r#"[{"id":7.0,"result":null}]"#,
            r#"{"id":7e0,"error":false,"result":[NaN]}"#,
            r#"{"id":7,"error":"","result":{}}"#,
            r#"{"id":7,"error":{},"result":[]}"#,
            r#"{"id":7,"error":[],"result":"booked"}"#,
            r#"{"id":7,"error":0,"result":{}}"#,
            r#"{"id":7,"error":{"code":0,"message":" ","data":[null]},"result":{}}"#,
            r#"{"id":7}"#,
        ] {
            let response = response(text);
            assert!(response.has_id(&RequestId::Number(7)) && !response.is_error(), "{text}");
            assert!(!response.has_id(&RequestId::Number(8)), "{text}");
        }
        assert!(response(r#"{"id":null,"error":{}}"#).has_no_id());
    }

    #[test]
    fn each_line_may_be_a_message() {
        let text = "{\"method\":\"notifications/message\"}\r\n\n{\"id\":7,\"result\":{}}\n";
        let messages = read_messages(text, &|_| None).unwrap();
        let [ServerMessage::Notification { .. }, ServerMessage::Response(response)] = &messages[..]
        else {
            panic!("{text}")
        };
        assert!(response.has_id(&RequestId::Number(7)));
        for text in ["", "no JSON"] {
            assert!(read_messages(text, &|_| None).is_none(), "{text}");
        }
    }

    #[test]
    fn error_of_any_form_is_an_error() {
        for (text, code, message) in [
            (r#"{"code":-32602,"message":"no"}"#, "-32602", "no"),
            (r#"{"code":"E42","message":"no","data":{"a":1}}"#, "E42", r#"no ({"a":1})"#),
            (r#""no""#, "unknown", "no"),
            (r#"{"reason":5}"#, "unknown", r#"{"reason":5}"#),
            (r#"{"code":null,"message":5}"#, "unknown", "5"),
            ("true", "unknown", "true"),
            ("{}", "unknown", "{}"),
            ("[]", "unknown", "[]"),
            ("0", "unknown", "0"),
        ] {
            let error = response(&format!(r#"{{"id":1,"result":null,"error":{text}}}"#));
            let error = error.error().unwrap();
            assert_eq!((error.code.as_str(), error.text.as_str()), (code, message), "{text}");
        }
    }

    #[test]
    fn other_messages_are_no_responses() {
        let is_note = |text: &str| matches!(only(text), ServerMessage::Notification { .. });
        assert!(is_note(r#"{"method":"notifications/x","params":[1]}"#));
        assert!(is_note(r#"{"method":"notifications/x","id":null}"#));
        let ping = only(r#"{"method":"ping","id":"a"}"#);
        assert!(matches!(ping, ServerMessage::Request { method, .. } if method == "ping"));
        for text in [r#"{"heartbeat":1}"#, "5", "[[]]", r#"{"method":5}"#] {
            assert!(matches!(only(text), ServerMessage::Unknown), "{text}");
        }
        assert!(read_messages("ping", &|_| None).is_none());
        assert!(read_messages("[]", &|_| None).unwrap().is_empty());
    }

    #[test]
    fn result_keeps_digits_and_notes() {
        let response = response(r#"{"id":1,"result":{"n":12345678901234567890.1230,"x":NaN}}"#);
        let message = response.into_message(RequestId::Number(1), false).unwrap();
        let JsonRpcMessage::Response(response) = message else { panic!("{message:?}") };
        let received = received_result(response.result).unwrap();
        assert_eq!(received.json.text(), r#"{"n":12345678901234567890.1230,"x":"NaN"}"#);
        assert_eq!(received.notes.len(), 1);
    }
}
