//! The clients of a storage account: how a request is signed, how often it is tried, how it is counted.

mod fault;
mod shared_key;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use azure_core::credentials::TokenCredential;
use azure_core::http::policies::{Policy, PolicyResult};
use azure_core::http::{
    ClientOptions, Context, ExponentialRetryOptions, Request, RetryOptions, Transport,
};
use azure_storage_blob::{BlobServiceClient, BlobServiceClientOptions};
use azure_storage_queue::{QueueServiceClient, QueueServiceClientOptions};
use url::Url;

pub use self::fault::{StorageFault, code, fault, status};
pub(super) use self::shared_key::{SharedKeyPolicy, http_date};
use super::credential;
use crate::clock::SystemClock;
use crate::settings::azure::{StorageAccess, StorageAccount};
use crate::telemetry::meter;

const CONNECT_MAX: Duration = Duration::from_secs(5);
/// Of silence. With the retries a dead service is told within half a minute: half of a claim.
const SILENCE_MAX: Duration = Duration::from_secs(12);
const RETRY_FIRST_MILLIS: i64 = 200;
/// Since the first answer; checked before each further try.
const RETRY_SECONDS_MAX: i64 = 10;

/// How requests travel.
#[derive(Clone)]
pub struct Sending {
    /// Tries after the first one, of requests that met a silent or busy service.
    pub retries_max: u32,
    /// PEM certificates to trust beside the system's: those of an emulator.
    pub trusted: Vec<u8>,
}

impl Default for Sending {
    fn default() -> Self {
        Self { retries_max: 3, trusted: Vec::new() }
    }
}

impl fmt::Debug for Sending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sending").field("retries_max", &self.retries_max).finish_non_exhaustive()
    }
}

/// The client of the account's queues. `credential` stands in for the one that the account's identity names.
///
/// # Errors
/// The settings cannot be used: show it and do not start.
pub fn queues(
    account: &StorageAccount,
    credential: Option<Arc<dyn TokenCredential>>,
    sending: &Sending,
) -> Result<QueueServiceClient, StorageFault> {
    let (url, token, client_options) = parts(account, &account.queue, credential, sending)?;
    let options = QueueServiceClientOptions { client_options, ..Default::default() };
    QueueServiceClient::new(url, token, Some(options))
        .map_err(|error| fault(&error, &account.queue))
}

/// The client of the account's blobs.
///
/// # Errors
/// As of [`queues`].
pub fn blobs(
    account: &StorageAccount,
    credential: Option<Arc<dyn TokenCredential>>,
    sending: &Sending,
) -> Result<BlobServiceClient, StorageFault> {
    let (url, token, client_options) = parts(account, &account.blob, credential, sending)?;
    let options = BlobServiceClientOptions { client_options, ..Default::default() };
    BlobServiceClient::new(url, token, Some(options)).map_err(|error| fault(&error, &account.blob))
}

type Parts = (Url, Option<Arc<dyn TokenCredential>>, ClientOptions);

fn parts(
    account: &StorageAccount,
    endpoint: &Url,
    credential: Option<Arc<dyn TokenCredential>>,
    sending: &Sending,
) -> Result<Parts, StorageFault> {
    let mut url = endpoint.clone();
    // After the SDK's own policies and again on every try: nothing changes a request once it is signed.
    let mut per_try_policies: Vec<Arc<dyn Policy>> = vec![Arc::new(Counted)];
    let mut token = None;
    match &account.access {
        StorageAccess::SharedKey { account, key } => {
            let clock = Arc::new(SystemClock::default());
            per_try_policies.push(Arc::new(SharedKeyPolicy::new(account, key, clock)));
        }
        StorageAccess::Sas(query) => url.set_query(Some(query.reveal())),
        StorageAccess::Identity(identity) => {
            token = Some(match credential {
                Some(given) => given,
                None => credential::credential(identity).map_err(StorageFault::new)?,
            });
        }
    }
    let retry = if sending.retries_max == 0 {
        RetryOptions::none()
    } else {
        RetryOptions::exponential(ExponentialRetryOptions {
            initial_delay: azure_core::time::Duration::milliseconds(RETRY_FIRST_MILLIS),
            max_retries: sending.retries_max,
            max_total_elapsed: azure_core::time::Duration::seconds(RETRY_SECONDS_MAX),
            max_delay: azure_core::time::Duration::seconds(2),
        })
    };
    let transport = Some(transport(endpoint, sending)?);
    Ok((url, token, ClientOptions { per_try_policies, retry, transport, ..Default::default() }))
}

fn transport(endpoint: &Url, sending: &Sending) -> Result<Transport, StorageFault> {
    let broken =
        |error: reqwest::Error| StorageFault::new(format!("TLS cannot be set up: {error}"));
    let trusted = reqwest::Certificate::from_pem_bundle(&sending.trusted).map_err(broken)?;
    let mut builder = reqwest::Client::builder()
        .connect_timeout(CONNECT_MAX)
        .read_timeout(SILENCE_MAX)
        .redirect(reqwest::redirect::Policy::none())
        // Lengths and ranges count the bytes that are stored.
        .no_gzip()
        .tls_certs_merge(trusted);
    if is_loopback(endpoint) {
        // An emulator is here, whatever proxy leads to the world.
        builder = builder.no_proxy();
    }
    Ok(Transport::new(Arc::new(builder.build().map_err(broken)?)))
}

fn is_loopback(endpoint: &Url) -> bool {
    match endpoint.host() {
        Some(url::Host::Ipv4(address)) => address.is_loopback(),
        Some(url::Host::Ipv6(address)) => address.is_loopback(),
        Some(url::Host::Domain(name)) => name == "localhost",
        None => false,
    }
}

/// What the meter calls a request: `queue.send`.
#[derive(Clone, Copy, Debug)]
struct Operation(&'static str);

/// The context of a call, by which the meter knows it.
pub fn operation(name: &'static str) -> Context<'static> {
    Context::new().with_value(Operation(name))
}

/// Counts each request that is sent, tries and blocks included.
#[derive(Debug)]
struct Counted;

#[expect(elided_lifetimes_in_paths, reason = "the signature is the trait's")]
#[async_trait]
impl Policy for Counted {
    async fn send(
        &self,
        ctx: &Context,
        request: &mut Request,
        next: &[Arc<dyn Policy>],
    ) -> PolicyResult {
        if let Some(Operation(name)) = ctx.value() {
            meter::count(name, 0.0);
        }
        pass(ctx, request, next).await
    }
}

/// Hands a request to the next policy.
async fn pass(ctx: &Context<'_>, request: &mut Request, next: &[Arc<dyn Policy>]) -> PolicyResult {
    let (next, rest) = next.split_first().ok_or_else(|| {
        azure_core::Error::with_message(azure_core::error::ErrorKind::Other, "no transport")
    })?;
    next.send(ctx, request, rest).await
}
