//! Claims that stand in the head itself: whether another worker holds it.

use serde::Deserialize;

use crate::agent::head::Claim;
use crate::store::{ClaimRequest, Claimed, StoreError, Stored, TAKE_OVER_AFTER};

/// Nothing is written: a free head is the caller's once a commit that carries its claim has won.
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

/// Of a head only its claim, so that a head of a newer schema can be looked at.
fn claim_of(head: &Stored) -> Result<Option<Claim>, StoreError> {
    #[derive(Deserialize)]
    struct Claimable {
        claim: Option<Claim>,
    }
    head.document
        .body
        .read::<Claimable>()
        .map(|head| head.claim)
        .map_err(|error| StoreError::Corrupt(format!("the claim of a head: {error}")))
}

fn is_held(claim: &Claim, request: &ClaimRequest<'_>) -> bool {
    claim.worker != *request.worker && claim.until.plus(TAKE_OVER_AFTER) > request.now
}
