//! Responses of a server to requests, and their passage through the SDK.

use std::borrow::Cow;

use rmcp::model::{
    CustomResult, ErrorCode, ErrorData, InitializeResult, JsonRpcMessage, ProtocolVersion,
    RequestId, ServerCapabilities, ServerJsonRpcMessage, ServerResult,
};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::mcp::failure::McpFailure;
use crate::mcp::message::{SHOWN_BYTES_MAX, plain_text, shown};
use turnwheel_json::raw::RawJson;

/// The response to a request.
pub(in crate::mcp) struct ServerResponse {
    /// `None`: absent or null.
    pub(super) id: Option<RawJson>,
    pub(super) outcome: ResponseOutcome,
    /// Repairs of its JSON.
    pub(super) notes: Vec<&'static str>,
    /// True if requests or notifications of the server arrived before it, or may have arrived.
    pub(in crate::mcp) has_work_begun: bool,
}

pub(super) enum ResponseOutcome {
    Result(RawJson),
    Error(ResponseError),
    /// A message with an id, and with neither `result` nor `error`.
    NoOutcome(RawJson),
}

/// The member `error` of a response.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::mcp) struct ResponseError {
    /// A number, or any other text.
    pub(in crate::mcp) code: String,
    pub(in crate::mcp) text: String,
}

/// The response in the form in which it passes the SDK, which would lose digits and refuse odd
/// members.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
enum PassedResponse {
    Result { result: RawJson, notes: Vec<String> },
    Error(ResponseError),
    TooLarge,
}

/// The result of a request.
#[derive(Debug)]
pub(in crate::mcp) struct ReceivedResult {
    pub(in crate::mcp) json: RawJson,
    /// Repairs of its JSON.
    pub(in crate::mcp) notes: Vec<String>,
}

impl ResponseError {
    /// Reads an object `{code, message, data}` or any other JSON.
    pub(super) fn read(error: &RawJson) -> Self {
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

impl ServerResponse {
    pub(in crate::mcp) fn has_no_id(&self) -> bool {
        self.id.is_none()
    }

    pub(in crate::mcp) fn is_error(&self) -> bool {
        self.error().is_some()
    }

    /// True if it has an error, or a result that is not null.
    pub(in crate::mcp) fn has_outcome(&self) -> bool {
        match &self.outcome {
            ResponseOutcome::Result(result) => result.text() != "null",
            ResponseOutcome::Error(_) => true,
            ResponseOutcome::NoOutcome(_) => false,
        }
    }

    pub(in crate::mcp) fn error(&self) -> Option<&ResponseError> {
        match &self.outcome {
            ResponseOutcome::Error(error) => Some(error),
            ResponseOutcome::Result(_) | ResponseOutcome::NoOutcome(_) => None,
        }
    }

    /// True if it has this id, as a number or as text.
    pub(in crate::mcp) fn has_id(&self, wanted: &RequestId) -> bool {
        let Some(id) = &self.id else { return false };
        let text = plain_text(id);
        let wanted = wanted.to_string();
        text.trim() == wanted
            || text.trim().parse::<f64>().is_ok_and(|number| {
                wanted.parse::<f64>().is_ok_and(|wanted| (wanted - number).abs() < 0.5)
                    && number.fract() == 0.0
            })
    }

    /// True if it may be a response to a request before this one. Ids ascend.
    pub(in crate::mcp) fn has_id_before(&self, other: &RequestId) -> bool {
        let number = |text: &str| text.trim().parse::<f64>().ok();
        let own = self.id.as_ref().and_then(|id| number(&plain_text(id)));
        own.zip(number(&other.to_string())).is_some_and(|(own, other)| own < other)
    }

    /// The response in the SDK's types.
    ///
    /// # Errors
    /// It has no result of a handshake.
    pub(in crate::mcp) fn into_message(
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
                ResponseOutcome::Result(result) | ResponseOutcome::NoOutcome(result) => {
                    PassedResponse::Result { result, notes }
                }
                ResponseOutcome::Error(error) => PassedResponse::Error(error),
            },
        ))
    }

    fn into_handshake(self, id: RequestId) -> Result<ServerJsonRpcMessage, McpFailure> {
        let result = match self.outcome {
            ResponseOutcome::Result(result) | ResponseOutcome::NoOutcome(result) => result,
            ResponseOutcome::Error(ResponseError { code, text }) => {
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
pub(in crate::mcp) fn too_large_message(id: RequestId) -> ServerJsonRpcMessage {
    pass(id, &PassedResponse::TooLarge)
}

fn pass(id: RequestId, response: &PassedResponse) -> ServerJsonRpcMessage {
    let text = RawJson::from_value(response).text().to_owned();
    let result = ServerResult::CustomResult(CustomResult::new(Value::String(text)));
    JsonRpcMessage::response(result, id)
}

/// Reads a response that has passed the SDK.
///
/// # Errors
/// The server has refused the request, or its response cannot be used.
pub(in crate::mcp) fn received_result(
    response: ServerResult,
) -> Result<ReceivedResult, McpFailure> {
    let other = || McpFailure::Unreadable("its response is not one to this request".into());
    let ServerResult::CustomResult(CustomResult(Value::String(text))) = response else {
        return Err(other());
    };
    match serde_json::from_str(&text).map_err(|_| other())? {
        PassedResponse::Result { result: json, notes } => Ok(ReceivedResult { json, notes }),
        PassedResponse::Error(ResponseError { code, text }) => Err(McpFailure::refused(code, text)),
        PassedResponse::TooLarge => Err(McpFailure::too_large()),
    }
}
