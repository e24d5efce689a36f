//! Modes of the loop `protocol`: `resume` sends only what is new over one WebSocket of a delivery, and
//! every failure of the socket falls back to HTTP.

use serde_json::{Value, json};
use turnwheel::App;

use crate::support::call_blocker::{BlockableTool, CallBlocker};
use crate::support::normalise::normalise_entries;
use crate::support::service::Service;
use crate::support::socket_model::{ModelTurn, Reply, SocketModel, Transport, Upgrades};
use crate::support::tools::{Echo, Runs};

mod client;
mod fallbacks;
mod kill;
mod tokens;

/// A response with one call.
fn calls(value: &str) -> Reply {
    Reply::Text(call_text(value))
}

fn call_text(value: &str) -> String {
    format!(
        "<think>I call it.</think>\n\n<execute>[{{\"name\": \"echo\", \"args\": {{\"value\": \"{value}\"}}}}]</execute>"
    )
}

fn done() -> Reply {
    Reply::Text("Done.".to_owned())
}

struct TestApp {
    service: Service,
    model: SocketModel,
    _folder: tempfile::TempDir,
}

impl TestApp {
    /// Starts with an agent in protocol mode that has these keys.
    async fn start(keys: &str, upgrades: Upgrades, replies: Vec<Reply>) -> Self {
        Self::start_with(App::new().tool(Echo(Runs::default())), keys, upgrades, replies).await
    }

    async fn start_with(app: App, keys: &str, upgrades: Upgrades, replies: Vec<Reply>) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let agents = folder.path().join("agents");
        std::fs::create_dir(&agents).unwrap();
        let file = format!(
            "---\ndescription: Helps.\nloop: protocol\ntools: [echo]\nretry: {{ baseDelayMs: 100 }}\n{keys}\n---\nBe brief.\n"
        );
        std::fs::write(agents.join("helper.agent.md"), file).unwrap();
        let model = SocketModel::start(upgrades, replies).await;
        let settings = [
            ("AZURE_OPENAI_BASE_URL", model.url.as_str()),
            ("AZURE_OPENAI_API_KEY", "key-of-this-test"),
            ("AZURE_OPENAI_HEADERS", "x-gateway=g"),
            ("TURNWHEEL_MODEL", "gpt-5-mini"),
        ];
        let service = Service::start(app, folder.path(), &settings).await;
        Self { service, model, _folder: folder }
    }

    /// Runs a prompt in a new conversation.
    async fn run_prompt(&self, body: &Value) -> PromptRun {
        let (status, accepted) = self.service.post("/api/prompts", body).await;
        assert_eq!(status, 202, "{accepted}");
        let conversation = accepted["conversationId"].as_str().unwrap();
        let prompt = accepted["promptId"].as_str().unwrap();
        let prompt = self.service.wait_for_prompt(conversation, prompt).await;
        let path = format!("/api/conversations/{conversation}");
        let entries = self.service.get(&format!("{path}/entries?limit=100")).await;
        let history = self.service.get(&format!("{path}/history?format=protocol")).await;
        let mut history = history["items"].as_array().unwrap().clone();
        for event in &mut history {
            event.as_object_mut().unwrap().remove("timestamp");
        }
        PromptRun { prompt, entries: entries["items"].as_array().unwrap().clone(), history }
    }
}

struct PromptRun {
    prompt: Value,
    entries: Vec<Value>,
    /// The events of the streaming text protocol, without times.
    history: Vec<Value>,
}

impl PromptRun {
    /// `providerState` of each model response.
    fn provider_states(&self) -> Vec<Value> {
        let messages = self.entries.iter().map(|entry| &entry["message"]);
        messages.filter_map(|message| message.get("providerState")).cloned().collect()
    }

    /// The entries without the members that name the mode.
    fn common_entries(&self) -> Vec<Value> {
        let mut entries = self.entries.clone();
        for message in entries.iter_mut().filter_map(|entry| entry.get_mut("message")) {
            message.as_object_mut().unwrap().remove("providerState");
        }
        normalise_entries(&entries)
    }
}

const RESUME: &str = "protocolMode: resume\ncontinuation: inline";

/// Runs a prompt over sockets.
async fn run_with(keys: &str, replies: Vec<Reply>) -> (PromptRun, Vec<ModelTurn>) {
    let app = TestApp::start(keys, Upgrades::Accepted, replies).await;
    let run = app.run_prompt(&json!({ "input": "go" })).await;
    let turns = app.model.turns();
    app.service.stop().await;
    (run, turns)
}

