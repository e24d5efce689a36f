//! Tests of every route with foreign credentials, hostile ids and deeply nested bodies.

use http::Method;
use serde_json::{Value, json};

use super::commands::desk_app;
use super::test_app::TestApp;

/// A conversation, with the ids that a foreign user may know.
struct KnownResources {
    app: TestApp,
    /// Names and values of path parameters.
    known: Vec<(&'static str, String)>,
}

/// Creates a conversation that waits for an approval, with a queued input and a file; and a
/// schedule.
async fn create_resources() -> KnownResources {
    let (app, _) = desk_app();
    let prompt = app.run("use pay with {\"amount\": 500} then say done").await;
    let approval = app.get_json("/api/conversations/c").await["pendingApprovals"][0]["id"].clone();
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let late = json!({"input": "later", "mode": "followUp"});
    let input =
        app.post("/api/conversations/c/prompts", &late).send().await.expect_status(202).json();
    let added = app
        .request(Method::POST, "/api/conversations/c/artifacts?name=a.txt")
        .header("content-type", "text/plain")
        .body("0123456789");
    let artifact = added.send().await.expect_status(201).header("location").to_owned();
    let order = json!({"id": "s", "input": "say hello", "at": "PT1H"});
    app.post("/api/schedules", &order).send().await.expect_status(201);
    let notes = json!({"items": [{"id": "n", "text": "likes tea"}]});
    app.request(Method::PUT, "/api/memory").json(&notes).send().await.expect_status(200);
    let skill = json!({"description": "About tea.", "instructions": "Make tea."});
    app.request(Method::PUT, "/api/skills/greet").json(&skill).send().await.expect_status(200);
    app.work().await;
    let entries = app.get_json("/api/conversations/c/entries").await;
    let frame = entries["items"].as_array().unwrap().iter().find(|it| it["type"] == "frame");
    let frame = frame.unwrap();
    let known = vec![
        ("entryId", text(&entries["items"][0]["id"])),
        ("promptId", prompt),
        ("approvalId", text(&approval)),
        ("inputId", text(&input["inputId"])),
        ("artifactId", artifact.rsplit('/').next().unwrap().to_owned()),
        ("sha256", text(&frame["document"])),
        ("name", "greet".to_owned()),
    ];
    KnownResources { app, known }
}

impl KnownResources {
    fn path(&self, template: &str) -> String {
        let id = match template.split('/').nth(2) {
            Some("schedules") => "s",
            Some("memory") => "n",
            _ => "c",
        };
        let known = self.known.iter().map(|(name, value)| (*name, value.as_str()));
        let path = known.chain([("id", id)]).fold(template.to_owned(), |path, (name, value)| {
            path.replace(&format!("{{{name}}}"), value)
        });
        assert!(!path.contains('{'), "{template}: add this parameter to the fixture");
        path
    }

