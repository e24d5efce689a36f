//! Session pool on this machine: the routes as documented, with real executions in a folder per
//! session.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse as _, Response};
use azure_core::credentials::{AccessToken, TokenCredential, TokenRequestOptions};
use serde_json::{Value, json};
use tokio::sync::Notify;

use super::super::SessionRunner;
use super::super::client::PoolClient;
use turnwheel_azure::credential::Credentials;
use turnwheel_platform::settings::azure::AzureIdentity;

pub(super) const TOKEN: &str = "hush-token";
const BODY_BYTES_MAX: usize = 256 * 1024 * 1024;

/// Fault of a request to a path.
#[derive(Clone)]
pub(super) enum Fault {
    Status(u16),
    /// Executes, and then ends the connection without a response.
    CutAfter,
    /// Receives the request and never responds.
    Hang,
    Body(&'static str),
}

/// One received request.
#[derive(Clone, Debug)]
pub(super) struct Received {
    pub(super) line: String,
    pub(super) identifier: String,
    pub(super) authorization: String,
    pub(super) body: Bytes,
}

#[derive(Clone)]
pub(super) struct Fake {
    folder: Arc<tempfile::TempDir>,
    faults: Arc<Mutex<BTreeMap<String, Fault>>>,
    received: Arc<Mutex<Vec<Received>>>,
    /// Notified of each request that hangs.
    pub(super) hanging: Arc<Notify>,
    pub(super) address: String,
}

#[derive(Debug)]
struct FakeCredential;

#[async_trait]
impl TokenCredential for FakeCredential {
    async fn get_token(
        &self,
        scopes: &[&str],
        _: Option<TokenRequestOptions<'_>>,
    ) -> azure_core::Result<AccessToken> {
        assert_eq!(scopes, ["https://dynamicsessions.io/.default"]);
        let until = azure_core::time::OffsetDateTime::UNIX_EPOCH + Duration::from_secs(1 << 32);
        Ok(AccessToken::new(TOKEN, until))
    }
}

impl Fake {
    pub(super) async fn start() -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let fake = Self {
            folder: Arc::new(tempfile::tempdir().unwrap()),
            faults: Arc::default(),
            received: Arc::default(),
            hanging: Arc::default(),
            address: format!("http://{}/pools/one", listener.local_addr().unwrap()),
        };
        let app = Router::new().fallback(respond).with_state(fake.clone());
        #[expect(clippy::disallowed_methods, reason = "the server beside the test, ended with it")]
        tokio::spawn(async move { axum::serve(listener, app).await });
        fake
    }

    pub(super) fn client(&self) -> PoolClient {
        let identity = AzureIdentity::DeveloperTools;
        let credentials =
            Credentials::default().with_credential(identity.clone(), Arc::new(FakeCredential));
        PoolClient::new(self.address.parse().unwrap(), credentials.token_source(&identity)).unwrap()
    }

    pub(super) fn runner(&self) -> SessionRunner {
        self.runner_with_key(None)
    }

    pub(super) fn runner_with_key(&self, signing_key: Option<&[u8]>) -> SessionRunner {
        SessionRunner::new(self.client(), signing_key).unwrap()
    }

    pub(super) fn set_fault(&self, line: &str, fault: Fault) {
        self.faults.lock().unwrap().insert(line.to_owned(), fault);
    }

    pub(super) fn received(&self) -> Vec<Received> {
        self.received.lock().unwrap().clone()
    }

    /// Methods and first path segments, in order.
    pub(super) fn lines(&self) -> Vec<String> {
        self.received().into_iter().map(|received| received.line).collect()
    }

    /// Deletes all files of all sessions.
    pub(super) fn lose_sessions(&self) {
        for entry in std::fs::read_dir(self.folder.path()).unwrap() {
            std::fs::remove_dir_all(entry.unwrap().path()).unwrap();
        }
    }

    fn session_folder(&self, identifier: &str) -> PathBuf {
        assert!(identifier.bytes().all(|byte| byte.is_ascii_hexdigit()), "{identifier}");
        let folder = self.folder.path().join(identifier);
        std::fs::create_dir_all(&folder).unwrap();
        folder
    }
}

