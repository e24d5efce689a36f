//! Tests of approval decisions by API and by link: the first one counts, later callers receive it.

use std::time::Duration;

use serde_json::{Value, json};

use super::rig::Rig;

async fn asked(amount: u32) -> (Rig, Value, String) {
    let rig = Rig::new();
    let prompt = rig.run(&format!("use pay with {{\"amount\": {amount}}} then say done")).await;
    let seen = rig.seen("/api/conversations/c").await;
    assert_eq!(seen["state"], "waiting_for_approval");
    (rig, seen["pendingApprovals"][0].clone(), prompt)
}

fn path(approval: &Value) -> String {
    format!("/api/conversations/c/approvals/{}", approval["id"].as_str().unwrap())
}

#[tokio::test]
async fn an_approval_is_shown_decided_and_done() {
    let (rig, approval, prompt) = asked(500).await;
    assert_eq!(approval["kind"], "tool");
    assert_eq!(approval["tool"], "pay");
    assert_eq!(approval["arguments"], json!({"amount": 500}));
    assert_eq!(approval["decisions"], json!(["approve", "reject"]));
    assert_eq!(approval["promptId"], prompt.as_str());
    assert_eq!(rig.seen("/api/approvals").await["items"][0], approval);
    let yes = json!({"decision": "approve", "reason": "fine"});
    let first = rig.post(&path(&approval), &yes).send().await.is(200);
    let settled = first.json();
    assert_eq!(
        (&settled["decision"], &settled["decidedBy"]),
        (&json!("approve"), &json!("default"))
    );
    for stage in ["accepted", "taken in"] {
        assert_eq!(
            rig.post(&path(&approval), &yes).send().await.is(200).text,
            first.text,
            "{stage}"
        );
        let told = rig.post(&path(&approval), &json!({"decision": "reject"})).send().await;
        let told = told.fails(409, "already-decided");
        assert_eq!(
            (&told["decision"], &told["decidedBy"]),
            (&json!("approve"), &json!("default")),
            "{stage}"
        );
        assert_eq!(rig.seen("/api/approvals").await["items"], json!([]), "{stage}");
        assert_ne!(
            rig.seen("/api/conversations/c").await["state"],
            "waiting_for_approval",
            "{stage}"
        );
        rig.work().await;
    }
    assert_eq!(rig.pay.made.lock().unwrap().len(), 1);
    let done = rig.seen(&format!("/api/conversations/c/prompts/{prompt}")).await;
    assert_eq!(
        done["output"][0]["result"],
        json!({"type": "success", "output": {"receipt": "R-1"}})
    );
    assert_eq!(done["state"], "completed");
}

#[tokio::test]
async fn the_tool_call_names_its_approval_too() {
    let (rig, approval, _) = asked(500).await;
    let call = approval["toolCallId"].as_str().unwrap();
    let encoded: String = url::form_urlencoded::byte_serialize(call.as_bytes()).collect();
    let by_call = format!("/api/conversations/c/approvals/{encoded}");
    rig.post(&by_call, &json!({"decision": "approve"})).send().await.is(200);
    rig.work().await;
    rig.post(&by_call, &json!({"decision": "approve"})).send().await.is(200);
    rig.post(&by_call, &json!({"decision": "reject"})).send().await.fails(409, "already-decided");
    rig.post("/api/conversations/c/approvals/nope", &json!({"decision": "approve"}))
        .send()
        .await
        .fails(404, "not-found");
}

#[tokio::test]
async fn what_is_no_decision_is_said_so() {
    let (rig, approval, _) = asked(500).await;
    for (bad, pointer) in [
        (json!({"decision": "maybe"}), "/decision"),
        (json!({"decision": "happened"}), "/decision"),
        (json!({"decision": "approve", "value": 1}), "/value"),
        (json!({"decision": "approve", "why": "x"}), "/why"),
        (json!({}), "/decision"),
    ] {
        let told = rig.post(&path(&approval), &bad).send().await.fails(400, "bad-request");
        assert_eq!(told["errors"][0]["pointer"], pointer, "{bad}");
    }
    assert_eq!(rig.seen("/api/approvals").await["items"].as_array().unwrap().len(), 1);
}

#[tokio::test]
async fn an_expired_approval_cannot_be_decided() {
    let (rig, approval, prompt) = asked(500).await;
    rig.clock.advance(Duration::from_hours(25));
    rig.post(&path(&approval), &json!({"decision": "approve"}))
        .send()
        .await
        .fails(410, "approval-expired");
    rig.work().await;
    rig.post(&path(&approval), &json!({"decision": "approve"}))
        .send()
        .await
        .fails(410, "approval-expired");
    let seen = rig.seen(&format!("/api/conversations/c/prompts/{prompt}")).await;
    assert_eq!(seen["output"][0]["result"]["type"], "error");
    assert!(rig.pay.made.lock().unwrap().is_empty());
}

