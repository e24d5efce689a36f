//! Error texts of a storage account: cause and advice, without secrets.

use azure_core::error::ErrorKind;
use url::Url;

/// An error of a storage account, as one sentence for the operator.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct StorageFault(String);

impl StorageFault {
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }
}

/// Returns the error code of Azure Storage, such as `QueueNotFound`.
pub fn code(error: &azure_core::Error) -> Option<&str> {
    let ErrorKind::HttpResponse { error_code, .. } = error.kind() else { return None };
    error_code.as_deref()
}

/// Returns the HTTP status; `None` if there was no response.
pub fn status(error: &azure_core::Error) -> Option<u16> {
    error.http_status().map(u16::from)
}

/// Builds the error text. Omits the SDK's own texts, which may contain a URL with a signature.
pub fn fault(error: &azure_core::Error, endpoint: &Url) -> StorageFault {
    let place = place(endpoint);
    let text = match error.kind() {
        ErrorKind::HttpResponse { status, error_code, .. } => {
            let code = error_code.as_deref().unwrap_or("without a reason");
            let status = u16::from(*status);
            let advice = match status {
                403 => {
                    ": check the key or signature, or give the identity the roles \
                     Storage Queue Data Contributor and Storage Blob Data Contributor"
                }
                401 => ": check the identity and its tenant",
                _ => "",
            };
            format!("{place} returned {status} {code}{advice}")
        }
        ErrorKind::Connection | ErrorKind::Io => {
            format!(
                "{place} cannot be reached ({}): check the address in AzureWebJobsStorage and the network rules; \
                 start the emulator if you use one",
                innermost(error)
            )
        }
        ErrorKind::Credential => format!(
            "no token for {place}: check AzureWebJobsStorage__credential and the identity it names ({})",
            innermost(error)
        ),
        ErrorKind::DataConversion | ErrorKind::Other => {
            format!("{place} could not be used: {}", innermost(error))
        }
    };
    StorageFault(text)
}

/// Renders the URL without its secrets: user, password, query and fragment.
fn place(endpoint: &Url) -> String {
    let mut place = endpoint.clone();
    place.set_query(None);
    place.set_fragment(None);
    let _ = place.set_username("");
    let _ = place.set_password(None);
    place.to_string()
}

/// Returns the innermost cause: the outer ones repeat the URL.
fn innermost(error: &dyn std::error::Error) -> String {
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

    use super::super::{Sending, queues};
    use super::*;
    use crate::settings::azure::{StorageAccess, StorageAccount};
    use crate::settings::secret::Secret;

    fn nobody(access: StorageAccess) -> StorageAccount {
        // Bound without a listener: no other process can use the port meanwhile.
        let socket = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = socket.local_addr().unwrap().port();
        let url = Url::parse(&format!("http://127.0.0.1:{port}/acc")).unwrap();
        StorageAccount { queue: url.clone(), blob: url, access }
    }

    #[tokio::test]
    async fn a_service_that_is_not_there_is_told_soon_and_without_the_signature() {
        let account = nobody(StorageAccess::Sas(Secret::new("sv=1&sig=SECRET".to_owned())));
        let client = queues(&account, None, &Sending::default()).unwrap();
        let began = Instant::now();
        let error = client.get_properties(None).await.unwrap_err();
        assert!(began.elapsed() < std::time::Duration::from_secs(30));
        let told = fault(&error, client.url()).to_string();
        assert!(told.starts_with(&format!("{} cannot be reached (", account.queue)), "{told}");
        assert!(told.contains("AzureWebJobsStorage") && !told.contains("SECRET"), "{told}");
    }

    #[tokio::test]
    async fn a_token_over_http_is_refused_before_anything_is_sent() {
        let identity = crate::settings::azure::Identity::DeveloperTools;
        let refused = queues(&nobody(StorageAccess::Identity(identity)), None, &Sending::default());
        let told = refused.map(|_| ()).unwrap_err().to_string();
        assert!(told.contains("must use https") || told.contains("no further reason"), "{told}");
    }
}
