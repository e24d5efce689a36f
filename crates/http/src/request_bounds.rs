//! Bounds of all requests of the API: their time, and how many are under way. The connections that
//! are left are for the Functions host's own requests: its start-up check and the functions.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};
use http::Method;
use http::header::CONNECTION;
use http_body::Body as _;
use percent_encoding::percent_decode_str;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, sleep_until};

use crate::origin::APPROVAL_LINKS_PATH;
use crate::problem::{self, Problem};
use turnwheel_platform::server::ResponseBounds;
use turnwheel_platform::shutdown::Shutdown;
use turnwheel_queries::event_stream::STREAM_DURATION_MAX;
use turnwheel_record::services::Services;

/// Requests under way on the routes that need a key, from the head of a request to the last byte of
/// its response. Waits and event streams are among them.
const KEYED_REQUESTS_MAX: usize = 1_100;
/// Requests under way of approval links, which anybody may call.
const LINK_REQUESTS_MAX: usize = 200;
/// All other requests under way that need no key.
const PAGE_REQUESTS_MAX: usize = 200;
/// `Retry-After` in seconds.
const RETRY_AFTER: u64 = 1;
/// Called by platforms, which must not take a busy app for a broken one.
const HEALTH_PATH: &str = "/api/health";
/// Starts of the paths that anybody may call, besides those of approval links.
const PAGE_PATHS: [&str; 3] = [HEALTH_PATH, "/api/openapi", "/api/console"];

/// Bounds of the requests of an instance.
#[derive(Debug)]
pub(crate) struct RequestBounds {
    time: Duration,
    shutdown: Shutdown,
    keyed: Arc<Semaphore>,
    links: Arc<Semaphore>,
    pages: Arc<Semaphore>,
}

/// Slots of which a request takes one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SlotPool {
    Keyed,
    /// Approval links.
    Links,
    /// Pages, documents, preflights, and paths in odd spellings.
    Pages,
}

/// The time at which a request must have its response: an extension of the request.
#[derive(Clone, Debug)]
pub(crate) struct RequestEnd {
    pub at: Instant,
    /// `None`: the request began after all work had stopped, and is served as long as possible.
    shutdown: Option<Shutdown>,
}

/// Why a request ends without the response of its route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EndReason {
    TimeOver,
    Stopping,
}

impl RequestBounds {
    pub(crate) fn new(services: &Services) -> Self {
        // Event streams have a time of their own.
        let time = services.limits.turn_duration.max(STREAM_DURATION_MAX);
        let slots = [KEYED_REQUESTS_MAX, LINK_REQUESTS_MAX, PAGE_REQUESTS_MAX];
        Self::with_slots(time, services.shutdown.clone(), slots)
    }

    /// `slots`: with a key, of approval links, of other requests.
    fn with_slots(time: Duration, shutdown: Shutdown, slots: [usize; 3]) -> Self {
        let [keyed, links, pages] = slots.map(|slots| Arc::new(Semaphore::new(slots)));
        Self { time, shutdown, keyed, links, pages }
    }

    /// # Errors
    /// All slots are taken.
    fn take_slot(&self, request: &Request) -> Result<Option<Arc<OwnedSemaphorePermit>>, Problem> {
        let path = request.uri().path();
        if path == HEALTH_PATH && request.body().is_end_stream() {
            return Ok(None);
        }
        let slots = match find_pool(request.method(), path) {
            SlotPool::Keyed => &self.keyed,
            SlotPool::Links => &self.links,
            SlotPool::Pages => &self.pages,
        };
        Arc::clone(slots).try_acquire_owned().map(|slot| Some(Arc::new(slot))).map_err(|_| busy())
    }
}

