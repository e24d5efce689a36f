//! Tests of recorded shell commands, and of the order of the steps of a prompt.

use std::borrow::Cow;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use serde_json::{Value, json};
use turnwheel::extensions::{
    CommandCall, CommandOutcome, CommandSpec, Extension, HookContext, HookError, InputDecision,
    PendingCompaction, PromptText, RunChanges, StartingRun, SummaryOverride,
};
use turnwheel::messages::Message;
use turnwheel::models::{Listener, Model, ModelRecord, ModelRequest, ModelResponse};

use super::commands::{WAITING_PROMPT, desk_app};
use super::test_app::TestApp;

#[tokio::test]
async fn shell_command_is_recorded_for_the_next_prompt() {
    let (app, _) = desk_app();
    app.run(WAITING_PROMPT).await;
    let path = "/api/conversations/c/bash";
    let record = json!({"command": "ls", "output": "a b", "exitCode": 1, "truncated": true});
    let send = || app.post(path, &record).key("k").send();
    let accepted = send().await.expect_status(202).json();
    assert_eq!(accepted["disposition"], "queued");
    app.clock.advance(Duration::from_millis(1));
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

#[tokio::test]
async fn path_of_whole_output_is_kept_as_sent() {
    let app = TestApp::new();
    app.run("say hi").await;
    let path = "/logs/my  file.txt ";
    let record = |path: &str| json!({"command": "cat big", "output": "..", "truncated": true, "fullOutputPath": path});
    let send = |path: &str| app.post("/api/conversations/c/bash", &record(path)).send();
    send(path).await.expect_status(202);
    app.run("say done").await;
    let messages = app.get_json("/api/conversations/c/messages?limit=100").await;
    let items = messages["items"].as_array().unwrap();
    let bash = items.iter().find(|message| message["role"] == "bashExecution").unwrap();
    assert_eq!(bash["fullOutputPath"], path);
    for invalid in ["", "  ", "/a\nb", "/a\u{7}", "/a\u{202e}b", &"x".repeat(4 * 1024 + 1)] {
        let problem = send(invalid).await.expect_problem(400, "bad-request");
        assert_eq!(problem["errors"][0]["pointer"], "/fullOutputPath", "{invalid:?}");
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

    async fn before_agent_start(
        &self,
        _cx: &HookContext,
        _run: &StartingRun<'_>,
    ) -> Result<RunChanges, HookError> {
        self.add("start".to_owned());
        Ok(RunChanges::default())
    }

    async fn before_compaction(
        &self,
        _cx: &HookContext,
        _compaction: &PendingCompaction<'_>,
    ) -> Result<Option<SummaryOverride>, HookError> {
        self.add("compaction".to_owned());
        Ok(None)
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
/// model check, compaction check, messages, changes before the start, model call, retry.
#[tokio::test]
async fn steps_of_prompt_run_in_source_order() {
    let steps = Steps::default();
    let extension = Arc::new(steps.clone());
    let app = TestApp::new().with_services(|services| services.extensions.push(extension));
    app.run(WAITING_PROMPT).await;
    let input = format!("input {WAITING_PROMPT}");
    assert_eq!(steps.take(), [&input, "start", "model user"]);
    // 1 before 2 and 4; 2 before 4.
    app.send_input(json!({"input": "/do it"})).await.expect_status(200);
    assert_eq!(steps.take(), ["command"]);
    app.send_input(json!({"input": "say b"})).await.expect_problem(409, "already-processing");
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
    // 5 before 9, in which the message of the next turn follows the input; 10 before 11.
    app.run("say c").await;
    assert_eq!(steps.take(), ["input say c", "start", "model bashExecution user custom"]);
    // 12: a retry repeats the call only.
    app.run("fail with 500").await;
    assert_eq!(steps.take(), ["input fail with 500", "start", "model custom assistant user"]);
    app.clock.advance(Duration::from_secs(5));
    app.work().await;
    assert_eq!(steps.take(), ["model assistant user assistant"]);
}

/// Knows no model.
#[derive(Debug)]
struct NoModel;

#[async_trait]
impl Model for NoModel {
    async fn respond(&self, _request: ModelRequest<'_>, _: &dyn Listener) -> ModelResponse {
        unreachable!("a prompt without a model is not accepted")
    }

    fn record(&self, model: &str) -> Result<ModelRecord, String> {
        Err(format!("There is no {model}."))
    }
}

/// 6 follows 2 and precedes 9. The key (7) is checked by the call itself.
#[tokio::test]
async fn model_check_precedes_the_start() {
    let steps = Steps::default();
    let extension = Arc::new(steps.clone());
    let app = TestApp::new().with_services(|services| services.extensions.push(extension));
    app.run("say a").await;
    steps.take();
    let app = app.with_services(|services| services.model = Arc::new(NoModel));
    let problem = app.send_input(json!({"input": "say b"})).await;
    let problem = problem.expect_problem(503, "unavailable");
    assert_eq!(problem["detail"], "No model selected. There is no normal.");
    app.work().await;
    assert_eq!(steps.take(), ["input say b"]);
}

/// 8 precedes 10: the window is checked before the hooks of the start.
#[tokio::test]
async fn compaction_check_precedes_hooks_of_the_start() {
    let steps = Steps::default();
    let extension = Arc::new(steps.clone());
    let app = TestApp::new().with_services(|services| services.extensions.push(extension));
    let words = "word ".repeat(5_000);
    app.run(&format!("say a {words}")).await;
    app.run(&format!("say b {words}")).await;
    let compaction = json!({"enabled": true, "reserveTokens": 116_000, "keepRecentTokens": 1});
    let patch = json!({"settings": {"compaction": compaction}});
    app.patch("/api/conversations/c", &patch).send().await.expect_status(200);
    steps.take();
    app.run("say c").await;
    let until_call =
        ["input say c", "compaction", "start", "model compactionSummary assistant user"];
    assert_eq!(steps.take()[..4], until_call);
}
