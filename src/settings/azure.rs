//! The Azure accounts that the settings name, and the right by which each is used.

use std::path::PathBuf;

use url::Url;

use super::links::is_loopback;
use super::reader::address;
use super::secret::Secret;

mod connection_string;
mod cosmos;
mod identity;
mod storage;
#[cfg(test)]
mod tests;

/// Whose tokens; there is no chain that guesses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Identity {
    /// In Azure. With a client id: a user-assigned one.
    Managed { client_id: Option<String> },
    /// A federated token in a file, as Kubernetes gives it.
    Workload { tenant_id: String, client_id: String, token_file: PathBuf },
    /// An app registration with a secret.
    ClientSecret { tenant_id: String, client_id: String, secret: Secret<String> },
    /// On a developer's machine: `az login` or `azd auth login`.
    DeveloperTools,
}

/// Queues and blobs of one storage account.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StorageAccount {
    /// Without a slash at the end, as `https://name.queue.core.windows.net` or `http://127.0.0.1:10001/devstoreaccount1`.
    /// Plain http only on loopback, and never with an identity.
    pub queue: Url,
    pub blob: Url,
    pub access: StorageAccess,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StorageAccess {
    SharedKey {
        account: String,
        key: Secret<Vec<u8>>,
    },
    /// The query of a shared access signature, without the question mark.
    Sas(Secret<String>),
    Identity(Identity),
}

/// The account that holds the conversations.
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
    Identity(Identity),
}

/// An address that keys and tokens may be sent to, without a slash at the end of its path.
fn endpoint(text: &str) -> Option<Url> {
    let mut url = address(text)?;
    let path = url.path().trim_end_matches('/').to_owned();
    url.set_path(&path);
    (url.scheme() == "https" || is_loopback(text)).then_some(url)
}