impl RequestEnd {
    /// Completes when the request has to end: its time is over, or the process ends.
    pub(crate) async fn wait(&self) -> EndReason {
        let stopped = async {
            match &self.shutdown {
                Some(shutdown) => shutdown.wait_for_deadline(true).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = sleep_until(self.at) => EndReason::TimeOver,
            () = stopped => EndReason::Stopping,
        }
    }
}

/// Middleware of all routes: refuses a request above the bounds at once.
pub(crate) async fn bound_request(
    State(bounds): State<Arc<RequestBounds>>,
    mut request: Request,
    next: Next,
) -> Response {
    let slot = match bounds.take_slot(&request) {
        Ok(slot) => slot,
        Err(problem) => return problem.into_response(),
    };
    let shutdown = Some(bounds.shutdown.clone()).filter(|shutdown| !shutdown.is_work_stopped());
    let end = RequestEnd { at: Instant::now() + bounds.time, shutdown };
    let cut_at = end.at;
    request.extensions_mut().insert(end);
    let mut response = next.run(request).await;
    response.extensions_mut().insert(ResponseBounds::new(cut_at, slot));
    response
}

fn busy() -> Problem {
    let detail = "This instance has as many requests under way as it accepts. Repeat the request.";
    // The rest of the body is not read.
    Problem::new(problem::UNAVAILABLE, detail)
        .retry_after(RETRY_AFTER)
        .with_header(CONNECTION, "close")
}

/// Returns the pool of a request. One that the Functions host may forward without a key, in any
/// spelling of its path, takes no keyed slot.
fn find_pool(method: &Method, path: &str) -> SlotPool {
    let path = percent_decode_str(path).decode_utf8_lossy().to_ascii_lowercase();
    let is_odd = !path.starts_with("/api/") || path.contains("//") || path.contains("/.");
    let is_page = PAGE_PATHS.iter().any(|page| path.starts_with(page));
    if is_odd || is_page || *method == Method::OPTIONS {
        return SlotPool::Pages;
    }
    // The list of approvals needs a key.
    let token = path.strip_prefix(APPROVAL_LINKS_PATH);
    if token.is_some_and(|token| !token.is_empty()) { SlotPool::Links } else { SlotPool::Keyed }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::future::pending;

    use axum::Router;
    use axum::body::{Body, Bytes};
    use axum::middleware::{from_fn, from_fn_with_state};
    use axum::routing::{get, post};
    use futures_util::stream;
    use http::StatusCode;
    use http::header::RETRY_AFTER;
    use http_body_util::{BodyExt as _, LengthLimitError, Limited};
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpStream;
    use tokio::task::JoinSet;
    use tokio_util::sync::CancellationToken;
    use tower::ServiceExt as _;

    use super::*;
    use crate::events::STREAMS_MAX;
    use crate::long_poll::WAITS_MAX;
    use crate::time_limit::limit_time;
    use crate::unread_body::drain_unread_body;
    use turnwheel_platform::error_chain::has_cause;
    use turnwheel_platform::server::{self, ServerLimits};
    use turnwheel_platform::shutdown::StopTimes;

    const TIME: Duration = Duration::from_secs(200);

    fn bounded(routes: Router, shutdown: &Shutdown, slots: [usize; 3]) -> Router {
        let bounds = Arc::new(RequestBounds::with_slots(TIME, shutdown.clone(), slots));
        routes
            .layer(from_fn(limit_time))
            .layer(from_fn(drain_unread_body))
            .layer(from_fn_with_state(bounds, bound_request))
    }

    /// A body that never ends and is faster than the server's minimum throughput.
    fn slow_body() -> Body {
        Body::from_stream(stream::unfold((), |()| async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            Some((Ok::<_, Infallible>(Bytes::from_static(&[b'x'; 1_400])), ()))
        }))
    }

    async fn send(router: &Router, path: &str, body: Body) -> Response {
        router.clone().oneshot(Request::post(path).body(body).unwrap()).await.unwrap()
    }

    async fn read_all(request: Request) -> StatusCode {
        request.into_body().collect().await.map_or(StatusCode::BAD_REQUEST, |_| StatusCode::OK)
    }

    async fn read_some(request: Request) -> StatusCode {
        match Limited::new(request.into_body(), 4_000).collect().await {
            Err(error) if has_cause::<LengthLimitError>(&*error) => StatusCode::PAYLOAD_TOO_LARGE,
            _ => StatusCode::OK,
        }
    }

