//! Benchmark of a model response in protocol mode against the same response with native tool calls:
//! the request of a conversation of ten rounds, and a stream of 1,000 deltas with one tool call.
//! Protocol mode should take at most 1.5 times as long.

use std::hint::black_box;

use async_trait::async_trait;
use divan::Bencher;
use futures_util::FutureExt as _;
use serde_json::{Value, json};
use turnwheel::events::AssistantMessageEvent;
use turnwheel::messages::Message;
use turnwheel::models::{Listener, Model, ModelRecord, ModelRequest, ModelResponse, ToolOffer};
use turnwheel::testing::model::catalogue::{Catalogue, find_tariff};
use turnwheel::testing::model::protocol::ProtocolModel;
use turnwheel::testing::model::responses::body::build_request_body;
use turnwheel::testing::model::responses::fold::ResponseFold;
use turnwheel::testing::model::responses::names::ToolNames;

fn main() {
    divan::main();
}

const ROUNDS: usize = 10;
/// Deltas of the text, and as many of the arguments.
const DELTAS: usize = 500;

/// A model whose response is a recorded stream.
#[derive(Debug)]
struct StreamedModel {
    frames: Vec<String>,
}

#[async_trait]
impl Model for StreamedModel {
    async fn respond(&self, request: ModelRequest<'_>, listener: &dyn Listener) -> ModelResponse {
        let names = ToolNames::new(request.tools);
        let body = build_request_body(&request, &names);
        black_box((body.find_violation(), body.to_bytes().map_or(0, |bytes| bytes.len())));
        let mut fold = ResponseFold::new("gpt-4.1", find_tariff(request.model), names);
        for frame in &self.frames {
            for event in fold.push_frame(None, frame) {
                listener.on_event(event);
            }
        }
        let folded = fold.finish();
        ModelResponse { message: folded.message, failure: None, metadata: folded.metadata }
    }

    fn record(&self, model: &str) -> Result<ModelRecord, String> {
        Ok(Catalogue::default().record(model, model))
    }
}

struct Ignore;

impl Listener for Ignore {
    fn on_event(&self, event: AssistantMessageEvent) {
        black_box(event);
    }
}

fn added(index: usize, item: &Value) -> String {
    json!({"type": "response.output_item.added", "output_index": index, "item": item}).to_string()
}

fn done(index: usize, item: &Value) -> String {
    json!({"type": "response.output_item.done", "output_index": index, "item": item}).to_string()
}

fn delta(kind: &str, index: usize, delta: &str) -> String {
    json!({"type": kind, "item_id": "item", "output_index": index, "delta": delta}).to_string()
}

fn completed() -> String {
    json!({"type": "response.completed", "response": {"id": "r", "status": "completed",
        "usage": {"input_tokens": 1_000, "output_tokens": 1_000, "total_tokens": 2_000}}})
    .to_string()
}

fn message_item(text: &str) -> Value {
    json!({"type": "message", "id": "m", "role": "assistant", "status": "completed",
        "content": [{"type": "output_text", "text": text, "annotations": []}]})
}

const TEXT_DELTA: &str = "response.output_text.delta";
const ARGUMENTS_DELTA: &str = "response.function_call_arguments.delta";

fn call_item(arguments: &str) -> Value {
    json!({"type": "function_call", "id": "f", "call_id": "c", "name": "look",
        "status": "completed", "arguments": arguments})
}

fn native_frames() -> Vec<String> {
    let text = "word ".repeat(DELTAS);
    let arguments = json!({"text": text}).to_string();
    let mut frames = vec![added(0, &json!({"type": "message", "id": "m"}))];
    frames.extend((0..DELTAS).map(|_| delta(TEXT_DELTA, 0, "word ")));
    frames.extend([done(0, &message_item(&text)), added(1, &call_item(""))]);
    frames.push(delta(ARGUMENTS_DELTA, 1, "{\"text\":\""));
    frames.extend((0..DELTAS).map(|_| delta(ARGUMENTS_DELTA, 1, "word ")));
    frames.push(delta(ARGUMENTS_DELTA, 1, "\"}"));
    frames.extend([done(1, &call_item(&arguments)), completed()]);
    frames
}

fn protocol_frames() -> Vec<String> {
    let mut pieces = vec!["word "; DELTAS];
    pieces.push("<execute>[{\"name\": \"look\", \"args\": {\"text\": \"");
    pieces.extend(vec!["word "; DELTAS]);
    pieces.push("\"}}]</execute>");
    let mut frames = vec![added(0, &json!({"type": "message", "id": "m"}))];
    frames.extend(pieces.iter().map(|piece| delta(TEXT_DELTA, 0, piece)));
    frames.extend([done(0, &message_item(&pieces.concat())), completed()]);
    frames
}

fn history() -> Vec<Message> {
    let mut messages = vec![json!({"role": "user", "content": "go", "timestamp": 0})];
    for round in 0..ROUNDS {
        let id = format!("call_{round}");
        let call =
            json!({"type": "toolCall", "id": id, "name": "look", "arguments": {"text": "word"}});
        messages.push(
            json!({"role": "assistant", "content": [{"type": "text", "text": "I look."}, call],
            "api": "a", "provider": "p", "model": "m", "stopReason": "toolUse", "timestamp": 0}),
        );
        messages.push(json!({"role": "toolResult", "toolCallId": id, "toolName": "look",
            "content": [{"type": "text", "text": "x".repeat(400)}], "isError": false, "timestamp": 0}));
    }
    messages
        .into_iter()
        .filter_map(|message| serde_json::from_str(&message.to_string()).ok())
        .collect()
}

fn respond(bencher: Bencher<'_, '_>, model: &dyn Model) {
    let record = Catalogue::default().record("gpt-4.1", "gpt-4.1");
    let history = history();
    let messages: Vec<&Message> = history.iter().collect();
    let parameters = json!({"type": "object", "properties": {"text": {"type": "string"}}});
    let tools =
        [ToolOffer { name: "look", description: "Looks.", parameters: &parameters, strict: false }];
    let call = || {
        let request = ModelRequest {
            system: Some("Look."),
            tools: &tools,
            session_id: "c",
            ..ModelRequest::new(&record, &messages)
        };
        model.respond(black_box(request), &Ignore).now_or_never()
    };
    let calls = call().map_or(0, |response| response.message.tool_calls().count());
    assert_eq!(calls, 1, "the response has its tool call");
    bencher.bench(call);
}

#[divan::bench]
fn native_response(bencher: Bencher<'_, '_>) {
    respond(bencher, &StreamedModel { frames: native_frames() });
}

#[divan::bench]
fn protocol_response(bencher: Bencher<'_, '_>) {
    let model = StreamedModel { frames: protocol_frames() };
    respond(bencher, &ProtocolModel::new(&model, None));
}
