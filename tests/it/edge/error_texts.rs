//! Tests of error texts: each names the member and the expected value.

use serde_json::{Value, json};

use super::test_app::TestApp;

/// The pointer and the text of the first error.
async fn first_error(app: &TestApp, path: &str, body: &Value) -> (String, String) {
    let problem = app.post(path, body).send().await.expect_problem(400, "bad-request");
    let first = &problem["errors"][0];
    (first["pointer"].as_str().unwrap().to_owned(), first["detail"].as_str().unwrap().to_owned())
}

#[tokio::test]
async fn lists_are_rejected_as_objects() {
    let app = TestApp::new();
    for (settings, pointer) in [
        (json!(["agent", "gpt-evil"]), "/settings"),
        (json!([]), "/settings"),
        (json!({"retry": [false, 7]}), "/settings/retry"),
        (json!({"compaction": [false]}), "/settings/compaction"),
        (json!({"budget": [{"usd": 1}]}), "/settings/budget"),
        (json!({"budget": {"prompt": [1]}}), "/settings/budget/prompt"),
    ] {
        let expected = (pointer.to_owned(), "this must be an object, not a list".to_owned());
        let body = json!({"settings": settings});
        assert_eq!(first_error(&app, "/api/conversations", &body).await, expected, "{settings}");
        let body = json!({"settings": settings, "input": "x"});
        assert_eq!(first_error(&app, "/api/prompts", &body).await, expected, "{settings}");
    }
    app.post("/api/conversations", &json!({"id": "c"})).send().await.expect_status(201);
    let patch = json!({"settings": {"retry": [false, 7]}});
    let problem =
        app.patch("/api/conversations/c", &patch).send().await.expect_problem(400, "bad-request");
    assert_eq!(problem["errors"][0]["pointer"], "/settings/retry");
    assert_eq!(problem["errors"][0]["detail"], "this must be an object, not a list");
}

#[tokio::test]
async fn invalid_blocks_name_index_and_member() {
    let app = TestApp::new();
    for (input, pointer, detail) in [
        (json!([{"type": "text", "text": "hi", "x": 1}]), "/input/0/x", "unknown field `x`"),
        (
            json!([{"type": "text", "text": "a"}, {"type": "text"}]),
            "/input/1/text",
            "missing field `text`",
        ),
        (json!([{"type": "text", "text": 5}]), "/input/0/text", "this must be a text, not 5"),
        (
            json!([{"type": "image", "data": "!!!", "mimeType": "image/png"}]),
            "/input/0/data",
            "an image's `data` is base64 without a data: prefix",
        ),
        (json!(5), "/input", "this must be a text or a list of blocks"),
        (json!({}), "/input", "this must be a text or a list of blocks"),
    ] {
        let found = first_error(&app, "/api/prompts", &json!({"input": input})).await;
        assert_eq!(found, (pointer.to_owned(), detail.to_owned()), "{input}");
    }
    let half = app
        .request(http::Method::POST, "/api/prompts")
        .header("content-type", "application/json")
        .body(r#"{"input":"\ud800"}"#);
    let problem = half.send().await.expect_problem(400, "bad-request");
    assert!(problem["detail"].as_str().unwrap().contains("unpaired surrogates"), "{problem}");
}

#[tokio::test]
async fn import_validates_messages_like_prompts() {
    let app = TestApp::new();
    let image = |data: &str| json!([{"type": "image", "data": data, "mimeType": "image/png"}]);
    let file = json!([{"type": "file", "artifactId": format!("up_x.{}", "0".repeat(64))}]);
    for (message, pointer) in [
        (
            json!({"role": "user", "content": image("!!!"), "timestamp": 1}),
            "/messages/0/content/0/data",
        ),
        (
            json!({"role": "user", "content": image("aGk="), "timestamp": 1}),
            "/messages/0/content/0/data",
        ),
        (
            json!({"role": "user", "content": file, "timestamp": 1}),
            "/messages/0/content/0/artifactId",
        ),
        (json!({"role": "user", "content": "x", "timestamp": 1, "foo": 1}), "/messages/0/foo"),
        (
            json!({"role": "user", "content": [{"type": "text", "text": 1}], "timestamp": 1}),
            "/messages/0/content/0/text",
        ),
        (
            json!({"role": "toolResult", "toolCallId": "c", "toolName": "t", "content": image("!"), "isError": false, "timestamp": 1}),
            "/messages/0/content/0/data",
        ),
    ] {
        let found = first_error(&app, "/api/conversations", &json!({"messages": [message]})).await;
        assert_eq!(found.0, pointer, "{message}: {}", found.1);
    }
}

#[tokio::test]
async fn settings_and_names_are_bounded() {
    let app = TestApp::new();
    for (member, value) in [
        ("model", json!("")),
        ("model", json!("m".repeat(1_000))),
        ("maxOutputTokens", json!(1_000_000_000_000_000_u64)),
        ("budget", json!({"prompt": {"usd": 1e300}})),
    ] {
        let body = json!({"settings": {member: value}});
        let found = first_error(&app, "/api/conversations", &body).await;
        assert_eq!(found.0, format!("/settings/{member}"), "{}", found.1);
    }
    assert_eq!(
        first_error(&app, "/api/prompts", &json!({"input": "x", "model": ""})).await.0,
        "/model"
    );
    app.post("/api/conversations", &json!({"id": "c"})).send().await.expect_status(201);
    for name in ["two\nlines", "x\u{202e}fdp.exe"] {
        let named = app.patch("/api/conversations/c", &json!({"name": name})).send().await;
        assert_eq!(named.expect_problem(400, "bad-request")["errors"][0]["pointer"], "/name");
    }
    let named = app.patch("/api/conversations/c", &json!({"name": "  Taxes 2026\t"})).send().await;
    assert_eq!(named.expect_status(200).json()["name"], "Taxes 2026");
    let named = app.patch("/api/conversations/c", &json!({"name": "   "})).send().await;
    assert!(named.expect_status(200).json().get("name").is_none(), "a blank name must be removed");
}
