//! Credential of a model call: a key, a rotating key, or a token of the app's identity.

use std::sync::Arc;

use azure_core::credentials::TokenCredential;

use crate::responses::config::{NO_KEY, SecretText};
use turnwheel_azure::vault::VaultSecret;

/// Read before every call, so that a rotated key or token takes effect. Each variant caches a valid
/// value.
#[derive(Clone, Debug)]
pub(super) enum ApiCredential {
    Key(SecretText),
    Vault(Arc<VaultSecret>),
    Entra { credential: Arc<dyn TokenCredential>, scope: String },
}

pub(super) const KEY_HEADER: &str = "api-key";

impl ApiCredential {
    /// Returns the name and value of the authentication header.
    pub(super) async fn auth_header(&self) -> Result<(&'static str, SecretText), String> {
        match self {
            Self::Key(key) => Ok((KEY_HEADER, key.clone())),
            Self::Vault(secret) => {
                let key = secret.value().await?;
                Ok((KEY_HEADER, SecretText::new(key.reveal().as_str())))
            }
            Self::Entra { credential, scope } => {
                let token = credential
                    .get_token(&[scope], None)
                    .await
                    .map_err(|error| format!("No Entra token for {scope}: {error}. {NO_KEY}"))?;
                Ok(("authorization", SecretText::new(format!("Bearer {}", token.token.secret()))))
            }
        }
    }

    /// Returns the successor of a rejected secret; `None` if there is none.
    pub(super) async fn successor_of(
        &self,
        refused: &SecretText,
    ) -> Option<(&'static str, SecretText)> {
        match self {
            Self::Vault(secret) => {
                let key = secret.replacement_of(refused.expose()).await?;
                Some((KEY_HEADER, SecretText::new(key.reveal().as_str())))
            }
            // A valid token is not replaced before it expires.
            Self::Key(_) | Self::Entra { .. } => None,
        }
    }

    /// Returns the key of the last call.
    pub(super) fn last_key(&self) -> Option<SecretText> {
        match self {
            Self::Key(key) => Some(key.clone()),
            Self::Vault(secret) => {
                secret.cached_value().map(|key| SecretText::new(key.reveal().as_str()))
            }
            Self::Entra { .. } => None,
        }
    }
}

/// Removes the key from a text: services quote a wrong key in their errors.
pub(super) fn redact_key(text: &str, key: &SecretText) -> String {
    if key.expose().len() < 8 { text.to_owned() } else { text.replace(key.expose(), "…") }
}
