//! Requests whose hooks ask a question: commands, moves of the leaf and forks wait for the answer,
//! and end as they would have ended without it.

use std::sync::Arc;

use async_trait::async_trait;
use serde_json::{Value, json};
use turnwheel::extensions::{
    CommandCall, CommandOutcome, CommandSpec, Extension, HookContext, HookError, PendingFork,
    PendingLeafMove, Question, SessionDecision, SummaryOverride,
};

use super::commands::{PROMPTS, WAITING_PROMPT};
use super::test_app::{ApiResponse, TestApp};

const LEAF: &str = "/api/conversations/c/leaf";
const FORK: &str = "/api/conversations/c/fork";

/// Asks before everything.
#[derive(Debug)]
struct Careful;

#[async_trait]
impl Extension for Careful {
    fn name(&self) -> &'static str {
        "careful"
    }

    fn commands(&self) -> Vec<CommandSpec> {
        vec![CommandSpec::new("note", "Notes.")]
    }

    async fn run_command(
        &self,
        cx: &HookContext,
        call: &CommandCall<'_>,
    ) -> Result<CommandOutcome, HookError> {
        let question = Question::new("Note it?").by(["role:Boss", "link"]);
        let is_noted = cx.has_ui() && cx.confirm("sure", question)?;
        if is_noted {
            cx.set_session_name(call.args)?;
        }
        Ok(CommandOutcome::text(if is_noted { "noted" } else { "dropped" }))
    }

    async fn before_leaf_move(
        &self,
        cx: &HookContext,
        _pending: &PendingLeafMove<'_>,
    ) -> Result<Option<SummaryOverride>, HookError> {
        let text = cx.input("why", "Why?", None)?;
        let summary = |summary| SummaryOverride::Summary { summary, details: None };
        Ok(Some(text.map_or(SummaryOverride::Cancel, summary)))
    }

    async fn before_session_fork(
        &self,
        cx: &HookContext,
        _fork: &PendingFork<'_>,
    ) -> Result<SessionDecision, HookError> {
        let is_allowed = cx.confirm("sure", "Fork it?")?;
        Ok(if is_allowed { SessionDecision::Continue } else { SessionDecision::Cancel })
    }
}

async fn app() -> TestApp {
    let app = TestApp::new().with_services(|services| services.extensions.push(Arc::new(Careful)));
    app.run("say one").await;
    app.run("say two").await;
    app
}

impl TestApp {
    /// The open question of the conversation.
    async fn question(&self) -> Value {
        let conversation = self.get_json("/api/conversations/c").await;
        assert_eq!(conversation["state"], "waiting_for_approval", "{conversation}");
        let pending = conversation["pendingApprovals"].as_array().unwrap();
        assert_eq!(pending.len(), 1, "{conversation}");
        pending[0].clone()
    }

    async fn answer(&self, decision: &Value) {
        let id = self.question().await["id"].as_str().unwrap().to_owned();
        let path = format!("/api/conversations/c/approvals/{id}");
        self.post(&path, decision).user("default", "Boss").send().await.expect_status(200);
        self.work().await;
    }

    /// The input that the response of a stored request names.
    async fn input(&self, accepted: &ApiResponse) -> Value {
        let path = accepted.header("location");
        self.get_json(&format!("/api/{}", path.trim_start_matches("/api/"))).await
    }
}

fn yes() -> Value {
    json!({"decision": "answer", "value": true})
}

#[tokio::test]
async fn command_waits_for_its_answer() {
    for (decision, output, name) in
        [(yes(), "noted", json!("Bills")), (json!({"decision": "reject"}), "dropped", Value::Null)]
    {
        let app = app().await;
        let accepted = app.run_command("note", &json!({"args": "Bills"}), "k").await;
        let accepted = accepted.expect_status(202);
        let body = accepted.json();
        assert_eq!((&body["disposition"], &body["command"]), (&json!("waiting"), &json!("note")));
        app.work().await;
        let question = app.question().await;
        assert_eq!(question["inputId"], body["inputId"]);
        assert_eq!((&question["promptId"], &question["kind"]), (&Value::Null, &json!("question")));
        assert_eq!(question["extension"], "careful");
        let listed = app.get("/api/approvals").user("boss", "Boss").send().await.json();
        assert_eq!(listed["items"].as_array().unwrap().len(), 1, "{listed}");
        assert_eq!(app.input(&accepted).await["state"], "queued");
        app.answer(&decision).await;
        let input = app.input(&accepted).await;
        assert_eq!(
            (&input["state"], &input["result"]["output"]),
            (&json!("landed"), &json!(output))
        );
        assert_eq!(input["result"]["disposition"], "handled");
        let conversation = app.get_json("/api/conversations/c").await;
        assert_eq!((&conversation["name"], &conversation["state"]), (&name, &json!("idle")));
        assert_eq!(app.events_named("command_end").await[0]["inputId"], body["inputId"]);
        let again = app.run_command("note", &json!({"args": "Bills"}), "k").await;
        assert_eq!(again.expect_status(202).json(), body, "the first response again");
    }
}

