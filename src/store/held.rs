//! Leases stored in the head: checks if another worker has the lease.

use serde::Deserialize;

use crate::agent::head::Claim;
use crate::store::{ClaimRequest, Claimed, StoreError, Stored, TAKE_OVER_AFTER};

/// Writes nothing: the caller gets an available lease by a commit that stores it.
pub(super) fn look(
    head: Stored,
    inbox: Vec<Stored>,
    request: &ClaimRequest<'_>,
) -> Result<Claimed, StoreError> {
    match claim_of(&head)? {
        Some(claim) if is_held(&claim, request) => Ok(Claimed::Held { until: claim.until }),
        Some(_) | None => Ok(Claimed::Free { head, inbox, is_settled: false }),
    }
}

/// Reads only the lease, so that heads of a newer schema can be read.
fn claim_of(head: &Stored) -> Result<Option<Claim>, StoreError> {
    #[derive(Deserialize)]
    struct Claimable {
        claim: Option<Claim>,
    }
    head.document
        .body
        .read::<Claimable>()
        .map(|head| head.claim)
        .map_err(|error| StoreError::Corrupt(format!("the lease in a head: {error}")))
}

fn is_held(claim: &Claim, request: &ClaimRequest<'_>) -> bool {
    claim.worker != *request.worker && claim.until.plus(TAKE_OVER_AFTER) > request.now
}
