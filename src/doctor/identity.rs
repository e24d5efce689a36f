//! Checks of identities: the one used for each service, and whether it gets a token.

use futures_util::future::join_all;

use super::{Area, Check};
use turnwheel_azure::credential::Credentials;
use turnwheel_platform::settings::ServiceSettings;
use turnwheel_platform::settings::azure::{AzureIdentity, CosmosAccess, StorageAccess};
use turnwheel_platform::settings::model::Provider;

const AREA: Area = Area::Identity;

const STORAGE_SCOPE: &str = "https://storage.azure.com/.default";
const COSMOS_SCOPE: &str = "https://cosmos.azure.com/.default";
const VAULT_SCOPE: &str = "https://vault.azure.net/.default";

/// The app's access to a service.
struct ServiceAccess<'a> {
    service: &'static str,
    /// `None`: access by the means in `by`.
    identity: Option<(&'a AzureIdentity, String)>,
    by: &'static str,
}

/// Returns one check per Azure service that the settings name. `model_scope` is the scope of the
/// model's tokens, if it needs any.
pub(crate) async fn identity_checks(
    settings: &ServiceSettings,
    model_scope: Option<&str>,
    credentials: &Credentials,
    is_offline: bool,
) -> Vec<Check> {
    let accesses = service_accesses(settings, model_scope);
    let checks = accesses.iter().map(|access| async move {
        let Some((identity, scope)) = &access.identity else {
            return Check::ok(AREA, access.service, access.by);
        };
        let identity_text = describe_identity(identity);
        if is_offline {
            let skip_reason = format!("{identity_text}; no token requested (--offline)");
            return Check::skipped(AREA, access.service, skip_reason);
        }
        match credentials.token_source(identity).fetch_token(scope).await {
            Ok(_) => {
                Check::ok(AREA, access.service, format!("{identity_text} gets tokens for {scope}"))
            }
            Err(reason) => {
                // The SDK's error texts contain line breaks.
                let reason = reason.split_whitespace().collect::<Vec<_>>().join(" ");
                let reason = reason.trim_end_matches(['.', ':']);
                let to_do = format!("{identity_text}: {reason}. {}", fix_advice(identity));
                Check::fix(AREA, access.service, to_do)
            }
        }
    });
    join_all(checks).await
}

fn service_accesses<'s>(
    settings: &'s ServiceSettings,
    model_scope: Option<&str>,
) -> Vec<ServiceAccess<'s>> {
    let mut accesses = Vec::new();
    if let Some(storage) = &settings.storage {
        let (identity, by) = match &storage.access {
            StorageAccess::SharedKey { .. } => (None, "the key of the connection string"),
            StorageAccess::Sas(_) => (None, "the shared access signature of the connection string"),
            StorageAccess::Identity(identity) => (Some((identity, STORAGE_SCOPE.to_owned())), ""),
        };
        accesses.push(ServiceAccess { service: "storage", identity, by });
    }
    if let Some(cosmos) = &settings.cosmos {
        let (identity, by) = match &cosmos.access {
            CosmosAccess::Key(_) => (None, "the account's key"),
            CosmosAccess::Identity(identity) => (Some((identity, COSMOS_SCOPE.to_owned())), ""),
        };
        accesses.push(ServiceAccess { service: "cosmos", identity, by });
    }
    if let Provider::Azure(azure) = &settings.model.provider {
        let own = &settings.identity;
        let (service, identity) = match (model_scope, &azure.key_vault_secret) {
            (Some(scope), _) => ("model", Some((own, scope.to_owned()))),
            (None, Some(_)) => ("key vault", Some((own, VAULT_SCOPE.to_owned()))),
            (None, None) => ("model", None),
        };
        accesses.push(ServiceAccess { service, identity, by: "the resource's key" });
    }
    accesses
}

fn describe_identity(identity: &AzureIdentity) -> String {
    match identity {
        AzureIdentity::Managed { client_id: None } => "the app's managed identity".to_owned(),
        AzureIdentity::Managed { client_id: Some(id) } => format!("the managed identity {id}"),
        AzureIdentity::Workload { client_id, .. } => format!("the workload identity {client_id}"),
        AzureIdentity::ClientSecret { client_id, .. } => {
            format!("the app registration {client_id} by its secret")
        }
        AzureIdentity::DeveloperTools => "your sign-in of `az` or `azd`".to_owned(),
    }
}

