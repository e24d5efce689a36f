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
use turnwheel::server::{self, Bounds, Pace};

use super::rig::{Rig, Setting};
use super::shelf::SOON;

/// The server closes silent connections, so that every exchange ends.
const BOUNDS: Bounds = Bounds {
    head: Duration::from_millis(300),
    pace: Pace { bytes: 1_000, within: Duration::from_millis(300) },
    connections_max: 100,
};

/// Every request that reached the handler: method, path and body.
type Heard = Arc<Mutex<Vec<String>>>;

fn handler(heard: &Heard) -> Router {
    let heard = Arc::clone(heard);
    Router::new()
        .fallback(any(async move |request: Request| {
            let (head, body) = request.into_parts();
            let Ok(body) = body.collect().await else {
                return (StatusCode::BAD_REQUEST, "broken off");
            };
            let body = String::from_utf8_lossy(&body.to_bytes()).into_owned();
            heard.lock().unwrap().push(format!("{} {} {body}", head.method, head.uri.path()));
            (StatusCode::OK, "received")
        }))
        .layer(DefaultBodyLimit::disable())
}

/// The same handler twice: direct, and behind the local host.
struct Doors {
    rig: Rig,
    alone: SocketAddr,
    heard: Heard,
    _tasks: JoinSet<()>,
}

async fn doors() -> Doors {
    let heard = Heard::default();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let alone = listener.local_addr().unwrap();
    let mut tasks = JoinSet::new();
    tasks.spawn(server::serve(listener, handler(&heard), BOUNDS, CancellationToken::new()));
    let setting = Setting { bounds: BOUNDS, ..Setting::default() };
    let rig = Rig::start_with(handler(&heard), setting).await;
    // The host probes the handler when it starts.
    heard.lock().unwrap().clear();
    Doors { rig, alone, heard, _tasks: tasks }
}

impl Doors {
    /// Sends to both servers. Returns the statuses of all responses, and the requests that the
    /// handler received.
    async fn told(&self, request: &[u8]) -> [(Vec<u16>, Vec<String>); 2] {
        let mut told = Vec::new();
        for address in [self.alone, self.rig.address] {
            let answers = answers(address, request).await;
            let mut heard = std::mem::take(&mut *self.heard.lock().unwrap());
            heard.retain(|one| one != "GET / " && !one.starts_with("POST /sweep "));
            told.push((answers, heard));
        }
        told.try_into().unwrap()
    }
}

/// Statuses of all responses until the connection is closed.
async fn answers(address: SocketAddr, request: &[u8]) -> Vec<u16> {
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
    tokio::time::timeout(SOON, whole).await.expect("the connection is never closed");
    let text = String::from_utf8_lossy(&bytes);
    let lines = text.split("HTTP/1.1 ").skip(1);
    lines.map(|answer| answer.get(..3).unwrap().parse().unwrap()).collect()
}

fn post(headers: &str, rest: &str) -> Vec<u8> {
    format!("POST /api/x HTTP/1.1\r\nHost: localhost\r\n{headers}\r\n{rest}").into_bytes()
}

