//! Requests and responses of the client over HTTP.

use std::time::Duration;

use bytes::Bytes;
use futures_util::stream::{self, StreamExt as _};
use http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE};
use http::{HeaderMap, HeaderValue, StatusCode};

use crate::chat;
use crate::responses::PROVIDER;
use crate::responses::api_fold::ApiFold;
use crate::responses::client::ModelApiClient;
use crate::responses::config::{NO_URL, SecretText};
use crate::responses::credential::{KEY_HEADER, redact_key};
use crate::responses::endpoint::{AuthHeader, ModelEndpoint};
use crate::responses::provider_error::ProviderError;
use crate::responses::stream::{SseReader, StreamError};
use crate::{Listener, ModelRequest};
use turnwheel_json::body_kind::BodyKind;
use turnwheel_platform::error_chain::error_chain;

const TOKEN_TIMEOUT: Duration = Duration::from_secs(30);
/// Wait for the data that may follow the end of a response: the reason of a failure, or the usage.
pub(super) const END_TIMEOUT: Duration = Duration::from_secs(5);
/// Bytes of a response that is not a stream.
const BODY_BYTES_MAX: usize = 8 * 1024 * 1024;

impl ModelApiClient {
    /// Sends the request. Returns the response with a status of success, or the error and the
    /// response headers.
    pub(super) async fn send(
        &self,
        request: &ModelRequest<'_>,
        body: &Bytes,
    ) -> Result<reqwest::Response, (ProviderError, HeaderMap)> {
        let unsent = |fault| (fault, HeaderMap::new());
        let endpoint = self.endpoint_of(&request.model.id);
        let endpoint = endpoint.ok_or_else(|| unsent(ProviderError::permanent(NO_URL)))?;
        let auth = self.auth_header(endpoint).await;
        let mut auth = auth.map_err(|text| unsent(ProviderError::connection_lost(text)))?;
        let mut response = self.post(request, endpoint, auth.as_ref(), body).await?;
        if matches!(response.status().as_u16(), 401 | 403)
            && let Some(successor) = endpoint.successor_of(auth.as_ref()).await
        {
            tracing::warn!("model key rejected; retrying with its successor");
            auth = Some(successor);
            response = self.post(request, endpoint, auth.as_ref(), body).await?;
        }
        if is_model_response(&response) {
            return Ok(response);
        }
        let (status, headers) = (response.status().as_u16(), response.headers().clone());
        let mut body = self.read_body(response, Vec::new()).await.unwrap_or_default();
        if let Some((_, shown)) = &auth {
            body = redact_key(&body, shown);
        }
        Err((ProviderError::from_http_response(status, &headers, &body), headers))
    }

    /// The authentication header, or the error text of a call without a credential (s3 §1.7).
    pub(super) async fn auth_header(
        &self,
        endpoint: &ModelEndpoint,
    ) -> Result<Option<AuthHeader>, String> {
        tokio::time::timeout(TOKEN_TIMEOUT, endpoint.auth_header())
            .await
            .unwrap_or_else(|_| Err("No credential received within 30 seconds.".to_owned()))
            .map_err(|reason| format!("No API key found for {PROVIDER}. {reason}"))
    }

    /// Headers that requests over HTTP and upgrades to a WebSocket share.
    pub(super) fn common_headers(
        request: &ModelRequest<'_>,
        endpoint: &ModelEndpoint,
        auth: Option<&AuthHeader>,
    ) -> Result<HeaderMap, Box<ProviderError>> {
        let mut headers = endpoint.headers.clone();
        // Headers of the model override those of the app. Neither may contain one of those below.
        headers.extend(request.model.headers.0.clone());
        if let Some(value) = request.traceparent.and_then(|text| HeaderValue::from_str(text).ok()) {
            headers.insert("traceparent", value);
        }
        if let Some((name, secret)) = auth {
            headers.insert(*name, sensitive_value(secret.expose())?);
        }
        Ok(headers)
    }

    async fn post(
        &self,
        request: &ModelRequest<'_>,
        endpoint: &ModelEndpoint,
        auth: Option<&AuthHeader>,
        body: &Bytes,
    ) -> Result<reqwest::Response, (ProviderError, HeaderMap)> {
        let lost = |fault| (fault, HeaderMap::new());
        let mut headers =
            Self::common_headers(request, endpoint, auth).map_err(|fault| lost(*fault))?;
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        headers.insert(ACCEPT, HeaderValue::from_static("text/event-stream"));
        let ModelEndpoint { address, .. } = endpoint;
        if !address.is_azure
            && let Some((KEY_HEADER, key)) = auth
        {
            // OpenAI and compatible services read the key here; gateways in front of Azure read
            // `api-key`.
            let bearer = bearer_value(key).map_err(|fault| lost(*fault))?;
            headers.insert(AUTHORIZATION, bearer);
        }
        let is_chat = request.model.api == chat::API;
        let url = if is_chat { &address.chat_url } else { &address.responses_url };
        let sent = self.http.post(url.clone()).headers(headers).body(body.clone()).send();
        match tokio::time::timeout(self.idle_timeout, sent).await {
            Err(_) => Err(lost(read_error(&StreamError::IdleTimeout(self.idle_timeout)))),
            Ok(Err(error)) => Err(lost(transport_error(error))),
            Ok(Ok(response)) => Ok(response),
        }
    }

