//! Fake model on loopback that speaks the Responses API over a WebSocket and over HTTP. Like the
//! service, a socket keeps only its latest response.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::response::Response;
use axum::routing::get;
use axum::serve::ListenerExt as _;
use futures_util::{SinkExt as _, StreamExt as _};
use http::header::{CONNECTION, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_KEY, UPGRADE};
use http::{HeaderMap, StatusCode};
use hyper::upgrade::{OnUpgrade, Upgraded};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt as _;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use tokio_tungstenite::tungstenite::protocol::Role;

use super::fake_model::{ResponseScript, stream_script};

/// The response to one request, whatever its transport. Over HTTP only `Text` is a response.
#[derive(Clone, Debug)]
pub(crate) enum Reply {
    Text(String),
    /// As `Text`, truncated by the output limit.
    Truncated(String),
    /// These frames, then the response.
    Frames(Vec<Message>, String),
    /// The response; then the service closes the socket.
    ThenClose(String),
    /// The given number of events of the response; then the connection breaks.
    CutAfter(usize, String),
    /// An event in place of the response.
    Event(Value),
    /// These bytes in place of frames.
    Bytes(Vec<u8>),
    /// Only pings.
    Hang,
}

/// The response to each upgrade request.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Upgrades {
    Accepted,
    Rejected(u16),
    /// Accepted with the hash of another key.
    Forged,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Transport {
    Socket,
    Http,
}

/// One request for a response.
#[derive(Clone, Debug)]
pub(crate) struct ModelTurn {
    pub(crate) transport: Transport,
    pub(crate) body: Value,
    pub(crate) bytes: usize,
    /// Roles and texts that the model reads: those that the socket keeps, and those of the request.
    pub(crate) context: Vec<(String, String)>,
}

#[derive(Debug)]
pub(crate) struct SocketModel {
    /// The base URL, including `/openai/v1`.
    pub(crate) url: String,
    state: Arc<SocketModelState>,
    server: JoinHandle<()>,
}

#[derive(Debug)]
struct SocketModelState {
    upgrades: Upgrades,
    replies: Mutex<VecDeque<Reply>>,
    turns: Mutex<Vec<ModelTurn>>,
    turn_count: watch::Sender<usize>,
    upgrade_headers: Mutex<Vec<HeaderMap>>,
}

impl SocketModel {
    pub(crate) async fn start(
        upgrades: Upgrades,
        replies: impl IntoIterator<Item = Reply>,
    ) -> Self {
        let state = Arc::new(SocketModelState {
            upgrades,
            replies: Mutex::new(replies.into_iter().collect()),
            turns: Mutex::default(),
            turn_count: watch::Sender::default(),
            upgrade_headers: Mutex::default(),
        });
        let router = Router::new()
            .route("/openai/v1/responses", get(handle_upgrade).post(handle_post))
            .with_state(Arc::clone(&state));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/openai/v1", listener.local_addr().unwrap());
        // Each frame is a packet of its own; without this each waits for the acknowledgement before.
        let listener = listener.tap_io(|stream| stream.set_nodelay(true).unwrap());
        #[expect(clippy::disallowed_methods, reason = "a server beside the test, ended with it")]
        let server = tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        Self { url, state, server }
    }

    pub(crate) fn turns(&self) -> Vec<ModelTurn> {
        self.state.turns.lock().unwrap().clone()
    }

    pub(crate) fn transports(&self) -> Vec<Transport> {
        self.turns().into_iter().map(|turn| turn.transport).collect()
    }

    /// Headers of the upgrade requests.
    pub(crate) fn upgrades(&self) -> Vec<HeaderMap> {
        self.state.upgrade_headers.lock().unwrap().clone()
    }

    /// Waits until so many requests have arrived.
    pub(crate) async fn wait_for_turns(&self, count: usize) {
        let mut counts = self.state.turn_count.subscribe();
        counts.wait_for(|received| *received >= count).await.unwrap();
    }
}

impl Drop for SocketModel {
    fn drop(&mut self) {
        self.server.abort();
    }
}

impl SocketModelState {
    fn record(&self, turn: ModelTurn) -> usize {
        let count = {
            let mut turns = self.turns.lock().unwrap();
            turns.push(turn);
            turns.len()
        };
        self.turn_count.send_replace(count);
        count
    }

    fn next_reply(&self) -> Reply {
        self.replies.lock().unwrap().pop_front().unwrap_or_else(|| {
            let error = json!({ "code": "script_exhausted", "message": "no reply is left" });
            Reply::Event(json!({ "type": "error", "status": 500, "error": error }))
        })
    }
}

async fn handle_post(State(state): State<Arc<SocketModelState>>, body: Bytes) -> Response {
    let parsed: Value = serde_json::from_slice(&body).unwrap();
    let context = input_texts(&parsed);
    let turn = ModelTurn { transport: Transport::Http, body: parsed, bytes: body.len(), context };
    state.record(turn);
    let reply = state.next_reply();
    if let Reply::Text(text) = &reply {
        return stream_script(&ResponseScript::text(text));
    }
    let error = json!({ "error": { "code": "wrong_transport", "message": format!("{reply:?}") } });
    Response::builder().status(400).body(Body::from(error.to_string())).unwrap()
}

