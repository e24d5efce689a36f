//! Requests of hooks to a server in this process: responses, limits, and refused addresses.

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::http::Response;
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use super::*;
use crate::context::Anchor;
use crate::runner::tests::new_site;
use crate::{Extension, Hook, Permissions};

#[derive(Debug)]
struct Caller(Permissions);

impl Extension for Caller {
    fn name(&self) -> &'static str {
        "caller"
    }

    fn permissions(&self) -> Permissions {
        self.0.clone()
    }
}

/// A context of an extension that declares these hosts. `is_local`: it may reach this machine.
fn context(hosts: &[&str], is_local: bool) -> HookContext {
    let rules = AddressRules::default();
    let rules = if is_local { rules.with_loopback() } else { rules };
    let mut site = new_site("c", "i", Hook::ToolCall, Anchor::Response(1));
    site.access.client = HookClient::from(HttpClient::new(rules).unwrap());
    let permissions = Permissions::new().with_hosts(hosts.iter().copied());
    HookContext::new(Arc::new(site), Arc::new(Caller(permissions)))
}

struct Server {
    url: String,
    task: JoinHandle<()>,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Server {
    /// Echoes at `/`, redirects at `/away`, and sends too much at `/large`.
    async fn start() -> Self {
        let away = || async {
            let response = Response::builder().status(302).header("location", "/large");
            response.body(Body::empty()).unwrap()
        };
        let echo = |headers: HeaderMap, body: String| async move {
            json!({"key": headers["x-key"].to_str().unwrap(), "body": body}).to_string()
        };
        let router = Router::new()
            .route("/", axum::routing::post(echo))
            .route("/away", axum::routing::get(away))
            .route("/large", axum::routing::get(|| async { "x".repeat(BODY_BYTES_MAX + 1) }));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        #[expect(clippy::disallowed_methods, reason = "the server beside the test, ended with it")]
        let task = tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        Self { url, task }
    }
}

#[tokio::test]
async fn declared_host_is_reached_without_redirects() {
    let server = Server::start().await;
    let cx = context(&["127.0.0.1"], true);
    let request = cx.http().post(&server.url).unwrap().header("x-key", "k").unwrap();
    let response = request.json(&json!({"a": 1})).unwrap().send().await.unwrap();
    assert!(response.is_success());
    let body: Value = response.json().unwrap();
    assert_eq!(body, json!({"key": "k", "body": "{\"a\":1}"}));
    assert!(response.json::<u8>().unwrap_err().to_string().contains("wrong type at line 1"));
    let away = cx.http().get(&format!("{}/away", server.url)).unwrap().send().await.unwrap();
    assert_eq!((away.status(), away.is_success(), away.bytes()), (302, false, b"".as_slice()));
}

#[test]
fn json_of_a_response_may_have_a_byte_order_mark() {
    for (bytes, expected) in [
        (&b"7"[..], Ok(7)),
        (b"\xef\xbb\xbf7\n", Ok(7)),
        (b"\xff\xfe7\0", Err("the response is UTF-16 text")),
        (b"\xef\xbb\xbf\xef\xbb\xbf7", Err("the response begins with two byte order marks")),
    ] {
        let response = HookHttpResponse { status: 200, body: Bytes::from_static(bytes) };
        let found = response.json::<u8>().map_err(|error| error.to_string());
        match expected {
            Ok(number) => assert_eq!(found, Ok(number), "{bytes:?}"),
            Err(reason) => assert!(found.unwrap_err().starts_with(reason), "{bytes:?}"),
        }
    }
}

#[tokio::test]
async fn large_bodies_and_unreachable_hosts_are_errors_without_address() {
    let server = Server::start().await;
    let cx = context(&["127.0.0.1", "localhost"], true);
    let large = cx.http().get(&format!("{}/large", server.url)).unwrap().send().await;
    assert_eq!(
        large.unwrap_err().to_string(),
        "the request to 127.0.0.1 failed: its response has more than 262144 bytes"
    );
    let request = cx.http().post(&server.url).unwrap();
    let request = request.json(&"x".repeat(BODY_BYTES_MAX)).unwrap().send().await;
    assert_eq!(
        request.unwrap_err().to_string(),
        "the request to 127.0.0.1 failed: its body has 262146 bytes; the maximum is 262144"
    );
    let refused = cx.http().get("http://localhost:1/secret?key=1").unwrap().send().await;
    assert_eq!(
        refused.unwrap_err().to_string(),
        "the request to localhost failed: its server could not be reached: the connection was refused"
    );
}

#[tokio::test]
async fn declared_private_address_is_refused() {
    for (url, host) in [("http://127.0.0.1:1/", "127.0.0.1"), ("http://localhost:1/", "localhost")]
    {
        let cx = context(&["127.0.0.1", "localhost"], false);
        let refused = cx.http().get(url).unwrap().send().await.unwrap_err().to_string();
        assert!(refused.starts_with(&format!("the request to {host} failed: ")), "{refused}");
        assert!(refused.contains("TURNWHEEL_HTTP_TOOLS_ALLOW"), "{refused}");
    }
}

#[test]
fn undeclared_host_and_wrong_requests_are_refused() {
    let cx = context(&["api.example"], true);
    let error = |method: &str, url: &str| cx.http().request(method, url).unwrap_err().to_string();
    assert_eq!(
        error("GET", "https://evil.example/?q=1"),
        "the extension \"caller\" has no permission for the host `evil.example`: declare it in `permissions` with `Permissions::with_hosts`"
    );
    assert!(error("GET", "file:///etc/passwd").contains("begins with https://"));
    assert!(error("G T", "https://api.example").contains("method"));
    assert!(error("GET", "api.example").contains("relative URL"));
    let request = cx.http().get("https://api.example").unwrap();
    assert!(request.header("x", "a\nb").is_err());
}
