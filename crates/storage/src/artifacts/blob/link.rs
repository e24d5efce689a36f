//! Links to single blobs, signed with the app's identity. They expire, and end when the identity
//! loses its role.

use std::time::Duration;

use azure_core::http::ClientMethodOptions;
use azure_core::time::OffsetDateTime;
use azure_storage_blob::BlobServiceClient;
use azure_storage_blob::models::{BlobServiceClientGetUserDelegationKeyOptions, KeyInfo};
use azure_storage_common::models::UserDelegationKey;
use azure_storage_sas::{SasBuilder, SasProtocol};
use tokio::sync::Mutex;
use url::Url;

use super::super::ContentHeaders;
use turnwheel_azure::storage;
use turnwheel_platform::clock::{Clock, SystemClock, Timestamp};

/// Long enough to start a download, too short to be shared.
const LINK_LIFETIME: Duration = Duration::from_mins(5);
/// Lifetime of a delegation key: one request for each hour of links.
const KEY_LIFETIME: Duration = Duration::from_hours(1);
/// Allowed clock skew.
const CLOCK_SKEW: Duration = Duration::from_mins(5);

pub(super) struct LinkSigner {
    account: String,
    protocol: SasProtocol,
    clock: SystemClock,
    key: Mutex<Option<DelegationKey>>,
}

struct DelegationKey {
    key: UserDelegationKey,
    expires_at: Timestamp,
}

impl LinkSigner {
    pub(super) fn new(endpoint: &Url) -> Self {
        Self {
            account: account_name(endpoint),
            protocol: SasProtocol::Https,
            clock: SystemClock::default(),
            key: Mutex::new(None),
        }
    }

    /// Returns the query of a link to `(container, blob)`.
    pub(super) async fn sign(
        &self,
        service: &BlobServiceClient,
        container: &str,
        blob: &str,
        headers: &ContentHeaders,
    ) -> azure_core::Result<String> {
        let now = self.clock.now();
        let expires_at = now.plus(LINK_LIFETIME);
        let mut cached = self.key.lock().await;
        let key = match cached.take() {
            Some(key) if key.expires_at > expires_at => key,
            Some(_) | None => request_delegation_key(service, now).await?,
        };
        let key = cached.insert(key);
        let link = SasBuilder::new(&*self.account, &key.key, to_offset_time(expires_at))?
            .protocol(self.protocol)
            .blob(container, blob)
            .read()
            .content_type(&*headers.content_type)
            .content_disposition(&*headers.content_disposition);
        Ok(link.build())
    }
}

async fn request_delegation_key(
    service: &BlobServiceClient,
    now: Timestamp,
) -> azure_core::Result<DelegationKey> {
    let expires_at = now.plus(KEY_LIFETIME);
    let info = KeyInfo {
        start: Some(to_offset_time(now.minus(CLOCK_SKEW))),
        expiry: Some(to_offset_time(expires_at)),
        ..Default::default()
    };
    let options = BlobServiceClientGetUserDelegationKeyOptions {
        method_options: ClientMethodOptions { context: storage::operation_context("blob.key") },
        ..Default::default()
    };
    let answer = service.get_user_delegation_key(info.try_into()?, Some(options)).await?;
    Ok(DelegationKey { key: answer.into_model()?, expires_at })
}

fn to_offset_time(at: Timestamp) -> OffsetDateTime {
    let seconds = i64::try_from(at.0 / 1000).unwrap_or(i64::MAX);
    OffsetDateTime::from_unix_timestamp(seconds).unwrap_or(OffsetDateTime::UNIX_EPOCH)
}

/// Returns `name` of `https://name.blob.core.windows.net`. An emulator has it in the path.
fn account_name(endpoint: &Url) -> String {
    let in_path = endpoint.path_segments().and_then(|mut parts| parts.next());
    match (in_path, endpoint.domain()) {
        (Some(name), _) if !name.is_empty() => name.to_owned(),
        (_, Some(host)) => host.split('.').next().unwrap_or_default().to_owned(),
        (_, None) => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn account_name_comes_from_host_or_path() {
        for (endpoint, name) in [
            ("https://name.blob.core.windows.net", "name"),
            ("https://name.blob.core.windows.net/", "name"),
            ("https://127.0.0.1:10000/devstoreaccount1", "devstoreaccount1"),
        ] {
            assert_eq!(account_name(&Url::parse(endpoint).unwrap()), name);
        }
    }
}
