//! The port of the handler. It is open before the routes of the app exist, if the store is away.

use std::net::SocketAddr;
use std::sync::Arc;

use axum::Router;
use axum::body::HttpBody as _;
use axum::extract::Request;
use axum::response::{IntoResponse as _, Response};
use http::header::CONNECTION;
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tower::ServiceExt as _;

use crate::start::start_error::{StartError, io_error};
use turnwheel_http::unread_body::discard_body;
use turnwheel_http::waiting::{buffer_invocation, is_message_function, waiting_response};
use turnwheel_platform::server::{self, ServerLimits};
use turnwheel_platform::shutdown::Shutdown;
use turnwheel_storage::store::outage_retry::REPETITION_TIME;

/// Request bodies that are read at a time while the store is away. The connections that are left are
/// for the Functions host's own requests.
const DISCARDED_BODIES_MAX: usize = 500;

#[derive(Debug)]
pub(crate) enum HandlerPort {
    Bound(TcpListener),
    Waiting(WaitingHandler),
}

/// A server that responds that the store is away, until the routes of the app are set.
#[derive(Debug)]
pub(crate) struct WaitingHandler {
    address: SocketAddr,
    app: watch::Sender<Option<Router>>,
    awaited: watch::Sender<&'static str>,
    /// Dropping it closes the port.
    server: JoinSet<()>,
}

impl HandlerPort {
    pub(crate) fn bind(port: u16) -> Result<Self, StartError> {
        bind(port).map(Self::Bound)
    }

    pub(crate) fn address(&self) -> std::io::Result<SocketAddr> {
        match self {
            Self::Bound(listener) => listener.local_addr(),
            Self::Waiting(waiting) => Ok(waiting.address),
        }
    }

    /// Serves the routes of the app until `stop` is cancelled, or the result is dropped.
    pub(crate) fn serve(self, router: Router, stop: CancellationToken) -> JoinSet<()> {
        match self {
            Self::Bound(listener) => {
                let mut server = JoinSet::new();
                server.spawn(server::serve(listener, router, ServerLimits::HANDLER, stop));
                server
            }
            // The port of a hosted process stays open until its end.
            Self::Waiting(waiting) => {
                waiting.app.send_replace(Some(router));
                waiting.server
            }
        }
    }
}

impl WaitingHandler {
    /// `awaited`: the part that the service cannot reach.
    pub(crate) fn start(
        port: u16,
        awaited: &'static str,
        shutdown: &Shutdown,
    ) -> Result<Self, StartError> {
        let listener = bind(port)?;
        let address = listener.local_addr().map_err(io_error("read the port of the handler"))?;
        let app = watch::Sender::new(None);
        let awaited = watch::Sender::new(awaited);
        let state = WaitingState {
            app: app.subscribe(),
            awaited: awaited.subscribe(),
            shutdown: shutdown.clone(),
            bodies: Arc::new(Semaphore::new(DISCARDED_BODIES_MAX)),
        };
        let router = waiting_router(state);
        let mut server = JoinSet::new();
        let stop = CancellationToken::new();
        server.spawn(server::serve(listener, router, ServerLimits::HANDLER, stop));
        Ok(Self { address, app, awaited, server })
    }

    pub(crate) fn set_awaited(&self, awaited: &'static str) {
        self.awaited.send_replace(awaited);
    }
}

fn bind(port: u16) -> Result<TcpListener, StartError> {
    server::bind_loopback(port).map_err(io_error("bind the port of the handler"))
}

/// State of a handler without its store.
#[derive(Clone)]
struct WaitingState {
    app: watch::Receiver<Option<Router>>,
    awaited: watch::Receiver<&'static str>,
    shutdown: Shutdown,
    bodies: Arc<Semaphore>,
}

fn waiting_router(state: WaitingState) -> Router {
    Router::new().fallback(move |request: Request| state.clone().respond(request))
}

impl WaitingState {
    async fn respond(self, request: Request) -> Response {
        let app = self.app.borrow().clone();
        if let Some(router) = app {
            return serve_request(router, request).await;
        }
        let path = request.uri().path().to_owned();
        if is_message_function(&path) {
            return self.wait_with_message(&path, request).await;
        }
        let body = request.into_body();
        if body.is_end_stream() {
            return self.refuse(&path);
        }
        let Ok(_slot) = self.bodies.try_acquire() else {
            return ([(CONNECTION, "close")], self.refuse(&path)).into_response();
        };
        // The connection can be used again.
        discard_body(body).await;
        self.refuse(&path)
    }