/// Like [`run_with`], with the mode as a setting of the conversation, so that the agent is the same.
async fn run_in_mode(mode: &str, replies: Vec<Reply>) -> (PromptRun, Vec<ModelTurn>) {
    let app = TestApp::start("continuation: inline", Upgrades::Accepted, replies).await;
    let run = app.run_prompt(&json!({ "input": "go", "settings": { "protocolMode": mode } })).await;
    let turns = app.model.turns();
    app.service.stop().await;
    (run, turns)
}

fn input_len(turn: &ModelTurn) -> usize {
    turn.body["input"].as_array().unwrap().len()
}

#[tokio::test]
async fn resume_sends_only_new_items_with_results_of_replay() {
    let replies = || vec![calls("a"), calls("b"), done()];
    let (resumed, turns) = run_in_mode("resume", replies()).await;
    let (replayed, replays) = run_in_mode("replay", replies()).await;

    assert!(turns.iter().all(|turn| turn.transport == Transport::Socket));
    assert_eq!(turns.iter().map(input_len).collect::<Vec<_>>(), [2, 1, 1]);
    let previous: Vec<&Value> =
        turns.iter().map(|turn| &turn.body["previous_response_id"]).collect();
    assert_eq!(previous, [&Value::Null, &json!("resp_of_socket_1"), &json!("resp_of_socket_2")]);
    assert!(
        turns.iter().all(|turn| turn.body["store"] == false && turn.body.get("stream").is_none())
    );

    assert!(replays.iter().all(|turn| turn.transport == Transport::Http));
    assert_eq!(replays.iter().map(input_len).collect::<Vec<_>>(), [2, 4, 6]);
    let contexts =
        |turns: &[ModelTurn]| turns.iter().map(|it| it.context.clone()).collect::<Vec<_>>();
    assert_eq!(contexts(&turns), contexts(&replays), "the model reads the same");

    assert_eq!(resumed.common_entries(), replayed.common_entries());
    assert!(resumed.history.len() > 7);
    assert_eq!(resumed.history, replayed.history);
    let ends = [&resumed.prompt, &replayed.prompt].map(|prompt| {
        assert_eq!(prompt["state"], "completed");
        (
            prompt["output"].as_array().unwrap().last().unwrap()["content"].clone(),
            prompt["usage"].clone(),
        )
    });
    assert_eq!(ends[0], ends[1], "the usage counts once");
    assert_eq!(resumed.provider_states(), vec![json!({ "mode": "resume" }); 3]);
    assert!(replayed.provider_states().is_empty());
}

#[tokio::test]
async fn socket_is_opened_once_with_credentials_and_headers() {
    let app = TestApp::start(RESUME, Upgrades::Accepted, vec![calls("a"), done(), done()]).await;
    app.run_prompt(&json!({ "input": "go" })).await;
    app.run_prompt(&json!({ "input": "again" })).await;
    let upgrades = app.model.upgrades();
    assert_eq!(upgrades.len(), 2, "one for each delivery");
    let names = ["authorization", "api-key", "x-gateway"];
    let values = names.map(|name| upgrades[0][name].to_str().unwrap());
    assert_eq!(values, ["Bearer key-of-this-test", "key-of-this-test", "g"]);
    app.service.stop().await;
}

#[tokio::test]
async fn no_socket_is_opened_without_inline_continuation() {
    for keys in ["protocolMode: auto", "protocolMode: replay\ncontinuation: inline"] {
        let app = TestApp::start(keys, Upgrades::Accepted, vec![calls("a"), done()]).await;
        let run = app.run_prompt(&json!({ "input": "go" })).await;
        assert_eq!(run.prompt["state"], "completed");
        assert_eq!(app.model.transports(), [Transport::Http, Transport::Http], "{keys}");
        assert!(app.model.upgrades().is_empty() && run.provider_states().is_empty());
        app.service.stop().await;
    }
}

#[tokio::test]
async fn last_round_adds_instructions_and_limit_has_text_of_source() {
    let keys = format!("{RESUME}\nmaxRounds: 2");
    let (run, turns) = run_with(&keys, vec![calls("a"), calls("b")]).await;
    assert_eq!(turns.iter().map(input_len).collect::<Vec<_>>(), [2, 2]);
    let added = &turns[1].body["input"][0];
    assert_eq!(added["role"], turns[0].body["input"][0]["role"]);
    assert_eq!(
        added["content"],
        "Final iteration: Please conclude naturally with what you've accomplished."
    );
    assert_eq!(run.prompt["stopReason"], "max_rounds");
    let last = run.prompt["output"].as_array().unwrap().last().unwrap().clone();
    assert_eq!(last["content"], "Max iterations (2) exceeded in resume mode.");
}

