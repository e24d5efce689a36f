//! Identities become credentials.

use std::sync::Arc;

use azure_core::credentials::TokenCredential;
use azure_identity::{
    ClientSecretCredential, DeveloperToolsCredential, ManagedIdentityCredential,
    ManagedIdentityCredentialOptions, UserAssignedId, WorkloadIdentityCredential,
    WorkloadIdentityCredentialOptions,
};

use crate::settings::azure::Identity;

/// # Errors
/// The sentence that says why there is none.
pub fn credential(identity: &Identity) -> Result<Arc<dyn TokenCredential>, String> {
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
        Identity::Workload { tenant_id, client_id, token_file } => {
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
        Identity::ClientSecret { tenant_id, client_id, secret } => ClientSecretCredential::new(
            tenant_id,
            client_id.clone(),
            secret.reveal().clone().into(),
            None,
        )
        .map(|credential| credential as Arc<dyn TokenCredential>)
        .map_err(|error| format!("the client secret cannot be used: {error}")),
        Identity::DeveloperTools => DeveloperToolsCredential::new(None)
            .map(|credential| credential as Arc<dyn TokenCredential>)
            .map_err(|error| format!("the sign-in of az or azd cannot be used: {error}")),
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
            assert!(credential(&identity).is_ok(), "{identity:?}");
        }
    }
}