    /// All resources as their owner reads them.
    async fn owner_view(&self) -> Vec<Value> {
        let mut views = Vec::new();
        for path in [
            "/api/conversations/c",
            "/api/conversations/c/entries",
            "/api/conversations/c/inbox",
            "/api/conversations/c/artifacts",
            "/api/schedules/s",
            "/api/memory",
            "/api/skills/greet",
        ] {
            views.push(self.app.get_json(path).await);
        }
        views
    }
}

/// A valid body for the route.
fn valid_body(method: &Method, template: &str) -> Option<Value> {
    let end = template.rsplit('/').next().unwrap_or_default();
    Some(match (method.as_str(), end) {
        ("GET" | "DELETE", _) => return None,
        ("PATCH", "{id}") => json!({"name": "mine"}),
        ("PATCH", "{inputId}") | ("POST", "prompts") => json!({"input": "mine"}),
        ("POST", "messages") => json!({"customType": "x", "content": "mine"}),
        ("POST", "artifacts") => json!("bytes"),
        ("POST", "{approvalId}") => json!({"decision": "approve"}),
        ("POST", "{name}") => json!({"args": "mine"}),
        ("POST", "leaf") => json!({"entryId": "root"}),
        ("POST", "fork") => json!({"entryId": "0a1b2c3d", "position": "at"}),
        ("PUT", "label") => json!({"label": "mine"}),
        ("POST", "import") => {
            json!({"input": "mine", "source": "schedule", "output": [{"type": "text", "content": "mine"}]})
        }
        ("POST", "bash") => json!({"command": "ls", "output": "mine"}),
        ("POST", "abort" | "continue" | "compact" | "clear") => json!({}),
        _ => panic!("add a valid body for {method} {template}"),
    })
}

/// Methods and paths of routes that name a user's resource.
async fn resource_routes() -> Vec<(Method, String)> {
    let described = TestApp::new().get_json("/api/openapi.json").await;
    let mut routes = Vec::new();
    for (path, methods) in described["paths"].as_object().unwrap() {
        // There the token is the only credential.
        if !path.contains('{') || path == "/api/approvals/{token}" {
            continue;
        }
        for method in methods.as_object().unwrap().keys() {
            // Agents are the same for all callers.
            if path == "/api/agents/{name}" {
                continue;
            }
            // Creates a skill of the caller, whatever the skills of others.
            if (method.as_str(), path.as_str()) == ("put", "/api/skills/{name}") {
                continue;
            }
            if let Ok(method) = Method::from_bytes(method.to_uppercase().as_bytes()) {
                routes.push((method, path.clone()));
            }
        }
    }
    routes
}

#[tokio::test]
async fn routes_reject_callers_without_ownership() {
    let routes = resource_routes().await;
    assert!(routes.len() >= 24, "{routes:?}");
    for (method, template) in routes {
        let resources = create_resources().await;
        let before = resources.owner_view().await;
        let path = resources.path(&template);
        let request = |tenant: &'static str, user: &'static str, roles: &'static str| {
            let builder = resources.app.request(method.clone(), &path).user(user, roles);
            let builder = builder.header("turnwheel-tenant", tenant);
            match valid_body(&method, &template) {
                Some(body) => builder.json(&body),
                None => builder,
            }
        };
        for (tenant, user, roles) in [
            ("default", "eve", ""),
            ("default", "eve", "Boss of others"),
            ("other", "default", ""),
            ("other", "default", "Turnwheel.Operator,Boss"),
        ] {
            let response = request(tenant, user, roles).send().await;
            let context = format!("{method} {template} as {tenant}/{user} ({roles})");
            let is_operator = roles.contains("Operator") && method != Method::GET;
            let expected: &[u16] = if is_operator { &[403, 404] } else { &[404] };
            assert!(expected.contains(&response.status.as_u16()), "{context}: {}", response.text);
            for (_, value) in &resources.known {
                let rest = response.text.replace(&path, "");
                assert!(!rest.contains(value.as_str()), "{context}: {}", response.text);
            }
        }
        resources.app.work().await;
        assert!(resources.app.pay.payments.lock().unwrap().is_empty(), "{method} {template}");
        assert_eq!(resources.owner_view().await, before, "{method} {template}");
        // Reads only the headers, because an event stream does not end.
        let own = request("default", "default", "").send_streaming().await;
        assert_ne!(own.status().as_u16(), 404, "{method} {template} must exist for its owner");
    }
}

#[tokio::test]
async fn idempotency_key_is_scoped_to_its_owner() {
    let app = TestApp::new();
    let body = json!({"input": "say hello"});
    let mine = app.post("/api/prompts", &body).key("k").send().await.expect_status(202);
    let theirs =
        app.post("/api/prompts", &body).key("k").user("eve", "").send().await.expect_status(202);
    assert_eq!(theirs.header("idempotency-replayed"), "");
    assert_ne!(mine.json()["conversationId"], theirs.json()["conversationId"]);
    let other = app.post("/api/prompts", &json!({"input": "else"})).key("k").user("eve", "");
    other.send().await.expect_problem(422, "idempotency-key-reused");
}

/// Ids that could act as a file path, a header or an address.
const HOSTILE_IDS: [&str; 16] = [
    "..",
    "%2e%2e",
    "..%2f..%2fc",
    "%2e%2e%2f%2e%2e%2fetc%2fpasswd",
    "%2Fetc%2Fpasswd",
    "..%5c..%5cc",
    "c%2fc",
    "c%00",
    "%00",
    "c%0d%0aSet-Cookie:%20a=b",
    "%20c",
    "c;a=b",
    "%c0%ae%c0%ae",
    "%ef%bc%8e%ef%bc%8e",
    "file:c",
    "%25%32%65",
];

