//! Tests of ownership: another user's conversation is reported as not found.

use http::Method;
use serde_json::json;
use turnwheel::testing::fail_points::NoFailPoints;
use turnwheel::testing::http::auth::Access;
use turnwheel::testing::settings::links::Auth;
use turnwheel::testing::store::memory::MemoryStore;

use super::test_app::TestApp;

/// Variants of routes by query and body; `hostile_clients` asks each route.
#[tokio::test]
async fn foreign_conversation_is_not_found() {
    let app = TestApp::new();
    app.run("say hello").await;
    let path = "/api/conversations/c";
    for read in ["history?format=protocol", "events?format=protocol"] {
        let foreign = app.get(&format!("{path}/{read}")).user("eve", "").send().await;
        foreign.expect_problem(404, "not-found");
    }
    let entry = app.message_id("say hello").await;
    for (route, body) in [
        ("leaf", json!({"entryId": "root", "abort": true})),
        ("prompts", json!({"input": "x", "at": entry})),
    ] {
        let foreign = app.post(&format!("{path}/{route}"), &body).user("eve", "").send().await;
        foreign.expect_problem(404, "not-found");
    }
    // Another user may use the same id.
    app.post("/api/conversations", &json!({"id": "c"}))
        .user("eve", "")
        .send()
        .await
        .expect_status(201);
}

#[tokio::test]
async fn operator_reads_but_cannot_change_tenant_conversations() {
    let app = TestApp::new();
    app.run("say hello").await;
    let operator = "Turnwheel.Operator";
    let list =
        app.get("/api/conversations").user("ops", operator).send().await.expect_status(200).json();
    assert_eq!(list["items"][0]["owner"], json!({"tenantId": "default", "userId": "default"}));
    for path in ["/api/conversations/c/messages", "/api/conversations/c/messages?userId=default"] {
        let read = app.get(path).user("ops", operator).send().await.expect_status(200).json();
        assert_eq!(read["items"].as_array().unwrap().len(), 2);
    }
    let other =
        app.get("/api/conversations/c").user("ops", operator).header("turnwheel-tenant", "other");
    other.send().await.expect_problem(404, "not-found");
    app.post("/api/prompts", &json!({"input": "x"}))
        .user("ops", operator)
        .send()
        .await
        .expect_problem(403, "forbidden");
    app.delete("/api/conversations/c")
        .user("ops", operator)
        .send()
        .await
        .expect_problem(403, "forbidden");
}

#[tokio::test]
async fn sign_in_headers_are_rejected_without_sign_in() {
    let store = std::sync::Arc::new(MemoryStore::new());
    let app = TestApp::with_access(
        store,
        std::sync::Arc::new(NoFailPoints),
        Access { auth: Auth::SignIn, ..Access::dev() },
    );
    app.get("/api/conversations")
        .header("x-ms-client-principal", "e30=")
        .send()
        .await
        .expect_problem(401, "unauthorized");
    app.get("/api/health").send().await.expect_status(200);
}

#[tokio::test]
async fn responses_are_private_to_their_caller() {
    let app = TestApp::new();
    app.run("say hello").await;
    let artifact = app
        .request(Method::POST, "/api/conversations/c/artifacts")
        .header("content-type", "text/plain")
        .key("k")
        .body("0123456789")
        .send()
        .await
        .expect_status(201);
    let artifact = artifact.header("location").to_owned();
    for (path, caching) in [
        ("/api/conversations/c", "private, no-store"),
        ("/api/conversations", "private, no-store"),
        ("/api/agents", "private, no-store"),
        ("/api/conversations/x", "private, no-store"),
        (artifact.as_str(), "private, max-age=31536000, immutable"),
    ] {
        let response = app.get(path).send().await;
        assert_eq!(response.header("cache-control"), caching, "{path}");
        for name in [
            "authorization",
            "cookie",
            "x-functions-key",
            "x-ms-client-principal",
            "turnwheel-user",
            "turnwheel-tenant",
            "turnwheel-roles",
        ] {
            let mut vary = response.headers.get_all("vary").iter();
            assert!(vary.any(|value| value.to_str().unwrap().contains(name)), "{path}: {name}");
        }
    }
}

#[tokio::test]
async fn functions_without_keys_close_the_api() {
    let store = std::sync::Arc::new(MemoryStore::new());
    let access = Access { refusal: Some("Package again.".to_owned()), ..Access::dev() };
    let app = TestApp::with_access(store, std::sync::Arc::new(NoFailPoints), access);
    for path in ["/api/conversations", "/api/health", "/api/approvals/token", "/api/openapi.json"] {
        let refused = app.get(path).send_unvalidated().await;
        assert_eq!(refused.status, 503, "{path}");
        assert!(refused.text.contains("Package again."), "{path}");
    }
    let prompt = json!({"agent": "clerk", "input": "say hello"});
    let refused = app.post("/api/prompts", &prompt).send_unvalidated().await;
    assert_eq!(refused.status, 503);
}

#[tokio::test]
async fn list_continues_after_last_item() {
    let app = TestApp::new();
    for number in 0..5 {
        app.clock.advance(std::time::Duration::from_secs(1));
        app.post("/api/conversations", &json!({"id": format!("c{number}")}))
            .send()
            .await
            .expect_status(201);
    }
    let mut ids = Vec::new();
    let mut path = "/api/conversations?limit=2".to_owned();
    loop {
        let page = app.get(&path).send().await.expect_status(200);
        ids.extend(
            page.json()["items"]
                .as_array()
                .unwrap()
                .iter()
                .map(|item| item["id"].as_str().unwrap().to_owned()),
        );
        let Some(next) =
            page.header("link").strip_prefix('<').and_then(|link| link.split('>').next())
        else {
            break;
        };
        path = next.to_owned();
    }
    assert_eq!(ids, ["c4", "c3", "c2", "c1", "c0"]);
    let first = app.get_json("/api/conversations?limit=2").await;
    let continuation = first["continuation"].as_str().unwrap();
    let stolen = format!("/api/conversations?limit=2&continuation={continuation}");
    app.get(&stolen).user("eve", "").send().await.expect_problem(400, "bad-request");
}
