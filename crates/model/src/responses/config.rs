//! Configuration of the Responses client from plain strings. Validation reports every mistake at
//! once.

use std::collections::BTreeMap;
use std::time::Duration;

use http::HeaderMap;
use url::Url;

use crate::catalogue::ModelAddress;
use crate::responses::headers::{HeaderError, parse_header};
pub use crate::responses::secret::SecretText;
use turnwheel_platform::settings::links::is_loopback;
use turnwheel_platform::settings::model::ModelApis;

/// Text of the source (AZ-03).
pub(super) const NO_URL: &str = "Azure OpenAI base URL is required. Set AZURE_OPENAI_BASE_URL or AZURE_OPENAI_RESOURCE_NAME, or pass azureBaseUrl, \
     azureResourceName, or model.baseUrl.";
/// Text of the source (AZ-06).
pub(super) const NO_KEY: &str = "Azure OpenAI API key is required. Set AZURE_OPENAI_API_KEY environment variable or pass it as an argument.";
/// Hosts of the service. Addresses on other hosts are used unchanged.
const AZURE_HOSTS: [&str; 5] = [
    ".openai.azure.com",
    ".cognitiveservices.azure.com",
    ".ai.azure.com",
    ".openai.azure.us",
    ".openai.azure.cn",
];

/// Settings as strings; empty strings count as absent.
#[derive(Clone, Debug, Default)]
pub struct ResponsesConfig {
    /// `AZURE_OPENAI_BASE_URL`: overrides the endpoint, which overrides the resource name.
    pub base_url: Option<String>,
    /// `AZURE_OPENAI_ENDPOINT`.
    pub endpoint: Option<String>,
    /// `AZURE_OPENAI_RESOURCE_NAME`.
    pub resource_name: Option<String>,
    /// `AZURE_OPENAI_API_KEY`: overrides a credential.
    pub api_key: Option<SecretText>,
    /// `AZURE_OPENAI_API_VERSION`: the default `v1` is part of the address and not sent.
    pub api_version: Option<String>,
    /// `AZURE_OPENAI_DEPLOYMENT_NAME_MAP`: `model=deployment,…`; the models may include `normal`
    /// and `high`.
    pub deployment_map: Option<String>,
    /// `AZURE_OPENAI_SCOPE`: scope of Entra tokens.
    pub scope: Option<String>,
    /// `TURNWHEEL_MODEL`: the model for `normal`, unless another setting names one.
    pub default_model: Option<String>,
    pub normal_model: Option<String>,
    pub high_model: Option<String>,
    /// `TURNWHEEL_MODEL_API`.
    pub apis: ModelApis,
    /// `TURNWHEEL_PRICES`, see [`crate::catalogue::Catalogue::new`].
    pub prices: Option<SecretText>,
    /// `AZURE_OPENAI_HEADERS`: `name=value,…`, sent with every request.
    pub headers: Option<SecretText>,
    /// `AZURE_OPENAI_CACHE_RETENTION`.
    pub cache_retention: CacheRetention,
    /// Time without data after which the response counts as lost; default [`IDLE_DEFAULT`].
    pub idle_timeout: Option<Duration>,
}

/// Retention of the provider's prompt cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CacheRetention {
    /// No cache: requests have no cache key.
    None,
    /// The provider's default.
    #[default]
    Short,
    /// 24 hours, if the deployment accepts `prompt_cache_retention`.
    Long,
}

/// Reasoning models may send nothing for minutes.
pub(crate) const IDLE_DEFAULT: Duration = Duration::from_mins(3);

/// Address and token scope of the calls.
#[derive(Clone, Debug)]
pub(super) struct ServiceAddress {
    /// The `…/responses` URL with its query.
    pub(super) responses_url: Url,
    /// The `…/chat/completions` URL with its query.
    pub(super) chat_url: Url,
    /// False for a gateway or another compatible service.
    pub(super) is_azure: bool,
    pub(super) scope: String,
}

