//! A storage account and a Cosmos account on this machine, as the settings of a process name them; and their bad hours.

use std::net::TcpListener;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use azure_core::http::StatusCode;
use turnwheel::azure::cosmos::CONTAINERS;
use turnwheel::azure::storage::{Sending, queues};
use turnwheel::azurite::{ACCOUNT, Azurite, AzuriteOptions, KEY, Ports};

use crate::support::cosmos_emulator::{self, Container, CosmosHost};

const DATABASE: &str = "turnwheel";
/// For an Azurite that was killed to be there again: its port may be somebody's for a moment.
const PATIENCE: Duration = Duration::from_mins(1);

pub(crate) struct Azure {
    /// `None` while it is down.
    storage: Mutex<Option<Azurite>>,
    storage_settings: Vec<(&'static str, String)>,
    /// With what it is started again.
    options: AzuriteOptions,
    endpoint: String,
    cosmos: Mutex<CosmosHost>,
    _folder: tempfile::TempDir,
}

impl Azure {
    /// `partitions` of Cosmos: a batch of the emulator copies a whole one.
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
        let ports = Ports { blob: port(&account.blob), queue: port(&account.queue), table: 0 };
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

    /// Nobody hears from the queues and blobs for so long.
    pub(crate) async fn silence_storage(&self, span: Duration) {
        let process = self.storage_process();
        signal("-STOP", process);
        tokio::time::sleep(span).await;
        signal("-CONT", process);
    }

    /// The process is killed, and another one serves what it had written down: the messages and receipts of its last seconds
    /// are gone, and what was deleted in them is there again.
    pub(crate) async fn restart_storage(&self, span: Duration) {
        signal("-KILL", self.storage_process());
        drop(self.storage.lock().unwrap().take());
        tokio::time::sleep(span).await;
        let deadline = Instant::now() + PATIENCE;
        let started = loop {
            match Azurite::start(self.options.clone(), |_| {}).await {
                Ok(started) => break started,
                Err(error) => assert!(Instant::now() < deadline, "{error}"),
            }
        };
        *self.storage.lock().unwrap() = Some(started);
    }

    /// With all that is on it: who sends next makes it anew. Whether it was there: until somebody sends it is gone.
    pub(crate) async fn delete_queue(&self, name: &str) -> bool {
        let account = self.storage.lock().unwrap().as_ref().map(Azurite::account).unwrap();
        let service = queues(&account, None, &Sending::default()).unwrap();
        match service.queue_client(name).unwrap().delete(None).await {
            Ok(_) => true,
            Err(error) if error.http_status() == Some(StatusCode::NotFound) => false,
            Err(error) => panic!("the queue {name} can't be deleted: {error}"),
        }
    }

    fn storage_process(&self) -> u32 {
        self.storage.lock().unwrap().as_ref().unwrap().process_id()
    }

    /// All connections to Cosmos break, and it is back after so long with what it held.
    pub(crate) async fn restart_cosmos(&self, span: Duration) {
        self.cosmos.lock().unwrap().stop();
        tokio::time::sleep(span).await;
        let address = self.endpoint.trim_start_matches("http://").trim_end_matches('/');
        let listener = TcpListener::bind(address).unwrap();
        self.cosmos.lock().unwrap().serve(listener);
    }

    /// For so long every second request is one too many.
    pub(crate) async fn throttle_cosmos(&self, span: Duration) {
        let is_throttled = Arc::clone(&self.cosmos.lock().unwrap().emulator.is_throttled);
        is_throttled.store(true, Ordering::Relaxed);
        tokio::time::sleep(span).await;
        is_throttled.store(false, Ordering::Relaxed);
    }
}

/// Stops a process in its middle, or lets it go on.
pub(crate) fn signal(name: &str, process: u32) {
    let status = Command::new("kill").args([name, &process.to_string()]).status();
    assert!(status.expect("`kill` is there").success(), "kill {name} {process}");
}

/// A connection string, since it does not answer where `UseDevelopmentStorage=true` looks.
pub(crate) fn storage_settings(azurite: &Azurite) -> Vec<(&'static str, String)> {
    let account = azurite.account();
    let text = format!(
        "DefaultEndpointsProtocol=http;AccountName={ACCOUNT};AccountKey={KEY};BlobEndpoint={};QueueEndpoint={}",
        account.blob, account.queue
    );
    vec![("AzureWebJobsStorage", text)]
}
