//! Model provider, model ids and access to the model API.

use std::collections::BTreeMap;
use std::fmt;

use super::azure::KeyVaultSecret;
use super::mistake::SettingMistake;
use super::reader::{Reader, split_list};
use super::secret::Secret;

/// The settings that select a provider, for the error of an app without one.
const NO_RESOURCE: &str = "AZURE_OPENAI_BASE_URL, AZURE_OPENAI_ENDPOINT or AZURE_OPENAI_RESOURCE_NAME, or TURNWHEEL_MODEL=scripted for the demo model";

/// The sentence of requirement AZ-03; the model client uses it too.
const NO_URL: &str = "Azure OpenAI base URL is required. Set AZURE_OPENAI_BASE_URL or AZURE_OPENAI_RESOURCE_NAME, or pass azureBaseUrl, azureResourceName, or model.baseUrl.";

const KEY: &str = "AZURE_OPENAI_API_KEY";
const KEY_URL: &str = "AZURE_OPENAI_API_KEY_SECRET_URL";

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ModelSettings {
    pub provider: Provider,
    /// Model id of the tier `normal`, and of agents that name no model.
    pub normal: Option<String>,
    /// Model id of the tier `high`.
    pub high: Option<String>,
    pub apis: ModelApis,
    /// A JSON object as configured. Secret, because headers of models in it may contain keys.
    pub prices: Option<Secret<String>>,
}

/// The API of a model's endpoint.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ModelApi {
    #[default]
    Responses,
    ChatCompletions,
}

/// The APIs of the models, from `TURNWHEEL_MODEL_API`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ModelApis {
    /// API of the models that are not in `by_model`.
    default: ModelApi,
    by_model: BTreeMap<String, ModelApi>,
}

impl ModelApis {
    /// The API of a model id.
    pub fn find(&self, model: &str) -> ModelApi {
        self.by_model.get(model).copied().unwrap_or(self.default)
    }

    /// Parses `responses`, `chat`, and pairs `MODEL=API`, separated by commas. `None` for another
    /// form.
    pub fn parse(text: &str) -> Option<Self> {
        let (mut default, mut by_model) = (None, BTreeMap::new());
        for part in split_list(text) {
            let earlier = match part.rsplit_once('=') {
                // Tiers name models, and the models have APIs.
                Some(("" | "scripted" | "normal" | "high", _)) => return None,
                Some((model, api)) => {
                    by_model.insert(model.trim().to_owned(), parse_api(api.trim())?)
                }
                None => default.replace(parse_api(part)?),
            };
            if earlier.is_some() {
                return None;
            }
        }
        Some(Self { default: default.unwrap_or_default(), by_model })
    }
}

fn parse_api(text: &str) -> Option<ModelApi> {
    match text {
        "responses" => Some(ModelApi::Responses),
        "chat" => Some(ModelApi::ChatCompletions),
        _ => None,
    }
}

/// The source of model responses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Provider {
    /// Not configured: `dev` uses the scripted model, a served app does not start.
    #[default]
    Unset,
    Scripted,
    Azure(Box<AzureOpenAi>),
}

/// Values as configured; module `model` builds addresses from them. Without the first three, models
/// have addresses of their own.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AzureOpenAi {
    pub base_url: Option<String>,
    pub endpoint: Option<String>,
    pub resource_name: Option<String>,
    /// Absent: the key in `key_vault_secret`, or without one an Entra token for `scope`.
    pub api_key: Option<Secret<String>>,
    /// Read before calls, so that a rotated key is found; never set together with `api_key`.
    pub key_vault_secret: Option<KeyVaultSecret>,
    pub api_version: Option<String>,
    pub deployment_name_map: Option<String>,
    pub scope: Option<String>,
    /// `name=value,…` as configured.
    pub headers: Option<Secret<String>>,
    /// `none`, `short` or `long`.
    pub cache_retention: Option<String>,
}

impl AzureOpenAi {
    fn has_resource(&self) -> bool {
        self.base_url.is_some() || self.endpoint.is_some() || self.resource_name.is_some()
    }
}

