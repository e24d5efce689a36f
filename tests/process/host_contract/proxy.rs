//! HTTP triggers: requests below the prefix pass to the handler, and responses back, unbuffered.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::http::{HeaderMap, StatusCode};
use axum::response::IntoResponse;
use axum::routing::{any, get, post};
use bytes::Bytes;
use futures_util::{StreamExt, stream};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::task::JoinSet;

use super::recording_queue::TIMEOUT;
use super::test_host::{EditHostJson, TestHost, TestHostConfig};

async fn within_timeout<T>(waiting: impl Future<Output = T>) -> T {
    tokio::time::timeout(TIMEOUT, waiting).await.expect("timed out")
}

/// Sends one event at once, and the next after `proceed` is notified.
fn event_body(proceed: Arc<Notify>, guard: Option<oneshot::Sender<()>>) -> Body {
    let parts = stream::unfold((0, proceed, guard), async |(number, proceed, guard)| {
        match number {
            0 => {}
            1 => proceed.notified().await,
            _ => return None,
        }
        let event = Bytes::from(format!("data: {number}\n\n"));
        Some((Ok::<_, Infallible>(event), (number + 1, proceed, guard)))
    });
    Body::from_stream(parts)
}

const EVENTS: [(&str, &str); 1] = [("content-type", "text/event-stream")];

#[tokio::test]
async fn event_stream_passes_unbuffered() {
    let proceed = Arc::new(Notify::new());
    let handlers = Arc::clone(&proceed);
    let router =
        Router::new().route("/api/events", get(async move || (EVENTS, event_body(handlers, None))));
    let host = TestHost::start(router).await;
    let answer = host.client.get(host.url("/api/events")).send().await.unwrap();
    let mut bytes = answer.bytes_stream();
    assert_eq!(within_timeout(bytes.next()).await.unwrap().unwrap(), "data: 0\n\n");
    // The handler continues only now: the first event was not buffered.
    proceed.notify_one();
    assert_eq!(within_timeout(bytes.next()).await.unwrap().unwrap(), "data: 1\n\n");
    assert!(within_timeout(bytes.next()).await.is_none());
}

#[tokio::test]
async fn client_disconnect_drops_handler_stream() {
    let (guards, mut disconnects) = mpsc::unbounded_channel();
    let router = Router::new().route(
        "/api/events",
        get(async move || {
            let (guard, disconnected) = oneshot::channel::<()>();
            guards.send(disconnected).unwrap();
            (EVENTS, event_body(Arc::new(Notify::new()), Some(guard)))
        }),
    );
    let host = TestHost::start(router).await;
    let answer = host.client.get(host.url("/api/events")).send().await.unwrap();
    let mut bytes = answer.bytes_stream();
    within_timeout(bytes.next()).await.unwrap().unwrap();
    let disconnected = disconnects.recv().await.unwrap();
    drop(bytes);
    assert!(within_timeout(disconnected).await.is_err(), "the handler's stream is dropped");
}

#[tokio::test]
async fn shutdown_ends_event_streams() {
    let router = Router::new()
        .route("/api/events", get(async || (EVENTS, event_body(Arc::new(Notify::new()), None))));
    let mut host = TestHost::start(router).await;
    let answer = host.client.get(host.url("/api/events")).send().await.unwrap();
    let mut bytes = answer.bytes_stream();
    within_timeout(bytes.next()).await.unwrap().unwrap();
    host.begin_shutdown();
    assert!(within_timeout(bytes.next()).await.is_none(), "the stream ends without an error");
    host.wait_for_end().await;
}

#[tokio::test]
async fn upload_is_streamed_in_chunks() {
    let router = Router::new().route(
        "/api/echo",
        post(async |request: Request| Body::from_stream(request.into_body().into_data_stream())),
    );
    let host = TestHost::start(router).await;
    let (sender, parts) = mpsc::channel::<Result<Bytes, Infallible>>(1);
    let parts =
        stream::unfold(parts, async |mut parts| parts.recv().await.map(|part| (part, parts)));
    let upload = host.client.post(host.url("/api/echo")).body(reqwest::Body::wrap_stream(parts));
    sender.send(Ok("first".into())).await.unwrap();
    let answer = within_timeout(upload.send()).await.unwrap();
    let mut bytes = answer.bytes_stream();
    assert_eq!(within_timeout(bytes.next()).await.unwrap().unwrap(), "first");
    // The response starts before the request ends.
    sender.send(Ok("second".into())).await.unwrap();
    assert_eq!(within_timeout(bytes.next()).await.unwrap().unwrap(), "second");
    drop(sender);
    assert!(within_timeout(bytes.next()).await.is_none());
}

