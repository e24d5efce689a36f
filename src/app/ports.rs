//! Opens the store, queue, artifact and live ports that the settings and the command line select.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use azure_core::credentials::TokenCredential;
use tokio::net::TcpStream;

use crate::app::service::{StartError, io};
use crate::artifacts::{Artifacts, BlobArtifacts, EmbeddedArtifacts};
use crate::azure::credential::Credentials;
use crate::azure::storage::Sending;
use crate::azurite::{self, Azurite, AzuriteOptions};
use crate::clock::Clock;
use crate::ids::{Ids, WorkerId};
use crate::live::{EmbeddedLive, Live, SharedLive};
use crate::queue::{self, EmbeddedQueue, Queue, StorageQueue};
use crate::settings::Settings;
use crate::settings::azure::{
    CosmosAccess, CosmosAccount, Identity, StorageAccess, StorageAccount,
};
use crate::settings::links::ArtifactLinks;
use crate::store::ConversationStore;
use crate::store::cosmos::CosmosStore;
use crate::store::embedded::EmbeddedStore;

/// Time limit of a connection to the storage emulator, which runs on this machine.
const ANSWERS_WITHIN: Duration = Duration::from_secs(1);

/// Location of queues, artifacts and conversations.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Storage {
    /// All data in the data folder.
    #[default]
    Embedded,
    /// Queues and artifacts in the storage emulator, which is started if none runs. Conversations
    /// in Cosmos DB if `COSMOS__accountEndpoint` is set, else in the data folder.
    Azurite { queue_prefix: String },
    /// Queues and artifacts in the storage account of the settings; conversations as for
    /// [`Storage::Azurite`].
    Account { queue_prefix: String },
}

pub(super) struct Ports {
    pub(super) store: Arc<dyn ConversationStore>,
    pub(super) queue: Arc<dyn Queue>,
    pub(super) artifacts: Arc<dyn Artifacts>,
    pub(super) live: Arc<dyn Live>,
    /// The store, if it is in the data folder.
    pub(super) embedded: Option<Arc<EmbeddedStore>>,
    /// The emulator that this process started. It stops with the service.
    pub(super) emulator: Option<Azurite>,
}

/// Dependencies for opening the ports.
pub(super) struct Opening<'a> {
    pub(super) settings: &'a Settings,
    pub(super) credentials: &'a Credentials,
    pub(super) data: &'a Path,
    pub(super) clock: &'a Arc<dyn Clock>,
    pub(super) ids: &'a Arc<dyn Ids>,
    pub(super) worker: &'a WorkerId,
}

/// The selected storage account and the queue prefix of this process.
struct Account {
    account: StorageAccount,
    queue_prefix: String,
    emulator: Option<Azurite>,
}

/// Opens all ports.
///
/// # Errors
/// Print the error and exit; each names the fix.
pub(super) async fn open(storage: &Storage, opening: &Opening<'_>) -> Result<Ports, StartError> {
    let Some(used) = account(storage, opening).await? else {
        let store = Arc::new(EmbeddedStore::open(opening.data)?);
        let artifacts = EmbeddedArtifacts::open(&opening.data.join("artifacts")).await;
        return Ok(Ports {
            queue: Arc::new(embedded_queue(opening.data, opening.clock, opening.ids).await?),
            artifacts: Arc::new(artifacts.map_err(io("open the artifacts"))?),
            live: Arc::new(EmbeddedLive::default()),
            embedded: Some(Arc::clone(&store)),
            store,
            emulator: None,
        });
    };
    let artifacts = blob_artifacts(&used, opening).await?;
    let queue = storage_queue(&used, opening).await?;
    let ports = |store, live, embedded| Ports {
        store,
        queue: Arc::new(queue),
        artifacts: Arc::new(artifacts),
        live,
        embedded,
        emulator: used.emulator,
    };
    let Some(cosmos) = &opening.settings.cosmos else {
        let store = Arc::new(EmbeddedStore::open(opening.data)?);
        let embedded = Some(Arc::clone(&store));
        return Ok(ports(store, Arc::new(EmbeddedLive::default()), embedded));
    };
    let store: Arc<dyn ConversationStore> =
        Arc::new(cosmos_store(cosmos, opening.credentials).await?);
    let live =
        SharedLive::new(Arc::clone(&store), Arc::clone(opening.clock), opening.worker.clone());
    Ok(ports(store, Arc::new(live), None))
}

/// Opens only the queue port.
///
/// # Errors
/// Like [`open_ports`]: print the error and exit.
pub(super) async fn open_queue(
    storage: &Storage,
    opening: &Opening<'_>,
) -> Result<(Box<dyn Queue>, Option<Azurite>), StartError> {
    if let Some(used) = account(storage, opening).await? {
        let queue = storage_queue(&used, opening).await?;
        return Ok((Box::new(queue), used.emulator));
    }
    let queue = embedded_queue(opening.data, opening.clock, opening.ids).await?;
    Ok((Box::new(queue), None))
}

