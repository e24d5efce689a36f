//! The claim while it is held: renewed in time, given up in time, and looked for after a lost commit.

use std::time::Duration;

use futures_util::future::BoxFuture;

use crate::agent::phase::Phase;
use crate::store::{ClaimRequest, StoreError, Stored};
use crate::turn::delivery::TurnError;
use crate::turn::hold::Hold;
use crate::turn::record;

/// How long a claim lasts without renewal.
pub(super) const CLAIM: Duration = Duration::from_mins(1);
/// How often a claim is renewed.
pub(super) const RENEWAL: Duration = Duration::from_secs(20);
/// Of the time in which a claim may be used: what is left of it one [`RENEWAL`] after it began.
const RENEWAL_LEFT: Duration = Duration::from_secs(30);
/// A holder that has not renewed by this long before the end cancels what it does.
pub(super) const MARGIN: Duration = Duration::from_secs(10);
/// What must remain of a claim before an effect begins.
pub(super) const SEND_MARGIN: Duration = Duration::from_secs(20);
/// Between tries when the store did not take a renewal.
const TRY_AGAIN: Duration = Duration::from_secs(1);

impl Hold<'_> {
    /// Renews the claim for as long as it is awaited; answers when it can be held no longer and what runs has to stop.
    /// May be dropped at any time: a renewal under way and the next commit need the same version of the head, so at most
    /// one of them wins.
    pub(super) async fn keep(&mut self) -> TurnError {
        // Counted from the last renewal, so that many short waits in a row still renew in time.
        let mut wait = self.claim_left().saturating_sub(RENEWAL_LEFT);
        loop {
            tokio::time::sleep(wait.min(self.claim_left())).await;
            let left = self.claim_left();
            if left.is_zero() {
                return TurnError::ClaimLost { key: self.key.clone() };
            }
            // Also a store that never answers must not keep an effect alive.
            match tokio::time::timeout(left, self.renew()).await {
                Ok(Ok(())) => wait = RENEWAL,
                Ok(Err(TurnError::Store {
                    source: source @ StoreError::Unavailable(_), ..
                })) => {
                    tracing::warn!(conversation.id = %self.key.conversation_id, error = %source, "the claim on {} was not renewed, trying again", self.key);
                    wait = TRY_AGAIN;
                }
                Ok(Err(error)) => return error,
                Err(_elapsed) => return TurnError::ClaimLost { key: self.key.clone() },
            }
        }
    }

    /// The same for hooks, which run within commits, which renew: the type of that future would contain itself.
    pub(super) fn keep_boxed(&mut self) -> BoxFuture<'_, TurnError> {
        Box::pin(self.keep())
    }

    /// Just before sending: 20 s of the claim must remain (invariant 6).
    pub(super) async fn check_claim(&mut self) -> Result<(), TurnError> {
        let is_short = self.claim_left() + MARGIN < SEND_MARGIN;
        // Longer than a claim can be: the wall clock was set back.
        let is_impossible = self.world.clock.now().until(self.until) > CLAIM;
        if is_short || is_impossible { self.renew().await } else { Ok(()) }
    }

    /// Until the holder has to stop: the earlier of what both clocks say.
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

    /// The claim that the store keeps outside the head.
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

    /// After a commit that was lost against this head: is the claim still mine?
    pub(super) async fn reload(&mut self, stored: Option<Box<Stored>>) -> Result<(), TurnError> {
        let lost = TurnError::ClaimLost { key: self.key.clone() };
        let Some(stored) = stored else { return Err(lost) };
        let head = record::read_head(&stored).map_err(|source| self.error("reload", source))?;
        let is_mine = if self.is_settled {
            self.renew_settled().await
        } else {
            match &head.claim {
                Some(claim) if claim.worker == self.worker => true,
                // Nothing of mine is committed yet. Whoever held it in between may have taken in what I looked at: only
                // when nobody did is what I know still true.
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
