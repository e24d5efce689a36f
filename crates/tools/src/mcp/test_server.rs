//! A hostile MCP server for tests.
#![expect(
    clippy::indexing_slicing,
    clippy::unwrap_used,
    reason = "a test fails by panicking, in its helpers too"
)]

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse as _, Response};
use axum::routing::post;
use futures_util::stream::{self, Stream, StreamExt as _};
use serde_json::{Value, json};

use crate::http::address_rules::AddressRules;
use crate::http::client::HttpClient;
use crate::http::redactor::Redactor;
use crate::http::template::SettingSecret;
use crate::mcp::authorization::Authorization;
use crate::mcp::{Connector, HttpConnector, McpServer};

/// Response to the next call of a tool.
#[derive(Clone, Debug)]
pub enum Reply {
    Result(Value),
    /// Server-sent events, each with one message. The response has the id `ID`.
    Stream(Vec<Value>),
    Status(u16),
    Error(i32),
    /// A body of JSON.
    Text(String),
    /// Status, media type and body. `"ID"` in it is the id of the request.
    Raw(u16, &'static str, Vec<u8>),
    /// A body of that many bytes.
    Bytes(usize),
    /// Media type and beginning of a body, as in `Raw`. Then the connection is cut.
    Cut(&'static str, String),
    /// Media type and beginning of a body, as in `Raw`. The connection stays open.
    Open(&'static str, String),
    /// No response.
    Hang,
    /// Events without an end and without a response.
    EndlessEvents,
    /// The session is unknown.
    SessionLost,
}

#[derive(Default)]
struct ServerState {
    tools: Value,
    replies: VecDeque<Reply>,
    requests: Vec<(String, HeaderMap, Value)>,
    is_down: bool,
    /// Number of calls by session, if the server needs sessions.
    sessions: Option<BTreeMap<String, u32>>,
    /// Prefix of the ids of sessions.
    session_prefix: String,
    /// Response to a request of an unknown session; `None`: as [`Reply::SessionLost`].
    unknown_session: Option<Reply>,
    /// Status of the responses to notifications.
    notification_status: Option<StatusCode>,
    /// Results of `tools/list` in place of `tools`, in order; the last one is repeated.
    pages: VecDeque<Value>,
    /// Requests to other paths.
    other_requests: usize,
    /// Headers and bodies of the token requests.
    token_requests: Vec<(HeaderMap, String)>,
    /// The only access token that the server accepts.
    token: Option<String>,
}

/// The server, which ends with its runtime.
#[derive(Clone)]
pub struct TestServer {
    pub url: String,
    state: Arc<Mutex<ServerState>>,
}

impl fmt::Debug for TestServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TestServer").finish_non_exhaustive()
    }
}

pub fn tool(name: &str, description: &str) -> Value {
    json!({
        "name": name,
        "description": description,
        "inputSchema": { "type": "object", "properties": { "n": { "type": "integer" } } }
    })
}

impl TestServer {
    pub async fn start(tools: Value) -> Self {
        let state = Arc::new(Mutex::new(ServerState { tools, ..ServerState::default() }));
        let router = Router::new()
            .route("/mcp", post(respond))
            .route("/token", post(issue_token))
            .fallback(count_other)
            .with_state(Arc::clone(&state));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/mcp", listener.local_addr().unwrap());
        #[expect(
            clippy::disallowed_methods,
            reason = "the server ends with the runtime of its test"
        )]
        tokio::spawn(async move { axum::serve(listener, router).await });
        Self { url, state }
    }

    /// The server's entry in `mcp.json`, without and with trust.
    pub fn connect(&self, is_trusted: bool) -> Arc<McpServer> {
        self.connect_with(is_trusted, None)
    }

    pub(crate) fn connect_with(
        &self,
        is_trusted: bool,
        auth: Option<Authorization>,
    ) -> Arc<McpServer> {
        let connector = HttpConnector { auth, ..self.connector() };
        new_server(is_trusted, connector)
    }

    /// Needs a session in each request from now on. Its entry in `mcp.json` has a session for each
    /// conversation.
    pub fn connect_conversations(&self) -> Arc<McpServer> {
        self.state.lock().unwrap().sessions.get_or_insert_default();
        let connector = HttpConnector { has_conversation_sessions: true, ..self.connector() };
        new_server(false, connector)
    }

    pub fn connector(&self) -> HttpConnector {
        let secret = SettingSecret { name: "KEY".to_owned(), value: "s3cret-value".to_owned() };
        HttpConnector {
            url: self.url.parse().unwrap(),
            headers: Vec::new(),
            auth: None,
            client: HttpClient::new(AddressRules::default().with_loopback()).unwrap(),
            redactor: Redactor::new([&secret].into_iter()),
            has_conversation_sessions: false,
        }
    }

    /// The server has lost all sessions.
    pub fn forget_sessions(&self) {
        let mut state = self.state.lock().unwrap();
        let sessions = state.sessions.as_mut().unwrap();
        for calls in sessions.values_mut() {
            *calls = u32::MAX;
        }
    }

    #[cfg(test)]
    pub(crate) fn set_session_prefix(&self, prefix: &str) {
        prefix.clone_into(&mut self.state.lock().unwrap().session_prefix);
    }

    /// Responds so to each request of a session that it has lost.
    #[cfg(test)]
    pub(crate) fn set_unknown_session(&self, reply: Reply) {
        self.state.lock().unwrap().unknown_session = Some(reply);
    }

    #[cfg(test)]
    pub(crate) fn refuse_notifications(&self, status: u16) {
        let status = StatusCode::from_u16(status).unwrap();
        self.state.lock().unwrap().notification_status = Some(status);
    }

    #[cfg(test)]
    pub(crate) fn set_pages(&self, pages: impl IntoIterator<Item = Value>) {
        self.state.lock().unwrap().pages = pages.into_iter().collect();
    }

    pub fn set_tools(&self, tools: Value) {
        self.state.lock().unwrap().tools = tools;
    }

    pub fn set_down(&self, is_down: bool) {
        self.state.lock().unwrap().is_down = is_down;
    }

    /// Accepts only the access token that the server issues next.
    #[cfg(test)]
    pub(crate) fn revoke_token(&self) {
        self.state.lock().unwrap().token = Some(String::new());
    }

    pub fn token_requests(&self) -> Vec<(HeaderMap, String)> {
        self.state.lock().unwrap().token_requests.clone()
    }

    #[cfg(test)]
    pub(crate) fn other_requests(&self) -> usize {
        self.state.lock().unwrap().other_requests
    }

    pub fn reply(&self, reply: Reply) {
        self.state.lock().unwrap().replies.push_back(reply);
    }

    /// Methods of the requests so far.
    pub fn methods(&self) -> Vec<String> {
        self.state.lock().unwrap().requests.iter().map(|it| it.0.clone()).collect()
    }

    pub fn count(&self, method: &str) -> usize {
        self.methods().iter().filter(|it| *it == method).count()
    }

    /// Headers of all requests of that method.
    #[cfg(test)]
    pub(crate) fn requests_of(&self, method: &str) -> Vec<HeaderMap> {
        let state = self.state.lock().unwrap();
        state.requests.iter().filter(|it| it.0 == method).map(|it| it.1.clone()).collect()
    }

    /// Headers and message of the last request of that method.
    pub fn last(&self, method: &str) -> (HeaderMap, Value) {
        let state = self.state.lock().unwrap();
        let found = state.requests.iter().rev().find(|it| it.0 == method);
        found.map(|it| (it.1.clone(), it.2.clone())).unwrap()
    }
}

