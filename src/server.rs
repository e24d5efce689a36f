//! HTTP/1.1 within bounds: clients that are slow, silent or many hold little, and not for long.
//!
//! The Functions host's own server has such bounds; a handler without that host in front needs them as much.

mod pace;

use std::convert::Infallible;
use std::net::SocketAddr;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tower::ServiceExt as _;

use self::pace::{PacedBody, PacedStream};

pub use self::pace::{Pace, is_too_slow};

/// Bytes of a request's line and headers; also what a connection holds of an answer that is not taken.
const BUFFER_BYTES_MAX: usize = 64 * 1024;
/// Lines of headers.
const HEADERS_MAX: usize = 100;
/// After a connection could not be accepted, because the process has too many files open.
const ACCEPT_AGAIN_AFTER: Duration = Duration::from_secs(1);

/// What clients may take.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// For a request's line and headers, and for saying nothing between requests.
    pub head: Duration,
    /// Of a request's body as it comes, and of an answer as it is taken.
    pub pace: Pace,
    /// More wait until one is closed.
    pub connections_max: usize,
}

impl Bounds {
    /// Of a server that browsers and programs speak to.
    pub const LOCAL_HOST: Self =
        Self { head: Duration::from_secs(30), pace: Pace::USUAL, connections_max: 2_000 };

    /// Of the handler: the Functions host keeps a connection for a minute or two that it does not use, and one that we
    /// close while it is used again is a failed invocation.
    pub const HANDLER: Self = Self { head: Duration::from_mins(3), ..Self::LOCAL_HOST };
}

/// Until `stop`; then takes nothing new and ends when what is under way has. Dropped, it cuts that.
pub async fn serve(listener: TcpListener, router: Router, bounds: Bounds, stop: CancellationToken) {
    // Once, instead of for each request.
    let router = router.with_state(());
    let mut connections = JoinSet::new();
    let mut was_full = false;
    loop {
        let is_full = connections.len() >= bounds.connections_max;
        if is_full && !was_full {
            tracing::warn!("{} connections are open: more wait", bounds.connections_max);
        }
        was_full = is_full;
        tokio::select! {
            () = stop.cancelled() => break,
            Some(ended) = connections.join_next() => look(ended),
            stream = accept(&listener), if !is_full => {
                connections.spawn(converse(stream, router.clone(), bounds, stop.clone()));
            }
        }
    }
    drop(listener);
    while let Some(ended) = connections.join_next().await {
        look(ended);
    }
}

fn look(ended: Result<(), tokio::task::JoinError>) {
    if let Err(error) = ended
        && error.is_panic()
    {
        tracing::error!(error = %error, "a connection died; the others go on");
    }
}

async fn accept(listener: &TcpListener) -> TcpStream {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                // Small events must not wait for each other; a stream that refuses this is merely slower.
                if let Err(error) = stream.set_nodelay(true) {
                    tracing::debug!(error = %error, "TCP_NODELAY was refused");
                }
                return stream;
            }
            Err(error) if is_the_clients(&error) => {}
            Err(error) => {
                let at = listener.local_addr().map_or_else(|_| String::new(), told);
                tracing::error!(error = %error, "no connection can be taken{at}; trying again");
                tokio::time::sleep(ACCEPT_AGAIN_AFTER).await;
            }
        }
    }
}

fn told(address: SocketAddr) -> String {
    format!(" at {address}")
}

/// Whoever connected has left meanwhile.
fn is_the_clients(error: &std::io::Error) -> bool {
    use std::io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};

    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset)
}

/// One connection, request after request. Not HTTP/2: nobody who speaks to us needs it, and it has more ways to be abused.
async fn converse(stream: TcpStream, router: Router, bounds: Bounds, stop: CancellationToken) {
    let service = service_fn(move |request: http::Request<Incoming>| {
        let request = request.map(|body| Body::new(PacedBody::new(body, bounds.pace)));
        let answering = router.clone().oneshot(request);
        async move { Ok::<_, Infallible>(answering.await.unwrap_or_else(|never| match never {})) }
    });
    let mut builder = http1::Builder::new();
    builder
        .timer(TokioTimer::new())
        .header_read_timeout(bounds.head)
        .max_headers(HEADERS_MAX)
        .max_buf_size(BUFFER_BYTES_MAX);
    let stream = TokioIo::new(PacedStream::new(stream, bounds.pace));
    let mut connection = Box::pin(builder.serve_connection(stream, service));
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = stop.cancelled() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(error = %error, "a connection was cut");
    }
}

#[cfg(test)]
mod tests;
