//! HTTP requests of hooks: to declared hosts and allowed addresses, without redirects, bounded.

use std::fmt;
use std::sync::{Arc, OnceLock};

use axum::http::{HeaderMap, HeaderName, HeaderValue, Method};
use bytes::Bytes;
use serde::Serialize;
use serde::de::DeserializeOwned;
use url::Url;

use crate::http::{BODY_BYTES_MAX, RequestFailure, read_body, transport};
use crate::{HookContext, HookError};
use turnwheel_conversation::request::Effect;
use turnwheel_json::raw::redacted_error;
use turnwheel_platform::text_encoding::decode_utf8;
use turnwheel_tools::http::address_rules::AddressRules;
use turnwheel_tools::http::client::HttpClient;

#[cfg(test)]
mod tests;

/// The HTTP client of hooks. The default one reaches public addresses, and is built at its first use.
#[derive(Clone, Debug, Default)]
pub struct HookClient(Arc<OnceLock<HttpClient>>);

impl From<HttpClient> for HookClient {
    fn from(client: HttpClient) -> Self {
        Self(Arc::new(client.into()))
    }
}

impl HookClient {
    fn get(&self) -> Result<&HttpClient, HookError> {
        if let Some(client) = self.0.get() {
            return Ok(client);
        }
        let built = HttpClient::new(AddressRules::default())?;
        Ok(self.0.get_or_init(|| built))
    }
}

/// Requests to the hosts that an extension or a plugin declares.
#[derive(Clone, Copy, Debug)]
pub struct HookHttp<'a> {
    cx: &'a HookContext,
}

/// A request of a hook.
#[must_use = "a request is sent by `send`"]
pub struct HookHttpRequest<'a> {
    cx: &'a HookContext,
    method: Method,
    url: Url,
    headers: HeaderMap,
    body: Option<Bytes>,
}

impl fmt::Debug for HookHttpRequest<'_> {
    /// Omits the address, the headers and the body.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HookHttpRequest({})", self.method)
    }
}

/// A response with any status.
pub struct HookHttpResponse {
    status: u16,
    body: Bytes,
}

impl fmt::Debug for HookHttpResponse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HookHttpResponse({}, {} bytes)", self.status, self.body.len())
    }
}

impl HookContext {
    /// Requests to the hosts of [`Extension::permissions`](super::Extension::permissions), and to
    /// the addresses that [HTTP tools] may reach. No redirect is followed. A request and a response
    /// have at most 256 KB; the time is that of the hook.
    ///
    /// A hook may run more than once: a request must not have an effect that must happen once.
    /// [`HookContext::hook_id`] identifies a repetition.
    ///
    /// [HTTP tools]: https://github.com/turnwheel/turnwheel/blob/main/docs/http-tools.md
    pub fn http(&self) -> HookHttp<'_> {
        HookHttp { cx: self }
    }
}

impl<'a> HookHttp<'a> {
    /// # Errors
    /// See [`HookHttp::request`].
    pub fn get(self, url: &str) -> Result<HookHttpRequest<'a>, HookError> {
        self.request("GET", url)
    }

    /// # Errors
    /// See [`HookHttp::request`].
    pub fn post(self, url: &str) -> Result<HookHttpRequest<'a>, HookError> {
        self.request("POST", url)
    }

    /// A request with any method.
    ///
    /// # Errors
    /// The method or the URL is not valid, or the host is not declared.
    pub fn request(self, method: &str, url: &str) -> Result<HookHttpRequest<'a>, HookError> {
        let cx = self.cx;
        let method = Method::from_bytes(method.as_bytes())?;
        let url = Url::parse(url)?;
        if !matches!(url.scheme(), "http" | "https") {
            return Err(HookError::new("the url of a request begins with https:// or http://"));
        }
        if !cx.extension().permissions().allows_host(&url) {
            let host = url.host_str().unwrap_or_default();
            return Err(cx.refusal(&format!("host `{host}`"), "with_hosts"));
        }
        Ok(HookHttpRequest { cx, method, url, headers: HeaderMap::new(), body: None })
    }
}

impl HookHttpRequest<'_> {
    /// # Errors
    /// The name or the value is not one of a header.
    pub fn header(mut self, name: &str, value: &str) -> Result<Self, HookError> {
        self.headers
            .insert(HeaderName::from_bytes(name.as_bytes())?, HeaderValue::from_str(value)?);
        Ok(self)
    }

    /// Sets the body.
    ///
    /// # Errors
    /// The value cannot be written as JSON.
    pub fn json(mut self, value: &impl Serialize) -> Result<Self, HookError> {
        self.body = Some(serde_json::to_vec(value)?.into());
        self.header("content-type", "application/json")
    }

    /// # Errors
    /// There is no complete response: the text names the host and the reason, no other part of the
    /// address. A status such as 404 is no error.
    pub async fn send(self) -> Result<HookHttpResponse, HookError> {
        let host = self.url.host_str().unwrap_or_default().to_owned();
        self.exchange().await.map_err(|failure| {
            HookError::new(format!("the request to {host} failed: {}", failure.text))
        })
    }

    async fn exchange(self) -> Result<HookHttpResponse, RequestFailure> {
        let bytes = self.body.as_ref().map_or(0, Bytes::len);
        if bytes > BODY_BYTES_MAX {
            return Err(RequestFailure::permanent(format!(
                "its body has {bytes} bytes; the maximum is {BODY_BYTES_MAX}"
            )));
        }
        let client = &self.cx.site().access.client;
        let client = client.get().map_err(|error| RequestFailure::permanent(error.to_string()))?;
        let effect = if self.method.is_safe() { Effect::Read } else { Effect::Write };
        let client = client
            .client_for(&self.url, effect)
            .map_err(|refused| RequestFailure::permanent(refused.to_string()))?;
        let mut request = client.request(self.method, self.url).headers(self.headers);
        if let Some(body) = self.body {
            request = request.body(body);
        }
        let response = request.send().await.map_err(|error| transport(&error))?;
        let status = response.status().as_u16();
        Ok(HookHttpResponse { status, body: read_body(response).await? })
    }
}

impl HookHttpResponse {
    pub fn status(&self) -> u16 {
        self.status
    }

    /// True for 200 to 299.
    pub fn is_success(&self) -> bool {
        (200..300).contains(&self.status)
    }

    pub fn bytes(&self) -> &[u8] {
        &self.body
    }

    /// # Errors
    /// The body is not a `T` as JSON in UTF-8. The text names the position, no value.
    pub fn json<T: DeserializeOwned>(&self) -> Result<T, HookError> {
        let text = decode_utf8(&self.body)
            .map_err(|error| HookError::new(format!("the response {error}")))?;
        serde_json::from_str(text).map_err(|error| {
            HookError::new(format!("the response is not valid: {}", redacted_error(&error)))
        })
    }
}
