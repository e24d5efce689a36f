//! Tests of the limits for slow, idle and numerous clients, over real sockets.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::extract::Request;
use axum::http::StatusCode;
use axum::routing::{get, post};
use bytes::Bytes;
use futures_util::stream;
use http_body_util::BodyExt as _;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::sync::Notify;
use tokio::time::{Instant, timeout};

use super::*;

/// Longer than any step of these tests takes.
const SOON: Duration = Duration::from_secs(10);
const SHORT: Duration = Duration::from_millis(150);
const BOUNDS: Bounds =
    Bounds { head: SHORT, pace: Pace { bytes: 1_000, within: SHORT }, connections_max: 50 };

struct Served {
    address: SocketAddr,
    stop: CancellationToken,
    tasks: JoinSet<()>,
}

async fn served(router: Router, bounds: Bounds) -> Served {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (stop, mut tasks) = (CancellationToken::new(), JoinSet::new());
    tasks.spawn(serve(listener, router, bounds, stop.clone()));
    Served { address, stop, tasks }
}

impl Served {
    async fn send(&self, text: &str) -> TcpStream {
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        stream.write_all(text.as_bytes()).await.unwrap();
        stream
    }

    async fn get(&self, path: &str) -> String {
        let text = format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
        rest(&mut self.send(&text).await).await
    }
}

/// Reads until the server closes the connection.
async fn rest(stream: &mut TcpStream) -> String {
    let mut bytes = Vec::new();
    // A connection reset also ends the response.
    let _ = timeout(SOON, stream.read_to_end(&mut bytes)).await.expect("the server closes the connection");
    String::from_utf8_lossy(&bytes).into_owned()
}

fn hello() -> Router {
    Router::new().route("/", get(async || "hello"))
}

/// Returns the length of the body, or the status and text of its error.
async fn told(request: Request) -> (StatusCode, String) {
    match request.into_body().collect().await {
        Ok(body) => (StatusCode::OK, body.to_bytes().len().to_string()),
        Err(error) if is_too_slow(&error) => (StatusCode::REQUEST_TIMEOUT, error.to_string()),
        Err(error) => (StatusCode::BAD_REQUEST, error.to_string()),
    }
}

#[tokio::test]
async fn who_says_nothing_or_not_enough_is_cut() {
    let served = served(hello(), BOUNDS).await;
    for said in ["", "G", "GET / HTTP/1.1\r\nHost: x\r\nX-More: "] {
        assert_eq!(rest(&mut served.send(said).await).await, "", "{said}");
    }
    // Sends one letter after the other and never completes the headers: the time limit is for all
    // of them.
    let stream = served.send("GET / HTTP/1.1\r\nHost: x\r\nX-More: ").await;
    let (mut reading, mut writing) = stream.into_split();
    let began = Instant::now();
    let trickle = async {
        let mut letters = tokio::time::interval(SHORT / 10);
        while writing.write_all(b"a").await.is_ok() {
            letters.tick().await;
        }
    };
    let mut bytes = Vec::new();
    tokio::select! {
        () = trickle => {}
        _ = reading.read_to_end(&mut bytes) => {}
    }
    assert!(bytes.is_empty() && began.elapsed() < SOON, "{bytes:?}");
    // A connection that stays idle after its first response is closed as well.
    let kept = rest(&mut served.send("GET / HTTP/1.1\r\nHost: x\r\n\r\n").await).await;
    assert!(kept.starts_with("HTTP/1.1 200") && kept.ends_with("hello"), "{kept}");
}

#[tokio::test]
async fn a_body_that_trickles_is_told_so_and_one_that_we_keep_waiting_is_not() {
    let router = Router::new().route("/", post(told)).route(
        "/busy",
        post(async |request: Request| {
            // Longer than the client's limit: the handler's own time does not count.
            tokio::time::sleep(SHORT * 3).await;
            told(request).await
        }),
    );
    let served = served(router, BOUNDS).await;
    let head = |path: &str| {
        format!("POST {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 3\r\n\r\n")
    };
    let slow = rest(&mut served.send(&format!("{}ab", head("/"))).await).await;
    assert!(slow.starts_with("HTTP/1.1 408"), "{slow}");
    let whole = rest(&mut served.send(&format!("{}abc", head("/busy"))).await).await;
    assert!(whole.starts_with("HTTP/1.1 200") && whole.ends_with('3'), "{whole}");
    // Chunks of one letter, each within the time limit.
    let start = "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n";
    let (mut reading, mut writing) = served.send(start).await.into_split();
    let trickle = async {
        let mut letters = tokio::time::interval(SHORT / 10);
        while writing.write_all(b"1\r\na\r\n").await.is_ok() {
            letters.tick().await;
        }
    };
    let mut answer = [0; 12];
    let told = async { reading.read_exact(&mut answer).await.map(|_| answer) };
    tokio::select! {
        () = trickle => panic!("the connection closed without a response"),
        told = timeout(SOON, told) => assert_eq!(&told.unwrap().unwrap(), b"HTTP/1.1 408"),
    }
}

