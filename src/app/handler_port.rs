//! The port of the handler. It is open before the routes of the app exist, if the store is away.

use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};

use axum::Router;
use axum::extract::Request;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tower::ServiceExt as _;

use crate::app::start_error::{StartError, io_error};
use turnwheel_http::unread_body::discard_body;
use turnwheel_http::waiting::waiting_response;
use turnwheel_platform::server::{self, ServerLimits};

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
    Router::new().fallback(move |request: Request| {
        let (app, awaited) = (app.get().cloned(), *awaited.borrow());
        async move {
            if let Some(router) = app {
                return router.oneshot(request).await.unwrap_or_else(|never| match never {});
            }
            let path = request.uri().path().to_owned();
            // The connection can be used again.
            discard_body(request.into_body()).await;
            waiting_response(&path, awaited)
        }
    })
}
