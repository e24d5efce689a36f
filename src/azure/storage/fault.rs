//! What went wrong at a storage account, in words: what to do, and nothing secret.

use azure_core::error::ErrorKind;
use url::Url;

/// One sentence for whoever runs the app.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct StorageFault(String);

impl StorageFault {
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }
}

/// Storage's word for what was wrong, such as `QueueNotFound`.
pub fn code(error: &azure_core::Error) -> Option<&str> {
    let ErrorKind::HttpResponse { error_code, .. } = error.kind() else { return None };
    error_code.as_deref()
}

/// `None` when there was no answer.
pub fn status(error: &azure_core::Error) -> Option<u16> {
    error.http_status().map(u16::from)
}

/// The SDK's own texts may hold the address with a signature in its query, so they are not passed on.
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
            format!("{place} answered {status} {code}{advice}")
        }
        ErrorKind::Connection | ErrorKind::Io => {
            format!(
                "{place} cannot be reached ({}): check the address in AzureWebJobsStorage, the network and its rules; \
                 an emulator has to be started",
                innermost(error)
            )
        }
        ErrorKind::Credential => format!(
            "there is no token for {place}: check AzureWebJobsStorage__credential and what it names ({})",
            innermost(error)
        ),
        ErrorKind::DataConversion | ErrorKind::Other => {
            format!("{place} could not be used: {}", innermost(error))
        }
    };
    StorageFault(text)
}

/// Without what may be secret: user, query.
fn place(endpoint: &Url) -> String {
    let mut place = endpoint.clone();
    place.set_query(None);
    place.set_fragment(None);
    let _ = place.set_username("");
    let _ = place.set_password(None);
    place.to_string()
}

/// The last cause: those above it repeat the address.
fn innermost(error: &dyn std::error::Error) -> String {
    let mut last = error;
    while let Some(cause) = last.source() {
        last = cause;
    }
    // One that is the last itself may hold an address.
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
        // Bound and not listened on: nothing else can take it meanwhile.
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