impl ServiceAddress {
    fn new(base: &Url, version: Option<&str>, scope: String) -> Self {
        let operation_url = |path: &[&str]| {
            let mut url = base.clone();
            if let Ok(mut segments) = url.path_segments_mut() {
                segments.pop_if_empty().extend(path);
            }
            if let Some(version) = version {
                url.query_pairs_mut().append_pair("api-version", version);
            }
            url
        };
        Self {
            responses_url: operation_url(&["responses"]),
            chat_url: operation_url(&["chat", "completions"]),
            is_azure: is_azure_host(base),
            scope,
        }
    }
}

impl ResponsesConfig {
    /// Scope of the Entra tokens of calls; `None` if the settings do not name the service.
    pub fn token_scope(&self) -> Option<String> {
        self.resolve_address(true).ok().map(|address| address.scope)
    }

    pub(super) fn key(&self) -> Option<&SecretText> {
        self.api_key.as_ref().filter(|key| !key.expose().trim().is_empty())
    }

    /// Resolves the address of the service.
    ///
    /// # Errors
    /// Show the texts, one for each mistake.
    pub(super) fn resolve_address(
        &self,
        has_credential: bool,
    ) -> Result<ServiceAddress, Vec<String>> {
        let mut mistakes = Vec::new();
        let base = self.parse_base_url().map_err(|mistake| mistakes.push(mistake)).ok();
        match self.key() {
            None if !has_credential => mistakes.push(NO_KEY.to_owned()),
            Some(key) if !key.is_header_text() => mistakes.push(
                "AZURE_OPENAI_API_KEY holds a space, a line break or another character that is invalid in a key: copy it again."
                    .to_owned(),
            ),
            Some(_) | None => {}
        }
        if let Some(base) = &base
            && base.scheme() == "http"
            && !is_loopback(base.as_str())
            && (is_azure_host(base) || self.key().is_none())
        {
            mistakes.push(format!("the address of the model, {base}, must begin with https://"));
        }
        let Some(base) = base.filter(|_| mistakes.is_empty()) else { return Err(mistakes) };
        let scope = trim_non_blank(self.scope.as_deref())
            .map_or_else(|| default_scope(&base), ToOwned::to_owned);
        let version =
            trim_non_blank(self.api_version.as_deref()).filter(|version| *version != "v1");
        Ok(ServiceAddress::new(&base, version, scope))
    }

    /// True if the settings name the service of the app.
    pub(super) fn has_address(&self) -> bool {
        [&self.base_url, &self.endpoint, &self.resource_name]
            .into_iter()
            .any(|text| trim_non_blank(text.as_deref()).is_some())
    }

    /// The address of a model that has its own. `AZURE_OPENAI_API_VERSION` is that of the app's
    /// service, so it is not appended.
    ///
    /// # Errors
    /// Show the text.
    pub(super) fn model_address(
        model: &str,
        own: &ModelAddress<'_>,
    ) -> Result<ServiceAddress, String> {
        let name = format!("TURNWHEEL_PRICES: `baseUrl` of `{model}`");
        let base = complete_address(&name, own.base_url.trim())?;
        let needs_https = is_azure_host(&base) || own.has_identity;
        if needs_https && base.scheme() == "http" && !is_loopback(base.as_str()) {
            return Err(format!("{name} must begin with https://"));
        }
        Ok(ServiceAddress::new(&base, None, default_scope(&base)))
    }