pub(crate) fn new_server(is_trusted: bool, connector: HttpConnector) -> Arc<McpServer> {
    let connector = Connector::Http(Box::new(connector));
    Arc::new(McpServer::new("desk", "i".to_owned(), is_trusted, connector))
}

impl ServerState {
    /// The session of a request. `None`: it is unknown.
    fn find_session(&mut self, method: &str, headers: &HeaderMap) -> Option<String> {
        let Some(sessions) = &mut self.sessions else { return Some("s1".to_owned()) };
        if method == "initialize" {
            let id = format!("{}s{}", self.session_prefix, sessions.len() + 1);
            sessions.insert(id.clone(), 0);
            return Some(id);
        }
        let id = headers.get("mcp-session-id")?.to_str().ok()?.to_owned();
        let calls = sessions.get_mut(&id).filter(|calls| **calls < u32::MAX)?;
        *calls += u32::from(method == "tools/call");
        Some(id)
    }
}

impl Reply {
    /// The response to the request with the id.
    fn into_response_of(self, id: &Value, session: String) -> Response {
        const JSON: [(&str, &str); 1] = [("content-type", "application/json")];
        const EVENTS: [(&str, &str); 1] = [("content-type", "text/event-stream")];
        match self {
            Self::Result(result) => {
                let body = json!({ "jsonrpc": "2.0", "id": id, "result": result }).to_string();
                (JSON, [("mcp-session-id", session)], body).into_response()
            }
            Self::Stream(messages) => {
                let id = id.to_string();
                let messages = messages.iter().map(|it| it.to_string().replace("\"ID\"", &id));
                let events: Vec<String> = messages.map(|it| format!("data: {it}\n\n")).collect();
                (EVENTS, events.concat()).into_response()
            }
            Self::Status(status) => {
                let status = StatusCode::from_u16(status).unwrap();
                (status, [("location", "/other")], "no: s3cret-value").into_response()
            }
            Self::Error(code) => {
                let error = json!({ "code": code, "message": "refused" });
                let body = json!({ "jsonrpc": "2.0", "id": id, "error": error }).to_string();
                (JSON, body).into_response()
            }
            Self::Text(body) => (JSON, body).into_response(),
            Self::Raw(status, mime_type, body) => {
                let id = id.to_string();
                let mut parts = Vec::new();
                let mut rest = body.as_slice();
                while let Some(at) = rest.windows(4).position(|bytes| bytes == b"\"ID\"") {
                    parts.extend_from_slice(&rest[..at]);
                    parts.extend_from_slice(id.as_bytes());
                    rest = &rest[at + 4..];
                }
                parts.extend_from_slice(rest);
                let status = StatusCode::from_u16(status).unwrap();
                (status, [("content-type", mime_type)], parts).into_response()
            }
            Self::Bytes(count) => (JSON, vec![b' '; count]).into_response(),
            Self::Cut(mime_type, body) => {
                let cut = stream::once(async {
                    // The server sends the chunks of a body that has to wait.
                    tokio::time::sleep(Duration::from_millis(20)).await;
                    Err(std::io::Error::other("cut"))
                });
                begin_response(mime_type, &body, id, cut)
            }
            Self::Open(mime_type, body) => begin_response(mime_type, &body, id, stream::pending()),
            Self::Hang => {
                let never = stream::pending::<Result<Bytes, std::io::Error>>();
                (EVENTS, Body::from_stream(never)).into_response()
            }
            Self::EndlessEvents => {
                let params = json!({ "level": "info", "data": "x".repeat(60_000) });
                let method = "notifications/message";
                let event = json!({ "jsonrpc": "2.0", "method": method, "params": params });
                let event = Bytes::from(format!("data: {event}\n\n"));
                let events = stream::repeat_with(move || Ok::<_, std::io::Error>(event.clone()));
                (EVENTS, Body::from_stream(events)).into_response()
            }
            Self::SessionLost => StatusCode::NOT_FOUND.into_response(),
        }
    }
}

