//! Signatures for raw requests without an SDK: the benchmark measures the bare latency of storage.

use std::fmt;
use std::sync::Arc;

use azure_core::credentials::Secret as SdkSecret;
use azure_core::hmac::hmac_sha256;
use azure_core::http::Request;
use azure_core::http::headers::{HeaderName, HeaderValue};
use percent_encoding::{NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use url::Url;

use super::storage::{SharedKeyPolicy, http_date};
use crate::clock::{Clock, SystemClock};
use crate::settings::azure::{CosmosAccess, CosmosAccount, StorageAccess, StorageAccount};
use crate::settings::secret::Secret;

/// A request without authorization headers.
#[derive(Clone, Debug)]
pub struct UnsignedRequest {
    pub method: String,
    pub url: Url,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

/// Signs requests with the keys of both accounts.
pub struct RequestSigner {
    storage: SharedKeyPolicy,
    cosmos: Secret<String>,
    clock: Arc<dyn Clock>,
}

impl fmt::Debug for RequestSigner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RequestSigner")
    }
}

impl RequestSigner {
    /// Creates a signer. Returns `None` if an account is used without its key.
    pub fn from_accounts(storage: &StorageAccount, cosmos: &CosmosAccount) -> Option<Self> {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::default());
        let StorageAccess::SharedKey { account, key } = &storage.access else { return None };
        let CosmosAccess::Key(cosmos) = &cosmos.access else { return None };
        let storage = SharedKeyPolicy::new(account, key, Arc::clone(&clock));
        Some(Self { storage, cosmos: cosmos.clone(), clock })
    }

    /// Returns the additional headers for the storage account. `None` if the HTTP method is
    /// unknown.
    pub fn storage_headers(&self, unsigned: &UnsignedRequest) -> Option<Vec<(String, String)>> {
        let mut request = Request::new(unsigned.url.clone(), unsigned.method.parse().ok()?);
        for (name, value) in &unsigned.headers {
            request.insert_header(HeaderName::from(name.clone()), HeaderValue::from(value.clone()));
        }
        request.set_body(unsigned.body.clone());
        self.storage.sign(&mut request);
        let signed = ["x-ms-date", "authorization"].map(|name| {
            let value = request.headers().get_optional_str(&HeaderName::from_static(name));
            (name.to_owned(), value.unwrap_or_default().to_owned())
        });
        Some(signed.into())
    }

    /// Returns the additional headers for the Cosmos account. `None` if the path names no resource.
    /// Source: Microsoft's "Access control on Azure Cosmos DB resources".
    pub fn cosmos_headers(&self, unsigned: &UnsignedRequest) -> Option<Vec<(String, String)>> {
        let path = percent_decode_str(unsigned.url.path().trim_matches('/')).decode_utf8().ok()?;
        let parts: Vec<&str> = path.split('/').collect();
        // The link of a feed is its parent, the link of a resource is its own path.
        let (kind, link) = match parts.split_last()? {
            (last, rest) if parts.len() % 2 == 1 => (*last, rest.join("/")),
            (_, rest) => (*rest.last()?, path.to_string()),
        };
        let method = unsigned.method.to_lowercase();
        let date = http_date(self.clock.now()).to_lowercase();
        let text = format!("{method}\n{kind}\n{link}\n{date}\n\n");
        let key = SdkSecret::new(self.cosmos.reveal().clone());
        let signature = hmac_sha256(&text, &key).ok()?;
        let given = format!("type=master&ver=1.0&sig={signature}");
        let given = utf8_percent_encode(&given, NON_ALPHANUMERIC).to_string();
        Some(vec![("x-ms-date".to_owned(), date), ("authorization".to_owned(), given)])
    }
}
