//! Checks of identities: the one used for each service, and whether it gets a token.

use futures_util::future::join_all;

use super::{Area, Check};
use crate::azure::credential::Credentials;
use crate::settings::Settings;
use crate::settings::azure::{CosmosAccess, Identity, StorageAccess};
use crate::settings::model::Provider;

const AREA: Area = Area::Identity;

const STORAGE_SCOPE: &str = "https://storage.azure.com/.default";
const COSMOS_SCOPE: &str = "https://cosmos.azure.com/.default";
const VAULT_SCOPE: &str = "https://vault.azure.net/.default";

/// The app's access to a service.
struct Way<'a> {
    service: &'static str,
    /// `None`: access by the means in `by`.
    identity: Option<(&'a Identity, String)>,
    by: &'static str,
}

/// Returns one check per Azure service that the settings name. `model_scope` is the scope of the
/// model's tokens, if it needs any.
pub async fn identity_checks(
    settings: &Settings,
    model_scope: Option<&str>,
    credentials: &Credentials,
    is_offline: bool,
) -> Vec<Check> {
    let ways = ways(settings, model_scope);
    let checks = ways.iter().map(|way| async move {
        let Some((identity, scope)) = &way.identity else {
            return Check::ok(AREA, way.service, way.by);
        };
        let who = shown(identity);
        if is_offline {
            let why = format!("{who}; no token requested (--offline)");
            return Check::skipped(AREA, way.service, why);
        }
        match credentials.tokens(identity).token(scope).await {
            Ok(_) => Check::ok(AREA, way.service, format!("{who} gets tokens for {scope}")),
            Err(reason) => {
                // The SDK's error texts contain line breaks.
                let reason = reason.split_whitespace().collect::<Vec<_>>().join(" ");
                let reason = reason.trim_end_matches(['.', ':']);
                let to_do = format!("{who}: {reason}. {}", advice(identity));
                Check::fix(AREA, way.service, to_do)
            }
        }
    });
    join_all(checks).await
}

fn ways<'s>(settings: &'s Settings, model_scope: Option<&str>) -> Vec<Way<'s>> {
    let mut ways = Vec::new();
    if let Some(storage) = &settings.storage {
        let (identity, by) = match &storage.access {
            StorageAccess::SharedKey { .. } => (None, "the key of the connection string"),
            StorageAccess::Sas(_) => (None, "the shared access signature of the connection string"),
            StorageAccess::Identity(identity) => (Some((identity, STORAGE_SCOPE.to_owned())), ""),
        };
        ways.push(Way { service: "storage", identity, by });
    }
    if let Some(cosmos) = &settings.cosmos {
        let (identity, by) = match &cosmos.access {
            CosmosAccess::Key(_) => (None, "the account's key"),
            CosmosAccess::Identity(identity) => (Some((identity, COSMOS_SCOPE.to_owned())), ""),
        };
        ways.push(Way { service: "cosmos", identity, by });
    }
    if let Provider::Azure(azure) = &settings.model.provider {
        let own = &settings.identity;
        let (service, identity) = match (model_scope, &azure.api_key_place) {
            (Some(scope), _) => ("model", Some((own, scope.to_owned()))),
            (None, Some(_)) => ("key vault", Some((own, VAULT_SCOPE.to_owned()))),
            (None, None) => ("model", None),
        };
        ways.push(Way { service, identity, by: "the resource's key" });
    }
    ways
}

fn shown(identity: &Identity) -> String {
    match identity {
        Identity::Managed { client_id: None } => "the app's managed identity".to_owned(),
        Identity::Managed { client_id: Some(id) } => format!("the managed identity {id}"),
        Identity::Workload { client_id, .. } => format!("the workload identity {client_id}"),
        Identity::ClientSecret { client_id, .. } => {
            format!("the app registration {client_id} by its secret")
        }
        Identity::DeveloperTools => "your sign-in of `az` or `azd`".to_owned(),
    }
}

