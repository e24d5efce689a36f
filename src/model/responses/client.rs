//! HTTP client of the Responses API: sends a request, reads the response as it streams, and reports
//! errors in the response.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use azure_core::credentials::TokenCredential;
use bytes::Bytes;
use http::header::{ACCEPT, CONTENT_TYPE};
use http::{HeaderMap, HeaderValue};
use serde_json::{Value, json};
use url::Url;

use crate::azure::vault::VaultSecret;
use crate::clock::{Clock as _, SystemClock};
use crate::model::catalogue::{Catalogue, tariff};
use crate::model::responses::body::request_body;
use crate::model::responses::config::{
    CacheRetention, IDLE_DEFAULT, ResponsesConfig, Secret, given,
};
use crate::model::responses::credential::Access;
use crate::model::responses::event::Event;
use crate::model::responses::fault::{Fault, classify};
use crate::model::responses::fold::{Fold, Folded};
use crate::model::responses::names::Names;
use crate::model::responses::stream::{Events, ReadError};
use crate::model::{Answer, Listener, Model, ModelRecord, ModelRequest};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(15);
const TOKEN_TIMEOUT: Duration = Duration::from_secs(30);
/// Wait for the reason that may follow a failure without one.
const REASON_TIMEOUT: Duration = Duration::from_secs(5);
/// Bytes of a response that is not a stream.
const BODY_BYTES_MAX: usize = 8 * 1024 * 1024;

#[derive(Debug)]
pub struct AzureResponses {
    http: reqwest::Client,
    url: Url,
    access: Access,
    catalogue: Catalogue,
    deployments: BTreeMap<String, String>,
    normal: Option<String>,
    high: Option<String>,
    idle: Duration,
    /// Headers of the app, sent with every request.
    headers: HeaderMap,
    retention: CacheRetention,
    clock: SystemClock,
}

impl AzureResponses {
    /// Creates a client with a token credential, or with the key of the settings.
    ///
    /// # Errors
    /// Show the texts, one for each mistake in the settings, and do not start.
    pub fn new(
        config: &ResponsesConfig,
        credential: Option<Arc<dyn TokenCredential>>,
    ) -> Result<Self, Vec<String>> {
        let given = credential.map(Credential::Token);
        Self::with_credential(config, given)
    }

    /// Creates a client with a key from a Key Vault.
    ///
    /// # Errors
    /// As [`AzureResponses::new`].
    pub fn with_vault_key(
        config: &ResponsesConfig,
        key: Arc<VaultSecret>,
    ) -> Result<Self, Vec<String>> {
        Self::with_credential(config, Some(Credential::Vault(key)))
    }

