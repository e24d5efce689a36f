//! A storage account and a Cosmos account on this machine, as the settings of a process name them.

use turnwheel::azure::cosmos::CONTAINERS;
use turnwheel::azurite::{ACCOUNT, Azurite, KEY};

use crate::support::azurite::azurite;
use crate::support::cosmos_emulator::{self, Container, CosmosHost};

const DATABASE: &str = "turnwheel";

/// The storage account is every test's: use a queue prefix of your own.
pub(crate) struct Azure {
    storage: &'static Azurite,
    cosmos: CosmosHost,
}

impl Azure {
    /// `partitions` of Cosmos: a batch of the emulator copies a whole one.
    pub(crate) async fn start(partitions: u32) -> Self {
        let containers: Vec<Container<'_>> =
            CONTAINERS.iter().map(|shape| (shape.name, shape.key_paths)).collect();
        let cosmos = CosmosHost::start(0, DATABASE, &containers, partitions).unwrap();
        Self { storage: azurite().await, cosmos }
    }

    pub(crate) fn settings(&self) -> Vec<(&'static str, String)> {
        let mut settings = storage_settings(self.storage);
        settings.push(("COSMOS__accountEndpoint", self.cosmos.emulator.endpoint.to_string()));
        settings.push(("COSMOS__accountKey", cosmos_emulator::KEY.to_owned()));
        settings.push(("COSMOS__database", DATABASE.to_owned()));
        settings
    }
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
