//! Tests of approval decisions by API and by link: the first one counts, later callers receive it.

use std::time::Duration;

use serde_json::{Value, json};
use turnwheel::testing::tools::code::build_code_tool;
use turnwheel::{Approval, Effect, Tool, ToolContext, ToolError, ToolResult};

use super::event_streams::frames;
use super::test_app::TestApp;
use crate::support::tools::Nothing;

async fn app_with_approval_request(amount: u32) -> (TestApp, Value, String) {
    let app = TestApp::new();
    let prompt = app.run(&format!("use pay with {{\"amount\": {amount}}} then say done")).await;
    let seen = app.get_json("/api/conversations/c").await;
    assert_eq!(seen["state"], "waiting_for_approval");
    (app, seen["pendingApprovals"][0].clone(), prompt)
}

fn approval_path(approval: &Value) -> String {
    format!("/api/conversations/c/approvals/{}", approval["id"].as_str().unwrap())
}

#[tokio::test]
async fn approval_is_listed_decided_and_executed() {
    let (app, approval, prompt) = app_with_approval_request(500).await;
    assert_eq!(approval["kind"], "tool");
    assert_eq!(approval["tool"], "pay");
    assert_eq!(approval["arguments"], json!({"amount": 500}));
    assert_eq!(approval["decisions"], json!(["approve", "reject"]));
    assert_eq!(approval["promptId"], prompt.as_str());
    assert_eq!(app.get_json("/api/approvals").await["items"][0], approval);
    let yes = json!({"decision": "approve", "reason": "fine"});
    let first = app.post(&approval_path(&approval), &yes).send().await.expect_status(200);
    let settled = first.json();
    assert_eq!(
        (&settled["decision"], &settled["decidedBy"]),
        (&json!("approve"), &json!("default"))
    );
    for stage in ["accepted", "taken in"] {
        assert_eq!(
            app.post(&approval_path(&approval), &yes).send().await.expect_status(200).text,
            first.text,
            "{stage}"
        );
        let problem =
            app.post(&approval_path(&approval), &json!({"decision": "reject"})).send().await;
        let problem = problem.expect_problem(409, "already-decided");
        assert_eq!(
            (&problem["decision"], &problem["decidedBy"]),
            (&json!("approve"), &json!("default")),
            "{stage}"
        );
        assert_eq!(app.get_json("/api/approvals").await["items"], json!([]), "{stage}");
        assert_ne!(
            app.get_json("/api/conversations/c").await["state"],
            "waiting_for_approval",
            "{stage}"
        );
        app.work().await;
    }
    assert_eq!(app.pay.payments.lock().unwrap().len(), 1);
    let done = app.get_json(&format!("/api/conversations/c/prompts/{prompt}")).await;
    assert_eq!(
        done["output"][0]["result"],
        json!({"type": "success", "output": {"receipt": "R-1"}})
    );
    assert_eq!(done["state"], "completed");
}

#[tokio::test]
async fn approval_is_found_by_tool_call_id() {
    let (app, approval, _) = app_with_approval_request(500).await;
    let call = approval["toolCallId"].as_str().unwrap();
    let encoded: String = url::form_urlencoded::byte_serialize(call.as_bytes()).collect();
    let by_call = format!("/api/conversations/c/approvals/{encoded}");
    app.post(&by_call, &json!({"decision": "approve"})).send().await.expect_status(200);
    app.work().await;
    app.post(&by_call, &json!({"decision": "approve"})).send().await.expect_status(200);
    app.post(&by_call, &json!({"decision": "reject"}))
        .send()
        .await
        .expect_problem(409, "already-decided");
    app.post("/api/conversations/c/approvals/nope", &json!({"decision": "approve"}))
        .send()
        .await
        .expect_problem(404, "not-found");
}

