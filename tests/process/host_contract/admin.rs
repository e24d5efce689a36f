//! Admin routes of the local host, and its start-up errors.

use std::sync::Arc;

use axum::Router;
use axum::http::header::CONTENT_TYPE;
use axum::routing::post;
use serde_json::Value;
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use turnwheel::App;
use turnwheel::testing::clock::SystemClock;
use turnwheel::testing::host::{
    GRACE, HostError, HostOptions, IDLE_MAX, JsonReader, LEASE, ScriptRoot, TimerStatuses, start,
};
use turnwheel::testing::ids::SeededIds;
use turnwheel::testing::server::ServerLimits;
use turnwheel::testing::settings::origins::AllowedOrigins;

use super::recording_queue::{RecordingQueue, TIMEOUT};
use super::test_host::{EditHostJson, OK_RESPONSE, TestHost};
use crate::support::service::Service;

fn prompt_handler() -> (Router, mpsc::UnboundedReceiver<Value>) {
    let (sender, envelopes) = mpsc::unbounded_channel();
    let router = Router::new().route(
        "/prompt",
        post(move |body: String| {
            sender.send(serde_json::from_str(&body).unwrap()).unwrap();
            async { ([(CONTENT_TYPE, "application/json")], OK_RESPONSE) }
        }),
    );
    (router, envelopes)
}

#[tokio::test]
async fn admin_route_enqueues_and_delivers_message() {
    let (router, mut envelopes) = prompt_handler();
    let host = TestHost::start(router).await;
    let text = r#"{"input":"hello"}"#;
    assert_eq!(host.post("/admin/queues/agent-prompts/messages", text).await.0, 201);
    let envelope = tokio::time::timeout(TIMEOUT, envelopes.recv()).await.unwrap().unwrap();
    assert_eq!(envelope["Data"]["message"], serde_json::to_string(text).unwrap());
    host.queue.until("the message is deleted", |state| state.deletions == 1).await;

    host.queue.put("agent-prompts-poison", "aside").await;
    let length = |(status, body): (u16, String)| (status, serde_json::from_str::<Value>(&body));
    let (status, body) = length(host.get("/admin/queues/agent-prompts-poison").await);
    assert_eq!((status, body.unwrap()), (200, serde_json::json!({ "length": 1 })));

    let (status, text) = host.post("/admin/queues/other/messages", "x").await;
    assert_eq!(status, 404);
    assert!(text.contains("agent-prompts, agent-prompts-poison, agent-turns"), "{text}");
    let large = "x".repeat(64 * 1024 + 1);
    assert_eq!(host.post("/admin/queues/agent-prompts/messages", large).await.0, 413);
    assert_eq!(host.post("/admin/queues/agent-prompts/messages", vec![0xff, 0xfe]).await.0, 400);
}

