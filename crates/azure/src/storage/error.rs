//! Error texts of a storage account: cause and advice, without secrets.

use std::error::Error;

use azure_core::error::ErrorKind;
use url::Url;

use super::is_loopback;
use crate::is_unknown_host;

/// An error of a storage account, as one sentence for the operator.
#[derive(Debug, thiserror::Error)]
#[error("{text}")]
pub struct StorageError {
    text: String,
    is_temporary: bool,
}

impl StorageError {
    /// An error of the configuration.
    pub fn new(text: impl Into<String>) -> Self {
        Self { text: text.into(), is_temporary: false }
    }

    /// True if the same request may succeed later, without a change of the configuration.
    pub fn is_temporary(&self) -> bool {
        self.is_temporary
    }
}

/// Returns the error code of Azure Storage, such as `QueueNotFound`.
pub fn error_code(error: &azure_core::Error) -> Option<&str> {
    let ErrorKind::HttpResponse { error_code, .. } = error.kind() else { return None };
    error_code.as_deref()
}

/// Returns the HTTP status; `None` if there was no response.
pub fn http_status(error: &azure_core::Error) -> Option<u16> {
    error.http_status().map(u16::from)
}

/// Version of Azurite that `azurite/` pins. It knows the storage version that the SDK sends.
const AZURITE_VERSION: &str = "3.37.0";

/// Builds the error text. Omits the SDK's own texts, which may contain a URL with a signature.
pub fn to_storage_error(error: &azure_core::Error, endpoint: &Url) -> StorageError {
    let url = redacted_url(endpoint);
    let text = match error.kind() {
        ErrorKind::HttpResponse { status, error_code, .. } => {
            let code = error_code.as_deref().unwrap_or("without a reason");
            let status = u16::from(*status);
            // Azure knows each version that the SDK sends.
            if status == 400 && code == "InvalidHeaderValue" && is_emulator(endpoint) {
                return StorageError::new(format!(
                    "{url} returned {status} {code}: this Azurite is too old for the storage version of the app: start `npx --yes azurite@{AZURITE_VERSION}`"
                ));
            }
            let advice = match status {
                403 => {
                    ": check the key or signature, or give the identity the roles \
                     Storage Queue Data Contributor and Storage Blob Data Contributor"
                }
                401 => ": check the identity and its tenant",
                _ => "",
            };
            format!("{url} returned {status} {code}{advice}")
        }
        ErrorKind::Connection | ErrorKind::Io => {
            format!(
                "{url} cannot be reached ({}): check the address in AzureWebJobsStorage and the network rules; \
                 start the emulator if you use one",
                innermost_cause(error)
            )
        }
        ErrorKind::Credential => format!(
            "no token for {url}: check AzureWebJobsStorage__credential and the identity it names ({})",
            innermost_cause(error)
        ),
        ErrorKind::DataConversion | ErrorKind::Other => {
            format!("{url} could not be used: {}", innermost_cause(error))
        }
    };
    StorageError { text, is_temporary: is_temporary(error) }
}