/// A handler may respond before it has read the request. It still gets the rest.
#[tokio::test]
async fn early_response_passes_and_the_upload_goes_on() {
    const LENGTH: usize = 100_000;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (lengths, mut received) = mpsc::unbounded_channel();
    let mut handler = JoinSet::new();
    handler.spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut bytes = Vec::new();
            let head = loop {
                stream.read_buf(&mut bytes).await.unwrap();
                if let Some(end) = bytes.windows(4).position(|end| end == b"\r\n\r\n") {
                    break end + 4;
                }
            };
            stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").await.unwrap();
            if bytes.starts_with(b"POST /api/") {
                while bytes.len() < head + LENGTH {
                    assert_ne!(stream.read_buf(&mut bytes).await.unwrap(), 0, "cut off");
                }
                lengths.send(bytes.len() - head).unwrap();
            }
        }
    });
    let host = TestHost::start_before(address, handler, TestHostConfig::default()).await;
    let mut stream = TcpStream::connect(host.address).await.unwrap();
    let head = format!(
        "POST /api/x HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {LENGTH}\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    stream.write_all(&[b'z'; 1_000]).await.unwrap();
    tokio::time::sleep(Duration::from_millis(100)).await;
    stream.write_all(&vec![b'z'; LENGTH - 1_000]).await.unwrap();
    assert_eq!(within_timeout(received.recv()).await, Some(LENGTH));
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 200") && answer.ends_with("ok"), "{answer}");
}