#[tokio::test]
async fn invalid_decision_names_the_member() {
    let (app, approval, _) = app_with_approval_request(500).await;
    for (bad, pointer) in [
        (json!({"decision": "maybe"}), "/decision"),
        (json!({"decision": "happened"}), "/decision"),
        (json!({"decision": "approve", "value": 1}), "/value"),
        (json!({"decision": "approve", "why": "x"}), "/why"),
        (json!({}), "/decision"),
    ] {
        let problem = app
            .post(&approval_path(&approval), &bad)
            .send()
            .await
            .expect_problem(400, "bad-request");
        assert_eq!(problem["errors"][0]["pointer"], pointer, "{bad}");
    }
    assert_eq!(app.get_json("/api/approvals").await["items"].as_array().unwrap().len(), 1);
}

#[tokio::test]
async fn expired_approval_cannot_be_decided() {
    let (app, approval, prompt) = app_with_approval_request(500).await;
    app.clock.advance(Duration::from_hours(25));
    app.post(&approval_path(&approval), &json!({"decision": "approve"}))
        .send()
        .await
        .expect_problem(410, "approval-expired");
    app.work().await;
    app.post(&approval_path(&approval), &json!({"decision": "approve"}))
        .send()
        .await
        .expect_problem(410, "approval-expired");
    let seen = app.get_json(&format!("/api/conversations/c/prompts/{prompt}")).await;
    assert_eq!(seen["output"][0]["result"]["type"], "error");
    assert!(app.pay.payments.lock().unwrap().is_empty());
}

#[tokio::test]
async fn only_approvers_can_decide_or_read() {
    let (app, approval, _) = app_with_approval_request(500).await;
    let yes = json!({"decision": "approve"});
    let post = |user: &'static str, roles: &'static str| {
        app.post(&approval_path(&approval), &yes).user(user, roles).send()
    };
    post("eve", "").await.expect_problem(404, "not-found");
    post("eve", "Clerk").await.expect_problem(404, "not-found");
    post("eve", "Turnwheel.Operator").await.expect_problem(403, "forbidden");
    assert_eq!(
        app.get("/api/approvals").user("eve", "Clerk").send().await.expect_status(200).json()["items"],
        json!([])
    );
    let theirs =
        app.get("/api/approvals").user("bob", "Boss").send().await.expect_status(200).json();
    assert_eq!(theirs["items"][0]["id"], approval["id"]);
    app.get("/api/conversations/c")
        .user("bob", "Boss")
        .send()
        .await
        .expect_problem(404, "not-found");
    let settled = post("bob", "Boss").await.expect_status(200).json();
    assert_eq!(settled["decidedBy"], "bob");
    let decision = post("default", "").await.expect_status(200).json();
    assert_eq!(decision["decidedBy"], "bob", "a repeated decision must return the first one");
}

#[tokio::test]
async fn requester_cannot_decide_when_excluded() {
    let (app, approval, _) = app_with_approval_request(5_000).await;
    app.post(&approval_path(&approval), &json!({"decision": "approve"}))
        .send()
        .await
        .expect_problem(403, "forbidden");
    assert_eq!(app.get_json("/api/approvals").await["items"], json!([]));
    app.post(&approval_path(&approval), &json!({"decision": "approve"}))
        .user("bob", "Boss")
        .send()
        .await
        .expect_status(200);
}

#[tokio::test]
async fn approval_link_decides_only_by_form() {
    let (app, _, _) = app_with_approval_request(500).await;
    let link = app.approval_link().await;
    let page = app.get(&link).header("accept", "text/html,*/*").send().await.expect_status(200);
    assert!(
        page.text.contains("<form method=\"post\">") && !page.text.contains("<script"),
        "{}",
        page.text
    );
    assert_eq!(page.header("cache-control"), "no-store");
    assert_eq!(page.header("referrer-policy"), "no-referrer");
    let policy = page.header("content-security-policy");
    assert!(
        policy.contains("default-src 'none'")
            && policy.contains("form-action 'self'")
            && policy.contains("frame-ancestors 'none'")
    );
    assert_eq!(app.get(&link).send().await.expect_status(200).json()["kind"], "tool");
    app.work().await;
    assert!(app.pay.payments.lock().unwrap().is_empty());
    let form = |text: &'static str| {
        app.request(http::Method::POST, &link)
            .header("content-type", "application/x-www-form-urlencoded")
            .header("accept", "text/html")
            .body(text)
            .send()
    };
    let done = form("decision=approve&reason=all+fine").await.expect_status(200);
    assert!(
        done.text.contains("Approved with an approval link") && done.text.contains("all fine"),
        "{}",
        done.text
    );
    let late = form("decision=reject&reason=").await.expect_status(409);
    assert!(late.text.contains("Approved with an approval link"), "{}", late.text);
    app.work().await;
    assert_eq!(app.pay.payments.lock().unwrap().len(), 1);
    let shown = app.get(&link).header("accept", "text/html").send().await.expect_status(200);
    assert!(shown.text.contains("Approved with an approval link") && !shown.text.contains("<form"));
}

