//! Tests of every route with foreign credentials, hostile ids and deeply nested bodies.

use http::Method;
use serde_json::{Value, json};

use super::rig::Rig;

/// A conversation, with the ids that a foreign user may know.
struct Scene {
    rig: Rig,
    /// Names and values of path parameters.
    known: Vec<(&'static str, String)>,
}

/// Creates a conversation that waits for an approval, with a queued input and a file; and a
/// schedule.
async fn scene() -> Scene {
    let rig = Rig::new();
    let prompt = rig.run("use pay with {\"amount\": 500} then say done").await;
    let approval = rig.seen("/api/conversations/c").await["pendingApprovals"][0]["id"].clone();
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let late = json!({"input": "later", "mode": "followUp"});
    let input = rig.post("/api/conversations/c/prompts", &late).send().await.is(202).json();
    let added = rig
        .ask(Method::POST, "/api/conversations/c/artifacts?name=a.txt")
        .header("content-type", "text/plain")
        .body("0123456789");
    let artifact = added.send().await.is(201).header("location").to_owned();
    let order = json!({"id": "s", "input": "say hello", "at": "PT1H"});
    rig.post("/api/schedules", &order).send().await.is(201);
    rig.work().await;
    let known = vec![
        ("promptId", prompt),
        ("approvalId", text(&approval)),
        ("inputId", text(&input["inputId"])),
        ("artifactId", artifact.rsplit('/').next().unwrap().to_owned()),
    ];
    Scene { rig, known }
}

impl Scene {
    fn path(&self, template: &str) -> String {
        let id = if template.starts_with("/api/schedules/") { "s" } else { "c" };
        let known = self.known.iter().map(|(name, value)| (*name, value.as_str()));
        let path = known.chain([("id", id)]).fold(template.to_owned(), |path, (name, value)| {
            path.replace(&format!("{{{name}}}"), value)
        });
        assert!(!path.contains('{'), "{template}: add this parameter to the fixture");
        path
    }

    /// All resources as their owner reads them.
    async fn seen(&self) -> Vec<Value> {
        let mut seen = Vec::new();
        for path in [
            "/api/conversations/c",
            "/api/conversations/c/entries",
            "/api/conversations/c/inbox",
            "/api/conversations/c/artifacts",
            "/api/schedules/s",
        ] {
            seen.push(self.rig.seen(path).await);
        }
        seen
    }
}

/// A valid body for the route.
fn body(method: &Method, template: &str) -> Option<Value> {
    let end = template.rsplit('/').next().unwrap_or_default();
    Some(match (method.as_str(), end) {
        ("GET" | "DELETE", _) => return None,
        ("PATCH", "{id}") => json!({"name": "mine"}),
        ("PATCH", "{inputId}") | ("POST", "prompts") => json!({"input": "mine"}),
        ("POST", "messages") => json!({"customType": "x", "content": "mine"}),
        ("POST", "artifacts") => json!("bytes"),
        ("POST", "{approvalId}") => json!({"decision": "approve"}),
        ("POST", "abort" | "continue" | "compact" | "clear") => json!({}),
        _ => panic!("add a valid body for {method} {template}"),
    })
}

/// Methods and paths of routes that name a user's resource.
async fn routes() -> Vec<(Method, String)> {
    let described = Rig::new().seen("/api/openapi.json").await;
    let mut routes = Vec::new();
    for (path, methods) in described["paths"].as_object().unwrap() {
        // There the token is the only credential.
        if !path.contains('{') || path == "/api/approvals/{token}" {
            continue;
        }
        for method in methods.as_object().unwrap().keys() {
            if let Ok(method) = Method::from_bytes(method.to_uppercase().as_bytes()) {
                routes.push((method, path.clone()));
            }
        }
    }
    routes
}

#[tokio::test]
async fn no_route_tells_or_does_anything_for_who_does_not_own_it() {
    let routes = routes().await;
    assert!(routes.len() >= 24, "{routes:?}");
    for (method, template) in routes {
        let scene = scene().await;
        let before = scene.seen().await;
        let path = scene.path(&template);
        let ask = |tenant: &'static str, user: &'static str, roles: &'static str| {
            let asking = scene.rig.ask(method.clone(), &path).user(user, roles);
            let asking = asking.header("turnwheel-tenant", tenant);
            match body(&method, &template) {
                Some(body) => asking.json(&body),
                None => asking,
            }
        };
        for (tenant, user, roles) in [
            ("default", "eve", ""),
            ("default", "eve", "Boss of others"),
            ("other", "default", ""),
            ("other", "default", "Turnwheel.Operator, Boss"),
        ] {
            let answer = ask(tenant, user, roles).send().await;
            let told = format!("{method} {template} as {tenant}/{user} ({roles})");
            let is_operator = roles.contains("Operator") && method != Method::GET;
            let expected: &[u16] = if is_operator { &[403, 404] } else { &[404] };
            assert!(expected.contains(&answer.status.as_u16()), "{told}: {}", answer.text);
            for (_, value) in &scene.known {
                let rest = answer.text.replace(&path, "");
                assert!(!rest.contains(value.as_str()), "{told}: {}", answer.text);
            }
        }
        scene.rig.work().await;
        assert!(scene.rig.pay.made.lock().unwrap().is_empty(), "{method} {template}");
        assert_eq!(scene.seen().await, before, "{method} {template}");
        // Reads only the headers, because an event stream does not end.
        let own = ask("default", "default", "").response().await;
        assert_ne!(own.status().as_u16(), 404, "{method} {template} must exist for its owner");
    }
}

