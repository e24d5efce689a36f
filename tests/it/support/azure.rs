//! A storage account and a Cosmos account on this machine, as the settings of a process name them; and their bad hours.

use std::net::TcpListener;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use turnwheel::azure::cosmos::CONTAINERS;
use turnwheel::azurite::{ACCOUNT, Azurite, AzuriteOptions, KEY};

use crate::support::cosmos_emulator::{self, Container, CosmosHost};

const DATABASE: &str = "turnwheel";

pub(crate) struct Azure {
    storage: Azurite,
    endpoint: String,
    cosmos: Mutex<CosmosHost>,
}

impl Azure {
    /// `partitions` of Cosmos: a batch of the emulator copies a whole one.
    pub(crate) async fn start(partitions: u32) -> Self {
        let containers: Vec<Container<'_>> =
            CONTAINERS.iter().map(|shape| (shape.name, shape.key_paths)).collect();
        let cosmos = CosmosHost::start(0, DATABASE, &containers, partitions).unwrap();
        let install = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/azurite");
        let options = AzuriteOptions { install, ..AzuriteOptions::default() };
        let endpoint = cosmos.emulator.endpoint.to_string();
        let storage = Azurite::start(options, |_| {}).await.unwrap();
        Self { storage, endpoint, cosmos: Mutex::new(cosmos) }
    }

    pub(crate) fn settings(&self) -> Vec<(&'static str, String)> {
        let mut settings = storage_settings(&self.storage);
        settings.push(("COSMOS__accountEndpoint", self.endpoint.clone()));
        settings.push(("COSMOS__accountKey", cosmos_emulator::KEY.to_owned()));
        settings.push(("COSMOS__database", DATABASE.to_owned()));
        settings
    }

    /// Nobody hears from the queues and blobs for so long.
    pub(crate) async fn silence_storage(&self, span: Duration) {
        let process = self.storage.process_id();
        signal("-STOP", process);
        tokio::time::sleep(span).await;
        signal("-CONT", process);
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
