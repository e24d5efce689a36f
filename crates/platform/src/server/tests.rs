//! Tests of the limits for slow, idle and numerous clients, over real sockets.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::extract::Request;
use axum::http::StatusCode;
use axum::response::IntoResponse as _;
use axum::routing::{get, post};
use bytes::Bytes;
use futures_util::stream;
use http_body_util::BodyExt as _;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::sync::{Notify, Semaphore};
use tokio::time::{Instant, timeout};

use super::*;

/// Longer than any step of these tests takes.
const TEST_TIMEOUT: Duration = Duration::from_mins(1);
const SHORT: Duration = Duration::from_millis(150);
const LIMITS: ServerLimits = ServerLimits {
    head_timeout: SHORT,
    min_throughput: MinThroughput { bytes: 1_000, within: SHORT },
    connections_max: 50,
};

struct TestServer {
    address: SocketAddr,
    stop: CancellationToken,
    tasks: JoinSet<()>,
}

async fn start_server(router: Router, limits: ServerLimits) -> TestServer {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (stop, mut tasks) = (CancellationToken::new(), JoinSet::new());
    tasks.spawn(serve(listener, router, limits, stop.clone()));
    TestServer { address, stop, tasks }
}

impl TestServer {
    async fn send(&self, text: &str) -> TcpStream {
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        stream.write_all(text.as_bytes()).await.unwrap();
        stream
    }

    async fn get(&self, path: &str) -> String {
        let text = format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
        read_to_end(&mut self.send(&text).await).await
    }
}

/// Reads until the server closes the connection.
async fn read_to_end(stream: &mut TcpStream) -> String {
    let mut bytes = Vec::new();
    // A connection reset also ends the response.
    let _ = timeout(TEST_TIMEOUT, stream.read_to_end(&mut bytes))
        .await
        .expect("the server closes the connection");
    String::from_utf8_lossy(&bytes).into_owned()
}

fn hello_router() -> Router {
    Router::new().route("/", get(async || "hello"))
}

/// Returns the length of the body, or the status and text of its error.
async fn body_length(request: Request) -> (StatusCode, String) {
    match request.into_body().collect().await {
        Ok(body) => (StatusCode::OK, body.to_bytes().len().to_string()),
        Err(error) if is_client_too_slow(&error) => {
            (StatusCode::REQUEST_TIMEOUT, error.to_string())
        }
        Err(error) => (StatusCode::BAD_REQUEST, error.to_string()),
    }
}

#[tokio::test]
async fn slow_request_headers_close_the_connection() {
    let server = start_server(hello_router(), LIMITS).await;
    for text in ["", "G", "GET / HTTP/1.1\r\nHost: x\r\nX-More: "] {
        assert_eq!(read_to_end(&mut server.send(text).await).await, "", "{text}");
    }
    // Sends one letter after the other and never completes the headers: the time limit is for all
    // of them.
    let stream = server.send("GET / HTTP/1.1\r\nHost: x\r\nX-More: ").await;
    let (mut reading, mut writing) = stream.into_split();
    let trickle = async {
        let mut letters = tokio::time::interval(SHORT / 10);
        while writing.write_all(b"a").await.is_ok() {
            letters.tick().await;
        }
    };
    let mut bytes = Vec::new();
    let closed = async {
        tokio::select! {
            () = trickle => {}
            _ = reading.read_to_end(&mut bytes) => {}
        }
    };
    timeout(TEST_TIMEOUT, closed).await.expect("the server closes the connection");
    assert!(bytes.is_empty(), "{bytes:?}");
    // A connection that stays idle after its first response is closed as well.
    let response = read_to_end(&mut server.send("GET / HTTP/1.1\r\nHost: x\r\n\r\n").await).await;
    assert!(response.starts_with("HTTP/1.1 200") && response.ends_with("hello"), "{response}");
}

