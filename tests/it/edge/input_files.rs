//! Tests of file tools on uploaded files and spilled prompts.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::Method;
use serde_json::{Value, json};

use super::test_app::TestApp;

const PNG: &[u8] = b"\x89PNG\r\n\x1a\n picture";

/// Runs one call of a tool; returns the result text that the model reads.
async fn tool_result(app: &TestApp, tool: &str, arguments: &Value) -> String {
    app.run(&format!("use {tool} with {arguments} then say done")).await;
    let messages = app.get_json("/api/conversations/c/messages?limit=100").await;
    let mut results = messages["items"].as_array().unwrap().iter();
    let last = results.rfind(|message| message["role"] == "toolResult").unwrap();
    last["content"][0]["text"].as_str().unwrap().to_owned()
}

async fn upload(app: &TestApp, name: &str, mime_type: &str, bytes: &[u8]) -> String {
    let added = app
        .request(Method::POST, &format!("/api/conversations/c/artifacts?name={name}"))
        .header("content-type", mime_type)
        .body(bytes.to_vec())
        .send()
        .await;
    added.expect_status(201).json()["id"].as_str().unwrap().to_owned()
}

fn hash_of(id: &str) -> &str {
    id.rsplit_once('.').unwrap().1.get(..8).unwrap()
}

fn with_file(id: &str) -> Value {
    json!({"input": [{"type": "text", "text": "say seen"}, {"type": "file", "artifactId": id}]})
}

#[tokio::test]
async fn spilled_prompt_text_is_read_by_tools() {
    let app = TestApp::new().with_file_tools();
    let long = format!("first line\n{}\nthe needle is here", "x".repeat(300 * 1024));
    app.post("/api/prompts", &json!({"conversationId": "c", "input": long}))
        .send()
        .await
        .expect_status(202);
    app.work().await;
    let input = app.get_json("/api/conversations/c/prompts").await["items"][0]["input"].clone();
    let path = format!(
        ".turnwheel/inputs/{}/input.txt",
        hash_of(input[1]["artifactId"].as_str().unwrap())
    );
    assert_eq!(tool_result(&app, "find", &json!({"pattern": "input.txt"})).await, path);
    assert_eq!(
        tool_result(&app, "ls", &json!({"path": ".turnwheel/inputs"})).await,
        path.split('/').nth(2).unwrap().to_owned() + "/"
    );
    assert!(tool_result(&app, "read", &json!({"path": path})).await.starts_with("first line\n"));
    let found = tool_result(&app, "grep", &json!({"pattern": "needle"})).await;
    assert_eq!(found, format!("{path}:3: the needle is here"));
    let refused = tool_result(&app, "write", &json!({"path": path, "content": "other"})).await;
    assert!(refused.contains("reserved for Turnwheel"), "{refused}");
}

#[tokio::test]
async fn uploaded_file_is_read_under_its_name() {
    let app = TestApp::new().with_file_tools();
    app.post("/api/conversations", &json!({"id": "c"})).send().await.expect_status(201);
    let id = upload(&app, "a.txt", "text/plain", b"hello from the file").await;
    app.post("/api/conversations/c/prompts", &with_file(&id)).send().await.expect_status(202);
    app.work().await;
    let input = app.get_json("/api/conversations/c/prompts").await["items"][0]["input"].clone();
    assert_eq!(
        input[1],
        json!({"type": "file", "artifactId": id, "path": "a.txt", "mimeType": "text/plain", "size": 19})
    );
    let path = format!(".turnwheel/inputs/{}/a.txt", hash_of(&id));
    assert_eq!(tool_result(&app, "read", &json!({"path": path})).await, "hello from the file");
    let hint = tool_result(&app, "read", &json!({"path": "a.txt"})).await;
    assert!(hint.contains(&path), "the error must name the full path: {hint}");
}

#[tokio::test]
async fn read_names_the_format_of_binary_files() {
    let app = TestApp::new().with_file_tools();
    app.post("/api/conversations", &json!({"id": "c"})).send().await.expect_status(201);
    for (name, bytes, kind) in [
        ("old.doc", b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1".as_slice(), "Office format before 2007"),
        ("report.pdf", b"%PDF-1.7 \xff\0".as_slice(), "PDF document"),
        ("data.bin", b"\0\x01\x02".as_slice(), "Binary file"),
    ] {
        let id = upload(&app, name, "application/octet-stream", bytes).await;
        app.post("/api/conversations/c/prompts", &with_file(&id)).send().await.expect_status(202);
        app.work().await;
        let path = format!(".turnwheel/inputs/{}/{name}", hash_of(&id));
        let output = tool_result(&app, "read", &json!({"path": path})).await;
        assert!(output.contains(kind), "{output}");
    }
}

#[tokio::test]
async fn uploaded_image_is_sent_as_image_block() {
    let app = TestApp::new();
    app.post("/api/conversations", &json!({"id": "c"})).send().await.expect_status(201);
    let id = upload(&app, "logo.png", "image/png", PNG).await;
    app.post("/api/conversations/c/prompts", &with_file(&id)).send().await.expect_status(202);
    app.work().await;
    let messages = app.get_json("/api/conversations/c/messages").await;
    let content = &messages["items"][0]["content"];
    assert_eq!(content[1]["path"], "logo.png");
    assert_eq!(
        content[2],
        json!({"type": "image", "data": STANDARD.encode(PNG), "mimeType": "image/png"})
    );
    let fake = upload(&app, "fake.png", "image/png", b"no picture").await;
    let problem = app.post("/api/conversations/c/prompts", &with_file(&fake)).send().await;
    let problem = problem.expect_problem(400, "bad-request");
    assert_eq!(problem["errors"][0]["pointer"], "/input/1/artifactId");
    let large = upload(&app, "large.png", "image/png", &[PNG, &vec![0; 800 * 1024]].concat()).await;
    let problem = app.post("/api/conversations/c/prompts", &with_file(&large)).send().await;
    let problem = problem.expect_problem(413, "payload-too-large");
    assert!(problem["detail"].as_str().unwrap().contains("1,500 pixels"), "{problem}");
}

#[tokio::test]
async fn long_text_is_rejected_without_read_tool() {
    let app = TestApp::new();
    let long = "x".repeat(300 * 1024);
    let problem = app.post("/api/prompts", &json!({"input": long})).send().await;
    let problem = problem.expect_problem(413, "payload-too-large");
    assert!(problem["detail"].as_str().unwrap().contains("add `read`"), "{problem}");
}
