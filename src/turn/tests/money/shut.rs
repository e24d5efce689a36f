//! Store whose usage ledger is unavailable on demand.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::store::watched::{Asked, Watch};
use crate::store::{Partition, StoreError};

/// True while the ledger is unavailable.
#[derive(Debug)]
pub(super) struct Shut(pub(super) AtomicBool);

impl Watch for Shut {
    fn asked(&self, asked: &Asked<'_>) -> Result<(), StoreError> {
        let (Asked::Write(partition, _) | Asked::Read(partition, _)) = asked else { return Ok(()) };
        let is_shut = self.0.load(Ordering::SeqCst);
        if is_shut && matches!(partition, Partition::Scope(_)) {
            return Err(StoreError::Unavailable("shut".into()));
        }
        Ok(())
    }
}
