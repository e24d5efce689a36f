//! One invocation: `POST /<function>` to the handler, and a strict check of its response.

use std::collections::VecDeque;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use base64::Engine;
use base64::alphabet::STANDARD;
use base64::engine::general_purpose::{GeneralPurpose, GeneralPurposeConfig};
use bytes::Bytes;
use futures_util::{FutureExt as _, stream};
use http::header::{CONTENT_TYPE, HOST, USER_AGENT};
use http::uri::{Authority, PathAndQuery, Scheme};
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, Uri};
use http_body_util::{BodyExt, Limited};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use serde_json::Value;
use tower::ServiceExt as _;

use super::json::{Json, JsonReader};
use super::output::Outputs;
use turnwheel_platform::error_chain::error_chain;

/// The version of the Functions host whose source this one follows.
pub(crate) const HOST_VERSION: HeaderValue = HeaderValue::from_static("4.1037.0.0");
const USER_AGENT_VALUE: HeaderValue = HeaderValue::from_static("Azure-Functions-Host/4.1037.0.0");
pub(crate) const INVOCATION_ID_HEADER: &str = "x-azure-functions-invocationid";
pub(crate) const HOST_VERSION_HEADER: &str = "x-azure-functions-hostversion";

/// Bytes of a response's head that .NET accepts.
const RESPONSE_HEAD_BYTES_MAX: usize = 64 * 1024;
/// Bytes of a response that are read.
const RESPONSE_BYTES_MAX: usize = 16 * 1024 * 1024;
/// Failures that `/admin/host/status` lists.
const ERRORS_MAX: usize = 20;

/// The reason why an invocation failed. The texts hold no content.
#[derive(Debug, thiserror::Error)]
pub(crate) enum InvocationError {
    #[error("the handler could not be reached")]
    Unreachable(#[source] Box<dyn std::error::Error + Send + Sync>),
    #[error("the handler responded with {0}")]
    Status(StatusCode),
    #[error(
        "the handler responded with {0}: Azure follows redirects and uses the target's response; respond with 200"
    )]
    Redirect(StatusCode),
    #[error(
        "the handler responded with an empty body: Azure would wait until functionTimeout and then kill the process; \
         respond with 200 and {{\"Outputs\":{{}},\"Logs\":[],\"ReturnValue\":null}}"
    )]
    EmptyBody,
    #[error(
        "the handler responded with the content type {0}: Azure accepts application/json and text/json only"
    )]
    ContentType(String),
    #[error("the handler's response is not a JSON object: Azure would fail the invocation")]
    NotAnObject,
    #[error(
        "the member `{0}` of the handler's response has another type: Azure would fail the invocation; `Outputs` is an \
         object, `Logs` an array of texts"
    )]
    Member(String),
    #[error("the handler's response is larger than {RESPONSE_BYTES_MAX} bytes, or is cut off")]
    Unreadable(#[source] Box<dyn std::error::Error + Send + Sync>),
    #[error(
        "the text of output `{0}` happens to be base64: Azure would decode it and send other bytes; \
         encode it as base64 yourself, or send it in an array"
    )]
    LooksBase64(String),
    #[error(
        "function.json declares no output `{0}`, so it was dropped, as in Azure: add a binding of type queue with \
         \"direction\": \"out\""
    )]
    UndeclaredOutput(String),
    #[error(
        "the request's body is larger than the 104,857,600 bytes that the Functions host accepts"
    )]
    RequestTooLarge,
    #[error(
        "the response's head has characters outside ASCII, more than 64 KiB, or a length with status 204: the Functions \
         host responds with an empty 500"
    )]
    ResponseHead,
    #[error("the Functions host passes no CONNECT on: it responds with an empty 500")]
    Tunnel,
    #[error(
        "the handler opened a web socket: the Functions host passes it on, the local host does not"
    )]
    WebSocket,
    #[error("an output could not be sent to its queue: Azure would fail the invocation")]
    OutputNotSent(#[source] Box<dyn std::error::Error + Send + Sync>),
    #[error(
        "the invocation took longer than functionTimeout ({} s): Azure would kill the process, and everything \
         else that runs in it",
        .0.as_secs()
    )]
    TimedOut(Duration),
    #[error(
        "the response sent no data for {} s: the Functions host closes it then; send comment lines in between",
        .0.as_secs()
    )]
    Idle(Duration),
}