fn advice(identity: &Identity) -> &'static str {
    match identity {
        Identity::Managed { client_id: None } => {
            "Turn on the app's system-assigned identity, or name a user-assigned one in AZURE_CLIENT_ID."
        }
        Identity::Managed { client_id: Some(_) } => {
            "Assign this user-assigned identity to the app, or correct the client id."
        }
        Identity::Workload { .. } => {
            "Check AZURE_TENANT_ID, AZURE_CLIENT_ID and the file that AZURE_FEDERATED_TOKEN_FILE names."
        }
        Identity::ClientSecret { .. } => {
            "Check AZURE_TENANT_ID, AZURE_CLIENT_ID and AZURE_CLIENT_SECRET; secrets expire."
        }
        Identity::DeveloperTools => "Run `az login` or `azd auth login`.",
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use azure_core::credentials::{AccessToken, TokenCredential, TokenRequestOptions};

    use super::*;
    use crate::doctor::{Format, Report};

    const ID: &str = "11111111-2222-3333-4444-555555555555";

    /// Returns a token for one scope, and an error for all others.
    #[derive(Debug)]
    struct Signed(&'static str);

    #[async_trait::async_trait]
    impl TokenCredential for Signed {
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

    fn read(pairs: &'static [(&'static str, &'static str)]) -> Settings {
        Settings::read(move |asked| {
            pairs.iter().find(|(name, _)| *name == asked).map(|(_, value)| (*value).to_owned())
        })
        .unwrap()
    }

    async fn report(settings: &Settings, scope: Option<&str>, is_offline: bool) -> String {
        let mine = Identity::Managed { client_id: Some(ID.to_owned()) };
        let credentials = Credentials::default()
            .with(mine, Arc::new(Signed(STORAGE_SCOPE)))
            .with(Identity::DeveloperTools, Arc::new(Signed(COSMOS_SCOPE)));
        let checks = identity_checks(settings, scope, &credentials, is_offline).await;
        Report::new(checks).render(Format::Text)
    }

    const BY_IDENTITY: &[(&str, &str)] = &[
        ("AzureWebJobsStorage__accountName", "mine"),
        ("AzureWebJobsStorage__credential", "managedidentity"),
        ("AzureWebJobsStorage__clientId", ID),
        ("COSMOS__accountEndpoint", "https://mine.documents.azure.com"),
        ("AZURE_OPENAI_RESOURCE_NAME", "res"),
    ];

    #[tokio::test]
    async fn each_service_says_whose_token_it_gets_and_what_to_do_without_one() {
        let settings = read(BY_IDENTITY);
        let model = "https://cognitiveservices.azure.com/.default";
        insta::assert_snapshot!(report(&settings, Some(model), false).await, @r"
        identity  ok       storage: the managed identity 11111111-2222-3333-4444-555555555555 gets tokens for https://storage.azure.com/.default
        identity  ok       cosmos: your sign-in of `az` or `azd` gets tokens for https://cosmos.azure.com/.default
        identity  fix      model: your sign-in of `az` or `azd`: no Entra token for https://cognitiveservices.azure.com/.default: no user is signed in. Run `az login` or `azd auth login`.
        1 problem to fix.
        ");
        insta::assert_snapshot!(report(&settings, Some(model), true).await, @r"
        identity  skipped  storage: the managed identity 11111111-2222-3333-4444-555555555555; no token requested (--offline)
        identity  skipped  cosmos: your sign-in of `az` or `azd`; no token requested (--offline)
        identity  skipped  model: your sign-in of `az` or `azd`; no token requested (--offline)
        All completed checks are in order.
        ");
    }

    #[tokio::test]
    async fn keys_need_no_identity_and_a_key_in_a_vault_does() {
        let keys = read(&[
            ("AzureWebJobsStorage", "UseDevelopmentStorage=true"),
            ("COSMOS__accountEndpoint", "https://mine.documents.azure.com"),
            ("COSMOS__accountKey", "aHVzaA=="),
            ("AZURE_OPENAI_RESOURCE_NAME", "res"),
            ("AZURE_OPENAI_API_KEY", "hush"),
        ]);
        insta::assert_snapshot!(report(&keys, None, false).await, @r"
        identity  ok       storage: the key of the connection string
        identity  ok       cosmos: the account's key
        identity  ok       model: the resource's key
        All completed checks are in order.
        ");
        let vault = read(&[
            ("AZURE_OPENAI_RESOURCE_NAME", "res"),
            ("AZURE_OPENAI_API_KEY_SECRET_URL", "https://mine.vault.azure.net/secrets/key"),
        ]);
        let said = report(&vault, None, false).await;
        assert!(said.contains("fix      key vault: your sign-in of `az` or `azd`: no Entra token for https://vault.azure.net/.default"), "{said}");
        assert_eq!(
            report(&read(&[]), None, false).await,
            "All completed checks are in order.\n"
        );
    }
}
