//! Comparison of the charges of reads by the app's own identity. `doctor` runs as a person, who may not reach the database.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::doctor::{self, ReadCharges};
use turnwheel_platform::error_chain::error_chain;
use turnwheel_platform::settings::ServiceSettings;
use turnwheel_platform::settings::links::is_loopback;
use turnwheel_record::services::Services;
use turnwheel_storage::store::StoreError;

/// The comparison, due once in a process.
#[derive(Debug)]
pub(crate) struct ReadCheck {
    is_due: AtomicBool,
}

impl ReadCheck {
    /// An emulator and the data folder have no quorum.
    pub(crate) fn new(settings: &ServiceSettings) -> Self {
        let account = settings.cosmos.as_ref();
        let is_due = account.is_some_and(|account| !is_loopback(account.endpoint.as_str()));
        Self { is_due: AtomicBool::new(is_due) }
    }

    /// Compares the charges, and logs a warning if `Latest` reads do not come from a quorum.
    pub(crate) async fn run_if_due(&self, services: &Services) {
        if !self.is_due.swap(false, Ordering::Relaxed) {
            return;
        }
        let id = services.ids.new_id();
        let compared =
            doctor::compare_reads_of_version(&*services.store, &id, env!("CARGO_PKG_VERSION"));
        let compared = compared.await;
        if compared.is_err() {
            self.is_due.store(true, Ordering::Relaxed);
        }
        log_comparison(&compared);
    }
}

fn log_comparison(compared: &Result<ReadCharges, StoreError>) {
    match compared {
        Ok(charges) if charges.is_quorum() => {
            tracing::debug!(
                latest_request_units = charges.latest,
                plain_request_units = charges.plain,
                "reads that decide come from a quorum"
            );
        }
        Ok(charges) => tracing::warn!(
            latest_request_units = charges.latest,
            plain_request_units = charges.plain,
            "reads that decide may not come from a quorum: {}",
            doctor::QUORUM_ADVICE
        ),
        Err(error) => {
            let error = error_chain(error);
            tracing::warn!(%error, "charges of reads not compared; the next sweep tries again");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_due(endpoint: Option<&'static str>) -> bool {
        let lookup = move |name: &str| match name {
            "COSMOS__accountEndpoint" => endpoint.map(ToOwned::to_owned),
            "COSMOS__accountKey" => endpoint.map(|_| "c2VjcmV0".to_owned()),
            _ => None,
        };
        ReadCheck::new(&ServiceSettings::read(lookup).unwrap()).is_due.into_inner()
    }

    #[test]
    fn only_azure_is_compared() {
        assert!(is_due(Some("https://mine.documents.azure.com:443/")));
        assert!(!is_due(Some("http://127.0.0.1:8081/")));
        assert!(!is_due(None));
    }
}