/// Client of the handler. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Handler {
    transport: Transport,
    authority: Authority,
    errors: Arc<Mutex<VecDeque<String>>>,
}

/// How a request reaches the handler.
#[derive(Clone)]
enum Transport {
    Http(Box<Client<HttpConnector, Body>>),
    /// In this process the request is passed on unchanged, without a connection.
    InProcess(Router),
}

/// The input of an invocation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct InvocationInput<'a> {
    pub(crate) envelope: &'a Value,
    /// `None`: no limit.
    pub(crate) timeout: Option<Duration>,
    pub(crate) json: JsonReader,
}

impl Handler {
    pub(crate) fn new(authority: Authority) -> Self {
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        connector.set_connect_timeout(Some(Duration::from_secs(5)));
        let client = Client::builder(TokioExecutor::new())
            .http1_max_buf_size(RESPONSE_HEAD_BYTES_MAX)
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(Duration::from_secs(30))
            .build(connector);
        Self { transport: Transport::Http(Box::new(client)), authority, errors: Arc::default() }
    }

    /// The same handler, running in this process.
    pub(crate) fn in_process(self, router: Router) -> Self {
        Self { transport: Transport::InProcess(router), ..self }
    }

    pub(super) fn authority(&self) -> &str {
        self.authority.as_str()
    }

    pub(super) fn is_in_process(&self) -> bool {
        matches!(self.transport, Transport::InProcess(_))
    }

    /// Sends a request unchanged to the handler.
    pub(crate) async fn send(
        &self,
        mut request: Request<Body>,
        path: PathAndQuery,
    ) -> Result<Response<Body>, InvocationError> {
        match &self.transport {
            Transport::Http(client) => {
                let uri = Uri::builder()
                    .scheme(Scheme::HTTP)
                    .authority(self.authority.clone())
                    .path_and_query(path)
                    .build()
                    .map_err(|error| InvocationError::Unreachable(error.into()))?;
                *request.uri_mut() = uri;
                let response = client.request(request).await;
                let response =
                    response.map_err(|error| InvocationError::Unreachable(error.into()))?;
                let headers = response.headers().iter();
                let bytes = headers.map(|(name, value)| name.as_str().len() + value.len() + 4);
                if bytes.sum::<usize>() > RESPONSE_HEAD_BYTES_MAX {
                    return Err(InvocationError::ResponseHead);
                }
                Ok(response.map(Body::new))
            }
            Transport::InProcess(router) => {
                *request.uri_mut() = Uri::from(path);
                let response = AssertUnwindSafe(router.clone().oneshot(request)).catch_unwind();
                let Ok(response) = Box::pin(response).await else {
                    return Err(InvocationError::Unreachable("the handler panicked".into()));
                };
                Ok(response.unwrap_or_else(|never| match never {}))
            }
        }
    }

    /// True if the handler responds with any status.
    pub(crate) async fn is_ready(&self) -> bool {
        let request = Request::get("/").header(HOST, self.authority.as_str()).body(Body::empty());
        let Ok(request) = request else { return false };
        self.send(request, PathAndQuery::from_static("/")).await.is_ok()
    }

    /// Invokes a function. This is the only place that logs failures and keeps them for
    /// `/admin/host/status`.
    pub(crate) async fn invoke(
        &self,
        function: &str,
        invocation_id: &str,
        InvocationInput { envelope, timeout, json }: InvocationInput<'_>,
    ) -> Result<Outputs, InvocationError> {
        let call = self.post_envelope(function, invocation_id, envelope, json);
        let outcome = match timeout {
            None => call.await,
            Some(timeout) => tokio::time::timeout(timeout, call)
                .await
                .unwrap_or(Err(InvocationError::TimedOut(timeout))),
        };
        if let Err(error) = &outcome {
            self.record_failure(function, invocation_id, error);
        }
        outcome
    }

