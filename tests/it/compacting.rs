//! Compaction through the whole service: model requests, events, and the complete record.

use std::sync::atomic::{AtomicU64, Ordering};

use serde_json::{Value, json};
use turnwheel::App;

use crate::support::fake_model::{FakeModel, Play, Script};
use crate::support::service::Service;
use crate::support::stream::{Frame, Stream};

const AGENT: &str = "---\ndescription: Answers.\nmodel: gpt-4o\n---\nBe brief.\n";

struct Stage {
    service: Service,
    model: FakeModel,
    /// Number of the newest event that was read.
    read: AtomicU64,
    _folder: tempfile::TempDir,
}

impl Stage {
    /// Creates the conversation `c`, of which compaction keeps only the newest message.
    async fn set(plays: Vec<Play>) -> Self {
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
        Self { service, model, read: AtomicU64::new(0), _folder: folder }
    }

    /// Sends a prompt and waits until the conversation is settled.
    async fn say(&self, text: &str) -> Vec<Frame> {
        let mut stream = self.listen().await;
        let path = "/api/conversations/c/prompts";
        let (status, answer) = self.service.post(path, &json!({"input": text})).await;
        assert_eq!(status, 202, "{answer}");
        self.heard(stream.until("agent_settled").await)
    }

    /// Opens the event stream after the last event that was read.
    async fn listen(&self) -> Stream {
        let read = Some(self.read.load(Ordering::Relaxed)).filter(|read| *read > 0);
        Stream::open(&self.service, "c", "", read).await
    }

    fn heard(&self, frames: Vec<Frame>) -> Vec<Frame> {
        let last = frames.iter().rev().find_map(|frame| frame.id);
        self.read.store(last.expect("events have numbers"), Ordering::Relaxed);
        frames
    }

    async fn messages(&self) -> Vec<Value> {
        let list = self.service.get("/api/conversations/c/messages").await;
        list["items"].as_array().unwrap().clone()
    }
}

fn says(text: &str) -> Play {
    Play::Answer(Script::text(text))
}

/// A response with this number of input tokens in its usage.
fn takes(text: &str, tokens: u64) -> Play {
    let mut events = Script::text(text).events();
    let usage = &mut events.last_mut().unwrap()["response"]["usage"];
    usage["input_tokens"] = json!(tokens);
    usage["total_tokens"] = json!(tokens + 5);
    Play::SseEvents(events)
}

fn too_long() -> Play {
    let message = "Your input exceeds the context window of this model. Please adjust your input and try again.";
    let body = json!({"error": {"code": "context_length_exceeded", "message": message}});
    Play::Http { status: 400, headers: Vec::new(), body: body.to_string() }
}

fn named<'a>(frames: &'a [Frame], name: &str) -> Vec<&'a Value> {
    frames.iter().filter(|frame| frame.name == name).map(|frame| &frame.data).collect()
}

const SUMMARY: &str = "The conversation history before this point was compacted into the following summary:\n\n<summary>\n## Goal\nTo count.\n</summary>";

#[tokio::test]
async fn what_the_model_refuses_is_summed_up_and_asked_for_again() {
    let plays =
        vec![says("one"), too_long(), says("## Goal\nTo count."), says("two"), says("three")];
    let stage = Stage::set(plays).await;
    stage.say("first").await;
    let told = stage.say("second").await;
    let [start] = named(&told, "auto_compaction_start")[..] else { panic!("{told:?}") };
    assert_eq!(start["reason"], "overflow");
    let [end] = named(&told, "auto_compaction_end")[..] else { panic!("{told:?}") };
    assert_eq!((&end["aborted"], &end["willRetry"]), (&json!(false), &json!(true)));
    assert_eq!(end["result"]["summary"], "## Goal\nTo count.");
    assert!(
        end["result"]["firstKeptEntryId"].is_string() && end["errorMessage"].is_null(),
        "{end}"
    );
    let ends = named(&told, "agent_end");
    let retries: Vec<_> = ends.iter().map(|end| &end["willRetry"]).collect();
    assert_eq!(retries, [&json!(true), &json!(false)]);
    assert_eq!(named(&told, "prompt.completed").len(), 1);
    stage.say("third").await;

    let requests = stage.model.requests();
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
        stage.messages().await.iter().map(|it| it["role"].as_str().unwrap().to_owned()).collect();
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
async fn a_full_window_is_summed_up_before_all_is_quiet() {
    let (goal, turn) = (says("## Goal\nTo count."), says("The second was asked."));
    let plays = vec![says("one"), takes("two", 120_000), goal, turn, says("three")];
    let stage = Stage::set(plays).await;
    stage.say("first").await;
    let told = stage.say("second").await;
    let names: Vec<&str> = told.iter().map(|frame| frame.name.as_str()).collect();
    let place = |name: &str| {
        names.iter().position(|it| *it == name).unwrap_or_else(|| panic!("{name}: {names:?}"))
    };
    assert!(
        place("prompt.completed") < place("auto_compaction_start"),
        "the prompt completes before the compaction"
    );
    assert!(place("auto_compaction_end") < place("agent_settled"));
    assert_eq!(named(&told, "auto_compaction_end")[0]["result"]["tokensBefore"], 120_005);
    stage.say("third").await;
    let last = stage.model.requests().last().unwrap()["input"].to_string();
    for part in ["To count.", "The second was asked.", "two", "third"] {
        assert!(last.contains(part), "{part}: {last}");
    }
}

#[tokio::test]
async fn somebody_asks_for_a_summary() {
    let (goal, turn) = (says("## Goal\nTo count."), says("The second was asked."));
    let stage = Stage::set(vec![says("one"), takes("two", 5_000), goal, turn]).await;
    stage.say("first").await;
    stage.say("second").await;
    let path = "/api/conversations/c/compact";
    let compact = async |body: Value| {
        let mut stream = stage.listen().await;
        let (status, answer) = stage.service.post(path, &body).await;
        assert_eq!(status, 202, "{answer}");
        assert!(answer["inputId"].is_string());
        let told = stage.heard(stream.until("auto_compaction_end").await);
        named(&told, "auto_compaction_end").last().map(|end| (*end).clone()).unwrap()
    };
    let done = compact(json!({"instructions": "the numbers"})).await;
    assert_eq!(
        done["result"]["summary"],
        "## Goal\nTo count.\n\n---\n\n**Turn Context (split turn):**\n\nThe second was asked."
    );
    let asked = stage.model.requests()[2]["input"].to_string();
    assert!(asked.contains("Additional focus: the numbers"), "{asked}");
    let long = json!({"instructions": "x".repeat(5_000)});
    assert_eq!(stage.service.post(path, &long).await.0, 400);
    assert_eq!(stage.service.post("/api/conversations/nobody/compact", &json!({})).await.0, 404);
}
