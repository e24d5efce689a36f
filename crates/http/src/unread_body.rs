//! Bodies that a route leaves unread: they are read to their end before the response leaves.
//!
//! Most clients, and the Functions host, read a response only after they have sent the whole body.
//! The host sends an empty 500 if the connection closes earlier.

use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::Body;
use axum::extract::Request;
use axum::middleware::Next;
use axum::response::Response;
use bytes::Bytes;
use http_body::{Body as HttpBody, Frame, SizeHint};
use http_body_util::BodyExt as _;
use tokio::time::timeout;

use crate::request_bounds::RequestEnd;

/// Maximum bytes that are read and discarded.
const DRAINED_BYTES_MAX: usize = 64 * 1024 * 1024;
/// Maximum time of that, within the time of the request. Then the connection is closed.
const DRAIN_TIME_MAX: Duration = Duration::from_secs(30);

/// A request body whose rest can be read after the route has dropped it.
struct SharedBody(Arc<Mutex<Body>>);

impl SharedBody {
    fn with<T>(&self, read: impl FnOnce(Pin<&mut Body>) -> T) -> T {
        read(Pin::new(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner)))
    }
}

impl HttpBody for SharedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        self.with(|body| body.poll_frame(cx))
    }

    fn is_end_stream(&self) -> bool {
        self.with(|body| body.is_end_stream())
    }

    fn size_hint(&self) -> SizeHint {
        self.with(|body| body.size_hint())
    }
}

/// Middleware of all routes: reads the rest of the body when the route has its response.
pub(crate) async fn drain_unread_body(request: Request, next: Next) -> Response {
    let (parts, body) = request.into_parts();
    if body.is_end_stream() {
        return next.run(Request::from_parts(parts, body)).await;
    }
    let end = parts.extensions.get::<RequestEnd>().cloned();
    let shared = Arc::new(Mutex::new(body));
    let body = Body::new(SharedBody(Arc::clone(&shared)));
    let response = next.run(Request::from_parts(parts, body)).await;
    // A route that still reads the body, for a streamed response, has the other half.
    if let Some(rest) = Arc::into_inner(shared) {
        let rest = rest.into_inner().unwrap_or_else(PoisonError::into_inner);
        tokio::select! {
            () = discard_body(rest) => {}
            () = wait_for_end(end) => {}
        }
    }
    response
}

async fn wait_for_end(end: Option<RequestEnd>) {
    match end {
        Some(end) => {
            end.wait().await;
        }
        None => std::future::pending().await,
    }
}

/// Reads the rest of a body, up to bounds.
pub async fn discard_body(body: Body) {
    let _ = timeout(DRAIN_TIME_MAX, drain(body)).await;
}

async fn drain(mut body: Body) {
    let mut drained = 0;
    while let Some(Ok(frame)) = body.frame().await {
        drained += frame.data_ref().map_or(0, Bytes::len);
        if drained > DRAINED_BYTES_MAX {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use axum::Router;
    use axum::routing::post;
    use http::StatusCode;
    use tower::ServiceExt as _;

    use super::*;

    /// Sends 40 chunks of 64 KiB to a route, and returns how many were taken.
    async fn chunks_taken(router: Router) -> usize {
        let taken = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&taken);
        let chunks = std::iter::repeat_with(move || {
            counter.fetch_add(1, Ordering::SeqCst);
            Ok::<_, std::convert::Infallible>(Bytes::from(vec![b'x'; 64 * 1024]))
        });
        let body = Body::from_stream(futures_util::stream::iter(chunks.take(40)));
        let router = router.layer(axum::middleware::from_fn(drain_unread_body));
        let request = Request::post("/").body(body).unwrap();
        router.oneshot(request).await.unwrap();
        taken.load(Ordering::SeqCst)
    }

    #[tokio::test]
    async fn early_response_leaves_after_the_whole_body() {
        let refuse = Router::new().route("/", post(async || StatusCode::UNAUTHORIZED));
        assert_eq!(chunks_taken(refuse).await, 40);
        let read_one = async |mut request: Request| {
            let _ = request.body_mut().frame().await;
            StatusCode::BAD_REQUEST
        };
        assert_eq!(chunks_taken(Router::new().route("/", post(read_one))).await, 40);
        assert_eq!(chunks_taken(Router::new()).await, 40, "404");
    }

    #[tokio::test]
    async fn endless_body_is_cut() {
        let chunk = Bytes::from(vec![b'x'; 1 << 20]);
        let endless = futures_util::stream::repeat_with(move || {
            Ok::<_, std::convert::Infallible>(chunk.clone())
        });
        let refuse = Router::new().route("/", post(async || StatusCode::UNAUTHORIZED));
        let router = refuse.layer(axum::middleware::from_fn(drain_unread_body));
        let request = Request::post("/").body(Body::from_stream(endless)).unwrap();
        assert_eq!(router.oneshot(request).await.unwrap().status(), StatusCode::UNAUTHORIZED);
    }
}