    /// Each delivery lasts as long as one whose first store request fails: after five quick failures
    /// the host would move the message to the poison queue.
    async fn wait_with_message(self, path: &str, request: Request) -> Response {
        let Some(request) = buffer_invocation(request).await else { return self.refuse(path) };
        let mut app = self.app.clone();
        let served = async {
            match app.wait_for(Option::is_some).await {
                Ok(router) => router.clone(),
                // The start has failed, and the process ends.
                Err(_) => None,
            }
        };
        let router = tokio::select! {
            router = served => router,
            () = tokio::time::sleep(REPETITION_TIME) => None,
            () = self.shutdown.clone().wait_until_begun() => None,
        };
        match router {
            Some(router) => serve_request(router, request).await,
            None => self.refuse(path),
        }
    }

    fn refuse(&self, path: &str) -> Response {
        waiting_response(path, *self.awaited.borrow())
    }
}

async fn serve_request(router: Router, request: Request) -> Response {
    router.oneshot(request).await.unwrap_or_else(|never| match never {})
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use axum::body::Body;
    use http::StatusCode;
    use tokio::time::Instant;

    use super::*;
    use turnwheel_platform::shutdown::StopTimes;

    /// A router without its app, and the sender that sets the app.
    fn new_router(shutdown: &Shutdown) -> (Router, watch::Sender<Option<Router>>) {
        let (app, awaited) = (watch::Sender::new(None), watch::Sender::new("its store"));
        let state = WaitingState {
            app: app.subscribe(),
            awaited: awaited.subscribe(),
            shutdown: shutdown.clone(),
            bodies: Arc::new(Semaphore::new(DISCARDED_BODIES_MAX)),
        };
        (waiting_router(state), app)
    }

    async fn send(router: &Router, path: &str, body: Body) -> Response {
        let request = Request::post(path).body(body).unwrap();
        serve_request(router.clone(), request).await
    }

    #[tokio::test]
    async fn slow_bodies_leave_connections_for_the_host() {
        let (router, _app) = new_router(&Shutdown::default());
        let send = |body: Body| Box::pin(send(&router, "/api/approvals/x", body));
        let endless =
            || Body::from_stream(futures_util::stream::pending::<std::io::Result<&str>>());
        let mut slow: Vec<_> = (0..DISCARDED_BODIES_MAX).map(|_| send(endless())).collect();
        for request in &mut slow {
            assert!(futures_util::poll!(request).is_pending());
        }
        let refused = send(endless()).await;
        assert_eq!(refused.status(), StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(refused.headers()[CONNECTION], "close");
        let without_body = send(Body::empty()).await;
        assert_eq!(without_body.status(), StatusCode::SERVICE_UNAVAILABLE);
        assert!(!without_body.headers().contains_key(CONNECTION));
        drop(slow);
        let read = send(Body::from("{}")).await;
        assert!(!read.headers().contains_key(CONNECTION));
    }

    #[tokio::test(start_paused = true)]
    async fn delivery_waits_for_the_store() {
        for function in ["turn", "prompt", "notify", "turn-poison", "notify-poison"] {
            let shutdown = Shutdown::default();
            let (router, app) = new_router(&shutdown);
            let path = format!("/{function}");
            let began = Instant::now();
            let failed = send(&router, &path, Body::from("{}")).await;
            assert_eq!(failed.status(), StatusCode::INTERNAL_SERVER_ERROR, "{function}");
            assert_eq!(began.elapsed(), REPETITION_TIME, "{function}: not moved before its time");

            let mut served = Box::pin(send(&router, &path, Body::from("whole")));
            assert!(futures_util::poll!(&mut served).is_pending());
            let echo = Router::new().fallback(|body: String| async move { body });
            app.send_replace(Some(echo));
            let body = axum::body::to_bytes(served.await.into_body(), 100).await.unwrap();
            assert_eq!(body, "whole", "{function}");

            let (router, _app) = new_router(&shutdown);
            let mut stopped = Box::pin(send(&router, &path, Body::from("{}")));
            assert!(futures_util::poll!(&mut stopped).is_pending());
            let began = Instant::now();
            let times = Duration::from_secs(4);
            shutdown.begin(StopTimes { repeatable: times, writes: times });
            assert_eq!(stopped.await.status(), StatusCode::INTERNAL_SERVER_ERROR, "{function}");
            assert_eq!(began.elapsed(), Duration::ZERO, "{function}: the host gives 10 s");
        }
        let (router, _app) = new_router(&Shutdown::default());
        assert_eq!(send(&router, "/sweep", Body::from("{}")).await.status(), StatusCode::OK);
    }
}
