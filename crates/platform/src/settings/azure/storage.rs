//! Storage account, by connection string or by name and identity.

use url::Url;

use super::{AzureIdentity, StorageAccess, StorageAccount, connection_string, parse_endpoint};
use crate::settings::mistake::SettingMistake;
use crate::settings::reader::Reader;

const STORAGE: &str = "AzureWebJobsStorage";
const ACCOUNT: &str = "AzureWebJobsStorage__accountName";
const QUEUE: &str = "AzureWebJobsStorage__queueServiceUri";
const BLOB: &str = "AzureWebJobsStorage__blobServiceUri";
const CREDENTIAL: &str = "AzureWebJobsStorage__credential";
const CLIENT: &str = "AzureWebJobsStorage__clientId";

impl StorageAccount {
    pub(in crate::settings) fn read(
        reader: &mut Reader<'_>,
        own: &AzureIdentity,
        is_in_azure: bool,
    ) -> Option<Self> {
        let identity_account = read_identity_account(reader, own);
        let Some(text) = reader.get(STORAGE) else { return identity_account };
        for name in [ACCOUNT, QUEUE, BLOB, CREDENTIAL, CLIENT] {
            if reader.get(name).is_some() {
                reader.add_mistake(SettingMistake::new(
                    name,
                    format!("is set, and {STORAGE} too: remove the connection string to use an identity, or this to use the connection string"),
                ));
            }
        }
        if is_in_azure && connection_string::is_emulator(&text) {
            reader.add_mistake(SettingMistake::new(
                STORAGE,
                format!("is the emulator of a developer's machine: remove it and set {ACCOUNT} to the app's storage account"),
            ));
        }
        match connection_string::parse(&text) {
            Ok(account) => Some(account),
            Err(wrong) => {
                for problem in wrong {
                    reader.add_mistake(SettingMistake::new(STORAGE, problem));
                }
                None
            }
        }
    }

    /// The error of an app that is served in Azure without a storage account.
    pub(in crate::settings) fn missing_account() -> SettingMistake {
        SettingMistake::missing(
            ACCOUNT,
            "the name of the storage account that holds the queues and artifacts (or a connection string in AzureWebJobsStorage)",
        )
    }
}

fn read_identity_account(reader: &mut Reader<'_>, own: &AzureIdentity) -> Option<StorageAccount> {
    let account =
        reader.parse(ACCOUNT, "a storage account's name: 3 to 24 of a-z and 0-9", |text| {
            is_account_name(text).then(|| text.to_owned())
        });
    let queue = read_service_address(reader, QUEUE, "https://my-account.queue.core.windows.net");
    let blob = read_service_address(reader, BLOB, "https://my-account.blob.core.windows.net");
    let identity = own.for_connection(reader, CREDENTIAL, CLIENT);
    let is_set = |name| reader.get(name).is_some();
    let (has_account, has_queue, has_blob) = (is_set(ACCOUNT), is_set(QUEUE), is_set(BLOB));
    if is_set(STORAGE) {
        // Each of these settings has an error already.
    } else if let Some(account) = &account {
        // Deployment tools set both. The addresses are used and must belong to the named account.
        for (name, address) in [(QUEUE, &queue), (BLOB, &blob)] {
            if let Some(address) =
                address.as_ref().filter(|address| !has_account_host(account, address))
            {
                reader.add_mistake(SettingMistake::new(
                    name,
                    format!(
                        "is `{address}`, and {ACCOUNT} is `{account}`, another account: correct one of them, or remove one"
                    ),
                ));
            }
        }
    } else if has_account {
        // The name has an error already.
    } else if has_queue != has_blob {
        let (set, missing) = if has_queue { (QUEUE, BLOB) } else { (BLOB, QUEUE) };
        reader.add_mistake(SettingMistake::new(
            set,
            format!("is set, but {missing} is not: set both, or {ACCOUNT} alone"),
        ));
    } else if !has_queue {
        for name in [CREDENTIAL, CLIENT] {
            if reader.get(name).is_some() {
                reader.add_mistake(SettingMistake::new(
                    name,
                    format!("is set, but no storage account is named: set {ACCOUNT}"),
                ));
            }
        }
    }
    let derive_endpoint = |service: &str| {
        let account = account.as_deref()?;
        parse_endpoint(&format!("https://{account}.{service}.core.windows.net"))
    };
    let queue = queue.or_else(|| derive_endpoint("queue"))?;
    let blob = blob.or_else(|| derive_endpoint("blob"))?;
    Some(StorageAccount { queue, blob, access: StorageAccess::Identity(identity) })
}

/// True if the address's host begins with the account's name.
fn has_account_host(account: &str, address: &Url) -> bool {
    address.host_str().and_then(|host| host.split('.').next()) == Some(account)
}

/// Reads a service address. It receives tokens, so https is required even on loopback.
fn read_service_address(reader: &mut Reader<'_>, name: &'static str, example: &str) -> Option<Url> {
    reader.parse(
        name,
        &format!("an address that begins with https://, such as {example}"),
        |text| parse_endpoint(text).filter(|url| url.scheme() == "https"),
    )
}

pub(super) fn is_account_name(text: &str) -> bool {
    (3..=24).contains(&text.len())
        && text.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit())
}
