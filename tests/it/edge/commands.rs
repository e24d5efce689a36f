//! Tests of commands of extensions and of the input hook.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use serde_json::{Value, json};
use turnwheel::entries::Source;
use turnwheel::extensions::{
    BashResult, CommandCall, CommandOutcome, CommandSpec, Extension, HookContext, HookError,
    InputDecision, PromptText, Severity, UserBash, UserMessageQueue,
};
use turnwheel::testing::commands::prompt_queue::accept_queue_message;

use super::test_app::{ApiResponse, TestApp};

pub(super) const PROMPTS: &str = "/api/conversations/c/prompts";
/// Runs until it waits for an approval.
pub(super) const WAITING_PROMPT: &str = "use pay with {\"amount\": 500} then say done";

/// Offers commands and records what runs.
#[derive(Debug, Default)]
pub(super) struct Desk {
    calls: Mutex<Vec<String>>,
    inputs: AtomicUsize,
}

impl Desk {
    pub(super) fn calls(&self) -> Vec<String> {
        self.calls.lock().unwrap().clone()
    }
}

/// The extension of a test, which the test can read.
#[derive(Debug, Clone, Default)]
pub(super) struct SharedDesk(Arc<Desk>);

#[async_trait]
impl Extension for SharedDesk {
    fn name(&self) -> &'static str {
        "desk"
    }

    fn timeout(&self) -> Option<Duration> {
        Some(Duration::from_millis(50))
    }

    fn commands(&self) -> Vec<CommandSpec> {
        let greet = CommandSpec {
            argument_hint: Some("<name>".to_owned()),
            shortcut: Some("ctrl+g".to_owned()),
            ..CommandSpec::new("greet", "Greets.")
        };
        let others = ["fail", "panic", "hang", "chatty", "note", "ask", "halt", "compact"];
        let others = others.map(|name| CommandSpec::new(name, ""));
        [greet].into_iter().chain(others).collect()
    }

    async fn run_command(
        &self,
        cx: &HookContext,
        call: &CommandCall<'_>,
    ) -> Result<CommandOutcome, HookError> {
        assert_eq!(
            (cx.hook().name(), cx.conversation().conversation_id.as_str()),
            ("command", "c")
        );
        self.0.calls.lock().unwrap().push(format!("{}|{}", call.name, call.args));
        match call.name {
            "greet" => Ok(CommandOutcome::text(format!("hello {} of {}", call.args, call.user))),
            "fail" => {
                cx.set_session_name("failed")?;
                Err(HookError::new("no such desk"))
            }
            "note" => {
                assert_eq!(
                    (cx.model(), cx.active_tools().collect::<Vec<_>>()),
                    ("normal", vec!["pay"])
                );
                cx.append_entry("desk/note", &call.args)?;
                cx.set_session_name(call.args)?;
                cx.notify("noted", Severity::Info)?;
                Ok(CommandOutcome::default())
            }
            "ask" => {
                cx.send_user_message(call.args, UserMessageQueue::FollowUp)?;
                Ok(CommandOutcome::default())
            }
            "halt" => {
                cx.abort()?;
                cx.append_entry("desk/note", &"halted")?;
                Ok(CommandOutcome::default())
            }
            "panic" => panic!("a test of panics"),
            "hang" => std::future::pending().await,
            "chatty" => Ok(CommandOutcome::text("x".repeat(40_000))),
            _ => unreachable!(),
        }
    }

    async fn transform_input(
        &self,
        cx: &HookContext,
        input: &PromptText,
    ) -> Result<InputDecision, HookError> {
        self.0.inputs.fetch_add(1, Ordering::Relaxed);
        let transform =
            |text: &str| InputDecision::Transform { text: text.to_owned(), images: None };
        Ok(match input.text.as_str() {
            "short" => transform("say long"),
            "stop" => InputDecision::Handled,
            "broken" => return Err(HookError::new("broken hook")),
            "name it" => {
                cx.set_session_name("named")?;
                InputDecision::Continue
            }
            "who" if input.source == Source::Queue => transform("say queue"),
            "who" => transform("say user"),
            _ => InputDecision::Continue,
        })
    }

    async fn replace_bash_result(
        &self,
        _cx: &HookContext,
        bash: &UserBash,
    ) -> Result<Option<BashResult>, HookError> {
        let is_secret = bash.command == "cat secret";
        Ok(is_secret.then(|| BashResult { output: "***".to_owned(), ..bash.result.clone() }))
    }
}