/// A route with an endless response body. Counts the bytes produced in `made`.
fn endless(made: &Arc<AtomicUsize>, gone: &Arc<Notify>) -> Router {
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
    hello().route("/endless", get(answer))
}

#[tokio::test]
async fn who_asks_for_much_and_reads_nothing_is_cut_and_others_do_not_wait() {
    let (made, gone) = (Arc::<AtomicUsize>::default(), Arc::<Notify>::default());
    let served = served(endless(&made, &gone), BOUNDS).await;
    let deaf = served.send("GET /endless HTTP/1.1\r\nHost: x\r\n\r\n").await;
    assert!(served.get("/").await.ends_with("hello"));
    timeout(SOON, gone.notified()).await.expect("the response stream is dropped");
    let held = made.load(Ordering::SeqCst);
    // Kernel buffers of two sockets, and the server's own.
    assert!(held < 24 * 1024 * 1024, "{held} bytes were produced for an idle reader");
    drop(deaf);
}

#[tokio::test]
async fn who_reads_steadily_is_served_however_long_it_takes() {
    let (made, gone) = (Arc::<AtomicUsize>::default(), Arc::<Notify>::default());
    let served = served(endless(&made, &gone), BOUNDS).await;
    let mut stream = served.send("GET /endless HTTP/1.1\r\nHost: x\r\n\r\n").await;
    let mut times = tokio::time::interval(SHORT / 3);
    let mut part = vec![0; 4 * 1024 * 1024];
    for _ in 0..12 {
        times.tick().await;
        timeout(SOON, stream.read_exact(&mut part)).await.unwrap().expect("the response continues");
    }
    assert!(made.load(Ordering::SeqCst) >= 12 * part.len());
}

#[tokio::test]
async fn more_connections_than_there_may_be_wait_for_a_place() {
    let bounds = Bounds { connections_max: 2, head: SOON, ..BOUNDS };
    let served = served(hello(), bounds).await;
    let first = served.send("GET / HTTP/1.1\r\nHost: x\r\n\r\n").await;
    let second = served.send("").await;
    let third = served.get("/");
    let mut third = std::pin::pin!(third);
    assert!(timeout(SHORT, third.as_mut()).await.is_err(), "the connection limit is reached");
    drop(first);
    assert!(timeout(SOON, third).await.unwrap().ends_with("hello"));
    drop(second);
}

#[tokio::test]
async fn a_stop_ends_what_is_idle_and_waits_for_what_is_not() {
    let (begun, go) = (Arc::<Notify>::default(), Arc::<Notify>::default());
    let (begins, goes) = (Arc::clone(&begun), Arc::clone(&go));
    let answer = async move || {
        begins.notify_one();
        goes.notified().await;
        "done"
    };
    let bounds = Bounds { head: SOON, ..BOUNDS };
    let mut served = served(Router::new().route("/", get(answer)), bounds).await;
    let mut idle = served.send("").await;
    let mut busy = served.send("GET / HTTP/1.1\r\nHost: x\r\n\r\n").await;
    begun.notified().await;
    served.stop.cancel();
    assert_eq!(rest(&mut idle).await, "");
    go.notify_one();
    assert!(rest(&mut busy).await.ends_with("done"));
    timeout(SOON, served.tasks.join_next()).await.unwrap().unwrap().unwrap();
}

#[tokio::test]
async fn http_2_is_not_spoken() {
    let served = served(hello(), BOUNDS).await;
    let answer = rest(&mut served.send("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await).await;
    assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 400"), "{answer:?}");
}