/// Selects the storage account. Returns `None` if all data is in the data folder.
async fn account(storage: &Storage, opening: &Opening<'_>) -> Result<Option<Account>, StartError> {
    match storage {
        Storage::Embedded => Ok(None),
        Storage::Account { queue_prefix } => match &opening.settings.storage {
            Some(account) => Ok(Some(Account {
                account: account.clone(),
                queue_prefix: prefix(queue_prefix),
                emulator: None,
            })),
            None => Err(StartError::Settings(vec![
                "AzureWebJobsStorage is not set: expected the connection string of a storage account, or AzureWebJobsStorage__accountName and an identity".to_owned(),
            ])),
        },
        Storage::Azurite { queue_prefix } => {
            let (account, emulator) = emulator(opening.settings, opening.data).await?;
            Ok(Some(Account { account, queue_prefix: prefix(queue_prefix), emulator }))
        }
    }
}

/// Appends the `-` that separates a prefix from the queue name.
fn prefix(given: &str) -> String {
    if given.is_empty() { String::new() } else { format!("{}-", given.trim_end_matches('-')) }
}

/// Connects to a running storage emulator, or starts one.
async fn emulator(
    settings: &Settings,
    data: &Path,
) -> Result<(StorageAccount, Option<Azurite>), StartError> {
    let named = settings.storage.clone().filter(StorageAccount::is_local);
    if let Some(account) = named.or_else(azurite::usual_account)
        && answers(&account).await
    {
        return Ok((account, None));
    }
    let options = AzuriteOptions {
        install: data.join("azurite"),
        data: Some(data.join("azurite-data")),
        ports: azurite::Ports::USUAL,
        tls: None,
    };
    let started = Azurite::start(options, super::commands::say).await;
    let started = started.map_err(io("start the storage emulator"))?;
    Ok((started.account(), Some(started)))
}

pub(super) async fn answers(account: &StorageAccount) -> bool {
    let (Some(host), Some(port)) = (account.queue.host_str(), account.queue.port()) else {
        return false;
    };
    let connecting = TcpStream::connect((host, port));
    matches!(tokio::time::timeout(ANSWERS_WITHIN, connecting).await, Ok(Ok(_)))
}

async fn storage_queue(used: &Account, opening: &Opening<'_>) -> Result<StorageQueue, StartError> {
    let queue = connect_queue(&used.account, &used.queue_prefix, opening.credentials)?;
    let names = [queue::TURNS, queue::PROMPTS, queue::NOTIFY];
    queue.create(&names).await.map_err(io("create the queues"))?;
    Ok(queue)
}

/// Creates the queue client without sending a request.
///
/// # Errors
/// The account settings or the identity are invalid: correct the settings.
pub(super) fn connect_queue(
    account: &StorageAccount,
    prefix: &str,
    credentials: &Credentials,
) -> Result<StorageQueue, StartError> {
    let token = storage_token(account, credentials)?;
    StorageQueue::connect(account, token, prefix, &Sending::default())
        .map_err(io("use the storage account"))
}

async fn blob_artifacts(
    used: &Account,
    opening: &Opening<'_>,
) -> Result<BlobArtifacts, StartError> {
    let token = storage_token(&used.account, opening.credentials)?;
    let sending = Sending::default();
    let artifacts = BlobArtifacts::connect(&used.account, token, &used.queue_prefix, &sending)
        .map_err(io("use the storage account"))?;
    artifacts.create().await.map_err(io("create the artifact container"))?;
    match opening.settings.artifact_links {
        ArtifactLinks::Api => Ok(artifacts),
        ArtifactLinks::Signed => {
            artifacts.with_links(&used.account).map_err(io("sign links to artifacts"))
        }
    }
}

pub(super) async fn cosmos_store(
    account: &CosmosAccount,
    credentials: &Credentials,
) -> Result<CosmosStore, StartError> {
    let token = match &account.access {
        CosmosAccess::Key(_) => None,
        CosmosAccess::Identity(identity) => Some(token(identity, credentials)?),
    };
    CosmosStore::connect(account, token).await.map_err(io("open the conversation store"))
}

fn storage_token(
    account: &StorageAccount,
    credentials: &Credentials,
) -> Result<Option<Arc<dyn TokenCredential>>, StartError> {
    match &account.access {
        StorageAccess::SharedKey { .. } | StorageAccess::Sas(_) => Ok(None),
        StorageAccess::Identity(identity) => token(identity, credentials).map(Some),
    }
}

fn token(
    identity: &Identity,
    credentials: &Credentials,
) -> Result<Arc<dyn TokenCredential>, StartError> {
    credentials.of(identity).map_err(|mistake| StartError::Settings(vec![mistake]))
}

/// Opens the queues of the data folder. Nudges are in memory only. Prompt messages are on disk,
/// because they are the only copy of a user's input.
pub(super) async fn embedded_queue(
    data: &Path,
    clock: &Arc<dyn Clock>,
    ids: &Arc<dyn Ids>,
) -> Result<EmbeddedQueue, StartError> {
    let poison = queue::poison_of(queue::PROMPTS);
    let kept = [queue::PROMPTS, poison.as_str()];
    let opened =
        EmbeddedQueue::open(&data.join("queue.sqlite"), &kept, Arc::clone(clock), Arc::clone(ids))
            .await;
    opened.map_err(io("open the queues"))
}