impl fmt::Display for AzureOpenAi {
    /// Writes the address and the kind of credential; never a key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let addresses = [&self.base_url, &self.endpoint, &self.resource_name];
        let address = addresses.into_iter().find_map(Option::as_deref).unwrap_or_default();
        let address = address.split_once('?').map_or(address, |(address, _)| address);
        if address.is_empty() {
            return f.write_str("the addresses of models in TURNWHEEL_PRICES");
        }
        match (&self.api_key, &self.key_vault_secret) {
            (Some(_), _) => write!(f, "{address}, with a key"),
            (None, Some(secret)) => write!(f, "{address}, with the key in {secret}"),
            (None, None) => write!(f, "{address}, with an Entra token"),
        }
    }
}

/// The parsed value of `TURNWHEEL_MODEL`.
#[derive(Default)]
struct SelectedModels {
    is_scripted: bool,
    normal: Option<String>,
    high: Option<String>,
}

impl ModelSettings {
    pub(super) fn read(reader: &mut Reader<'_>) -> Self {
        let models = reader
            .parse(
                "TURNWHEEL_MODEL",
                "`scripted`, a model id such as `gpt-5.1`, or `normal=MODEL,high=MODEL`",
                parse_models,
            )
            .unwrap_or_default();
        let apis = reader
            .parse(
                "TURNWHEEL_MODEL_API",
                "`responses`, `chat`, or a list of `MODEL=API` such as `DeepSeek-V3.2=chat`",
                ModelApis::parse,
            )
            .unwrap_or_default();
        let prices = reader.parse(
            "TURNWHEEL_PRICES",
            r#"a JSON object such as {"gpt-5.1":{"input":1.25,"output":10}}"#,
            |text| is_model_table(text).then(|| Secret::new(text.to_owned())),
        );
        let has_address = has_any_address(reader);
        let azure = read_azure(reader);
        let provider = if models.is_scripted {
            Provider::Scripted
        } else if azure.has_resource() || has_model_address(prices.as_ref()) {
            Provider::Azure(Box::new(azure))
        } else {
            // An invalid address has an error of its own, so its absence here is not a second one.
            if !has_address && (models.normal.is_some() || models.high.is_some()) {
                reader.add_mistake(SettingMistake::new(
                    "TURNWHEEL_MODEL",
                    format!("names a model without an address. {NO_URL} Here: set {NO_RESOURCE}"),
                ));
            } else if !has_address {
                let keys =
                    [(KEY, azure.api_key.is_some()), (KEY_URL, azure.key_vault_secret.is_some())];
                for (name, is_set) in keys {
                    if is_set {
                        reader.add_mistake(SettingMistake::new(
                            name,
                            format!("is set without an address. {NO_URL} Here: set {NO_RESOURCE}"),
                        ));
                    }
                }
            }
            Provider::Unset
        };
        Self { provider, normal: models.normal, high: models.high, apis, prices }
    }

    /// The error of an app that is served without a model.
    pub(super) fn missing_provider(&self) -> Option<SettingMistake> {
        match self.provider {
            Provider::Unset => {
                let text = format!("is not set. {NO_URL} Here: set {NO_RESOURCE}");
                Some(SettingMistake::new("AZURE_OPENAI_BASE_URL", text))
            }
            Provider::Scripted | Provider::Azure(_) => None,
        }
    }
}

