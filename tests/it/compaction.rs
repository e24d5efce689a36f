//! Compaction through the whole service: model requests, events, and the complete record.

use std::sync::atomic::{AtomicU64, Ordering};

use serde_json::{Value, json};
use turnwheel::App;

use crate::support::event_stream::{EventStream, Frame};
use crate::support::fake_model::{FakeModel, ResponseScript, ScriptedResponse};
use crate::support::service::Service;

const AGENT: &str = "---\ndescription: Answers.\nmodel: gpt-4o\n---\nBe brief.\n";

struct TestApp {
    service: Service,
    model: FakeModel,
    /// Number of the newest event that was read.
    last_event: AtomicU64,
    _folder: tempfile::TempDir,
}

impl TestApp {
    /// Creates the conversation `c`, of which compaction keeps only the newest message.
    async fn start(plays: Vec<ScriptedResponse>) -> Self {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("agents")).unwrap();
        std::fs::write(folder.path().join("agents/helper.agent.md"), AGENT).unwrap();
        let model = FakeModel::start(plays).await;
        let settings =
            [("AZURE_OPENAI_BASE_URL", model.url.as_str()), ("AZURE_OPENAI_API_KEY", "a-key")];
        let service = Service::start(App::new(), folder.path(), &settings).await;
        let compaction = json!({"enabled": true, "reserveTokens": 16384, "keepRecentTokens": 1});
        let body = json!({"id": "c", "settings": {"compaction": compaction}});
        assert_eq!(service.post("/api/conversations", &body).await.0, 201);
        Self { service, model, last_event: AtomicU64::new(0), _folder: folder }
    }

    /// Sends a prompt and waits until the conversation is settled.
    async fn send_prompt(&self, text: &str) -> Vec<Frame> {
        let mut stream = self.open_stream().await;
        let path = "/api/conversations/c/prompts";
        let (status, response) = self.service.post(path, &json!({"input": text})).await;
        assert_eq!(status, 202, "{response}");
        self.track_frames(stream.read_until("agent_settled").await)
    }

    /// Opens the event stream after the last event that was read.
    async fn open_stream(&self) -> EventStream {
        let last_event =
            Some(self.last_event.load(Ordering::Relaxed)).filter(|last_event| *last_event > 0);
        EventStream::open(&self.service, "c", "", last_event).await
    }

    fn track_frames(&self, frames: Vec<Frame>) -> Vec<Frame> {
        let last = frames.iter().rev().find_map(|frame| frame.id);
        self.last_event.store(last.expect("events have numbers"), Ordering::Relaxed);
        frames
    }

    /// Compacts the conversation. Returns the data of the last event.
    async fn compact(&self, body: &Value) -> Value {
        let mut stream = self.open_stream().await;
        let (status, response) = self.service.post("/api/conversations/c/compact", body).await;
        assert_eq!(status, 202, "{response}");
        assert!(response["inputId"].is_string());
        let frames = self.track_frames(stream.read_until("auto_compaction_end").await);
        event_data(&frames, "auto_compaction_end").last().map(|end| (*end).clone()).unwrap()
    }

    async fn messages(&self) -> Vec<Value> {
        let list = self.service.get("/api/conversations/c/messages").await;
        list["items"].as_array().unwrap().clone()
    }
}

fn text_response(text: &str) -> ScriptedResponse {
    ScriptedResponse::Response(ResponseScript::text(text))
}

/// A response with this number of input tokens in its usage.
fn response_with_usage(text: &str, tokens: u64) -> ScriptedResponse {
    let mut events = ResponseScript::text(text).events();
    let usage = &mut events.last_mut().unwrap()["response"]["usage"];
    usage["input_tokens"] = json!(tokens);
    usage["total_tokens"] = json!(tokens + 5);
    ScriptedResponse::SseEvents(events)
}

fn context_overflow_response() -> ScriptedResponse {
    let message = "Your input exceeds the context window of this model. Please adjust your input and try again.";
    let body = json!({"error": {"code": "context_length_exceeded", "message": message}});
    ScriptedResponse::Http { status: 400, headers: Vec::new(), body: body.to_string() }
}

fn event_data<'a>(frames: &'a [Frame], name: &str) -> Vec<&'a Value> {
    frames.iter().filter(|frame| frame.name == name).map(|frame| &frame.data).collect()
}

const SUMMARY: &str = "The conversation history before this point was compacted into the following summary:\n\n<summary>\n## Goal\nTo count.\n</summary>";

