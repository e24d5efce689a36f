//! Tests of the requests that create a conversation: the short form of messages, and both names and
//! the bounds of the id.

use serde_json::{Value, json};

use super::test_app::TestApp;

#[tokio::test]
async fn role_and_text_are_enough_for_first_messages() {
    let app = TestApp::new();
    let messages = json!([
        {"role": "user", "content": "What is due?"},
        {"role": "assistant", "content": "Invoice 4711."},
        {"role": "user", "content": [{"type": "text", "text": "And then?"}], "timestamp": 5},
        {"role": "assistant", "content": "Nothing.", "model": "other", "stopReason": "length"},
    ]);
    let body = json!({"id": "c", "messages": messages});
    app.post("/api/conversations", &body).send().await.expect_status(201);
    let stored = app.get_json("/api/conversations/c/messages").await;
    let stored = stored["items"].as_array().unwrap();
    assert_eq!(stored.len(), 4, "{stored:?}");
    assert!(stored.iter().all(|message| message["timestamp"].is_u64()), "{stored:?}");
    assert_eq!(stored[1]["content"], json!([{"type": "text", "text": "Invoice 4711."}]));
    let author = ["api", "provider", "model", "stopReason"].map(|name| stored[1][name].clone());
    assert_eq!(author, ["imported", "imported", "imported", "stop"].map(Value::from));
    assert_eq!((&stored[2]["timestamp"], &stored[3]["model"]), (&json!(5), &json!("other")));
    assert_eq!(stored[3]["stopReason"], "length");
    // The model receives them.
    app.run("say done").await;
    assert_eq!(app.get_json("/api/conversations/c").await["state"], "idle");
}

#[tokio::test]
async fn error_of_a_first_message_names_its_place() {
    let app = TestApp::new();
    for (message, pointer) in [
        (json!({"role": "assistant", "content": 7}), "/messages/1/content"),
        (json!({"role": "assistant"}), "/messages/1/content"),
        (json!({"role": "user", "content": "x", "text": "y"}), "/messages/1/text"),
        (json!({"role": "toolResult", "content": "x"}), "/messages/1/"),
        (json!({"content": "x"}), "/messages/1/role"),
    ] {
        let body = json!({"messages": [{"role": "user", "content": "a"}, message]});
        let problem = app.post("/api/conversations", &body).send().await;
        let problem = problem.expect_problem(400, "bad-request");
        let found = problem["errors"][0]["pointer"].as_str().unwrap();
        assert!(found.starts_with(pointer), "{body}: {problem}");
    }
}

#[tokio::test]
async fn new_conversation_takes_both_names_of_its_id() {
    let app = TestApp::new();
    for (path, number) in [("/api/conversations", 0), ("/api/prompts", 1)] {
        let mut body = json!({"input": "say a"});
        if path == "/api/conversations" {
            body = json!({});
        }
        for name in ["id", "conversationId"] {
            let id = format!("{name}-{number}");
            let mut request = body.clone();
            request[name] = json!(id);
            let response = app.post(path, &request).send().await;
            assert!(response.status.is_success(), "{path} {request}: {}", response.text);
            app.get(&format!("/api/conversations/{id}")).send().await.expect_status(200);
        }
        let mut both = body.clone();
        let id = json!(format!("both-{number}"));
        (both["id"], both["conversationId"]) = (id.clone(), id);
        let response = app.post(path, &both).key("k").send().await;
        assert!(response.status.is_success(), "{path} {both}: {}", response.text);
        both["conversationId"] = json!("y");
        let problem = app.post(path, &both).send().await.expect_problem(400, "bad-request");
        assert_eq!(problem["errors"][0]["pointer"], "/id", "{problem}");
    }
}

/// Clients and proxies remove `.` and `..` from paths.
#[tokio::test]
async fn id_of_only_dots_is_refused() {
    let app = TestApp::new();
    for id in [".", "..", "..."] {
        let schedule = json!({"id": id, "input": "say a", "at": "2024-01-01T00:00:00Z"});
        for (path, body, pointer) in [
            ("/api/conversations", json!({"id": id}), "/id"),
            ("/api/prompts", json!({"conversationId": id, "input": "say a"}), "/conversationId"),
            ("/api/schedules", schedule, "/id"),
        ] {
            let problem = app.post(path, &body).send().await.expect_problem(400, "bad-request");
            assert_eq!(problem["errors"][0]["pointer"], pointer, "{body}: {problem}");
        }
    }
}