    /// Reads the rest of a body after its start.
    async fn read_body(
        &self,
        mut response: reqwest::Response,
        start: Vec<u8>,
    ) -> Result<String, Box<ProviderError>> {
        let mut body = start;
        while let Some(chunk) = self.next_chunk(&mut response).await? {
            if body.len() + chunk.len() > BODY_BYTES_MAX {
                return Err(read_error(&StreamError::TooLarge(BODY_BYTES_MAX)).into());
            }
            body.extend_from_slice(&chunk);
        }
        Ok(String::from_utf8_lossy(&body).into_owned())
    }

    /// Reads the start of a body, as much as shows its kind.
    async fn read_start(
        &self,
        response: &mut reqwest::Response,
    ) -> Result<(Vec<u8>, BodyKind), Box<ProviderError>> {
        let mut start = Vec::new();
        loop {
            if let Some(kind) = BodyKind::of_start(&start) {
                return Ok((start, kind));
            }
            match self.next_chunk(response).await? {
                Some(chunk) => start.extend_from_slice(&chunk),
                None => return Ok((start, BodyKind::Stream)),
            }
        }
    }

    async fn next_chunk(
        &self,
        response: &mut reqwest::Response,
    ) -> Result<Option<Bytes>, Box<ProviderError>> {
        match tokio::time::timeout(self.idle_timeout, response.chunk()).await {
            Err(_) => Err(read_error(&StreamError::IdleTimeout(self.idle_timeout)).into()),
            Ok(chunk) => chunk.map_err(|error| transport_error(error).into()),
        }
    }

    /// Reads the response. Its content decides how, because gateways label it wrongly.
    pub(super) async fn read_response(
        &self,
        mut response: reqwest::Response,
        fold: &mut ApiFold,
        listener: &dyn Listener,
    ) -> Result<(), Box<ProviderError>> {
        let (start, kind) = self.read_start(&mut response).await?;
        match kind {
            BodyKind::Stream => {}
            BodyKind::Json => {
                let body = self.read_body(response, start).await?;
                return fold.push_whole(&body, listener);
            }
            BodyKind::Page => {
                let page = self.read_body(response, start).await.unwrap_or_default();
                return Err(ProviderError::from_page(&page).into());
            }
            BodyKind::Text => {
                let text = self.read_body(response, start).await?;
                return Err(ProviderError::from_text(&text).into());
            }
        }
        let bytes = stream::iter([Ok(Bytes::from(start))]).chain(response.bytes_stream());
        let mut events = SseReader::new(bytes, self.idle_timeout);
        while !fold.is_finished() {
            let next = if fold.is_awaiting_end() {
                match tokio::time::timeout(END_TIMEOUT, events.next_event()).await {
                    Err(_) | Ok(Err(_)) => return Ok(()),
                    Ok(next) => next,
                }
            } else {
                events.next_event().await
            };
            match next {
                Ok(None) => return Ok(()),
                Ok(Some((name, data))) => {
                    for event in fold.push_frame(name.as_deref(), &data) {
                        listener.on_event(event);
                    }
                }
                Err(error) => return Err(read_error(&error).into()),
            }
        }
        Ok(())
    }
}

/// True for 200, and for 201, 203 and 206 with a body: some proxies change the status.
fn is_model_response(response: &reqwest::Response) -> bool {
    let status = response.status();
    let has_body = response.content_length() != Some(0);
    status == StatusCode::OK || matches!(status.as_u16(), 201 | 203 | 206) && has_body
}

/// The key as a bearer token.
pub(super) fn bearer_value(key: &SecretText) -> Result<HeaderValue, Box<ProviderError>> {
    sensitive_value(&format!("Bearer {}", key.expose()))
}

fn sensitive_value(text: &str) -> Result<HeaderValue, Box<ProviderError>> {
    let mut value = HeaderValue::from_str(text).map_err(|_| {
        ProviderError::permanent("the credential is not a valid header value: check AZURE_OPENAI_API_KEY, or the secret that holds it")
    })?;
    value.set_sensitive(true);
    Ok(value)
}

pub(super) fn read_error(error: &StreamError) -> ProviderError {
    match error {
        // A retry would return and cost as much.
        StreamError::TooLarge(_) => ProviderError::permanent(error.to_string()),
        StreamError::IdleTimeout(_) | StreamError::ConnectionFailed(_) => {
            ProviderError::connection_lost(error_chain(error))
        }
    }
}

fn transport_error(error: reqwest::Error) -> ProviderError {
    let is_client_error = error.is_builder();
    // Records do not contain the address; the settings do.
    let text = error_chain(&error.without_url());
    if is_client_error {
        ProviderError::permanent(text)
    } else {
        ProviderError::connection_lost(format!("connection error: {text}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn body_with_status_of_success_is_a_response() {
        let is_response = |status: u16, body: &'static str| {
            let response = http::Response::builder().status(status).body(body).unwrap();
            is_model_response(&reqwest::Response::from(response))
        };
        for (status, body, expected) in [
            (200, "data: {}", true),
            (200, "", true),
            (201, "data: {}", true),
            (203, "data: {}", true),
            (206, "data: {}", true),
            (201, "", false),
            (202, "", false),
            (202, r#"{"id":"resp_1","status":"queued"}"#, false),
            (204, "", false),
            (302, "data: {}", false),
            (400, "{}", false),
        ] {
            assert_eq!(is_response(status, body), expected, "{status} {body}");
        }
    }
}
