//! Entra credentials of identities: one per identity, so that all its users share one token.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use azure_core::credentials::TokenCredential;
use azure_identity::{
    ClientSecretCredential, DeveloperToolsCredential, ManagedIdentityCredential,
    ManagedIdentityCredentialOptions, UserAssignedId, WorkloadIdentityCredential,
    WorkloadIdentityCredentialOptions,
};

use turnwheel_platform::settings::azure::AzureIdentity;
use turnwheel_platform::settings::secret::Secret;

/// Time limit of one token request: the endpoint of a missing identity may never respond.
const TOKEN_TIMEOUT: Duration = Duration::from_secs(30);

/// The credentials of one process; clones share them.
#[derive(Clone, Debug, Default)]
pub struct Credentials(Arc<Mutex<Vec<CachedCredential>>>);

type CachedCredential = (AzureIdentity, Arc<dyn TokenCredential>);

impl Credentials {
    /// Adds an existing credential.
    #[must_use]
    pub fn with_credential(
        self,
        identity: AzureIdentity,
        credential: Arc<dyn TokenCredential>,
    ) -> Self {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push((identity, credential));
        self
    }

    /// Returns the credential of an identity, the same one at each call.
    ///
    /// # Errors
    /// The reason as one sentence: show it to the operator.
    pub fn get_or_create(
        &self,
        identity: &AzureIdentity,
    ) -> Result<Arc<dyn TokenCredential>, String> {
        let mut cached = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, credential)) = cached.iter().find(|(known, _)| known == identity) {
            return Ok(Arc::clone(credential));
        }
        let credential = create_credential(identity)?;
        cached.push((identity.clone(), Arc::clone(&credential)));
        Ok(credential)
    }

    /// Returns the token source of an identity. Creates the credential at the first token request.
    pub fn token_source(&self, identity: &AzureIdentity) -> IdentityTokenSource {
        IdentityTokenSource { credentials: self.clone(), identity: identity.clone() }
    }
}

/// Source of access tokens of one identity.
#[derive(Clone, Debug)]
pub struct IdentityTokenSource {
    credentials: Credentials,
    identity: AzureIdentity,
}

impl IdentityTokenSource {
    /// Returns a token that is valid for at least some minutes. Requests a new one only if needed.
    ///
    /// # Errors
    /// The reason as one sentence: show it to the operator.
    pub async fn fetch_token(&self, scope: &str) -> Result<Secret<String>, String> {
        let credential = self.credentials.get_or_create(&self.identity)?;
        let scopes = [scope];
        match tokio::time::timeout(TOKEN_TIMEOUT, credential.get_token(&scopes, None)).await {
            Ok(Ok(token)) => Ok(Secret::new(token.token.secret().to_owned())),
            Ok(Err(error)) => Err(format!("no Entra token for {scope}: {error}")),
            Err(_) => Err(format!(
                "no Entra token for {scope} within {} seconds",
                TOKEN_TIMEOUT.as_secs()
            )),
        }
    }
}

/// Creates the credential of an identity.
///
/// # Errors
/// The reason as one sentence: show it to the operator.
pub fn create_credential(identity: &AzureIdentity) -> Result<Arc<dyn TokenCredential>, String> {
    match identity {
        AzureIdentity::Managed { client_id } => {
            let options = ManagedIdentityCredentialOptions {
                user_assigned_id: client_id.clone().map(UserAssignedId::ClientId),
                ..ManagedIdentityCredentialOptions::default()
            };
            ManagedIdentityCredential::new(Some(options))
                .map(|credential| credential as Arc<dyn TokenCredential>)
                .map_err(|error| format!("the managed identity cannot be used: {error}"))
        }
        AzureIdentity::Workload { tenant_id, client_id, token_file } => {
            let options = WorkloadIdentityCredentialOptions {
                tenant_id: Some(tenant_id.clone()),
                client_id: Some(client_id.clone()),
                token_file_path: Some(token_file.clone()),
                ..WorkloadIdentityCredentialOptions::default()
            };
            WorkloadIdentityCredential::new(Some(options))
                .map(|credential| credential as Arc<dyn TokenCredential>)
                .map_err(|error| format!("the workload identity cannot be used: {error}"))
        }
        AzureIdentity::ClientSecret { tenant_id, client_id, secret } => {
            ClientSecretCredential::new(
                tenant_id,
                client_id.clone(),
                secret.reveal().clone().into(),
                None,
            )
            .map(|credential| credential as Arc<dyn TokenCredential>)
            .map_err(|error| format!("the client secret cannot be used: {error}"))
        }
        AzureIdentity::DeveloperTools => DeveloperToolsCredential::new(None)
            .map(|credential| credential as Arc<dyn TokenCredential>)
            .map_err(|error| format!("the sign-in of az or azd cannot be used: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "11111111-2222-3333-4444-555555555555";

    #[test]
    fn each_identity_gets_one_credential() {
        let folder = tempfile::tempdir().unwrap();
        let token_file = folder.path().join("token");
        std::fs::write(&token_file, "ey").unwrap();
        let identities = [
            AzureIdentity::Managed { client_id: None },
            AzureIdentity::Managed { client_id: Some(ID.to_owned()) },
            AzureIdentity::DeveloperTools,
            AzureIdentity::Workload {
                tenant_id: ID.to_owned(),
                client_id: ID.to_owned(),
                token_file: token_file.clone(),
            },
            AzureIdentity::ClientSecret {
                tenant_id: ID.to_owned(),
                client_id: ID.to_owned(),
                secret: Secret::new("hush".to_owned()),
            },
        ];
        let credentials = Credentials::default();
        for identity in &identities {
            let first = credentials.get_or_create(identity).unwrap();
            assert!(
                Arc::ptr_eq(&first, &credentials.clone().get_or_create(identity).unwrap()),
                "{identity:?}"
            );
        }
        assert_eq!(
            credentials.0.lock().unwrap().len(),
            identities.len(),
            "one credential per identity"
        );
        let gone = AzureIdentity::Workload {
            tenant_id: ID.to_owned(),
            client_id: ID.to_owned(),
            token_file: folder.path().join("gone"),
        };
        let error = credentials.get_or_create(&gone).unwrap_err();
        assert!(
            error.starts_with("the workload identity cannot be used: failed to read"),
            "{error}"
        );
    }
}