pub(super) fn desk_app() -> (TestApp, Arc<Desk>) {
    let desk = SharedDesk::default();
    let state = Arc::clone(&desk.0);
    let app = TestApp::new().with_services(|services| services.extensions.push(Arc::new(desk)));
    (app, state)
}

impl TestApp {
    pub(super) async fn run_command(&self, name: &str, body: &Value, key: &str) -> ApiResponse {
        let path = format!("/api/conversations/c/commands/{name}");
        self.post(&path, body).key(key).send().await
    }

    pub(super) async fn send_input(&self, body: Value) -> ApiResponse {
        self.clock.advance(Duration::from_millis(1));
        self.post(PROMPTS, &body).send().await
    }

    /// Approves the open call of [`WAITING_PROMPT`], and works.
    pub(super) async fn approve(&self) {
        let seen = self.get_json("/api/conversations/c").await;
        let id = seen["pendingApprovals"][0]["id"].as_str().unwrap();
        let path = format!("/api/conversations/c/approvals/{id}");
        self.post(&path, &json!({"decision": "approve"})).send().await.expect_status(200);
        self.work().await;
    }

    pub(super) async fn user_texts(&self) -> Vec<Value> {
        let messages = self.get_json("/api/conversations/c/messages?limit=100").await;
        let items = messages["items"].as_array().unwrap().clone();
        let users = items.into_iter().filter(|message| message["role"] == "user");
        users.map(|message| message["content"].clone()).collect()
    }
}

#[tokio::test]
async fn commands_are_listed_with_their_extension() {
    let (app, _) = desk_app();
    let listed = app.get_json("/api/commands?agent=clerk").await;
    assert_eq!(
        listed["items"][0],
        json!({"name": "greet", "description": "Greets.", "kind": "command", "extension": "desk",
            "argumentHint": "<name>", "shortcut": "ctrl+g"})
    );
    let names: Vec<&str> =
        listed["items"].as_array().unwrap().iter().map(|it| it["name"].as_str().unwrap()).collect();
    let expected = ["greet", "fail", "panic", "hang", "chatty", "note", "ask", "halt"];
    assert_eq!(names, expected, "`compact` is reserved");
    assert_eq!(app.get_json("/api/commands").await, listed);
    let problem = app.get("/api/commands?agent=nobody").send().await;
    let problem = problem.expect_problem(400, "bad-request");
    assert_eq!(problem["errors"][0]["pointer"], "?agent");
    assert_eq!(TestApp::new().get_json("/api/commands").await, json!({"items": []}));
}

#[tokio::test]
async fn command_runs_once_for_each_key() {
    let (app, desk) = desk_app();
    app.run("say hi").await;
    let first = app.run_command("greet", &json!({"args": "Ann"}), "k").await.expect_status(200);
    let body = first.json();
    assert_eq!(body["disposition"], "handled");
    assert_eq!(
        (&body["command"], &body["output"]),
        (&json!("greet"), &json!("hello Ann of default"))
    );
    let again = app.run_command("greet", &json!({"args": "Ann"}), "k").await.expect_status(200);
    assert_eq!((again.json(), desk.calls()), (body.clone(), vec!["greet|Ann".to_owned()]));
    let input = body["inputId"].as_str().unwrap();
    let receipt = app.get_json(&format!("/api/conversations/c/inbox/{input}")).await;
    assert_eq!(receipt["state"], "landed");
    let other = app.run_command("greet", &json!({"args": "Bob"}), "k").await;
    other.expect_problem(422, "idempotency-key-reused");
    app.run_command("fail", &json!({"args": "Ann"}), "k")
        .await
        .expect_problem(422, "idempotency-key-reused");
    app.run_command("greet", &json!({}), "k2").await.expect_status(200);
    assert_eq!(desk.calls().last().unwrap(), "greet|");
    assert_eq!(app.get_json(PROMPTS).await["items"].as_array().unwrap().len(), 1);
}