#[tokio::test]
async fn context_overflow_is_compacted_and_retried() {
    let plays = vec![
        text_response("one"),
        context_overflow_response(),
        text_response("## Goal\nTo count."),
        text_response("two"),
        text_response("three"),
    ];
    let app = TestApp::start(plays).await;
    app.send_prompt("first").await;
    let frames = app.send_prompt("second").await;
    let [start] = event_data(&frames, "auto_compaction_start")[..] else { panic!("{frames:?}") };
    assert_eq!(start["reason"], "overflow");
    let [end] = event_data(&frames, "auto_compaction_end")[..] else { panic!("{frames:?}") };
    assert_eq!((&end["aborted"], &end["willRetry"]), (&json!(false), &json!(true)));
    assert_eq!(end["result"]["summary"], "## Goal\nTo count.");
    assert!(
        end["result"]["firstKeptEntryId"].is_string() && end["errorMessage"].is_null(),
        "{end}"
    );
    let ends = event_data(&frames, "agent_end");
    let retries: Vec<_> = ends.iter().map(|end| &end["willRetry"]).collect();
    assert_eq!(retries, [&json!(true), &json!(false)]);
    assert_eq!(event_data(&frames, "prompt.completed").len(), 1);
    app.send_prompt("third").await;

    let requests = app.model.request_bodies();
    let texts = |number: usize| requests[number]["input"].to_string();
    assert!(
        texts(2).contains("<conversation>\\n[User]: first\\n\\n[Assistant]: one\\n</conversation>"),
        "{}",
        texts(2)
    );
    assert_eq!(requests[2]["max_output_tokens"], 13_107);
    assert!(requests[2].get("tools").is_none(), "a summary request offers no tools");
    let summary = json!(SUMMARY).to_string();
    for number in [3, 4] {
        assert!(texts(number).contains(summary.trim_matches('"')), "{}", texts(number));
        assert!(!texts(number).contains("\"first\"") && texts(number).contains("second"));
    }
    let roles: Vec<_> =
        app.messages().await.iter().map(|it| it["role"].as_str().unwrap().to_owned()).collect();
    assert_eq!(
        roles,
        [
            "user",
            "assistant",
            "user",
            "assistant",
            "compactionSummary",
            "assistant",
            "user",
            "assistant"
        ],
        "the record keeps every message, the failed one too"
    );
}

#[tokio::test]
async fn full_context_window_is_compacted_before_settling() {
    let (goal, turn) =
        (text_response("## Goal\nTo count."), text_response("The second was asked."));
    let plays = vec![
        text_response("one"),
        response_with_usage("two", 120_000),
        goal,
        turn,
        text_response("three"),
    ];
    let app = TestApp::start(plays).await;
    app.send_prompt("first").await;
    let frames = app.send_prompt("second").await;
    let names: Vec<&str> = frames.iter().map(|frame| frame.name.as_str()).collect();
    let position = |name: &str| {
        names.iter().position(|it| *it == name).unwrap_or_else(|| panic!("{name}: {names:?}"))
    };
    assert!(
        position("prompt.completed") < position("auto_compaction_start"),
        "the prompt completes before the compaction"
    );
    assert!(position("auto_compaction_end") < position("agent_settled"));
    assert_eq!(event_data(&frames, "auto_compaction_end")[0]["result"]["tokensBefore"], 120_005);
    app.send_prompt("third").await;
    let last = app.model.request_bodies().last().unwrap()["input"].to_string();
    for part in ["To count.", "The second was asked.", "two", "third"] {
        assert!(last.contains(part), "{part}: {last}");
    }
}

#[tokio::test]
async fn compact_command_summarises_conversation() {
    let (goal, turn) =
        (text_response("## Goal\nTo count."), text_response("The second was asked."));
    let app =
        TestApp::start(vec![text_response("one"), response_with_usage("two", 5_000), goal, turn])
            .await;
    app.send_prompt("first").await;
    app.send_prompt("second").await;
    let done = app.compact(&json!({"instructions": "the numbers"})).await;
    assert_eq!(
        done["result"]["summary"],
        "## Goal\nTo count.\n\n---\n\n**Turn Context (split turn):**\n\nThe second was asked."
    );
    let request = app.model.request_bodies()[2]["input"].to_string();
    assert!(request.contains("Additional focus: the numbers"), "{request}");
    let long = json!({"instructions": "x".repeat(5_000)});
    assert_eq!(app.service.post("/api/conversations/c/compact", &long).await.0, 400);
    assert_eq!(app.service.post("/api/conversations/nobody/compact", &json!({})).await.0, 404);
}

/// The texts of the source (CO-08), for a cut inside the first turn.
#[tokio::test]
async fn cut_in_first_turn_has_no_prior_history() {
    let plays = vec![response_with_usage("one", 5_000), text_response("The first was asked.")];
    let app = TestApp::start(plays).await;
    app.send_prompt("first").await;
    let done = app.compact(&json!({})).await;
    assert_eq!(
        done["result"]["summary"],
        "No prior history.\n\n---\n\n**Turn Context (split turn):**\n\nThe first was asked."
    );
}
