//! Messages of a server. Only the envelope is read here: the id and the member `error` decide what a
//! message is, and no odd part of it costs the others.

use std::borrow::Cow;

use rmcp::model::{
    CustomResult, ErrorCode, ErrorData, InitializeResult, JsonRpcMessage, ProtocolVersion,
    RequestId, ServerCapabilities, ServerJsonRpcMessage, ServerResult,
};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::mcp::failure::McpFailure;
use turnwheel_json::body_kind::BodyKind;
use turnwheel_json::foreign::{ForeignJson, map_strings, read_foreign_json};
use turnwheel_json::raw::RawJson;

/// Bytes of a response that an error or an approval request shows.
pub(super) const SHOWN_BYTES_MAX: usize = 2 * 1024;

/// A message of a server.
pub(super) enum ServerMessage {
    Answer(ServerAnswer),
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

/// The response to a request.
pub(super) struct ServerAnswer {
    /// `None`: absent or null.
    id: Option<RawJson>,
    outcome: AnswerOutcome,
    /// Repairs of its JSON.
    notes: Vec<&'static str>,
    /// True if messages about the work on the request arrived before it.
    pub(super) has_begun: bool,
}

enum AnswerOutcome {
    Result(RawJson),
    Error(AnswerError),
    /// A message with an id, and with neither `result` nor `error`.
    Bare(RawJson),
}

/// The member `error` of a response.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct AnswerError {
    /// A number, or any other text.
    pub(super) code: String,
    pub(super) text: String,
}

/// The response in the form in which it passes the SDK, which would lose digits and refuse odd
/// members.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
enum PassedAnswer {
    Result { result: RawJson, notes: Vec<String> },
    Error(AnswerError),
    TooLarge,
}

/// The result of a request.
#[derive(Debug)]
pub(super) struct ReceivedResult {
    pub(super) json: RawJson,
    /// Repairs of its JSON.
    pub(super) notes: Vec<String>,
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
    let answer = |outcome: AnswerOutcome| {
        let (id, notes) = (id.clone(), notes.to_vec());
        ServerMessage::Answer(ServerAnswer { id, outcome, notes, has_begun: false })
    };
    let result = member("result");
    let has_result = result.as_ref().is_some_and(|it| it.text() != "null");
    let error = member("error").filter(|it| !matches!(it.text(), "null" | "false"));
    // Some serialisers write the empty error of a request that succeeded.
    if let Some(error) = error.filter(|it| !has_result || !is_empty(&it.to_value())) {
        return answer(AnswerOutcome::Error(AnswerError::read(&error)));
    }
    if let Some(result) = result {
        return answer(AnswerOutcome::Result(result));
    }
    match (member("method").and_then(|it| it.read::<String>().ok()), &id) {
        (Some(method), None) => ServerMessage::Notification { method, params: member("params") },
        (Some(method), Some(id)) => match id.read::<RequestId>() {
            Ok(id) => ServerMessage::Request { id, method },
            Err(_) => ServerMessage::Unknown,
        },
        // It names a request, and so it is an answer.
        (None, Some(_)) => answer(AnswerOutcome::Bare(json)),
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
    pub(super) fn is_of_work(&self) -> bool {
        match self {
            Self::Request { .. } | Self::Notification { .. } => true,
            Self::Answer(_) | Self::Unknown => false,
        }
    }
}

impl AnswerError {
    /// Reads an object `{code, message, data}` or any other JSON.
    fn read(error: &RawJson) -> Self {
        let Some(members) = error.members() else {
            return Self { code: "unknown".to_owned(), text: plain_text(error) };
        };
        let find = |name: &str| {
            members.iter().find(|(other, value)| other == name && value.text() != "null")
        };
        let text_of = |name: &str| find(name).map(|(_, value)| plain_text(value));
        let text = match (text_of("message"), text_of("data")) {
            (Some(message), None) => message,
            (Some(message), Some(data)) => format!("{message} ({data})"),
            (None, _) => error.text().to_owned(),
        };
        let code = text_of("code").unwrap_or_else(|| "unknown".to_owned());
        Self { code: shown(&code, 100), text: shown(&text, SHOWN_BYTES_MAX) }
    }
}

impl ServerAnswer {
    pub(super) fn has_no_id(&self) -> bool {
        self.id.is_none()
    }

    pub(super) fn is_error(&self) -> bool {
        self.error().is_some()
    }

    /// True if it has an error, or a result that is not null.
    pub(super) fn has_outcome(&self) -> bool {
        match &self.outcome {
            AnswerOutcome::Result(result) => result.text() != "null",
            AnswerOutcome::Error(_) => true,
            AnswerOutcome::Bare(_) => false,
        }
    }

    pub(super) fn error(&self) -> Option<&AnswerError> {
        match &self.outcome {
            AnswerOutcome::Error(error) => Some(error),
            AnswerOutcome::Result(_) | AnswerOutcome::Bare(_) => None,
        }
    }

    pub(super) fn into_error(self) -> Option<AnswerError> {
        match self.outcome {
            AnswerOutcome::Error(error) => Some(error),
            AnswerOutcome::Result(_) | AnswerOutcome::Bare(_) => None,
        }
    }

    /// True if it has this id, as a number or as text.
    pub(super) fn has_id(&self, wanted: &RequestId) -> bool {
        let Some(id) = &self.id else { return false };
        let text = plain_text(id);
        let wanted = wanted.to_string();
        text.trim() == wanted
            || text.trim().parse::<f64>().is_ok_and(|number| {
                wanted.parse::<f64>().is_ok_and(|wanted| (wanted - number).abs() < 0.5)
                    && number.fract() == 0.0
            })
    }

