//! HTTP triggers: requests below the prefix pass to the handler, and responses back, unchanged and
//! unbuffered.

use std::convert::Infallible;
use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::http::{HeaderMap, StatusCode};
use axum::response::IntoResponse;
use axum::routing::{any, get, post};
use bytes::Bytes;
use futures_util::{StreamExt, stream};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::{Notify, mpsc, oneshot};

use super::rig::{Replace, Rig, Setting};
use super::shelf::SOON;

async fn soon<T>(waiting: impl Future<Output = T>) -> T {
    tokio::time::timeout(SOON, waiting).await.expect("timed out")
}

/// Sends one event at once, and the next after `proceed` is notified.
fn events(go_on: Arc<Notify>, guard: Option<oneshot::Sender<()>>) -> Body {
    let parts = stream::unfold((0, go_on, guard), async |(number, go_on, guard)| {
        match number {
            0 => {}
            1 => go_on.notified().await,
            _ => return None,
        }
        let event = Bytes::from(format!("data: {number}\n\n"));
        Some((Ok::<_, Infallible>(event), (number + 1, go_on, guard)))
    });
    Body::from_stream(parts)
}

const EVENTS: [(&str, &str); 1] = [("content-type", "text/event-stream")];

#[tokio::test]
async fn events_pass_unbuffered() {
    let go_on = Arc::new(Notify::new());
    let handlers = Arc::clone(&go_on);
    let router =
        Router::new().route("/api/events", get(async move || (EVENTS, events(handlers, None))));
    let rig = Rig::start(router).await;
    let answer = rig.client.get(rig.url("/api/events")).send().await.unwrap();
    let mut bytes = answer.bytes_stream();
    assert_eq!(soon(bytes.next()).await.unwrap().unwrap(), "data: 0\n\n");
    // The handler continues only now: the first event was not buffered.
    go_on.notify_one();
    assert_eq!(soon(bytes.next()).await.unwrap().unwrap(), "data: 1\n\n");
    assert!(soon(bytes.next()).await.is_none());
}

#[tokio::test]
async fn a_reader_that_leaves_is_noticed_by_the_handler() {
    let (gone, mut leaves) = mpsc::unbounded_channel();
    let router = Router::new().route(
        "/api/events",
        get(async move || {
            let (guard, left) = oneshot::channel::<()>();
            gone.send(left).unwrap();
            (EVENTS, events(Arc::new(Notify::new()), Some(guard)))
        }),
    );
    let rig = Rig::start(router).await;
    let answer = rig.client.get(rig.url("/api/events")).send().await.unwrap();
    let mut bytes = answer.bytes_stream();
    soon(bytes.next()).await.unwrap().unwrap();
    let left = leaves.recv().await.unwrap();
    drop(bytes);
    assert!(soon(left).await.is_err(), "the handler's stream is dropped");
}

#[tokio::test]
async fn a_stop_ends_streams_of_events() {
    let router = Router::new()
        .route("/api/events", get(async || (EVENTS, events(Arc::new(Notify::new()), None))));
    let mut rig = Rig::start(router).await;
    let answer = rig.client.get(rig.url("/api/events")).send().await.unwrap();
    let mut bytes = answer.bytes_stream();
    soon(bytes.next()).await.unwrap().unwrap();
    rig.begin_stop();
    assert!(soon(bytes.next()).await.is_none(), "the stream ends without an error");
    rig.ended().await;
}

#[tokio::test]
async fn an_upload_is_streamed_and_chunks_arrive() {
    let router = Router::new().route(
        "/api/echo",
        post(async |request: Request| Body::from_stream(request.into_body().into_data_stream())),
    );
    let rig = Rig::start(router).await;
    let (sender, parts) = mpsc::channel::<Result<Bytes, Infallible>>(1);
    let parts =
        stream::unfold(parts, async |mut parts| parts.recv().await.map(|part| (part, parts)));
    let upload = rig.client.post(rig.url("/api/echo")).body(reqwest::Body::wrap_stream(parts));
    sender.send(Ok("first".into())).await.unwrap();
    let answer = soon(upload.send()).await.unwrap();
    let mut bytes = answer.bytes_stream();
    assert_eq!(soon(bytes.next()).await.unwrap().unwrap(), "first");
    // The response starts before the request ends.
    sender.send(Ok("second".into())).await.unwrap();
    assert_eq!(soon(bytes.next()).await.unwrap().unwrap(), "second");
    drop(sender);
    assert!(soon(bytes.next()).await.is_none());
}

