//! The app's own identity, and identities of single connections.

use super::AzureIdentity;
use crate::settings::mistake::SettingMistake;
use crate::settings::reader::Reader;
use crate::settings::secret::Secret;

const TENANT: &str = "AZURE_TENANT_ID";
const CLIENT: &str = "AZURE_CLIENT_ID";
const SECRET: &str = "AZURE_CLIENT_SECRET";
const TOKEN_FILE: &str = "AZURE_FEDERATED_TOKEN_FILE";

const CLIENT_EXPECTED: &str =
    "the client id of an identity, such as 00000000-0000-0000-0000-000000000000";

/// Values of a `…__credential` setting.
#[derive(Clone, Copy)]
enum CredentialKind {
    Managed,
    Workload,
}

impl AzureIdentity {
    /// The app's own identity. Explicit settings override the identity that the platform offers.
    pub(in crate::settings) fn read(reader: &mut Reader<'_>, is_in_azure: bool) -> Self {
        let client_id = reader.parse(CLIENT, CLIENT_EXPECTED, parse_client_id);
        let tenant_id = reader.parse(TENANT, "a tenant's id or domain", parse_tenant_id);
        let has_endpoint = reader.get("IDENTITY_ENDPOINT").is_some();
        let secret = reader.get(SECRET).map(Secret::new);
        let token_file = reader.get(TOKEN_FILE);
        if secret.is_some() && token_file.is_some() {
            reader.add_mistake(SettingMistake::new(
                SECRET,
                format!("is set, and {TOKEN_FILE} too: keep one, they are two identities"),
            ));
        }
        let credential = if secret.is_some() { SECRET } else { TOKEN_FILE };
        if secret.is_some() || token_file.is_some() {
            require_setting(reader, credential, TENANT, "the tenant that gives the tokens");
            require_setting(reader, credential, CLIENT, "the client id that it belongs to");
        }
        match (tenant_id, client_id, secret, token_file) {
            (Some(tenant_id), Some(client_id), Some(secret), _) => {
                Self::ClientSecret { tenant_id, client_id, secret }
            }
            (Some(tenant_id), Some(client_id), None, Some(file)) => {
                Self::Workload { tenant_id, client_id, token_file: file.into() }
            }
            (_, client_id, _, _) if is_in_azure || has_endpoint => Self::Managed { client_id },
            _ => Self::DeveloperTools,
        }
    }

    /// The identity of a connection. Its settings `credential` and `client` may override the app's
    /// own.
    pub(super) fn for_connection(
        &self,
        reader: &mut Reader<'_>,
        credential: &'static str,
        client: &'static str,
    ) -> Self {
        let kind = reader.parse(
            credential,
            "`managedidentity` or `workloadidentity`; without it the app's own identity is used",
            |text| match text.to_ascii_lowercase().as_str() {
                "managedidentity" => Some(CredentialKind::Managed),
                "workloadidentity" => Some(CredentialKind::Workload),
                _ => None,
            },
        );
        let configured_id = reader.parse(client, CLIENT_EXPECTED, parse_client_id);
        match (kind, self) {
            (Some(CredentialKind::Managed), _) => Self::Managed { client_id: configured_id },
            (_, Self::Workload { tenant_id, client_id, token_file }) => Self::Workload {
                tenant_id: tenant_id.clone(),
                client_id: configured_id.unwrap_or(client_id.clone()),
                token_file: token_file.clone(),
            },
            (Some(CredentialKind::Workload), _) => {
                reader.add_mistake(SettingMistake::new(
                    credential,
                    format!("is `workloadidentity`, which needs {TOKEN_FILE}, {TENANT} and {CLIENT}: the platform sets them where it offers one"),
                ));
                self.clone()
            }
            (None, Self::Managed { client_id }) => {
                Self::Managed { client_id: configured_id.or_else(|| client_id.clone()) }
            }
            (None, Self::ClientSecret { client_id, .. }) => {
                if configured_id.is_some_and(|configured_id| configured_id != *client_id) {
                    reader.add_mistake(SettingMistake::new(
                        client,
                        format!("names another identity than {CLIENT}, which {SECRET} belongs to: remove it, or set {credential} to `managedidentity`"),
                    ));
                }
                self.clone()
            }
            // The client id is set for Azure; on this machine a developer is signed in.
            (None, Self::DeveloperTools) => Self::DeveloperTools,
        }
    }
}

fn require_setting(
    reader: &mut Reader<'_>,
    dependent: &'static str,
    name: &'static str,
    expected: &str,
) {
    if reader.get(name).is_none() {
        reader.add_mistake(SettingMistake::new(
            dependent,
            format!("is set, but {name} is not: set it to {expected}"),
        ));
    }
}

fn parse_client_id(text: &str) -> Option<String> {
    uuid::Uuid::parse_str(text).ok().map(|id| id.hyphenated().to_string())
}

fn parse_tenant_id(text: &str) -> Option<String> {
    let is_tenant =
        text.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.'));
    is_tenant.then(|| text.to_owned())
}
