//! Retries of failed model calls: whether there is another attempt, and after which delay.
//!
//! No worker sleeps: the phase stores the earliest time, and `due` wakes a worker then.

use std::time::Duration;

use crate::entry::Entry;
use crate::event::{AgentEnd, AutoRetryEnd, AutoRetryStart, EventBody, MessageReset};
use crate::head::PromptRun;
use crate::phase::Phase;
use crate::settings::RetrySettings;
use crate::step::next::Next;
use crate::step::turn;
use crate::transition::Transition;
use turnwheel_platform::clock::millis;

/// Final error of the retries of an aborted prompt.
const CANCELLED: &str = "Retry cancelled";

/// Jitter of a throttled call: a share of the delay, and the minimum.
const THROTTLED_JITTER: f64 = 0.25;
const THROTTLED_JITTER_MIN: Duration = Duration::from_millis(250);

/// Kind of a failed model call, which decides what follows. The model port classifies the failure.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum FailureKind {
    /// Another attempt may succeed.
    Transient {
        /// Delay that the service requested; absent: the back-off of the settings.
        retry_after: Option<Duration>,
        /// Share of the jitter to add, from 0 to 1. The driver draws it.
        jitter_share: f64,
        /// True if the service rejects calls because of a rate limit or of its load.
        is_throttled: bool,
    },
    /// The input exceeds the context window: the same input is never sent again.
    ContextOverflow,
    /// The same request would fail again.
    #[default]
    Permanent,
}

/// Delay after the failed attempt of this number (from 1). Returns `None` if there is no other
/// attempt.
///
/// A delay that the service requests replaces the back-off, and `maxDelayMs` bounds both. The
/// jitter is added on top, so that clients which were rejected together do not return together.
/// A throttled call always has some.
pub(crate) fn retry_delay(
    attempt: u32,
    failure_kind: FailureKind,
    retry: &RetrySettings,
) -> Option<Duration> {
    let FailureKind::Transient { retry_after, jitter_share, is_throttled } = failure_kind else {
        return None;
    };
    if !retry.enabled || attempt > retry.max_retries {
        return None;
    }
    let doubled = 1_u64.checked_shl(attempt.saturating_sub(1)).unwrap_or(u64::MAX);
    let back_off = Duration::from_millis(retry.base_delay_ms.saturating_mul(doubled));
    let wait = retry_after.unwrap_or(back_off).min(Duration::from_millis(retry.max_delay_ms));
    let mut jitter = wait.mul_f64(retry.jitter.clamp(0.0, 1.0));
    if is_throttled {
        jitter = jitter.max(wait.mul_f64(THROTTLED_JITTER)).max(THROTTLED_JITTER_MIN);
    }
    let jitter = jitter.as_secs_f64() * jitter_share.clamp(0.0, 1.0);
    Some(wait.saturating_add(Duration::try_from_secs_f64(jitter).unwrap_or_default()))
}

/// Number of the pending attempt; `None` if no model call is pending.
fn pending_attempt(transition: &Transition) -> Option<u32> {
    match transition.head.phase {
        Phase::Model { attempt, .. } => Some(attempt),
        Phase::Idle | Phase::Calls { .. } | Phase::Summary { .. } | Phase::Deleted => None,
    }
}

/// Delay of the next attempt after this failure; `None` if there is none.
pub(super) fn next_retry_delay(
    transition: &Transition,
    failure_kind: FailureKind,
) -> Option<Duration> {
    transition.head.prompt.as_ref()?;
    retry_delay(pending_attempt(transition)?, failure_kind, &transition.policy.retry)
}

/// Schedules the next attempt after `wait`. The failed response stays stored, but not in the model
/// input.
pub(super) fn schedule_retry(transition: &mut Transition, failed: &Entry, wait: Duration) -> Next {
    let Some(attempt) = pending_attempt(transition) else { return Next::Wait };
    end_failed_run(transition, failed);
    transition.emit(EventBody::AutoRetryStart(AutoRetryStart {
        attempt,
        max_attempts: transition.policy.retry.max_retries,
        delay_ms: millis(wait),
        message: failed.base.seq,
    }));
    let not_before = Some(transition.now.plus(wait));
    transition.head.phase = Phase::Model { attempt: attempt + 1, not_before };
    Next::Wait
}

/// Ends the agent run with the failed response, which becomes void. The next attempt starts a new
/// run.
pub(super) fn end_failed_run(transition: &mut Transition, failed: &Entry) {
    turn::end_turn(transition, failed.base.seq, Vec::new());
    let from_seq =
        transition.head.prompt.as_ref().map_or(failed.base.seq, PromptRun::run_start_seq);
    transition.emit(EventBody::AgentEnd(AgentEnd {
        from_seq,
        to_seq: failed.base.seq,
        will_retry: true,
    }));
    transition
        .emit(EventBody::MessageReset(MessageReset { message_id: failed.base.entry_id.clone() }));
    if let Some(run) = &mut transition.head.prompt {
        run.run_from_seq = Some(failed.base.seq + 1);
        run.is_between_attempts = true;
    }
}

