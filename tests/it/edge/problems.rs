//! Tests of bad requests: each gets a problem that names its cause.

use http::Method;
use serde_json::json;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;
use turnwheel::server::{Bounds, serve};

use super::rig::Rig;

#[tokio::test]
async fn every_wrong_request_is_told_what_is_wrong() {
    let rig = Rig::new();
    rig.get("/api/nothing").send().await.fails(404, "not-found");
    rig.get("/elsewhere").send().await.fails(404, "not-found");
    let method = rig.ask(Method::PUT, "/api/conversations").send().await;
    assert!(method.header("allow").contains("POST"), "{:?}", method.headers);
    method.fails(405, "method-not-allowed");
    let post = || rig.ask(Method::POST, "/api/conversations");
    post().body("{}").send().await.fails(415, "unsupported-media-type");
    post()
        .header("content-type", "text/plain")
        .body("{}")
        .send()
        .await
        .fails(415, "unsupported-media-type");
    let json = || post().header("content-type", "application/json");
    json().body("{").send().await.fails(400, "bad-request");
    json().body("[]").send().await.fails(400, "bad-request");
    json().body(vec![0xff, 0xfe]).send().await.fails(400, "bad-request");
    json().body("[".repeat(100_000)).send().await.fails(400, "bad-request");
    json().body("x".repeat(10 * 1024 * 1024 + 1)).send().await.fails(413, "payload-too-large");
    json()
        .header("content-length", "99999999999")
        .body("{}")
        .send()
        .await
        .fails(413, "payload-too-large");
    json().key("a b").body("{}").send().await.fails(400, "bad-request");
    for (body, pointer) in [
        (json!({"agnet": "x"}), "/agnet"),
        (json!({"agent": "nobody"}), "/agent"),
        (json!({"id": "a/b"}), "/id"),
        (json!({"id": "x".repeat(129)}), "/id"),
        (json!({"settings": {"temperature": 9}}), "/settings/temperature"),
        (json!({"settings": {"loop": "round"}}), "/settings/loop"),
        (json!({"metadata": {"a": {}}}), "/metadata/a"),
    ] {
        let told = rig.post("/api/conversations", &body).send().await.fails(400, "bad-request");
        assert_eq!(told["errors"][0]["pointer"], pointer, "{told}");
    }
    rig.get("/api/conversations/%FF").send().await.fails(400, "bad-request");
    rig.get("/api/conversations?limit=0").send().await.fails(400, "bad-request");
    rig.get("/api/conversations?continuation=abc").send().await.fails(400, "bad-request");
    rig.post("/api/prompts", &json!({"input": ""})).send().await.fails(400, "bad-request");
    rig.post("/api/prompts", &json!({"input": "x", "whenIdle": "hold"}))
        .send()
        .await
        .fails(400, "bad-request");
    assert_eq!(
        rig.seen("/api/conversations").await["items"],
        json!([]),
        "no rejected request may be stored"
    );
}

#[tokio::test]
async fn a_problem_names_the_trace_of_its_request() {
    let rig = Rig::new();
    let trace = "0af7651916cd43dd8448eb211c80319c";
    let told = rig
        .get("/api/conversations/x")
        .header("traceparent", &format!("00-{trace}-b7ad6b7169203331-01"));
    let told = told.send().await.fails(404, "not-found");
    assert_eq!(
        (told["traceId"].as_str(), told["instance"].as_str()),
        (Some(trace), Some("/api/conversations/x"))
    );
}

#[tokio::test]
async fn the_service_describes_itself() {
    let rig = Rig::new();
    assert_eq!(rig.seen("/api/health").await, json!({"status": "ok"}));
    let agents = rig.seen("/api/agents").await;
    assert_eq!(agents["items"][0]["name"], "clerk");
    assert_eq!(
        (&agents["items"][0]["tools"], &agents["items"][0]["available"]),
        (&json!(["pay"]), &json!(true))
    );
    let openapi = rig.seen("/api/openapi.json").await;
    assert_eq!(openapi["openapi"], "3.1.0");
}

#[tokio::test]
async fn unknown_query_parameters_are_refused_by_name() {
    let rig = Rig::new();
    rig.run("say hello").await;
    let told = rig.get("/api/conversations/c?wiat=20").send().await.fails(400, "bad-request");
    assert_eq!(told["errors"][0]["pointer"], "?wiat");
    assert!(told["detail"].as_str().unwrap().contains("`wait`"), "{told}");
    rig.get("/api/agents?limit=2").send().await.fails(400, "bad-request");
    rig.get("/api/conversations/c?code=key&clientId=x&wait=0").send().await.is(200);
    rig.get("/api/conversations?userId=bob").send().await.fails(403, "forbidden");
    rig.get("/api/conversations?userId=default").send().await.is(200);
    rig.get("/api/conversations/c?userId=bob").send().await.fails(404, "not-found");
    rig.get("/api/schedules?userId=bob").send().await.fails(403, "forbidden");
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
async fn client_that_still_sends_can_read_the_413() {
    let rig = Rig::new();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let stop = CancellationToken::new();
    let server = serve(listener, rig.router.clone(), Bounds::HANDLER, stop.clone());
    let client = async {
        for megabytes in [11, 60] {
            let status = upload(address, megabytes << 20).await;
            assert_eq!(status.unwrap(), "HTTP/1.1 413", "{megabytes} MB");
        }
        stop.cancel();
    };
    tokio::join!(server, client);
}
