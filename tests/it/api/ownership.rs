//! Tests of conversation ownership over HTTP.

use reqwest::Method;
use serde_json::json;

use super::test_app::{TestApp, respond_call, respond_text};

const ANN: [(&str, &str); 2] = [("turnwheel-tenant", "acme"), ("turnwheel-user", "ann")];
const BOB: [(&str, &str); 2] = [("turnwheel-tenant", "acme"), ("turnwheel-user", "bob")];
const OPERATOR: [(&str, &str); 3] = [
    ("turnwheel-tenant", "acme"),
    ("turnwheel-user", "olga"),
    ("turnwheel-roles", "Turnwheel.Operator"),
];
const FOREIGN_OPERATOR: [(&str, &str); 3] = [
    ("turnwheel-tenant", "other"),
    ("turnwheel-user", "olga"),
    ("turnwheel-roles", "Turnwheel.Operator"),
];

const READS: [&str; 6] =
    ["", "/messages", "/entries", "/prompts", "/artifacts", "/events?follow=false"];

#[tokio::test]
async fn conversation_is_visible_only_to_its_owner() {
    let app =
        TestApp::start([respond_call("test.gated", json!({"value": "x"})), respond_text("Mine")])
            .await;
    let body = json!({"conversationId": "c", "input": "Go"});
    let response = app.post("/api/prompts?wait=60", &ANN, &body).await;
    assert_eq!((response.status, &response.body["state"]), (200, &json!("waiting_for_approval")));

    for path in READS {
        let path = format!("/api/conversations/c{path}");
        assert_eq!(app.get(&path, &ANN).await.status, 200, "{path}");
        let hidden = app.get(&path, &BOB).await;
        assert_eq!((hidden.status, hidden.problem()), (404, "not-found"), "{path}");
    }
    let prompt = json!({"input": "Me"});
    let decision = json!({"decision": "approve"});
    for (method, path, body) in [
        (Method::POST, "/prompts", Some(&prompt)),
        (Method::POST, "/approvals/c1", Some(&decision)),
        (Method::PATCH, "", Some(&json!({"name": "mine now"}))),
        (Method::DELETE, "", None),
    ] {
        let path = format!("/api/conversations/c{path}");
        let refused = app.send((method.clone(), &path), &BOB, body).await;
        assert_eq!((refused.status, refused.problem()), (404, "not-found"), "{method} {path}");
    }
    for headers in [&BOB[..], &FOREIGN_OPERATOR[..]] {
        assert_eq!(app.get("/api/conversations", headers).await.body["items"], json!([]));
        assert_eq!(app.get("/api/approvals", headers).await.body["items"], json!([]));
    }
    // The same id is another conversation for another user.
    let theirs = app.post("/api/conversations", &BOB, &json!({"id": "c"})).await;
    assert_eq!(theirs.status, 201);
    assert_eq!(app.get("/api/conversations/c", &ANN).await.body["state"], "waiting_for_approval");
    app.service.stop().await;
}

#[tokio::test]
async fn operator_reads_but_cannot_change_tenant_conversations() {
    let app =
        TestApp::start([respond_call("test.gated", json!({"value": "x"})), respond_text("Done")])
            .await;
    let body = json!({"conversationId": "c", "input": "Go"});
    let response = app.post("/api/prompts?wait=60", &ANN, &body).await;
    assert_eq!(response.status, 200, "{}", response.body);
    let listed = app.get("/api/conversations", &OPERATOR).await;
    assert_eq!(listed.body["items"][0]["id"], "c", "{}", listed.body);
    for path in READS {
        let separator = if path.contains('?') { '&' } else { '?' };
        let path = format!("/api/conversations/c{path}{separator}userId=ann");
        assert_eq!(app.get(&path, &OPERATOR).await.status, 200, "{path}");
        assert_eq!(app.get(&path, &FOREIGN_OPERATOR).await.status, 404, "another tenant's: {path}");
    }
    let prompt = json!({"input": "Me"});
    let decision = json!({"decision": "approve"});
    for (path, body) in [
        ("/conversations/c/prompts?userId=ann", &prompt),
        ("/conversations/c/approvals/c1?userId=ann", &decision),
        ("/prompts", &prompt),
    ] {
        let refused = app.post(&format!("/api{path}"), &OPERATOR, body).await;
        assert_eq!((refused.status, refused.problem()), (403, "forbidden"), "{path}");
    }
    assert!(app.runs.lock().unwrap().is_empty());
    assert_eq!(app.model.request_bodies().len(), 1);
    app.service.stop().await;
}
