//! Opens the store, queue, artifact and live ports that the settings and the command line select.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use azure_core::credentials::TokenCredential;
use tokio::net::TcpStream;

use crate::start::start_error::{StartError, io_error};
use turnwheel_azure::credential::Credentials;
use turnwheel_azure::storage::TransportSettings;
use turnwheel_azurite as azurite;
use turnwheel_azurite::{Azurite, AzuriteOptions};
use turnwheel_platform::clock::Clock;
use turnwheel_platform::ids::{Ids, WorkerId};
use turnwheel_platform::settings::ServiceSettings;
use turnwheel_platform::settings::azure::{
    AzureIdentity, CosmosAccess, CosmosAccount, StorageAccess, StorageAccount,
};
use turnwheel_platform::settings::links::ArtifactLinks;
use turnwheel_storage::artifacts::{Artifacts, BlobArtifacts, EmbeddedArtifacts};
use turnwheel_storage::live::{EmbeddedLive, Live, SharedLive};
use turnwheel_storage::queue::{self, EmbeddedQueue, Queue, StorageQueue};
use turnwheel_storage::store::ConversationStore;
use turnwheel_storage::store::cosmos::CosmosStore;
use turnwheel_storage::store::embedded::EmbeddedStore;

/// Time limit of a connection to the storage emulator, which runs on this machine.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);

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

pub(crate) struct Ports {
    pub(crate) store: Arc<dyn ConversationStore>,
    pub(crate) queue: Arc<dyn Queue>,
    pub(crate) artifacts: Arc<dyn Artifacts>,
    pub(crate) live: Arc<dyn Live>,
    /// The store, if it is in the data folder.
    pub(crate) embedded: Option<Arc<EmbeddedStore>>,
    /// The emulator that this process started. It stops with the service.
    pub(crate) emulator: Option<Azurite>,
}

/// Dependencies for opening the ports.
pub(crate) struct PortContext<'a> {
    pub(crate) settings: &'a ServiceSettings,
    pub(crate) credentials: &'a Credentials,
    pub(crate) data: &'a Path,
    pub(crate) clock: &'a Arc<dyn Clock>,
    pub(crate) ids: &'a Arc<dyn Ids>,
    pub(crate) worker: &'a WorkerId,
}

/// The selected storage account and the queue prefix of this process.
struct SelectedAccount {
    account: StorageAccount,
    queue_prefix: String,
    emulator: Option<Azurite>,
}

/// Opens all ports.
///
/// # Errors
/// Print the error and exit; each names the fix.
pub(crate) async fn open_ports(
    storage: &Storage,
    context: &PortContext<'_>,
) -> Result<Ports, StartError> {
    let Some(selected) = select_account(storage, context).await? else {
        let store = Arc::new(EmbeddedStore::open(context.data)?);
        let artifacts = EmbeddedArtifacts::open(&context.data.join("artifacts")).await;
        return Ok(Ports {
            queue: Arc::new(open_embedded_queue(context.data, context.clock, context.ids).await?),
            artifacts: Arc::new(artifacts.map_err(io_error("open the artifacts"))?),
            live: Arc::new(EmbeddedLive::default()),
            embedded: Some(Arc::clone(&store)),
            store,
            emulator: None,
        });
    };
    let artifacts = open_blob_artifacts(&selected, context).await?;
    let queue = open_storage_queue(&selected, context).await?;
    let ports = |store, live, embedded| Ports {
        store,
        queue: Arc::new(queue),
        artifacts: Arc::new(artifacts),
        live,
        embedded,
        emulator: selected.emulator,
    };
    let Some(cosmos) = &context.settings.cosmos else {
        let store = Arc::new(EmbeddedStore::open(context.data)?);
        let embedded = Some(Arc::clone(&store));
        return Ok(ports(store, Arc::new(EmbeddedLive::default()), embedded));
    };
    let store: Arc<dyn ConversationStore> =
        Arc::new(open_cosmos_store(cosmos, context.credentials).await?);
    let live =
        SharedLive::new(Arc::clone(&store), Arc::clone(context.clock), context.worker.clone());
    Ok(ports(store, Arc::new(live), None))
}

/// Opens only the queue port.
///
/// # Errors
/// Like [`open_ports`]: print the error and exit.
pub(crate) async fn open_queue(
    storage: &Storage,
    context: &PortContext<'_>,
) -> Result<(Box<dyn Queue>, Option<Azurite>), StartError> {
    if let Some(selected) = select_account(storage, context).await? {
        let queue = open_storage_queue(&selected, context).await?;
        return Ok((Box::new(queue), selected.emulator));
    }
    let queue = open_embedded_queue(context.data, context.clock, context.ids).await?;
    Ok((Box::new(queue), None))
}

/// Selects the storage account. Returns `None` if all data is in the data folder.
async fn select_account(
    storage: &Storage,
    context: &PortContext<'_>,
) -> Result<Option<SelectedAccount>, StartError> {
    match storage {
        Storage::Embedded => Ok(None),
        Storage::Account { queue_prefix } => match &context.settings.storage {
            Some(account) => Ok(Some(SelectedAccount {
                account: account.clone(),
                queue_prefix: to_name_prefix(queue_prefix),
                emulator: None,
            })),
            None => Err(StartError::Settings(vec![
                "AzureWebJobsStorage is not set: expected the connection string of a storage account, or AzureWebJobsStorage__accountName and an identity".to_owned(),
            ])),
        },
        Storage::Azurite { queue_prefix } => {
            let (account, emulator) = connect_emulator(context.settings, context.data).await?;
            Ok(Some(SelectedAccount { account, queue_prefix: to_name_prefix(queue_prefix), emulator }))
        }
    }
}