    fn parse_base_url(&self) -> Result<Url, String> {
        let named =
            [("AZURE_OPENAI_BASE_URL", &self.base_url), ("AZURE_OPENAI_ENDPOINT", &self.endpoint)];
        for (name, text) in named {
            if let Some(text) = trim_non_blank(text.as_deref()) {
                return complete_address(name, text);
            }
        }
        let resource = trim_non_blank(self.resource_name.as_deref()).ok_or(NO_URL)?;
        if !resource.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-') {
            return Err(format!(
                "AZURE_OPENAI_RESOURCE_NAME is `{resource}`: it must be the resource's name alone, of letters, digits and `-`; \
                 for an address set AZURE_OPENAI_BASE_URL"
            ));
        }
        complete_address(
            "AZURE_OPENAI_RESOURCE_NAME",
            &format!("https://{resource}.openai.azure.com"),
        )
    }

    /// Parses the headers of the app.
    ///
    /// # Errors
    /// Show the texts, one for each mistake. They contain no values.
    pub(super) fn parse_headers(&self) -> Result<HeaderMap, Vec<String>> {
        let text = self.headers.as_ref().map(SecretText::expose).unwrap_or_default();
        let (mut headers, mut mistakes) = (HeaderMap::new(), Vec::new());
        for pair in text.split(',').map(str::trim).filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            match parse_header(name, value) {
                Err(HeaderError::Reserved(name)) => mistakes
                    .push(format!("AZURE_OPENAI_HEADERS names `{name}`, which every request has already: remove it.")),
                Ok((name, value)) => {
                    headers.insert(name, value);
                }
                Err(HeaderError::Malformed) => mistakes.push(format!(
                    "AZURE_OPENAI_HEADERS holds a part that is not a valid `name=value` pair: part {} of the list.",
                    headers.len() + mistakes.len() + 1
                )),
            }
        }
        if mistakes.is_empty() { Ok(headers) } else { Err(mistakes) }
    }

    /// Parses the deployment map. Pairs without `=`, or with an empty side, are ignored.
    pub(super) fn parse_deployments(&self) -> BTreeMap<String, String> {
        let pairs = self.deployment_map.as_deref().unwrap_or_default().split(',');
        pairs
            .filter_map(|pair| {
                let (model, deployment) = pair.split_once('=')?;
                let (model, deployment) = (model.trim(), deployment.trim());
                (!model.is_empty() && !deployment.is_empty())
                    .then(|| (model.to_owned(), deployment.to_owned()))
            })
            .collect()
    }
}

/// Trims a string; `None` if it is blank.
pub(super) fn trim_non_blank(text: Option<&str>) -> Option<&str> {
    text.map(str::trim).filter(|text| !text.is_empty())
}

/// Parses an address. A bare address of the service gets the path `/openai/v1`.
fn complete_address(name: &str, text: &str) -> Result<Url, String> {
    let mut url = Url::parse(text).map_err(|error| {
        format!("{name} is not an address ({error}): it must be like https://my-resource.openai.azure.com/openai/v1")
    })?;
    if !matches!(url.scheme(), "https" | "http") || !url.has_host() {
        return Err(format!("{name} must begin with https://"));
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err(format!(
            "{name} holds a user name or password: put the key in AZURE_OPENAI_API_KEY"
        ));
    }
    url.set_fragment(None);
    let path = url.path().trim_end_matches('/').to_owned();
    if is_azure_host(&url)
        && matches!(
            path.as_str(),
            "" | "/openai" | "/openai/v1" | "/openai/v1/responses" | "/openai/v1/chat/completions"
        )
    {
        url.set_path("/openai/v1");
        url.set_query(None);
    } else {
        url.set_path(&path);
    }
    Ok(url)
}

fn is_azure_host(url: &Url) -> bool {
    url.host_str().is_some_and(|host| AZURE_HOSTS.iter().any(|suffix| host.ends_with(suffix)))
}

