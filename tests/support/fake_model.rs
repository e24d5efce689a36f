//! Fake model on loopback that sends scripted responses of the Responses API, or of Chat Completions.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::response::Response;
use axum::routing::post;
use futures_util::stream::{self, Stream, StreamExt};
use http::HeaderMap;
use serde_json::{Value, json};
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;

/// The response to one request.
#[derive(Clone, Debug)]
pub(crate) enum ScriptedResponse {
    /// A response as in the conformance cases' `model_script`.
    Response(ResponseScript),
    /// These events, then the end of the stream.
    SseEvents(Vec<Value>),
    /// A response that is not a stream.
    Http { status: u16, headers: Vec<(String, String)>, body: String },
    /// No response, not even its headers.
    Hang,
    /// The given number of these events; then the connection breaks.
    CutAfter(usize, Vec<Value>),
    /// These events, each when the test adds a permit: one permit, one event.
    Paced(Arc<Semaphore>, Vec<Value>),
}

/// One model response: thinking, text and calls, in this order.
#[derive(Clone, Debug, Default)]
pub(crate) struct ResponseScript {
    pub(crate) thinking: Vec<String>,
    pub(crate) text: Vec<String>,
    pub(crate) calls: Vec<Call>,
    /// Ends the response with an `error` event.
    pub(crate) error: Option<String>,
    /// `length`: the response ends as truncated by the output limit.
    pub(crate) stop: Option<String>,
    /// True if the response never ends.
    pub(crate) is_unending: bool,
}

#[derive(Clone, Debug)]
pub(crate) struct Call {
    pub(crate) id: String,
    pub(crate) name: String,
    pub(crate) arguments: Value,
}

/// One received request.
#[derive(Clone, Debug)]
pub(crate) struct ReceivedRequest {
    pub(crate) headers: HeaderMap,
    pub(crate) body: Value,
}

/// Serves until it is dropped. A request beyond the script gets a 500 with that reason.
#[derive(Debug)]
pub(crate) struct FakeModel {
    /// The base URL, including `/openai/v1`.
    pub(crate) url: String,
    state: Arc<FakeModelState>,
    server: JoinHandle<()>,
}

#[derive(Debug, Default)]
struct FakeModelState {
    responses: Mutex<VecDeque<ScriptedResponse>>,
    received: Mutex<Vec<ReceivedRequest>>,
}

impl FakeModel {
    pub(crate) async fn start(responses: impl IntoIterator<Item = ScriptedResponse>) -> Self {
        let state = Arc::new(FakeModelState {
            responses: Mutex::new(responses.into_iter().collect()),
            ..FakeModelState::default()
        });
        let router = Router::new()
            .route("/openai/v1/responses", post(handle_responses))
            .route("/openai/v1/chat/completions", post(handle_chat))
            .with_state(Arc::clone(&state));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/openai/v1", listener.local_addr().unwrap());
        #[expect(clippy::disallowed_methods, reason = "a server beside the test, ended with it")]
        let server = tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        Self { url, state, server }
    }

    /// Request bodies, in the order of arrival.
    pub(crate) fn request_bodies(&self) -> Vec<Value> {
        self.received_requests().into_iter().map(|request| request.body).collect()
    }

    pub(crate) fn received_requests(&self) -> Vec<ReceivedRequest> {
        self.state.received.lock().unwrap().clone()
    }
}

impl Drop for FakeModel {
    fn drop(&mut self) {
        self.server.abort();
    }
}

impl ScriptedResponse {
    /// Parses a conformance case's `model_script`.
    pub(crate) fn parse_script(model_script: &Value) -> Vec<Self> {
        model_script.as_array().unwrap().iter().map(Self::parse).collect()
    }

    /// The script for a model without native tool calls.
    pub(crate) fn to_protocol_text(&self) -> Self {
        match self {
            Self::Response(script) => Self::Response(script.to_protocol_text()),
            Self::SseEvents(_)
            | Self::Http { .. }
            | Self::Hang
            | Self::CutAfter(..)
            | Self::Paced(..) => self.clone(),
        }
    }

