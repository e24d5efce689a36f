//! Retries of store requests while the store is unavailable: the first request of a delivery, and the
//! write of a known tool result.
//!
//! The host counts failed deliveries, and a short outage must not use them up.

use std::error::Error;
use std::time::Duration;

use tokio::time::Instant;

use crate::store::StoreError;
use crate::store::conditional::back_off_up_to;
use turnwheel_platform::error_chain::error_chain;
use turnwheel_platform::shutdown::Shutdown;

/// Time from the first attempt to the last one. Each delivery has it: the count in the metadata of a
/// delivery can be forged.
pub const REPETITION_TIME: Duration = Duration::from_secs(30);
const FIRST_WAIT: Duration = Duration::from_millis(200);
const WAIT_MAX: Duration = Duration::from_secs(5);

/// An error of a delivery.
pub trait DeliveryError: Error {
    /// True if the store is unavailable: the same request may succeed later.
    fn is_store_away(&self) -> bool;
}

impl DeliveryError for StoreError {
    fn is_store_away(&self) -> bool {
        match self {
            Self::Unavailable(_) => true,
            Self::Conflict | Self::TooLarge(_) | Self::Invalid(_) | Self::Corrupt(_) => false,
        }
    }
}

/// Repeats the first request of a delivery while the store is away, until the process ends.
///
/// # Errors
/// The error of the last attempt: the message must be delivered again later.
pub async fn repeat_while_store_is_away<T, E, A>(
    shutdown: &Shutdown,
    request: impl FnMut() -> A,
) -> Result<T, E>
where
    A: Future<Output = Result<T, E>>,
    E: DeliveryError,
{
    let report = |error: &E| {
        tracing::warn!(error = %error_chain(error), "store unavailable; the delivery repeats its first request for {} s", REPETITION_TIME.as_secs());
    };
    retry_while_unavailable(shutdown, request, report).await
}

/// Repeats a request while the store is unavailable, until the process ends. `report` gets the first error.
///
/// # Errors
/// The error of the last attempt.
pub async fn retry_while_unavailable<T, E, A>(
    shutdown: &Shutdown,
    mut request: impl FnMut() -> A,
    report: impl FnOnce(&E),
) -> Result<T, E>
where
    A: Future<Output = Result<T, E>>,
    E: DeliveryError,
{
    let ends = Instant::now() + REPETITION_TIME;
    let mut waits = back_off_up_to(FIRST_WAIT, WAIT_MAX);
    let mut report = Some(report);
    loop {
        let error = match request().await {
            Err(error) if error.is_store_away() => error,
            outcome => return outcome,
        };
        let left = ends.saturating_duration_since(Instant::now());
        let wait = waits.next().unwrap_or(WAIT_MAX).min(left);
        if wait.is_zero() {
            return Err(error);
        }
        if let Some(report) = report.take() {
            report(&error);
        }
        tokio::select! {
            () = tokio::time::sleep(wait) => {}
            () = shutdown.clone().wait_until_begun() => return Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use turnwheel_platform::shutdown::StopTimes;

    fn unavailable() -> StoreError {
        StoreError::Unavailable("connection refused".into())
    }

    /// Repeats a request that fails until `available_after`. Returns its outcome, the number of
    /// attempts, and the time that passed.
    async fn repeat(
        available_after: Duration,
        error: fn() -> StoreError,
    ) -> (Result<(), StoreError>, u32, Duration) {
        let (start, mut attempts) = (Instant::now(), 0);
        let shutdown = Shutdown::default();
        let outcome = repeat_while_store_is_away(&shutdown, || {
            attempts += 1;
            let is_away = Instant::now() < start + available_after;
            async move { if is_away { Err(error()) } else { Ok(()) } }
        });
        let outcome = outcome.await;
        (outcome, attempts, start.elapsed())
    }

    #[tokio::test(start_paused = true)]
    async fn request_is_repeated_for_thirty_seconds() {
        let (outcome, attempts, time) = repeat(Duration::from_secs(27), unavailable).await;
        assert!(outcome.is_ok() && attempts < 12, "{attempts}");
        assert!(time <= REPETITION_TIME);
        let (outcome, _, time) = repeat(Duration::from_hours(1), unavailable).await;
        assert!(matches!(outcome, Err(StoreError::Unavailable(_))));
        assert_eq!(time, REPETITION_TIME);
    }

    #[tokio::test(start_paused = true)]
    async fn conflicts_and_permanent_errors_are_not_repeated() {
        let errors: [fn() -> StoreError; 4] = [
            || StoreError::Conflict,
            || StoreError::TooLarge(String::new()),
            || StoreError::Invalid(String::new()),
            || StoreError::Corrupt(String::new()),
        ];
        for error in errors {
            let (outcome, attempts, time) = repeat(Duration::from_hours(1), error).await;
            assert_eq!((outcome.is_err(), attempts, time), (true, 1, Duration::ZERO));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn end_of_process_ends_repetition() {
        let shutdown = Shutdown::default();
        let start = Instant::now();
        let times = StopTimes { repeatable: Duration::ZERO, writes: Duration::ZERO };
        let ending = async {
            tokio::time::sleep(Duration::from_secs(2)).await;
            shutdown.begin(times);
        };
        let request = || async { Err::<(), _>(unavailable()) };
        let (outcome, ()) = tokio::join!(repeat_while_store_is_away(&shutdown, request), ending);
        assert!(outcome.is_err());
        assert_eq!(start.elapsed(), Duration::from_secs(2));
    }

    /// The host delivers a message five times, 15 s after each failure.
    #[test]
    fn outage_of_three_minutes_needs_no_operator() {
        let host: serde_json::Value =
            serde_json::from_str(include_str!("../../../../host.json")).unwrap();
        let queues = &host["extensions"]["queues"];
        assert_eq!(queues["maxDequeueCount"], 5);
        assert_eq!(queues["visibilityTimeout"], "00:00:15");
        let survived = 5 * REPETITION_TIME + 4 * Duration::from_secs(15);
        assert_eq!(survived, Duration::from_secs(210));
        assert!(survived > Duration::from_mins(3));
    }
}