async fn respond(State(fake): State<Fake>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let body = axum::body::to_bytes(body, BODY_BYTES_MAX).await.unwrap();
    let path = parts.uri.path().strip_prefix("/pools/one/").unwrap().to_owned();
    let segments: Vec<&str> = path.split('/').collect();
    let line = format!("{} {}", parts.method, segments[0]);
    let query: BTreeMap<String, String> =
        url::form_urlencoded::parse(parts.uri.query().unwrap().as_bytes()).into_owned().collect();
    assert_eq!(query["api-version"], "2025-02-02-preview");
    let identifier = query.get("identifier").cloned().unwrap_or_default();
    let authorization = parts.headers["authorization"].to_str().unwrap().to_owned();
    let received = Received {
        line: line.clone(),
        identifier: identifier.clone(),
        authorization,
        body: body.clone(),
    };
    fake.received.lock().unwrap().push(received);
    let fault = fake.faults.lock().unwrap().get(&line).cloned();
    match fault {
        Some(Fault::Status(code)) => return StatusCode::from_u16(code).unwrap().into_response(),
        Some(Fault::Body(text)) => return text.into_response(),
        Some(Fault::Hang) => {
            fake.hanging.notify_one();
            std::future::pending::<()>().await;
        }
        Some(Fault::CutAfter) | None => {}
    }
    if line == "GET metadata" {
        return axum::Json(json!({"runtimes": []})).into_response();
    }
    let folder = fake.session_folder(&identifier);
    let response = match line.as_str() {
        "POST files" => upload(&folder, &body),
        "POST executions" => execute(&folder, &body).await,
        "GET files" => std::fs::read(folder.join(segments[1])).unwrap().into_response(),
        "DELETE session" => StatusCode::NO_CONTENT.into_response(),
        other => panic!("no route {other}"),
    };
    if matches!(fault, Some(Fault::CutAfter)) {
        let cut =
            futures_util::stream::once(async { Err::<Bytes, _>(std::io::Error::other("cut")) });
        return Response::new(Body::from_stream(cut));
    }
    response
}

/// Stores the one part of a form.
fn upload(folder: &std::path::Path, body: &[u8]) -> Response {
    let find = |text: &[u8], from: usize| {
        from + body[from..].windows(text.len()).position(|window| window == text).unwrap()
    };
    let boundary = &body[..find(b"\r\n", 0)];
    let head_end = find(b"\r\n\r\n", 0);
    let head = std::str::from_utf8(&body[..head_end]).unwrap();
    let name = head.split("filename=\"").nth(1).unwrap().split('"').next().unwrap();
    let end = find(&[b"\r\n", boundary, b"--\r\n"].concat(), head_end);
    std::fs::write(folder.join(name), &body[head_end + 4..end]).unwrap();
    axum::Json(json!({"name": name, "type": "File", "lastModifiedAt": "2026-11-02T12:33:05Z"}))
        .into_response()
}

async fn execute(folder: &std::path::Path, body: &[u8]) -> Response {
    let request: Value = serde_json::from_slice(body).unwrap();
    assert_eq!(request["codeInputType"], "Inline");
    assert_eq!(request["executionType"], "Synchronous");
    assert!(request["timeoutInSeconds"].as_u64().unwrap() <= 220);
    let code = request["code"].as_str().unwrap().replace("/mnt/data", folder.to_str().unwrap());
    let done = tokio::process::Command::new("python3")
        .args(["-c", &code])
        .stdin(Stdio::null())
        .output()
        .await
        .expect("the tests of sessions need python3");
    let stdout = String::from_utf8(done.stdout).unwrap();
    assert!(!stdout.is_empty(), "{}", String::from_utf8_lossy(&done.stderr));
    axum::Json(json!({
        "id": "1", "identifier": "x", "executionType": "Synchronous", "status": "Succeeded",
        "result": {"stdout": stdout, "stderr": "", "executionResult": "", "executionTimeInMilliseconds": 9},
    }))
    .into_response()
}