#[tokio::test]
async fn path_and_headers_pass_as_in_azure() {
    let router = Router::new().fallback(any(async |request: Request| {
        let headers = request.headers();
        let rendered = |name: &str| {
            let values = headers.get_all(name).iter().map(|value| value.to_str().unwrap());
            values.collect::<Vec<_>>().join("|")
        };
        let names = [
            "host",
            "x-mine",
            "connection",
            "te",
            "x-hop",
            "content-length",
            "x-azure-functions-invocationid",
            "x-azure-functions-hostversion",
            "x-ms-invocation-id",
            "x-forwarded-for",
            "x-forwarded-host",
            "x-forwarded-proto",
        ];
        let rendered: Vec<String> =
            names.iter().map(|name| format!("{name}={}", rendered(name))).collect();
        format!("{} {}\n{}", request.method(), request.uri(), rendered.join("\n"))
    }));
    let host = TestHost::start(router).await;
    let request = format!(
        "PATCH /api/a%2Fb%3Fc%25/%C3%BC?x=1&x=2&y=%26 HTTP/1.1\r\nHost: {}\r\nConnection: close, x-hop\r\n\
         x-hop: 1\r\nX-Forwarded-For: forged\r\nForwarded: for=forged\r\nTE: trailers\r\nx-mine: a\r\nx-mine: b\r\nContent-Length: 2\r\n\
         X-Azure-Functions-InvocationId: forged\r\nX-Azure-Functions-HostVersion: forged\r\n\r\nhi",
        host.address
    );
    let mut stream = TcpStream::connect(host.address).await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    let (_, body) = answer.split_once("\r\n\r\n").unwrap();
    let body = body.replace(&host.address.to_string(), "<host>");
    let body = body.replace(&host.handler.to_string(), "<handler>");
    insta::assert_snapshot!(body, @r"
    PATCH /api/a%252Fb%3Fc%25/%C3%BC?x=1&x=2&y=%26
    host=<handler>
    x-mine=a, b
    connection=
    te=
    x-hop=1
    content-length=2
    x-azure-functions-invocationid=00000000-0000-0001-0000-000000000007
    x-azure-functions-hostversion=4.1037.0.0
    x-ms-invocation-id=00000000-0000-0001-0000-000000000007
    x-forwarded-for=127.0.0.1
    x-forwarded-host=<host>
    x-forwarded-proto=http
    ");
}

#[tokio::test]
async fn responses_pass_unchanged() {
    let router = Router::new()
        .route("/api/moved", get(async || axum::response::Redirect::temporary("/elsewhere")))
        .route(
            "/api/teapot",
            get(async || {
                let mut headers = HeaderMap::new();
                headers.append("set-cookie", "a=1".parse().unwrap());
                headers.append("set-cookie", "b=2".parse().unwrap());
                (StatusCode::IM_A_TEAPOT, headers, "short and stout").into_response()
            }),
        );
    let host = TestHost::start(router).await;
    let moved = host.client.get(host.url("/api/moved")).send().await.unwrap();
    assert_eq!(
        (moved.status().as_u16(), &moved.headers()["location"]),
        (307, &"/elsewhere".parse().unwrap())
    );
    let teapot = host.client.get(host.url("/api/teapot")).send().await.unwrap();
    assert_eq!(teapot.headers().get_all("set-cookie").iter().count(), 2);
    assert_eq!(teapot.headers()["content-length"], "15");
    assert_eq!(
        (teapot.status().as_u16(), teapot.text().await.unwrap().as_str()),
        (418, "short and stout")
    );
    let head = host.client.head(host.url("/api/teapot")).send().await.unwrap();
    assert_eq!(
        (head.status().as_u16(), &head.headers()["content-length"]),
        (418, &"15".parse().unwrap())
    );
}

#[tokio::test]
async fn upload_over_100_mib_is_rejected() {
    let read = async |body: Bytes| body.len().to_string();
    let router = Router::new()
        .route("/api/upload", post(read))
        .layer(axum::extract::DefaultBodyLimit::disable());
    let host = TestHost::start(router).await;
    let chunks = |count: usize| {
        let chunk = Bytes::from(vec![b'x'; 1 << 20]);
        let parts = std::iter::repeat_n(Ok::<_, Infallible>(chunk), count);
        reqwest::Body::wrap_stream(stream::iter(parts))
    };
    assert_eq!(host.post("/api/upload", chunks(2)).await, (200, (2 << 20).to_string()));
    assert_eq!(host.post("/api/upload", chunks(101)).await, (500, String::new()));
    let mut stream = TcpStream::connect(host.address).await.unwrap();
    let head = "POST /api/upload HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: 104857601\r\n\r\n";
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut answer = [0; 12];
    stream.read_exact(&mut answer).await.unwrap();
    assert_eq!(&answer, b"HTTP/1.1 500");
}

#[tokio::test]
async fn unknown_routes_are_404() {
    let router = Router::new()
        .fallback(any(async |request: Request| format!("reached {}", request.uri().path())));
    let host = TestHost::start(router).await;
    for path in [
        "/turn",
        "/sweep",
        "/apix",
        "/api/../turn",
        "/api/%2e%2e/turn",
        "/runtime/webhooks",
        "/admin/x",
    ] {
        let mut stream = TcpStream::connect(host.address).await.unwrap();
        let request = format!(
            "POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{{}}"
        );
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        assert!(answer.starts_with("HTTP/1.1 404"), "{path}: {answer}");
        assert!(!answer.contains("reached"), "{path} reached the handler");
    }
    for (path, expected) in [("/api", "reached /api"), ("/api/health", "reached /api/health")] {
        assert_eq!(host.post(path, "").await, (200, expected.to_owned()));
    }
}

#[tokio::test]
async fn unsupported_method_is_404() {
    let mut config = TestHostConfig::default();
    config.root.functions.remove("web");
    let router = Router::new().fallback(any(async || "reached"));
    let host = TestHost::start_with(router, config).await;
    assert_eq!(host.get("/api/health").await, (200, "reached".to_owned()));
    assert_eq!(host.post("/api/health", "").await.0, 404);
    assert_eq!(host.post("/api/approvals/token", "").await.0, 200);
    assert_eq!(host.get("/api/approvals/token/more").await.0, 404);
}

#[tokio::test]
async fn slow_response_is_cut_and_reported() {
    let mut config = TestHostConfig::default();
    config.root.replace("00:10:00", "00:00:00.2");
    let router = Router::new()
        .route("/api/silent", get(async || std::future::pending::<()>().await))
        .route("/api/events", get(async || (EVENTS, event_body(Arc::new(Notify::new()), None))));
    let host = TestHost::start_with(router, config).await;
    assert_eq!(host.get("/api/silent").await, (500, String::new()));
    let answer = host.client.get(host.url("/api/events")).send().await.unwrap();
    assert!(within_timeout(answer.bytes()).await.is_err(), "a cut stream ends with an error");
    let errors = host.errors().await;
    assert_eq!(errors.len(), 2, "{errors:?}");
    assert!(
        errors.iter().all(|one| one.starts_with("web: the invocation took longer")),
        "{errors:?}"
    );
}
