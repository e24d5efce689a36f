//! Requests to a session pool of Azure Container Apps, by its data-plane API 2025-02-02-preview.

use std::fmt;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use reqwest::{Method, StatusCode};
use serde_json::json;
use url::Url;

use turnwheel_azure::credential::IdentityTokenSource;
use turnwheel_platform::error_chain::error_chain;

const SCOPE: &str = "https://dynamicsessions.io/.default";
const API_VERSION: &str = "2025-02-02-preview";
pub(crate) const ROLE: &str = "Azure ContainerApps Session Executor";
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Time-out of every request but executions.
const TRANSFER_TIMEOUT: Duration = Duration::from_mins(1);
/// Bound of a response that is JSON. Output arrives in it, as base64.
const JSON_BYTES_MAX: usize = 8 * 1024 * 1024;

/// Client of one pool.
pub struct PoolClient {
    endpoint: Url,
    tokens: IdentityTokenSource,
    http: reqwest::Client,
}

impl fmt::Debug for PoolClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PoolClient({})", self.endpoint)
    }
}

/// Failed request. The texts are for the operator and the model; they hold no identifier, which is
/// a part of the address.
#[derive(Debug)]
pub enum PoolFailure {
    /// The pool did not act on the request.
    Refused(String),
    /// The pool may have acted on the request.
    Unknown(String),
}

impl PoolFailure {
    pub fn into_text(self) -> String {
        match self {
            Self::Refused(text) | Self::Unknown(text) => text,
        }
    }
}

/// One request, without its address.
struct Call {
    method: Method,
    content_type: String,
    body: Bytes,
    timeout: Duration,
    bytes_max: usize,
}

impl Call {
    fn new(method: Method) -> Self {
        Self {
            method,
            content_type: "application/json".to_owned(),
            body: Bytes::new(),
            timeout: TRANSFER_TIMEOUT,
            bytes_max: JSON_BYTES_MAX,
        }
    }
}

impl PoolClient {
    /// # Errors
    /// The TLS set-up of this machine failed: check its certificates.
    pub fn new(endpoint: Url, tokens: IdentityTokenSource) -> Result<Self, reqwest::Error> {
        let mut builder = reqwest::Client::builder()
            .connect_timeout(CONNECT_TIMEOUT)
            .redirect(reqwest::redirect::Policy::none())
            // A repeated execution would run a command twice.
            .retry(reqwest::retry::never());
        if endpoint.scheme() == "http" {
            // Settings allow it on this machine only.
            builder = builder.no_proxy();
        }
        Ok(Self { endpoint, tokens, http: builder.build()? })
    }

    pub(super) fn endpoint(&self) -> &Url {
        &self.endpoint
    }

    /// Reads the metadata of the pool, which starts no session.
    ///
    /// # Errors
    /// The pool is unavailable or refuses the request.
    pub async fn check(&self) -> Result<(), PoolFailure> {
        self.send(&["metadata"], None, Call::new(Method::GET)).await.map(drop)
    }

    /// Writes one file into the session's data folder.
    pub(super) async fn upload(
        &self,
        session: &str,
        name: &str,
        content: &[u8],
    ) -> Result<(), PoolFailure> {
        let mut body = BytesMut::with_capacity(content.len() + 512);
        // The name is a digest of the content and of random bytes, so the content cannot contain it.
        body.extend_from_slice(
            format!(
                "--{name}\r\nContent-Disposition: form-data; name=\"file\"; filename=\"{name}\"\r\n\
                 Content-Type: application/octet-stream\r\n\r\n"
            )
            .as_bytes(),
        );
        body.extend_from_slice(content);
        body.extend_from_slice(format!("\r\n--{name}--\r\n").as_bytes());
        let call = Call {
            content_type: format!("multipart/form-data; boundary={name}"),
            body: body.freeze(),
            ..Call::new(Method::POST)
        };
        self.send(&["files"], Some(session), call).await.map(drop)
    }