#[tokio::test]
async fn path_query_and_headers_arrive_as_they_were_sent() {
    let router = Router::new().fallback(any(async |request: Request| {
        let headers = request.headers();
        let told = |name: &str| {
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
        ];
        let told: Vec<String> = names.iter().map(|name| format!("{name}={}", told(name))).collect();
        format!("{} {}\n{}", request.method(), request.uri(), told.join("\n"))
    }));
    let rig = Rig::start(router).await;
    let request = format!(
        "PATCH /api/a%2Fb%3Fc%25/%C3%BC?x=1&x=2&y=%26 HTTP/1.1\r\nHost: {}\r\nConnection: close, x-hop\r\n\
         x-hop: 1\r\nTE: trailers\r\nx-mine: a\r\nx-mine: b\r\nContent-Length: 2\r\n\
         X-Azure-Functions-InvocationId: forged\r\nX-Azure-Functions-HostVersion: forged\r\n\r\nhi",
        rig.address
    );
    let mut stream = TcpStream::connect(rig.address).await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    let (_, body) = answer.split_once("\r\n\r\n").unwrap();
    let body = body.replace(&rig.address.to_string(), "<host>");
    insta::assert_snapshot!(body, @r"
    PATCH /api/a%2Fb%3Fc%25/%C3%BC?x=1&x=2&y=%26
    host=<host>
    x-mine=a|b
    connection=
    te=
    x-hop=
    content-length=2
    x-azure-functions-invocationid=00000000-0000-0001-0000-000000000007
    x-azure-functions-hostversion=4.1037.0.0
    ");
}

#[tokio::test]
async fn answers_pass_as_they_are() {
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
    let rig = Rig::start(router).await;
    let moved = rig.client.get(rig.url("/api/moved")).send().await.unwrap();
    assert_eq!(
        (moved.status().as_u16(), &moved.headers()["location"]),
        (307, &"/elsewhere".parse().unwrap())
    );
    let teapot = rig.client.get(rig.url("/api/teapot")).send().await.unwrap();
    assert_eq!(teapot.headers().get_all("set-cookie").iter().count(), 2);
    assert_eq!(teapot.headers()["content-length"], "15");
    assert_eq!(
        (teapot.status().as_u16(), teapot.text().await.unwrap().as_str()),
        (418, "short and stout")
    );
    let head = rig.client.head(rig.url("/api/teapot")).send().await.unwrap();
    assert_eq!(
        (head.status().as_u16(), &head.headers()["content-length"]),
        (418, &"15".parse().unwrap())
    );
}

#[tokio::test]
async fn an_upload_over_100_mib_is_refused_with_and_without_a_length() {
    let read = async |body: Bytes| body.len().to_string();
    let router = Router::new()
        .route("/api/upload", post(read))
        .layer(axum::extract::DefaultBodyLimit::disable());
    let rig = Rig::start(router).await;
    let chunks = |count: usize| {
        let chunk = Bytes::from(vec![b'x'; 1 << 20]);
        let parts = std::iter::repeat_n(Ok::<_, Infallible>(chunk), count);
        reqwest::Body::wrap_stream(stream::iter(parts))
    };
    assert_eq!(rig.post("/api/upload", chunks(2)).await, (200, (2 << 20).to_string()));
    assert_eq!(rig.post("/api/upload", chunks(101)).await.0, 413);
    let mut stream = TcpStream::connect(rig.address).await.unwrap();
    let head = "POST /api/upload HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: 104857601\r\n\r\n";
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut answer = [0; 12];
    stream.read_exact(&mut answer).await.unwrap();
    assert_eq!(&answer, b"HTTP/1.1 413");
}

#[tokio::test]
async fn outside_the_routes_there_is_nothing() {
    let router = Router::new()
        .fallback(any(async |request: Request| format!("reached {}", request.uri().path())));
    let rig = Rig::start(router).await;
    for path in [
        "/turn",
        "/sweep",
        "/apix",
        "/api/../turn",
        "/api/%2e%2e/turn",
        "/runtime/webhooks",
        "/admin/x",
    ] {
        let mut stream = TcpStream::connect(rig.address).await.unwrap();
        let request = format!(
            "POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{{}}"
        );
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        assert!(answer.starts_with("HTTP/1.1 404"), "{path}: {answer}");
        assert!(!answer.contains("reached"), "{path} reached the handler");
    }
    for (path, reached) in [("/api", "reached /api"), ("/api/health", "reached /api/health")] {
        assert_eq!(rig.post(path, "").await, (200, reached.to_owned()));
    }
}

#[tokio::test]
async fn a_method_that_no_route_takes_is_404() {
    let mut setting = Setting::default();
    setting.root.functions.remove("api");
    let router = Router::new().fallback(any(async || "reached"));
    let rig = Rig::start_with(router, setting).await;
    assert_eq!(rig.get("/api/health").await, (200, "reached".to_owned()));
    assert_eq!(rig.post("/api/health", "").await.0, 404);
    assert_eq!(rig.post("/api/approvals/token", "").await.0, 200);
    assert_eq!(rig.get("/api/approvals/token/more").await.0, 404);
}

#[tokio::test]
async fn an_answer_that_takes_too_long_is_cut_and_told() {
    let mut setting = Setting::default();
    setting.root.replace("00:10:00", "00:00:00.2");
    let router = Router::new()
        .route("/api/silent", get(async || std::future::pending::<()>().await))
        .route("/api/events", get(async || (EVENTS, events(Arc::new(Notify::new()), None))));
    let rig = Rig::start_with(router, setting).await;
    assert_eq!(rig.get("/api/silent").await.0, 504);
    let answer = rig.client.get(rig.url("/api/events")).send().await.unwrap();
    assert!(soon(answer.bytes()).await.is_err(), "a cut stream ends with an error");
    let told = rig.errors().await;
    assert_eq!(told.len(), 2, "{told:?}");
    assert!(told.iter().all(|one| one.starts_with("api: the invocation took longer")), "{told:?}");
}