    fn parse(item: &Value) -> Self {
        if let Some(text) = item.as_str() {
            let message = text.strip_prefix("throws: ").unwrap_or(text);
            let body = json!({ "error": { "code": null, "message": message } }).to_string();
            return Self::Http { status: 400, headers: Vec::new(), body };
        }
        if let Some(events) = item.get("sse_events") {
            return Self::SseEvents(events.as_array().unwrap().clone());
        }
        let texts = |name: &str| -> Vec<String> {
            let list = item.get(name).and_then(Value::as_array).cloned().unwrap_or_default();
            list.iter().map(|text| text.as_str().unwrap().to_owned()).collect()
        };
        let text = |value: &Value, name: &str| {
            value.get(name).and_then(Value::as_str).map(ToOwned::to_owned)
        };
        let calls = item.get("calls").and_then(Value::as_array).cloned().unwrap_or_default();
        let call = |call: &Value| Call {
            id: text(call, "id").unwrap(),
            name: text(call, "name").unwrap(),
            arguments: call.get("arguments").unwrap().clone(),
        };
        Self::Response(ResponseScript {
            thinking: texts("thinking"),
            text: texts("text"),
            calls: calls.iter().map(call).collect(),
            error: text(item, "error"),
            stop: text(item, "stop"),
            is_unending: item.get("then").is_some(),
        })
    }
}

impl ResponseScript {
    pub(crate) fn text(text: &str) -> Self {
        Self { text: vec![text.to_owned()], ..Self::default() }
    }

    pub(crate) fn call(id: &str, name: &str, arguments: Value) -> Self {
        Self {
            calls: vec![Call { id: id.to_owned(), name: name.to_owned(), arguments }],
            ..Self::default()
        }
    }

    /// The response as the protocol text of a model without native tool calls.
    pub(crate) fn to_protocol_text(&self) -> Self {
        let mut text = Vec::new();
        if !self.thinking.is_empty() {
            text.push("<think>".to_owned());
            text.extend(self.thinking.iter().cloned());
            text.push("</think>".to_owned());
        }
        text.extend(self.text.iter().cloned());
        if !self.calls.is_empty() {
            let call = |call: &Call| json!({"name": call.name, "args": call.arguments});
            let calls: Vec<Value> = self.calls.iter().map(call).collect();
            text.push(format!("<execute>\n{}\n</execute>", json!(calls)));
        }
        Self { thinking: Vec::new(), text, calls: Vec::new(), ..self.clone() }
    }

