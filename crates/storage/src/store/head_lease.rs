//! Leases stored in the head: checks if another worker has the lease.

use serde::Deserialize;

use crate::store::{
    Document, LeaseOutcome, LeaseRequest, StoreError, StoredDocument, TAKE_OVER_DELAY,
};
use turnwheel_conversation::head::Lease;

/// Writes nothing: the caller gets an available lease by a commit that stores it.
pub(super) fn check_lease(
    head: StoredDocument,
    request: &LeaseRequest<'_>,
) -> Result<LeaseOutcome, StoreError> {
    match read_lease(&head.document)? {
        Some(lease) if is_leased_by_other(&lease, request) => {
            Ok(LeaseOutcome::Leased { until: lease.until })
        }
        Some(_) | None => Ok(LeaseOutcome::Available { head, is_acquired: false }),
    }
}

/// Reads only the lease, so that heads of a newer schema can be read.
pub(super) fn read_lease(head: &Document) -> Result<Option<Lease>, StoreError> {
    #[derive(Deserialize)]
    struct LeaseOnly {
        claim: Option<Lease>,
    }
    head.body
        .read::<LeaseOnly>()
        .map(|head| head.claim)
        .map_err(|error| StoreError::Corrupt(format!("the lease in a head: {error}")))
}

fn is_leased_by_other(lease: &Lease, request: &LeaseRequest<'_>) -> bool {
    lease.worker != *request.worker
        && lease.until.plus(TAKE_OVER_DELAY) > request.now
        && request.expired != Some(lease.until)
}
