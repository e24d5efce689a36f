//! Maintenance commands: `rebuild-queue` and `redrive`. They run through the process that has the
//! data folder.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crate::agents::Agents;
use crate::app::ports::{self, Opening, Storage};
use crate::app::service::{StartError, io};
use crate::azure::credential::Credentials;
use crate::clock::{Clock, SystemClock};
use crate::ids::{Ids, SystemIds, WorkerId};
use crate::model::scripted::ScriptedModel;
use crate::queue;
use crate::settings::Settings;
use crate::store::embedded::{EmbeddedStore, OpenError};
use crate::telemetry::Telemetry;
use crate::turn::{EntryMemory, Isolation, Limits, NoProbe, Stops, World, sweep};

/// Time limit of a request to a running `dev`, which normally responds at once.
const PATIENCE: Duration = Duration::from_secs(30);

/// Enqueues all pending work and returns the sentence to print.
///
/// # Errors
/// Print the error and exit; each names the fix.
pub(super) async fn rebuild(
    settings: &Settings,
    storage: &Storage,
    data: &Path,
) -> Result<String, StartError> {
    if *storage == Storage::Embedded {
        return match running_dev(data)? {
            RunningDev::At(address) => {
                post(&format!("{address}/admin/functions/sweep")).await?;
                Ok(format!(
                    "Started the recovery sweep of the service at {address}, which has its queues in memory."
                ))
            }
            RunningDev::None(_) => Ok(format!(
                "Nothing to rebuild: the queues of {} are in the memory of `turnwheel dev`, which enqueues all pending work when it starts.",
                data.display()
            )),
        };
    }
    let tools = Tools::default();
    let ports = ports::open(storage, &tools.opening(settings, data)).await?;
    let world = World {
        store: ports.store,
        queue: ports.queue,
        artifacts: ports.artifacts,
        live: ports.live,
        // This process runs no turns, so it needs no real model and no agents.
        model: Arc::new(ScriptedModel),
        agents: Agents::default(),
        extensions: Vec::new(),
        entries: Arc::new(EntryMemory::default()),
        stops: Stops::default(),
        writers: Arc::default(),
        herald: None,
        clock: tools.clock,
        ids: tools.ids,
        worker: tools.worker,
        probe: Arc::new(NoProbe),
        telemetry: Telemetry::default(),
        limits: Limits::default(),
        money: Arc::default(),
        brakes: Arc::default(),
        isolation: Isolation::default(),
    };
    let rung = sweep::sweep(&world, Duration::ZERO).await.map_err(io("read pending work"))?;
    Ok(format!("Enqueued {rung} conversations."))
}

/// Moves the messages of the poison queue back and returns the sentence to print.
///
/// # Errors
/// Print the error and exit; each names the fix.
pub(super) async fn redrive(
    settings: &Settings,
    (storage, data): (&Storage, &Path),
    queue: &str,
) -> Result<String, StartError> {
    let running = match storage {
        Storage::Embedded => Some(running_dev(data)?),
        Storage::Azurite { .. } | Storage::Account { .. } => None,
    };
    let count = if let Some(RunningDev::At(address)) = &running {
        let answer = post(&format!("{address}/admin/queues/{queue}/redrive")).await?;
        answer.get("redriven").and_then(serde_json::Value::as_u64).unwrap_or_default()
    } else {
        // Release the lock of the data folder, which the queue opens as well.
        drop(running);
        let tools = Tools::default();
        let opened = ports::open_queue(storage, &tools.opening(settings, data)).await?;
        queue::redrive(&*opened.0, queue).await.map_err(io("move the messages back"))?
    };
    Ok(format!("Moved {count} messages back to {queue}."))
}

/// Process that uses the data folder.
pub(super) enum RunningDev {
    /// A running `dev` at this address.
    At(String),
    /// No process. The folder stays locked for this process until the store is dropped.
    None(Arc<EmbeddedStore>),
}

/// Finds the `dev` that uses the data folder, or opens the store.
///
/// # Errors
/// The folder does not exist, or a process without a known address uses it: print the error.
pub(super) fn running_dev(data: &Path) -> Result<RunningDev, StartError> {
    if !data.exists() {
        return Err(StartError::Io {
            doing: "find the data folder",
            source: format!(
                "there is no folder {}: set the data folder with `--data`, or an Azure account in the settings",
                data.display()
            )
            .into(),
        });
    }
    match EmbeddedStore::open(data) {
        Ok(store) => Ok(RunningDev::None(Arc::new(store))),
        Err(OpenError::InUse { note, .. }) if note.starts_with("http://127.0.0.1:") => {
            Ok(RunningDev::At(note))
        }
        Err(error) => Err(error.into()),
    }
}

async fn post(url: &str) -> Result<serde_json::Value, StartError> {
    let asking = "query the running service";
    let client = reqwest::Client::builder().timeout(PATIENCE).no_proxy().build();
    let answer = client.map_err(io(asking))?.post(url).send().await.map_err(io(asking))?;
    let answer = answer.error_for_status().map_err(io(asking))?;
    let body = answer.bytes().await.map_err(io(asking))?;
    Ok(serde_json::from_slice(&body).unwrap_or_default())
}

/// Dependencies of the ports in a process that runs a single command.
struct Tools {
    credentials: Credentials,
    clock: Arc<dyn Clock>,
    ids: Arc<dyn Ids>,
    worker: WorkerId,
}

impl Default for Tools {
    fn default() -> Self {
        let ids = SystemIds;
        let worker = WorkerId::new(ids.fresh());
        Self {
            credentials: Credentials::default(),
            clock: Arc::new(SystemClock::default()),
            ids: Arc::new(ids),
            worker,
        }
    }
}

impl Tools {
    fn opening<'a>(&'a self, settings: &'a Settings, data: &'a Path) -> Opening<'a> {
        Opening {
            settings,
            credentials: &self.credentials,
            data,
            clock: &self.clock,
            ids: &self.ids,
            worker: &self.worker,
        }
    }
}
