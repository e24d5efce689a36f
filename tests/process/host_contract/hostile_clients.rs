//! Malformed and hostile requests, byte by byte: to the handler, and to the local host before it.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::extract::{DefaultBodyLimit, Request};
use axum::http::StatusCode;
use axum::routing::any;
use http_body_util::BodyExt as _;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use turnwheel::testing::server;
use turnwheel::testing::server::{MinThroughput, ServerLimits};

use super::recording_queue::TIMEOUT;
use super::test_host::{TestHost, TestHostConfig};

/// The server closes silent connections, so that every exchange ends.
const LIMITS: ServerLimits = ServerLimits {
    head_timeout: Duration::from_millis(300),
    min_throughput: MinThroughput { bytes: 1_000, within: Duration::from_millis(300) },
    connections_max: 100,
};

/// Every request that reached the handler: method, path and body.
type ReceivedRequests = Arc<Mutex<Vec<String>>>;

fn handler(received: &ReceivedRequests) -> Router {
    let received = Arc::clone(received);
    Router::new()
        .fallback(any(async move |request: Request| {
            let (head, body) = request.into_parts();
            let Ok(body) = body.collect().await else {
                return (StatusCode::BAD_REQUEST, "broken off");
            };
            let body = String::from_utf8_lossy(&body.to_bytes()).into_owned();
            received.lock().unwrap().push(format!("{} {} {body}", head.method, head.uri.path()));
            (StatusCode::OK, "received")
        }))
        .layer(DefaultBodyLimit::disable())
}

/// The same handler twice: direct, and behind the local host.
struct Servers {
    host: TestHost,
    direct: SocketAddr,
    received: ReceivedRequests,
    _tasks: JoinSet<()>,
}

async fn start_servers() -> Servers {
    let received = ReceivedRequests::default();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let direct = listener.local_addr().unwrap();
    let mut tasks = JoinSet::new();
    tasks.spawn(server::serve(listener, handler(&received), LIMITS, CancellationToken::new()));
    let config = TestHostConfig { bounds: LIMITS, ..TestHostConfig::default() };
    let host = TestHost::start_with(handler(&received), config).await;
    // The host probes the handler when it starts.
    received.lock().unwrap().clear();
    Servers { host, direct, received, _tasks: tasks }
}

impl Servers {
    /// Sends to both servers. Returns the statuses of all responses, and the requests that the
    /// handler received.
    async fn send(&self, request: &[u8]) -> [(Vec<u16>, Vec<String>); 2] {
        let mut results = Vec::new();
        for address in [self.direct, self.host.address] {
            let statuses = read_statuses(address, request).await;
            let mut received = std::mem::take(&mut *self.received.lock().unwrap());
            received.retain(|one| one != "GET / " && !one.starts_with("POST /sweep "));
            results.push((statuses, received));
        }
        results.try_into().unwrap()
    }
}

/// Statuses of all responses until the connection is closed.
async fn read_statuses(address: SocketAddr, request: &[u8]) -> Vec<u16> {
    let stream = TcpStream::connect(address).await.unwrap();
    let (mut reading, mut writing) = stream.into_split();
    let mut bytes = Vec::new();
    // Both may end with a reset: a server may close before it has read a rejected request.
    let whole = async {
        let writes = async {
            let _ = writing.write_all(request).await;
        };
        let reads = async {
            let _ = reading.read_to_end(&mut bytes).await;
        };
        tokio::join!(writes, reads);
    };
    tokio::time::timeout(TIMEOUT, whole).await.expect("the connection is never closed");
    let text = String::from_utf8_lossy(&bytes);
    let lines = text.split("HTTP/1.1 ").skip(1);
    lines.map(|answer| answer.get(..3).unwrap().parse().unwrap()).collect()
}

fn post_request(headers: &str, rest: &str) -> Vec<u8> {
    format!("POST /api/x HTTP/1.1\r\nHost: localhost\r\n{headers}\r\n{rest}").into_bytes()
}

