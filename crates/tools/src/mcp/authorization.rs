//! Access tokens for MCP servers: of the app's Entra identity, or by the OAuth 2.0 client
//! credentials grant (RFC 6749 §4.4).

use std::borrow::Cow;
use std::fmt;
use std::time::Duration;

use axum::http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE};
use axum::http::{HeaderMap, HeaderValue, Method};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use serde::Deserialize;
use tokio::time::{Instant, timeout_at};
use url::Url;
use url::form_urlencoded::{Serializer, byte_serialize};

use crate::http::attempt::{SendFailure, send_head};
use crate::http::client::HttpClient;
use crate::http::redactor::replace_truncated_secret;
use crate::http::request::ToolRequest;
use crate::mcp::failure::McpFailure;
use crate::mcp::transport::read_all;
use turnwheel_conversation::request::Effect;
use turnwheel_platform::settings::secret::Secret;

/// Life of a token whose response names none.
const LIFE_DEFAULT: Duration = Duration::from_mins(5);
/// A token is not used in the last part of its life.
const LIFE_MARGIN: Duration = Duration::from_mins(1);
/// A shorter token would match by accident.
const TOKEN_BYTES_MIN: usize = 8;
/// Characters of the error code of an authorization server.
const ERROR_CHARS_MAX: usize = 64;

/// How requests to a server are authorised.
#[derive(Debug, Clone)]
pub enum Authorization {
    /// Scope of the app's Entra token.
    Entra(String),
    OAuth(std::sync::Arc<OAuthClient>),
}

/// Client credentials at an authorization server.
pub struct OAuthClient {
    token_url: Url,
    id: String,
    secret: Secret<String>,
    scope: Option<String>,
    /// Identifier of the server for which the token is (RFC 8707).
    resource: Option<String>,
    token: tokio::sync::Mutex<Option<CachedToken>>,
}

impl fmt::Debug for OAuthClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OAuthClient").finish_non_exhaustive()
    }
}

struct CachedToken {
    bearer: HeaderValue,
    until: Instant,
}

#[derive(Deserialize)]
struct TokenResponse {
    access_token: String,
    token_type: String,
    expires_in: Option<u64>,
}

#[derive(Deserialize)]
struct ErrorResponse {
    error: String,
}

impl Authorization {
    /// The value of the header `authorization`.
    ///
    /// # Errors
    /// There is no token, so the request was not sent.
    pub(super) async fn bearer(
        &self,
        client: &HttpClient,
        until: Instant,
    ) -> Result<HeaderValue, McpFailure> {
        let (name, token) = match self {
            Self::Entra(scope) => {
                let fetched = async {
                    let token = client.token(scope).await.map_err(|cause| {
                        // The model and users do not read the cause, which the operator needs.
                        tracing::warn!(scope, cause, "no Entra token for an MCP server");
                        McpFailure::NoToken(format!(
                            "there is no token of the app's identity for {scope}, so nothing was sent"
                        ))
                    })?;
                    bearer_header(token.reveal())
                };
                (format!("the Entra token for {scope}"), timeout_at(until, fetched).await)
            }
            Self::OAuth(oauth) => {
                let fetched = Box::pin(oauth.bearer(client, until));
                (format!("the token of {}", oauth.host()), timeout_at(until, fetched).await)
            }
        };
        token.unwrap_or_else(|_| Err(McpFailure::NoToken(format!("{name} timed out"))))
    }

    /// Forgets the token that a server did not accept. False: another request would send the same.
    pub(super) async fn discard(&self, rejected: Option<&HeaderValue>) -> bool {
        let Self::OAuth(client) = self else { return false };
        let mut token = client.token.lock().await;
        let is_rejected = token.as_ref().map(|it| &it.bearer) == rejected;
        if is_rejected {
            *token = None;
        }
        true
    }
}

impl OAuthClient {
    pub fn new(
        token_url: Url,
        id: String,
        secret: Secret<String>,
        scope: Option<String>,
        resource: Option<String>,
    ) -> Self {
        Self { token_url, id, secret, scope, resource, token: tokio::sync::Mutex::default() }
    }

    fn host(&self) -> &str {
        self.token_url.host_str().unwrap_or_default()
    }

    /// The cached token, or a new one. Concurrent requests fetch one.
    async fn bearer(&self, client: &HttpClient, until: Instant) -> Result<HeaderValue, McpFailure> {
        let mut cached = self.token.lock().await;
        if let Some(token) = cached.as_ref().filter(|token| Instant::now() < token.until) {
            return Ok(token.bearer.clone());
        }
        let token = self.fetch(client, until).await.map_err(|reason| {
            McpFailure::NoToken(format!("no token of {}: {reason}", self.host()))
        })?;
        let bearer = token.bearer.clone();
        *cached = Some(token);
        Ok(bearer)
    }