    #[tokio::test(start_paused = true)]
    async fn slow_bodies_end_within_the_time_limit() {
        let routes = Router::new()
            .route("/api/refuse", post(async || StatusCode::UNAUTHORIZED))
            .route("/api/some", post(read_some))
            .route("/api/read", post(read_all))
            .route("/api/hang", post(pending::<()>));
        let router = bounded(routes, &Shutdown::default(), [10; 3]);
        for (path, status, seconds_max) in [
            ("/api/refuse", 401, 31),
            ("/api/none", 404, 31),
            ("/api/some", 413, 34),
            ("/api/read", 503, 200),
            ("/api/hang", 503, 200),
        ] {
            let start = Instant::now();
            let response = send(&router, path, slow_body()).await;
            assert_eq!(response.status(), status, "{path}");
            let took = start.elapsed().as_secs();
            assert!(took <= seconds_max, "{path}: {took} s");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn stop_ends_requests_under_way() {
        let shutdown = Shutdown::default();
        let routes = Router::new()
            .route("/api/read", post(read_all))
            .route("/api/refuse", post(async || StatusCode::UNAUTHORIZED));
        let router = bounded(routes, &shutdown, [10; 3]);
        let seconds = Duration::from_secs;
        shutdown.begin(StopTimes { repeatable: seconds(4), writes: seconds(9) });
        let start = Instant::now();
        let (read, refused) = tokio::join!(
            send(&router, "/api/read", slow_body()),
            send(&router, "/api/refuse", slow_body())
        );
        assert_eq!(
            (read.status(), refused.status()),
            (StatusCode::SERVICE_UNAVAILABLE, StatusCode::UNAUTHORIZED)
        );
        assert!(read.headers().contains_key(RETRY_AFTER));
        assert_eq!(start.elapsed(), seconds(9));
        assert_eq!(send(&router, "/api/read", Body::from("{}")).await.status(), 200, "a late one");
    }

    #[tokio::test(start_paused = true)]
    async fn requests_above_the_bound_are_refused_at_once() {
        let routes = Router::new()
            .route("/api/approvals/{token}", post(read_all))
            .route("/api/console/{*path}", post(read_all))
            .route("/api/prompts", post(read_all))
            .route("/api/health", get(async || "healthy"));
        let router = bounded(routes, &Shutdown::default(), [1; 3]);
        let health = || Request::get("/api/health").body(Body::empty()).unwrap();
        let paths = ["/api/approvals/x", "/api/console/x", "/api/prompts"];
        for path in paths {
            let start = Instant::now();
            let mut slow = Box::pin(send(&router, path, slow_body()));
            assert!(tokio::time::timeout(Duration::from_secs(1), &mut slow).await.is_err());
            let refused = send(&router, path, slow_body()).await;
            assert_eq!(refused.status(), 503, "{path}");
            assert_eq!(refused.headers()["connection"], "close");
            assert!(start.elapsed() < Duration::from_secs(2), "{path}");
            assert_eq!(router.clone().oneshot(health()).await.unwrap().status(), 200);
            for other in paths.into_iter().filter(|other| *other != path) {
                assert_eq!(send(&router, other, Body::empty()).await.status(), 200, "{other}");
            }
            drop(slow);
            let response = send(&router, path, Body::from("{}")).await;
            assert_eq!(response.status(), 200, "{path}: the slot is free again");
            // The server releases the slot when the response is sent.
            let busy = send(&router, path, Body::empty()).await;
            assert_eq!(busy.status(), 503, "{path}");
            drop(response);
            assert_eq!(send(&router, path, Body::empty()).await.status(), 200, "{path}");
        }
    }

    #[test]
    fn bounds_leave_connections_in_reserve() {
        const { assert!(KEYED_REQUESTS_MAX >= STREAMS_MAX + WAITS_MAX) };
        let bounded = KEYED_REQUESTS_MAX + LINK_REQUESTS_MAX + PAGE_REQUESTS_MAX;
        assert!(ServerLimits::HANDLER.connections_max - bounded >= 500);
    }

    /// As the Functions host forwards them: slow bodies to a route without a key, on more connections
    /// than the server accepts.
    #[tokio::test]
    async fn slow_bodies_leave_connections_to_the_functions_host() {
        let routes = Router::new().route("/api/approvals/{token}", post(read_all));
        let bounded = bounded(routes, &Shutdown::default(), [10, 5, 5]);
        let router = bounded.merge(Router::new().route("/", get(async || "running")));
        let listener = server::bind_loopback(0).unwrap();
        let address = listener.local_addr().unwrap();
        let limits = ServerLimits { connections_max: 20, ..ServerLimits::HANDLER };
        let mut servers = JoinSet::new();
        servers.spawn(server::serve(listener, router, limits, CancellationToken::new()));
        let mut attackers = Vec::new();
        for _ in 0..60 {
            let mut stream = TcpStream::connect(address).await.unwrap();
            let head =
                "POST /api/approvals/x HTTP/1.1\r\nHost: x\r\nContent-Length: 2000000\r\n\r\nx";
            stream.write_all(head.as_bytes()).await.unwrap();
            attackers.push(stream);
        }
        let mut probe = TcpStream::connect(address).await.unwrap();
        probe.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
        let mut response = [0; 15];
        let read = probe.read_exact(&mut response);
        tokio::time::timeout(Duration::from_secs(20), read).await.unwrap().unwrap();
        assert_eq!(&response, b"HTTP/1.1 200 OK");
        drop(attackers);
    }

    #[test]
    fn spellings_of_open_paths_take_no_keyed_slots() {
        let pool = |path: &str| find_pool(&Method::GET, path);
        for link in ["/api/approvals/x", "/API/Approvals/x", "/api/%61pprovals/x"] {
            assert_eq!(pool(link), SlotPool::Links, "{link}");
        }
        for page in [
            "/api//approvals/x",
            "/api/x/../approvals/x",
            "/api/%2e/approvals/x",
            "/api/health",
            "/api/Health/",
            "/api/openapi.json",
            "/api/openapi-3.0.json",
            "/api/%6fpenapi.json",
            "/api/console",
            "/api/console/a/b.js",
            "/other",
        ] {
            assert_eq!(pool(page), SlotPool::Pages, "{page}");
        }
        for keyed in [
            "/api/prompts",
            "/api/approvals",
            "/api/approvals/",
            "/api/conversations/approvals",
            "/api/conversations/health-1",
        ] {
            assert_eq!(pool(keyed), SlotPool::Keyed, "{keyed}");
            assert_eq!(find_pool(&Method::POST, keyed), SlotPool::Keyed, "{keyed}");
            assert_eq!(find_pool(&Method::OPTIONS, keyed), SlotPool::Pages, "{keyed}");
        }
        assert_eq!(find_pool(&Method::OPTIONS, "/api/approvals/x"), SlotPool::Pages);
    }
}
