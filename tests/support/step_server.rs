//! HTTP tool server whose calls wait for the test.

use std::net::SocketAddr;

use axum::Router;
use axum::extract::{ConnectInfo, State};
use axum::routing;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;

/// An agent file with the tool; `STEPS` is the server's address.
pub(crate) const AGENT: &str = "---
description: Works.
tools:
  - http: { name: step, description: Takes a step., url: \"${STEPS}/step\", method: POST, effect: read }
---
Work.
";

/// The server. Dropping it breaks the connections of waiting calls.
pub(crate) struct StepServer {
    pub(crate) url: String,
    calls: mpsc::UnboundedReceiver<PendingCall>,
    server: JoinHandle<()>,
}

/// A waiting call.
pub(crate) struct PendingCall {
    /// The caller's end of the connection.
    pub(crate) peer: SocketAddr,
    reply: oneshot::Sender<()>,
}

impl PendingCall {
    pub(crate) fn finish(self) {
        let _ = self.reply.send(());
    }
}

impl StepServer {
    pub(crate) async fn start() -> Self {
        let (sender, calls) = mpsc::unbounded_channel();
        let router = Router::new().route("/step", routing::post(handle_call)).with_state(sender);
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let service = router.into_make_service_with_connect_info::<SocketAddr>();
        #[expect(clippy::disallowed_methods, reason = "a server beside the test, ended with it")]
        let server = tokio::spawn(async move { axum::serve(listener, service).await.unwrap() });
        Self { url, calls, server }
    }

    /// True if a call waits that [`Self::next_call`] would return.
    pub(crate) fn has_call(&self) -> bool {
        !self.calls.is_empty()
    }

    /// The next call; `None` if there is none within a minute.
    pub(crate) async fn next_call(&mut self) -> Option<PendingCall> {
        let minute = std::time::Duration::from_mins(1);
        tokio::time::timeout(minute, self.calls.recv()).await.ok().flatten()
    }
}

impl Drop for StepServer {
    fn drop(&mut self) {
        self.server.abort();
    }
}

async fn handle_call(
    State(calls): State<mpsc::UnboundedSender<PendingCall>>,
    ConnectInfo(peer): ConnectInfo<SocketAddr>,
) -> &'static str {
    let (reply, receiver) = oneshot::channel();
    let _ = calls.send(PendingCall { peer, reply });
    let _ = receiver.await;
    "stepped"
}