    /// The events of this response, numbered.
    pub(crate) fn events(&self) -> Vec<Value> {
        let mut events = vec![
            json!({ "type": "response.created", "response": { "id": "resp_1", "status": "in_progress" } }),
        ];
        let mut output = Vec::new();
        let open = |index: usize, item: &Value| json!({ "type": "response.output_item.added", "output_index": index, "item": item });
        let close = |index: usize, item: &Value| json!({ "type": "response.output_item.done", "output_index": index, "item": item });
        let delta = |kind: &str, index: usize, delta: &str| json!({ "type": format!("response.{kind}.delta"), "output_index": index, "delta": delta });
        if !self.thinking.is_empty() {
            let index = output.len();
            events.push(open(index, &json!({ "type": "reasoning", "id": "rs_1", "summary": [] })));
            events.extend(
                self.thinking.iter().map(|text| delta("reasoning_summary_text", index, text)),
            );
            let summary = json!([{ "type": "summary_text", "text": self.thinking.concat() }]);
            output.push(json!({ "type": "reasoning", "id": "rs_1", "summary": summary, "encrypted_content": "ENC" }));
            events.push(close(index, &output[index]));
        }
        if !self.text.is_empty() {
            let index = output.len();
            let item = |content: Value| json!({ "type": "message", "id": "msg_1", "role": "assistant", "content": content });
            events.push(open(index, &item(json!([]))));
            events.extend(self.text.iter().map(|text| delta("output_text", index, text)));
            output.push(item(
                json!([{ "type": "output_text", "text": self.text.concat(), "annotations": [] }]),
            ));
            events.push(close(index, &output[index]));
        }
        for (number, call) in self.calls.iter().enumerate() {
            let index = output.len();
            // The model API has its own form of tool names.
            let name: String = call
                .name
                .chars()
                .map(
                    |letter| {
                        if letter.is_ascii_alphanumeric() || letter == '-' { letter } else { '_' }
                    },
                )
                .collect();
            let item = |arguments: &str| json!({ "type": "function_call", "id": format!("fc_{}_{number}", call.id), "call_id": call.id, "name": name, "arguments": arguments });
            let arguments = call.arguments.to_string();
            events.push(open(index, &item("")));
            events.push(delta("function_call_arguments", index, &arguments));
            output.push(item(&arguments));
            events.push(close(index, &output[index]));
        }
        events.extend(self.terminal_event(&output));
        for (number, event) in events.iter_mut().enumerate() {
            event["sequence_number"] = json!(number);
        }
        events
    }

