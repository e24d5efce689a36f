//! Clients of a storage account: signatures, retries and request counts.

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
/// Read timeout. With the retries, a dead service is reported within 30 s: half of a lease.
const SILENCE_MAX: Duration = Duration::from_secs(12);
const RETRY_FIRST_MILLIS: i64 = 200;
/// Maximum time since the first response, checked before each retry.
const RETRY_SECONDS_MAX: i64 = 10;

/// Transport settings of requests.
#[derive(Clone)]
pub struct Sending {
    /// Maximum retries of a request if the service is silent or busy.
    pub retries_max: u32,
    /// PEM certificates to trust in addition to the system's, for emulators.
    pub trusted: Vec<u8>,
}

impl Default for Sending {
    fn default() -> Self {
        Self { retries_max: 3, trusted: Vec::new() }
    }
}

impl fmt::Debug for Sending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TransportSettings").field("retries_max", &self.retries_max).finish_non_exhaustive()
    }
}

/// Creates the client of the account's queues. `credential` replaces the credential of the
/// account's identity.
///
/// # Errors
/// The settings cannot be used: show the error and do not start.
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

/// Creates the client of the account's blobs.
///
/// # Errors
/// See [`queue_client`].
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
    // These run after the SDK's own policies and on every retry, so that the signature comes last.
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
        // Lengths and ranges refer to the stored bytes.
        .no_gzip()
        .tls_certs_merge(trusted);
    if is_loopback(endpoint) {
        // An emulator on this machine needs no proxy.
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

/// Name of an operation in the cost meter, such as `queue.send`.
#[derive(Clone, Copy, Debug)]
struct Operation(&'static str);

/// Returns a context that names the operation for the cost meter.
pub fn operation(name: &'static str) -> Context<'static> {
    Context::new().with_value(Operation(name))
}

/// Counts each request, including retries and blocks.
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

/// Sends a request through the next policy.
async fn pass(ctx: &Context<'_>, request: &mut Request, next: &[Arc<dyn Policy>]) -> PolicyResult {
    let (next, rest) = next.split_first().ok_or_else(|| {
        azure_core::Error::with_message(azure_core::error::ErrorKind::Other, "no transport")
    })?;
    next.send(ctx, request, rest).await
}