#[tokio::test]
async fn ambiguous_requests_are_rejected_without_smuggling() {
    let servers = start_servers().await;
    let smuggled =
        "0\r\n\r\nPOST /api/smuggled HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n";
    let two_lines =
        |first: &str, second: &str| post_request(&format!("{first}\r\n{second}\r\n"), smuggled);
    for request in [
        two_lines("Content-Length: 5", "Content-Length: 6"),
        two_lines("Content-Length: 5", "Content-Length: abc"),
        post_request("Content-Length: 5, 6\r\n", "abcde"),
        post_request("Content-Length: +5\r\n", "abcde"),
        post_request("Content-Length: -1\r\n", "abcde"),
        post_request("Content-Length: 0x5\r\n", "abcde"),
        post_request("Content-Length: 18446744073709551616\r\n", "abcde"),
        post_request("Transfer-Encoding: chunked, identity\r\n", smuggled),
        post_request("Transfer-Encoding: identity\r\n", smuggled),
        post_request("Transfer-Encoding: xchunked\r\n", smuggled),
        post_request("Transfer-Encoding : chunked\r\n", smuggled),
        post_request("X: a\r\n Transfer-Encoding: chunked\r\n", smuggled),
        post_request("X: a\0b\r\n", ""),
        post_request("X: a\rb\r\n", ""),
        post_request("X\tY: a\r\n", ""),
        post_request(": a\r\n", ""),
        b"POST /api/x HTTP/1.0\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
            .to_vec(),
        b"POST /api/x\r\n\r\n".to_vec(),
        b"POST /api/x HTTP/1.1 \r\nHost: localhost\r\n\r\n".to_vec(),
        b"POST /api/x HTTP/9.9\r\nHost: localhost\r\n\r\n".to_vec(),
        b"POST api/x HTTP/1.1\r\nHost: localhost\r\n\r\n".to_vec(),
        b"POST /api/\x01 HTTP/1.1\r\nHost: localhost\r\n\r\n".to_vec(),
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03".to_vec(),
    ] {
        let shown = String::from_utf8_lossy(&request).into_owned();
        for (statuses, received) in servers.send(&request).await {
            assert_eq!(
                (statuses.as_slice(), received.as_slice()),
                (&[400][..], &[][..]),
                "{shown}"
            );
        }
    }
    // A broken chunk is detected during the request: the handler receives nothing at all.
    for body in [
        "zz\r\nabc\r\n",
        "-1\r\n\r\n",
        "fffffffffffffffff\r\nabc\r\n",
        "3\r\nabcd\r\n",
        "3;\nabc\r\n",
    ] {
        for (statuses, received) in servers
            .send(&post_request("Transfer-Encoding: chunked\r\n", &format!("{body}{smuggled}")))
            .await
        {
            assert!(
                received.is_empty() && statuses.iter().all(|status| *status >= 400),
                "{body:?}: {statuses:?} {received:?}"
            );
        }
    }
}

#[tokio::test]
async fn chunked_encoding_wins_over_content_length() {
    let servers = start_servers().await;
    let next = "POST /api/next HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n";
    let body = format!("3\r\nabc\r\n0\r\n\r\n{next}");
    for headers in [
        "Content-Length: 3\r\nTransfer-Encoding: chunked\r\n",
        "Transfer-Encoding: chunked\r\nContent-Length: 400\r\n",
    ] {
        for (statuses, received) in servers.send(&post_request(headers, &body)).await {
            assert_eq!(
                received.first().map(String::as_str),
                Some("POST /api/x abc"),
                "{headers}: {statuses:?}"
            );
            assert!(
                received.len() == 1 || received == ["POST /api/x abc", "POST /api/next "],
                "{received:?}"
            );
            assert_eq!(
                statuses.len(),
                received.len(),
                "{headers}: one response for each received request"
            );
        }
    }
}

#[tokio::test]
async fn pipelined_requests_get_responses_in_order() {
    let servers = start_servers().await;
    let one = |path: &str| {
        format!("POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\nhi")
    };
    let row = [one("/api/a"), one("/turn"), one("/api/b"), one("/api/c")].concat();
    let [direct, proxied] = servers.send(row.as_bytes()).await;
    assert_eq!(direct.0, [200, 200, 200, 200]);
    assert_eq!(proxied.0, [200, 404, 200, 200], "the host does not forward unknown routes");
    assert_eq!(proxied.1, ["POST /api/a hi", "POST /api/b hi", "POST /api/c hi"]);
}