#[tokio::test]
async fn slow_request_body_gets_408_unless_handler_waits() {
    let router = Router::new().route("/", post(body_length)).route(
        "/busy",
        post(async |request: Request| {
            // Longer than the client's limit: the handler's own time does not count.
            tokio::time::sleep(SHORT * 3).await;
            body_length(request).await
        }),
    );
    let server = start_server(router, LIMITS).await;
    let head = |path: &str| {
        format!("POST {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 3\r\n\r\n")
    };
    let slow = read_to_end(&mut server.send(&format!("{}ab", head("/"))).await).await;
    assert!(slow.starts_with("HTTP/1.1 408"), "{slow}");
    let whole = read_to_end(&mut server.send(&format!("{}abc", head("/busy"))).await).await;
    assert!(whole.starts_with("HTTP/1.1 200") && whole.ends_with('3'), "{whole}");
    // Chunks of one letter, each within the time limit.
    let start = "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n";
    let (mut reading, mut writing) = server.send(start).await.into_split();
    let trickle = async {
        let mut letters = tokio::time::interval(SHORT / 10);
        while writing.write_all(b"1\r\na\r\n").await.is_ok() {
            letters.tick().await;
        }
    };
    let mut status_line = [0; 12];
    let status = async { reading.read_exact(&mut status_line).await.map(|_| status_line) };
    tokio::select! {
        () = trickle => panic!("the connection closed without a response"),
        status = timeout(TEST_TIMEOUT, status) => assert_eq!(&status.unwrap().unwrap(), b"HTTP/1.1 408"),
    }
}

/// A route with an endless response body. Counts the bytes produced in `made`.
fn endless_router(made: &Arc<AtomicUsize>, gone: &Arc<Notify>) -> Router {
    struct Gone(Arc<Notify>);

    impl Drop for Gone {
        fn drop(&mut self) {
            self.0.notify_one();
        }
    }

    let (made, gone) = (Arc::clone(made), Arc::clone(gone));
    let answer = move || {
        let (made, guard) = (Arc::clone(&made), Gone(Arc::clone(&gone)));
        let parts = stream::repeat_with(move || {
            let _ = &guard;
            made.fetch_add(16 * 1024, Ordering::SeqCst);
            Ok::<_, Infallible>(Bytes::from_static(&[b'x'; 16 * 1024]))
        });
        async move { Body::from_stream(parts) }
    };
    hello_router().route("/endless", get(answer))
}

#[tokio::test]
async fn client_that_never_reads_is_disconnected() {
    let (made, gone) = (Arc::<AtomicUsize>::default(), Arc::<Notify>::default());
    let server = start_server(endless_router(&made, &gone), LIMITS).await;
    let idle_reader = server.send("GET /endless HTTP/1.1\r\nHost: x\r\n\r\n").await;
    assert!(server.get("/").await.ends_with("hello"));
    timeout(TEST_TIMEOUT, gone.notified()).await.expect("the response stream is dropped");
    let buffered = made.load(Ordering::SeqCst);
    // Kernel buffers of two sockets, and the server's own.
    assert!(buffered < 24 * 1024 * 1024, "{buffered} bytes were produced for an idle reader");
    drop(idle_reader);
}

#[tokio::test]
async fn steady_slow_reader_receives_whole_response() {
    let (made, gone) = (Arc::<AtomicUsize>::default(), Arc::<Notify>::default());
    // A third of the limit between two reads: a busy machine may add the rest.
    let within = Duration::from_secs(3);
    let limits = ServerLimits { min_throughput: MinThroughput { bytes: 1_000, within }, ..LIMITS };
    let server = start_server(endless_router(&made, &gone), limits).await;
    let mut stream = server.send("GET /endless HTTP/1.1\r\nHost: x\r\n\r\n").await;
    let mut times = tokio::time::interval(within / 3);
    let mut part = vec![0; 4 * 1024 * 1024];
    for _ in 0..6 {
        times.tick().await;
        timeout(TEST_TIMEOUT, stream.read_exact(&mut part))
            .await
            .unwrap()
            .expect("the response continues");
    }
    assert!(made.load(Ordering::SeqCst) >= 6 * part.len());
}

#[tokio::test]
async fn excess_connections_wait_for_a_free_slot() {
    let limits = ServerLimits { connections_max: 2, head_timeout: TEST_TIMEOUT, ..LIMITS };
    let server = start_server(hello_router(), limits).await;
    let first = server.send("GET / HTTP/1.1\r\nHost: x\r\n\r\n").await;
    let second = server.send("").await;
    let third = server.get("/");
    let mut third = std::pin::pin!(third);
    assert!(timeout(SHORT, third.as_mut()).await.is_err(), "the connection limit is reached");
    drop(first);
    assert!(timeout(TEST_TIMEOUT, third).await.unwrap().ends_with("hello"));
    drop(second);
}