/// Appends the `-` that separates a prefix from the queue name.
fn to_name_prefix(given: &str) -> String {
    if given.is_empty() { String::new() } else { format!("{}-", given.trim_end_matches('-')) }
}

/// Connects to a running storage emulator, or starts one.
async fn connect_emulator(
    settings: &ServiceSettings,
    data: &Path,
) -> Result<(StorageAccount, Option<Azurite>), StartError> {
    let configured = settings.storage.clone().filter(StorageAccount::is_local);
    if let Some(account) = configured.or_else(azurite::development_account)
        && is_reachable(&account).await
    {
        return Ok((account, None));
    }
    let options = AzuriteOptions {
        install: data.join("azurite"),
        data: Some(data.join("azurite-data")),
        ports: azurite::AzuritePorts::DEVELOPMENT,
        tls: None,
    };
    let started = Azurite::start(options, crate::start::console::print_line).await;
    let started = started.map_err(io_error("start the storage emulator"))?;
    Ok((started.account(), Some(started)))
}

pub(crate) async fn is_reachable(account: &StorageAccount) -> bool {
    let (Some(host), Some(port)) = (account.queue.host_str(), account.queue.port()) else {
        return false;
    };
    let connecting = TcpStream::connect((host, port));
    matches!(tokio::time::timeout(CONNECT_TIMEOUT, connecting).await, Ok(Ok(_)))
}

async fn open_storage_queue(
    selected: &SelectedAccount,
    context: &PortContext<'_>,
) -> Result<StorageQueue, StartError> {
    let queue = connect_queue(&selected.account, &selected.queue_prefix, context.credentials)?;
    let names = [queue::TURNS, queue::PROMPTS, queue::NOTIFY];
    queue.create_queues(&names).await.map_err(io_error("create the queues"))?;
    Ok(queue)
}

/// Creates the queue client without sending a request.
///
/// # Errors
/// The account settings or the identity are invalid: correct the settings.
pub(crate) fn connect_queue(
    account: &StorageAccount,
    prefix: &str,
    credentials: &Credentials,
) -> Result<StorageQueue, StartError> {
    let token = storage_credential(account, credentials)?;
    StorageQueue::connect(account, token, prefix, &TransportSettings::default())
        .map_err(io_error("use the storage account"))
}

async fn open_blob_artifacts(
    selected: &SelectedAccount,
    context: &PortContext<'_>,
) -> Result<BlobArtifacts, StartError> {
    let token = storage_credential(&selected.account, context.credentials)?;
    let sending = TransportSettings::default();
    let artifacts =
        BlobArtifacts::connect(&selected.account, token, &selected.queue_prefix, &sending)
            .map_err(io_error("use the storage account"))?;
    artifacts.create().await.map_err(io_error("create the artifact container"))?;
    match context.settings.artifact_links {
        ArtifactLinks::Api => Ok(artifacts),
        ArtifactLinks::Signed => {
            artifacts.with_links(&selected.account).map_err(io_error("sign links to artifacts"))
        }
    }
}

pub(crate) async fn open_cosmos_store(
    account: &CosmosAccount,
    credentials: &Credentials,
) -> Result<CosmosStore, StartError> {
    let token = match &account.access {
        CosmosAccess::Key(_) => None,
        CosmosAccess::Identity(identity) => Some(identity_credential(identity, credentials)?),
    };
    CosmosStore::connect(account, token).await.map_err(io_error("open the conversation store"))
}

fn storage_credential(
    account: &StorageAccount,
    credentials: &Credentials,
) -> Result<Option<Arc<dyn TokenCredential>>, StartError> {
    match &account.access {
        StorageAccess::SharedKey { .. } | StorageAccess::Sas(_) => Ok(None),
        StorageAccess::Identity(identity) => identity_credential(identity, credentials).map(Some),
    }
}

fn identity_credential(
    identity: &AzureIdentity,
    credentials: &Credentials,
) -> Result<Arc<dyn TokenCredential>, StartError> {
    credentials.get_or_create(identity).map_err(|mistake| StartError::Settings(vec![mistake]))
}

/// Opens the queues of the data folder. Nudges are in memory only. Prompt messages are on disk,
/// because they are the only copy of a user's input.
pub(crate) async fn open_embedded_queue(
    data: &Path,
    clock: &Arc<dyn Clock>,
    ids: &Arc<dyn Ids>,
) -> Result<EmbeddedQueue, StartError> {
    let poison = queue::poison_queue(queue::PROMPTS);
    let durable = [queue::PROMPTS, poison.as_str()];
    let opened = EmbeddedQueue::open(
        &data.join("queue.sqlite"),
        &durable,
        Arc::clone(clock),
        Arc::clone(ids),
    )
    .await;
    opened.map_err(io_error("open the queues"))
}
