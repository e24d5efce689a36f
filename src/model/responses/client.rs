//! HTTP client of both APIs: sends a request, reads the response as it streams, and reports errors
//! in the response.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use azure_core::credentials::TokenCredential;
use bytes::Bytes;
use http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE};
use http::{HeaderMap, HeaderValue};
use serde::Serialize;
use url::Url;

use crate::azure::vault::VaultSecret;
use crate::clock::{Clock as _, SystemClock};
use crate::error_chain::error_chain;
use crate::model::catalogue::Catalogue;
use crate::model::chat;
use crate::model::chat::body::{ChatBody, build_chat_body};
use crate::model::payload::{ModelPayload, PayloadHook};
use crate::model::responses::PROVIDER;
use crate::model::responses::api_fold::{ApiFold, record_estimated_usage};
use crate::model::responses::body::{RequestBody, build_request_body};
use crate::model::responses::config::{
    CacheRetention, IDLE_DEFAULT, ResponsesConfig, Secret, ServiceAddress, trim_non_blank,
};
use crate::model::responses::credential::{ApiCredential, KEY_HEADER};
use crate::model::responses::fold::FoldedResponse;
use crate::model::responses::names::ToolNames;
use crate::model::responses::provider_error::{ProviderError, classify};
use crate::model::responses::stream::{SseReader, StreamError};
use crate::model::{
    Listener, Model, ModelRecord, ModelRequest, ModelResponse, TIERS, distinct_records,
};
use crate::settings::model::{ModelApi, ModelApis};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(15);
const TOKEN_TIMEOUT: Duration = Duration::from_secs(30);
/// Wait for the data that may follow the end of a response: the reason of a failure, or the usage.
const END_TIMEOUT: Duration = Duration::from_secs(5);
/// Bytes of a response that is not a stream.
const BODY_BYTES_MAX: usize = 8 * 1024 * 1024;

/// Client of one endpoint. `TURNWHEEL_MODEL_API` selects the API of each model.
#[derive(Debug)]
pub struct ModelApiClient {
    http: reqwest::Client,
    address: ServiceAddress,
    access: ApiCredential,
    catalogue: Catalogue,
    deployments: BTreeMap<String, String>,
    normal_model: Option<String>,
    high_model: Option<String>,
    apis: ModelApis,
    idle_timeout: Duration,
    /// Headers of the app, sent with every request.
    headers: HeaderMap,
    retention: CacheRetention,
    clock: SystemClock,
}

impl ModelApiClient {
    /// Creates a client with a token credential, or with the key of the settings.
    ///
    /// # Errors
    /// Show the texts, one for each mistake in the settings, and do not start.
    pub fn new(
        config: &ResponsesConfig,
        credential: Option<Arc<dyn TokenCredential>>,
    ) -> Result<Self, Vec<String>> {
        let given = credential.map(CredentialSource::Token);
        Self::with_credential(config, given)
    }

    /// Creates a client with a key from a Key Vault.
    ///
    /// # Errors
    /// As [`ModelApiClient::new`].
    pub fn with_vault_key(
        config: &ResponsesConfig,
        key: Arc<VaultSecret>,
    ) -> Result<Self, Vec<String>> {
        Self::with_credential(config, Some(CredentialSource::Vault(key)))
    }

