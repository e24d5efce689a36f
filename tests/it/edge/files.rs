//! Tests of file tools on uploaded files and spilled prompts.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::Method;
use serde_json::{Value, json};

use super::rig::Rig;

const PNG: &[u8] = b"\x89PNG\r\n\x1a\n picture";

/// Runs one call of a tool; returns the result text that the model reads.
async fn result(rig: &Rig, tool: &str, arguments: &Value) -> String {
    rig.run(&format!("use {tool} with {arguments} then say done")).await;
    let messages = rig.seen("/api/conversations/c/messages?limit=100").await;
    let mut results = messages["items"].as_array().unwrap().iter();
    let last = results.rfind(|message| message["role"] == "toolResult").unwrap();
    last["content"][0]["text"].as_str().unwrap().to_owned()
}

async fn upload(rig: &Rig, name: &str, mime_type: &str, bytes: &[u8]) -> String {
    let added = rig
        .ask(Method::POST, &format!("/api/conversations/c/artifacts?name={name}"))
        .header("content-type", mime_type)
        .body(bytes.to_vec())
        .send()
        .await;
    added.is(201).json()["id"].as_str().unwrap().to_owned()
}

fn hash_of(id: &str) -> &str {
    id.rsplit_once('.').unwrap().1.get(..8).unwrap()
}

fn with_file(id: &str) -> Value {
    json!({"input": [{"type": "text", "text": "say seen"}, {"type": "file", "artifactId": id}]})
}

#[tokio::test]
async fn spilled_prompt_text_is_read_by_tools() {
    let rig = Rig::new().with_file_tools();
    let long = format!("first line\n{}\nthe needle is here", "x".repeat(300 * 1024));
    rig.post("/api/prompts", &json!({"conversationId": "c", "input": long})).send().await.is(202);
    rig.work().await;
    let input = rig.seen("/api/conversations/c/prompts").await["items"][0]["input"].clone();
    let path = format!(
        ".turnwheel/inputs/{}/input.txt",
        hash_of(input[1]["artifactId"].as_str().unwrap())
    );
    assert_eq!(result(&rig, "find", &json!({"pattern": "input.txt"})).await, path);
    assert_eq!(
        result(&rig, "ls", &json!({"path": ".turnwheel/inputs"})).await,
        path.split('/').nth(2).unwrap().to_owned() + "/"
    );
    assert!(result(&rig, "read", &json!({"path": path})).await.starts_with("first line\n"));
    let found = result(&rig, "grep", &json!({"pattern": "needle"})).await;
    assert_eq!(found, format!("{path}:3: the needle is here"));
    let refused = result(&rig, "write", &json!({"path": path, "content": "other"})).await;
    assert!(refused.contains("kept for Turnwheel"), "{refused}");
}

#[tokio::test]
async fn uploaded_file_is_read_under_its_name() {
    let rig = Rig::new().with_file_tools();
    rig.post("/api/conversations", &json!({"id": "c"})).send().await.is(201);
    let id = upload(&rig, "a.txt", "text/plain", b"hello from the file").await;
    rig.post("/api/conversations/c/prompts", &with_file(&id)).send().await.is(202);
    rig.work().await;
    let input = rig.seen("/api/conversations/c/prompts").await["items"][0]["input"].clone();
    assert_eq!(
        input[1],
        json!({"type": "file", "artifactId": id, "path": "a.txt", "mimeType": "text/plain", "size": 19})
    );
    let path = format!(".turnwheel/inputs/{}/a.txt", hash_of(&id));
    assert_eq!(result(&rig, "read", &json!({"path": path})).await, "hello from the file");
    let hint = result(&rig, "read", &json!({"path": "a.txt"})).await;
    assert!(hint.contains(&path), "the error must name the full path: {hint}");
}

#[tokio::test]
async fn document_that_holds_no_plain_text_is_named() {
    let rig = Rig::new().with_file_tools();
    rig.post("/api/conversations", &json!({"id": "c"})).send().await.is(201);
    for (name, bytes, kind) in [
        ("old.doc", b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1".as_slice(), "Office format before 2007"),
        ("report.pdf", b"%PDF-1.7 \xff\0".as_slice(), "PDF document"),
        ("data.bin", b"\0\x01\x02".as_slice(), "Binary file"),
    ] {
        let id = upload(&rig, name, "application/octet-stream", bytes).await;
        rig.post("/api/conversations/c/prompts", &with_file(&id)).send().await.is(202);
        rig.work().await;
        let path = format!(".turnwheel/inputs/{}/{name}", hash_of(&id));
        let said = result(&rig, "read", &json!({"path": path})).await;
        assert!(said.contains(kind), "{said}");
    }
}

#[tokio::test]
async fn uploaded_picture_is_a_picture_for_the_model() {
    let rig = Rig::new();
    rig.post("/api/conversations", &json!({"id": "c"})).send().await.is(201);
    let id = upload(&rig, "logo.png", "image/png", PNG).await;
    rig.post("/api/conversations/c/prompts", &with_file(&id)).send().await.is(202);
    rig.work().await;
    let messages = rig.seen("/api/conversations/c/messages").await;
    let content = &messages["items"][0]["content"];
    assert_eq!(content[1]["path"], "logo.png");
    assert_eq!(
        content[2],
        json!({"type": "image", "data": STANDARD.encode(PNG), "mimeType": "image/png"})
    );
    let fake = upload(&rig, "fake.png", "image/png", b"no picture").await;
    let told = rig.post("/api/conversations/c/prompts", &with_file(&fake)).send().await;
    let told = told.fails(400, "bad-request");
    assert_eq!(told["errors"][0]["pointer"], "/input/1/artifactId");
    let large = upload(&rig, "large.png", "image/png", &[PNG, &vec![0; 800 * 1024]].concat()).await;
    let told = rig.post("/api/conversations/c/prompts", &with_file(&large)).send().await;
    let told = told.fails(413, "payload-too-large");
    assert!(told["detail"].as_str().unwrap().contains("1,500 pixels"), "{told}");
}

#[tokio::test]
async fn agent_without_read_refuses_text_it_could_not_see() {
    let rig = Rig::new();
    let long = "x".repeat(300 * 1024);
    let told = rig.post("/api/prompts", &json!({"input": long})).send().await;
    let told = told.fails(413, "payload-too-large");
    assert!(told["detail"].as_str().unwrap().contains("add `read`"), "{told}");
}
