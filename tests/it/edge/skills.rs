//! Tests of the routes of a user's skills.

use std::sync::Arc;

use http::Method;
use serde_json::{Value, json};
use turnwheel::testing::agents::Skill;

use super::test_app::{TestApp, TestRequest};

fn put<'a>(app: &'a TestApp, name: &str, skill: &Value) -> TestRequest<'a> {
    app.request(Method::PUT, &format!("/api/skills/{name}")).json(skill)
}

fn skill(instructions: &str) -> Value {
    json!({"description": "How to\nclose.", "instructions": instructions, "tools": ["pay"]})
}

#[tokio::test]
async fn skills_are_written_read_and_deleted_by_their_owner() {
    let app = TestApp::new();
    assert_eq!(app.get_json("/api/skills").await, json!({"items": []}));
    app.get("/api/skills/closing").send().await.expect_problem(404, "not-found");
    let stored = put(&app, "closing", &skill("Count the till.")).send().await.expect_status(200);
    let (etag, view) = (stored.header("etag").to_owned(), stored.json());
    assert_eq!(view["description"], "How to close.");
    assert_eq!(view["by"], "user");
    let summary = json!({"name": "closing", "description": "How to close.", "tools": ["pay"]});
    assert_eq!(app.get_json("/api/skills").await, json!({"items": [summary]}));
    let read = app.get("/api/skills/closing").send().await.expect_status(200);
    assert_eq!((read.header("etag"), read.json()), (etag.as_str(), view));
    let same = app.get("/api/skills/closing").header("if-none-match", &etag);
    same.send().await.expect_status(304);
    put(&app, "closing", &skill("Other."))
        .header("if-match", "\"old\"")
        .send()
        .await
        .expect_problem(412, "precondition-failed");
    let again = put(&app, "closing", &skill("Count the till.")).send().await.expect_status(200);
    assert_eq!(again.header("etag"), etag, "an equal skill stays as it is");
    let changed = put(&app, "closing", &skill("Lock up.")).header("if-match", &etag);
    assert_eq!(changed.send().await.expect_status(200).json()["instructions"], "Lock up.");
    let stale = app.delete("/api/skills/closing").header("if-match", &etag);
    stale.send().await.expect_problem(412, "precondition-failed");
    app.delete("/api/skills/closing").send().await.expect_status(204);
    app.delete("/api/skills/closing").send().await.expect_problem(404, "not-found");
    assert_eq!(app.get_json("/api/skills").await, json!({"items": []}));
}

#[tokio::test]
async fn skill_files_are_written_and_read_as_markdown() {
    let app = TestApp::new();
    let send = async |name: &str, text: &str| {
        let path = format!("/api/skills/{name}");
        let request = app.request(Method::PUT, &path).header("content-type", "text/markdown");
        request.body(text.to_owned()).send().await
    };
    let file =
        "---\nname: closing\ndescription: 'How to close: now'\ntools: [pay]\n---\n1. Count.\n";
    send("closing", file).await.expect_status(200);
    let read = app.get("/api/skills/closing").header("accept", "text/markdown").send().await;
    let read = read.expect_status(200);
    assert!(read.header("content-type").starts_with("text/markdown"));
    let expected = "---\nname: closing\ndescription: \"How to close: now\"\ntools: [\"pay\"]\n---\n1. Count.\n";
    assert_eq!(read.text, expected);
    // What is read can be written again.
    send("closing", &read.text).await.expect_status(200);
    send("other", "---\ndescription: d\n---\nWithout a name.").await.expect_status(200);
    for (text, expected) in [
        ("---\nname: else\ndescription: d\n---\nx", "differs from `closing`"),
        ("---\nname: closing\n---\nx", "no `description`"),
        ("---\ndescription: [\n---\nx", "line "),
        ("no front matter", ""),
    ] {
        let problem = send("closing", text).await.expect_problem(400, "bad-request");
        assert!(problem.to_string().contains(expected), "{problem}");
    }
    assert_eq!(app.get_json("/api/skills/closing").await["instructions"], "1. Count.");
}

#[tokio::test]
async fn skills_are_hidden_from_other_users() {
    let app = TestApp::new();
    put(&app, "closing", &skill("Mine.")).send().await.expect_status(200);
    let eve = app.get("/api/skills").user("eve", "").send().await.expect_status(200);
    assert_eq!(eve.json(), json!({"items": []}));
    put(&app, "closing", &skill("Eve's.")).user("eve", "").send().await.expect_status(200);
    assert_eq!(app.get_json("/api/skills/closing").await["instructions"], "Mine.");
    let foreign = app.get("/api/skills?userId=default").user("eve", "");
    foreign.send().await.expect_problem(403, "forbidden");
    let operator = "Turnwheel.Operator";
    let read = app.get("/api/skills/closing?userId=default").user("ops", operator);
    assert_eq!(read.send().await.expect_status(200).json()["instructions"], "Mine.");
    for request in [put(&app, "closing", &skill("x")), app.delete("/api/skills/closing")] {
        request.user("ops", operator).send().await.expect_problem(403, "forbidden");
    }
    app.delete("/api/me").send().await.expect_status(200);
    assert_eq!(app.get_json("/api/skills").await, json!({"items": []}));
    let eve = app.get("/api/skills/closing").user("eve", "").send().await.expect_status(200);
    assert_eq!(eve.json()["instructions"], "Eve's.");
}

#[tokio::test]
async fn bad_skills_get_errors_that_name_the_place() {
    let app = TestApp::new();
    let cases = [
        ("A-b", skill("x"), "/name"),
        ("a--b", skill("x"), "/name"),
        ("ok", json!({"description": " ", "instructions": "x"}), "/description"),
        ("ok", json!({"description": "d".repeat(1_025), "instructions": "x"}), "/description"),
        ("ok", skill(" "), "/instructions"),
        ("ok", skill("hidden\u{202e}text"), "/instructions"),
        ("ok", skill(&"x".repeat(33 * 1024)), "/instructions"),
        ("ok", json!({"description": "d", "instructions": "x", "tools": ["a b"]}), "/tools/0"),
    ];
    for (name, body, pointer) in cases {
        let problem = put(&app, name, &body).send().await.expect_problem(400, "bad-request");
        assert_eq!(problem["errors"][0]["pointer"], pointer, "{problem}");
    }
    let text = app.request(Method::PUT, "/api/skills/ok").header("content-type", "text/plain");
    text.body("x").send().await.expect_problem(415, "unsupported-media-type");
    assert_eq!(app.get_json("/api/skills").await, json!({"items": []}));
}

#[tokio::test]
async fn name_of_an_app_skill_is_refused() {
    let closing = Skill {
        name: "closing".to_owned(),
        description: "How to close.".to_owned(),
        location: "skills/closing/SKILL.md".to_owned(),
        folder: None,
        files: Vec::new(),
        tools: Vec::new(),
        is_hidden: false,
        body: "Lock up.".to_owned(),
    };
    let app = TestApp::new().with_agent(|agent| {
        agent.has_user_skills = true;
        agent.skills = vec![Arc::new(closing)];
    });
    let refused = put(&app, "closing", &skill("Mine.")).send().await;
    let problem = refused.expect_problem(400, "bad-request");
    let remedy = "The agent `clerk` has a skill `closing` of the app, which would hide this one. Use another name.";
    assert_eq!(problem["errors"], json!([{"pointer": "/name", "detail": remedy}]));
    assert_eq!(app.get_json("/api/skills").await, json!({"items": []}));
    put(&app, "my-closing", &skill("Mine.")).send().await.expect_status(200);
}