fn read_azure(reader: &mut Reader<'_>) -> AzureOpenAi {
    if reader.get(KEY).is_some() && reader.get(KEY_URL).is_some() {
        reader.add_mistake(SettingMistake::new(
            KEY_URL,
            format!("is set, and {KEY} too: keep one of them"),
        ));
    }
    AzureOpenAi {
        base_url: read_address_with_query(reader, "AZURE_OPENAI_BASE_URL"),
        endpoint: read_address_with_query(reader, "AZURE_OPENAI_ENDPOINT"),
        resource_name: reader.parse(
            "AZURE_OPENAI_RESOURCE_NAME",
            "the resource's name alone, such as `my-resource` (an address goes into AZURE_OPENAI_ENDPOINT)",
            |text| {
                let is_name = text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
                is_name.then(|| text.to_owned())
            },
        ),
        api_key: reader.parse(KEY, "a key of visible ASCII characters", |text| {
            text.bytes().all(|byte| byte.is_ascii_graphic()).then(|| Secret::new(text.to_owned()))
        }),
        key_vault_secret: reader.parse(
            KEY_URL,
            "a Key Vault secret's address, such as https://my-vault.vault.azure.net/secrets/my-key",
            KeyVaultSecret::parse,
        ),
        api_version: reader.parse(
            "AZURE_OPENAI_API_VERSION",
            "`v1`, or a dated version such as 2025-04-01-preview",
            |text| {
                let is_version = text
                    .bytes()
                    .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.'));
                is_version.then(|| text.to_owned())
            },
        ),
        deployment_name_map: reader.get("AZURE_OPENAI_DEPLOYMENT_NAME_MAP"),
        scope: reader.parse(
            "AZURE_OPENAI_SCOPE",
            "a scope such as https://cognitiveservices.azure.com/.default",
            |text| (!text.contains(char::is_whitespace)).then(|| text.to_owned()),
        ),
        headers: reader.get("AZURE_OPENAI_HEADERS").map(Secret::new),
        cache_retention: reader.parse(
            "AZURE_OPENAI_CACHE_RETENTION",
            "`none`, `short` or `long`",
            |text| matches!(text, "none" | "short" | "long").then(|| text.to_owned()),
        ),
    }
}

fn has_any_address(reader: &Reader<'_>) -> bool {
    ["AZURE_OPENAI_BASE_URL", "AZURE_OPENAI_ENDPOINT", "AZURE_OPENAI_RESOURCE_NAME"]
        .iter()
        .any(|name| reader.get(name).is_some())
}

/// Reads an address that may have a query: the portal's copies end in `?api-version=…`, and module
/// `model` removes it.
fn read_address_with_query(reader: &mut Reader<'_>, name: &'static str) -> Option<String> {
    reader.parse(name, "an address such as https://my-resource.openai.azure.com", |text| {
        let url = url::Url::parse(text).ok()?;
        let is_web = matches!(url.scheme(), "http" | "https")
            && url.username().is_empty()
            && url.password().is_none();
        is_web.then(|| text.to_owned())
    })
}

/// `scripted`, `MODEL`, or a list of `MODEL`, `normal=MODEL`, `high=MODEL`, each at most once.
fn parse_models(text: &str) -> Option<SelectedModels> {
    if text == "scripted" {
        return Some(SelectedModels { is_scripted: true, ..SelectedModels::default() });
    }
    let mut models = SelectedModels::default();
    for part in split_list(text) {
        let (slot, model) = match part.split_once('=') {
            Some(("high", model)) => (&mut models.high, model),
            Some(("normal", model)) => (&mut models.normal, model),
            Some(_) => return None,
            None => (&mut models.normal, part),
        };
        let is_reserved = matches!(model, "" | "scripted" | "normal" | "high");
        if is_reserved || slot.replace(model.to_owned()).is_some() {
            return None;
        }
    }
    Some(models)
}

/// True if a model has an address of its own.
fn has_model_address(prices: Option<&Secret<String>>) -> bool {
    let models = prices.map(|text| serde_json::from_str::<serde_json::Value>(text.reveal()));
    let models = models.and_then(Result::ok).and_then(|it| it.as_object().cloned());
    models.is_some_and(|models| models.values().any(|model| model.get("baseUrl").is_some()))
}

/// True if the text is an object of objects; module `model` validates their members.
fn is_model_table(text: &str) -> bool {
    serde_json::from_str::<serde_json::Map<String, serde_json::Value>>(text)
        .is_ok_and(|prices| prices.values().all(serde_json::Value::is_object))
}
