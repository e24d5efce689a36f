//! Model client from the settings.

use std::sync::Arc;

use crate::start::start_error::StartError;
use turnwheel_agent_files::{AgentDefinition, Catalog};
use turnwheel_azure::credential::Credentials;
use turnwheel_azure::vault::VaultSecret;
use turnwheel_conversation::settings::DEFAULT_MODEL;
use turnwheel_model::Model;
use turnwheel_model::responses::client::ModelApiClient;
use turnwheel_model::responses::config::{CacheRetention, ResponsesConfig, SecretText};
use turnwheel_model::scripted::ScriptedModel;
use turnwheel_platform::settings::ServiceSettings;
use turnwheel_platform::settings::model::{AzureOpenAi, Provider};

/// Creates the model client that the settings select.
///
/// # Errors
/// Returns one sentence for each invalid setting: correct them.
pub(crate) fn create_model(
    settings: &ServiceSettings,
    credentials: &Credentials,
) -> Result<Arc<dyn Model>, Vec<String>> {
    let azure = match &settings.model.provider {
        Provider::Unset | Provider::Scripted => return Ok(Arc::new(ScriptedModel)),
        Provider::Azure(azure) => azure,
    };
    let credential =
        || credentials.get_or_create(&settings.identity).map_err(|mistake| vec![mistake]);
    let config = responses_config(settings, azure);
    let model = match (&azure.api_key, &azure.key_vault_secret) {
        (Some(_), _) => ModelApiClient::new(&config, None),
        (None, Some(place)) => {
            let key = VaultSecret::new(place.clone(), credential()?);
            ModelApiClient::with_vault_key(&config, Arc::new(key.map_err(|mistake| vec![mistake])?))
        }
        (None, None) => ModelApiClient::new(&config, Some(credential()?)),
    };
    model.map(|model| Arc::new(model) as Arc<dyn Model>)
}

/// Logs every agent whose model is not configured. All prompts of such an agent fail.
///
/// # Errors
/// In `dev`, no agent has a configured model: print the error and exit instead of failing at the
/// first prompt.
pub(crate) fn require_model(
    model: &dyn Model,
    catalog: &Catalog,
    is_dev: bool,
) -> Result<(), StartError> {
    let missing = |agent: &AgentDefinition| {
        model.record(agent.settings.model.as_deref().unwrap_or(DEFAULT_MODEL)).err()
    };
    let none_works = !catalog.agents.values().any(|agent| missing(agent).is_none());
    if is_dev
        && none_works
        && let Err(reason) = model.record(DEFAULT_MODEL)
    {
        let choice = "Or choose the fake model: TURNWHEEL_MODEL=scripted.";
        return Err(StartError::Settings(vec![format!("{reason} {choice}")]));
    }
    for agent in catalog.agents.values() {
        if let Some(error) = missing(agent) {
            tracing::error!(agent = %agent.name, error, "agent unavailable");
        }
    }
    Ok(())
}

/// Scope of the Entra tokens for model requests. `None` if requests use a key or the model is fake.
pub(crate) fn token_scope(settings: &ServiceSettings) -> Option<String> {
    match &settings.model.provider {
        Provider::Azure(azure) if azure.api_key.is_none() && azure.key_vault_secret.is_none() => {
            responses_config(settings, azure).token_scope()
        }
        Provider::Unset | Provider::Scripted | Provider::Azure(_) => None,
    }
}

fn responses_config(settings: &ServiceSettings, azure: &AzureOpenAi) -> ResponsesConfig {
    ResponsesConfig {
        base_url: azure.base_url.clone(),
        endpoint: azure.endpoint.clone(),
        resource_name: azure.resource_name.clone(),
        api_key: azure.api_key.as_ref().map(|key| SecretText::new(key.reveal().clone())),
        api_version: azure.api_version.clone(),
        deployment_map: azure.deployment_name_map.clone(),
        scope: azure.scope.clone(),
        default_model: settings.model.normal.clone(),
        normal_model: settings.model.normal.clone(),
        high_model: settings.model.high.clone(),
        apis: settings.model.apis.clone(),
        prices: settings.model.prices.as_ref().map(|text| SecretText::new(text.reveal().clone())),
        headers: azure.headers.as_ref().map(|headers| SecretText::new(headers.reveal().clone())),
        cache_retention: match azure.cache_retention.as_deref() {
            Some("none") => CacheRetention::None,
            Some("long") => CacheRetention::Long,
            _ => CacheRetention::Short,
        },
        idle_timeout: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_endpoint_error_equals_model_client_error() {
        let settings = ServiceSettings::read(|_| None).unwrap();
        let missing = settings.missing_required();
        let shown: Vec<String> = missing.iter().map(ToString::to_string).collect();
        let client = ModelApiClient::new(&ResponsesConfig::default(), None).unwrap_err();
        assert!(shown.iter().any(|text| text.contains(&client[0])), "{shown:?} {client:?}");
        assert_eq!(client.len(), 2, "address and key: {client:?}");
    }
}
