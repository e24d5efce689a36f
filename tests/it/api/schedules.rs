//! Tests of schedules over HTTP: creation, reading, firing, cancellation and ownership.

use std::time::{Duration, Instant};

use reqwest::Method;
use serde_json::{Value, json};

use super::test_app::{TestApp, respond_call, respond_text};

const ANN: [(&str, &str); 2] = [("turnwheel-tenant", "acme"), ("turnwheel-user", "ann")];
const BOB: [(&str, &str); 2] = [("turnwheel-tenant", "acme"), ("turnwheel-user", "bob")];
const OPERATOR: [(&str, &str); 3] = [
    ("turnwheel-tenant", "acme"),
    ("turnwheel-user", "olga"),
    ("turnwheel-roles", "Turnwheel.Operator"),
];
const FIRE_TIMEOUT: Duration = Duration::from_mins(2);

fn with_key<'a>(who: &[(&'a str, &'a str)], key: &'a str) -> Vec<(&'a str, &'a str)> {
    who.iter().copied().chain([("idempotency-key", key)]).collect()
}

/// Waits until the schedule has fired, and returns it.
async fn wait_until_fired(app: &TestApp, id: &str) -> Value {
    let deadline = Instant::now() + FIRE_TIMEOUT;
    loop {
        let schedule = app.get(&format!("/api/schedules/{id}"), &ANN).await;
        if schedule.body["lastFiredAt"].is_string() {
            return schedule.body;
        }
        assert!(Instant::now() < deadline, "the schedule did not fire: {}", schedule.body);
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test]
async fn fired_schedule_names_its_conversation() {
    let app = TestApp::start([respond_text("Good morning")]).await;
    let body = json!({
        "input": "Say good morning", "at": "PT1S", "every": "0 9 * * MON-FRI", "timeZone": "Europe/Berlin",
        "metadata": {"topic": "greeting"},
    });
    let made = app.post("/api/schedules", &with_key(&ANN, "morning"), &body).await;
    assert_eq!((made.status, made.is_replayed()), (201, false), "{}", made.body);
    let again = app.post("/api/schedules", &with_key(&ANN, "morning"), &body).await;
    assert_eq!((again.status, again.is_replayed(), &again.body), (201, true, &made.body));
    let other = json!({"input": "Something else", "at": "PT1S"});
    let refused = app.post("/api/schedules", &with_key(&ANN, "morning"), &other).await;
    assert_eq!((refused.status, refused.problem()), (422, "idempotency-key-reused"));
    let next = made.body["nextAt"].as_str().unwrap();
    assert!(next.contains("T07:00") || next.contains("T08:00"), "9:00 in Berlin: {next}");
    let id = made.body["id"].as_str().unwrap();
    let location = made.headers["location"].to_str().unwrap();
    assert_eq!(location, format!("/api/schedules/{id}"));
    assert_eq!(app.get(location, &ANN).await.body, made.body);

    let once = json!({"id": "once", "input": "Say good morning", "at": "PT1S"});
    assert_eq!(app.post("/api/schedules", &ANN, &once).await.status, 201);
    let fired = wait_until_fired(&app, "once").await;
    assert!(fired["nextAt"].is_null() && fired["lastProblem"].is_null(), "{fired}");
    let (conversation, prompt) = (&fired["lastConversationId"], &fired["lastPromptId"]);
    let path = format!(
        "/api/conversations/{}/prompts/{}?wait=60",
        conversation.as_str().unwrap(),
        prompt.as_str().unwrap()
    );
    let prompt = app.get(&path, &ANN).await;
    assert_eq!(prompt.body["state"], "completed", "{}", prompt.body);
    assert_eq!(prompt.body["output"][0]["content"], "Good morning");
    app.service.stop().await;
}

#[tokio::test]
async fn schedule_belongs_to_owner_and_operator_reads() {
    let app = TestApp::start([]).await;
    for who in [&ANN, &BOB] {
        for id in ["a", "b"] {
            let body = json!({"id": id, "every": "P1D", "input": "Look"});
            let made = app.post("/api/schedules", who, &body).await;
            assert_eq!(made.status, 201, "{}", made.body);
        }
    }
    let taken = json!({"id": "a", "every": "P2D"});
    let taken = app.post("/api/schedules", &ANN, &taken).await;
    assert_eq!((taken.status, taken.problem()), (409, "conflict"));
    let delete = |id: &str| (Method::DELETE, format!("/api/schedules/{id}"));
    let (method, path) = delete("a");
    let refused = app.send((method.clone(), &path), &OPERATOR, None).await;
    assert_eq!((refused.status, refused.problem()), (403, "forbidden"));
    let refused = app.post("/api/schedules", &OPERATOR, &json!({"every": "P1D"})).await;
    assert_eq!((refused.status, refused.problem()), (403, "forbidden"));
    assert_eq!(app.send((method.clone(), &path), &ANN, None).await.status, 204);
    let gone = app.send((method, &path), &ANN, None).await;
    assert_eq!((gone.status, gone.problem()), (404, "not-found"));
    assert_eq!(app.get("/api/schedules/a", &BOB).await.status, 200);

    let ids = |body: &Value| -> Vec<String> {
        let items = body["items"].as_array().unwrap().iter();
        items.map(|item| format!("{}/{}", item["userId"], item["id"]).replace('"', "")).collect()
    };
    let listed = app.get("/api/schedules", &ANN).await;
    assert_eq!(ids(&listed.body), ["ann/b"]);
    let mut of_all = Vec::new();
    let mut path = "/api/schedules?limit=2".to_owned();
    loop {
        let page = app.get(&path, &OPERATOR).await;
        of_all.extend(ids(&page.body));
        let Some(next) = page.body["continuation"].as_str() else { break };
        path = format!("/api/schedules?limit=2&continuation={next}");
    }
    of_all.sort();
    assert_eq!(of_all, ["ann/b", "bob/a", "bob/b"]);
    assert_eq!(app.get("/api/schedules/b", &OPERATOR).await.status, 404);
    assert_eq!(app.get("/api/schedules/b?userId=bob", &OPERATOR).await.status, 200);
    let of_bob = app.get("/api/schedules?userId=bob", &OPERATOR).await;
    assert_eq!(ids(&of_bob.body).len(), 2);
    app.service.stop().await;
}

#[tokio::test]
async fn invalid_schedule_names_the_member() {
    let app = TestApp::start([]).await;
    let body = json!({"at": "tomorrow", "every": "often", "timeZone": "Atlantis", "agent": "nobody", "mode": "followUp"});
    let refused = app.post("/api/schedules", &ANN, &body).await;
    assert_eq!((refused.status, refused.problem()), (400, "bad-request"));
    let errors = refused.body["errors"].as_array().unwrap();
    let pointers: Vec<&str> =
        errors.iter().map(|error| error["pointer"].as_str().unwrap()).collect();
    assert_eq!(pointers, ["/timeZone", "/at", "/every", "/agent"]);
    for (body, pointer) in [
        (json!({"every": "P1D", "cron": "x"}), "/cron"),
        (json!({"at": "2001-01-01T00:00:00Z"}), "/at"),
        (json!({"every": "P1D", "mode": "steer"}), "/input"),
        (json!({"every": "P1D", "conversationId": "nowhere"}), "/conversationId"),
        (
            json!({"every": "P1D", "input": [{"type": "image", "data": "", "mimeType": "image/png"}]}),
            "/input",
        ),
    ] {
        let refused = app.post("/api/schedules", &ANN, &body).await;
        assert_eq!(refused.status, 400, "{body}");
        assert_eq!(refused.body["errors"][0]["pointer"], pointer, "{}", refused.body);
    }
    assert_eq!(app.get("/api/schedules", &ANN).await.body["items"], json!([]));
    app.service.stop().await;
}

#[tokio::test]
async fn agent_creates_schedule_for_itself() {
    let arguments = json!({"action": "create", "input": "Remind Ann of the tea", "at": "PT1S"});
    let app = TestApp::start([
        respond_call("schedule", arguments),
        respond_text("I will"),
        respond_text("The tea is ready"),
    ])
    .await;
    let body = json!({"conversationId": "c", "input": "Remind me of the tea"});
    let response = app.post("/api/prompts?wait=60", &ANN, &body).await;
    assert_eq!(response.body["state"], "completed", "{}", response.body);
    let listed = app.get("/api/schedules", &ANN).await;
    let made = &listed.body["items"][0];
    assert_eq!((&made["conversationId"], &made["agent"]), (&json!("c"), &json!("helper")));
    let fired = wait_until_fired(&app, made["id"].as_str().unwrap()).await;
    let path =
        format!("/api/conversations/c/prompts/{}?wait=60", fired["lastPromptId"].as_str().unwrap());
    let prompt = app.get(&path, &ANN).await;
    assert_eq!(prompt.body["output"][0]["content"], "The tea is ready", "{}", prompt.body);
    app.service.stop().await;
}
