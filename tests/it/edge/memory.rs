//! Tests of the memory routes and of the deletion of a user's data.

use http::Method;
use serde_json::{Value, json};

use super::test_app::{TestApp, TestRequest};

fn put<'a>(app: &'a TestApp, path: &str, items: &Value) -> TestRequest<'a> {
    app.request(Method::PUT, path).json(&json!({"items": items}))
}

#[tokio::test]
async fn notes_are_replaced_read_and_deleted_by_their_owner() {
    let app = TestApp::new();
    let empty = app.get("/api/memory").send().await.expect_status(200);
    assert_eq!(empty.json(), json!({"items": [], "projects": []}));
    let first = empty.header("etag").to_owned();
    let items = json!([{"text": "likes tea"}, {"text": "# speaks\nGerman"}]);
    let stored = put(&app, "/api/memory", &items).header("if-match", &first).send().await;
    let stored = stored.expect_status(200);
    let notes = stored.json();
    assert_eq!(notes["items"][1]["text"], "speaks German");
    assert_eq!(notes["items"][1]["by"], "user");
    put(&app, "/api/memory", &json!([]))
        .header("if-match", &first)
        .send()
        .await
        .expect_problem(412, "precondition-failed");
    let same = app.get("/api/memory").header("if-none-match", stored.header("etag"));
    same.send().await.expect_status(304);
    let project = "/api/memory?project=shop";
    put(&app, project, &json!([{"text": "ships on Friday"}])).send().await.expect_status(200);
    let all = app.get_json("/api/memory").await;
    assert_eq!(all["projects"], json!(["shop"]));
    let list =
        app.get(project).header("accept", "text/html;q=0.5, text/markdown; q=1").send().await;
    let list = list.expect_status(200);
    assert_eq!(list.text, "- ships on Friday\n");
    assert!(list.header("content-type").starts_with("text/markdown"));
    let id = notes["items"][0]["id"].as_str().unwrap();
    app.delete(&format!("/api/memory/{id}"))
        .user("eve", "")
        .send()
        .await
        .expect_problem(404, "not-found");
    app.delete(&format!("/api/memory/{id}")).send().await.expect_status(204);
    app.delete(&format!("/api/memory/{id}")).send().await.expect_problem(404, "not-found");
    assert_eq!(app.get_json("/api/memory").await["items"].as_array().unwrap().len(), 1);
    app.delete(project)
        .header("if-match", &first)
        .send()
        .await
        .expect_problem(412, "precondition-failed");
    app.delete(project).send().await.expect_status(204);
    app.delete(project).send().await.expect_status(204);
    assert_eq!(app.get_json(project).await["items"], json!([]));
}

#[tokio::test]
async fn notes_are_hidden_from_other_users_and_tenants() {
    let app = TestApp::new();
    put(&app, "/api/memory", &json!([{"text": "likes tea"}])).send().await.expect_status(200);
    let eve = app.get("/api/memory").user("eve", "").send().await.expect_status(200).json();
    assert_eq!(eve["items"], json!([]));
    let other = app.get("/api/memory").header("turnwheel-tenant", "other");
    assert_eq!(other.send().await.expect_status(200).json()["items"], json!([]));
    let foreign = app.get("/api/memory?userId=default").user("eve", "");
    foreign.send().await.expect_problem(403, "forbidden");
    let operator = "Turnwheel.Operator";
    let read = app.get("/api/memory?userId=default").user("ops", operator);
    assert_eq!(read.send().await.expect_status(200).json()["items"][0]["text"], "likes tea");
    for request in [
        put(&app, "/api/memory", &json!([])),
        app.delete("/api/memory"),
        app.delete("/api/memory/note_1"),
        app.delete("/api/me"),
    ] {
        request.user("ops", operator).send().await.expect_problem(403, "forbidden");
    }
}

#[tokio::test]
async fn bad_notes_get_errors_that_name_the_place() {
    let app = TestApp::new();
    let items = json!([{"text": "ok"}, {"text": " "}, {"text": "x".repeat(501)}]);
    let problem = put(&app, "/api/memory", &items).send().await.expect_problem(400, "bad-request");
    let pointers: Vec<&Value> =
        problem["errors"].as_array().unwrap().iter().map(|error| &error["pointer"]).collect();
    assert_eq!(pointers, ["/items/1/text", "/items/2/text"]);
    put(&app, "/api/memory?project=a%20b", &json!([]))
        .send()
        .await
        .expect_problem(400, "bad-request");
    let unknown = json!([{"text": "x", "txt": "y"}]);
    put(&app, "/api/memory", &unknown).send().await.expect_problem(400, "bad-request");
    let many: Vec<Value> = (0..200).map(|_| json!({"text": "x".repeat(490)})).collect();
    put(&app, "/api/memory", &json!(many)).send().await.expect_problem(413, "payload-too-large");
    assert_eq!(app.get_json("/api/memory").await["items"], json!([]));
}

#[tokio::test]
async fn user_deletes_all_data_step_by_step() {
    let app = TestApp::new();
    for number in 0..51 {
        let request = json!({"id": format!("c{number}")});
        app.post("/api/conversations", &request).send().await.expect_status(201);
    }
    app.post("/api/conversations", &json!({"id": "c"}))
        .user("eve", "")
        .send()
        .await
        .expect_status(201);
    let order = json!({"id": "s", "input": "say hello", "at": "PT1H"});
    app.post("/api/schedules", &order).send().await.expect_status(201);
    put(&app, "/api/memory", &json!([{"text": "likes tea"}])).send().await.expect_status(200);
    let delete = async || app.delete("/api/me").send().await.expect_status(200).json();
    assert_eq!(
        delete().await,
        json!({"conversations": 50, "schedules": 1, "documents": 0, "isComplete": false})
    );
    assert_eq!(
        delete().await,
        json!({"conversations": 1, "schedules": 0, "documents": 1, "isComplete": true})
    );
    assert_eq!(
        delete().await,
        json!({"conversations": 0, "schedules": 0, "documents": 0, "isComplete": true})
    );
    assert_eq!(app.get_json("/api/conversations").await["items"], json!([]));
    assert_eq!(app.get_json("/api/memory").await["items"], json!([]));
    let eve = app.get("/api/conversations").user("eve", "").send().await.expect_status(200).json();
    assert_eq!(eve["items"].as_array().unwrap().len(), 1);
}