    async fn fetch(&self, client: &HttpClient, until: Instant) -> Result<CachedToken, String> {
        let not_allowed = || "its address is private or local, and the operator has not listed it";
        let http = client
            .client_for(&self.token_url, Effect::Read)
            .map_err(|_| not_allowed().to_owned())?;
        let asked_at = Instant::now();
        let time = until.saturating_duration_since(asked_at);
        let response =
            send_head(http, self.request()?, time).await.map_err(|failure| match failure {
                SendFailure::NotSent(reason) | SendFailure::ResponseLost(reason) => reason,
                SendFailure::AddressRejected => not_allowed().to_owned(),
            })?;
        let status = response.status();
        let body = read_all(Box::pin(response.bytes_stream())).await;
        let body = body.map_err(|failure| failure.to_string())?;
        if !status.is_success() {
            // Only the code: other members may repeat the request.
            let code = serde_json::from_slice::<ErrorResponse>(&body).map(|it| it.error).ok();
            let is_code = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
            let code = code.filter(|it| it.len() <= ERROR_CHARS_MAX && it.bytes().all(is_code));
            let code = code.map(|code| format!(" {code}")).unwrap_or_default();
            return Err(format!("it responded {status}{code}"));
        }
        let token: TokenResponse =
            serde_json::from_slice(&body).map_err(|_| "its response has no token".to_owned())?;
        if !token.token_type.eq_ignore_ascii_case("bearer") {
            return Err("its token is not of the type Bearer".to_owned());
        }
        let bearer = bearer_header(&token.access_token).map_err(|failure| failure.to_string())?;
        let life = token.expires_in.map_or(LIFE_DEFAULT, Duration::from_secs);
        let life = life.saturating_sub(LIFE_MARGIN.min(life / 2));
        let until = asked_at.checked_add(life).unwrap_or(asked_at + LIFE_DEFAULT);
        Ok(CachedToken { bearer, until })
    }

    fn request(&self) -> Result<ToolRequest, String> {
        let encoded = |text: &str| byte_serialize(text.as_bytes()).collect::<String>();
        let pair = format!("{}:{}", encoded(&self.id), encoded(self.secret.reveal()));
        let basic = HeaderValue::try_from(format!("Basic {}", STANDARD.encode(pair)));
        let mut basic = basic.map_err(|_| "its client id or secret is unusable".to_owned())?;
        basic.set_sensitive(true);
        let mut form = Serializer::new(String::new());
        form.append_pair("grant_type", "client_credentials");
        for (name, text) in [("scope", &self.scope), ("resource", &self.resource)] {
            if let Some(text) = text {
                form.append_pair(name, text);
            }
        }
        let headers = HeaderMap::from_iter([
            (AUTHORIZATION, basic),
            (ACCEPT, HeaderValue::from_static("application/json")),
            (CONTENT_TYPE, HeaderValue::from_static("application/x-www-form-urlencoded")),
        ]);
        let (method, url) = (Method::POST, self.token_url.clone());
        Ok(ToolRequest { method, url, headers, body: Some(Bytes::from(form.finish())) })
    }
}

/// Replaces the access token in a text of the server, which may echo it.
pub(super) fn hide_token<'t>(text: &'t str, bearer: Option<&HeaderValue>) -> Cow<'t, str> {
    match token_of(bearer).filter(|token| text.contains(*token)) {
        Some(token) => Cow::Owned(text.replace(token, "[token]")),
        None => Cow::Borrowed(text),
    }
}

/// As [`hide_token`], for a text that may end within the token.
pub(super) fn hide_truncated_token<'t>(
    text: &'t str,
    bearer: Option<&HeaderValue>,
) -> Cow<'t, str> {
    let hidden =
        token_of(bearer).and_then(|token| replace_truncated_secret(text, token, "[token]"));
    hidden.map_or(Cow::Borrowed(text), Cow::Owned)
}

fn token_of(bearer: Option<&HeaderValue>) -> Option<&str> {
    let token = bearer?.to_str().ok()?.strip_prefix("Bearer ")?;
    (token.len() >= TOKEN_BYTES_MIN).then_some(token)
}

fn bearer_header(token: &str) -> Result<HeaderValue, McpFailure> {
    let mut value = HeaderValue::try_from(format!("Bearer {token}"))
        .map_err(|_| McpFailure::NoToken("the access token is no header".to_owned()))?;
    value.set_sensitive(true);
    Ok(value)
}