fn fix_advice(identity: &AzureIdentity) -> &'static str {
    match identity {
        AzureIdentity::Managed { client_id: None } => {
            "Turn on the app's system-assigned identity, or name a user-assigned one in AZURE_CLIENT_ID."
        }
        AzureIdentity::Managed { client_id: Some(_) } => {
            "Assign this user-assigned identity to the app, or correct the client id."
        }
        AzureIdentity::Workload { .. } => {
            "Check AZURE_TENANT_ID, AZURE_CLIENT_ID and the file that AZURE_FEDERATED_TOKEN_FILE names."
        }
        AzureIdentity::ClientSecret { .. } => {
            "Check AZURE_TENANT_ID, AZURE_CLIENT_ID and AZURE_CLIENT_SECRET; secrets expire."
        }
        AzureIdentity::DeveloperTools => "Run `az login` or `azd auth login`.",
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use azure_core::credentials::{AccessToken, TokenCredential, TokenRequestOptions};

    use super::*;
    use crate::doctor::{DoctorReport, Format};

    const ID: &str = "11111111-2222-3333-4444-555555555555";

    /// Returns a token for one scope, and an error for all others.
    #[derive(Debug)]
    struct SingleScopeCredential(&'static str);

    #[async_trait::async_trait]
    impl TokenCredential for SingleScopeCredential {
        async fn get_token(
            &self,
            scopes: &[&str],
            _: Option<TokenRequestOptions<'_>>,
        ) -> azure_core::Result<AccessToken> {
            if scopes != [self.0] {
                return Err(azure_core::Error::with_message(
                    azure_core::error::ErrorKind::Credential,
                    "no user is signed in",
                ));
            }
            let expires_on = azure_core::time::OffsetDateTime::UNIX_EPOCH;
            Ok(AccessToken { token: "hush-token".into(), expires_on })
        }
    }

    fn read_settings(pairs: &'static [(&'static str, &'static str)]) -> ServiceSettings {
        ServiceSettings::read(move |requested| {
            pairs.iter().find(|(name, _)| *name == requested).map(|(_, value)| (*value).to_owned())
        })
        .unwrap()
    }

    async fn render_report(
        settings: &ServiceSettings,
        scope: Option<&str>,
        is_offline: bool,
    ) -> String {
        let mine = AzureIdentity::Managed { client_id: Some(ID.to_owned()) };
        let credentials = Credentials::default()
            .with_credential(mine, Arc::new(SingleScopeCredential(STORAGE_SCOPE)))
            .with_credential(
                AzureIdentity::DeveloperTools,
                Arc::new(SingleScopeCredential(COSMOS_SCOPE)),
            );
        let checks = identity_checks(settings, scope, &credentials, is_offline).await;
        DoctorReport::new(checks).render(Format::Text)
    }

    const IDENTITY_SETTINGS: &[(&str, &str)] = &[
        ("AzureWebJobsStorage__accountName", "mine"),
        ("AzureWebJobsStorage__credential", "managedidentity"),
        ("AzureWebJobsStorage__clientId", ID),
        ("COSMOS__accountEndpoint", "https://mine.documents.azure.com"),
        ("AZURE_OPENAI_RESOURCE_NAME", "res"),
    ];

    #[tokio::test]
    async fn identity_checks_name_token_source_or_fix() {
        let settings = read_settings(IDENTITY_SETTINGS);
        let model = "https://cognitiveservices.azure.com/.default";
        insta::assert_snapshot!(render_report(&settings, Some(model), false).await, @r"
        identity  ok       storage: the managed identity 11111111-2222-3333-4444-555555555555 gets tokens for https://storage.azure.com/.default
        identity  ok       cosmos: your sign-in of `az` or `azd` gets tokens for https://cosmos.azure.com/.default
        identity  fix      model: your sign-in of `az` or `azd`: no Entra token for https://cognitiveservices.azure.com/.default: no user is signed in. Run `az login` or `azd auth login`.
        1 problem to fix.
        ");
        insta::assert_snapshot!(render_report(&settings, Some(model), true).await, @r"
        identity  skipped  storage: the managed identity 11111111-2222-3333-4444-555555555555; no token requested (--offline)
        identity  skipped  cosmos: your sign-in of `az` or `azd`; no token requested (--offline)
        identity  skipped  model: your sign-in of `az` or `azd`; no token requested (--offline)
        All completed checks are in order.
        ");
    }

    #[tokio::test]
    async fn keys_need_no_identity_except_in_vault() {
        let keys = read_settings(&[
            ("AzureWebJobsStorage", "UseDevelopmentStorage=true"),
            ("COSMOS__accountEndpoint", "https://mine.documents.azure.com"),
            ("COSMOS__accountKey", "aHVzaA=="),
            ("AZURE_OPENAI_RESOURCE_NAME", "res"),
            ("AZURE_OPENAI_API_KEY", "hush"),
        ]);
        insta::assert_snapshot!(render_report(&keys, None, false).await, @r"
        identity  ok       storage: the key of the connection string
        identity  ok       cosmos: the account's key
        identity  ok       model: the resource's key
        All completed checks are in order.
        ");
        let vault = read_settings(&[
            ("AZURE_OPENAI_RESOURCE_NAME", "res"),
            ("AZURE_OPENAI_API_KEY_SECRET_URL", "https://mine.vault.azure.net/secrets/key"),
        ]);
        let text = render_report(&vault, None, false).await;
        assert!(text.contains("fix      key vault: your sign-in of `az` or `azd`: no Entra token for https://vault.azure.net/.default"), "{text}");
        assert_eq!(
            render_report(&read_settings(&[]), None, false).await,
            "All completed checks are in order.\n"
        );
    }
}
