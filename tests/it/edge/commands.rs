//! Tests of commands of extensions, of the input hook, and of recorded shell commands.

use std::borrow::Cow;
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
use turnwheel::messages::Message;
use turnwheel::testing::commands::prompt_queue::accept_queue_message;
use turnwheel::testing::fail_points::{FailPoints, NoFailPoints};
use turnwheel::testing::settings::links::Auth;
use turnwheel::testing::store::memory::{MemoryStore, StoreFaults};

use super::test_app::{TestApp, TestResponse};

const PROMPTS: &str = "/api/conversations/c/prompts";
/// Runs until it waits for an approval.
const WAITING_PROMPT: &str = "use pay with {\"amount\": 500} then say done";

/// Offers commands and records what runs.
#[derive(Debug, Default)]
pub(super) struct Desk {
    calls: Mutex<Vec<String>>,
    inputs: AtomicUsize,
}

impl Desk {
    fn calls(&self) -> Vec<String> {
        self.calls.lock().unwrap().clone()
    }
}

/// The extension of a test, which the test can read.
#[derive(Debug, Clone, Default)]
struct SharedDesk(Arc<Desk>);

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
    async fn run_command(&self, name: &str, body: &Value, key: &str) -> TestResponse {
        let path = format!("/api/conversations/c/commands/{name}");
        self.post(&path, body).key(key).send().await
    }

    async fn send_input(&self, body: Value) -> TestResponse {
        self.clock.advance(Duration::from_millis(1));
        self.post(PROMPTS, &body).send().await
    }

    /// Approves the open call of [`WAITING_PROMPT`], and works.
    async fn approve(&self) {
        let seen = self.get_json("/api/conversations/c").await;
        let id = seen["pendingApprovals"][0]["id"].as_str().unwrap();
        let path = format!("/api/conversations/c/approvals/{id}");
        self.post(&path, &json!({"decision": "approve"})).send().await.expect_status(200);
        self.work().await;
    }

    async fn user_texts(&self) -> Vec<Value> {
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
        let detail = problem["detail"].as_str().unwrap();
        assert!(detail.contains(name) && detail.contains("GET /api/commands"), "{detail}");
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
    assert_eq!(handled["output"], "hello Ann of default");
    app.run_command("greet", &json!({}), "k").await.expect_status(200);
    assert_eq!(desk.calls().len(), 2);
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

#[tokio::test]
async fn shell_command_is_recorded_for_the_next_prompt() {
    let (app, _) = desk_app();
    app.run(WAITING_PROMPT).await;
    let path = "/api/conversations/c/bash";
    let record = json!({"command": "ls", "output": "a b", "exitCode": 1, "truncated": true});
    let send = || app.post(path, &record).key("k").send();
    let accepted = send().await.expect_status(202).json();
    assert_eq!(accepted["disposition"], "queued");
    let secret = json!({"command": "cat secret", "output": "hush", "excludeFromContext": true});
    app.post(path, &secret).send().await.expect_status(202);
    app.work().await;
    app.approve().await;
    assert_eq!(send().await.expect_status(202).json(), accepted, "repeated key");
    app.run("say done").await;
    let messages = app.get_json("/api/conversations/c/messages?limit=100").await;
    let messages = messages["items"].as_array().unwrap();
    let roles: Vec<&str> = messages.iter().map(|it| it["role"].as_str().unwrap()).collect();
    let run = ["user", "assistant", "toolResult", "assistant"];
    let next = ["bashExecution", "bashExecution", "user", "assistant"];
    assert_eq!(roles, [run, next].concat());
    assert_eq!((&messages[4]["output"], &messages[4]["exitCode"]), (&json!("a b"), &json!(1)));
    assert_eq!(messages[4]["truncated"], true);
    assert_eq!(
        (&messages[5]["output"], &messages[5]["excludeFromContext"]),
        (&json!("***"), &json!(true))
    );
}

#[tokio::test]
async fn invalid_shell_record_is_rejected_with_remedy() {
    let (app, _) = desk_app();
    app.run("say hi").await;
    let send = |body: Value| app.post("/api/conversations/c/bash", &body).send();
    let problem = send(json!({"command": "ls"})).await.expect_problem(400, "bad-request");
    let detail = "the service runs no shell commands: run the command, and send its `output`";
    assert_eq!(problem["errors"][0], json!({"pointer": "/output", "detail": detail}));
    for command in [String::new(), "x".repeat(16 * 1024 + 1)] {
        let problem = send(json!({"command": command, "output": ""})).await;
        let problem = problem.expect_problem(400, "bad-request");
        assert_eq!(problem["errors"][0]["pointer"], "/command");
    }
    let long = json!({"command": "ls", "output": "x".repeat(256 * 1024 + 1)});
    send(long).await.expect_problem(413, "payload-too-large");
    send(json!({"command": "ls", "output": "", "shell": 1}))
        .await
        .expect_problem(400, "bad-request");
}

impl TestApp {
    /// Data of the entries that commands append.
    async fn notes(&self) -> Vec<Value> {
        let entries = self.get_json("/api/conversations/c/entries?limit=100").await;
        let items = entries["items"].as_array().unwrap().clone();
        let notes = items.into_iter().filter(|entry| entry["customType"] == "desk/note");
        notes.map(|entry| entry["data"].clone()).collect()
    }
}

#[tokio::test]
async fn actions_of_a_command_are_applied_once() {
    let (app, _) = desk_app();
    app.run("say hi").await;
    for _ in 0..2 {
        let noted = app.run_command("note", &json!({"args": "Bills"}), "k").await;
        let noted = noted.expect_status(200).json();
        app.work().await;
        let path = format!("/api/conversations/c/inbox/{}", noted["inputId"].as_str().unwrap());
        assert_eq!(app.get_json(&path).await["state"], "landed");
        assert_eq!(app.notes().await, ["Bills"]);
    }
    let conversation = app.get_json("/api/conversations/c").await;
    assert_eq!((&conversation["name"], &conversation["state"]), (&json!("Bills"), &json!("idle")));
    let events = app.get("/api/conversations/c/events?follow=false").send().await.text;
    assert_eq!(events.matches("\"notify\"").count(), 1, "{events}");
}

#[tokio::test]
async fn message_of_a_command_starts_a_prompt() {
    let (app, _) = desk_app();
    app.run("say hi").await;
    app.run_command("ask", &json!({"args": "say asked"}), "k").await.expect_status(200);
    app.work().await;
    assert_eq!(app.user_texts().await, ["say hi", "say asked"]);
}

#[tokio::test]
async fn abort_of_a_command_ends_the_running_prompt() {
    let (app, _) = desk_app();
    app.run_command("halt", &json!({}), "early").await.expect_problem(404, "not-found");
    let id = app.prompt("say hi").await;
    app.run_command("halt", &json!({}), "k").await.expect_status(200);
    app.work().await;
    let prompt = app.get_json(&format!("{PROMPTS}/{id}")).await;
    assert_eq!(prompt["state"], "aborted");
    assert_eq!(app.notes().await, ["halted"]);
    app.run_command("halt", &json!({}), "idle").await.expect_status(200);
    app.run("say more").await;
    assert_eq!(app.user_texts().await.last().unwrap(), "say more", "no later prompt is aborted");
}

#[tokio::test]
async fn actions_of_an_input_hook_are_applied() {
    let (app, _) = desk_app();
    app.run("name it").await;
    assert_eq!(app.get_json("/api/conversations/c").await["name"], "named");
    assert_eq!(app.user_texts().await, ["name it"]);
}

/// Panics once at a fail point.
#[derive(Debug)]
struct DiesAt(Mutex<Option<&'static str>>);

#[async_trait]
impl FailPoints for DiesAt {
    async fn hit(&self, name: &'static str) {
        let mut at = self.0.lock().unwrap();
        if *at == Some(name) {
            *at = None;
            drop(at);
            panic!("a test of a crash");
        }
    }
}

#[tokio::test]
async fn crash_around_the_receipt_applies_actions_once() {
    for (point, runs) in
        [("admission.accept", 2), ("admission.accepted", 1), ("admission.nudge", 1)]
    {
        let (app, desk) = desk_app();
        app.run("say hi").await;
        let dies = Arc::new(DiesAt(Mutex::new(Some(point))));
        let app = app.with_services(|services| services.fail_points = dies);
        let args = json!({"args": "Bills"});
        app.run_command("note", &args, "k").await.expect_problem(500, "internal");
        app.run_command("note", &args, "k").await.expect_status(200);
        app.work().await;
        assert_eq!(
            (desk.calls().len(), app.notes().await),
            (runs, vec![json!("Bills")]),
            "{point}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn actions_are_applied_once_despite_store_faults() {
    const FAULTS: StoreFaults = StoreFaults {
        throttled: 0.0,
        conflict: 0.1,
        conflict_after: 0.1,
        unavailable_before: 0.1,
        unavailable_after: 0.15,
        unavailable_late: 0.1,
        unavailable_reads: 0.05,
        stale_reads: 0.2,
        short_pages: 0.0,
        yield_to_others: 0.3,
    };
    for seed in 0..30 {
        let store = Arc::new(MemoryStore::with_faults(seed, StoreFaults::default()));
        let app = TestApp::with(Arc::clone(&store), Arc::new(NoFailPoints), Auth::Header);
        let desk = SharedDesk::default();
        let app = app.with_services(|services| services.extensions.push(Arc::new(desk)));
        app.run("say hi").await;
        store.set_faults(FAULTS);
        let mut statuses = Vec::new();
        while statuses.len() < 40 && statuses.last() != Some(&200) {
            let sent = app.run_command("note", &json!({"args": "Bills"}), "k").await;
            statuses.push(sent.status.as_u16());
        }
        assert_eq!(statuses.pop(), Some(200), "seed {seed}");
        assert!(statuses.iter().all(|status| [503, 409].contains(status)), "{statuses:?}");
        store.set_faults(StoreFaults::default());
        app.work().await;
        assert_eq!(app.notes().await, ["Bills"], "seed {seed}");
    }
}

/// Records the steps of prompts that extensions see.
#[derive(Debug, Default, Clone)]
struct Steps(Arc<Mutex<Vec<String>>>);

impl Steps {
    fn add(&self, step: String) {
        self.0.lock().unwrap().push(step);
    }

    fn take(&self) -> Vec<String> {
        std::mem::take(&mut *self.0.lock().unwrap())
    }
}

#[async_trait]
impl Extension for Steps {
    fn name(&self) -> &'static str {
        "steps"
    }

    fn commands(&self) -> Vec<CommandSpec> {
        vec![CommandSpec::new("do", "")]
    }

    async fn run_command(
        &self,
        _cx: &HookContext,
        _call: &CommandCall<'_>,
    ) -> Result<CommandOutcome, HookError> {
        self.add("command".to_owned());
        Ok(CommandOutcome::default())
    }

    async fn transform_input(
        &self,
        _cx: &HookContext,
        input: &PromptText,
    ) -> Result<InputDecision, HookError> {
        self.add(format!("input {}", input.text));
        Ok(InputDecision::Continue)
    }

    async fn transform_context<'a>(
        &self,
        _cx: &HookContext,
        messages: Vec<Cow<'a, Message>>,
    ) -> Result<Vec<Cow<'a, Message>>, HookError> {
        let role = |message: &Cow<'_, Message>| {
            let message = serde_json::to_value(message).unwrap();
            message["role"].as_str().unwrap().to_owned()
        };
        let roles: Vec<String> = messages.iter().rev().take(3).rev().map(role).collect();
        self.add(format!("model {}", roles.join(" ")));
        Ok(messages)
    }
}