/// The history lacks a part of the response, so the whole input is sent, over the same socket.
#[tokio::test]
async fn differing_response_is_followed_by_whole_input() {
    let with = |more: &str| Reply::Text(format!("{}{more}", call_text("a")));
    let extra = Reply::Text(
        "<execute>[{\"name\": \"echo\", \"args\": {\"value\": \"a\"}, \"why\": 1}]</execute>"
            .to_owned(),
    );
    let malformed = Reply::Text("<execute>[</execute>".to_owned());
    for (name, first) in [
        ("text after the calls", with("<results>[]</results>")),
        ("another member", extra),
        ("malformed calls", malformed),
        ("a truncated response", Reply::Truncated("<execute>[".to_owned())),
    ] {
        let (run, turns) = run_with(RESUME, vec![first, calls("b"), done()]).await;
        assert_eq!(run.prompt["state"], "completed", "{name}: {}", run.prompt);
        if turns.len() > 1 {
            assert_eq!(turns[1].transport, Transport::Socket, "{name}");
            assert_eq!(turns[1].body.get("previous_response_id"), None, "{name}");
            assert!(input_len(&turns[1]) > 2, "{name}");
        }
    }
    let spaced = "<think>I call it.</think><execute>\n [ {\"args\":{\"value\":\"ü\"},\"name\":\"echo\"} ]\n</execute>";
    let (_, turns) = run_with(RESUME, vec![Reply::Text(spaced.to_owned()), done()]).await;
    assert_eq!(input_len(&turns[1]), 1, "another spelling is no difference");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn steer_during_call_is_sent_as_new_item() {
    let gate = CallBlocker::default();
    let app = TestApp::start_with(
        App::new().tool(BlockableTool(Echo(Runs::default()), gate.clone())),
        RESUME,
        Upgrades::Accepted,
        vec![calls("a"), done()],
    )
    .await;
    gate.block("call_1_1");
    let body = json!({ "conversationId": "c", "input": "go" });
    let (_, begun) = app.service.post("/api/prompts", &body).await;
    gate.started("call_1_1").await;
    let steer = json!({ "input": "turn left", "mode": "steer" });
    let (status, accepted) = app.service.post("/api/conversations/c/prompts", &steer).await;
    assert_eq!(status, 202, "{accepted}");
    gate.release("call_1_1");
    let prompt = app.service.wait_for_prompt("c", begun["promptId"].as_str().unwrap()).await;
    assert_eq!(prompt["state"], "completed");
    let turns = app.model.turns();
    let texts =
        |turn: &ModelTurn| turn.context.iter().map(|(_, text)| text.clone()).collect::<Vec<_>>();
    assert_eq!(texts(&turns[1]).last().unwrap(), "turn left");
    assert_eq!(turns[1].body["previous_response_id"], "resp_of_socket_1");
    assert_eq!(input_len(&turns[1]), 2, "the results and the steer");
    app.service.stop().await;
}

#[tokio::test]
async fn history_window_sends_whole_input() {
    let keys = format!("{RESUME}\nhistoryWindow: 2");
    let (run, turns) = run_with(&keys, vec![calls("a"), calls("b"), done()]).await;
    assert_eq!(run.prompt["state"], "completed");
    assert_eq!(turns.iter().map(input_len).collect::<Vec<_>>(), [2, 3, 3]);
    assert!(turns.iter().all(|turn| turn.body.get("previous_response_id").is_none()));
}

#[tokio::test]
async fn mode_of_a_conversation_must_fit_its_settings() {
    let app = TestApp::start("", Upgrades::Accepted, vec![calls("a"), done()]).await;
    let refusals = [
        (json!({ "protocolMode": "resume" }), "needs `continuation: inline`"),
        (json!({ "protocolMode": "auto", "loop": "agent" }), "needs `loop: protocol`"),
        (json!({ "protocolMode": "socket" }), "expected one of `auto`, `resume`, `replay`"),
    ];
    for (settings, text) in refusals {
        let body = json!({ "input": "go", "settings": settings });
        let (status, problem) = app.service.post("/api/prompts", &body).await;
        assert_eq!(status, 400, "{problem}");
        assert!(problem.to_string().contains(text), "{problem}");
    }
    let settings = json!({ "protocolMode": "resume", "continuation": "inline" });
    let run = app.run_prompt(&json!({ "input": "go", "settings": settings })).await;
    assert_eq!(run.prompt["state"], "completed");
    assert_eq!(app.model.transports(), [Transport::Socket, Transport::Socket]);
    app.service.stop().await;
}