#[tokio::test]
async fn of_an_ambiguous_request_nothing_is_heard_and_nothing_is_smuggled() {
    let doors = doors().await;
    let smuggled =
        "0\r\n\r\nPOST /api/smuggled HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n";
    let two_lines = |first: &str, second: &str| post(&format!("{first}\r\n{second}\r\n"), smuggled);
    for request in [
        two_lines("Content-Length: 5", "Content-Length: 6"),
        two_lines("Content-Length: 5", "Content-Length: abc"),
        post("Content-Length: 5, 6\r\n", "abcde"),
        post("Content-Length: +5\r\n", "abcde"),
        post("Content-Length: -1\r\n", "abcde"),
        post("Content-Length: 0x5\r\n", "abcde"),
        post("Content-Length: 18446744073709551616\r\n", "abcde"),
        post("Transfer-Encoding: chunked, identity\r\n", smuggled),
        post("Transfer-Encoding: identity\r\n", smuggled),
        post("Transfer-Encoding: xchunked\r\n", smuggled),
        post("Transfer-Encoding : chunked\r\n", smuggled),
        post("X: a\r\n Transfer-Encoding: chunked\r\n", smuggled),
        post("X: a\0b\r\n", ""),
        post("X: a\rb\r\n", ""),
        post("X\tY: a\r\n", ""),
        post(": a\r\n", ""),
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
        for (answers, heard) in doors.told(&request).await {
            assert_eq!((answers.as_slice(), heard.as_slice()), (&[400][..], &[][..]), "{shown}");
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
        for (answers, heard) in
            doors.told(&post("Transfer-Encoding: chunked\r\n", &format!("{body}{smuggled}"))).await
        {
            assert!(
                heard.is_empty() && answers.iter().all(|status| *status >= 400),
                "{body:?}: {answers:?} {heard:?}"
            );
        }
    }
}

#[tokio::test]
async fn chunks_win_over_a_length_and_the_connection_ends_with_them() {
    let doors = doors().await;
    let next = "POST /api/next HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n";
    let body = format!("3\r\nabc\r\n0\r\n\r\n{next}");
    for headers in [
        "Content-Length: 3\r\nTransfer-Encoding: chunked\r\n",
        "Transfer-Encoding: chunked\r\nContent-Length: 400\r\n",
    ] {
        for (answers, heard) in doors.told(&post(headers, &body)).await {
            assert_eq!(
                heard.first().map(String::as_str),
                Some("POST /api/x abc"),
                "{headers}: {answers:?}"
            );
            assert!(
                heard.len() == 1 || heard == ["POST /api/x abc", "POST /api/next "],
                "{heard:?}"
            );
            assert_eq!(
                answers.len(),
                heard.len(),
                "{headers}: one response for each received request"
            );
        }
    }
}

#[tokio::test]
async fn requests_in_a_row_are_answered_in_a_row() {
    let doors = doors().await;
    let one = |path: &str| {
        format!("POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\nhi")
    };
    let row = [one("/api/a"), one("/turn"), one("/api/b"), one("/api/c")].concat();
    let [alone, behind] = doors.told(row.as_bytes()).await;
    assert_eq!(alone.0, [200, 200, 200, 200]);
    assert_eq!(behind.0, [200, 404, 200, 200], "the host does not forward unknown routes");
    assert_eq!(behind.1, ["POST /api/a hi", "POST /api/b hi", "POST /api/c hi"]);
}

#[tokio::test]
async fn what_is_too_long_or_too_much_is_refused_before_it_is_read() {
    let doors = doors().await;
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
        (get(&format!("/api/{}", long(30_000)), ""), 200),
        (get(&format!("/api/{}", long(70_000)), ""), 414),
        (get(&format!("/api/{}", long(200_000)), ""), 431),
        (get(&format!("/api/x?{}", "a=b&".repeat(7_000)), ""), 200),
        (get(&format!("/api/x?{}", "a=b&".repeat(1_000_000)), ""), 431),
        (
            post("Transfer-Encoding: chunked\r\n", &format!("0\r\nX: {}\r\n\r\n", long(200_000))),
            400,
        ),
        (
            post(
                "Transfer-Encoding: chunked\r\n",
                &format!("1;{}\r\na\r\n0\r\n\r\n", long(200_000)),
            ),
            400,
        ),
    ] {
        let shown = String::from_utf8_lossy(&request[..80]).into_owned();
        for (answers, heard) in doors.told(&request).await {
            // A client that still sends may lose the connection before the response.
            let is_cut = answers.is_empty() && request.len() > 60_000;
            let is_told =
                answers.first().is_some_and(|got| *got == status || status == 400 && *got >= 400);
            assert!(is_told || (is_cut && status != 200), "{shown}: {answers:?}");
            assert_eq!(heard.len(), usize::from(status == 200), "{shown}: {heard:?}");
        }
    }
}

#[tokio::test]
async fn the_local_host_believes_one_name_and_no_other() {
    let doors = doors().await;
    let ask = |line: &str, hosts: &str| {
        format!("GET {line} HTTP/1.1\r\n{hosts}Connection: close\r\n\r\n")
    };
    for (request, status) in [
        (ask("/api/x", "Host: localhost\r\n"), 200),
        (ask("/api/x", ""), 403),
        (ask("/api/x", "Host: evil.example\r\n"), 403),
        (ask("/api/x", "Host: localhost\r\nHost: evil.example\r\n"), 403),
        (ask("/api/x", "Host: evil.example\r\nHost: localhost\r\n"), 403),
        (ask("http://evil.example/api/x", "Host: localhost\r\n"), 403),
        (ask("http://localhost/api/x", "Host: evil.example\r\n"), 403),
        (ask("/api/x", "Host: localhost@evil.example\r\n"), 403),
        (ask("/api/x", "Host: evil.example@localhost\r\n"), 403),
        (ask("/api/x", "Host: localhost.\r\n"), 403),
    ] {
        let [_, (answers, heard)] = doors.told(request.as_bytes()).await;
        assert_eq!(answers, [status], "{request}");
        assert_eq!(heard.len(), usize::from(status == 200), "{request}");
    }
}

#[tokio::test]
async fn a_body_that_trickles_through_the_local_host_is_told_so() {
    let doors = doors().await;
    let [alone, behind] = doors.told(&post("Content-Length: 10\r\n", "abc")).await;
    assert_eq!((alone.0.as_slice(), alone.1.as_slice()), (&[400][..], &[][..]));
    assert_eq!((behind.0.as_slice(), behind.1.as_slice()), (&[408][..], &[][..]));
}
