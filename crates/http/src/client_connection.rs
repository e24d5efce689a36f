//! The connections of clients. The server drops the future of a request whose client disconnects; a change
//! that is stored by then would wake no worker.

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::Response;
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use crate::{SharedApi, problem};

tokio::task_local! {
    /// Cancelled when the client of the task's request is gone.
    static CLIENT_GONE: CancellationToken;
}

/// Middleware of all routes: a request that may change something runs to its end, in a task of its own.
/// Its wait (`?wait=`) ends with the connection.
pub(crate) async fn finish_after_disconnect(
    State(api): State<SharedApi>,
    request: Request,
    next: Next,
) -> Response {
    if request.method().is_safe() {
        return next.run(request).await;
    }
    let gone = CancellationToken::new();
    let _guard = gone.clone().drop_guard();
    let (reply, response) = oneshot::channel();
    let work = async move {
        // Fails if the client is gone.
        let _ = reply.send(next.run(request).await);
    };
    api.services.shutdown.spawn(CLIENT_GONE.scope(gone, work));
    // Without a reply the task panicked.
    response.await.unwrap_or_else(|_| problem::panic_response(Box::new(())))
}

/// True if the client of this task's request is gone.
pub(crate) fn is_client_gone() -> bool {
    CLIENT_GONE.try_with(CancellationToken::is_cancelled).unwrap_or_default()
}

/// Completes when the client of this task's request has disconnected. For a safe request it never completes:
/// its future is dropped on disconnect.
pub(crate) async fn wait_until_client_gone() {
    match CLIENT_GONE.try_with(CancellationToken::clone) {
        Ok(gone) => gone.cancelled().await,
        Err(_) => std::future::pending().await,
    }
}
