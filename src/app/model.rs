//! The model that the settings name.

use std::sync::Arc;

use crate::azure::credential::credential;
use crate::model::Model;
use crate::model::responses::client::AzureResponses;
use crate::model::responses::config::{ResponsesConfig, Secret};
use crate::model::scripted::ScriptedModel;
use crate::settings::Settings;
use crate::settings::model::{AzureOpenAi, Provider};

/// # Errors
/// Every mistake, each a sentence.
pub(super) fn model_of(settings: &Settings) -> Result<Arc<dyn Model>, Vec<String>> {
    match &settings.model.provider {
        Provider::Unset | Provider::Scripted => Ok(Arc::new(ScriptedModel)),
        Provider::Azure(azure) => {
            let token = match &azure.api_key {
                Some(_) => None,
                None => Some(credential(&settings.identity).map_err(|mistake| vec![mistake])?),
            };
            AzureResponses::new(&config(settings, azure), token)
                .map(|model| Arc::new(model) as Arc<dyn Model>)
        }
    }
}

fn config(settings: &Settings, azure: &AzureOpenAi) -> ResponsesConfig {
    ResponsesConfig {
        base_url: azure.base_url.clone(),
        endpoint: azure.endpoint.clone(),
        resource_name: azure.resource_name.clone(),
        api_key: azure.api_key.as_ref().map(|key| Secret::new(key.reveal().clone())),
        api_version: azure.api_version.clone(),
        deployment_map: azure.deployment_name_map.clone(),
        scope: azure.scope.clone(),
        default_model: settings.model.normal.clone(),
        normal_model: settings.model.normal.clone(),
        high_model: settings.model.high.clone(),
        prices: settings.model.prices.clone(),
        idle_timeout: None,
    }
}
