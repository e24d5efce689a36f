//! Cosmos DB account, accessed with its key or with an identity.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::{AzureIdentity, CosmosAccess, CosmosAccount, parse_endpoint};
use crate::settings::mistake::SettingMistake;
use crate::settings::reader::Reader;
use crate::settings::secret::Secret;

const ENDPOINT: &str = "COSMOS__accountEndpoint";
const KEY: &str = "COSMOS__accountKey";
const CREDENTIAL: &str = "COSMOS__credential";
const CLIENT: &str = "COSMOS__clientId";
const DATABASE: &str = "COSMOS__database";

const DATABASE_DEFAULT: &str = "turnwheel";

impl CosmosAccount {
    pub(in crate::settings) fn read(reader: &mut Reader<'_>, own: &AzureIdentity) -> Option<Self> {
        let endpoint = reader.parse(
            ENDPOINT,
            "an address that begins with https://, such as https://my-account.documents.azure.com (http:// on loopback alone)",
            parse_endpoint,
        );
        let key = reader.parse(KEY, "the account's key, in base64", |text| {
            STANDARD.decode(text).ok().map(|_| Secret::new(text.to_owned()))
        });
        let identity = own.for_connection(reader, CREDENTIAL, CLIENT);
        let database = reader.parse(
            DATABASE,
            "a database's name: at most 255 characters, without `/`, `\\`, `?` and `#`",
            |text| {
                let is_name = text.len() <= 255 && !text.contains(['/', '\\', '?', '#']);
                is_name.then(|| text.to_owned())
            },
        );
        let has_endpoint = reader.get(ENDPOINT).is_some();
        let has_key = reader.get(KEY).is_some();
        for name in [KEY, CREDENTIAL, CLIENT, DATABASE] {
            if !has_endpoint && reader.get(name).is_some() {
                reader.add_mistake(SettingMistake::new(
                    name,
                    format!("is set, but {ENDPOINT} is not: set it to the account's address"),
                ));
            }
        }
        for name in [CREDENTIAL, CLIENT] {
            if has_endpoint && has_key && reader.get(name).is_some() {
                reader.add_mistake(SettingMistake::new(
                    name,
                    format!("is set, and {KEY} too: remove the key to use an identity, or this to use the key"),
                ));
            }
        }
        Some(Self {
            endpoint: endpoint?,
            database: database.unwrap_or(DATABASE_DEFAULT.to_owned()),
            access: key.map_or(CosmosAccess::Identity(identity), CosmosAccess::Key),
        })
    }

    /// The error of an app that is served in Azure without a Cosmos DB account.
    pub(in crate::settings) fn missing_account() -> SettingMistake {
        SettingMistake::new(
            ENDPOINT,
            "is not set: the embedded store is one file of one machine, and in Azure an instance and its disk can vanish at any time, so it is refused here: set it to the address of a Cosmos DB account, such as https://my-account.documents.azure.com",
        )
    }
}
