//! Clients of a storage account: signatures, retries and request counts.

mod error;
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

pub use self::error::{StorageError, error_code, http_status, to_storage_error};
use self::shared_key::SharedKeyPolicy;
use super::credential;
use turnwheel_platform::clock::SystemClock;
use turnwheel_platform::settings::azure::{StorageAccess, StorageAccount};
use turnwheel_platform::telemetry::cost_meter;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Read timeout. With the retries, a dead service is reported within 30 s: half of a lease.
const READ_TIMEOUT: Duration = Duration::from_secs(12);
const RETRY_FIRST_MILLIS: i64 = 200;
/// Maximum time since the first response, checked before each retry.
const RETRY_SECONDS_MAX: i64 = 10;

/// Transport settings of requests.
#[derive(Clone)]
pub struct TransportSettings {
    /// Maximum retries of a request if the service is silent or busy.
    pub retries_max: u32,
    /// PEM certificates to trust in addition to the system's, for emulators.
    pub trusted_certificates: Vec<u8>,
}

impl Default for TransportSettings {
    fn default() -> Self {
        Self { retries_max: 3, trusted_certificates: Vec::new() }
    }
}

impl fmt::Debug for TransportSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TransportSettings")
            .field("retries_max", &self.retries_max)
            .finish_non_exhaustive()
    }
}

/// Creates the client of the account's queues. `credential` replaces the credential of the
/// account's identity.
///
/// # Errors
/// The settings cannot be used: show the error and do not start.
pub fn queue_client(
    account: &StorageAccount,
    credential: Option<Arc<dyn TokenCredential>>,
    settings: &TransportSettings,
) -> Result<QueueServiceClient, StorageError> {
    let (url, token, client_options) = client_parts(account, &account.queue, credential, settings)?;
    let options = QueueServiceClientOptions { client_options, ..Default::default() };
    QueueServiceClient::new(url, token, Some(options))
        .map_err(|error| to_storage_error(&error, &account.queue))
}

/// Creates the client of the account's blobs.
///
/// # Errors
/// See [`queue_client`].
pub fn blob_client(
    account: &StorageAccount,
    credential: Option<Arc<dyn TokenCredential>>,
    settings: &TransportSettings,
) -> Result<BlobServiceClient, StorageError> {
    let (url, token, client_options) = client_parts(account, &account.blob, credential, settings)?;
    let options = BlobServiceClientOptions { client_options, ..Default::default() };
    BlobServiceClient::new(url, token, Some(options))
        .map_err(|error| to_storage_error(&error, &account.blob))
}

type ClientParts = (Url, Option<Arc<dyn TokenCredential>>, ClientOptions);

fn client_parts(
    account: &StorageAccount,
    endpoint: &Url,
    credential: Option<Arc<dyn TokenCredential>>,
    settings: &TransportSettings,
) -> Result<ClientParts, StorageError> {
    let mut url = endpoint.clone();
    // These run after the SDK's own policies and on every retry, so that the signature comes last.
    let mut per_try_policies: Vec<Arc<dyn Policy>> = vec![Arc::new(RequestCounter)];
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
                None => credential::create_credential(identity).map_err(StorageError::new)?,
            });
        }
    }
    let retry = if settings.retries_max == 0 {
        RetryOptions::none()
    } else {
        RetryOptions::exponential(ExponentialRetryOptions {
            initial_delay: azure_core::time::Duration::milliseconds(RETRY_FIRST_MILLIS),
            max_retries: settings.retries_max,
            max_total_elapsed: azure_core::time::Duration::seconds(RETRY_SECONDS_MAX),
            max_delay: azure_core::time::Duration::seconds(2),
        })
    };
    let transport = Some(build_transport(endpoint, settings)?);
    Ok((url, token, ClientOptions { per_try_policies, retry, transport, ..Default::default() }))
}

fn build_transport(
    endpoint: &Url,
    settings: &TransportSettings,
) -> Result<Transport, StorageError> {
    let broken =
        |error: reqwest::Error| StorageError::new(format!("TLS cannot be set up: {error}"));
    let trusted =
        reqwest::Certificate::from_pem_bundle(&settings.trusted_certificates).map_err(broken)?;
    let mut builder = reqwest::Client::builder()
        .connect_timeout(CONNECT_TIMEOUT)
        .read_timeout(READ_TIMEOUT)
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
struct OperationName(&'static str);

/// Returns a context that names the operation for the cost meter.
pub fn operation_context(name: &'static str) -> Context<'static> {
    Context::new().with_value(OperationName(name))
}

/// Counts each request, including retries and blocks.
#[derive(Debug)]
struct RequestCounter;

#[expect(elided_lifetimes_in_paths, reason = "the signature is the trait's")]
#[async_trait]
impl Policy for RequestCounter {
    async fn send(
        &self,
        ctx: &Context,
        request: &mut Request,
        next: &[Arc<dyn Policy>],
    ) -> PolicyResult {
        if let Some(OperationName(name)) = ctx.value() {
            cost_meter::count_request(name, 0.0);
        }
        send_next(ctx, request, next).await
    }
}

/// Sends a request through the next policy.
async fn send_next(
    ctx: &Context<'_>,
    request: &mut Request,
    next: &[Arc<dyn Policy>],
) -> PolicyResult {
    let (next, rest) = next.split_first().ok_or_else(|| {
        azure_core::Error::with_message(azure_core::error::ErrorKind::Other, "no transport")
    })?;
    next.send(ctx, request, rest).await
}
