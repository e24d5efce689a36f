//! Tests of conversation ownership over HTTP.

use reqwest::Method;
use serde_json::json;

use super::stage::{Stage, calls, says};

const ANN: [(&str, &str); 2] = [("turnwheel-tenant", "acme"), ("turnwheel-user", "ann")];
const BOB: [(&str, &str); 2] = [("turnwheel-tenant", "acme"), ("turnwheel-user", "bob")];
const OPERATOR: [(&str, &str); 3] = [
    ("turnwheel-tenant", "acme"),
    ("turnwheel-user", "olga"),
    ("turnwheel-roles", "Turnwheel.Operator"),
];
const STRANGER: [(&str, &str); 3] = [
    ("turnwheel-tenant", "other"),
    ("turnwheel-user", "olga"),
    ("turnwheel-roles", "Turnwheel.Operator"),
];

const READS: [&str; 6] =
    ["", "/messages", "/entries", "/prompts", "/artifacts", "/events?follow=false"];

#[tokio::test]
async fn a_conversation_is_there_for_its_owner_alone() {
    let stage = Stage::set([calls("test.gated", json!({"value": "x"})), says("Mine")]).await;
    let body = json!({"conversationId": "c", "input": "Go"});
    let asked = stage.post("/api/prompts?wait=30", &ANN, &body).await;
    assert_eq!((asked.status, &asked.body["state"]), (200, &json!("waiting_for_approval")));

    for path in READS {
        let path = format!("/api/conversations/c{path}");
        assert_eq!(stage.get(&path, &ANN).await.status, 200, "{path}");
        let hidden = stage.get(&path, &BOB).await;
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
        let refused = stage.send((method.clone(), &path), &BOB, body).await;
        assert_eq!((refused.status, refused.problem()), (404, "not-found"), "{method} {path}");
    }
    for whose in [&BOB[..], &STRANGER[..]] {
        assert_eq!(stage.get("/api/conversations", whose).await.body["items"], json!([]));
        assert_eq!(stage.get("/api/approvals", whose).await.body["items"], json!([]));
    }
    // The same id is another conversation for another user.
    let theirs = stage.post("/api/conversations", &BOB, &json!({"id": "c"})).await;
    assert_eq!(theirs.status, 201);
    assert_eq!(stage.get("/api/conversations/c", &ANN).await.body["state"], "waiting_for_approval");
    stage.service.stop().await;
}

#[tokio::test]
async fn an_operator_reads_its_tenants_conversations_and_neither_prompts_nor_decides() {
    let stage = Stage::set([calls("test.gated", json!({"value": "x"})), says("Done")]).await;
    let body = json!({"conversationId": "c", "input": "Go"});
    let asked = stage.post("/api/prompts?wait=30", &ANN, &body).await;
    assert_eq!(asked.status, 200, "{}", asked.body);
    let listed = stage.get("/api/conversations", &OPERATOR).await;
    assert_eq!(listed.body["items"][0]["id"], "c", "{}", listed.body);
    for path in READS {
        let separator = if path.contains('?') { '&' } else { '?' };
        let path = format!("/api/conversations/c{path}{separator}userId=ann");
        assert_eq!(stage.get(&path, &OPERATOR).await.status, 200, "{path}");
        assert_eq!(stage.get(&path, &STRANGER).await.status, 404, "another tenant's: {path}");
    }
    let prompt = json!({"input": "Me"});
    let decision = json!({"decision": "approve"});
    for (path, body) in [
        ("/conversations/c/prompts?userId=ann", &prompt),
        ("/conversations/c/approvals/c1?userId=ann", &decision),
        ("/prompts", &prompt),
    ] {
        let refused = stage.post(&format!("/api{path}"), &OPERATOR, body).await;
        assert_eq!((refused.status, refused.problem()), (403, "forbidden"), "{path}");
    }
    assert!(stage.runs.lock().unwrap().is_empty());
    assert_eq!(stage.model.requests().len(), 1);
    stage.service.stop().await;
}
