//! Store whose usage ledger is unavailable on demand.

use std::sync::atomic::{AtomicBool, Ordering};

use turnwheel_storage::store::interceptor::{StoreInterceptor, StoreRequest};
use turnwheel_storage::store::{Partition, StoreError};

/// True while the ledger is unavailable.
#[derive(Debug)]
pub(super) struct LedgerOutage(pub(super) AtomicBool);

impl StoreInterceptor for LedgerOutage {
    fn before_request(&self, asked: &StoreRequest<'_>) -> Result<(), StoreError> {
        let (StoreRequest::Write(partition, _) | StoreRequest::Read(partition, ..)) = asked else {
            return Ok(());
        };
        let is_shut = self.0.load(Ordering::SeqCst);
        if is_shut && matches!(partition, Partition::Scope(_)) {
            return Err(StoreError::Unavailable("shut".into()));
        }
        Ok(())
    }
}