    /// The chunks of this response in a Chat Completions stream.
    pub(crate) fn chat_chunks(&self) -> Vec<Value> {
        let chunk = |delta: Value| json!({ "id": "chatcmpl-1", "model": "fake", "choices": [{ "index": 0, "delta": delta, "finish_reason": null }] });
        let mut chunks = vec![
            json!({ "choices": [], "id": "", "model": "", "prompt_filter_results": [] }),
            chunk(json!({ "role": "assistant", "content": "" })),
        ];
        chunks.extend(self.thinking.iter().map(|text| chunk(json!({ "reasoning_content": text }))));
        chunks.extend(self.text.iter().map(|text| chunk(json!({ "content": text }))));
        for (index, call) in self.calls.iter().enumerate() {
            let name = call.name.replace('.', "_");
            let function = json!({ "name": name, "arguments": "" });
            chunks.push(chunk(json!({ "tool_calls": [{ "index": index, "id": call.id, "type": "function", "function": function }] })));
            let function = json!({ "arguments": call.arguments.to_string() });
            chunks.push(chunk(json!({ "tool_calls": [{ "index": index, "function": function }] })));
        }
        if self.is_unending {
            return chunks;
        }
        if let Some(message) = &self.error {
            chunks.push(json!({ "error": { "code": null, "message": message } }));
            return chunks;
        }
        let default = if self.calls.is_empty() { "stop" } else { "tool_calls" };
        let reason = self.stop.as_deref().unwrap_or(default);
        chunks.push(json!({ "choices": [{ "index": 0, "delta": {}, "finish_reason": reason }] }));
        chunks.push(json!({ "choices": [], "usage": { "prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15 } }));
        chunks.push(json!("[DONE]"));
        chunks
    }

    const fn end(&self) -> StreamEnd {
        if self.is_unending { StreamEnd::Hang } else { StreamEnd::End }
    }

    fn terminal_event(&self, output: &[Value]) -> Option<Value> {
        if self.is_unending {
            return None;
        }
        if let Some(message) = &self.error {
            return Some(
                json!({ "type": "error", "error": { "type": null, "code": null, "message": message, "param": null } }),
            );
        }
        let usage = json!({
            "input_tokens": 10, "input_tokens_details": { "cached_tokens": 0 }, "output_tokens": 5, "total_tokens": 15,
        });
        let (kind, status) = match self.stop.as_deref() {
            Some("length") => ("response.incomplete", "incomplete"),
            Some(_) | None => ("response.completed", "completed"),
        };
        let details = if status == "incomplete" {
            json!({ "reason": "max_output_tokens" })
        } else {
            Value::Null
        };
        Some(json!({ "type": kind, "response": {
            "id": "resp_1", "status": status, "incomplete_details": details, "usage": usage, "output": output,
        } }))
    }
}

async fn handle_responses(
    State(state): State<Arc<FakeModelState>>,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    respond(&state, headers, &body, ResponseScript::events).await
}

async fn handle_chat(
    State(state): State<Arc<FakeModelState>>,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    respond(&state, headers, &body, ResponseScript::chat_chunks).await
}

async fn respond(
    state: &FakeModelState,
    headers: HeaderMap,
    body: &Bytes,
    to_events: fn(&ResponseScript) -> Vec<Value>,
) -> Response {
    let body = serde_json::from_slice(body).unwrap_or(Value::Null);
    state.received.lock().unwrap().push(ReceivedRequest { headers, body });
    let response = state.responses.lock().unwrap().pop_front();
    match response {
        None => http_response(
            500,
            &[],
            r#"{"error":{"code":"script_exhausted","message":"the fake model's script is exhausted"}}"#
                .to_owned(),
        ),
        Some(ScriptedResponse::Http { status, headers, body }) => http_response(status, &headers, body),
        Some(ScriptedResponse::Hang) => std::future::pending().await,
        Some(ScriptedResponse::SseEvents(events)) => stream_events(&events, StreamEnd::End),
        Some(ScriptedResponse::CutAfter(count, events)) => {
            stream_events(events.get(..count).unwrap_or(&events), StreamEnd::Break)
        }
        Some(ScriptedResponse::Paced(permits, events)) => {
            stream_response(stream::iter(event_chunks(&events)).then(move |chunk| {
                let permits = Arc::clone(&permits);
                async move {
                    permits.acquire().await.unwrap().forget();
                    chunk
                }
            }))
        }
        Some(ScriptedResponse::Response(script)) => stream_events(&to_events(&script), script.end()),
    }
}

pub(crate) fn stream_script(script: &ResponseScript) -> Response {
    stream_events(&script.events(), script.end())
}

#[derive(Clone, Copy)]
enum StreamEnd {
    End,
    Hang,
    Break,
}

type Chunk = Result<Bytes, std::io::Error>;

fn event_chunks(events: &[Value]) -> Vec<Chunk> {
    let chunk = |event: &Value| {
        Ok(Bytes::from(match (event.get("type").and_then(Value::as_str), event) {
            (Some(name), _) => format!("event: {name}\ndata: {event}\n\n"),
            // A string is sent without quotes: `[DONE]`.
            (None, Value::String(text)) => format!("data: {text}\n\n"),
            (None, _) => format!("data: {event}\n\n"),
        }))
    };
    events.iter().map(chunk).collect()
}

fn stream_events(events: &[Value], after: StreamEnd) -> Response {
    let chunks = stream::iter(event_chunks(events));
    match after {
        StreamEnd::End => stream_response(chunks),
        StreamEnd::Hang => stream_response(chunks.chain(stream::pending())),
        // The wait makes the server flush its buffer, which it would drop with the connection.
        StreamEnd::Break => stream_response(chunks.chain(stream::once(connection_error()))),
    }
}

fn stream_response(chunks: impl Stream<Item = Chunk> + Send + 'static) -> Response {
    Response::builder()
        .header("content-type", "text/event-stream; charset=utf-8")
        .body(Body::from_stream(chunks))
        .unwrap()
}

async fn connection_error() -> Result<Bytes, std::io::Error> {
    for _ in 0..3 {
        tokio::task::yield_now().await;
    }
    Err(std::io::Error::other("cut"))
}

fn http_response(status: u16, headers: &[(String, String)], body: String) -> Response {
    let mut response = Response::builder().status(status);
    for (name, value) in headers {
        response = response.header(name, value);
    }
    response.body(Body::from(body)).unwrap()
}
