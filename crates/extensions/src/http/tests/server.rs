//! A server of hooks that responds as its script says.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::ConnectInfo;
use axum::http::{HeaderMap, Response};
use serde_json::Value;
use tokio::task::JoinHandle;

use super::SECRET;
use turnwheel_platform::clock::{Clock as _, SystemClock};
use turnwheel_platform::webhook_signature::{SignedHeaders, sign, verify};

/// A response of the server.
#[derive(Clone, Debug)]
pub(super) enum Reply {
    /// This body with a valid signature.
    Signed(String),
    /// The signature of another body, id or time: `{secret byte, id, seconds off}`.
    SignedAs(u8, &'static str, i64),
    Unsigned,
    /// The request itself, with its headers.
    Echo,
    /// Status and `Retry-After`.
    Status(u16, Option<&'static str>),
    /// The connection ends without a response.
    Cut,
    Never,
}

impl Reply {
    pub(super) fn json(value: &Value) -> Self {
        Self::Signed(value.to_string())
    }
}

/// A received request: its `webhook-id`, its body, and the address of its connection.
#[derive(Clone, Debug)]
pub(super) struct Received {
    pub(super) id: String,
    pub(super) body: Value,
    pub(super) peer: SocketAddr,
}

pub(super) struct HookServer {
    pub(super) url: String,
    received: Arc<Mutex<Vec<Received>>>,
    task: JoinHandle<()>,
}

impl Drop for HookServer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl HookServer {
    /// Each request takes the next reply; the last one repeats.
    pub(super) async fn start(replies: Vec<Reply>) -> Self {
        let received = Arc::<Mutex<Vec<Received>>>::default();
        let log = Arc::clone(&received);
        let handler =
            move |ConnectInfo(peer): ConnectInfo<SocketAddr>, headers: HeaderMap, body: Bytes| {
                let request = read_request(&headers, &body, peer);
                let id = request.id.clone();
                let mut log = log.lock().unwrap();
                let reply = replies.get(log.len()).or(replies.last()).unwrap().clone();
                log.push(request);
                respond(reply, id, headers, body)
            };
        let router = Router::new().route("/hook", axum::routing::post(handler));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/hook", listener.local_addr().unwrap());
        #[expect(clippy::disallowed_methods, reason = "the server beside the test, ended with it")]
        let task = tokio::spawn(async move {
            let service = router.into_make_service_with_connect_info::<SocketAddr>();
            axum::serve(listener, service).await.unwrap();
        });
        Self { url, received, task }
    }

    pub(super) fn received(&self) -> Vec<Received> {
        self.received.lock().unwrap().clone()
    }
}

/// Checks the signature of a request as a receiver does.
fn read_request(headers: &HeaderMap, body: &Bytes, peer: SocketAddr) -> Received {
    let get = |name: &str| headers.get(name).unwrap().to_str().unwrap();
    let id = get("webhook-id");
    let signed = SignedHeaders {
        id,
        timestamp: get("webhook-timestamp"),
        signatures: get("webhook-signature"),
    };
    let now = SystemClock::default().now().0 / 1_000;
    assert_eq!(verify([&SECRET.to_vec()], signed, id, now, body), Ok(()));
    let body: Value = serde_json::from_slice(body).unwrap();
    assert_eq!(body["hookId"], id);
    Received { id: id.to_owned(), body, peer }
}

async fn respond(reply: Reply, id: String, headers: HeaderMap, request: Bytes) -> Response<Body> {
    let now = SystemClock::default().now().0 / 1_000;
    let signed = |secret: u8, id: &str, at: u64, body: &str| {
        Response::builder()
            .header("webhook-id", id)
            .header("webhook-timestamp", at)
            .header("webhook-signature", sign([&vec![secret; 24]], id, at, body.as_bytes()))
            .body(Body::from(body.to_owned()))
            .unwrap()
    };
    match reply {
        Reply::Signed(body) => signed(SECRET[0], &id, now, &body),
        Reply::SignedAs(secret, other, off) => {
            let id = if other.is_empty() { &id } else { other };
            signed(secret, id, now.saturating_add_signed(off), "{\"decision\":\"allow\"}")
        }
        Reply::Unsigned => Response::new(Body::from("{\"decision\":\"allow\"}")),
        Reply::Echo => {
            let mut response = Response::new(Body::from(request));
            for name in ["webhook-id", "webhook-timestamp", "webhook-signature"] {
                response.headers_mut().insert(name, headers[name].clone());
            }
            response
        }
        Reply::Status(status, retry_after) => {
            let mut response = Response::builder().status(status);
            if let Some(wait) = retry_after {
                response = response.header("retry-after", wait);
            }
            response.header("location", "/elsewhere").body(Body::from("a secret text")).unwrap()
        }
        Reply::Cut => {
            let cut = futures_util::stream::iter([Err::<Bytes, _>(std::io::Error::other("cut"))]);
            Response::new(Body::from_stream(cut))
        }
        Reply::Never => std::future::pending().await,
    }
}