    fn with_credential(
        config: &ResponsesConfig,
        credential: Option<CredentialSource>,
    ) -> Result<Self, Vec<String>> {
        let mut mistakes = Vec::new();
        let catalogue = Catalogue::new(config.prices.as_ref().map(Secret::expose))
            .map_err(|found| mistakes.extend(found))
            .ok();
        let address = config
            .resolve_address(credential.is_some())
            .map_err(|found| mistakes.extend(found))
            .ok();
        let headers = config.parse_headers().map_err(|found| mistakes.extend(found)).ok();
        let http = reqwest::Client::builder()
            .redirect(reqwest::redirect::Policy::none())
            .connect_timeout(CONNECT_TIMEOUT)
            .user_agent(concat!("turnwheel/", env!("CARGO_PKG_VERSION")))
            .build()
            .map_err(|error| {
                mistakes.push(format!("cannot create an HTTPS client: {}", error_chain(&error)));
            })
            .ok();
        let (Some(catalogue), Some(address), Some(http), Some(headers)) =
            (catalogue, address, http, headers)
        else {
            return Err(mistakes);
        };
        let access = match (config.key().cloned(), credential) {
            (Some(key), _) => ApiCredential::Key(key),
            (None, Some(CredentialSource::Token(credential))) => {
                ApiCredential::Entra { credential, scope: address.scope.clone() }
            }
            (None, Some(CredentialSource::Vault(key))) => ApiCredential::Vault(key),
            (None, None) => return Err(mistakes),
        };
        let deployments = config.parse_deployments();
        let tier = |name: &str, model: Option<&str>| {
            trim_non_blank(model).map(ToOwned::to_owned).or_else(|| deployments.get(name).cloned())
        };
        let default = trim_non_blank(config.default_model.as_deref()).map(ToOwned::to_owned);
        let normal = tier("normal", config.normal_model.as_deref()).or(default.clone());
        let high = tier("high", config.high_model.as_deref());
        let idle = config.idle_timeout.unwrap_or(IDLE_DEFAULT);
        Ok(Self {
            http,
            address,
            access,
            catalogue,
            deployments,
            normal_model: normal,
            high_model: high,
            apis: config.apis.clone(),
            idle_timeout: idle,
            headers,
            retention: config.cache_retention,
            clock: SystemClock::default(),
        })
    }

    /// Sends the request. Returns the response with status 200, or the error and the response
    /// headers.
    async fn send(
        &self,
        request: &ModelRequest<'_>,
        names: &ToolNames,
    ) -> Result<reqwest::Response, (ProviderError, HeaderMap)> {
        let lost = |fault| (fault, HeaderMap::new());
        let (name, secret) = tokio::time::timeout(TOKEN_TIMEOUT, self.access.auth_header())
            .await
            .unwrap_or_else(|_| Err("No credential received within 30 seconds.".to_owned()))
            .map_err(|text| lost(ProviderError::connection_lost(no_key_text(&text))))?;
        let body =
            serialise_body(request, names, self.retention).await.map_err(|fault| lost(*fault))?;
        let mut shown = secret;
        let mut response = self.post(request, (name, &shown), &body).await?;
        if matches!(response.status().as_u16(), 401 | 403)
            && let Some((name, other)) = self.access.successor_of(&shown).await
        {
            tracing::warn!("model key rejected; retrying with its successor");
            shown = other;
            response = self.post(request, (name, &shown), &body).await?;
        }
        if response.status() == http::StatusCode::OK {
            return Ok(response);
        }
        let (status, headers) = (response.status().as_u16(), response.headers().clone());
        let body = self.read_body(response).await.unwrap_or_default();
        Err((ProviderError::from_http(status, &redact_key(&body, &shown)), headers))
    }

