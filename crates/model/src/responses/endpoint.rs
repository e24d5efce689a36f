//! Where the requests to a model go, and which credential they carry. A credential reaches no other
//! service than the one it is configured for.

use std::collections::BTreeMap;
use std::sync::Arc;

use azure_core::credentials::TokenCredential;
use http::HeaderMap;

use crate::catalogue::{Catalogue, ModelAddress};
use crate::responses::config::{ResponsesConfig, SecretText, ServiceAddress, default_scope};
use crate::responses::credential::ApiCredential;

/// Name and value of an authentication header.
pub(super) type AuthHeader = (&'static str, SecretText);

/// The service of a model.
#[derive(Clone, Debug)]
pub(super) struct ModelEndpoint {
    pub(super) address: ServiceAddress,
    /// `None`: requests have no authentication header.
    pub(super) access: Option<ApiCredential>,
    /// `AZURE_OPENAI_HEADERS`; empty at the address of another service.
    pub(super) headers: HeaderMap,
}

impl ModelEndpoint {
    pub(super) async fn auth_header(&self) -> Result<Option<AuthHeader>, String> {
        match &self.access {
            Some(access) => access.auth_header().await.map(Some),
            None => Ok(None),
        }
    }

    /// Returns the successor of a rejected credential; `None` if there is none.
    pub(super) async fn successor_of(&self, refused: Option<&AuthHeader>) -> Option<AuthHeader> {
        let (_, secret) = refused?;
        self.access.as_ref()?.successor_of(secret).await
    }

    /// Returns the key of the last call.
    pub(super) fn last_key(&self) -> Option<SecretText> {
        self.access.as_ref()?.last_key()
    }
}

/// The endpoints of the models with an address of their own, by model id.
///
/// # Errors
/// One text for each mistake. They contain no keys.
pub(super) fn model_endpoints(
    catalogue: &Catalogue,
    app: Option<&ModelEndpoint>,
    identity: Option<&Arc<dyn TokenCredential>>,
) -> Result<BTreeMap<String, ModelEndpoint>, Vec<String>> {
    let (mut endpoints, mut mistakes) = (BTreeMap::new(), Vec::new());
    for (model, own) in catalogue.addresses() {
        match model_endpoint(model, &own, app, identity) {
            Ok(endpoint) => {
                endpoints.insert(model.to_owned(), endpoint);
            }
            Err(mistake) => mistakes.push(mistake),
        }
    }
    if mistakes.is_empty() { Ok(endpoints) } else { Err(mistakes) }
}

fn model_endpoint(
    model: &str,
    own: &ModelAddress<'_>,
    app: Option<&ModelEndpoint>,
    identity: Option<&Arc<dyn TokenCredential>>,
) -> Result<ModelEndpoint, String> {
    let address = ResponsesConfig::model_address(model, own)?;
    if let Some(key) = own.api_key {
        let access = Some(ApiCredential::Key(key.clone()));
        return Ok(ModelEndpoint { address, access, headers: HeaderMap::new() });
    }
    if own.has_identity {
        let Some(credential) = identity.cloned() else {
            return Err(format!(
                "TURNWHEEL_PRICES: `{model}` has `identity`, and the app calls its models with a key, so it has no identity for them: write `apiKey`"
            ));
        };
        let scope = default_scope(&address.responses_url);
        let access = Some(ApiCredential::Entra { credential, scope });
        return Ok(ModelEndpoint { address, access, headers: HeaderMap::new() });
    }
    let is_same =
        |app: &&ModelEndpoint| app.address.responses_url.origin() == address.responses_url.origin();
    Ok(match app.filter(is_same) {
        Some(app) => ModelEndpoint { address, ..app.clone() },
        None => ModelEndpoint { address, access: None, headers: HeaderMap::new() },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const APP: &str = "https://app.openai.azure.com";

    fn config(key: bool) -> ResponsesConfig {
        ResponsesConfig {
            base_url: Some(APP.to_owned()),
            api_key: key.then(|| SecretText::new("app-key")),
            api_version: Some("2025-04-01-preview".to_owned()),
            ..ResponsesConfig::default()
        }
    }

    fn app() -> ModelEndpoint {
        let headers = HeaderMap::from_iter([(
            http::HeaderName::from_static("x-gateway"),
            http::HeaderValue::from_static("secret"),
        )]);
        ModelEndpoint {
            address: config(true).resolve_address(false).unwrap(),
            access: Some(ApiCredential::Key(SecretText::new("app-key"))),
            headers,
        }
    }

    /// The endpoint of the model `m` with these members.
    fn endpoint(members: &str) -> Result<ModelEndpoint, Vec<String>> {
        let catalogue = Catalogue::new(Some(&format!(r#"{{"m": {{{members}}}}}"#)))?;
        let all = model_endpoints(&catalogue, Some(&app()), None)?;
        all.get("m").cloned().ok_or_else(Vec::new)
    }

    #[test]
    fn credentials_reach_only_their_own_service() {
        let key = |members: &str| {
            let found = endpoint(members).unwrap();
            (found.last_key().map(|key| key.expose().to_owned()), found.headers.len())
        };
        // The same scheme, host and port.
        let own = Some("app-key".to_owned());
        assert_eq!(key(r#""baseUrl": "https://app.openai.azure.com/openai/v1""#), (own, 1));
        for other in [
            "https://other.openai.azure.com",
            "https://app.openai.azure.com.evil.example/openai/v1",
            "https://app.openai.azure.com:8443/openai/v1",
            "http://127.0.0.1:9/v1",
        ] {
            assert_eq!(key(&format!(r#""baseUrl": "{other}""#)), (None, 0), "{other}");
        }
        let own_key = key(r#""baseUrl": "http://127.0.0.1:9/v1", "apiKey": "k2""#);
        assert_eq!(own_key, (Some("k2".to_owned()), 0));
        let found = endpoint(r#""baseUrl": "https://two.openai.azure.com""#).unwrap();
        let url = found.address.responses_url.as_str();
        assert_eq!(url, "https://two.openai.azure.com/openai/v1/responses", "without a version");
    }

    #[test]
    fn mistakes_of_model_addresses_hold_no_keys() {
        for (members, expected) in [
            (r#""apiKey": "hush""#, "has an `apiKey` without a `baseUrl`"),
            (r#""identity": true"#, "has `identity` without a `baseUrl`"),
            (
                r#""baseUrl": "https://a.example", "apiKey": "hush", "identity": true"#,
                "keep one of them",
            ),
            (
                r#""baseUrl": "https://a.example", "apiKey": "hush hush""#,
                "an `apiKey` with a space",
            ),
            (r#""baseUrl": "https://a.example", "apiKey": 12345"#, "a key must be a text"),
            (r#""baseUrl": "https://a.example", "identity": true"#, "calls its models with a key"),
            (r#""baseUrl": "http://a.openai.azure.com""#, "must begin with https://"),
            (r#""baseUrl": "http://a.example", "identity": true"#, "must begin with https://"),
            (r#""baseUrl": "ftp://a.example""#, "must begin with https://"),
            (r#""baseUrl": "https://u:hush@a.example""#, "holds a user name or password"),
        ] {
            let text = endpoint(members).unwrap_err().join(" ");
            assert!(text.contains(expected), "{members}: {text}");
            assert!(!text.contains("hush") && !text.contains("12345"), "{text}");
        }
    }
}