    pub(crate) fn record_failure(
        &self,
        function: &str,
        invocation_id: &str,
        error: &InvocationError,
    ) {
        let text = format!("{function}: {}", error_chain(error));
        tracing::error!(
            faas.name = %function,
            faas.invocation_id = %invocation_id,
            error = %text,
            "invocation failed"
        );
        let mut errors = self.errors.lock().unwrap_or_else(PoisonError::into_inner);
        if errors.len() == ERRORS_MAX {
            errors.pop_front();
        }
        errors.push_back(text);
    }

    /// The last failures, oldest first.
    pub(crate) fn errors(&self) -> Vec<String> {
        self.errors.lock().unwrap_or_else(PoisonError::into_inner).iter().cloned().collect()
    }

    async fn post_envelope(
        &self,
        function: &str,
        invocation_id: &str,
        envelope: &Value,
        json: JsonReader,
    ) -> Result<Outputs, InvocationError> {
        let bytes = Bytes::from(envelope.to_string());
        // A stream has no length: the body is sent in chunks, as Azure's is.
        let body = Body::from_stream(stream::iter([Ok::<_, std::convert::Infallible>(bytes)]));
        let unreachable = |error: http::Error| InvocationError::Unreachable(error.into());
        let request = Request::builder()
            .method(Method::POST)
            .header(HOST, self.authority.as_str())
            .header(CONTENT_TYPE, "application/json; charset=utf-8")
            .header(HOST_VERSION_HEADER, HOST_VERSION)
            .header(INVOCATION_ID_HEADER, invocation_id)
            .header(USER_AGENT, USER_AGENT_VALUE)
            .body(body)
            .map_err(unreachable)?;
        let path = PathAndQuery::try_from(format!("/{function}"))
            .map_err(|error| InvocationError::Unreachable(error.into()))?;
        let (head, body) = self.send(request, path).await?.into_parts();
        let body = Limited::new(body, RESPONSE_BYTES_MAX).collect().await;
        let body = body.map_err(InvocationError::Unreadable)?.to_bytes();
        parse_response(head.status, &head.headers, &body, json)
    }
}

/// Parses a response as Azure does; returns an error where Azure would hang or corrupt data
/// silently. Does not check the names of outputs.
fn parse_response(
    status: StatusCode,
    headers: &HeaderMap,
    body: &[u8],
    json: JsonReader,
) -> Result<Outputs, InvocationError> {
    if status.is_redirection() {
        return Err(InvocationError::Redirect(status));
    }
    if !status.is_success() {
        return Err(InvocationError::Status(status));
    }
    if body.trim_ascii().is_empty() {
        return Err(InvocationError::EmptyBody);
    }
    let content_type = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let essence = content_type.and_then(|text| text.split(';').next()).unwrap_or("(none)").trim();
    if !["application/json", "text/json"].iter().any(|json| essence.eq_ignore_ascii_case(json)) {
        return Err(InvocationError::ContentType(essence.chars().take(80).collect()));
    }
    let members = match std::str::from_utf8(body).ok().and_then(json.response) {
        Some(Json::Null) => return Err(InvocationError::EmptyBody),
        Some(Json::Object(members)) => members,
        Some(_) | None => return Err(InvocationError::NotAnObject),
    };
    let mut outputs = Outputs::new();
    for (name, value) in members {
        // Newtonsoft compares member names without case.
        match (name.to_ascii_lowercase().as_str(), value) {
            ("outputs", Json::Object(values)) => outputs = values,
            ("logs", Json::Array(lines))
                if lines.iter().all(|line| line.scalar_text().is_some()) => {}
            ("outputs" | "logs", Json::Null) => {}
            ("outputs" | "logs", _) => return Err(InvocationError::Member(name)),
            ("returnvalue", Json::Text(text)) if is_base64(&text) => {
                return Err(InvocationError::LooksBase64("$return".into()));
            }
            _ => {}
        }
    }
    for (name, value) in &outputs {
        if let Json::Text(text) = value
            && is_base64(text)
        {
            return Err(InvocationError::LooksBase64(name.clone()));
        }
    }
    Ok(outputs)
}