#[tokio::test]
async fn who_is_named_may_decide_and_nobody_else_learns_of_it() {
    let (rig, approval, _) = asked(500).await;
    let yes = json!({"decision": "approve"});
    let post = |user: &'static str, roles: &'static str| {
        rig.post(&path(&approval), &yes).user(user, roles).send()
    };
    post("eve", "").await.fails(404, "not-found");
    post("eve", "Clerk").await.fails(404, "not-found");
    post("eve", "Turnwheel.Operator").await.fails(403, "forbidden");
    assert_eq!(
        rig.get("/api/approvals").user("eve", "Clerk").send().await.is(200).json()["items"],
        json!([])
    );
    let theirs = rig.get("/api/approvals").user("bob", "Boss").send().await.is(200).json();
    assert_eq!(theirs["items"][0]["id"], approval["id"]);
    rig.get("/api/conversations/c").user("bob", "Boss").send().await.fails(404, "not-found");
    let settled = post("bob", "Boss").await.is(200).json();
    assert_eq!(settled["decidedBy"], "bob");
    let told = post("default", "").await.is(200).json();
    assert_eq!(told["decidedBy"], "bob", "a repeated decision must return the first one");
}

#[tokio::test]
async fn who_asked_may_not_decide_when_that_is_forbidden() {
    let (rig, approval, _) = asked(5_000).await;
    rig.post(&path(&approval), &json!({"decision": "approve"}))
        .send()
        .await
        .fails(403, "forbidden");
    assert_eq!(rig.seen("/api/approvals").await["items"], json!([]));
    rig.post(&path(&approval), &json!({"decision": "approve"}))
        .user("bob", "Boss")
        .send()
        .await
        .is(200);
}

#[tokio::test]
async fn looking_at_a_link_decides_nothing_and_its_form_does() {
    let (rig, _, _) = asked(500).await;
    let link = rig.link().await;
    let page = rig.get(&link).header("accept", "text/html,*/*").send().await.is(200);
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
    assert_eq!(rig.get(&link).send().await.is(200).json()["kind"], "tool");
    rig.work().await;
    assert!(rig.pay.made.lock().unwrap().is_empty());
    let form = |text: &'static str| {
        rig.ask(http::Method::POST, &link)
            .header("content-type", "application/x-www-form-urlencoded")
            .header("accept", "text/html")
            .body(text)
            .send()
    };
    let done = form("decision=approve&reason=all+fine").await.is(200);
    assert!(
        done.text.contains("Approved with an approval link") && done.text.contains("all fine"),
        "{}",
        done.text
    );
    let late = form("decision=reject&reason=").await.is(409);
    assert!(late.text.contains("Approved with an approval link"), "{}", late.text);
    rig.work().await;
    assert_eq!(rig.pay.made.lock().unwrap().len(), 1);
    let shown = rig.get(&link).header("accept", "text/html").send().await.is(200);
    assert!(shown.text.contains("Approved with an approval link") && !shown.text.contains("<form"));
}

#[tokio::test]
async fn a_forged_link_is_no_link_and_its_token_is_never_repeated() {
    let (rig, approval, _) = asked(500).await;
    let link = rig.link().await;
    let forged = format!("{link}x");
    let told = rig.get(&forged).send().await;
    assert!(!told.text.contains(link.rsplit('/').next().unwrap()), "{}", told.text);
    assert_eq!(told.header("cache-control"), "no-store");
    told.fails(404, "not-found");
    rig.post(&forged, &json!({"decision": "approve"})).send().await.fails(404, "not-found");
    rig.clock.advance(Duration::from_hours(25));
    let page = rig.get(&link).header("accept", "text/html").send().await.is(200);
    assert!(page.text.contains("This approval expired") && !page.text.contains("<form"));
    rig.post(&link, &json!({"decision": "approve"})).send().await.fails(410, "approval-expired");
    rig.delete("/api/conversations/c").send().await.is(204);
    rig.get(&link).send().await.fails(404, "not-found");
    rig.post(&path(&approval), &json!({"decision": "approve"}))
        .send()
        .await
        .fails(404, "not-found");
}

#[tokio::test]
async fn a_link_to_what_links_may_not_decide_shows_and_decides_nothing() {
    let (rig, _, _) = asked(50_000).await;
    let link = rig.link().await;
    rig.get(&link).send().await.fails(404, "not-found");
    rig.post(&link, &json!({"decision": "approve"})).send().await.fails(404, "not-found");
}
