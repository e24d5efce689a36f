//! A storage account and a Cosmos account on this machine, as the settings of a process name them.

use std::io::Write as _;
use std::path::Path;

use turnwheel::azure::cosmos::CONTAINERS;
use turnwheel::azurite::{ACCOUNT, Azurite, AzuriteOptions, KEY};

use crate::support::cosmos_emulator::{self, Container, CosmosHost};

const DATABASE: &str = "turnwheel";

/// Both end when it is dropped.
pub(crate) struct Azure {
    storage: Azurite,
    cosmos: CosmosHost,
}

impl Azure {
    /// `partitions` of Cosmos: a batch of the emulator copies a whole one.
    pub(crate) async fn start(partitions: u32) -> Self {
        let containers: Vec<Container<'_>> =
            CONTAINERS.iter().map(|shape| (shape.name, shape.key_paths)).collect();
        let cosmos = CosmosHost::start(0, DATABASE, &containers, partitions).unwrap();
        Self { storage: start_azurite().await, cosmos }
    }

    pub(crate) fn settings(&self) -> Vec<(&'static str, String)> {
        let mut settings = storage_settings(&self.storage);
        settings.push(("COSMOS__accountEndpoint", self.cosmos.emulator.endpoint.to_string()));
        settings.push(("COSMOS__accountKey", cosmos_emulator::KEY.to_owned()));
        settings.push(("COSMOS__database", DATABASE.to_owned()));
        settings
    }
}

pub(crate) async fn start_azurite() -> Azurite {
    let install = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/azurite");
    let options = AzuriteOptions { install, ..AzuriteOptions::default() };
    // Past the capture of test output: whoever waits should know for what.
    let say = |line: &str| {
        let _ = writeln!(std::io::stderr(), "{line}");
    };
    Azurite::start(options, say).await.unwrap()
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