/// A response that begins with this body.
fn begin_response(
    mime_type: &'static str,
    body: &str,
    id: &Value,
    rest: impl Stream<Item = Result<Bytes, std::io::Error>> + Send + 'static,
) -> Response {
    let body = Bytes::from(body.replace("\"ID\"", &id.to_string()));
    let chunks = stream::once(std::future::ready(Ok(body))).chain(rest);
    ([("content-type", mime_type)], Body::from_stream(chunks)).into_response()
}

async fn respond(
    State(state): State<Arc<Mutex<ServerState>>>,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let message: Value = serde_json::from_slice(&body).unwrap();
    let method = message["method"].as_str().unwrap_or("reply").to_owned();
    let (tools, reply, session, page) = {
        let mut state = state.lock().unwrap();
        let is_authorised = state.token.as_ref().is_none_or(|token| {
            let bearer = headers.get("authorization").and_then(|it| it.to_str().ok());
            bearer.and_then(|it| it.strip_prefix("Bearer ")) == Some(token)
        });
        let session = state.find_session(&method, &headers);
        state.requests.push((method.clone(), headers, message.clone()));
        if !is_authorised {
            return StatusCode::UNAUTHORIZED.into_response();
        }
        if state.is_down {
            return StatusCode::SERVICE_UNAVAILABLE.into_response();
        }
        if let Some(status) = state.notification_status
            && method.starts_with("notifications/")
        {
            return status.into_response();
        }
        let Some(id) = session else {
            let reply = state.unknown_session.clone().unwrap_or(Reply::SessionLost);
            return reply.into_response_of(&message["id"], String::new());
        };
        let calls = state.sessions.as_ref().and_then(|it| it.get(&id)).copied();
        let reply = if method == "tools/call" { state.replies.pop_front() } else { None };
        let is_list = method == "tools/list";
        let page = match state.pages.len() {
            2.. if is_list => state.pages.pop_front(),
            1 if is_list => state.pages.front().cloned(),
            _ => None,
        };
        (state.tools.clone(), reply, (id, calls), page)
    };
    let result = match method.as_str() {
        "initialize" => json!({
            "protocolVersion": message["params"]["protocolVersion"],
            "capabilities": { "tools": {} },
            "serverInfo": { "name": "hostile", "version": "1" }
        }),
        "tools/list" => page.unwrap_or_else(|| json!({ "tools": tools })),
        "tools/call" => {
            let text = match &session {
                (id, Some(calls)) => format!("call {calls} of {id}"),
                (_, None) => format!("ran {}", message["params"]["name"]),
            };
            json!({ "content": [{ "type": "text", "text": text }] })
        }
        _ => return StatusCode::ACCEPTED.into_response(),
    };
    reply.unwrap_or(Reply::Result(result)).into_response_of(&message["id"], session.0)
}

async fn count_other(State(state): State<Arc<Mutex<ServerState>>>) -> StatusCode {
    state.lock().unwrap().other_requests += 1;
    StatusCode::NOT_FOUND
}

async fn issue_token(
    State(state): State<Arc<Mutex<ServerState>>>,
    headers: HeaderMap,
    body: String,
) -> Response {
    let mut state = state.lock().unwrap();
    state.token_requests.push((headers, body));
    if state.is_down {
        let error = json!({ "error": "invalid_client", "error_description": "s3cret-value" });
        return (StatusCode::UNAUTHORIZED, error.to_string()).into_response();
    }
    let token = format!("token-{}", state.token_requests.len());
    state.token = Some(token.clone());
    json!({ "access_token": token, "token_type": "Bearer", "expires_in": 3600 })
        .to_string()
        .into_response()
}