/// Accepts bits after the last byte, as .NET does.
const DOTNET_BASE64: GeneralPurpose = GeneralPurpose::new(
    &STANDARD,
    GeneralPurposeConfig::new().with_decode_allow_trailing_bits(true),
);

/// True if .NET's `Convert.FromBase64String` accepts the text, such as `test`, `jobs` and
/// `12345678`. It ignores white space; white space alone is base64 of nothing.
fn is_base64(text: &str) -> bool {
    let plain: String = text.chars().filter(|c| !matches!(c, ' ' | '\t' | '\r' | '\n')).collect();
    !text.is_empty() && DOTNET_BASE64.decode(plain).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome_text(status: u16, content_type: &str, body: &str) -> String {
        let mut headers = HeaderMap::new();
        if !content_type.is_empty() {
            headers.insert(CONTENT_TYPE, content_type.parse().unwrap());
        }
        let status = StatusCode::from_u16(status).unwrap();
        match parse_response(status, &headers, body.as_bytes(), JsonReader::default()) {
            Ok(outputs) if outputs.is_empty() => "ok".into(),
            Ok(outputs) => format!("outputs {outputs:?}"),
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn response_is_accepted_like_in_azure() {
        for body in [
            "{}",
            r#"{"Outputs":{},"Logs":[],"ReturnValue":null}"#,
            r#"{"other":"jobs"}"#,
            r#"{"outputs":null}"#,
        ] {
            assert_eq!(outcome_text(200, "application/json; charset=utf-8", body), "ok", "{body}");
        }
        assert_eq!(outcome_text(201, "Text/JSON", "{}"), "ok");
    }

    #[tokio::test]
    async fn in_process_handler_is_invoked_without_connection() {
        let router = Router::new()
            .route("/turn", axum::routing::post(async |body: String| format!("[{body}]")))
            .route("/api/x", axum::routing::get(async || -> String { panic!("its own fault") }));
        let handler = Handler::new(Authority::from_static("127.0.0.1:9")).in_process(router);
        assert!(handler.is_ready().await);
        let envelope = &Value::Bool(true);
        let input = InvocationInput { envelope, timeout: None, json: JsonReader::default() };
        let invoked = handler.invoke("turn", "id", input).await;
        assert!(matches!(invoked, Err(InvocationError::ContentType(_))), "{invoked:?}");
        let request = Request::get("/").body(Body::empty()).unwrap();
        let response = handler.send(request, PathAndQuery::from_static("/api/x")).await;
        assert!(matches!(response, Err(InvocationError::Unreachable(_))), "{response:?}");
    }

    #[test]
    fn response_is_rejected_where_azure_misbehaves() {
        let json = "application/json";
        let lines = [
            outcome_text(500, json, "{}"),
            outcome_text(302, json, "{}"),
            outcome_text(200, json, ""),
            outcome_text(204, "", ""),
            outcome_text(200, json, " null "),
            outcome_text(200, "text/plain", "{}"),
            outcome_text(200, "", "{}"),
            outcome_text(200, json, "[]"),
            outcome_text(200, json, "{"),
            outcome_text(200, json, r#"{"Outputs":{"out":"jobs"}}"#),
            outcome_text(200, json, r#"{"outputs":{"out":"dGVz dA=="}}"#),
            outcome_text(200, json, r#"{"ReturnValue":"12345678"}"#),
            outcome_text(200, json, r#"{"Outputs":{"out":["jobs"]}}"#),
            outcome_text(200, json, r#"{"Outputs":{"out":"not base64!"}}"#),
            outcome_text(200, json, r#"{"Outputs":{"out":"  "}}"#),
            outcome_text(200, json, r#"{"outputs":[]}"#),
            outcome_text(200, json, r#"{"Logs":["a",1,null,["b"]]}"#),
        ];
        insta::assert_snapshot!(lines.join("\n"));
    }
}
