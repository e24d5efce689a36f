//! The Azure accounts that the settings name, and the right by which each is used.

use url::Url;

use crate::settings::secret::Secret;

/// Whose tokens; there is no chain that guesses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Identity {
    /// In Azure. With a client id: a user-assigned one.
    Managed { client_id: Option<String> },
    /// A federated token in a file, as Kubernetes gives it.
    Workload,
    /// An app registration with a secret.
    ClientSecret { tenant_id: String, client_id: String, secret: Secret<String> },
    /// On a developer's machine: `az login` or `azd auth login`.
    DeveloperTools,
}

/// Queues and blobs of one storage account.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StorageAccount {
    /// Without a slash at the end, as `https://name.queue.core.windows.net` or `http://127.0.0.1:10001/devstoreaccount1`.
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
    pub endpoint: Url,
    pub database: String,
    pub access: CosmosAccess,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CosmosAccess {
    Key(Secret<String>),
    Identity(Identity),
}
