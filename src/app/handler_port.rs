//! The port of the handler. It is open before the routes of the app exist, if the store is away.

use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};

use axum::Router;
use axum::body::HttpBody as _;
use axum::extract::Request;
use axum::response::IntoResponse as _;
use http::header::CONNECTION;
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tower::ServiceExt as _;

use crate::app::start_error::{StartError, io_error};
use turnwheel_http::unread_body::discard_body;
use turnwheel_http::waiting::waiting_response;
use turnwheel_platform::server::{self, ServerLimits};

/// Request bodies that are read at a time while the store is away. The connections that are left are
/// for the Functions host's own requests.
const DISCARDED_BODIES_MAX: usize = 500;

#[derive(Debug)]
pub(super) enum HandlerPort {
    Bound(TcpListener),
    Waiting(WaitingHandler),
}

/// A server that responds that the store is away, until the routes of the app are set.
#[derive(Debug)]
pub(super) struct WaitingHandler {
    address: SocketAddr,
    app: Arc<OnceLock<Router>>,
    awaited: watch::Sender<&'static str>,
    /// Dropping it closes the port.
    server: JoinSet<()>,
}

impl HandlerPort {
    pub(super) fn bind(port: u16) -> Result<Self, StartError> {
        bind(port).map(Self::Bound)
    }

    pub(super) fn address(&self) -> std::io::Result<SocketAddr> {
        match self {
            Self::Bound(listener) => listener.local_addr(),
            Self::Waiting(waiting) => Ok(waiting.address),
        }
    }

    /// Serves the routes of the app until `stop` is cancelled, or the result is dropped.
    pub(super) fn serve(self, router: Router, stop: CancellationToken) -> JoinSet<()> {
        match self {
            Self::Bound(listener) => {
                let mut server = JoinSet::new();
                server.spawn(server::serve(listener, router, ServerLimits::HANDLER, stop));
                server
            }
            // The port of a hosted process stays open until its end.
            Self::Waiting(waiting) => {
                let _ = waiting.app.set(router);
                waiting.server
            }
        }
    }
}

impl WaitingHandler {
    /// `awaited`: the part that the service cannot reach.
    pub(super) fn start(port: u16, awaited: &'static str) -> Result<Self, StartError> {
        let listener = bind(port)?;
        let address = listener.local_addr().map_err(io_error("read the port of the handler"))?;
        let app = Arc::new(OnceLock::new());
        let awaited = watch::Sender::new(awaited);
        let router = waiting_router(Arc::clone(&app), awaited.subscribe());
        let mut server = JoinSet::new();
        let stop = CancellationToken::new();
        server.spawn(server::serve(listener, router, ServerLimits::HANDLER, stop));
        Ok(Self { address, app, awaited, server })
    }

    pub(super) fn set_awaited(&self, awaited: &'static str) {
        self.awaited.send_replace(awaited);
    }
}

fn bind(port: u16) -> Result<TcpListener, StartError> {
    server::bind_loopback(port).map_err(io_error("bind the port of the handler"))
}

fn waiting_router(app: Arc<OnceLock<Router>>, awaited: watch::Receiver<&'static str>) -> Router {
    let bodies = Arc::new(Semaphore::new(DISCARDED_BODIES_MAX));
    Router::new().fallback(move |request: Request| {
        let (app, awaited) = (app.get().cloned(), *awaited.borrow());
        let bodies = Arc::clone(&bodies);
        async move {
            if let Some(router) = app {
                return router.oneshot(request).await.unwrap_or_else(|never| match never {});
            }
            let path = request.uri().path().to_owned();
            let body = request.into_body();
            if body.is_end_stream() {
                return waiting_response(&path, awaited);
            }
            let Ok(_slot) = bodies.try_acquire() else {
                let close = [(CONNECTION, "close")];
                return (close, waiting_response(&path, awaited)).into_response();
            };
            // The connection can be used again.
            discard_body(body).await;
            waiting_response(&path, awaited)
        }
    })
}

#[cfg(test)]
mod tests {
    use axum::body::Body;
    use http::StatusCode;

    use super::*;

    #[tokio::test]
    async fn slow_bodies_leave_connections_for_the_host() {
        let (_sender, awaited) = watch::channel("its store");
        let router = waiting_router(Arc::default(), awaited);
        let send = |body: Body| {
            let request = Request::post("/api/approvals/x").body(body).unwrap();
            Box::pin(router.clone().oneshot(request))
        };
        let endless =
            || Body::from_stream(futures_util::stream::pending::<std::io::Result<&str>>());
        let mut slow: Vec<_> = (0..DISCARDED_BODIES_MAX).map(|_| send(endless())).collect();
        for request in &mut slow {
            assert!(futures_util::poll!(request).is_pending());
        }
        let refused = send(endless()).await.unwrap();
        assert_eq!(refused.status(), StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(refused.headers()[CONNECTION], "close");
        let without_body = send(Body::empty()).await.unwrap();
        assert_eq!(without_body.status(), StatusCode::SERVICE_UNAVAILABLE);
        assert!(!without_body.headers().contains_key(CONNECTION));
        drop(slow);
        let read = send(Body::from("{}")).await.unwrap();
        assert!(!read.headers().contains_key(CONNECTION));
    }
}