#[tokio::test]
async fn shutdown_closes_idle_connections_and_finishes_requests() {
    let (begun, go) = (Arc::<Notify>::default(), Arc::<Notify>::default());
    let (begins, goes) = (Arc::clone(&begun), Arc::clone(&go));
    let handler = async move || {
        begins.notify_one();
        goes.notified().await;
        "done"
    };
    let limits = ServerLimits { head_timeout: TEST_TIMEOUT, ..LIMITS };
    let mut server = start_server(Router::new().route("/", get(handler)), limits).await;
    let mut idle = server.send("").await;
    let mut busy = server.send("GET / HTTP/1.1\r\nHost: x\r\n\r\n").await;
    begun.notified().await;
    server.stop.cancel();
    assert_eq!(read_to_end(&mut idle).await, "");
    go.notify_one();
    assert!(read_to_end(&mut busy).await.ends_with("done"));
    timeout(TEST_TIMEOUT, server.tasks.join_next()).await.unwrap().unwrap().unwrap();
}

#[tokio::test]
async fn http_2_preface_is_rejected() {
    let server = start_server(hello_router(), LIMITS).await;
    let response = read_to_end(&mut server.send("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await).await;
    assert!(response.is_empty() || response.starts_with("HTTP/1.1 400"), "{response:?}");
}

/// Routes whose responses have bounds: 8 MB of known size, and two slots.
fn bounded_router(time: Duration, slots: &Arc<Semaphore>) -> Router {
    let slots = Arc::clone(slots);
    let large = move || {
        let slot = Arc::clone(&slots).try_acquire_owned();
        async move {
            let Ok(slot) = slot else { return StatusCode::SERVICE_UNAVAILABLE.into_response() };
            let bounds = ResponseBounds::new(Instant::now() + time, Some(Arc::new(slot)));
            let mut response = vec![b'x'; 8_000_000].into_response();
            response.extensions_mut().insert(bounds);
            response
        }
    };
    hello_router().route("/large", get(large))
}

/// Limits under which only the bounds of a response cut it.
const PATIENT: ServerLimits = ServerLimits {
    head_timeout: TEST_TIMEOUT,
    min_throughput: MinThroughput { bytes: 1, within: TEST_TIMEOUT },
    connections_max: 50,
};

#[tokio::test]
async fn slow_reader_of_known_size_is_cut_in_time() {
    let slots = Arc::new(Semaphore::new(2));
    let server = start_server(bounded_router(Duration::from_secs(1), &slots), PATIENT).await;
    let mut slow = server.send("GET /large HTTP/1.1\r\nHost: x\r\n\r\n").await;
    let (mut read, mut part) = (0, vec![0; 16 * 1024]);
    let reading = async {
        loop {
            match slow.read(&mut part).await {
                Ok(0) | Err(_) => break,
                Ok(bytes) => read += bytes,
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(TEST_TIMEOUT, reading).await.expect("the server closes the connection");
    assert!(read < 8_000_000, "{read} bytes arrived");
    // The task of the connection ends after its socket.
    let released = timeout(TEST_TIMEOUT, slots.acquire_many(2)).await;
    assert!(released.is_ok_and(|slots| slots.is_ok()));
}

#[tokio::test]
async fn slot_is_kept_until_the_response_is_sent() {
    let slots = Arc::new(Semaphore::new(2));
    let server = start_server(bounded_router(TEST_TIMEOUT, &slots), PATIENT).await;
    let request = "GET /large HTTP/1.1\r\nHost: x\r\n\r\n";
    let mut idle_readers = vec![server.send(request).await, server.send(request).await];
    for reader in &mut idle_readers {
        reader.read_exact(&mut [0; 12]).await.unwrap();
    }
    assert!(server.get("/large").await.starts_with("HTTP/1.1 503"));
    assert!(server.get("/").await.ends_with("hello"), "other requests go on");
    let mut first = idle_readers.pop().unwrap();
    let mut part = vec![0; 64 * 1024];
    let reading = async {
        while slots.available_permits() == 0 {
            // The connection stays open for the next request.
            let _ = timeout(SHORT, first.read(&mut part)).await;
        }
    };
    timeout(TEST_TIMEOUT, reading).await.expect("the slot is released");
    assert!(server.get("/large").await.starts_with("HTTP/1.1 200"));
}
