//! Tests of bad requests: each gets a problem that names its cause.

use http::Method;
use serde_json::json;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;
use turnwheel::testing::http::openapi::{DOCUMENT, DOCUMENT_3_0};
use turnwheel::testing::server::{ServerLimits, serve};

use super::test_app::TestApp;

#[tokio::test]
async fn bad_requests_get_matching_problems() {
    let app = TestApp::new();
    app.get("/api/nothing").send().await.expect_problem(404, "not-found");
    app.get("/elsewhere").send().await.expect_problem(404, "not-found");
    let method = app.request(Method::PUT, "/api/conversations").send().await;
    assert!(method.header("allow").contains("POST"), "{:?}", method.headers);
    method.expect_problem(405, "method-not-allowed");
    let post = || app.request(Method::POST, "/api/conversations");
    post().body("{}").send().await.expect_problem(415, "unsupported-media-type");
    post()
        .header("content-type", "text/plain")
        .body("{}")
        .send()
        .await
        .expect_problem(415, "unsupported-media-type");
    let json = || post().header("content-type", "application/json");
    json().body("{").send().await.expect_problem(400, "bad-request");
    json().body("[]").send().await.expect_problem(400, "bad-request");
    json().body(vec![0xff, 0xfe]).send().await.expect_problem(400, "bad-request");
    json().body("[".repeat(100_000)).send().await.expect_problem(400, "bad-request");
    json()
        .body("x".repeat(10 * 1024 * 1024 + 1))
        .send()
        .await
        .expect_problem(413, "payload-too-large");
    json()
        .header("content-length", "99999999999")
        .body("{}")
        .send()
        .await
        .expect_problem(413, "payload-too-large");
    json().key("a b").body("{}").send().await.expect_problem(400, "bad-request");
    for (body, pointer) in [
        (json!({"agnet": "x"}), "/agnet"),
        (json!({"agent": "nobody"}), "/agent"),
        (json!({"id": "a/b"}), "/id"),
        (json!({"id": "x".repeat(129)}), "/id"),
        (json!({"settings": {"temperature": 9}}), "/settings/temperature"),
        (json!({"settings": {"loop": "round"}}), "/settings/loop"),
        (json!({"metadata": {"a": {}}}), "/metadata/a"),
    ] {
        let problem =
            app.post("/api/conversations", &body).send().await.expect_problem(400, "bad-request");
        assert_eq!(problem["errors"][0]["pointer"], pointer, "{problem}");
    }
    app.get("/api/conversations/%FF").send().await.expect_problem(400, "bad-request");
    app.get("/api/conversations?limit=0").send().await.expect_problem(400, "bad-request");
    app.get("/api/conversations?continuation=abc").send().await.expect_problem(400, "bad-request");
    for empty in [json!(""), json!([])] {
        let response = app.post("/api/prompts", &json!({"input": empty})).send().await;
        let problem = response.expect_problem(400, "bad-request");
        let detail = problem["errors"][0]["detail"].as_str().unwrap();
        assert!(detail.contains("`POST …/continue`"), "{problem}");
    }
    app.post("/api/prompts", &json!({"input": "x", "whenIdle": "hold"}))
        .send()
        .await
        .expect_problem(400, "bad-request");
    assert_eq!(
        app.get_json("/api/conversations").await["items"],
        json!([]),
        "no rejected request may be stored"
    );
}

#[tokio::test]
async fn compressed_bodies_are_refused_with_a_remedy() {
    let app = TestApp::new();
    let json = || {
        let request = app.request(Method::POST, "/api/conversations");
        request.header("content-type", "application/json")
    };
    let gzip = [0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 3];
    for request in [
        json().body(gzip.to_vec()),
        json().header("content-encoding", "gzip").body(gzip.to_vec()),
        json().header("content-encoding", "br").body("{}"),
    ] {
        let problem = request.send().await.expect_problem(415, "unsupported-media-type");
        assert!(problem["detail"].as_str().unwrap().contains("compressed"), "{problem}");
    }
    let file = app.request(Method::POST, "/api/conversations/import").body(gzip.to_vec());
    let problem = file.send().await.expect_problem(400, "bad-request");
    let detail = problem["detail"].as_str().unwrap();
    assert!(detail.contains("compressed") && detail.contains("first line"), "{problem}");
}