    /// The response in the SDK's types.
    ///
    /// # Errors
    /// It has no result of a handshake.
    pub(super) fn into_message(
        self,
        id: RequestId,
        is_handshake: bool,
    ) -> Result<ServerJsonRpcMessage, McpFailure> {
        if is_handshake {
            return self.into_handshake(id);
        }
        let notes = self.notes.into_iter().map(str::to_owned).collect();
        Ok(pass(
            id,
            &match self.outcome {
                AnswerOutcome::Result(result) | AnswerOutcome::Bare(result) => {
                    PassedAnswer::Result { result, notes }
                }
                AnswerOutcome::Error(error) => PassedAnswer::Error(error),
            },
        ))
    }

    fn into_handshake(self, id: RequestId) -> Result<ServerJsonRpcMessage, McpFailure> {
        let result = match self.outcome {
            AnswerOutcome::Result(result) | AnswerOutcome::Bare(result) => result,
            AnswerOutcome::Error(AnswerError { code, text }) => {
                let text = match code.parse::<i32>() {
                    Ok(_) => text,
                    Err(_) => format!("{code}: {text}"),
                };
                let code = ErrorCode(code.parse().unwrap_or(ErrorCode::INTERNAL_ERROR.0));
                let error = ErrorData::new(code, Cow::Owned(text), None);
                return Ok(JsonRpcMessage::error(error, Some(id)));
            }
        };
        let read = result.read::<InitializeResult>().ok().or_else(|| {
            // Of an odd result the version is enough: tools are asked for in any case.
            let version = result.string_member("protocolVersion")?;
            let version: ProtocolVersion = serde_json::from_value(Value::String(version)).ok()?;
            let result = InitializeResult::new(ServerCapabilities::default());
            Some(result.with_protocol_version(version))
        });
        let result = read.ok_or_else(|| {
            McpFailure::Unreadable("it did not complete the handshake of MCP".into())
        })?;
        Ok(JsonRpcMessage::response(ServerResult::InitializeResult(result), id))
    }
}

/// The response to a request whose own response is larger than its bound.
pub(super) fn too_large_message(id: RequestId) -> ServerJsonRpcMessage {
    pass(id, &PassedAnswer::TooLarge)
}

fn pass(id: RequestId, answer: &PassedAnswer) -> ServerJsonRpcMessage {
    let text = RawJson::from_value(answer).text().to_owned();
    let result = ServerResult::CustomResult(CustomResult::new(Value::String(text)));
    JsonRpcMessage::response(result, id)
}

/// Reads a response that has passed the SDK.
///
/// # Errors
/// The server has refused the request, or its response cannot be used.
pub(super) fn received_result(response: ServerResult) -> Result<ReceivedResult, McpFailure> {
    let other = || McpFailure::Unreadable("its response is not one to this request".into());
    let ServerResult::CustomResult(CustomResult(Value::String(text))) = response else {
        return Err(other());
    };
    match serde_json::from_str(&text).map_err(|_| other())? {
        PassedAnswer::Result { result: json, notes } => Ok(ReceivedResult { json, notes }),
        PassedAnswer::Error(AnswerError { code, text }) => {
            Err(McpFailure::Refused { code, text, needs_new_session: false })
        }
        PassedAnswer::TooLarge => Err(McpFailure::too_large()),
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
    use super::*;

    fn only(text: &str) -> ServerMessage {
        let mut messages = read_messages(text, &|_| None).unwrap();
        assert_eq!(messages.len(), 1, "{text}");
        messages.remove(0)
    }

    fn answer(text: &str) -> ServerAnswer {
        let ServerMessage::Answer(answer) = only(text) else { panic!("{text}") };
        answer
    }

    #[test]
    fn answer_is_known_by_its_id() {
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
            let answer = answer(text);
            assert!(answer.has_id(&RequestId::Number(7)) && !answer.is_error(), "{text}");
            assert!(!answer.has_id(&RequestId::Number(8)), "{text}");
        }
        assert!(answer(r#"{"id":null,"error":{}}"#).has_no_id());
    }

    #[test]
    fn each_line_may_be_a_message() {
        let text = "{\"method\":\"notifications/message\"}\r\n\n{\"id\":7,\"result\":{}}\n";
        let messages = read_messages(text, &|_| None).unwrap();
        let [ServerMessage::Notification { .. }, ServerMessage::Answer(answer)] = &messages[..]
        else {
            panic!("{text}")
        };
        assert!(answer.has_id(&RequestId::Number(7)));
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
            let error = answer(&format!(r#"{{"id":1,"result":null,"error":{text}}}"#));
            let error = error.into_error().unwrap();
            assert_eq!((error.code.as_str(), error.text.as_str()), (code, message), "{text}");
        }
    }

    #[test]
    fn other_messages_are_no_answers() {
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
        let answer = answer(r#"{"id":1,"result":{"n":12345678901234567890.1230,"x":NaN}}"#);
        let message = answer.into_message(RequestId::Number(1), false).unwrap();
        let JsonRpcMessage::Response(response) = message else { panic!("{message:?}") };
        let received = received_result(response.result).unwrap();
        assert_eq!(received.json.text(), r#"{"n":12345678901234567890.1230,"x":"NaN"}"#);
        assert_eq!(received.notes.len(), 1);
    }
}