#[tokio::test]
async fn failed_command_is_handled_with_its_error() {
    let (app, _) = desk_app();
    app.run("say hi").await;
    for (name, error) in [
        ("fail", "no such desk"),
        ("panic", "it panicked"),
        ("hang", "no result within 50ms"),
        ("chatty", "the output has 40000 bytes: at most 32768 are allowed"),
    ] {
        let body = app.run_command(name, &json!({}), name).await.expect_status(200).json();
        assert_eq!((&body["disposition"], &body["error"]), (&json!("handled"), &json!(error)));
        assert_eq!(body.get("output"), None);
        let again = app.run_command(name, &json!({}), name).await.expect_status(200).json();
        assert_eq!(again, body);
    }
    app.work().await;
    assert_eq!(app.get_json("/api/conversations/c").await.get("name"), None, "actions are dropped");
}

#[tokio::test]
async fn unknown_command_is_not_found_with_remedy() {
    let (app, _) = desk_app();
    app.run("say hi").await;
    for name in ["nothing", "compact", "GREET"] {
        let problem =
            app.run_command(name, &json!({}), name).await.expect_problem(404, "not-found");
        let detail = "No extension has this command. `GET /api/commands` lists the commands.";
        assert_eq!(problem["detail"], detail);
    }
    let long = json!({"args": "x".repeat(256 * 1024 + 1)});
    let problem = app.run_command("greet", &long, "l").await.expect_problem(400, "bad-request");
    assert_eq!(problem["errors"][0]["pointer"], "/args");
    let path = "/api/conversations/c/commands/greet";
    app.post(path, &json!({})).user("eve", "").send().await.expect_problem(404, "not-found");
}

#[tokio::test]
async fn prompt_with_command_text_starts_no_prompt() {
    let (app, desk) = desk_app();
    app.run("say hi").await;
    let handled = app.send_input(json!({"input": "/greet  Ann"})).await.expect_status(200).json();
    assert_eq!(
        (&handled["disposition"], &handled["command"]),
        (&json!("handled"), &json!("greet"))
    );
    assert_eq!(
        (desk.calls(), desk.inputs.load(Ordering::Relaxed)),
        (vec!["greet| Ann".to_owned()], 1)
    );
    app.work().await;
    assert_eq!(app.user_texts().await, ["say hi"]);
    // Other texts are prompts.
    for input in ["/nothing", "/compact now", "/greet\nAnn"] {
        app.send_input(json!({"input": input})).await.expect_status(202);
        app.work().await;
    }
    app.send_input(json!({"input": "/greet Bob", "expand": false})).await.expect_status(202);
    app.work().await;
    assert_eq!(desk.calls().len(), 1);
    assert_eq!(app.user_texts().await.last().unwrap(), "/greet Bob");
}

#[tokio::test]
async fn command_runs_while_a_prompt_runs() {
    let (app, desk) = desk_app();
    app.run(WAITING_PROMPT).await;
    app.send_input(json!({"input": "say more"})).await.expect_problem(409, "already-processing");
    let handled = app.send_input(json!({"input": "/greet Ann"})).await.expect_status(200).json();
    assert_eq!(handled["commandOutput"], "hello Ann of default");
    assert_eq!((handled.get("output"), handled.get("promptId")), (None, None));
    let failed = app.send_input(json!({"input": "/fail"})).await.expect_status(200).json();
    assert_eq!((&failed["commandError"], failed.get("error")), (&json!("no such desk"), None));
    app.run_command("greet", &json!({}), "k").await.expect_status(200);
    assert_eq!(desk.calls().len(), 3);
}