    fn with_credential(
        config: &ResponsesConfig,
        credential: Option<Credential>,
    ) -> Result<Self, Vec<String>> {
        let mut mistakes = Vec::new();
        let catalogue = Catalogue::new(config.prices.as_ref().map(Secret::expose))
            .map_err(|found| mistakes.extend(found))
            .ok();
        let address =
            config.address(credential.is_some()).map_err(|found| mistakes.extend(found)).ok();
        let headers = config.headers().map_err(|found| mistakes.extend(found)).ok();
        let http = reqwest::Client::builder()
            .redirect(reqwest::redirect::Policy::none())
            .connect_timeout(CONNECT_TIMEOUT)
            .user_agent(concat!("turnwheel/", env!("CARGO_PKG_VERSION")))
            .build()
            .map_err(|error| {
                mistakes.push(format!("cannot create an HTTPS client: {}", chain(&error)));
            })
            .ok();
        let (Some(catalogue), Some(address), Some(http), Some(headers)) =
            (catalogue, address, http, headers)
        else {
            return Err(mistakes);
        };
        let access = match (config.key().cloned(), credential) {
            (Some(key), _) => Access::Key(key),
            (None, Some(Credential::Token(credential))) => {
                Access::Entra { credential, scope: address.scope }
            }
            (None, Some(Credential::Vault(key))) => Access::Vault(key),
            (None, None) => return Err(mistakes),
        };
        let deployments = config.deployments();
        let tier = |name: &str, model: Option<&str>| {
            given(model).map(ToOwned::to_owned).or_else(|| deployments.get(name).cloned())
        };
        let default = given(config.default_model.as_deref()).map(ToOwned::to_owned);
        let normal = tier("normal", config.normal_model.as_deref()).or(default.clone());
        let high = tier("high", config.high_model.as_deref());
        let idle = config.idle_timeout.unwrap_or(IDLE_DEFAULT);
        Ok(Self {
            http,
            url: address.url,
            access,
            catalogue,
            deployments,
            normal,
            high,
            idle,
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
        names: &Names,
    ) -> Result<reqwest::Response, (Fault, HeaderMap)> {
        let lost = |fault| (fault, HeaderMap::new());
        let (name, secret) = match tokio::time::timeout(TOKEN_TIMEOUT, self.access.header()).await {
            Ok(Ok(header)) => header,
            Ok(Err(text)) => return Err(lost(Fault::lost(text))),
            Err(_) => return Err(lost(Fault::lost("no credential received within 30 seconds"))),
        };
        let body = written(request, names, self.retention).await.map_err(|fault| lost(*fault))?;
        let mut shown = secret;
        let mut response = self.post(request, (name, &shown), &body).await?;
        if matches!(response.status().as_u16(), 401 | 403)
            && let Some((name, other)) = self.access.instead_of(&shown).await
        {
            tracing::info!("model key rejected; retrying with its successor");
            shown = other;
            response = self.post(request, (name, &shown), &body).await?;
        }
        if response.status() == http::StatusCode::OK {
            return Ok(response);
        }
        let (status, headers) = (response.status().as_u16(), response.headers().clone());
        let body = self.body(response).await.unwrap_or_default();
        Err((Fault::of_http(status, &without(&body, &shown)), headers))
    }

    async fn post(
        &self,
        request: &ModelRequest<'_>,
        (name, secret): (&'static str, &Secret),
        body: &Bytes,
    ) -> Result<reqwest::Response, (Fault, HeaderMap)> {
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
            lost(Fault::refused("the credential is not a valid header value: check AZURE_OPENAI_API_KEY, or the secret that holds it"))
        })?;
        value.set_sensitive(true);
        headers.insert(name, value);
        let sent = self.http.post(self.url.clone()).headers(headers).body(body.clone()).send();
        match tokio::time::timeout(self.idle, sent).await {
            Err(_) => Err(lost(Fault::lost(ReadError::Silent(self.idle).to_string()))),
            Ok(Err(error)) => Err(lost(transport_fault(error))),
            Ok(Ok(response)) => Ok(response),
        }
    }

    async fn body(&self, mut response: reqwest::Response) -> Result<String, Box<Fault>> {
        let mut body = Vec::new();
        loop {
            match tokio::time::timeout(self.idle, response.chunk()).await {
                Err(_) => return Err(Fault::lost(ReadError::Silent(self.idle).to_string()).into()),
                Ok(Err(error)) => return Err(transport_fault(error).into()),
                Ok(Ok(None)) => return Ok(String::from_utf8_lossy(&body).into_owned()),
                Ok(Ok(Some(chunk))) if body.len() + chunk.len() <= BODY_BYTES_MAX => {
                    body.extend_from_slice(&chunk);
                }
                Ok(Ok(Some(_))) => {
                    return Err(read_fault(&ReadError::TooLarge(BODY_BYTES_MAX)).into());
                }
            }
        }
    }

    async fn read(
        &self,
        response: reqwest::Response,
        fold: &mut Fold,
        listener: &dyn Listener,
    ) -> Result<(), Box<Fault>> {
        let kind = response
            .headers()
            .get(CONTENT_TYPE)
            .and_then(|kind| kind.to_str().ok())
            .unwrap_or_default();
        if kind.starts_with("application/json") {
            let body = self.body(response).await?;
            return read_whole(&body, fold, listener);
        }
        let mut events = Events::new(response.bytes_stream(), self.idle);
        while !fold.is_over() {
            let next = if fold.awaits_reason() {
                match tokio::time::timeout(REASON_TIMEOUT, events.next()).await {
                    Err(_) | Ok(Err(_)) => return Ok(()),
                    Ok(next) => next,
                }
            } else {
                events.next().await
            };
            match next {
                Ok(None) => return Ok(()),
                Ok(Some((name, data))) => {
                    for event in fold.push_frame(name.as_deref(), &data) {
                        listener.hear(event);
                    }
                }
                Err(error) => return Err(read_fault(&error).into()),
            }
        }
        Ok(())
    }
}

#[async_trait]
impl Model for AzureResponses {
    async fn answer(&self, request: ModelRequest<'_>, listener: &dyn Listener) -> Answer {
        let names = Names::new(request.tools);
        let mut fold = Fold::new(request.model.id.as_str(), tariff(request.model), names.clone());
        let headers = match Box::pin(self.send(&request, &names)).await {
            Err((fault, headers)) => {
                fold.fail(fault);
                headers
            }
            Ok(response) => {
                let headers = response.headers().clone();
                if let Err(fault) = Box::pin(self.read(response, &mut fold, listener)).await {
                    fold.fail(*fault);
                }
                headers
            }
        };
        let Folded { mut message, fault, reply } = fold.finish();
        let failure = fault.map(|fault| {
            log(&fault, &headers);
            classify(&fault, &headers, self.clock.now())
        });
        if let (Some(key), Some(text)) = (self.access.key(), &mut message.error_message) {
            *text = without(text, &key);
        }
        Answer { message, failure, reply }
    }

