//! Questions of an extension by HTTP: list, decisions, limits, events, and the page of the link.

use std::sync::Arc;

use async_trait::async_trait;
use serde_json::{Value, json};
use turnwheel::extensions::{
    CallBlock, Extension, HookContext, HookError, PendingToolCall, Question, ToolCallDecision,
};

use super::test_app::TestApp;

/// Asks for a confirmation, a choice and a text, and blocks the call with the answers.
#[derive(Debug)]
struct Survey;

#[async_trait]
impl Extension for Survey {
    fn name(&self) -> &'static str {
        "survey"
    }

    async fn before_tool_call(
        &self,
        cx: &HookContext,
        _call: &PendingToolCall<'_>,
    ) -> Result<ToolCallDecision, HookError> {
        let question = |text| Question::new(text).by(["owner", "link"]);
        let sure = cx.confirm("sure", question("Is <this> right?"))?;
        let way = cx.select("way", question("Which way?"), &["by bank", "\"by\" <card>"])?;
        let name = cx.input("name", question("Which name?"), Some("as in the contract"))?;
        let reason = Some(format!("{sure} {way:?} {name:?}"));
        Ok(ToolCallDecision::Block(CallBlock { reason, terminate: false }))
    }
}

async fn app_with_question() -> TestApp {
    let app = TestApp::new().with_agent(|agent| agent.extensions.push(Arc::new(Survey)));
    app.run(r#"use pay with {"amount": 5} then say done"#).await;
    app
}

async fn open_question(app: &TestApp) -> Value {
    let conversation = app.get_json("/api/conversations/c").await;
    let pending = conversation["pendingApprovals"].as_array().unwrap();
    assert_eq!(pending.len(), 1, "{conversation}");
    pending[0].clone()
}

fn path(question: &Value) -> String {
    format!("/api/conversations/c/approvals/{}", question["id"].as_str().unwrap())
}

async fn last_result(app: &TestApp) -> Value {
    let messages = app.get_json("/api/conversations/c/messages").await;
    let messages = messages["items"].as_array().unwrap().clone();
    messages.into_iter().rev().find(|message| message["role"] == "toolResult").unwrap()
}

#[tokio::test]
async fn questions_are_listed_and_answered_one_after_the_other() {
    let app = app_with_question().await;
    let question = open_question(&app).await;
    assert_eq!(question["kind"], "question");
    assert_eq!(question["title"], "The extension \"survey\" asks about pay.");
    assert_eq!(question["reason"], "Is <this> right?");
    assert_eq!(question["extension"], "survey");
    assert_eq!(question["toolName"], "pay");
    assert_eq!(question["arguments"], json!({"amount": 5}));
    assert_eq!(question["decisions"], json!(["answer", "reject"]));
    assert_eq!(question["schema"], json!({"type": "boolean"}));
    let list = app.get_json("/api/approvals").await;
    assert_eq!(list["items"][0]["id"], question["id"]);
    let why = app.get_json("/api/conversations/c/why").await;
    assert_eq!(why["waitsFor"], "answer", "{why}");
    let prompts = app.get_json("/api/conversations/c/prompts").await;
    assert_eq!(prompts["items"][0]["state"], "waiting_for_approval");

    for (value, schema) in [
        (json!(true), json!({"type": "string", "enum": ["by bank", "\"by\" <card>"]})),
        (
            json!("by bank"),
            json!({"type": "string", "maxLength": 1_000, "description": "as in the contract"}),
        ),
    ] {
        let question = open_question(&app).await;
        let link = app.approval_link().await;
        let body = json!({"decision": "answer", "value": value});
        let decided = app.post(&path(&question), &body).send().await.expect_status(200).json();
        assert_eq!((&decided["value"], &decided["decidedBy"]), (&value, &json!("default")));
        app.work().await;
        assert_eq!(open_question(&app).await["schema"], schema);
        let first = app.get_json(&link).await;
        assert_eq!((&first["value"], &first["replacedBy"]), (&value, &Value::Null));
    }
    let question = open_question(&app).await;
    let body = json!({"decision": "answer", "value": "Ada"});
    app.post(&path(&question), &body).send().await.expect_status(200);
    app.work().await;
    let result = last_result(&app).await;
    assert_eq!(result["content"][0]["text"], r#"true Some("by bank") Some("Ada")"#);
    assert!(app.pay.payments.lock().unwrap().is_empty());
}

/// An answer of the API, and the form of the page.
#[tokio::test]
async fn declined_questions_have_no_answer() {
    let app = app_with_question().await;
    let question = open_question(&app).await;
    let wrong = json!({"decision": "reject", "value": true});
    let problem = app.post(&path(&question), &wrong).send().await;
    problem.expect_problem(400, "bad-request");
    let body = json!({"decision": "reject", "reason": "not mine"});
    let decided = app.post(&path(&question), &body).send().await.expect_status(200).json();
    assert_eq!(
        (&decided["decision"], &decided["decisionReason"]),
        (&body["decision"], &body["reason"])
    );
    assert_eq!(app.post(&path(&question), &body).send().await.expect_status(200).json(), decided);
    app.work().await;
    for form in ["decision=reject&value=&reason=", "decision=reject&value=some+text"] {
        let link = app.approval_link().await;
        let page = app.get(&link).header("accept", "text/html").send().await.expect_status(200);
        let button = "value=\"reject\" formnovalidate>Decline to answer</button>";
        assert!(page.text.contains(button), "{}", page.text);
        let done = app
            .request(http::Method::POST, &link)
            .header("content-type", "application/x-www-form-urlencoded")
            .header("accept", "text/html")
            .body(form)
            .send()
            .await
            .expect_status(200);
        assert!(done.text.contains("Declined with an approval link"), "{}", done.text);
        app.work().await;
    }
    let result = last_result(&app).await;
    assert_eq!(result["content"][0]["text"], "false None None");
}

#[tokio::test]
async fn answers_that_do_not_fit_are_refused() {
    let app = app_with_question().await;
    let answers = [json!(true), json!("by bank"), json!("Ada")];
    let refused: [&[Value]; 3] = [
        &[json!("yes"), json!(null), json!(1)],
        &[json!("by foot"), json!(true)],
        &[json!(7), json!("x".repeat(1_001)), json!("😀".repeat(600))],
    ];
    for (answer, refused) in answers.into_iter().zip(refused) {
        let path = path(&open_question(&app).await);
        for value in refused {
            let body = json!({"decision": "answer", "value": value});
            app.post(&path, &body).send().await.expect_problem(400, "bad-request");
        }
        app.post(&path, &json!({"decision": "answer"}))
            .send()
            .await
            .expect_problem(400, "bad-request");
        app.post(&path, &json!({"decision": "approve"}))
            .send()
            .await
            .expect_problem(400, "bad-request");
        let body = json!({"decision": "answer", "value": answer});
        app.post(&path, &body).send().await.expect_status(200);
        app.work().await;
    }
}

#[tokio::test]
async fn page_of_the_link_answers_each_kind_of_question() {
    let app = app_with_question().await;
    let steps: [(&[&str], &'static str); 3] = [
        (
            &[
                "Is &lt;this&gt; right?",
                "<select id=\"value\" name=\"value\" required>",
                "<option value=\"true\">Yes</option><option value=\"false\">No</option>",
            ],
            "decision=answer&value=false&reason=",
        ),
        (
            &["<option value=\"&quot;by&quot; &lt;card&gt;\">&quot;by&quot; &lt;card&gt;</option>"],
            "decision=answer&value=%22by%22+%3Ccard%3E",
        ),
        (
            &[
                "<textarea id=\"value\" name=\"value\" rows=\"3\" placeholder=\"as in the contract\" maxlength=\"1000\">",
            ],
            "decision=answer&value=123",
        ),
    ];
    for (parts, form) in steps {
        let link = app.approval_link().await;
        let page = app.get(&link).header("accept", "text/html").send().await.expect_status(200);
        for part in parts {
            assert!(page.text.contains(part), "{part} in {}", page.text);
        }
        let send = |body: &'static str| {
            app.request(http::Method::POST, &link)
                .header("content-type", "application/x-www-form-urlencoded")
                .header("accept", "text/html")
                .body(body)
                .send()
        };
        let blank = send("decision=answer&value=").await.expect_status(400);
        assert!(blank.text.contains("this decision needs a `value`"), "{}", blank.text);
        let done = send(form).await.expect_status(200);
        assert!(done.text.contains("Answered with an approval link"), "{}", done.text);
        app.work().await;
    }
    let result = last_result(&app).await;
    assert_eq!(result["content"][0]["text"], r#"false Some("\"by\" <card>") Some("123")"#);
}

#[tokio::test]
async fn events_carry_the_question() {
    let app = app_with_question().await;
    let events =
        app.get("/api/conversations/c/events?follow=false").send().await.expect_status(200);
    let mut lines = events.text.lines().filter_map(|line| line.strip_prefix("data: "));
    let requested = lines.find(|line| line.contains("\"prompt.approval-requested\"")).unwrap();
    let event: Value = serde_json::from_str(requested).unwrap();
    let approval = &event["approval"];
    assert_eq!(
        (&approval["kind"], &approval["reason"]),
        (&json!("question"), &json!("Is <this> right?"))
    );
    assert_eq!(approval["schema"], json!({"type": "boolean"}));
}