#[tokio::test]
async fn forged_approval_link_is_rejected_without_token() {
    let (app, approval, _) = app_with_approval_request(500).await;
    let link = app.approval_link().await;
    let forged = format!("{link}x");
    let response = app.get(&forged).send().await;
    assert!(!response.text.contains(link.rsplit('/').next().unwrap()), "{}", response.text);
    assert_eq!(response.header("cache-control"), "no-store");
    response.expect_problem(404, "not-found");
    app.post(&forged, &json!({"decision": "approve"}))
        .send()
        .await
        .expect_problem(404, "not-found");
    app.clock.advance(Duration::from_hours(25));
    let page = app.get(&link).header("accept", "text/html").send().await.expect_status(200);
    assert!(page.text.contains("This approval expired") && !page.text.contains("<form"));
    app.post(&link, &json!({"decision": "approve"}))
        .send()
        .await
        .expect_problem(410, "approval-expired");
    app.delete("/api/conversations/c").send().await.expect_status(204);
    app.get(&link).send().await.expect_problem(404, "not-found");
    app.post(&approval_path(&approval), &json!({"decision": "approve"}))
        .send()
        .await
        .expect_problem(404, "not-found");
}

#[tokio::test]
async fn link_without_link_approver_is_not_found() {
    let (app, _, _) = app_with_approval_request(50_000).await;
    let link = app.approval_link().await;
    app.get(&link).send().await.expect_problem(404, "not-found");
    app.post(&link, &json!({"decision": "approve"})).send().await.expect_problem(404, "not-found");
}

/// A tool with a display name. Its calls require approval.
struct Refund;

impl Tool for Refund {
    type Args = Nothing;

    fn name(&self) -> &'static str {
        "refund"
    }

    fn label(&self) -> &'static str {
        "Pay money back"
    }

    fn description(&self) -> &'static str {
        "Pays back."
    }

    fn effect(&self) -> Effect {
        Effect::Write
    }

    fn approval(&self, _args: &Nothing) -> Option<Approval> {
        Some(Approval::because("Gated"))
    }

    async fn call(&self, _args: Nothing, _cx: ToolContext) -> Result<ToolResult, ToolError> {
        Ok(ToolResult::text("paid back"))
    }
}

#[tokio::test]
async fn display_name_of_a_tool_is_in_responses() {
    let refund = build_code_tool(Refund).unwrap();
    let app = TestApp::new().with_agent(|agent| agent.tools.push(refund));
    app.run("use refund with {} then say done").await;
    let approval = app.get_json("/api/conversations/c").await["pendingApprovals"][0].clone();
    let label = json!("Pay money back");
    assert_eq!((&approval["toolName"], &approval["toolLabel"]), (&json!("refund"), &label));
    assert_eq!(app.get_json("/api/approvals").await["items"][0]["toolLabel"], label);
    let yes = json!({"decision": "approve"});
    app.post(&approval_path(&approval), &yes).send().await.expect_status(200);
    app.work().await;
    let events = app.get("/api/conversations/c/events?follow=false").send().await;
    let events = frames(&events.expect_status(200).text);
    let find = |name: &str| &events.iter().find(|frame| frame.name == name).unwrap().data;
    assert_eq!(find("prompt.approval-requested")["approval"]["toolLabel"], label);
    assert_eq!(find("tool_execution_start")["toolLabel"], label);
}
