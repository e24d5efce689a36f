//! Maintenance commands: `rebuild-queue` and `redrive`. They run through the process that has the
//! data folder.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use reqwest::{Client, RequestBuilder, Response};
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::start::ports::{self, PortContext, Storage};
use crate::start::start_error::{StartError, io_error};
use turnwheel_azure::credential::Credentials;
use turnwheel_platform::clock::{Clock, SystemClock};
use turnwheel_platform::ids::{Ids, SystemIds, WorkerId};
use turnwheel_platform::settings::ServiceSettings;
use turnwheel_platform::telemetry::Telemetry;
use turnwheel_record::services::Limits;
use turnwheel_storage::queue;
use turnwheel_storage::store::embedded::{EmbeddedStore, OpenError};
use turnwheel_turn::sweep::{self, RecoverySweep};

/// Time limit of a request to a running `dev`, which normally responds at once.
const DEV_TIMEOUT: Duration = Duration::from_secs(30);
const QUERY_ACTION: &str = "query the running service";

/// Enqueues all pending work and returns the sentence to print.
///
/// # Errors
/// Print the error and exit; each names the fix.
pub(crate) async fn rebuild_queue(
    settings: &ServiceSettings,
    storage: &Storage,
    data: &Path,
) -> Result<String, StartError> {
    if *storage == Storage::Embedded {
        return match find_running_dev(data)? {
            RunningDev::Running(address) => {
                post_to_dev(&format!("{address}/admin/functions/sweep")).await?;
                Ok(format!(
                    "Started the recovery sweep of the service at {address}, which has its queues in memory."
                ))
            }
            RunningDev::NotRunning(_) => Ok(format!(
                "Nothing to rebuild: the queues of {} are in the memory of `turnwheel dev`, which enqueues all pending work when it starts.",
                data.display()
            )),
        };
    }
    let context = CommandContext::default();
    let ports = ports::open_ports(storage, &context.port_context(settings, data)).await?;
    let parts = RecoverySweep {
        store: &*ports.store,
        queue: &*ports.queue,
        clock: &*context.clock,
        telemetry: &Telemetry::default(),
        time_limit: Limits::default().turn_duration,
    };
    let count = sweep::sweep(parts, Duration::ZERO).await.map_err(io_error("read pending work"))?;
    Ok(format!("Enqueued {count} conversations."))
}

/// Moves the messages of the poison queue back and returns the sentence to print.
///
/// # Errors
/// Print the error and exit; each names the fix.
pub(crate) async fn redrive(
    settings: &ServiceSettings,
    storage: &Storage,
    data: &Path,
    queue: &str,
) -> Result<String, StartError> {
    let running = match storage {
        Storage::Embedded => Some(find_running_dev(data)?),
        Storage::Azurite { .. } | Storage::Account { .. } => None,
    };
    let count = if let Some(RunningDev::Running(address)) = &running {
        let response = post_to_dev(&format!("{address}/admin/queues/{queue}/redrive")).await?;
        response.get("redriven").and_then(Value::as_u64).unwrap_or_default()
    } else {
        // Release the lock of the data folder, which the queue opens as well.
        drop(running);
        let context = CommandContext::default();
        let port = ports::open_queue(storage, &context.port_context(settings, data)).await?;
        queue::redrive(&*port.0, queue).await.map_err(io_error("move the messages back"))?
    };
    Ok(format!("Moved {count} messages back to {queue}."))
}

/// Process that uses the data folder.
pub(crate) enum RunningDev {
    /// A running `dev` at this address.
    Running(String),
    /// No process. The folder stays locked for this process until the store is dropped.
    NotRunning(Arc<EmbeddedStore>),
}

/// Finds the `dev` that uses the data folder, or opens the store.
///
/// # Errors
/// The folder does not exist, or a process without a known address uses it: print the error.
pub(crate) fn find_running_dev(data: &Path) -> Result<RunningDev, StartError> {
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
        Ok(store) => Ok(RunningDev::NotRunning(Arc::new(store))),
        Err(OpenError::InUse { note, .. }) if note.starts_with("http://127.0.0.1:") => {
            Ok(RunningDev::Running(note))
        }
        Err(error) => Err(error.into()),
    }
}

async fn post_to_dev(url: &str) -> Result<Value, StartError> {
    // A run of a function needs an input; the other routes read no body.
    let response = send_to_dev(|client| client.post(url).body(r#"{"input":""}"#)).await?;
    let response = response.error_for_status().map_err(io_error(QUERY_ACTION))?;
    let body = response.bytes().await.map_err(io_error(QUERY_ACTION))?;
    Ok(serde_json::from_slice(&body).unwrap_or_default())
}

/// Sends a request to a running `dev`.
///
/// # Errors
/// Print the error and exit.
pub(crate) async fn send_to_dev(
    request: impl FnOnce(&Client) -> RequestBuilder,
) -> Result<Response, StartError> {
    let client = Client::builder().timeout(DEV_TIMEOUT).no_proxy().build();
    let request = request(&client.map_err(io_error(QUERY_ACTION))?);
    request.send().await.map_err(io_error(QUERY_ACTION))
}

/// Queries a running `dev` as an operator of the tenant.
///
/// # Errors
/// Print the error and exit.
pub(crate) async fn query_dev<T: DeserializeOwned>(
    url: &str,
    tenant: &str,
) -> Result<T, StartError> {
    let response = send_to_dev(|client| {
        let request = client.get(url).header("turnwheel-tenant", tenant);
        request.header("turnwheel-roles", turnwheel_http::auth::OPERATOR_ROLE)
    });
    let response = response.await?;
    let is_success = response.status().is_success();
    let body = response.bytes().await.map_err(io_error(QUERY_ACTION))?;
    if is_success {
        return serde_json::from_slice(&body).map_err(io_error(QUERY_ACTION));
    }
    let problem: Value = serde_json::from_slice(&body).unwrap_or_default();
    let detail =
        problem.get("detail").and_then(Value::as_str).unwrap_or("the response has no detail");
    Err(io_error(QUERY_ACTION)(detail.to_owned()))
}

/// Dependencies of the ports in a process that runs a single command.
struct CommandContext {
    credentials: Credentials,
    clock: Arc<dyn Clock>,
    ids: Arc<dyn Ids>,
    worker: WorkerId,
}

impl Default for CommandContext {
    fn default() -> Self {
        let ids = SystemIds;
        let worker = WorkerId::new(ids.new_id());
        Self {
            credentials: Credentials::default(),
            clock: Arc::new(SystemClock::default()),
            ids: Arc::new(ids),
            worker,
        }
    }
}

impl CommandContext {
    fn port_context<'a>(
        &'a self,
        settings: &'a ServiceSettings,
        data: &'a Path,
    ) -> PortContext<'a> {
        PortContext {
            settings,
            credentials: &self.credentials,
            data,
            clock: &self.clock,
            ids: &self.ids,
            worker: &self.worker,
        }
    }
}