async fn handle_upgrade(
    State(state): State<Arc<SocketModelState>>,
    mut request: Request,
) -> Response {
    state.upgrade_headers.lock().unwrap().push(request.headers().clone());
    let key = request.headers()[SEC_WEBSOCKET_KEY].as_bytes().to_vec();
    let key = match state.upgrades {
        Upgrades::Rejected(status) => {
            return Response::builder().status(status).body(Body::from("no sockets")).unwrap();
        }
        Upgrades::Accepted => key,
        Upgrades::Forged => b"another".to_vec(),
    };
    let upgrading = hyper::upgrade::on(&mut request);
    #[expect(clippy::disallowed_methods, reason = "a server beside the test, ended with it")]
    tokio::spawn(serve_socket(state, upgrading));
    Response::builder()
        .status(StatusCode::SWITCHING_PROTOCOLS)
        .header(CONNECTION, "Upgrade")
        .header(UPGRADE, "websocket")
        .header(SEC_WEBSOCKET_ACCEPT, derive_accept_key(&key))
        .body(Body::empty())
        .unwrap()
}

type Socket = WebSocketStream<TokioIo<Upgraded>>;

/// The latest response of a socket, and all that the model has read and written for it.
#[derive(Default)]
struct Kept {
    response_id: Option<String>,
    context: Vec<(String, String)>,
}

async fn serve_socket(state: Arc<SocketModelState>, upgrading: OnUpgrade) {
    let Ok(upgraded) = upgrading.await else { return };
    let io = TokioIo::new(upgraded);
    let mut socket = WebSocketStream::from_raw_socket(io, Role::Server, None).await;
    let mut kept = Kept::default();
    while let Some(Ok(message)) = socket.next().await {
        let Message::Text(text) = message else { continue };
        let body: Value = serde_json::from_str(text.as_str()).unwrap();
        assert_eq!(body["type"], "response.create");
        let previous = body.get("previous_response_id").and_then(Value::as_str);
        let is_known = previous.is_none() || previous == kept.response_id.as_deref();
        let mut context = if previous.is_some() { kept.context } else { Vec::new() };
        context.extend(input_texts(&body));
        kept = Kept::default();
        let turn = ModelTurn {
            transport: Transport::Socket,
            bytes: text.len(),
            body,
            context: context.clone(),
        };
        let number = state.record(turn);
        if !is_known {
            let error = error_event(400, "previous_response_not_found");
            socket.send(frame(&error)).await.unwrap();
            continue;
        }
        let id = format!("resp_of_socket_{number}");
        let Some(text) = answer(&mut socket, state.next_reply(), &id).await else { return };
        context.push(("assistant".to_owned(), text));
        kept = Kept { response_id: Some(id), context };
    }
}

/// Sends the reply. Returns the text of the response; `None` if the connection ends.
async fn answer(socket: &mut Socket, reply: Reply, id: &str) -> Option<String> {
    let (text, stop) = match reply {
        Reply::Text(text) => (text, None),
        Reply::Truncated(text) => (text, Some("length".to_owned())),
        Reply::Frames(frames, text) => {
            for frame in frames {
                socket.send(frame).await.ok()?;
            }
            (text, None)
        }
        Reply::ThenClose(text) => {
            send_events(socket, &response_events(&text, None, id)).await?;
            let _ = socket.close(None).await;
            return None;
        }
        Reply::CutAfter(count, text) => {
            let events = response_events(&text, None, id);
            send_events(socket, events.get(..count).unwrap()).await?;
            return None;
        }
        Reply::Event(event) => {
            send_events(socket, &[event]).await?;
            return Some(String::new());
        }
        Reply::Bytes(bytes) => {
            let io = socket.get_mut();
            io.write_all(&bytes).await.ok()?;
            io.flush().await.ok()?;
            return std::future::pending().await;
        }
        Reply::Hang => loop {
            socket.send(Message::Ping(Bytes::from_static(b"still here"))).await.ok()?;
            // The pong.
            socket.next().await?.ok()?;
        },
    };
    send_events(socket, &response_events(&text, stop, id)).await?;
    Some(text)
}

async fn send_events(socket: &mut Socket, events: &[Value]) -> Option<()> {
    for event in events {
        socket.send(frame(event)).await.ok()?;
    }
    Some(())
}

fn frame(event: &Value) -> Message {
    Message::text(event.to_string())
}

pub(crate) fn error_event(status: u16, code: &str) -> Value {
    json!({ "type": "error", "status": status, "error": { "code": code, "message": "no" } })
}

fn response_events(text: &str, stop: Option<String>, id: &str) -> Vec<Value> {
    let mut events = ResponseScript { stop, ..ResponseScript::text(text) }.events();
    for event in &mut events {
        if let Some(response) = event.get_mut("response") {
            response["id"] = json!(id);
        }
    }
    events
}

/// Roles and texts of the input.
pub(crate) fn input_texts(body: &Value) -> Vec<(String, String)> {
    let items = body["input"].as_array().unwrap().iter();
    items
        .map(|item| {
            let content = &item["content"];
            let parts = content.as_array().into_iter().flatten();
            let joined = parts.filter_map(|part| part["text"].as_str()).collect();
            let text = content.as_str().map_or(joined, ToOwned::to_owned);
            (item["role"].as_str().unwrap().to_owned(), text)
        })
        .collect()
}
