//! What a call shows to be let in: a key, a key that rotates, or a token of the app's identity.

use std::sync::Arc;

use azure_core::credentials::TokenCredential;

use crate::azure::vault::VaultSecret;
use crate::model::responses::config::{NO_KEY, Secret};

/// Asked before every call, so that a rotated key or token is found; each keeps what is still valid.
#[derive(Clone, Debug)]
pub(super) enum Access {
    Key(Secret),
    Vault(Arc<VaultSecret>),
    Entra { credential: Arc<dyn TokenCredential>, scope: String },
}

const KEY_HEADER: &str = "api-key";

impl Access {
    /// The header's name and value.
    pub(super) async fn header(&self) -> Result<(&'static str, Secret), String> {
        match self {
            Self::Key(key) => Ok((KEY_HEADER, key.clone())),
            Self::Vault(secret) => {
                let key = secret.value().await?;
                Ok((KEY_HEADER, Secret::new(key.reveal().as_str())))
            }
            Self::Entra { credential, scope } => {
                let token = credential
                    .get_token(&[scope], None)
                    .await
                    .map_err(|error| format!("no Entra token for {scope}: {error}. {NO_KEY}"))?;
                Ok(("authorization", Secret::new(format!("Bearer {}", token.token.secret()))))
            }
        }
    }

    /// What to show in place of what was refused; `None` when there is nothing else.
    pub(super) async fn instead_of(&self, refused: &Secret) -> Option<(&'static str, Secret)> {
        match self {
            Self::Vault(secret) => {
                let key = secret.instead_of(refused.expose()).await?;
                Some((KEY_HEADER, Secret::new(key.reveal().as_str())))
            }
            // A token that is still valid is the same a moment later.
            Self::Key(_) | Self::Entra { .. } => None,
        }
    }

    /// The key as it was last shown.
    pub(super) fn key(&self) -> Option<Secret> {
        match self {
            Self::Key(key) => Some(key.clone()),
            Self::Vault(secret) => secret.last().map(|key| Secret::new(key.reveal().as_str())),
            Self::Entra { .. } => None,
        }
    }
}