/// Resets the attempt count after a complete response.
pub(super) fn finish_with_success(transition: &mut Transition) {
    finish_retries(transition, true, None);
}

/// Ends the retries without success: the last attempt failed, or the prompt was aborted.
pub(super) fn finish_with_failure(transition: &mut Transition, error: Option<&str>) {
    finish_retries(transition, false, Some(error.unwrap_or(CANCELLED).to_owned()));
}

/// Emits the end of the retries, if there was one.
fn finish_retries(transition: &mut Transition, success: bool, final_error: Option<String>) {
    let Some(attempt) = pending_attempt(transition).filter(|attempt| *attempt > 1) else { return };
    transition.emit(EventBody::AutoRetryEnd(AutoRetryEnd {
        success,
        attempt: attempt - 1,
        final_error,
    }));
    transition.head.phase = Phase::MODEL_CALL;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn transient(after_ms: Option<u64>, jitter_share: f64) -> FailureKind {
        FailureKind::Transient {
            retry_after: after_ms.map(Duration::from_millis),
            jitter_share,
            is_throttled: false,
        }
    }

    fn throttled(after_ms: u64, jitter_share: f64) -> FailureKind {
        let retry_after = Some(Duration::from_millis(after_ms));
        FailureKind::Transient { retry_after, jitter_share, is_throttled: true }
    }

    fn delays_ms(failure_kind: FailureKind, retry: &RetrySettings) -> Vec<Option<u64>> {
        (1..=5).map(|attempt| retry_delay(attempt, failure_kind, retry).map(millis)).collect()
    }

    #[test]
    fn retry_delay_doubles_until_attempts_are_exhausted() {
        let delays = delays_ms(transient(None, 0.9), &RetrySettings::default());
        assert_eq!(delays, [Some(2_000), Some(4_000), Some(8_000), None, None]);
        let unlimited = RetrySettings { max_retries: u32::MAX, ..RetrySettings::default() };
        assert_eq!(delays_ms(transient(None, 0.0), &unlimited)[4], Some(32_000));
        let latest = retry_delay(u32::MAX, transient(None, 0.0), &unlimited);
        assert_eq!(latest, Some(Duration::from_mins(1)), "the maximum delay bounds the back-off");
    }

    #[test]
    fn requested_retry_delay_is_capped_by_maximum() {
        let retry = RetrySettings::default();
        assert_eq!(delays_ms(transient(Some(500), 0.0), &retry)[..2], [Some(500), Some(500)]);
        assert_eq!(delays_ms(transient(Some(86_400_000), 0.0), &retry)[0], Some(60_000));
    }

    #[test]
    fn retry_jitter_adds_its_share_of_delay() {
        let retry = RetrySettings { jitter: 0.5, ..RetrySettings::default() };
        assert_eq!(delays_ms(transient(None, 0.5), &retry)[0], Some(2_500));
        assert_eq!(delays_ms(transient(None, f64::NAN), &retry)[0], Some(2_000));
        assert_eq!(delays_ms(transient(None, 7.0), &retry)[0], Some(3_000));
    }

    #[test]
    fn throttled_call_waits_up_to_quarter_longer() {
        let retry = RetrySettings::default();
        let first = |kind| delays_ms(kind, &retry)[0];
        assert_eq!(first(throttled(4_000, 0.0)), Some(4_000), "never earlier");
        assert_eq!(first(throttled(4_000, 0.5)), Some(4_500));
        assert_eq!(first(throttled(100, 1.0)), Some(350), "at least a quarter of a second");
        assert_eq!(first(throttled(86_400_000, 1.0)), Some(75_000));
        let more = RetrySettings { jitter: 0.5, ..RetrySettings::default() };
        assert_eq!(delays_ms(throttled(4_000, 1.0), &more)[0], Some(6_000));
    }

    #[test]
    fn permanent_failure_has_no_retry() {
        let never = [
            RetrySettings { enabled: false, ..RetrySettings::default() },
            RetrySettings { max_retries: 0, ..RetrySettings::default() },
        ];
        for retry in never {
            assert_eq!(retry_delay(1, transient(Some(1), 0.0), &retry), None);
        }
        for failure_kind in [FailureKind::ContextOverflow, FailureKind::Permanent] {
            assert_eq!(retry_delay(1, failure_kind, &RetrySettings::default()), None);
        }
    }
}