    async fn post(
        &self,
        request: &ModelRequest<'_>,
        (name, secret): (&'static str, &Secret),
        body: &Bytes,
    ) -> Result<reqwest::Response, (ProviderError, HeaderMap)> {
        let lost = |fault| (fault, HeaderMap::new());
        let mut headers = self.headers.clone();
        // Headers of the model override those of the app. Neither may contain one of those below.
        headers.extend(request.model.headers.0.clone());
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        headers.insert(ACCEPT, HeaderValue::from_static("text/event-stream"));
        if let Some(value) = request.traceparent.and_then(|text| HeaderValue::from_str(text).ok()) {
            headers.insert("traceparent", value);
        }
        let mut value = HeaderValue::from_str(secret.expose()).map_err(|_| {
            lost(ProviderError::permanent("the credential is not a valid header value: check AZURE_OPENAI_API_KEY, or the secret that holds it"))
        })?;
        value.set_sensitive(true);
        let is_chat = request.model.api == chat::API;
        if is_chat && !self.address.is_azure && name == KEY_HEADER {
            // Compatible services read the key here; gateways in front of Azure read `api-key`.
            let mut bearer = HeaderValue::from_str(&format!("Bearer {}", secret.expose()))
                .unwrap_or_else(|_| value.clone());
            bearer.set_sensitive(true);
            headers.insert(AUTHORIZATION, bearer);
        }
        headers.insert(name, value);
        let url = if is_chat { &self.address.chat_url } else { &self.address.responses_url };
        let sent = self.http.post(url.clone()).headers(headers).body(body.clone()).send();
        match tokio::time::timeout(self.idle_timeout, sent).await {
            Err(_) => Err(lost(read_error(&StreamError::IdleTimeout(self.idle_timeout)))),
            Ok(Err(error)) => Err(lost(transport_error(error))),
            Ok(Ok(response)) => Ok(response),
        }
    }

    async fn read_body(
        &self,
        mut response: reqwest::Response,
    ) -> Result<String, Box<ProviderError>> {
        let mut body = Vec::new();
        loop {
            match tokio::time::timeout(self.idle_timeout, response.chunk()).await {
                Err(_) => {
                    return Err(read_error(&StreamError::IdleTimeout(self.idle_timeout)).into());
                }
                Ok(Err(error)) => return Err(transport_error(error).into()),
                Ok(Ok(None)) => return Ok(String::from_utf8_lossy(&body).into_owned()),
                Ok(Ok(Some(chunk))) if body.len() + chunk.len() <= BODY_BYTES_MAX => {
                    body.extend_from_slice(&chunk);
                }
                Ok(Ok(Some(_))) => {
                    return Err(read_error(&StreamError::TooLarge(BODY_BYTES_MAX)).into());
                }
            }
        }
    }

    async fn read_response(
        &self,
        response: reqwest::Response,
        fold: &mut ApiFold,
        listener: &dyn Listener,
    ) -> Result<(), Box<ProviderError>> {
        let kind = response
            .headers()
            .get(CONTENT_TYPE)
            .and_then(|kind| kind.to_str().ok())
            .unwrap_or_default();
        if kind.starts_with("application/json") {
            let body = self.read_body(response).await?;
            return fold.push_whole(&body, listener);
        }
        let mut events = SseReader::new(response.bytes_stream(), self.idle_timeout);
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

#[async_trait]
impl Model for ModelApiClient {
    async fn respond(&self, request: ModelRequest<'_>, listener: &dyn Listener) -> ModelResponse {
        let names = ToolNames::new(request.tools);
        let mut fold = ApiFold::new(request.model, names.clone());
        let headers = match Box::pin(self.send(&request, &names)).await {
            Err((fault, headers)) => {
                fold.fail(fault);
                headers
            }
            Ok(response) => {
                let headers = response.headers().clone();
                if let Err(fault) =
                    Box::pin(self.read_response(response, &mut fold, listener)).await
                {
                    fold.fail(*fault);
                }
                headers
            }
        };
        let lacks_usage = fold.lacks_usage();
        let FoldedResponse { mut message, error: fault, metadata: reply } = fold.finish();
        if lacks_usage {
            tracing::warn!(model = %request.model.id, "model response without usage; usage estimated");
            record_estimated_usage(&request, &mut message);
        }
        let failure = fault.map(|fault| {
            log_failure(&fault, &headers);
            classify(&fault, &headers, self.clock.now())
        });
        if let (Some(key), Some(text)) = (self.access.last_key(), &mut message.error_message) {
            *text = redact_key(text, &key);
        }
        ModelResponse { message, failure, metadata: reply }
    }

    fn record(&self, model: &str) -> Result<ModelRecord, String> {
        let id = match model {
            "" | "normal" => self.normal_model.as_deref().ok_or(
                "No model configured for `normal`: set TURNWHEEL_MODEL to a model's id, or name the model in the agent file.",
            )?,
            "high" => self.high_model.as_deref().ok_or(
                "No model configured for `high`: add `high=DEPLOYMENT` to AZURE_OPENAI_DEPLOYMENT_NAME_MAP, or name a model \
                 by its id.",
            )?,
            id => id,
        };
        let deployment = self.deployments.get(id).map_or(id, String::as_str);
        let base_url = base_url(&self.address.responses_url);
        let mut record = ModelRecord { base_url, ..self.catalogue.record(id, deployment) };
        if self.apis.find(id) == ModelApi::ChatCompletions {
            chat::API.clone_into(&mut record.api);
        }
        Ok(record)
    }

    fn models(&self) -> Vec<ModelRecord> {
        distinct_records(self, TIERS.into_iter().chain(self.deployments.keys().map(String::as_str)))
    }
}

/// Credential of the calls if the settings contain no key.
enum CredentialSource {
    Token(Arc<dyn TokenCredential>),
    Vault(Arc<VaultSecret>),
}

/// Error text of a call without a credential (s3 §1.7).
fn no_key_text(reason: &str) -> String {
    format!("No API key found for {PROVIDER}. {reason}")
}

/// Base URL of a `/responses` URL.
fn base_url(url: &Url) -> String {
    let mut base = url.clone();
    base.set_query(None);
    if let Ok(mut path) = base.path_segments_mut() {
        path.pop();
    }
    base.into()
}

/// Serialises the body: validates it and applies the payload hook.
async fn serialise_body(
    request: &ModelRequest<'_>,
    names: &ToolNames,
    retention: CacheRetention,
) -> Result<Bytes, Box<ProviderError>> {
    if request.model.api == chat::API {
        let body = build_chat_body(request, names, retention);
        check_body(body.find_violation())?;
        return apply_hook(&body, ChatBody::to_bytes, request.payload).await;
    }
    let body =
        build_request_body(request, names).with_cache_retention(retention, request.model.compat);
    check_body(body.find_violation())?;
    apply_hook(&body, RequestBody::to_bytes, request.payload).await
}

fn check_body(violation: Option<String>) -> Result<(), Box<ProviderError>> {
    let Some(violation) = violation else { return Ok(()) };
    let text =
        format!("The request was not sent, because the service would reject it: {violation}");
    Err(ProviderError::permanent(text).into())
}

async fn apply_hook<T: Serialize + Send + Sync>(
    body: &T,
    to_bytes: fn(&T) -> serde_json::Result<Vec<u8>>,
    hook: Option<&dyn PayloadHook>,
) -> Result<Bytes, Box<ProviderError>> {
    let unwritten =
        |error| ProviderError::permanent(format!("the request could not be serialised: {error}"));
    let Some(hook) = hook else {
        return Ok(to_bytes(body).map_err(unwritten)?.into());
    };
    let mut payload = ModelPayload::new(body);
    hook.on_payload(&mut payload).await.map_err(|text| ProviderError {
        kind: Some("hook_failed".to_owned()),
        ..ProviderError::connection_lost(format!("The request was not sent: {text}"))
    })?;
    let bytes = match payload.into_json() {
        Some(changed) => serde_json::to_vec(&changed),
        None => to_bytes(body),
    };
    Ok(bytes.map_err(unwritten)?.into())
}

fn read_error(error: &StreamError) -> ProviderError {
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

/// Removes the key from a text: services quote a wrong key in their errors.
fn redact_key(text: &str, key: &Secret) -> String {
    if key.expose().len() < 8 { text.to_owned() } else { text.replace(key.expose(), "…") }
}

/// Logs the ids that the service's support needs; no content of the conversation.
fn log_failure(fault: &ProviderError, headers: &HeaderMap) {
    let id = |name: &str| {
        headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default().to_owned()
    };
    tracing::debug!(
        http.status = fault.status,
        error.code = fault.code.as_deref(),
        apim_request_id = id("apim-request-id"),
        x_request_id = id("x-request-id"),
        x_ms_region = id("x-ms-region"),
        "model call failed"
    );
}