/// True if no response arrived, or one that asks to try again.
fn is_temporary(error: &azure_core::Error) -> bool {
    let first: &(dyn Error + 'static) = error;
    let responses =
        std::iter::successors(Some(first), |cause| (*cause).source()).filter_map(|cause| {
            let cause = cause.downcast_ref::<azure_core::Error>()?;
            Some((http_status(cause)?, error_code(cause)))
        });
    if let Some((status, code)) = responses.last() {
        return matches!(status, 408 | 429 | 500..) || code.is_some_and(is_state_change);
    }
    match error.kind() {
        ErrorKind::Connection | ErrorKind::Io | ErrorKind::Credential => !is_unknown_host(error),
        ErrorKind::HttpResponse { .. } | ErrorKind::DataConversion | ErrorKind::Other => false,
    }
}

/// True for a 409 while the service changes a resource: after the deletion of a queue or container for
/// 30 s or more.
fn is_state_change(code: &str) -> bool {
    code.ends_with("BeingDeleted") || code == "AccountBeingCreated"
}

/// True for an emulator: plain http, or an address of this machine.
fn is_emulator(endpoint: &Url) -> bool {
    endpoint.scheme() == "http" || is_loopback(endpoint)
}

/// Renders the URL without its secrets: user, password, query and fragment.
fn redacted_url(endpoint: &Url) -> String {
    let mut redacted = endpoint.clone();
    redacted.set_query(None);
    redacted.set_fragment(None);
    let _ = redacted.set_username("");
    let _ = redacted.set_password(None);
    redacted.to_string()
}

/// Returns the innermost cause: the outer ones repeat the URL.
fn innermost_cause(error: &dyn Error) -> String {
    let mut last = error;
    while let Some(cause) = last.source() {
        last = cause;
    }
    // The innermost cause may contain a URL too.
    let text = last.to_string();
    if text.contains("://") { "no further reason".to_owned() } else { text }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::super::{TransportSettings, queue_client};
    use super::*;
    use turnwheel_platform::settings::azure::{StorageAccess, StorageAccount};
    use turnwheel_platform::settings::secret::Secret;

    fn unreachable_account(access: StorageAccess) -> StorageAccount {
        // Bound without a listener: no other process can use the port meanwhile.
        let socket = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = socket.local_addr().unwrap().port();
        let url = Url::parse(&format!("http://127.0.0.1:{port}/acc")).unwrap();
        StorageAccount { queue: url.clone(), blob: url, access }
    }

    #[tokio::test]
    async fn unreachable_service_error_omits_signature() {
        let account =
            unreachable_account(StorageAccess::Sas(Secret::new("sv=1&sig=SECRET".to_owned())));
        let client = queue_client(&account, None, &TransportSettings::default()).unwrap();
        let began = Instant::now();
        let error = client.get_properties(None).await.unwrap_err();
        assert!(began.elapsed() < std::time::Duration::from_secs(30));
        let text = to_storage_error(&error, client.url()).to_string();
        assert!(text.starts_with(&format!("{} cannot be reached (", account.queue)), "{text}");
        assert!(text.contains("AzureWebJobsStorage") && !text.contains("SECRET"), "{text}");
    }

    #[test]
    fn old_azurite_error_names_pinned_version() {
        let error = |code: &str| {
            let kind = ErrorKind::HttpResponse {
                status: azure_core::http::StatusCode::BadRequest,
                error_code: Some(code.to_owned()),
                raw_response: None,
            };
            azure_core::Error::with_message(kind, "the storage version is unknown")
        };
        let text = |code: &str, url: &str| {
            to_storage_error(&error(code), &Url::parse(url).unwrap()).to_string()
        };
        let advice = format!("start `npx --yes azurite@{AZURITE_VERSION}`");
        for url in ["http://127.0.0.1:10001/devstoreaccount1", "https://localhost:10001/dev"] {
            assert!(text("InvalidHeaderValue", url).contains(&advice), "{url}");
            assert!(!text("InvalidInput", url).contains(&advice), "{url}");
        }
        let azure = "https://account.queue.core.windows.net/";
        assert!(!text("InvalidHeaderValue", azure).contains(&advice));
        assert!(
            include_str!("../../../../azurite/package.json")
                .contains(&format!("\"azurite\": \"{AZURITE_VERSION}\""))
        );
    }

    #[test]
    fn only_outages_are_temporary() {
        let url = Url::parse("https://account.queue.core.windows.net/").unwrap();
        let is_temporary = |kind| {
            let error = azure_core::Error::with_message(kind, "failed");
            to_storage_error(&error, &url).is_temporary()
        };
        for (status, expected) in [
            (400_u16, false),
            (401, false),
            (403, false),
            (404, false),
            (408, true),
            (429, true),
            (500, true),
            (503, true),
        ] {
            let kind = ErrorKind::HttpResponse {
                status: azure_core::http::StatusCode::from(status),
                error_code: None,
                raw_response: None,
            };
            assert_eq!(is_temporary(kind), expected, "{status}");
        }
        for (code, expected) in [
            ("QueueBeingDeleted", true),
            ("ContainerBeingDeleted", true),
            ("AccountBeingCreated", true),
            ("QueueAlreadyExists", false),
            ("QueueDisabled", false),
        ] {
            let kind = ErrorKind::HttpResponse {
                status: azure_core::http::StatusCode::Conflict,
                error_code: Some(code.to_owned()),
                raw_response: None,
            };
            assert_eq!(is_temporary(kind), expected, "{code}");
        }
        assert!(is_temporary(ErrorKind::Connection) && is_temporary(ErrorKind::Credential));
        let unknown = std::io::Error::other(
            "failed to lookup address information: Name or service not known",
        );
        let error = azure_core::Error::new(ErrorKind::Connection, unknown);
        assert!(!to_storage_error(&error, &url).is_temporary());
        assert!(!StorageError::new("the prefix is invalid").is_temporary());
    }

    #[tokio::test]
    async fn token_over_http_is_rejected_before_sending() {
        let identity = turnwheel_platform::settings::azure::AzureIdentity::DeveloperTools;
        let refused = queue_client(
            &unreachable_account(StorageAccess::Identity(identity)),
            None,
            &TransportSettings::default(),
        );
        let text = refused.map(|_| ()).unwrap_err().to_string();
        assert!(text.contains("must use https") || text.contains("no further reason"), "{text}");
    }
}