#[tokio::test]
async fn a_key_of_somebody_elses_request_repeats_nothing_of_it() {
    let rig = Rig::new();
    let body = json!({"input": "say hello"});
    let mine = rig.post("/api/prompts", &body).key("k").send().await.is(202);
    let theirs = rig.post("/api/prompts", &body).key("k").user("eve", "").send().await.is(202);
    assert_eq!(theirs.header("idempotency-replayed"), "");
    assert_ne!(mine.json()["conversationId"], theirs.json()["conversationId"]);
    let other = rig.post("/api/prompts", &json!({"input": "else"})).key("k").user("eve", "");
    other.send().await.fails(422, "idempotency-key-reused");
}

/// Ids that could act as a file path, a header or an address.
const CLIMBING: [&str; 16] = [
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
async fn no_id_is_a_path() {
    let scene = scene().await;
    let before = scene.seen().await;
    let long = "a".repeat(5_000);
    for (method, template) in routes().await {
        for id in CLIMBING.iter().copied().chain([long.as_str()]) {
            // One parameter at a time; the others name existing resources.
            for (at, _) in template.match_indices('{') {
                let (head, rest) = template.split_at(at);
                let (_, rest) = rest.split_once('}').unwrap();
                let path = scene.path(&format!("{head}HERE{rest}")).replace("HERE", id);
                let asking = scene.rig.ask(method.clone(), &path);
                let asking = match body(&method, &template) {
                    Some(body) => asking.json(&body),
                    None => asking,
                };
                let answer = asking.send().await;
                let told = format!("{method} {path}: {} {}", answer.status, answer.text);
                assert!([400, 404, 405].contains(&answer.status.as_u16()), "{told}");
                let is_plain = answer.header("set-cookie").is_empty();
                assert!(is_plain && answer.text.len() < 8_000, "{told}");
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
            let told = scene.rig.post(path, &body).send().await.fails(400, "bad-request");
            let pointer = told["errors"][0]["pointer"].as_str().unwrap().to_lowercase();
            assert!(pointer.ends_with("id"), "{told}");
        }
    }
    scene.rig.work().await;
    assert_eq!(scene.seen().await, before);
}

/// Accepted bodies are never too deep to be read again.
#[tokio::test]
async fn what_is_deep_is_refused_at_the_door_or_served_for_ever() {
    let (mut accepted, mut refused) = (0, 0);
    for depth in (110..=130).chain([1, 5_000, 100_000]) {
        let rig = Rig::new();
        let nested = format!("{}1{}", "[".repeat(depth), "]".repeat(depth));
        let post = |path: &str, body: String| {
            rig.ask(Method::POST, path).header("content-type", "application/json").body(body)
        };
        let input = format!(
            r#"{{"conversationId":"c","input":[{{"type":"text","text":"say hi","later":{nested}}}]}}"#
        );
        post("/api/prompts", input).send().await.fails(400, "bad-request");
        rig.run("say hi").await;
        let details = format!(r#"{{"customType":"x","content":"y","details":{nested}}}"#);
        let answer = post("/api/conversations/c/messages", details).send().await;
        if answer.status == 400 {
            refused += 1;
            continue;
        }
        answer.is(202);
        accepted += 1;
        rig.work().await;
        for path in ["", "/messages", "/entries", "/prompts", "/events?follow=false"] {
            rig.get(&format!("/api/conversations/c{path}")).send().await.is(200);
        }
        assert_eq!(rig.seen("/api/conversations/c").await["state"], "idle", "{depth}");
        rig.run("say more").await;
        assert_eq!(rig.seen("/api/conversations/c").await["state"], "idle", "{depth}");
    }
    assert!(accepted > 5 && refused > 5, "{accepted} accepted, {refused} refused");
}

#[tokio::test]
async fn a_link_decides_once_and_dies_with_its_conversation() {
    let rig = Rig::new();
    rig.run("use pay with {\"amount\": 500} then say done").await;
    let link = rig.link().await;
    let yes = json!({"decision": "approve"});
    for _ in 0..3 {
        rig.post(&link, &yes).send().await.is(200);
        rig.work().await;
        assert_eq!(rig.pay.made.lock().unwrap().len(), 1, "a repeated decision must not pay again");
    }
    rig.post(&link, &json!({"decision": "reject"})).send().await.fails(409, "already-decided");
    rig.delete("/api/conversations/c").send().await.is(204);
    rig.get(&link).send().await.fails(404, "not-found");
    rig.post(&link, &yes).send().await.fails(404, "not-found");
    // The id stays reserved while a link of the deleted conversation could be valid.
    let again = rig.post("/api/conversations", &json!({"id": "c"})).send().await;
    again.fails(409, "conflict");
}

#[tokio::test]
async fn a_link_outlives_a_change_of_keys_and_not_the_removal_of_its_own() {
    let mut rig = Rig::new();
    rig.run("use pay with {\"amount\": 500} then say done").await;
    let link = rig.link().await;
    let (old, new) = (vec![7; 32], vec![8; 32]);
    for (keys, status) in [(vec![new.clone()], 404), (vec![new, old], 200)] {
        let keys = turnwheel::http::token::SigningKeys::new(keys).unwrap();
        let world = turnwheel::turn::World::clone(&rig.world);
        let api = turnwheel::http::Api::new(world, turnwheel::http::api::Access::dev(), keys);
        rig.router = turnwheel::http::router(std::sync::Arc::new(api));
        rig.get(&link).send().await.is(status);
    }
}
