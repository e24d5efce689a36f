//! HTTP/1.1 server with limits on the time and memory that slow, idle or numerous clients use.
//!
//! The Functions host's own server has such limits. A handler without that host in front needs them
//! too.

mod exchange;
mod min_throughput;

use std::convert::Infallible;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tower::ServiceExt as _;

use self::exchange::Exchange;
use self::min_throughput::{TimedBody, TimedStream};

pub use self::exchange::ResponseBounds;
pub use self::min_throughput::MinThroughput;
pub use self::min_throughput::is_client_too_slow;

/// Maximum bytes of a request line with its headers. Also the maximum of response bytes that a
/// connection buffers while the client does not read.
const BUFFER_BYTES_MAX: usize = 64 * 1024;
/// Kernel buffer of a connection for bytes to send. A client may still read it after its response was
/// cut.
const SEND_BUFFER_BYTES: u32 = 64 * 1024;
/// Connections that wait to be accepted.
const BACKLOG: u32 = 1024;
/// Maximum number of header lines.
const HEADERS_MAX: usize = 100;
/// Delay after a failed accept, for example when the process has too many open files.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_secs(1);

/// Limits on the time and connections that clients can use.
#[derive(Clone, Copy, Debug)]
pub struct ServerLimits {
    /// Time limit for a request line with its headers, and for an idle connection between requests.
    pub head_timeout: Duration,
    /// Minimum throughput of request bodies received and of responses sent.
    pub min_throughput: MinThroughput,
    /// Further connections wait until an open one closes.
    pub connections_max: usize,
}

impl ServerLimits {
    /// Limits for a server that browsers and programs call directly.
    pub const LOCAL_HOST: Self = Self {
        head_timeout: Duration::from_secs(30),
        min_throughput: MinThroughput::DEFAULT,
        connections_max: 2_000,
    };

    /// Limits for the custom handler. The Functions host keeps idle connections for a minute or
    /// two. If the handler closes a connection that the host reuses, an invocation fails.
    pub const HANDLER: Self = Self { head_timeout: Duration::from_mins(3), ..Self::LOCAL_HOST };
}

/// Opens a port of this machine.
///
/// # Errors
/// The port is in use: show the error.
pub fn bind_loopback(port: u16) -> io::Result<TcpListener> {
    let socket = TcpSocket::new_v4()?;
    // As `TcpListener::bind`: on Windows the option would allow two servers on one port.
    #[cfg(not(windows))]
    socket.set_reuseaddr(true)?;
    // Connections inherit it.
    socket.set_send_buffer_size(SEND_BUFFER_BYTES)?;
    socket.bind((Ipv4Addr::LOCALHOST, port).into())?;
    socket.listen(BACKLOG)
}

/// Serves connections until `stop` is cancelled. Then accepts no more and returns when the open
/// requests are complete. Dropping the future cuts them.
pub async fn serve(
    listener: TcpListener,
    router: Router,
    limits: ServerLimits,
    stop: CancellationToken,
) {
    // Applied once here instead of once per request.
    let router = router.with_state(());
    let mut connections = JoinSet::new();
    let mut was_full = false;
    loop {
        let is_full = connections.len() >= limits.connections_max;
        if is_full && !was_full {
            tracing::warn!(limit = limits.connections_max, "connection limit reached");
        }
        was_full = is_full;
        tokio::select! {
            () = stop.cancelled() => break,
            Some(ended) = connections.join_next() => log_panic(ended),
            stream = accept(&listener), if !is_full => {
                connections.spawn(serve_connection(stream, router.clone(), limits, stop.clone()));
            }
        }
    }
    drop(listener);
    while let Some(ended) = connections.join_next().await {
        log_panic(ended);
    }
}

fn log_panic(ended: Result<(), tokio::task::JoinError>) {
    if let Err(error) = ended
        && error.is_panic()
    {
        tracing::error!(error = %error, "connection task panicked");
    }
}

async fn accept(listener: &TcpListener) -> TcpStream {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                // Small events must not wait for each other. Without TCP_NODELAY the stream works,
                // only slower.
                if let Err(error) = stream.set_nodelay(true) {
                    tracing::debug!(error = %error, "setting TCP_NODELAY failed");
                }
                return stream;
            }
            Err(error) if is_client_disconnect(&error) => {}
            Err(error) => {
                let at = listener.local_addr().map_or_else(|_| String::new(), at_address);
                tracing::error!(error = %error, "accepting connections failed{at}; will retry");
                tokio::time::sleep(ACCEPT_RETRY_DELAY).await;
            }
        }
    }
}

fn at_address(address: SocketAddr) -> String {
    format!(" at {address}")
}

/// True if the client disconnected before the connection was accepted.
fn is_client_disconnect(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};

    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset)
}

/// Serves the requests of one connection. HTTP/2 is not offered: no client of this server needs it,
/// and it has more denial-of-service attacks.
async fn serve_connection(
    stream: TcpStream,
    router: Router,
    limits: ServerLimits,
    stop: CancellationToken,
) {
    let exchange = Exchange::default();
    let current = exchange.clone();
    let service = service_fn(move |request: http::Request<Incoming>| {
        let request = request.map(|body| Body::new(TimedBody::new(body, limits.min_throughput)));
        let response = router.clone().oneshot(request);
        let exchange = current.clone();
        async move {
            let mut response = response.await.unwrap_or_else(|never| match never {});
            Ok::<_, Infallible>(match response.extensions_mut().remove::<ResponseBounds>() {
                Some(bounds) => response.map(|body| exchange.start_response(bounds, body)),
                None => response,
            })
        }
    });
    let mut builder = http1::Builder::new();
    builder
        .timer(TokioTimer::new())
        .header_read_timeout(limits.head_timeout)
        .max_headers(HEADERS_MAX)
        .max_buf_size(BUFFER_BYTES_MAX);
    let stream = TokioIo::new(TimedStream::new(stream, limits.min_throughput, exchange));
    let mut connection = Box::pin(builder.serve_connection(stream, service));
    let result = tokio::select! {
        result = connection.as_mut() => result,
        () = stop.cancelled() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = result {
        tracing::debug!(error = %error, "connection failed");
    }
}

#[cfg(test)]
mod tests;