#[tokio::test]
async fn function_runs_through_admin_route() {
    let (router, mut envelopes) = prompt_handler();
    let host = TestHost::start(router).await;
    let (status, _) = host.post("/admin/functions/prompt", r#"{"input": "by hand"}"#).await;
    assert_eq!(status, 202);
    let envelope = tokio::time::timeout(TIMEOUT, envelopes.recv()).await.unwrap().unwrap();
    assert_eq!(envelope["Data"]["message"], "\"by hand\"");

    assert_eq!(host.post("/admin/functions/nothing", "{}").await.0, 404);
    assert_eq!(host.post("/admin/functions/prompt", "{").await.0, 400);
    // The Functions host accepts these and starts nothing.
    for body in ["{}", r#"{"input":null}"#] {
        assert_eq!(host.post("/admin/functions/prompt", body).await.0, 400, "{body}");
    }
    let (status, text) = host.post("/admin/functions/web", "{}").await;
    assert_eq!((status, text.as_str()), (400, "Call its route: /api/{*path}\n"));

    let (status, body) = host.get("/admin/functions").await;
    let functions: Vec<Value> = serde_json::from_str(&body).unwrap();
    let mut names: Vec<&str> = functions.iter().map(|one| one["name"].as_str().unwrap()).collect();
    names.sort_unstable();
    assert_eq!(status, 200);
    assert_eq!(
        names,
        [
            "approve",
            "console",
            "health",
            "notify",
            "notify-poison",
            "openapi",
            "openapi-3-0",
            "preflight",
            "prompt",
            "sweep",
            "turn",
            "turn-poison",
            "web"
        ]
    );
    assert_eq!(host.post("/admin/host/ping", "").await.0, 200);
}

/// As `curl --data-binary @message.json` sends a file of Windows PowerShell.
#[tokio::test]
async fn byte_order_mark_is_skipped_and_utf16_is_named() {
    let (router, mut envelopes) = prompt_handler();
    let host = TestHost::start(router).await;
    for (path, json, text) in [
        ("/admin/queues/agent-prompts/messages", r#"{"input":"hello"}"#, r#"{"input":"hello"}"#),
        ("/admin/functions/prompt", r#"{"input": "by hand"}"#, "by hand"),
    ] {
        let (status, response) = host.post(path, format!("\u{feff}{json}")).await;
        assert!((200..300).contains(&status), "{path}: {status} {response}");
        let envelope = tokio::time::timeout(TIMEOUT, envelopes.recv()).await.unwrap().unwrap();
        assert_eq!(envelope["Data"]["message"], serde_json::to_string(text).unwrap(), "{path}");
        let utf16: Vec<u8> = json.encode_utf16().flat_map(u16::to_le_bytes).collect();
        let (status, response) = host.post(path, utf16).await;
        assert_eq!((status, response.contains("is UTF-16 text")), (400, true), "{response}");
    }
}

#[tokio::test]
async fn foreign_origin_and_host_are_rejected() {
    let (router, _envelopes) = prompt_handler();
    let host = TestHost::start(router).await;
    let url = host.url("/admin/queues/agent-prompts/messages");
    let foreign = host.client.post(&url).header("origin", "https://evil.example").body("x");
    assert_eq!(foreign.send().await.unwrap().status(), 403);
    let rebound = host.client.get(host.url("/api/x")).header("host", "evil.example");
    assert_eq!(rebound.send().await.unwrap().status(), 403);
    assert_eq!(host.queue.change(|state| state.texts("agent-prompts").len()), 0);
}

/// The public address of `dev` behind a tunnel.
#[tokio::test]
async fn dev_accepts_the_host_of_its_public_url() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("agents")).unwrap();
    let settings = [("TURNWHEEL_PUBLIC_URL", "https://agents.example/")];
    let service = Service::start(App::new(), folder.path(), &settings).await;
    for (host, status) in [("agents.example", 200), ("localhost", 200), ("evil.example", 403)] {
        let request = service.client.get(format!("{}/api/openapi.json", service.base));
        let answer = request.header("host", host).send().await.unwrap();
        assert_eq!(answer.status(), status, "{host}");
    }
    service.stop().await;
}

fn options(port: u16, root: ScriptRoot) -> HostOptions {
    HostOptions {
        port,
        port_wait: std::time::Duration::ZERO,
        root,
        handler: "127.0.0.1:9".parse().unwrap(),
        queues: Arc::new(RecordingQueue::default()),
        clock: Arc::new(SystemClock::default()),
        ids: Arc::new(SeededIds::new(7)),
        keys: None,
        timers: TimerStatuses::default(),
        json: JsonReader::default(),
        host_names: Vec::new(),
        allowed_origins: AllowedOrigins::default(),
        lease: LEASE,
        idle_max: IDLE_MAX,
        grace: GRACE,
        bounds: ServerLimits::LOCAL_HOST,
    }
}

#[tokio::test]
async fn taken_port_error_names_the_option() {
    let taken = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = taken.local_addr().unwrap().port();
    let error = start(options(port, ScriptRoot::embedded())).await.unwrap_err();
    assert!(matches!(error, HostError::PortTaken { .. }), "{error}");
    let error_text = error.to_string();
    assert!(
        error_text.starts_with(&format!("port {port} is taken: choose another with `--port ")),
        "{error_text}"
    );
}

#[tokio::test]
async fn errors_of_all_files_are_reported_together() {
    let mut root = ScriptRoot::embedded();
    root.replace("\"2.0\"", "\"1.0\"");
    root.functions.insert("turn".into(), "{}".into());
    root.functions.insert("host".into(), "{}".into());
    let error_text = start(options(0, root)).await.unwrap_err().to_string();
    for part in [
        "host.json: `version`",
        "functions/turn/function.json: has 0",
        "functions/host/function.json: `host`",
    ] {
        assert!(error_text.contains(part), "{error_text}");
    }
}