#[tokio::test]
async fn problem_contains_trace_id() {
    let app = TestApp::new();
    let trace = "0af7651916cd43dd8448eb211c80319c";
    let problem = app
        .get("/api/conversations/x")
        .header("traceparent", &format!("00-{trace}-b7ad6b7169203331-01"));
    let problem = problem.send().await.expect_problem(404, "not-found");
    assert_eq!(
        (problem["traceId"].as_str(), problem["instance"].as_str()),
        (Some(trace), Some("/api/conversations/x"))
    );
}

#[tokio::test]
async fn health_agents_and_openapi_are_served() {
    let app = TestApp::new();
    assert_eq!(app.get_json("/api/health").await, json!({"status": "ok"}));
    let agents = app.get_json("/api/agents").await;
    assert_eq!(agents["items"][0]["name"], "clerk");
    assert_eq!(
        (&agents["items"][0]["tools"], &agents["items"][0]["available"]),
        (&json!(["pay"]), &json!(true))
    );
    let openapi = app.get_json("/api/openapi.json").await;
    assert_eq!(openapi, *DOCUMENT);
    assert_eq!(app.get_json("/api/openapi-3.0.json").await, *DOCUMENT_3_0);
}

#[tokio::test]
async fn unknown_query_parameter_is_rejected_by_name() {
    let app = TestApp::new();
    app.run("say hello").await;
    let problem =
        app.get("/api/conversations/c?wiat=20").send().await.expect_problem(400, "bad-request");
    assert_eq!(problem["errors"][0]["pointer"], "?wiat");
    assert!(problem["detail"].as_str().unwrap().contains("`wait`"), "{problem}");
    app.get("/api/agents?limit=2").send().await.expect_problem(400, "bad-request");
    app.get("/api/conversations/c?code=key&clientId=x&wait=0").send().await.expect_status(200);
    app.get("/api/conversations?userId=bob").send().await.expect_problem(403, "forbidden");
    app.get("/api/conversations?userId=default").send().await.expect_status(200);
    app.get("/api/conversations/c?userId=bob").send().await.expect_problem(404, "not-found");
    app.get("/api/schedules?userId=bob").send().await.expect_problem(403, "forbidden");
}

#[tokio::test]
async fn repeated_query_parameter_is_rejected_by_name() {
    let app = TestApp::new();
    app.run("say hello").await;
    for query in ["wait=0&wait=20", "wait=0&w%61it=0", "wait=0&userId=default&wait="] {
        let path = format!("/api/conversations/c?{query}");
        let problem = app.get(&path).send().await.expect_problem(400, "bad-request");
        assert_eq!(problem["errors"][0]["pointer"], "?wait", "{query}: {problem}");
        let detail = "The query parameter `wait` is given twice. Send it once.";
        assert_eq!(problem["detail"], detail, "{query}");
    }
}

/// Sends the complete body before it reads the response, as most clients do.
async fn upload(address: std::net::SocketAddr, bytes: usize) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(address).await?;
    let head = format!(
        "POST /api/prompts HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {bytes}\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).await?;
    let piece = vec![b'x'; 1 << 20];
    for _ in 0..bytes >> 20 {
        stream.write_all(&piece).await?;
    }
    let mut status = [0; 12];
    stream.read_exact(&mut status).await?;
    Ok(String::from_utf8_lossy(&status).into_owned())
}

#[tokio::test]
async fn sending_client_can_read_the_413() {
    let app = TestApp::new();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let stop = CancellationToken::new();
    let server = serve(listener, app.router.clone(), ServerLimits::HANDLER, stop.clone());
    let client = async {
        for megabytes in [11, 60] {
            let status = upload(address, megabytes << 20).await;
            assert_eq!(status.unwrap(), "HTTP/1.1 413", "{megabytes} MB");
        }
        stop.cancel();
    };
    tokio::join!(server, client);
}