#[tokio::test]
async fn command_text_cannot_be_queued() {
    let (app, desk) = desk_app();
    app.prompt("say hi").await;
    for mode in ["steer", "followUp"] {
        let problem = app.send_input(json!({"input": "/greet Ann", "mode": mode})).await;
        let problem = problem.expect_problem(409, "conflict");
        assert_eq!(
            problem["detail"],
            "Extension command \"/greet\" cannot be queued. Use prompt() or execute the command when not streaming."
        );
    }
    let body = json!({"input": "/greet Ann", "mode": "steer", "expand": false});
    app.send_input(body).await.expect_status(202);
    assert_eq!(desk.calls(), [""; 0]);
}

#[tokio::test]
async fn first_input_that_is_handled_creates_the_conversation() {
    for input in ["/greet Ann", "stop"] {
        let (app, _) = desk_app();
        let body = json!({"conversationId": "c", "input": input});
        let send = || app.post("/api/prompts", &body).key("k").send();
        let handled = send().await.expect_status(200).json();
        assert_eq!(
            (&handled["disposition"], &handled["conversationId"]),
            (&json!("handled"), &json!("c"))
        );
        assert_eq!(send().await.expect_status(200).json(), handled);
        let other = app.post("/api/prompts", &body).key("k2").send().await;
        other.expect_problem(409, "conflict");
        app.work().await;
        assert_eq!(app.get_json("/api/conversations/c").await["state"], "idle");
        assert_eq!(app.user_texts().await, [""; 0]);
    }
}

#[tokio::test]
async fn input_hook_changes_input_and_keeps_original() {
    let (app, desk) = desk_app();
    let first = app.post("/api/prompts", &json!({"conversationId": "c", "input": "short"}));
    let id = first.key("k").send().await.expect_status(202).json()["promptId"].clone();
    let path = format!("{PROMPTS}/{}", id.as_str().unwrap());
    let prompt = app.get_json(&path).await;
    assert_eq!((&prompt["input"], &prompt["original"]), (&json!("say long"), &json!("short")));
    app.work().await;
    let prompt = app.get_json(&path).await;
    assert_eq!((&prompt["input"], &prompt["original"]), (&json!("say long"), &json!("short")));
    assert_eq!(prompt["output"][0]["content"], "long");
    let again = app.post("/api/prompts", &json!({"conversationId": "c", "input": "short"}));
    again.key("k").send().await.expect_status(202);
    assert_eq!(desk.inputs.load(Ordering::Relaxed), 1, "not again for a repeated key");
    let path = app.run("say plain").await;
    let prompt = app.get_json(&format!("{PROMPTS}/{path}")).await;
    assert_eq!(prompt.get("original"), None);
}

#[tokio::test]
async fn failed_input_hook_leaves_input_unchanged() {
    let (app, _) = desk_app();
    app.run("broken").await;
    assert_eq!(app.user_texts().await, ["broken"]);
}

#[tokio::test]
async fn queued_inputs_run_the_input_hook_and_no_command() {
    let (app, desk) = desk_app();
    for (number, input) in ["who", "/greet Ann", "stop"].into_iter().enumerate() {
        let text = json!({"conversationId": "c", "input": input, "mode": "followUp"}).to_string();
        app.clock.advance(Duration::from_millis(5));
        accept_queue_message(&app.services, &text, &format!("m{number}")).await.unwrap();
    }
    app.work().await;
    assert_eq!(app.user_texts().await, ["say queue", "/greet Ann"]);
    assert_eq!((desk.calls().len(), desk.inputs.load(Ordering::Relaxed)), (0, 3));
}
