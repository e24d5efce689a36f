//! Benchmarks of the CPU cost of a turn without model, store and tools: step, projection, entry
//! parsing, request serialisation and response parsing; and of a prompt with and without extensions.

use std::hint::black_box;
use std::sync::Arc;

use divan::Bencher;
use serde_json::json;
use turnwheel::Agent;
use turnwheel::agent_settings::{QueueMode, RetrySettings, ThinkingLevel};
use turnwheel::extensions::Extension;
use turnwheel::messages::Message;
use turnwheel::models::{ModelRequest, ScriptedModel};
use turnwheel::testing::agent::compaction::ContextBudget;
use turnwheel::testing::agent::entry::Entry;
use turnwheel::testing::agent::head::Head;
use turnwheel::testing::agent::path::path_to_leaf;
use turnwheel::testing::agent::projection;
use turnwheel::testing::agent::step::{FailureKind, Input, ResponseInput, step};
use turnwheel::testing::agent::transition::{Policy, Transition};
use turnwheel::testing::clock::Timestamp;
use turnwheel::testing::model::catalogue::{Catalogue, find_tariff};
use turnwheel::testing::model::chat::fold::ChatFold;
use turnwheel::testing::model::protocol::ProtocolParser;
use turnwheel::testing::model::responses::body::build_request_body;
use turnwheel::testing::model::responses::fold::ResponseFold;
use turnwheel::testing::model::responses::names::ToolNames;

fn main() {
    divan::main();
}

/// Numbers of rounds. A round is one model response with a tool call, and its result.
const ROUNDS: [usize; 3] = [10, 100, 1_000];

fn entry_json(seq: usize, message: &serde_json::Value) -> String {
    let parent = (seq > 1).then(|| format!("{:08x}", seq - 1));
    json!({
        "entryId": format!("{seq:08x}"), "parentId": parent, "seq": seq,
        "timestamp": "2026-11-21T20:19:09.669Z", "type": "message", "message": message,
    })
    .to_string()
}

fn entry_lines(rounds: usize) -> Vec<String> {
    let mut lines = vec![entry_json(1, &json!({"role": "user", "content": "go", "timestamp": 0}))];
    for round in 0..rounds {
        let id = format!("call_{round}|fc_{round}");
        let call =
            json!({"type": "toolCall", "id": id, "name": "look", "arguments": {"round": round}});
        let response = json!({"role": "assistant", "content": [{"type": "text", "text": "I look."}, call],
            "api": "a", "provider": "p", "model": "m", "stopReason": "toolUse", "timestamp": 0});
        let result = json!({"role": "toolResult", "toolCallId": id, "toolName": "look",
            "content": [{"type": "text", "text": "x".repeat(400)}], "isError": false, "timestamp": 0});
        lines.push(entry_json(lines.len() + 1, &response));
        lines.push(entry_json(lines.len() + 1, &result));
    }
    lines
}

fn entries(rounds: usize) -> Vec<Arc<Entry>> {
    entry_lines(rounds)
        .iter()
        .filter_map(|line| serde_json::from_str(line).ok().map(Arc::new))
        .collect()
}

/// Parsing of all entries, which a worker without a cache does once.
#[divan::bench(args = ROUNDS)]
fn read_entries(bencher: Bencher<'_, '_>, rounds: usize) {
    let lines = entry_lines(rounds);
    bencher
        .bench(|| lines.iter().filter_map(|line| serde_json::from_str::<Entry>(line).ok()).count());
}

/// Projection for every model call: path, messages, conversion.
#[divan::bench(args = ROUNDS)]
fn project_messages(bencher: Bencher<'_, '_>, rounds: usize) {
    let entries = entries(rounds);
    let leaf = entries.last().map(|entry| entry.base.entry_id.clone());
    bencher.bench(|| {
        let path = path_to_leaf(black_box(&entries), leaf.as_ref());
        projection::to_model_messages(projection::project_messages(&path)).len()
    });
}

/// Request of every model call: built, validated and serialised.
#[divan::bench(args = ROUNDS)]
fn serialise_request(bencher: Bencher<'_, '_>, rounds: usize) {
    let entries = entries(rounds);
    let leaf = entries.last().map(|entry| entry.base.entry_id.clone());
    let path = path_to_leaf(&entries, leaf.as_ref());
    let converted = projection::to_model_messages(projection::project_messages(&path));
    let messages: Vec<&Message> = converted.iter().map(AsRef::as_ref).collect();
    let record = Catalogue::default().record("gpt-5-mini", "gpt-5-mini");
    let request = ModelRequest {
        system: Some("Look."),
        thinking: ThinkingLevel::Low,
        session_id: "c",
        ..ModelRequest::new(&record, &messages)
    };
    bencher.bench(|| {
        let names = ToolNames::new(&[]);
        let body = build_request_body(black_box(&request), &names);
        (body.find_violation(), body.to_bytes().map_or(0, |bytes| bytes.len()))
    });
}

