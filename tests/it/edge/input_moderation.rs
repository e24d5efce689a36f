//! Tests of required input hooks: new and edited inputs that they check, change and refuse.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use async_trait::async_trait;
use serde_json::{Value, json};
use turnwheel::extensions::{Extension, HookContext, HookError, InputDecision, PromptText};
use turnwheel::testing::commands::prompt_queue::accept_queue_message;
use turnwheel::testing::queue::{PROMPTS as PROMPTS_QUEUE, Queue as _, poison_queue};

use super::commands::{PROMPTS, WAITING_PROMPT};
use super::test_app::{ApiResponse, TestApp};

/// Replaces one word, and handles one text itself. `is_down`: it fails.
#[derive(Debug, Clone, Default)]
struct Moderator {
    is_down: Arc<AtomicBool>,
    runs: Arc<AtomicUsize>,
}

#[async_trait]
impl Extension for Moderator {
    fn name(&self) -> &'static str {
        "moderator"
    }

    fn is_input_required(&self) -> bool {
        true
    }

    async fn transform_input(
        &self,
        cx: &HookContext,
        input: &PromptText,
    ) -> Result<InputDecision, HookError> {
        self.runs.fetch_add(1, Ordering::Relaxed);
        if self.is_down.load(Ordering::Relaxed) {
            cx.set_session_name("dropped")?;
            return Err(HookError::new("the word list is missing"));
        }
        Ok(match input.text.as_str() {
            "time?" => InputDecision::Handled,
            "halt" => {
                cx.set_session_name("halted")?;
                cx.abort()?;
                InputDecision::Continue
            }
            text => InputDecision::Transform { text: text.replace("damn", "***"), images: None },
        })
    }
}

fn moderated_app() -> (TestApp, Moderator) {
    let moderator = Moderator::default();
    let extension = Arc::new(moderator.clone());
    let app = TestApp::new().with_services(|services| services.extensions.push(extension));
    (app, moderator)
}

fn expect_refusal(response: ApiResponse) {
    assert_eq!(response.header("retry-after"), "2");
    let problem = response.expect_problem(503, "unavailable");
    assert_eq!(
        problem["detail"],
        "The extension \"moderator\" failed in input: the word list is missing. Nothing was stored. Repeat the request."
    );
}

#[tokio::test]
async fn failed_required_input_hook_refuses_inputs_until_it_works() {
    let (app, moderator) = moderated_app();
    moderator.is_down.store(true, Ordering::Relaxed);
    let first = json!({"conversationId": "c", "input": "say damn"});
    expect_refusal(app.post("/api/prompts", &first).key("k").send().await);
    app.get("/api/conversations/c").send().await.expect_problem(404, "not-found");
    let unnamed = json!({"agent": "clerk", "input": "say hi"});
    expect_refusal(app.post("/api/prompts", &unnamed).key("u").send().await);

    moderator.is_down.store(false, Ordering::Relaxed);
    app.post("/api/prompts", &first).key("k").send().await.expect_status(202);
    app.post("/api/prompts", &unnamed).key("u").send().await.expect_status(202);
    app.work().await;
    assert_eq!(app.user_texts().await, ["say ***"]);

    moderator.is_down.store(true, Ordering::Relaxed);
    expect_refusal(app.post(PROMPTS, &json!({"input": "say more"})).send().await);
    app.work().await;
    assert_eq!(app.user_texts().await, ["say ***"]);
    assert_eq!(app.get_json("/api/conversations/c").await.get("name"), None);
}

#[tokio::test]
async fn queue_message_waits_for_required_input_hook() {
    let (app, moderator) = moderated_app();
    moderator.is_down.store(true, Ordering::Relaxed);
    let text = json!({"conversationId": "c", "input": "say damn"}).to_string();
    let refused = accept_queue_message(&app.services, &text, "m1").await.unwrap_err();
    assert!(refused.to_string().contains("the word list is missing"), "{refused}");
    assert_eq!(app.queue.length(&poison_queue(PROMPTS_QUEUE)).await.unwrap(), 0);
    moderator.is_down.store(false, Ordering::Relaxed);
    for _ in 0..2 {
        accept_queue_message(&app.services, &text, "m1").await.unwrap();
    }
    app.work().await;
    assert_eq!(app.user_texts().await, ["say ***"]);
}

/// Queues an input behind a waiting prompt. Returns its path.
async fn queue_input(app: &TestApp) -> String {
    app.run(WAITING_PROMPT).await;
    let queued = app.send_input(json!({"input": "say hi", "mode": "followUp"})).await;
    let queued = queued.expect_status(202).json();
    format!("/api/conversations/c/inbox/{}", queued["inputId"].as_str().unwrap())
}

fn original(view: &Value) -> (&Value, Option<&Value>) {
    (&view["input"], view.get("original"))
}

#[tokio::test]
async fn edits_of_queued_inputs_run_the_input_hooks() {
    let (app, moderator) = moderated_app();
    let path = queue_input(&app).await;
    let edit = json!({"input": "say damn"});
    let before = moderator.runs.load(Ordering::Relaxed);
    for _ in 0..2 {
        let edited = app.patch(&path, &edit).key("e").send().await.expect_status(200).json();
        assert_eq!(edited["input"], "say ***");
    }
    assert_eq!(moderator.runs.load(Ordering::Relaxed), before + 1, "not again for a repeated key");
    app.patch(&path, &json!({"mode": "steer"})).send().await.expect_status(200);
    assert_eq!(moderator.runs.load(Ordering::Relaxed), before + 1, "the input stays");
    app.patch(&path, &json!({"mode": "followUp"})).send().await.expect_status(200);

    let handled = app.patch(&path, &json!({"input": "time?"})).send().await;
    let problem = handled.expect_problem(409, "conflict");
    assert!(problem["detail"].as_str().unwrap().contains("send this one as a new input"));
    moderator.is_down.store(true, Ordering::Relaxed);
    expect_refusal(app.patch(&path, &json!({"input": "say no"})).send().await);
    assert_eq!(app.get_json(&path).await["input"], "say ***");

    app.approve().await;
    let texts = app.user_texts().await;
    assert_eq!(texts.last().unwrap(), "say ***");
    let prompts = app.get_json(PROMPTS).await;
    let ended = prompts["items"].as_array().unwrap().iter().map(original);
    let expected = (&json!("say ***"), Some(&json!("say damn")));
    assert!(ended.clone().any(|it| it == expected), "{:?}", ended.collect::<Vec<_>>());
}

#[tokio::test]
async fn actions_on_an_edit_are_applied() {
    let (app, _) = moderated_app();
    let path = queue_input(&app).await;
    app.patch(&path, &json!({"input": "halt"})).key("e").send().await.expect_status(200);
    app.work().await;
    assert_eq!(app.get_json("/api/conversations/c").await["name"], "halted");
    let prompts = app.get_json(PROMPTS).await;
    let states = prompts["items"].as_array().unwrap().iter().map(|it| it["state"].clone());
    assert!(states.clone().any(|state| state == "aborted"), "{prompts}");
    assert_eq!(app.user_texts().await.last().unwrap(), "halt");
}
