//! The emulators that are measured: a storage account and a Cosmos account on this machine, with
//! their keys.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use url::Url;

use crate::azure::request_signer::RequestSigner;
use crate::settings::Settings;
use crate::settings::azure::{CosmosAccess, CosmosAccount, StorageAccess, StorageAccount};

/// Both are on loopback, without TLS, and accept any client with their keys.
#[derive(Clone, Debug)]
pub struct Accounts {
    pub(super) storage: StorageAccount,
    pub(super) cosmos: CosmosAccount,
}

impl Accounts {
    /// # Errors
    /// Text to print: the accounts are missing, or not on this machine.
    pub fn from_settings(settings: &Settings) -> Result<Self, String> {
        let (Some(storage), Some(cosmos)) = (settings.storage.clone(), settings.cosmos.clone())
        else {
            return Err("--storage azure needs AzureWebJobsStorage, COSMOS__accountEndpoint, COSMOS__accountKey and COSMOS__database in the environment: start Azurite and `cargo run --example cosmos_emulator`, which prints the latter three".to_owned());
        };
        let is_plain = |url: &Url| url.scheme() == "http";
        let is_local = storage.is_local()
            && [&storage.queue, &storage.blob, &cosmos.endpoint].into_iter().all(is_plain);
        if !is_local || RequestSigner::from_accounts(&storage, &cosmos).is_none() {
            return Err("--storage azure measures emulators on this machine: it counts their requests in transit, which needs plain http and account keys, and it does not delete its data".to_owned());
        }
        Ok(Self { storage, cosmos })
    }

    /// Returns the environment variables of a worker.
    pub(super) fn variables(&self) -> Vec<(&'static str, String)> {
        let StorageAccount { queue, blob, access } = &self.storage;
        let mut variables = Vec::new();
        if let StorageAccess::SharedKey { account, key } = access {
            let key = STANDARD.encode(key.reveal());
            let text = format!(
                "AccountName={account};AccountKey={key};QueueEndpoint={queue};BlobEndpoint={blob}"
            );
            variables.push(("AzureWebJobsStorage", text));
        }
        if let CosmosAccess::Key(key) = &self.cosmos.access {
            variables.push(("COSMOS__accountKey", key.reveal().clone()));
        }
        variables.push(("COSMOS__accountEndpoint", self.cosmos.endpoint.to_string()));
        variables.push(("COSMOS__database", self.cosmos.database.clone()));
        variables
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_accounts(values: &'static [(&str, &str)]) -> Result<Accounts, String> {
        let find_value = |name: &str| {
            values.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned())
        };
        Accounts::from_settings(&Settings::read(find_value).unwrap())
    }

    #[test]
    fn only_local_emulators_are_accepted() {
        assert!(read_accounts(&[]).unwrap_err().contains("cosmos_emulator"));
        let local = read_accounts(&[
            ("AzureWebJobsStorage", "UseDevelopmentStorage=true"),
            ("COSMOS__accountEndpoint", "http://127.0.0.1:8081/"),
            ("COSMOS__accountKey", "a2V5"),
            ("COSMOS__database", "turnwheel"),
        ])
        .unwrap();
        let variables = local.variables();
        let round_trip = Settings::read(move |name| {
            variables.iter().find(|(known, _)| *known == name).map(|(_, value)| value.clone())
        });
        let round_trip = Accounts::from_settings(&round_trip.unwrap()).unwrap();
        assert_eq!((round_trip.storage, round_trip.cosmos), (local.storage, local.cosmos));
        let remote = read_accounts(&[
            ("AzureWebJobsStorage", "UseDevelopmentStorage=true"),
            ("COSMOS__accountEndpoint", "https://mine.documents.azure.com/"),
            ("COSMOS__accountKey", "a2V5"),
            ("COSMOS__database", "turnwheel"),
        ]);
        assert!(remote.unwrap_err().contains("on this machine"));
    }
}