#[tokio::test]
async fn hostile_ids_are_rejected() {
    let resources = create_resources().await;
    let before = resources.owner_view().await;
    let long = "a".repeat(5_000);
    for (method, template) in resource_routes().await {
        for id in HOSTILE_IDS.iter().copied().chain([long.as_str()]) {
            // One parameter at a time; the others name existing resources.
            for (at, _) in template.match_indices('{') {
                let (head, rest) = template.split_at(at);
                let (_, rest) = rest.split_once('}').unwrap();
                let path = resources.path(&format!("{head}HERE{rest}")).replace("HERE", id);
                let request = resources.app.request(method.clone(), &path);
                let request = match valid_body(&method, &template) {
                    Some(body) => request.json(&body),
                    None => request,
                };
                let response = request.send().await;
                let context = format!("{method} {path}: {} {}", response.status, response.text);
                assert!([400, 404, 405].contains(&response.status.as_u16()), "{context}");
                let is_plain = response.header("set-cookie").is_empty();
                assert!(is_plain && response.text.len() < 8_000, "{context}");
            }
        }
    }
    let ids = ["..", "../c", "/etc/passwd", "a/b", "a\\b", "a\0", "a\r\nb", " c", "\u{ff0e}", "é"];
    for id in ids {
        for (path, body) in [
            ("/api/conversations", json!({"id": id})),
            ("/api/prompts", json!({"conversationId": id, "input": "hi"})),
            ("/api/schedules", json!({"id": id, "input": "hi", "at": "PT1H"})),
            ("/api/schedules", json!({"conversationId": id, "input": "hi", "at": "PT1H"})),
        ] {
            let context =
                resources.app.post(path, &body).send().await.expect_problem(400, "bad-request");
            let pointer = context["errors"][0]["pointer"].as_str().unwrap().to_lowercase();
            assert!(pointer.ends_with("id"), "{context}");
        }
    }
    resources.app.work().await;
    assert_eq!(resources.owner_view().await, before);
}

/// Accepted bodies are never too deep to be read again.
#[tokio::test]
async fn deep_json_is_rejected_or_stays_readable() {
    let (mut accepted, mut refused) = (0, 0);
    for depth in (100..=130).chain([1, 5_000, 100_000]) {
        let app = TestApp::new();
        let nested = format!("{}1{}", "[".repeat(depth), "]".repeat(depth));
        let post = |path: &str, body: String| {
            app.request(Method::POST, path).header("content-type", "application/json").body(body)
        };
        let input = format!(
            r#"{{"conversationId":"c","input":[{{"type":"text","text":"say hi","later":{nested}}}]}}"#
        );
        post("/api/prompts", input).send().await.expect_problem(400, "bad-request");
        app.run("say hi").await;
        let details = format!(r#"{{"customType":"x","content":"y","details":{nested}}}"#);
        let response = post("/api/conversations/c/messages", details).send().await;
        if response.status == 400 {
            refused += 1;
            continue;
        }
        response.expect_status(202);
        accepted += 1;
        app.work().await;
        for path in ["", "/messages", "/entries", "/prompts", "/events?follow=false"] {
            app.get(&format!("/api/conversations/c{path}")).send().await.expect_status(200);
        }
        assert_eq!(app.get_json("/api/conversations/c").await["state"], "idle", "{depth}");
        app.run("say more").await;
        assert_eq!(app.get_json("/api/conversations/c").await["state"], "idle", "{depth}");
    }
    assert!(accepted > 5 && refused > 5, "{accepted} accepted, {refused} refused");
}

#[tokio::test]
async fn approval_link_decides_once_until_deletion() {
    let app = TestApp::new();
    app.run("use pay with {\"amount\": 500} then say done").await;
    let link = app.approval_link().await;
    let yes = json!({"decision": "approve"});
    for _ in 0..3 {
        app.post(&link, &yes).send().await.expect_status(200);
        app.work().await;
        assert_eq!(
            app.pay.payments.lock().unwrap().len(),
            1,
            "a repeated decision must not pay again"
        );
    }
    app.post(&link, &json!({"decision": "reject"}))
        .send()
        .await
        .expect_problem(409, "already-decided");
    app.delete("/api/conversations/c").send().await.expect_status(204);
    app.get(&link).send().await.expect_problem(404, "not-found");
    app.post(&link, &yes).send().await.expect_problem(404, "not-found");
    // The id stays reserved while a link of the deleted conversation could be valid.
    let again = app.post("/api/conversations", &json!({"id": "c"})).send().await;
    again.expect_problem(409, "conflict");
}

#[tokio::test]
async fn approval_link_survives_signing_key_rotation() {
    let mut app = TestApp::new();
    app.run("use pay with {\"amount\": 500} then say done").await;
    let link = app.approval_link().await;
    let (old, new) = (vec![7; 32], vec![8; 32]);
    for (keys, status) in [(vec![new.clone()], 404), (vec![new, old], 200)] {
        let keys = turnwheel::testing::http::approval_token::SigningKeys::new(keys).unwrap();
        let services = turnwheel::testing::services::Services::clone(&app.services);
        let api = turnwheel::testing::http::api::Api::new(
            services,
            turnwheel::testing::http::auth::Access::dev(),
            keys,
        );
        app.router = turnwheel::testing::http::router(std::sync::Arc::new(api));
        app.get(&link).send().await.expect_status(status);
    }
}
