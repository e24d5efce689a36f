//! Admin routes of the local host, and its start-up errors.

use std::sync::Arc;

use axum::Router;
use axum::http::header::CONTENT_TYPE;
use axum::routing::post;
use serde_json::Value;
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use turnwheel::clock::SystemClock;
use turnwheel::host::{GRACE, HostError, HostOptions, LEASE, ScriptRoot, start};
use turnwheel::ids::SeededIds;
use turnwheel::server::Bounds;
use turnwheel::settings::origins::AllowedOrigins;

use super::rig::{GOOD, Replace, Rig};
use super::shelf::{SOON, Shelf};

fn listening() -> (Router, mpsc::UnboundedReceiver<Value>) {
    let (heard, envelopes) = mpsc::unbounded_channel();
    let router = Router::new().route(
        "/prompt",
        post(move |body: String| {
            heard.send(serde_json::from_str(&body).unwrap()).unwrap();
            async { ([(CONTENT_TYPE, "application/json")], GOOD) }
        }),
    );
    (router, envelopes)
}

#[tokio::test]
async fn a_message_put_through_the_admin_route_is_delivered() {
    let (router, mut envelopes) = listening();
    let rig = Rig::start(router).await;
    let text = r#"{"input":"hello"}"#;
    assert_eq!(rig.post("/admin/queues/agent-prompts/messages", text).await.0, 201);
    let envelope = tokio::time::timeout(SOON, envelopes.recv()).await.unwrap().unwrap();
    assert_eq!(envelope["Data"]["message"], serde_json::to_string(text).unwrap());
    rig.shelf.until("the message is deleted", |state| state.deletions == 1).await;

    rig.shelf.put("agent-prompts-poison", "aside").await;
    let length = |(status, body): (u16, String)| (status, serde_json::from_str::<Value>(&body));
    let (status, body) = length(rig.get("/admin/queues/agent-prompts-poison").await);
    assert_eq!((status, body.unwrap()), (200, serde_json::json!({ "length": 1 })));

    let (status, text) = rig.post("/admin/queues/other/messages", "x").await;
    assert_eq!(status, 404);
    assert!(text.contains("agent-prompts, agent-prompts-poison, agent-turns"), "{text}");
    let large = "x".repeat(64 * 1024 + 1);
    assert_eq!(rig.post("/admin/queues/agent-prompts/messages", large).await.0, 413);
    assert_eq!(rig.post("/admin/queues/agent-prompts/messages", vec![0xff, 0xfe]).await.0, 400);
}

#[tokio::test]
async fn a_function_runs_by_hand() {
    let (router, mut envelopes) = listening();
    let rig = Rig::start(router).await;
    let (status, _) = rig.post("/admin/functions/prompt", r#"{"input": "by hand"}"#).await;
    assert_eq!(status, 202);
    let envelope = tokio::time::timeout(SOON, envelopes.recv()).await.unwrap().unwrap();
    assert_eq!(envelope["Data"]["message"], "\"by hand\"");

    assert_eq!(rig.post("/admin/functions/nothing", "{}").await.0, 404);
    assert_eq!(rig.post("/admin/functions/prompt", "{").await.0, 400);
    let (status, text) = rig.post("/admin/functions/api", "{}").await;
    assert_eq!((status, text.as_str()), (400, "Call its route: /api/{*path}\n"));

    let (status, body) = rig.get("/admin/functions").await;
    let functions: Vec<Value> = serde_json::from_str(&body).unwrap();
    let mut names: Vec<&str> = functions.iter().map(|one| one["name"].as_str().unwrap()).collect();
    names.sort_unstable();
    assert_eq!(status, 200);
    assert_eq!(
        names,
        [
            "api",
            "approve",
            "health",
            "notify",
            "notify-poison",
            "prompt",
            "sweep",
            "turn",
            "turn-poison"
        ]
    );
    assert_eq!(rig.post("/admin/host/ping", "").await.0, 200);
}

#[tokio::test]
async fn a_page_of_a_stranger_is_refused() {
    let (router, _envelopes) = listening();
    let rig = Rig::start(router).await;
    let url = rig.url("/admin/queues/agent-prompts/messages");
    let strange = rig.client.post(&url).header("origin", "https://evil.example").body("x");
    assert_eq!(strange.send().await.unwrap().status(), 403);
    let rebound = rig.client.get(rig.url("/api/x")).header("host", "evil.example");
    assert_eq!(rebound.send().await.unwrap().status(), 403);
    assert_eq!(rig.shelf.change(|state| state.texts("agent-prompts").len()), 0);
}

fn options(port: u16, root: ScriptRoot) -> HostOptions {
    HostOptions {
        port,
        root,
        handler: "127.0.0.1:9".parse().unwrap(),
        queues: Arc::new(Shelf::default()),
        clock: Arc::new(SystemClock::default()),
        ids: Arc::new(SeededIds::new(7)),
        names: Vec::new(),
        allowed_origins: AllowedOrigins::default(),
        lease: LEASE,
        grace: GRACE,
        bounds: Bounds::LOCAL_HOST,
    }
}

#[tokio::test]
async fn a_taken_port_is_told_with_the_option_that_helps() {
    let taken = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = taken.local_addr().unwrap().port();
    let error = start(options(port, ScriptRoot::embedded())).await.unwrap_err();
    assert!(matches!(error, HostError::PortTaken { .. }), "{error}");
    let told = error.to_string();
    assert!(
        told.starts_with(&format!("port {port} is taken: choose another with `--port ")),
        "{told}"
    );
}

#[tokio::test]
async fn mistakes_in_all_files_are_told_at_once() {
    let mut root = ScriptRoot::embedded();
    root.replace("\"2.0\"", "\"1.0\"");
    root.functions.insert("turn".into(), "{}".into());
    root.functions.insert("host".into(), "{}".into());
    let told = start(options(0, root)).await.unwrap_err().to_string();
    for part in [
        "host.json: `version`",
        "functions/turn/function.json: has 0",
        "functions/host/function.json: `host`",
    ] {
        assert!(told.contains(part), "{told}");
    }
}
