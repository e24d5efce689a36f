//! Retries of failed model calls: whether there is another attempt, and after which delay.
//!
//! No worker sleeps: the phase stores the earliest time, and `due` wakes a worker then.

use std::time::Duration;

use crate::agent::draft::Draft;
use crate::agent::entry::Entry;
use crate::agent::event::{AgentEnd, AutoRetryEnd, AutoRetryStart, EventBody, MessageReset};
use crate::agent::head::Run;
use crate::agent::phase::Phase;
use crate::agent::settings::Retry;
use crate::agent::step::ending;
use crate::clock::millis;

/// Final error of the retries of an aborted prompt.
const CANCELLED: &str = "Retry cancelled";

/// Kind of a failed model call, which decides what follows. The model port classifies the failure.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Setback {
    /// Another attempt may succeed.
    Passing {
        /// Delay that the service requested; absent: the back-off of the settings.
        after: Option<Duration>,
        /// Share of the jitter to add, from 0 to 1. The driver draws it.
        chance: f64,
    },
    /// The input exceeds the context window: the same input is never sent again.
    Overflow,
    /// The same request would fail again.
    #[default]
    Final,
}

/// Delay after the failed attempt of this number (from 1). Returns `None` if there is no other
/// attempt.
///
/// A delay that the service requests replaces the back-off, and `maxDelayMs` bounds both. The
/// jitter is added on top, so that clients which were rejected together do not return together.
pub fn wait_after(attempt: u32, setback: Setback, retry: &Retry) -> Option<Duration> {
    let Setback::Passing { after, chance } = setback else { return None };
    if !retry.enabled || attempt > retry.max_retries {
        return None;
    }
    let doubled = 1_u64.checked_shl(attempt.saturating_sub(1)).unwrap_or(u64::MAX);
    let back_off = Duration::from_millis(retry.base_delay_ms.saturating_mul(doubled));
    let wait = after.unwrap_or(back_off).min(Duration::from_millis(retry.max_delay_ms));
    let jitter = wait.as_secs_f64() * retry.jitter * chance.clamp(0.0, 1.0);
    Some(wait.saturating_add(Duration::try_from_secs_f64(jitter).unwrap_or_default()))
}

/// Number of the pending attempt; `None` if no model call is pending.
fn attempt(draft: &Draft) -> Option<u32> {
    match draft.head.phase {
        Phase::Model { attempt, .. } => Some(attempt),
        Phase::Idle | Phase::Calls { .. } | Phase::Summary { .. } | Phase::Deleted => None,
    }
}

/// Delay of the next attempt after this failure; `None` if there is none.
pub(super) fn next_wait(draft: &Draft, setback: Setback) -> Option<Duration> {
    draft.head.prompt.as_ref()?;
    wait_after(attempt(draft)?, setback, &draft.rules.retry)
}

/// Schedules the next attempt after `wait`. The failed response stays stored, but not in the model
/// input.
pub(super) fn begin(draft: &mut Draft, failed: &Entry, wait: Duration) {
    let Some(attempt) = attempt(draft) else { return };
    end_run(draft, failed);
    draft.tell(EventBody::AutoRetryStart(AutoRetryStart {
        attempt,
        max_attempts: draft.rules.retry.max_retries,
        delay_ms: millis(wait),
        message: failed.base.seq,
    }));
    let not_before = Some(draft.now.plus(wait));
    draft.head.phase = Phase::Model { attempt: attempt + 1, not_before };
}

/// Ends the agent run with the failed response, which becomes void. The next attempt starts a new
/// run.
pub(super) fn end_run(draft: &mut Draft, failed: &Entry) {
    ending::end_turn(draft, failed.base.seq, Vec::new());
    let from_seq = draft.head.prompt.as_ref().map_or(failed.base.seq, Run::agent_from);
    draft.tell(EventBody::AgentEnd(AgentEnd {
        from_seq,
        to_seq: failed.base.seq,
        will_retry: true,
    }));
    draft.tell(EventBody::MessageReset(MessageReset { message_id: failed.base.entry_id.clone() }));
    if let Some(run) = &mut draft.head.prompt {
        run.run_from_seq = Some(failed.base.seq + 1);
        run.is_between_tries = true;
    }
}

/// Resets the attempt count after a complete response.
pub(super) fn succeed(draft: &mut Draft) {
    end(draft, true, None);
}

/// Ends the retries without success: the last attempt failed, or the prompt was aborted.
pub(super) fn give_up(draft: &mut Draft, error: Option<&str>) {
    end(draft, false, Some(error.unwrap_or(CANCELLED).to_owned()));
}

/// Emits the end of the retries, if there was one.
fn end(draft: &mut Draft, success: bool, final_error: Option<String>) {
    let Some(attempt) = attempt(draft).filter(|attempt| *attempt > 1) else { return };
    draft.tell(EventBody::AutoRetryEnd(AutoRetryEnd {
        success,
        attempt: attempt - 1,
        final_error,
    }));
    draft.head.phase = Phase::Model { attempt: 1, not_before: None };
}

#[cfg(test)]
mod tests {
    use super::*;

    fn passing(after_ms: Option<u64>, chance: f64) -> Setback {
        Setback::Passing { after: after_ms.map(Duration::from_millis), chance }
    }

    fn waits(setback: Setback, retry: &Retry) -> Vec<Option<u64>> {
        (1..=5).map(|attempt| wait_after(attempt, setback, retry).map(millis)).collect()
    }

    #[test]
    fn the_wait_doubles_until_the_tries_are_used_up() {
        let waited = waits(passing(None, 0.9), &Retry::default());
        assert_eq!(waited, [Some(2_000), Some(4_000), Some(8_000), None, None]);
        let patient = Retry { max_retries: u32::MAX, ..Retry::default() };
        assert_eq!(waits(passing(None, 0.0), &patient)[4], Some(32_000));
        let latest = wait_after(u32::MAX, passing(None, 0.0), &patient);
        assert_eq!(latest, Some(Duration::from_mins(1)), "the maximum delay bounds the back-off");
    }

    #[test]
    fn what_the_service_asks_for_wins_within_the_cap() {
        let retry = Retry::default();
        assert_eq!(waits(passing(Some(500), 0.0), &retry)[..2], [Some(500), Some(500)]);
        assert_eq!(waits(passing(Some(86_400_000), 0.0), &retry)[0], Some(60_000));
    }

    #[test]
    fn chance_adds_its_share_where_the_settings_let_it() {
        let retry = Retry { jitter: 0.5, ..Retry::default() };
        assert_eq!(waits(passing(None, 0.5), &retry)[0], Some(2_500));
        assert_eq!(waits(passing(None, f64::NAN), &retry)[0], Some(2_000));
        assert_eq!(waits(passing(None, 7.0), &retry)[0], Some(3_000));
    }

    #[test]
    fn nothing_else_is_tried_again() {
        let never = [
            Retry { enabled: false, ..Retry::default() },
            Retry { max_retries: 0, ..Retry::default() },
        ];
        for retry in never {
            assert_eq!(wait_after(1, passing(Some(1), 0.0), &retry), None);
        }
        for setback in [Setback::Overflow, Setback::Final] {
            assert_eq!(wait_after(1, setback, &Retry::default()), None);
        }
    }
}