/// Default token scope of a host. Foundry hosts require the newer audience; the older one is valid
/// for both kinds of Azure OpenAI resources.
pub(super) fn default_scope(url: &Url) -> String {
    let host = url.host_str().unwrap_or_default();
    let audience = if host.ends_with(".ai.azure.com") {
        "https://ai.azure.com"
    } else if host.ends_with(".azure.us") {
        "https://cognitiveservices.azure.us"
    } else if host.ends_with(".azure.cn") {
        "https://cognitiveservices.azure.cn"
    } else {
        "https://cognitiveservices.azure.com"
    };
    format!("{audience}/.default")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(base_url: &str) -> ResponsesConfig {
        ResponsesConfig {
            base_url: Some(base_url.to_owned()),
            api_key: Some(SecretText::new("k")),
            ..ResponsesConfig::default()
        }
    }

    fn url(config: &ResponsesConfig) -> String {
        config.resolve_address(false).unwrap().responses_url.to_string()
    }

    #[test]
    fn address_is_completed_only_on_azure_hosts() {
        let cases = [
            ("https://r.openai.azure.com", "https://r.openai.azure.com/openai/v1/responses"),
            (
                "https://r.openai.azure.com/openai/?api-version=x",
                "https://r.openai.azure.com/openai/v1/responses",
            ),
            (
                "https://r.openai.azure.com/openai/v1/responses",
                "https://r.openai.azure.com/openai/v1/responses",
            ),
            (
                "https://r.services.ai.azure.com/",
                "https://r.services.ai.azure.com/openai/v1/responses",
            ),
            (
                "https://r.cognitiveservices.azure.com//",
                "https://r.cognitiveservices.azure.com/openai/v1/responses",
            ),
            (
                "https://r.services.ai.azure.com/api/projects/p/openai/v1",
                "https://r.services.ai.azure.com/api/projects/p/openai/v1/responses",
            ),
            ("http://127.0.0.1:9000/openai/v1/", "http://127.0.0.1:9000/openai/v1/responses"),
            ("https://gateway.example/a?b=c", "https://gateway.example/a/responses?b=c"),
        ];
        for (given, expected) in cases {
            assert_eq!(url(&config(given)), expected, "{given}");
        }
    }

    #[test]
    fn chat_address_keeps_path_and_version() {
        let cases = [
            (
                "https://r.openai.azure.com",
                "v1",
                "https://r.openai.azure.com/openai/v1/chat/completions",
            ),
            (
                "https://r.openai.azure.com/openai/v1/chat/completions?x=y",
                "",
                "https://r.openai.azure.com/openai/v1/chat/completions",
            ),
            (
                "https://r.services.ai.azure.com/models",
                "2024-05-01-preview",
                "https://r.services.ai.azure.com/models/chat/completions?api-version=2024-05-01-preview",
            ),
            ("http://127.0.0.1:11434/v1/", "v1", "http://127.0.0.1:11434/v1/chat/completions"),
        ];
        for (base, version, expected) in cases {
            let config = ResponsesConfig { api_version: Some(version.to_owned()), ..config(base) };
            let address = config.resolve_address(false).unwrap();
            assert_eq!(address.chat_url.as_str(), expected);
            assert_eq!(address.is_azure, base.contains("azure"));
        }
    }

    #[test]
    fn resource_name_gives_address() {
        let config = ResponsesConfig {
            base_url: Some(" ".to_owned()),
            resource_name: Some("mine".to_owned()),
            ..config("")
        };
        assert_eq!(url(&config), "https://mine.openai.azure.com/openai/v1/responses");
    }

    #[test]
    fn api_version_is_sent_unless_v1() {
        for (version, expected) in
            [("v1", None), ("", None), ("preview", Some("api-version=preview"))]
        {
            let config = ResponsesConfig {
                api_version: Some(version.to_owned()),
                ..config("https://r.openai.azure.com")
            };
            assert_eq!(config.resolve_address(false).unwrap().responses_url.query(), expected);
        }
    }

    #[test]
    fn missing_settings_are_reported_at_once() {
        let mistakes = ResponsesConfig::default().resolve_address(false).unwrap_err();
        assert_eq!(mistakes, [NO_URL.to_owned(), NO_KEY.to_owned()]);
        assert_eq!(
            ResponsesConfig::default().resolve_address(true).unwrap_err(),
            [NO_URL.to_owned()]
        );
    }

    #[test]
    fn invalid_address_is_rejected() {
        let error_text = |text: &str| config(text).resolve_address(false).unwrap_err().join(" ");
        assert!(
            error_text("r.openai.azure.com").contains("must be like https://"),
            "{}",
            error_text("r.openai.azure.com")
        );
        assert!(error_text("ftp://x/").contains("must begin with https://"));
        assert!(error_text("http://r.openai.azure.com").contains("must begin with https://"));
        assert!(error_text("https://me:secret@x.example").contains("AZURE_OPENAI_API_KEY"));
        assert!(!error_text("https://me:secret@x.example").contains("secret"));
        let name = ResponsesConfig { resource_name: Some("a.b".to_owned()), ..config("") };
        assert!(name.resolve_address(false).unwrap_err()[0].contains("AZURE_OPENAI_BASE_URL"));
        let key = ResponsesConfig {
            api_key: Some(SecretText::new("a\nb")),
            ..config("https://x.example")
        };
        assert!(
            key.resolve_address(false).unwrap_err()[0].starts_with("AZURE_OPENAI_API_KEY holds")
        );
    }

    #[test]
    fn token_requires_https_or_loopback() {
        let config = ResponsesConfig { api_key: None, ..config("http://gateway.example/v1") };
        assert!(config.resolve_address(true).is_err());
        let local = ResponsesConfig { api_key: None, ..self::config("http://127.0.0.1:1/v1") };
        assert!(local.resolve_address(true).is_ok());
    }

    #[test]
    fn token_scope_follows_host_unless_set() {
        let scope = |config: &ResponsesConfig| config.resolve_address(false).unwrap().scope;
        assert_eq!(
            scope(&config("https://r.openai.azure.com")),
            "https://cognitiveservices.azure.com/.default"
        );
        assert_eq!(
            scope(&config("https://r.services.ai.azure.com")),
            "https://ai.azure.com/.default"
        );
        let set = ResponsesConfig {
            scope: Some("api://x/.default".to_owned()),
            ..config("https://r.openai.azure.com")
        };
        assert_eq!(scope(&set), "api://x/.default");
    }

    #[test]
    fn deployment_map_skips_invalid_pairs() {
        let config = ResponsesConfig {
            deployment_map: Some(" gpt-5.1 = prod ,bad,=x,y=, high=big".to_owned()),
            ..ResponsesConfig::default()
        };
        let expected =
            [("gpt-5.1", "prod"), ("high", "big")].map(|(a, b)| (a.to_owned(), b.to_owned()));
        assert_eq!(config.parse_deployments(), BTreeMap::from(expected));
    }

    #[test]
    fn debug_output_hides_key() {
        assert!(
            !format!(
                "{:?}",
                ResponsesConfig { api_key: Some(SecretText::new("hush")), ..config("x") }
            )
            .contains("hush")
        );
    }

    #[test]
    fn app_headers_are_parsed_and_validated() {
        let headers = |text: &str| {
            ResponsesConfig { headers: Some(SecretText::new(text)), ..ResponsesConfig::default() }
                .parse_headers()
        };
        let read = headers(" x-team=clerks , X-Key = a=b ,").unwrap();
        assert_eq!(
            (&read["x-team"], &read["x-key"]),
            (&"clerks".parse().unwrap(), &"a=b".parse().unwrap())
        );
        assert!(read.values().all(http::HeaderValue::is_sensitive));
        assert!(headers("").unwrap().is_empty());
        let wrong = headers("Authorization=x,no-value,sp ace=1").unwrap_err().join(" ");
        assert!(
            wrong.contains("names `authorization`")
                && wrong.contains("part 2")
                && wrong.contains("part 3"),
            "{wrong}"
        );
        assert!(!wrong.contains("ace"), "errors contain no values");
    }
}
