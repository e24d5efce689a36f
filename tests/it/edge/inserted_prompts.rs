//! Tests of prompts that ran outside the service and are inserted.

use serde_json::{Value, json};

use super::commands::WAITING_PROMPT;
use super::test_app::{ApiResponse, TestApp};

const INSERT: &str = "/api/conversations/c/prompts/import";

fn paid() -> Value {
    json!({
        "input": "Pay Ada", "source": "schedule", "startedAt": "2023-01-02T03:04:05.678Z",
        "output": [
            {"type": "text", "content": "I pay."},
            {"type": "tool", "toolCallId": "c1", "function": "pay", "input": {"amount": 7}, "result": {"type": "success", "output": {"id": 5}}},
            {"type": "widget", "widget": "receipt", "data": {"id": 5}, "fallback": "paid"},
            {"type": "text", "content": "Paid."},
        ],
    })
}

async fn insert(app: &TestApp, body: &Value, key: &str) -> ApiResponse {
    app.post(INSERT, body).key(key).send().await
}

#[tokio::test]
async fn inserted_prompt_is_in_every_view_and_runs_nothing() {
    let app = TestApp::new();
    app.run("say one").await;
    let usage = app.get_json("/api/conversations/c").await["usage"].clone();
    let accepted = insert(&app, &paid(), "k").await.expect_status(202);
    let location = accepted.header("location").to_owned();
    let accepted = accepted.json();
    assert_eq!(
        (&accepted["disposition"], &accepted["conversationId"]),
        (&json!("queued"), &json!("c"))
    );
    let waiting = app.get_json(&location).await;
    assert_eq!((&waiting["state"], &waiting["input"]), (&json!("running"), &json!("Pay Ada")));
    app.work().await;
    let prompt = app.get_json(&location).await;
    assert_eq!(prompt["state"], "completed");
    let shown = prompt["output"].as_array().unwrap();
    let sent = paid();
    for (shown, sent) in shown.iter().zip(sent["output"].as_array().unwrap()) {
        for (name, value) in sent.as_object().unwrap() {
            assert_eq!(&shown[name], value, "{shown}");
        }
    }
    assert_eq!((shown.len(), &prompt["source"]), (4, &json!("schedule")));
    let listed = app.get_json("/api/conversations/c/prompts").await;
    assert_eq!(listed["items"][1]["onPath"], true, "{listed}");
    let receipt = app.get_json(&format!("{location}/receipt")).await;
    assert_eq!(receipt["startedAt"], "2023-01-02T03:04:05.678Z");
    assert_eq!((&receipt["modelCalls"], &receipt["toolCalls"]), (&json!(0), &json!(0)));
    let conversation = app.get_json("/api/conversations/c").await;
    assert_eq!(conversation["usage"], usage, "it costs nothing");
    assert!(app.pay.payments.lock().unwrap().is_empty(), "no tool runs");
    let tree = app.get_json("/api/conversations/c/tree").await.to_string();
    assert!(tree.contains("Pay Ada"), "{tree}");
    let answer = app.get_json("/api/conversations/c/last-answer").await;
    assert_eq!(answer["text"], "Paid.", "{answer}");
    for (format, text) in [("html", "I pay."), ("pi", "\"Paid.\""), ("turnwheel", "startedAt")] {
        let path = format!("/api/conversations/c/export?format={format}");
        let export = app.get(&path).send().await.expect_status(200).text;
        assert!(export.contains(text), "{format}: {export}");
    }
    app.run("say three").await;
    let messages = app.get_json("/api/conversations/c/messages?limit=100").await;
    let roles: Vec<&str> = messages["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|it| it["message"]["role"].as_str().or(it["role"].as_str()).unwrap())
        .collect();
    assert_eq!(
        roles,
        ["user", "assistant", "user", "assistant", "toolResult", "assistant", "user", "assistant"]
    );
}

#[tokio::test]
async fn repeated_insertion_returns_the_first_response() {
    let app = TestApp::new();
    app.run("say one").await;
    let first = insert(&app, &paid(), "k").await.expect_status(202).json();
    app.work().await;
    let again = insert(&app, &paid(), "k").await.expect_status(202);
    assert_eq!((again.json(), again.header("idempotency-replayed")), (first, "true"));
    app.work().await;
    let prompts = app.get_json("/api/conversations/c/prompts").await;
    assert_eq!(prompts["items"].as_array().unwrap().len(), 2);
    let other = json!({"input": "x", "source": "user"});
    insert(&app, &other, "k").await.expect_problem(422, "idempotency-key-reused");
}

#[tokio::test]
async fn insertion_waits_for_the_running_prompt() {
    let app = TestApp::new();
    app.run(WAITING_PROMPT).await;
    let accepted = insert(&app, &paid(), "k").await.expect_status(202).json();
    app.work().await;
    let path = format!("/api/conversations/c/prompts/{}", accepted["promptId"].as_str().unwrap());
    assert_eq!(app.get_json(&path).await["state"], "running", "the approval is still open");
    app.post("/api/conversations/c/abort", &json!({})).send().await.expect_status(202);
    app.work().await;
    assert_eq!(app.get_json(&path).await["state"], "completed");
    let waited = app.post(&format!("{INSERT}?wait=1"), &paid()).key("k").send().await;
    assert_eq!(waited.expect_status(200).json()["state"], "completed");
}

#[tokio::test]
async fn file_of_an_insertion_is_taken_from_its_artifact() {
    let app = TestApp::new();
    app.run("say one").await;
    let added = app
        .request(http::Method::POST, "/api/conversations/c/artifacts?name=a.txt")
        .header("content-type", "text/plain")
        .body("hello")
        .send()
        .await
        .expect_status(201)
        .json();
    let file = json!({"type": "file", "artifactId": added["id"], "description": "a greeting"});
    let body = json!({"source": "user", "output": [file]});
    let accepted = insert(&app, &body, "k").await.expect_status(202).json();
    app.work().await;
    let path = format!("/api/conversations/c/prompts/{}", accepted["promptId"].as_str().unwrap());
    let shown = &app.get_json(&path).await["output"][0];
    assert_eq!((&shown["path"], &shown["size"]), (&json!("a.txt"), &json!(5)), "{shown}");
    assert_eq!(
        (&shown["mimeType"], &shown["description"]),
        (&json!("text/plain"), &json!("a greeting"))
    );
}

#[tokio::test]
async fn invalid_insertions_name_the_member() {
    let app = TestApp::new();
    app.run("say one").await;
    let before = app.get_json("/api/conversations/c").await;
    let with = |output: Value| json!({"source": "user", "output": [output]});
    let tool = |name: &str, value: Value| {
        let mut tool = json!({"type": "tool", "function": "f", "input": {}, "result": {"type": "success", "output": 1}});
        tool[name] = value;
        with(tool)
    };
    let success = json!({"type": "success"});
    let same = json!({"type": "tool", "toolCallId": "c", "function": "f", "input": {}, "result": {"type": "success", "output": 1}});
    let text = json!({"type": "text", "content": "x"});
    for (body, pointer, detail) in [
        (json!({}), "/source", "missing"),
        (json!({"source": "user"}), "/output", "the prompt is empty"),
        (json!({"source": "robot", "input": "x"}), "/source", "robot"),
        (json!({"source": "user", "input": ""}), "/input", "the input is empty"),
        (json!({"source": "user", "input": "x", "at": "root"}), "/at", "unknown"),
        (json!({"source": "user", "input": "x", "startedAt": "soon"}), "/startedAt", "ISO 8601"),
        (
            json!({"source": "user", "input": "x", "startedAt": "2999-01-01T00:00:00Z"}),
            "/startedAt",
            "future",
        ),
        (json!({"source": "user", "output": vec![&text; 33]}), "/output", "at most 32"),
        (
            json!({"source": "user", "output": [same, same]}),
            "/output/1/toolCallId",
            "another output",
        ),
        (with(json!({"type": "hologram"})), "/output/0/type", "`text`, `tool`, `file` or `widget`"),
        (with(json!("x")), "/output/0/type", "`text`"),
        (with(json!({"type": "text"})), "/output/0/content", "missing"),
        (with(json!({"type": "text", "content": 5})), "/output/0/content", "text"),
        (
            with(json!({"type": "text", "content": " "})),
            "/output/0/content",
            "leave the output out",
        ),
        (
            with(json!({"type": "text", "content": "x", "more/~": 1})),
            "/output/0/more~1~0",
            "unknown",
        ),
        (
            with(json!({"type": "widget", "widget": "", "data": 1, "fallback": ""})),
            "/output/0/widget",
            "1 to 128",
        ),
        (with(json!({"type": "file", "artifactId": "a_1"})), "/output/0/artifactId", "no artifact"),
        (tool("function", json!("")), "/output/0/function", "1 to 128"),
        (tool("input", json!([1])), "/output/0/input", "an object"),
        (tool("toolCallId", json!("a b")), "/output/0/toolCallId", "1 to 64"),
        (tool("result", success), "/output/0/result", "has `output`"),
        (tool("result", json!({"type": "error", "output": 1})), "/output/0/result", "has `error`"),
        (tool("result", json!({"type": "maybe"})), "/output/0/result/type", "maybe"),
    ] {
        let problem = insert(&app, &body, pointer).await;
        let problem = problem.expect_problem(400, "bad-request");
        assert_eq!(problem["errors"][0]["pointer"], pointer, "{body}: {problem}");
        assert!(problem["detail"].as_str().unwrap().contains(detail), "{body}: {problem}");
    }
    let long = with(json!({"type": "text", "content": "x".repeat(400_000)}));
    let problem = insert(&app, &long, "long").await.expect_problem(413, "payload-too-large");
    assert!(problem["detail"].as_str().unwrap().contains("393216"), "{problem}");
    let foreign = app.post(INSERT, &paid()).user("eve", "").send().await;
    foreign.expect_problem(404, "not-found");
    app.work().await;
    assert_eq!(app.get_json("/api/conversations/c").await, before);
}