    fn record(&self, model: &str) -> Result<ModelRecord, String> {
        let id = match model {
            "" | "normal" => self.normal.as_deref().ok_or(
                "No model configured for `normal`: set TURNWHEEL_MODEL to a model's id, or name the model in the agent file.",
            )?,
            "high" => self.high.as_deref().ok_or(
                "No model configured for `high`: add `high=DEPLOYMENT` to AZURE_OPENAI_DEPLOYMENT_NAME_MAP, or name a model \
                 by its id.",
            )?,
            id => id,
        };
        let deployment = self.deployments.get(id).map_or(id, String::as_str);
        let base_url = base_of(&self.url);
        Ok(ModelRecord { base_url, ..self.catalogue.record(id, deployment) })
    }
}

/// Credential of the calls if the settings contain no key.
enum Credential {
    Token(Arc<dyn TokenCredential>),
    Vault(Arc<VaultSecret>),
}

/// Base URL of a `/responses` URL.
fn base_of(url: &Url) -> String {
    let mut base = url.clone();
    base.set_query(None);
    if let Ok(mut path) = base.path_segments_mut() {
        path.pop();
    }
    base.into()
}

/// Serialises the body: validates it and applies the payload hook.
async fn written(
    request: &ModelRequest<'_>,
    names: &Names,
    retention: CacheRetention,
) -> Result<Bytes, Box<Fault>> {
    let body = request_body(request, names).retained(retention, request.model.compat);
    if let Some(objection) = body.objection() {
        let text =
            format!("The request was not sent, because the service would reject it: {objection}");
        return Err(Fault::refused(text).into());
    }
    let unwritten = |error| Fault::refused(format!("the request could not be serialised: {error}"));
    let Some(hook) = request.payload else {
        return Ok(body.to_bytes().map_err(unwritten)?.into());
    };
    let payload = serde_json::to_value(&body).map_err(unwritten)?;
    let payload = hook.on_payload(payload).await.map_err(|text| Fault {
        kind: Some("hook_failed".to_owned()),
        ..Fault::lost(format!("The request was not sent: {text}"))
    })?;
    Ok(serde_json::to_vec(&payload).map_err(unwritten)?.into())
}

/// Reads a response of a gateway that does not stream: the whole response, or an error, with status
/// 200.
pub(super) fn read_whole(
    body: &str,
    fold: &mut Fold,
    listener: &dyn Listener,
) -> Result<(), Box<Fault>> {
    let json: Value = serde_json::from_str(body)
        .map_err(|_| Fault::lost("the model response is not valid JSON"))?;
    if json.get("object").and_then(Value::as_str) != Some("response") {
        let fault = Fault::of_error_event(&json).unwrap_or_else(|| {
            Fault::refused(
                "the server did not return a model response: check AZURE_OPENAI_BASE_URL",
            )
        });
        return Err(fault.into());
    }
    let event = Event::of(json!({ "type": "response.completed", "response": json }));
    for event in event.iter().flat_map(|event| fold.push(event)) {
        listener.hear(event);
    }
    Ok(())
}

fn read_fault(error: &ReadError) -> Fault {
    match error {
        // A retry would return and cost as much.
        ReadError::TooLarge(_) => Fault::refused(error.to_string()),
        ReadError::Silent(_) | ReadError::Broken(_) => Fault::lost(chain(error)),
    }
}

fn transport_fault(error: reqwest::Error) -> Fault {
    let is_ours = error.is_builder();
    // Records do not contain the address; the settings do.
    let text = chain(&error.without_url());
    if is_ours { Fault::refused(text) } else { Fault::lost(format!("connection error: {text}")) }
}

fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            let _ = write!(text, ": {cause_text}");
        }
        source = cause.source();
    }
    text
}

/// Removes the key from a text: services quote a wrong key in their errors.
fn without(text: &str, key: &Secret) -> String {
    if key.expose().len() < 8 { text.to_owned() } else { text.replace(key.expose(), "…") }
}

/// Logs the ids that the service's support needs; no content of the conversation.
fn log(fault: &Fault, headers: &HeaderMap) {
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
