//! Responses of servers that do not know the session of a request. The protocol has the status 404 for
//! it, and servers also respond with other statuses and with errors.

use axum::http::{HeaderMap, StatusCode};
use rmcp::model::ClientJsonRpcMessage;

use crate::mcp::failure::McpFailure;
use crate::mcp::message::ServerResponse;
use crate::mcp::transport::{PostFailure, SESSION_ID, exchange_of};
use turnwheel_json::raw::RawJson;

const INVALID_REQUEST: i32 = -32_600;
/// Code of an error about the arguments of a call.
const INVALID_PARAMS: i32 = -32_602;
/// Texts about a session that the server does not have.
const UNKNOWN: [&str; 8] = [
    "not found",
    "no valid",
    "invalid",
    "unknown",
    "no active",
    "not exist",
    "no longer exist",
    NOT_INITIALISED,
];
/// In both spellings.
const NOT_INITIALISED: &str = "not initiali";
/// Texts about the end of a session, perhaps during the request.
const ENDED: [&str; 2] = ["expired", "terminated"];
/// Words of an error that is only about the session, and not about the data of a tool.
const PROTOCOL_WORDS: &str = "a active again an and bad been connection does exist exists expired first \
    found has header id initialised initialization initialize initialized invalid is it longer mcp new no \
    not or please provided re reconnect reinitialize request send server session sessionid start \
    terminated the this to unauthorized unknown valid was with your";

/// A request of a session, and the status of its response.
#[derive(Clone, Copy)]
pub(super) struct SessionUse<'a> {
    status: StatusCode,
    session: &'a str,
    /// Of a tool call.
    arguments: Option<&'a RawJson>,
}

impl<'a> SessionUse<'a> {
    /// `None`: the request has no session.
    pub(super) fn new(
        status: StatusCode,
        headers: &'a HeaderMap,
        message: &'a ClientJsonRpcMessage,
    ) -> Option<Self> {
        let session = headers.get(SESSION_ID)?.to_str().unwrap_or_default();
        let arguments = exchange_of(message).and_then(|exchange| exchange.arguments.as_ref());
        Some(Self { status, session, arguments })
    }

    /// The failure of the request, if an error may be about its session. The request is sent again only
    /// if the server has refused it unread. `names_request`: the error has the id of the request.
    pub(super) fn failure_of(
        self,
        received: &ServerResponse,
        names_request: bool,
    ) -> Option<PostFailure> {
        let error = received.error()?;
        let (status, text) = (self.status, error.text.to_ascii_lowercase());
        let code = error.code.parse::<i32>().ok();
        // A tool's error may have any text. The protocol uses these codes for its own errors.
        let is_of_protocol = matches!(code, Some(INVALID_REQUEST | -32_005..=-32_000));
        let has_only_protocol_words = self.has_only_protocol_words(&text);
        let can_be_of_session = match status {
            StatusCode::NOT_FOUND | StatusCode::GONE => code != Some(INVALID_PARAMS),
            StatusCode::BAD_REQUEST | StatusCode::UNAUTHORIZED => is_of_protocol,
            // A 2xx status does not confirm a session error: some tools use these codes, too.
            _ if status.is_success() => {
                let is_of_tool = self.has_session_argument() || !has_only_protocol_words;
                is_of_protocol && !(names_request && is_of_tool)
            }
            _ => false,
        };
        let is_of_session = can_be_of_session && self.is_about_session(&text);
        let is_unread = !status.is_success()
            || (!received.has_work_begun
                && has_only_protocol_words
                && has_any(&text.replace("invalid request", ""), &UNKNOWN));
        if is_of_session && is_unread {
            return Some(PostFailure::SessionExpired);
        }
        // Some servers have only this code for an unknown session.
        let is_unspecific = match status {
            StatusCode::NOT_FOUND | StatusCode::GONE => true,
            _ => !names_request && (status.is_success() || status == StatusCode::BAD_REQUEST),
        };
        let may_be_of_session = is_of_session || (is_unspecific && code == Some(INVALID_REQUEST));
        may_be_of_session.then(|| {
            let (code, text) = (error.code.clone(), error.text.clone());
            McpFailure::Refused { code, text, needs_new_session: true }.into()
        })
    }

    /// The failure of the request after a response with another status than 2xx, without a result or
    /// error that names the request.
    pub(super) fn failure_of_body(self, body: &str) -> Option<PostFailure> {
        let body = body.to_ascii_lowercase();
        let is_unread = match self.status {
            StatusCode::NOT_FOUND | StatusCode::GONE => true,
            StatusCode::BAD_REQUEST => body.contains("session"),
            StatusCode::UNAUTHORIZED => self.is_about_session(&body),
            _ => false,
        };
        is_unread.then_some(PostFailure::SessionExpired)
    }

    /// True if the tool has sessions of its own, as of a browser or terminal.
    fn has_session_argument(self) -> bool {
        self.arguments.is_some_and(|it| it.text().to_ascii_lowercase().contains("session"))
    }

    fn is_about_session(self, text: &str) -> bool {
        if text.contains("session") {
            return has_any(text, &UNKNOWN) || has_any(text, &ENDED);
        }
        text.contains(NOT_INITIALISED) && self.has_only_protocol_words(text)
    }

    fn has_only_protocol_words(self, text: &str) -> bool {
        let id = self.session.to_ascii_lowercase();
        let text = if id.is_empty() { text.to_owned() } else { text.replace(&id, " ") };
        let mut words = text.split(|letter: char| !letter.is_alphanumeric());
        words.all(|word| word.is_empty() || PROTOCOL_WORDS.split(' ').any(|known| known == word))
    }
}

fn has_any(text: &str, parts: &[&str]) -> bool {
    parts.iter().any(|part| text.contains(part))
}
