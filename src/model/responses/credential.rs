//! What a call shows to be let in: a key, or a token of the app's identity.

use std::sync::Arc;

use azure_core::credentials::TokenCredential;
use azure_identity::{
    DeveloperToolsCredential, ManagedIdentityCredential, ManagedIdentityCredentialOptions,
    UserAssignedId,
};

use crate::model::responses::config::Secret;

/// Whose tokens; there is no chain that guesses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Identity {
    /// In Azure. With a client id: a user-assigned one.
    Managed { client_id: Option<String> },
    /// On a developer's machine: `az login` or `azd auth login`.
    DeveloperTools,
}

/// # Errors
/// The sentence that says why there is none.
pub fn entra_credential(identity: &Identity) -> Result<Arc<dyn TokenCredential>, String> {
    match identity {
        Identity::Managed { client_id } => {
            let options = ManagedIdentityCredentialOptions {
                user_assigned_id: client_id.clone().map(UserAssignedId::ClientId),
                ..ManagedIdentityCredentialOptions::default()
            };
            ManagedIdentityCredential::new(Some(options))
                .map(|credential| credential as Arc<dyn TokenCredential>)
                .map_err(|error| format!("the managed identity cannot be used: {error}"))
        }
        Identity::DeveloperTools => DeveloperToolsCredential::new(None)
            .map(|credential| credential as Arc<dyn TokenCredential>)
            .map_err(|error| format!("the sign-in of az or azd cannot be used: {error}")),
    }
}

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_identity_can_be_chosen() {
        let mine = Identity::Managed {
            client_id: Some("11111111-2222-3333-4444-555555555555".to_owned()),
        };
        for identity in [Identity::Managed { client_id: None }, mine, Identity::DeveloperTools] {
            assert!(entra_credential(&identity).is_ok(), "{identity:?}");
        }
    }
}
