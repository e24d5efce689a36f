//! Azure accounts in the settings, and the credentials for each.

use std::fmt;
use std::path::PathBuf;

use url::Url;

use super::links::is_loopback;
use super::reader::parse_address;
use super::secret::Secret;

mod connection_string;
mod cosmos;
#[cfg(test)]
mod fuzz;
mod identity;
mod storage;
#[cfg(test)]
mod tests;

/// The identity that requests tokens. There is no chain that tries several.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AzureIdentity {
    /// In Azure. With a client id: a user-assigned identity.
    Managed { client_id: Option<String> },
    /// A federated token in a file, as Kubernetes provides it.
    Workload { tenant_id: String, client_id: String, token_file: PathBuf },
    /// An app registration with a secret.
    ClientSecret { tenant_id: String, client_id: String, secret: Secret<String> },
    /// On a developer's machine: `az login` or `azd auth login`.
    DeveloperTools,
}

/// Queue and blob services of one storage account.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StorageAccount {
    /// Without a trailing slash, as `https://name.queue.core.windows.net` or
    /// `http://127.0.0.1:10001/devstoreaccount1`. Plain http only on loopback, and never with an
    /// identity.
    pub queue: Url,
    pub blob: Url,
    pub access: StorageAccess,
}

impl StorageAccount {
    /// True if the account is an emulator on this machine.
    pub fn is_local(&self) -> bool {
        is_loopback(self.queue.as_str())
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StorageAccess {
    SharedKey {
        account: String,
        key: Secret<Vec<u8>>,
    },
    /// The query of a shared access signature, without the question mark.
    Sas(Secret<String>),
    Identity(AzureIdentity),
}

/// The account that stores the conversations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CosmosAccount {
    /// Plain http only on loopback.
    pub endpoint: Url,
    pub database: String,
    pub access: CosmosAccess,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CosmosAccess {
    /// In base64, as the portal shows it.
    Key(Secret<String>),
    Identity(AzureIdentity),
}

/// The address of a secret in a Key Vault.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyVaultSecret {
    /// As `https://my-vault.vault.azure.net`.
    pub vault: Url,
    pub name: String,
    /// Absent: the newest version.
    pub version: Option<String>,
}

impl KeyVaultSecret {
    /// Parses the secret's identifier, as the portal shows it.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let url = parse_address(text).filter(|url| url.scheme() == "https")?;
        let parts: Vec<&str> = url.path_segments()?.filter(|part| !part.is_empty()).collect();
        let (name, version) = match parts.as_slice() {
            ["secrets", name] => (*name, None),
            ["secrets", name, version] => (*name, Some((*version).to_owned())),
            _ => return None,
        };
        let is_plain =
            |text: &str| text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
        let is_good = is_plain(name) && version.as_deref().is_none_or(is_plain);
        let mut vault = url.clone();
        vault.set_path("");
        is_good.then(|| Self { vault, name: name.to_owned(), version })
    }
}

impl fmt::Display for KeyVaultSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}secrets/{}", self.vault, self.name)
    }
}

/// Parses an address that may receive keys and tokens; removes a trailing slash of its path.
pub(super) fn parse_endpoint(text: &str) -> Option<Url> {
    let mut url = parse_address(text)?;
    let path = url.path().trim_end_matches('/').to_owned();
    url.set_path(&path);
    (url.scheme() == "https" || is_loopback(text)).then_some(url)
}