#[tokio::test]
async fn command_in_a_prompt_waits_for_its_answer() {
    let app = app().await;
    let accepted = app.post(PROMPTS, &json!({"input": "/note Bills"})).send().await;
    assert_eq!(accepted.expect_status(202).json()["disposition"], "waiting");
    app.work().await;
    app.run("say three").await;
    app.answer(&yes()).await;
    assert_eq!(app.get_json("/api/conversations/c").await["name"], "Bills");
    assert_eq!(app.user_texts().await, ["say one", "say two", "say three"]);
}

#[tokio::test]
async fn move_of_the_leaf_waits_for_its_answer() {
    let cases = [
        (json!({"decision": "answer", "value": "It was wrong."}), true),
        (json!({"decision": "reject"}), false),
    ];
    for (decision, is_moved) in cases {
        let app = app().await;
        let (target, leaf) = (app.message_id("say two").await, app.leaf_id().await);
        let body = json!({"entryId": target, "summary": "mine", "label": "left"});
        let accepted = app.post(LEAF, &body).key("k").send().await.expect_status(202);
        let moved = accepted.json();
        assert_eq!((&moved["moved"], &moved["waiting"]), (&json!(false), &json!(true)));
        assert_eq!(moved["leafId"], leaf);
        app.work().await;
        assert_eq!(app.question().await["inputId"], moved["inputId"]);
        app.answer(&decision).await;
        let result = app.input(&accepted).await["result"].clone();
        assert_eq!(result["moved"], is_moved, "{result}");
        if is_moved {
            assert_eq!(app.texts().await[..2], ["say one", "one"]);
            let entries = app.entry_items().await;
            let summary = entries.iter().find(|entry| entry["type"] == "branch_summary").unwrap();
            assert_eq!(summary["summary"], "It was wrong.");
            let label = entries.last().unwrap();
            assert_eq!(result["leafId"], label["id"]);
            assert_eq!((&label["type"], &label["targetId"]), (&json!("label"), &summary["id"]));
            let tree = app.events_named("session_tree").await;
            assert_eq!(tree[0]["newLeafId"], result["leafId"], "{tree:?}");
        } else {
            assert_eq!(result["cancelled"], true);
            assert_eq!(app.events_named("session_tree").await.len(), 0);
        }
        assert_eq!(app.post(LEAF, &body).key("k").send().await.expect_status(202).json(), moved);
    }
}

#[tokio::test]
async fn prompt_makes_a_waiting_move_void() {
    let app = app().await;
    let body = json!({"entryId": app.message_id("say two").await});
    let accepted = app.post(LEAF, &body).key("k").send().await.expect_status(202);
    app.work().await;
    app.run("say three").await;
    app.answer(&json!({"decision": "answer", "value": "late"})).await;
    let result = app.input(&accepted).await["result"].clone();
    assert_eq!(result["moved"], false);
    assert!(result["error"].as_str().unwrap().contains("has continued"), "{result}");
    assert_eq!(app.user_texts().await.last().unwrap(), "say three");
}

#[tokio::test]
async fn edit_whose_move_asks_is_refused() {
    let app = app().await;
    let problem = app.post(PROMPTS, &json!({"input": "say x", "at": "root"})).send().await;
    let problem = problem.expect_problem(409, "conflict");
    assert!(problem["detail"].as_str().unwrap().contains("asks a question"), "{problem}");
    assert_eq!(app.get_json("/api/conversations/c").await["state"], "idle", "nothing is stored");
}

#[tokio::test]
async fn move_with_abort_that_asks_is_refused() {
    let app = app().await;
    app.run(WAITING_PROMPT).await;
    let body = json!({"entryId": app.message_id("say two").await, "abort": true});
    let problem = app.post(LEAF, &body).key("k").send().await.expect_problem(409, "conflict");
    assert!(problem["detail"].as_str().unwrap().contains("asks a question"), "{problem}");
    app.work().await;
    let conversation = app.get_json("/api/conversations/c").await;
    assert_eq!(conversation["state"], "waiting_for_approval", "nothing is aborted");
}

#[tokio::test]
async fn fork_waits_for_its_answer() {
    for (decision, is_made) in [(yes(), true), (json!({"decision": "reject"}), false)] {
        let app = app().await;
        let body = json!({"entryId": app.message_id("say two").await, "conversationId": "f"});
        let accepted = app.post(FORK, &body).key("k").send().await.expect_status(202);
        let response = accepted.json();
        app.get("/api/conversations/f").send().await.expect_problem(404, "not-found");
        app.work().await;
        assert_eq!(app.question().await["inputId"], response["inputId"]);
        app.answer(&decision).await;
        let result = app.input(&accepted).await["result"].clone();
        let fork = app.get("/api/conversations/f").send().await;
        if is_made {
            assert_eq!(result["conversation"]["id"], "f", "{result}");
            assert_eq!(result["text"], "say two");
            assert_eq!(fork.expect_status(200).json()["id"], "f");
        } else {
            assert_eq!(result, json!({"cancelled": true}));
            fork.expect_problem(404, "not-found");
        }
        let again = app.post(FORK, &body).key("k").send().await.expect_status(202);
        assert_eq!(again.json(), response, "the first response again");
    }
}
