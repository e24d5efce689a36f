//! Local storage and Cosmos accounts with the settings that name them, and their outages.

use std::net::TcpListener;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use azure_core::http::StatusCode;
use turnwheel::testing::azure::cosmos::CONTAINERS;
use turnwheel::testing::azure::storage::{TransportSettings, queue_client};
use turnwheel::testing::azurite::{ACCOUNT, Azurite, AzuriteOptions, AzuritePorts, KEY};

use turnwheel_cosmos_emulator::{self as cosmos_emulator, Container, CosmosHost};

const DATABASE: &str = "turnwheel";
/// Time limit for a killed Azurite to restart: another process may hold its port for a moment.
const RESTART_TIMEOUT: Duration = Duration::from_mins(1);

pub(crate) struct LocalAzure {
    /// `None` while the process is down.
    storage: Mutex<Option<Azurite>>,
    storage_settings: Vec<(&'static str, String)>,
    /// The options for a restart.
    options: AzuriteOptions,
    endpoint: String,
    cosmos: Mutex<CosmosHost>,
    _folder: tempfile::TempDir,
}

impl LocalAzure {
    /// `partitions` of Cosmos: a batch of the emulator copies a whole partition.
    pub(crate) async fn start(partitions: u32) -> Self {
        let containers: Vec<Container<'_>> =
            CONTAINERS.iter().map(|shape| (shape.name, shape.key_paths)).collect();
        let cosmos = CosmosHost::start(0, DATABASE, &containers, partitions).unwrap();
        let install = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/azurite");
        let folder = tempfile::tempdir().unwrap();
        let data = Some(folder.path().to_owned());
        let options = AzuriteOptions { install, data, ..AzuriteOptions::default() };
        let endpoint = cosmos.emulator.endpoint.to_string();
        let storage = Azurite::start(options.clone(), |_| {}).await.unwrap();
        let account = storage.account();
        let port = |url: &url::Url| url.port().unwrap();
        let ports =
            AzuritePorts { blob: port(&account.blob), queue: port(&account.queue), table: 0 };
        Self {
            storage_settings: storage_settings(&storage),
            storage: Mutex::new(Some(storage)),
            options: AzuriteOptions { ports, ..options },
            endpoint,
            cosmos: Mutex::new(cosmos),
            _folder: folder,
        }
    }

    pub(crate) fn settings(&self) -> Vec<(&'static str, String)> {
        let mut settings = self.storage_settings.clone();
        settings.push(("COSMOS__accountEndpoint", self.endpoint.clone()));
        settings.push(("COSMOS__accountKey", cosmos_emulator::KEY.to_owned()));
        settings.push(("COSMOS__database", DATABASE.to_owned()));
        settings
    }

    /// Suspends the queue and blob services for `span`.
    pub(crate) async fn suspend_storage(&self, span: Duration) {
        let process = self.storage_process();
        send_signal("-STOP", process);
        tokio::time::sleep(span).await;
        send_signal("-CONT", process);
    }

    /// Kills the process and starts another on the data that it had written. The messages and
    /// receipts of its last seconds are lost, and items that it deleted in them are back.
    pub(crate) async fn restart_storage(&self, span: Duration) {
        send_signal("-KILL", self.storage_process());
        drop(self.storage.lock().unwrap().take());
        tokio::time::sleep(span).await;
        let deadline = Instant::now() + RESTART_TIMEOUT;
        let started = loop {
            match Azurite::start(self.options.clone(), |_| {}).await {
                Ok(started) => break started,
                Err(error) => assert!(Instant::now() < deadline, "{error}"),
            }
        };
        *self.storage.lock().unwrap() = Some(started);
    }

    /// Deletes a queue with its messages; the next send creates it again. Returns true if the queue
    /// existed: it is absent between a deletion and the next send.
    pub(crate) async fn delete_queue(&self, name: &str) -> bool {
        let account = self.storage.lock().unwrap().as_ref().map(Azurite::account).unwrap();
        let service = queue_client(&account, None, &TransportSettings::default()).unwrap();
        match service.queue_client(name).unwrap().delete(None).await {
            Ok(_) => true,
            Err(error) if error.http_status() == Some(StatusCode::NotFound) => false,
            Err(error) => panic!("the queue {name} can't be deleted: {error}"),
        }
    }

    fn storage_process(&self) -> u32 {
        self.storage.lock().unwrap().as_ref().unwrap().process_id()
    }

    /// Breaks all connections to Cosmos; after `span` it serves the same data again.
    pub(crate) async fn restart_cosmos(&self, span: Duration) {
        self.cosmos.lock().unwrap().stop();
        tokio::time::sleep(span).await;
        let address = self.endpoint.trim_start_matches("http://").trim_end_matches('/');
        let listener = TcpListener::bind(address).unwrap();
        self.cosmos.lock().unwrap().serve(listener);
    }

    /// Throttles every second request for `span`.
    pub(crate) async fn throttle_cosmos(&self, span: Duration) {
        let is_throttled = Arc::clone(&self.cosmos.lock().unwrap().emulator.is_throttled);
        is_throttled.store(true, Ordering::Relaxed);
        tokio::time::sleep(span).await;
        is_throttled.store(false, Ordering::Relaxed);
    }
}

/// Sends a signal to a process, to suspend, resume or kill it.
pub(crate) fn send_signal(name: &str, process: u32) {
    let status = Command::new("kill").args([name, &process.to_string()]).status();
    assert!(status.expect("the command `kill` must exist").success(), "kill {name} {process}");
}

/// A connection string, because the account is not at the address of `UseDevelopmentStorage=true`.
pub(crate) fn storage_settings(azurite: &Azurite) -> Vec<(&'static str, String)> {
    let account = azurite.account();
    let text = format!(
        "DefaultEndpointsProtocol=http;AccountName={ACCOUNT};AccountKey={KEY};BlobEndpoint={};QueueEndpoint={}",
        account.blob, account.queue
    );
    vec![("AzureWebJobsStorage", text)]
}