#[tokio::test]
async fn oversized_requests_are_rejected_unread() {
    let servers = start_servers().await;
    let get = |path: &str, headers: &str| {
        format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{headers}\r\n")
            .into_bytes()
    };
    let many = |count: usize| "X: a\r\n".repeat(count);
    let long = |bytes: usize| "a".repeat(bytes);
    for (request, status) in [
        (get("/api/x", &many(90)), 200),
        (get("/api/x", &many(120)), 431),
        (get("/api/x", &many(100_000)), 431),
        (get("/api/x", &format!("X: {}\r\n", long(30_000))), 200),
        (get("/api/x", &format!("X: {}\r\n", long(200_000))), 431),
        (get("/api/x", &format!("X: {}", long(10_000_000))), 431),
        (get(&format!("/api/{}", long(7_000)), ""), 200),
        (get(&format!("/api/{}", long(70_000)), ""), 414),
        (get(&format!("/api/{}", long(200_000)), ""), 431),
        (get(&format!("/api/x?{}", "a=b&".repeat(1_700)), ""), 200),
        (get(&format!("/api/x?{}", "a=b&".repeat(1_000_000)), ""), 431),
        (
            post_request(
                "Transfer-Encoding: chunked\r\n",
                &format!("0\r\nX: {}\r\n\r\n", long(200_000)),
            ),
            400,
        ),
        (
            post_request(
                "Transfer-Encoding: chunked\r\n",
                &format!("1;{}\r\na\r\n0\r\n\r\n", long(200_000)),
            ),
            400,
        ),
    ] {
        let shown = String::from_utf8_lossy(&request[..80]).into_owned();
        for (statuses, received) in servers.send(&request).await {
            // A client that still sends may lose the connection before the response.
            let is_cut = statuses.is_empty() && request.len() > 60_000;
            let is_rejected =
                statuses.first().is_some_and(|got| *got == status || status == 400 && *got >= 400);
            assert!(is_rejected || (is_cut && status != 200), "{shown}: {statuses:?}");
            assert_eq!(received.len(), usize::from(status == 200), "{shown}: {received:?}");
        }
    }
}

#[tokio::test]
async fn local_host_accepts_only_its_host_name() {
    let servers = start_servers().await;
    let get = |line: &str, hosts: &str| {
        format!("GET {line} HTTP/1.1\r\n{hosts}Connection: close\r\n\r\n")
    };
    for (request, status) in [
        (get("/api/x", "Host: localhost\r\n"), 200),
        (get("/api/x", ""), 400),
        (get("/api/x", "Host: evil.example\r\n"), 403),
        (get("/api/x", "Host: localhost\r\nHost: evil.example\r\n"), 400),
        (get("/api/x", "Host: evil.example\r\nHost: localhost\r\n"), 400),
        (get("http://evil.example/api/x", "Host: localhost\r\n"), 400),
        (get("http://localhost/api/x", "Host: evil.example\r\n"), 400),
        (get("/api/x", "Host: localhost@evil.example\r\n"), 403),
        (get("/api/x", "Host: evil.example@localhost\r\n"), 403),
        (get("/api/x", "Host: localhost.\r\n"), 403),
    ] {
        let [_, (statuses, received)] = servers.send(request.as_bytes()).await;
        assert_eq!(statuses, [status], "{request}");
        assert_eq!(received.len(), usize::from(status == 200), "{request}");
    }
}

#[tokio::test]
async fn slow_body_through_local_host_gets_500() {
    let servers = start_servers().await;
    let [direct, proxied] = servers.send(&post_request("Content-Length: 10\r\n", "abc")).await;
    assert_eq!((direct.0.as_slice(), direct.1.as_slice()), (&[400][..], &[][..]));
    assert_eq!((proxied.0.as_slice(), proxied.1.as_slice()), (&[500][..], &[][..]));
}
