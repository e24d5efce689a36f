//! Client of both APIs: which model is called where, and the result of a call. Errors are part of
//! the response.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use async_trait::async_trait;
use azure_core::credentials::TokenCredential;
use bytes::Bytes;
use http::HeaderMap;
use url::Url;

use crate::catalogue::Catalogue;
use crate::chat;
use crate::responses::api_fold::{ApiFold, record_estimated_usage};
use crate::responses::config::{
    CacheRetention, IDLE_DEFAULT, NO_URL, ResponsesConfig, SecretText, trim_non_blank,
};
use crate::responses::connection::{ModelConnection, SocketOutcome};
use crate::responses::credential::{ApiCredential, redact_key};
use crate::responses::endpoint::{ModelEndpoint, model_endpoints};
use crate::responses::fold::FoldedResponse;
use crate::responses::names::ToolNames;
use crate::responses::provider_error::{ProviderError, classify};
use crate::responses::request::serialise_body;
use crate::responses::socket::SocketPause;
use crate::{Listener, Model, ModelRecord, ModelRequest, ModelResponse, TIERS, distinct_records};
use turnwheel_azure::vault::VaultSecret;
use turnwheel_platform::clock::{Clock as _, SystemClock};
use turnwheel_platform::error_chain::error_chain;
use turnwheel_platform::settings::model::{ModelApi, ModelApis};

pub(super) const CONNECT_TIMEOUT: Duration = Duration::from_secs(15);

/// Client of the app's service and of those of single models. `TURNWHEEL_MODEL_API` selects the API of each model.
#[derive(Debug)]
pub struct ModelApiClient {
    pub(super) http: reqwest::Client,
    /// Sends upgrade requests. Created at the first use, because most apps have none.
    pub(super) upgrade_client: OnceLock<reqwest::Client>,
    pub(super) socket_pause: SocketPause,
    /// The service of the app. `None`: each model has its own.
    endpoint: Option<ModelEndpoint>,
    model_endpoints: BTreeMap<String, ModelEndpoint>,
    catalogue: Catalogue,
    deployments: BTreeMap<String, String>,
    normal_model: Option<String>,
    high_model: Option<String>,
    apis: ModelApis,
    pub(super) idle_timeout: Duration,
    retention: CacheRetention,
    pub(super) clock: SystemClock,
}

/// One call: the request, and the response so far.
pub(super) struct ResponseCall<'c> {
    pub(super) request: &'c ModelRequest<'c>,
    pub(super) fold: ApiFold,
    /// Headers of the response. They may name a delay.
    headers: HeaderMap,
}

impl<'c> ResponseCall<'c> {
    fn new(request: &'c ModelRequest<'c>, names: &ToolNames) -> Self {
        let fold = ApiFold::new(request.model, names.clone());
        Self { request, fold, headers: HeaderMap::new() }
    }
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
        let catalogue = Catalogue::new(config.prices.as_ref().map(SecretText::expose))
            .map_err(|found| mistakes.extend(found))
            .ok();
        // Models with addresses of their own need no other.
        let is_needed = config.has_address()
            || catalogue.as_ref().is_none_or(|it| it.addresses().next().is_none());
        let address = is_needed
            .then(|| config.resolve_address(credential.is_some()))
            .transpose()
            .map_err(|found| mistakes.extend(found))
            .ok();
        let headers = config.parse_headers().map_err(|found| mistakes.extend(found)).ok();
        let http = client_builder()
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
        let identity = match &credential {
            Some(CredentialSource::Token(credential)) => Some(Arc::clone(credential)),
            Some(CredentialSource::Vault(_)) | None => None,
        };
        let endpoint = address.map(|address| {
            let access = match (config.key().cloned(), credential) {
                (Some(key), _) => Some(ApiCredential::Key(key)),
                (None, Some(CredentialSource::Token(credential))) => {
                    Some(ApiCredential::Entra { credential, scope: address.scope.clone() })
                }
                (None, Some(CredentialSource::Vault(key))) => Some(ApiCredential::Vault(key)),
                (None, None) => None,
            };
            ModelEndpoint { address, access, headers }
        });
        let model_endpoints = model_endpoints(&catalogue, endpoint.as_ref(), identity.as_ref())?;
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
            upgrade_client: OnceLock::new(),
            socket_pause: SocketPause::default(),
            endpoint,
            model_endpoints,
            catalogue,
            deployments,
            normal_model: normal,
            high_model: high,
            apis: config.apis.clone(),
            idle_timeout: idle,
            retention: config.cache_retention,
            clock: SystemClock::default(),
        })
    }

    /// The service of a model.
    pub(super) fn endpoint_of(&self, model: &str) -> Option<&ModelEndpoint> {
        self.model_endpoints.get(model).or(self.endpoint.as_ref())
    }

    /// Calls the model, over the connection if there is one.
    async fn call(
        &self,
        connection: Option<&ModelConnection>,
        request: &ModelRequest<'_>,
        listener: &dyn Listener,
    ) -> ModelResponse {
        let names = ToolNames::new(request.tools);
        let mut call = ResponseCall::new(request, &names);
        let body = match serialise_body(request, &names, self.retention).await {
            Ok(body) => body,
            Err(fault) => {
                call.fold.fail(*fault);
                return self.finish(call);
            }
        };
        let Some(connection) = connection else {
            self.call_over_http(&mut call, &body, listener).await;
            return self.finish(call);
        };
        let mut state = connection.take();
        let outcome = Box::pin(self.call_over_socket(&mut state, &mut call, &body, listener)).await;
        if outcome == SocketOutcome::NotSent {
            self.call_over_http(&mut call, &body, listener).await;
        }
        let mut response = self.finish(call);
        state.record_response(outcome, &mut response);
        connection.restore(state);
        response
    }

    /// Calls the model over HTTP.
    async fn call_over_http(
        &self,
        call: &mut ResponseCall<'_>,
        body: &Bytes,
        listener: &dyn Listener,
    ) {
        match Box::pin(self.send(call.request, body)).await {
            Err((fault, headers)) => {
                call.fold.fail(fault);
                call.headers = headers;
            }
            Ok(response) => {
                call.headers = response.headers().clone();
                let read = Box::pin(self.read_response(response, &mut call.fold, listener)).await;
                if let Err(fault) = read {
                    call.fold.fail(*fault);
                }
            }
        }
    }

    fn finish(&self, call: ResponseCall<'_>) -> ModelResponse {
        let ResponseCall { request, fold, headers } = call;
        let lacks_usage = fold.lacks_usage();
        let FoldedResponse { mut message, error: fault, metadata: reply } = fold.finish();
        if lacks_usage {
            tracing::warn!(model = %request.model.id, "model response without usage; usage estimated");
            record_estimated_usage(request, &mut message);
        }
        let failure = fault.map(|fault| {
            log_failure(&fault, &headers);
            classify(&fault, &headers, self.clock.now())
        });
        let key = self.endpoint_of(&request.model.id).and_then(ModelEndpoint::last_key);
        if let (Some(key), Some(text)) = (key, &mut message.error_message) {
            *text = redact_key(text, &key);
        }
        ModelResponse { message, failure, metadata: reply }
    }
}

