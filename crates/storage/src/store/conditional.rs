//! Conditional writes on any store: a batch with a certain outcome, and the cycle of read, change
//! and write that repeats until its batch wins.

use std::time::Duration;

use crate::store::{ConversationStore, ETag, Partition, StoreError, Write};

/// Waits between attempts; each is twice as long as the one before.
pub fn back_off(attempts: usize, first: Duration) -> impl Iterator<Item = Duration> + Send {
    back_off_up_to(first, Duration::MAX).take(attempts.saturating_sub(1))
}

/// Waits without end, of at most `longest`.
pub fn back_off_up_to(first: Duration, longest: Duration) -> impl Iterator<Item = Duration> + Send {
    std::iter::successors(Some(first), move |wait| Some(wait.saturating_mul(2).min(longest)))
}

async fn sleep(wait: Duration) {
    if !wait.is_zero() {
        tokio::time::sleep(wait).await;
    }
}

/// Repeats `attempt` until it wins. An attempt reads, builds its batch and writes it; `None`: another
/// writer came first.
///
/// # Errors
/// [`StoreError::Conflict`] if other writers still won after the last wait.
pub async fn compare_and_set<T, E, A>(
    mut waits: impl Iterator<Item = Duration>,
    mut attempt: impl FnMut() -> A,
) -> Result<T, E>
where
    A: Future<Output = Result<Option<T>, E>>,
    E: From<StoreError>,
{
    loop {
        if let Some(won) = attempt().await? {
            return Ok(won);
        }
        let Some(wait) = waits.next() else { return Err(StoreError::Conflict.into()) };
        sleep(wait).await;
    }
}

/// Writes a batch once. `None`: a condition is not met.
///
/// # Errors
/// The store is unavailable, or refuses the batch.
pub async fn write_once(
    store: &dyn ConversationStore,
    partition: &Partition,
    writes: Vec<Write>,
) -> Result<Option<Vec<ETag>>, StoreError> {
    match store.write(partition, writes).await {
        Ok(etags) => Ok(Some(etags)),
        Err(StoreError::Conflict) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Decides the outcome of a batch whose response does not show it.
pub trait Witness: Sync {
    type Outcome: Send;

    fn won(&self, etags: Vec<ETag>) -> Self::Outcome;

    /// Reads which writer won. `None`: not decided, so the identical batch must be sent again.
    fn find_outcome(
        &self,
        writes: &[Write],
        failure: &StoreError,
    ) -> impl Future<Output = Result<Option<Self::Outcome>, StoreError>> + Send;
}

/// Writes a batch, and repeats it until the outcome is certain. Neither a conflict nor a lost
/// response proves anything: the witness decides.
///
/// # Errors
/// The last failure if the outcome is still unknown after the last wait.
pub async fn write_until_certain<W: Witness>(
    store: &dyn ConversationStore,
    partition: &Partition,
    writes: Vec<Write>,
    witness: &W,
    mut waits: impl Iterator<Item = Duration> + Send,
) -> Result<W::Outcome, StoreError> {
    loop {
        let failure = match store.write(partition, writes.clone()).await {
            Ok(etags) => return Ok(witness.won(etags)),
            Err(failure @ (StoreError::Conflict | StoreError::Unavailable(_))) => failure,
            Err(error) => return Err(error),
        };
        if let Some(outcome) = witness.find_outcome(&writes, &failure).await? {
            return Ok(outcome);
        }
        let Some(wait) = waits.next() else { return Err(failure) };
        tracing::debug!(partition = %partition.parts().join("/"), error = %failure, "batch resent");
        sleep(wait).await;
    }
}
