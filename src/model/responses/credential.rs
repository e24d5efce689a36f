//! What a call shows to be let in: a key, or a token of the app's identity.

use std::sync::Arc;

use azure_core::credentials::TokenCredential;

use crate::model::responses::config::Secret;

/// Asked before every call, so that a rotated token is found; the credential keeps what is still valid.
#[derive(Clone, Debug)]
pub(super) enum Access {
    Key(Secret),
    Entra { credential: Arc<dyn TokenCredential>, scope: String },
}

impl Access {
    /// The header's name and value.
    pub(super) async fn header(&self) -> Result<(&'static str, Secret), String> {
        match self {
            Self::Key(key) => Ok(("api-key", key.clone())),
            Self::Entra { credential, scope } => {
                let token = credential
                    .get_token(&[scope], None)
                    .await
                    .map_err(|error| format!("no Entra token for {scope}: {error}"))?;
                Ok(("authorization", Secret::new(format!("Bearer {}", token.token.secret()))))
            }
        }
    }
}
