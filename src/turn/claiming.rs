//! Lease of a conversation: renewal, expiry, and the check after a lost commit.

use std::time::Duration;

use futures_util::future::BoxFuture;

use crate::agent::phase::Phase;
use crate::store::{ClaimRequest, StoreError, Stored};
use crate::turn::delivery::TurnError;
use crate::turn::hold::Hold;
use crate::turn::record;

/// Time until a lease expires without renewal.
pub(super) const CLAIM: Duration = Duration::from_mins(1);
/// Interval between renewals.
pub(super) const RENEWAL: Duration = Duration::from_secs(20);
/// Usable part of a lease one [`RENEWAL_INTERVAL`] after it began, before [`STOP_MARGIN`].
const RENEWAL_LEFT: Duration = Duration::from_secs(30);
/// A worker that has not renewed its lease by this long before the end cancels its effects.
pub(super) const MARGIN: Duration = Duration::from_secs(10);
/// Required rest of a lease before an effect starts.
pub(super) const SEND_MARGIN: Duration = Duration::from_secs(20);
/// Wait before retrying a failed renewal.
const TRY_AGAIN: Duration = Duration::from_secs(1);

impl Hold<'_> {
    /// Renews the lease while it is polled. Returns an error once the lease is lost and effects
    /// must stop. Cancel-safe: a pending renewal and the next commit need the same version of the
    /// head, so at most one of them wins.
    pub(super) async fn keep(&mut self) -> TurnError {
        // Counts from the last renewal, so that many short waits in a row still renew in time.
        let mut wait = self.claim_left().saturating_sub(RENEWAL_LEFT);
        loop {
            tokio::time::sleep(wait.min(self.claim_left())).await;
            let left = self.claim_left();
            if left.is_zero() {
                return TurnError::ClaimLost { key: self.key.clone() };
            }
            // An unresponsive store must not keep an effect running.
            match tokio::time::timeout(left, self.renew()).await {
                Ok(Ok(())) => wait = RENEWAL,
                Ok(Err(TurnError::Store {
                    source: source @ StoreError::Unavailable(_), ..
                })) => {
                    tracing::warn!(conversation.id = %self.key.conversation_id, error = %source, "lease renewal failed, retrying");
                    wait = TRY_AGAIN;
                }
                Ok(Err(error)) => return error,
                Err(_elapsed) => return TurnError::ClaimLost { key: self.key.clone() },
            }
        }
    }

    /// Like [`LeasedConversation::renew_until_lost`], for hooks. They run within commits, which
    /// renew, so the unboxed future type would contain itself.
    pub(super) fn keep_boxed(&mut self) -> BoxFuture<'_, TurnError> {
        Box::pin(self.keep())
    }

    /// Ensures that 20 s of the lease remain. Call it just before sending (invariant 6).
    pub(super) async fn check_claim(&mut self) -> Result<(), TurnError> {
        let is_short = self.claim_left() + MARGIN < SEND_MARGIN;
        // Longer than any lease: the wall clock was set back.
        let is_impossible = self.world.clock.now().until(self.until) > CLAIM;
        if is_short || is_impossible { self.renew().await } else { Ok(()) }
    }

    /// Time until the worker has to stop: the earlier of the wall clock's and the monotonic clock's
    /// end.
    pub(super) fn claim_left(&self) -> Duration {
        let wall = self.world.clock.now().until(self.until);
        let monotonic = self.until_monotonic.saturating_sub(self.world.clock.monotonic());
        wall.min(monotonic).saturating_sub(MARGIN)
    }

    async fn renew(&mut self) -> Result<(), TurnError> {
        if !self.is_settled {
            let tried = self.try_out(Vec::new());
            return self.commit("renew", tried, &[]).await;
        }
        if self.renew_settled().await {
            Ok(())
        } else {
            Err(TurnError::ClaimLost { key: self.key.clone() })
        }
    }

    /// Renews the lease that the store keeps outside the head. Returns true if it is still ours.
    pub(super) async fn renew_settled(&mut self) -> bool {
        let (now, monotonic) = (self.world.clock.now(), self.world.clock.monotonic());
        let until = now.plus(CLAIM);
        let request = ClaimRequest { key: &self.key, worker: &self.worker, now, until };
        let is_mine = self.world.store.renew(request).await.is_ok();
        if is_mine {
            self.until = until;
            self.until_monotonic = monotonic + CLAIM;
        }
        is_mine
    }

    /// Loads the head after a lost commit.
    ///
    /// # Errors
    /// The lease is no longer ours: discard the work.
    pub(super) async fn reload(&mut self, stored: Option<Box<Stored>>) -> Result<(), TurnError> {
        let lost = TurnError::ClaimLost { key: self.key.clone() };
        let Some(stored) = stored else { return Err(lost) };
        let head = record::read_head(&stored).map_err(|source| self.error("reload", source))?;
        let is_mine = if self.is_settled {
            self.renew_settled().await
        } else {
            match &head.claim {
                Some(claim) if claim.worker == self.worker => true,
                // This worker has committed nothing yet. An intermediate holder may have applied
                // inbox items read here, so the data read is valid only without one.
                _ => head.epoch == self.head.epoch && head.claim == self.head.claim,
            }
        };
        if !is_mine || head.phase == Phase::Deleted {
            return Err(lost);
        }
        self.head = head;
        self.etag = stored.etag;
        self.load_answer().await
    }
}
