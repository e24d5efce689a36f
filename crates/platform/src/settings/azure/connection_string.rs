//! Connection string of a storage account, in the portal's form or the emulator's.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use url::Url;

use super::storage::is_account_name;
use super::{StorageAccess, StorageAccount, parse_endpoint};
use crate::settings::secret::Secret;

/// The emulator's account and key, identical everywhere and published by Microsoft.
const EMULATOR: &str = "AccountName=devstoreaccount1;AccountKey=Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw==;\
QueueEndpoint=http://127.0.0.1:10001/devstoreaccount1;BlobEndpoint=http://127.0.0.1:10000/devstoreaccount1";

const USE_EMULATOR: &str = "UseDevelopmentStorage";
const PROXY: &str = "DevelopmentStorageProxyUri";
const PROTOCOL: &str = "DefaultEndpointsProtocol";
const NAME: &str = "AccountName";
const KEY: &str = "AccountKey";
const SAS: &str = "SharedAccessSignature";
const SUFFIX: &str = "EndpointSuffix";

const ENDPOINT_EXPECTED: &str =
    "must be an address that begins with https://, or with http:// on loopback";

/// Parses the account, or returns all problems: clauses that follow the setting's name and quote
/// nothing of its value.
pub(super) fn parse(text: &str) -> Result<StorageAccount, Vec<String>> {
    let parts = Parts::parse(text).map_err(|problem| vec![problem])?;
    if let Some(value) = parts.get(USE_EMULATOR) {
        return emulator_account(&parts, value).map_err(|problem| vec![problem]);
    }
    let mut problems = Vec::new();
    let mut record = |problem: String| problems.push(problem);
    let account = parts.get(NAME);
    if account.is_some_and(|name| !is_account_name(name)) {
        record(format!("has an {NAME} that is not a storage account's: 3 to 24 of a-z and 0-9"));
    }
    let queue = parts.endpoint("queue", "QueueEndpoint").map_err(&mut record).ok();
    let blob = parts.endpoint("blob", "BlobEndpoint").map_err(&mut record).ok();
    let access = parts.access().map_err(&mut record).ok();
    match (queue, blob, access) {
        (Some(queue), Some(blob), Some(access)) if problems.is_empty() => {
            Ok(StorageAccount { queue, blob, access })
        }
        _ => {
            problems.dedup();
            Err(problems)
        }
    }
}

/// True if the text names the emulator by its short form.
pub(super) fn is_emulator(text: &str) -> bool {
    Parts::parse(text).is_ok_and(|parts| parts.get(USE_EMULATOR).is_some())
}

fn emulator_account(parts: &Parts, value: &str) -> Result<StorageAccount, String> {
    if parts.get(PROXY).is_some() {
        return Err(format!(
            "names a {PROXY}, which is not supported: write {NAME}, {KEY}, QueueEndpoint and BlobEndpoint"
        ));
    }
    if !value.eq_ignore_ascii_case("true") || parts.0.len() > 1 {
        return Err(format!(
            "has {USE_EMULATOR}: write `{USE_EMULATOR}=true` and nothing else, or leave it out"
        ));
    }
    parse(EMULATOR).map_err(|problems| problems.join("; "))
}

/// Values by name in lower case. Other names, such as `TableEndpoint`, may be present.
struct Parts(BTreeMap<String, String>);

impl Parts {
    fn parse(text: &str) -> Result<Self, String> {
        let mut parts = BTreeMap::new();
        for part in text.split(';').map(str::trim).filter(|part| !part.is_empty()) {
            let Some((name, value)) = part.split_once('=') else {
                return Err(
                    "is not a connection string: expected `UseDevelopmentStorage=true` or `DefaultEndpointsProtocol=https;AccountName=…;AccountKey=…;EndpointSuffix=core.windows.net` (to use an identity, remove it and set AzureWebJobsStorage__accountName)"
                        .to_owned(),
                );
            };
            let name = name.trim().to_ascii_lowercase();
            if parts.insert(name, value.trim().to_owned()).is_some() {
                return Err("names a part of the connection string twice: copy it again".to_owned());
            }
        }
        parts.retain(|_, value| !value.is_empty());
        Ok(Self(parts))
    }

    fn get(&self, name: &str) -> Option<&str> {
        self.0.get(&name.to_ascii_lowercase()).map(String::as_str)
    }

    /// The explicit endpoint, or the one derived from the account's name.
    fn endpoint(&self, service: &str, name: &str) -> Result<Url, String> {
        if let Some(text) = self.get(name) {
            return parse_endpoint(text)
                .ok_or_else(|| format!("has a {name} that {ENDPOINT_EXPECTED}"));
        }
        let Some(account) = self.get(NAME) else {
            return Err(format!("has neither {NAME} nor {name}: copy the connection string again"));
        };
        let protocol = self.get(PROTOCOL).unwrap_or("https");
        if !protocol.eq_ignore_ascii_case("https") {
            return Err(format!("has a {PROTOCOL} other than https: use https"));
        }
        let suffix = self.get(SUFFIX).unwrap_or("core.windows.net");
        parse_endpoint(&format!("https://{account}.{service}.{suffix}"))
            .filter(|url| url.path() == "/" && url.port().is_none())
            .ok_or_else(|| {
                format!("has an {NAME} or {SUFFIX} that forms no valid address: copy it again")
            })
    }

    fn access(&self) -> Result<StorageAccess, String> {
        match (self.get(KEY), self.get(SAS)) {
            (Some(_), Some(_)) => Err(format!("has {KEY} and {SAS}: keep one of them")),
            (None, None) => Err(format!(
                "has neither {KEY} nor {SAS}: copy the connection string again (to use an identity, remove it and set AzureWebJobsStorage__accountName)"
            )),
            (Some(key), None) => {
                let key = STANDARD
                    .decode(key)
                    .map_err(|_| format!("has an {KEY} that is not base64: copy it again"))?;
                let account = self.get(NAME).ok_or(format!(
                    "has an {KEY} and no {NAME}: copy the connection string again"
                ))?;
                Ok(StorageAccess::SharedKey { account: account.to_owned(), key: Secret::new(key) })
            }
            (None, Some(sas)) => {
                let sas = sas.trim_start_matches('?');
                if !sas.contains("sig=") {
                    return Err(format!("has a {SAS} without `sig=`: copy it again"));
                }
                Ok(StorageAccess::Sas(Secret::new(sas.to_owned())))
            }
        }
    }
}
