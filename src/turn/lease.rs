//! Lease of a conversation: renewal, expiry, and the check after a lost commit.

use std::time::Duration;

use futures_util::future::BoxFuture;

use crate::agent::phase::Phase;
use crate::store::{LeaseRequest, StoreError, StoredDocument};
use crate::turn::documents;
use crate::turn::error::TurnError;
use crate::turn::leased_conversation::{LEASE_DURATION, LeasedConversation};

/// Interval between renewals.
pub(crate) const RENEWAL_INTERVAL: Duration = Duration::from_secs(20);
/// Usable part of a lease one [`RENEWAL_INTERVAL`] after it began, before [`STOP_MARGIN`].
const USABLE_AT_RENEWAL: Duration = Duration::from_secs(30);
/// A worker that has not renewed its lease by this long before the end cancels its effects.
pub(crate) const STOP_MARGIN: Duration = Duration::from_secs(10);
/// Required rest of a lease before an effect starts.
pub(crate) const SEND_MARGIN: Duration = Duration::from_secs(20);
/// Wait before retrying a failed renewal.
const RETRY_WAIT: Duration = Duration::from_secs(1);

impl LeasedConversation<'_> {
    /// Renews the lease while it is polled. Returns an error once the lease is lost and effects
    /// must stop. Cancel-safe: a pending renewal and the next commit need the same version of the
    /// head, so at most one of them wins.
    pub(crate) async fn renew_until_lost(&mut self) -> TurnError {
        // Counts from the last renewal, so that many short waits in a row still renew in time.
        let mut wait = self.lease_left().saturating_sub(USABLE_AT_RENEWAL);
        loop {
            tokio::time::sleep(wait.min(self.lease_left())).await;
            let left = self.lease_left();
            if left.is_zero() {
                return TurnError::LeaseLost { key: self.key.clone() };
            }
            // An unresponsive store must not keep an effect running.
            match tokio::time::timeout(left, self.renew_lease()).await {
                Ok(Ok(())) => wait = RENEWAL_INTERVAL,
                Ok(Err(TurnError::Store {
                    source: source @ StoreError::Unavailable(_), ..
                })) => {
                    tracing::warn!(conversation.id = %self.key.conversation_id, error = %source, "lease renewal failed, retrying");
                    wait = RETRY_WAIT;
                }
                Ok(Err(error)) => return error,
                Err(_elapsed) => return TurnError::LeaseLost { key: self.key.clone() },
            }
        }
    }

    /// Like [`LeasedConversation::renew_until_lost`], for hooks. They run within commits, which
    /// renew, so the unboxed future type would contain itself.
    pub(crate) fn renew_until_lost_boxed(&mut self) -> BoxFuture<'_, TurnError> {
        Box::pin(self.renew_until_lost())
    }

    /// Ensures that 20 s of the lease remain. Call it just before sending (invariant 6).
    pub(crate) async fn ensure_lease(&mut self) -> Result<(), TurnError> {
        let is_short = self.lease_left() + STOP_MARGIN < SEND_MARGIN;
        // Longer than any lease: the wall clock was set back.
        let is_impossible = self.services.clock.now().until(self.lease_until) > LEASE_DURATION;
        if is_short || is_impossible { self.renew_lease().await } else { Ok(()) }
    }

    /// Time until the worker has to stop: the earlier of the wall clock's and the monotonic clock's
    /// end.
    pub(crate) fn lease_left(&self) -> Duration {
        let wall = self.services.clock.now().until(self.lease_until);
        let monotonic = self.lease_until_monotonic.saturating_sub(self.services.clock.monotonic());
        wall.min(monotonic).saturating_sub(STOP_MARGIN)
    }

    async fn renew_lease(&mut self) -> Result<(), TurnError> {
        if !self.is_outside_head {
            let plan = self.plan(Vec::new());
            return self.commit("renew", plan, &[]).await;
        }
        if self.renew_outside_head().await {
            Ok(())
        } else {
            Err(TurnError::LeaseLost { key: self.key.clone() })
        }
    }

    /// Renews the lease that the store keeps outside the head. Returns true if it is still ours.
    pub(crate) async fn renew_outside_head(&mut self) -> bool {
        let (now, monotonic) = (self.services.clock.now(), self.services.clock.monotonic());
        let until = now.plus(LEASE_DURATION);
        let request = LeaseRequest { key: &self.key, worker: &self.worker, now, until };
        let is_ours = self.services.store.renew_lease(request).await.is_ok();
        if is_ours {
            self.lease_until = until;
            self.lease_until_monotonic = monotonic + LEASE_DURATION;
        }
        is_ours
    }

    /// Loads the head after a lost commit.
    ///
    /// # Errors
    /// The lease is no longer ours: discard the work.
    pub(crate) async fn reload_head(
        &mut self,
        stored: Option<Box<StoredDocument>>,
    ) -> Result<(), TurnError> {
        let lost = TurnError::LeaseLost { key: self.key.clone() };
        let Some(stored) = stored else { return Err(lost) };
        let head = documents::read_head(&stored).map_err(|source| self.error("reload", source))?;
        let is_ours = if self.is_outside_head {
            self.renew_outside_head().await
        } else {
            match &head.lease {
                Some(lease) if lease.worker == self.worker => true,
                // This worker has committed nothing yet. An intermediate holder may have applied
                // inbox items read here, so the data read is valid only without one.
                _ => head.epoch == self.head.epoch && head.lease == self.head.lease,
            }
        };
        if !is_ours || head.phase == Phase::Deleted {
            return Err(lost);
        }
        self.head = head;
        self.etag = stored.etag;
        self.load_response().await
    }
}