    /// Runs Python code. Sent once.
    pub(super) async fn execute(
        &self,
        session: &str,
        code: &str,
        time: Duration,
    ) -> Result<Bytes, PoolFailure> {
        let body = json!({
            "codeInputType": "Inline",
            "executionType": "Synchronous",
            "code": code,
            "timeoutInSeconds": time.as_secs(),
        });
        let call = Call {
            body: body.to_string().into(),
            timeout: time + Duration::from_secs(15),
            ..Call::new(Method::POST)
        };
        self.send(&["executions"], Some(session), call).await
    }

    /// Reads one file of the session's data folder.
    pub(super) async fn download(
        &self,
        session: &str,
        name: &str,
        bytes_max: usize,
    ) -> Result<Bytes, PoolFailure> {
        let call = Call { bytes_max, ..Call::new(Method::GET) };
        self.send(&["files", name, "content"], Some(session), call).await
    }

    /// Ends the session and all its processes.
    pub(super) async fn delete_session(&self, session: &str) -> Result<(), PoolFailure> {
        self.send(&["session"], Some(session), Call::new(Method::DELETE)).await.map(drop)
    }

    async fn send(
        &self,
        path: &[&str],
        session: Option<&str>,
        call: Call,
    ) -> Result<Bytes, PoolFailure> {
        let token = self.tokens.fetch_token(SCOPE).await.map_err(PoolFailure::Refused)?;
        let request = self
            .http
            .request(call.method, self.address(path, session))
            .bearer_auth(token.reveal())
            .header("content-type", call.content_type)
            .timeout(call.timeout)
            .body(call.body);
        turnwheel_platform::telemetry::cost_meter::count_request("sessions.request", 0.0);
        let response = request.send().await.map_err(describe_failure)?;
        let status = response.status();
        if !status.is_success() {
            return Err(describe_status(status));
        }
        read_body(response, call.bytes_max).await
    }

    fn address(&self, path: &[&str], session: Option<&str>) -> Url {
        let mut url = self.endpoint.clone();
        if let Ok(mut segments) = url.path_segments_mut() {
            segments.pop_if_empty().extend(path);
        }
        url.query_pairs_mut().append_pair("api-version", API_VERSION);
        if let Some(session) = session {
            url.query_pairs_mut().append_pair("identifier", session);
        }
        url
    }
}

fn describe_failure(error: reqwest::Error) -> PoolFailure {
    let is_unsent = error.is_connect() || error.is_builder();
    let is_timeout = error.is_timeout();
    let text = error_chain(&error.without_url());
    if is_unsent {
        PoolFailure::Refused(format!(
            "the session pool cannot be reached: {text}. Check TURNWHEEL_SHELL_POOL and the network"
        ))
    } else if is_timeout {
        PoolFailure::Unknown("the session pool did not respond in time".to_owned())
    } else {
        PoolFailure::Unknown(format!("the connection to the session pool failed: {text}"))
    }
}

/// The response's body is left unread: it may repeat the code.
fn describe_status(status: StatusCode) -> PoolFailure {
    let code = status.as_u16();
    if status.is_server_error() || status.is_redirection() || code == 408 {
        return PoolFailure::Unknown(format!("the session pool responded with status {code}"));
    }
    let advice = match code {
        401 | 403 => format!(
            "give the app's identity the role `{ROLE}` on the session pool, and check that TURNWHEEL_SHELL_POOL is its management endpoint"
        ),
        404 => "check that TURNWHEEL_SHELL_POOL is the management endpoint of an existing session pool of type PythonLTS".to_owned(),
        409 => "the session is busy or ending; try again".to_owned(),
        413 => "the workspace is too large for a session".to_owned(),
        429 => "the session pool has no free session; try again later, or raise its maxConcurrentSessions".to_owned(),
        _ => "the pool does not accept the request; check that its type is PythonLTS".to_owned(),
    };
    PoolFailure::Refused(format!("the session pool responded with status {code}: {advice}"))
}

async fn read_body(
    mut response: reqwest::Response,
    bytes_max: usize,
) -> Result<Bytes, PoolFailure> {
    let mut body = BytesMut::new();
    while let Some(part) = response.chunk().await.map_err(describe_failure)? {
        if body.len() + part.len() > bytes_max {
            return Err(PoolFailure::Unknown(format!(
                "the session pool's response has more than {bytes_max} bytes"
            )));
        }
        body.extend_from_slice(&part);
    }
    Ok(body.freeze())
}
