//! Opens the ports where the settings and the command line say they are.

use std::path::Path;
use std::sync::Arc;

use crate::app::service::{StartError, io};
use crate::artifacts::{Artifacts, EmbeddedArtifacts};
use crate::clock::Clock;
use crate::ids::Ids;
use crate::live::{EmbeddedLive, Live};
use crate::queue::{self, EmbeddedQueue, Queue};
use crate::settings::Settings;
use crate::store::ConversationStore;
use crate::store::embedded::EmbeddedStore;

/// Where queues, artifacts and conversations are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Storage {
    /// All of it in the data folder.
    #[default]
    Embedded,
    /// Queues and artifacts in the storage emulator, which is started if none answers; conversations in Cosmos DB if
    /// `COSMOS__accountEndpoint` is set, else in the data folder.
    Azurite { queue_prefix: String },
    /// Queues and artifacts in the account of the settings; conversations as with [`Storage::Azurite`].
    Account { queue_prefix: String },
}

pub(super) struct Ports {
    pub(super) store: Arc<dyn ConversationStore>,
    pub(super) queue: Arc<dyn Queue>,
    pub(super) artifacts: Arc<dyn Artifacts>,
    pub(super) live: Arc<dyn Live>,
    /// The store, when it lies in the data folder.
    pub(super) embedded: Option<Arc<EmbeddedStore>>,
}

/// # Errors
/// Show it and exit: each says what to do.
pub(super) async fn open(
    settings: &Settings,
    storage: &Storage,
    data: &Path,
    (clock, ids): (&Arc<dyn Clock>, &Arc<dyn Ids>),
) -> Result<Ports, StartError> {
    let store = Arc::new(EmbeddedStore::open(data)?);
    Ok(Ports {
        queue: embedded_queue(data, clock, ids).await?,
        artifacts: Arc::new(
            EmbeddedArtifacts::open(&data.join("artifacts"))
                .await
                .map_err(io("open the artifacts"))?,
        ),
        live: Arc::new(EmbeddedLive::default()),
        embedded: Some(Arc::clone(&store)),
        store,
    })
}

/// Doorbells ring in memory; users' only copies are kept on disk.
pub(super) async fn embedded_queue(
    data: &Path,
    clock: &Arc<dyn Clock>,
    ids: &Arc<dyn Ids>,
) -> Result<Arc<dyn Queue>, StartError> {
    let poison = queue::poison_of(queue::PROMPTS);
    let kept = [queue::PROMPTS, poison.as_str()];
    let opened =
        EmbeddedQueue::open(&data.join("queue.sqlite"), &kept, Arc::clone(clock), Arc::clone(ids))
            .await;
    Ok(Arc::new(opened.map_err(io("open the queues"))?))
}