/// Applying a model response. The cost is independent of the length of the conversation.
#[divan::bench]
fn apply_response(bencher: Bencher<'_, '_>) {
    let head = json!({
        "schema": 1, "minReader": 1, "tenant": "t", "user": "u", "conversationId": "c", "incarnation": "0a1b2c3d",
        "commitId": "first", "revision": 1, "phase": {"owed": "model", "attempt": 1}, "seq": 2000, "eventSeq": 9000,
        "turn": 500, "agent": "clerk", "createdAt": 0, "updatedAt": 0,
    });
    let message = json!({"content": [{"type": "text", "text": "done"}], "api": "a", "provider": "p", "model": "m",
        "stopReason": "stop", "timestamp": 0});
    let head: Option<Head> = serde_json::from_value(head).ok();
    let message = serde_json::from_str(&message.to_string()).ok();
    let (Some(head), Some(message)) = (head, message) else { return };
    let response = ResponseInput {
        refused: None,
        message,
        revision: "r".to_owned(),
        started_at: Timestamp(0),
        failure_kind: FailureKind::default(),
        error_type: "model",
        schema_error: None,
        frame: None,
        plugin_state: Vec::new(),
    };
    let input = Input::ResponseReceived(Box::new(response));
    let policy = Policy {
        extension_prompts_max: 8,
        is_protocol: false,
        is_resume: false,
        context_budget: ContextBudget::default(),
        rounds_max: None,
        hard_rounds_max: 200,
        concurrency: 1,
        retry: RetrySettings::default(),
        model: "normal".to_owned(),
        steering_mode: QueueMode::OneAtATime,
        follow_up_mode: QueueMode::OneAtATime,
        should_steer_skip_tools: true,
        drained_operations_max: 60,
        drained_bytes_max: 500_000,
        has_start_hook: false,
        has_notification_receiver: false,
        learns_profile: false,
        should_notify_results: false,
        budget: None,
        settle_after: std::time::Duration::ZERO,
    };
    bencher.bench(|| {
        let mut transition = Transition::new(head.clone(), None, policy.clone(), Timestamp(1));
        step(&mut transition, black_box(&input));
        transition.operation_count()
    });
}

/// Parsing and assembling a streamed response of 1,000 text deltas.
#[divan::bench]
fn fold_thousand_deltas(bencher: Bencher<'_, '_>) {
    let record = Catalogue::default().record("gpt-4.1", "gpt-4.1");
    let begin = r#"{"type":"response.output_item.added","output_index":0,"item":{"type":"message","id":"m"}}"#;
    let delta = r#"{"type":"response.output_text.delta","output_index":0,"delta":"word "}"#;
    bencher.bench(|| {
        let mut fold = ResponseFold::new("gpt-4.1", find_tariff(&record), ToolNames::new(&[]));
        fold.push_frame(None, begin);
        (0..1_000).map(|_| fold.push_frame(None, black_box(delta)).len()).sum::<usize>()
    });
}

/// The same over Chat Completions.
#[divan::bench]
fn fold_thousand_chat_deltas(bencher: Bencher<'_, '_>) {
    let record = Catalogue::default().record("gpt-4.1", "gpt-4.1");
    let delta = r#"{"id":"c","object":"chat.completion.chunk","created":1,"model":"gpt-4.1","choices":[{"index":0,"delta":{"content":"word "},"finish_reason":null}]}"#;
    bencher.bench(|| {
        let mut fold = ChatFold::new("gpt-4.1", find_tariff(&record), ToolNames::new(&[]));
        (0..1_000).map(|_| fold.push_frame(None, black_box(delta)).len()).sum::<usize>()
    });
}

/// Parsing of 1,000 deltas of protocol text, which should take at most 2 µs each.
#[divan::bench]
fn parse_thousand_protocol_deltas(bencher: Bencher<'_, '_>) {
    bencher.bench(|| {
        let (mut parser, mut events) = (ProtocolParser::new("call_1"), Vec::new());
        for delta in ["<think>", "I look. </think>", "Let me <b>look</b>. "] {
            parser.push(delta, &mut events);
        }
        (0..500).for_each(|_| parser.push(black_box("word < "), &mut events));
        parser.push("<execute>[{\"name\": \"look\", \"args\": {\"text\": \"", &mut events);
        (0..500).for_each(|_| parser.push(black_box("word <b> "), &mut events));
        parser.push("\"}}]</execute>", &mut events);
        events.len()
    });
}

/// A prompt of one model call in an embedded agent with this number of extensions, each of which
/// runs at every event and does nothing.
#[divan::bench(args = [0, 10])]
fn prompt_with_idle_extensions(bencher: Bencher<'_, '_>, count: usize) {
    let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_all().build() else {
        return;
    };
    let start = || {
        let builder = Agent::builder().models(Arc::new(ScriptedModel));
        let builder = (0..count).fold(builder, |builder, _| builder.extension(Idle));
        runtime.block_on(builder.start()).ok()
    };
    bencher.with_inputs(start).bench_refs(|agent| {
        agent.as_ref().and_then(|agent| runtime.block_on(agent.prompt("hello")).ok()).is_some()
    });
}

#[derive(Debug)]
struct Idle;

impl Extension for Idle {
    fn name(&self) -> &'static str {
        "idle"
    }
}