#[async_trait]
impl Model for ModelApiClient {
    async fn respond(&self, request: ModelRequest<'_>, listener: &dyn Listener) -> ModelResponse {
        self.call(None, &request, listener).await
    }

    async fn respond_on_connection(
        &self,
        connection: &ModelConnection,
        request: ModelRequest<'_>,
        listener: &dyn Listener,
    ) -> ModelResponse {
        // Chat Completions has no sockets, and the connection is that to the app's service.
        let has_own = self.model_endpoints.contains_key(&request.model.id);
        let connection = Some(connection).filter(|_| request.model.api != chat::API && !has_own);
        self.call(connection, &request, listener).await
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
        let endpoint = self.endpoint_of(id).ok_or(NO_URL)?;
        let base_url = base_url(&endpoint.address.responses_url);
        let mut record = ModelRecord { base_url, ..self.catalogue.record(id, deployment) };
        if self.apis.find(id) == ModelApi::ChatCompletions {
            chat::API.clone_into(&mut record.api);
        }
        Ok(record)
    }

    /// Every id has a record if the app has an address, so the settings must name it, too.
    fn is_configured(&self, model: &str) -> bool {
        let is_named = TIERS.contains(&model)
            || self.catalogue.has_override(model)
            || self.models().iter().any(|record| record.id == model);
        is_named && self.record(model).is_ok()
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

/// The HTTP client's settings: a redirect may lead to another service.
pub(super) fn client_builder() -> reqwest::ClientBuilder {
    reqwest::Client::builder()
        .redirect(reqwest::redirect::Policy::none())
        .connect_timeout(CONNECT_TIMEOUT)
        .user_agent(concat!("turnwheel/", env!("CARGO_PKG_VERSION")))
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

#[cfg(test)]
mod tests {
    use super::*;

    /// The names among `names` that are configured.
    fn configured<'n>(config: &ResponsesConfig, names: &[&'n str]) -> Vec<&'n str> {
        let model = ModelApiClient::new(config, None).unwrap();
        names.iter().copied().filter(|name| model.is_configured(name)).collect()
    }

    #[test]
    fn configured_models_are_named_and_have_records() {
        let names = ["normal", "high", "gpt-5.1", "gpt-6-sol", "local", "mystery"];
        let mut config = ResponsesConfig {
            base_url: Some("https://r.openai.azure.com".to_owned()),
            api_key: Some(SecretText::new("key-of-this-test")),
            ..ResponsesConfig::default()
        };
        assert_eq!(configured(&config, &names), [""; 0]);
        config.default_model = Some("gpt-5.1".to_owned());
        assert_eq!(configured(&config, &names), ["normal", "gpt-5.1"]);
        config.deployment_map = Some("high=gpt-6-sol".to_owned());
        config.prices = Some(SecretText::new(r#"{"local": {"input": 1}}"#));
        assert_eq!(
            configured(&config, &names),
            ["normal", "high", "gpt-5.1", "gpt-6-sol", "local"]
        );
        // Prices alone give a model no address.
        let prices = r#"{"local": {"baseUrl": "http://127.0.0.1:9/v1"}, "gpt-5.1": {"input": 1}}"#;
        let own_address = ResponsesConfig {
            prices: Some(SecretText::new(prices)),
            normal_model: Some("local".to_owned()),
            ..ResponsesConfig::default()
        };
        assert_eq!(configured(&own_address, &names), ["normal", "local"]);
    }
}