/// The steps of s3 §1.7 without skills and templates: command, input hook, queue, shell records,
/// model check, messages, model call.
#[tokio::test]
async fn steps_of_prompt_run_in_source_order() {
    let steps = Steps::default();
    let extension = Arc::new(steps.clone());
    let app = TestApp::new().with_services(|services| services.extensions.push(extension));
    app.run(WAITING_PROMPT).await;
    assert_eq!(steps.take(), [format!("input {WAITING_PROMPT}"), "model user".to_owned()]);
    // 1 before 2 and 4; 2 before 4 and 6.
    app.send_input(json!({"input": "/do it"})).await.expect_status(200);
    assert_eq!(steps.take(), ["command"]);
    app.send_input(json!({"input": "say b"})).await.expect_problem(409, "already-processing");
    assert_eq!(steps.take(), ["input say b"]);
    let unknown = json!({"input": "say b", "mode": "followUp", "model": "none"});
    app.send_input(unknown).await.expect_problem(400, "bad-request");
    assert_eq!(steps.take(), ["input say b"]);
    // 4: the input is queued. 5: shell records wait for the next run.
    app.send_input(json!({"input": "say b", "mode": "followUp"})).await.expect_status(202);
    let record = json!({"command": "ls", "output": "a"});
    app.post("/api/conversations/c/bash", &record).send().await.expect_status(202);
    let note = json!({"customType": "note", "content": "x", "deliverAs": "nextTurn"});
    app.post("/api/conversations/c/messages", &note).send().await.expect_status(202);
    app.work().await;
    app.approve().await;
    let models = ["model user assistant toolResult", "model toolResult assistant user"];
    assert_eq!(steps.take(), [&["input say b"][..], &models].concat());
    // 5 before 9, in which the message of the next turn follows the input; 11 last.
    app.run("say c").await;
    assert_eq!(steps.take(), ["input say c", "model bashExecution user custom"]);
}
