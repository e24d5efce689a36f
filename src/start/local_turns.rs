//! Turns that a process takes because a client waits for them here (`execution: here`).

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::FutureExt as _;
use tokio::sync::Semaphore;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::start::function_handlers::{DEV_STOP_TIMEOUT, FunctionHandlers, STOP_TIMEOUT};
use crate::start::instance_memory::{InstanceMemory, resident_kb};
use turnwheel_commands::waiting_client::TurnRunner;
use turnwheel_devhost::{HostError, RunningHost};
use turnwheel_platform::shutdown::{Shutdown, StopTimes};
use turnwheel_record::nudge::Nudge;
use turnwheel_record::nudge_sender::enqueue_nudge;
use turnwheel_storage::queue;

/// Turns of one process at the same time. Messages bring the others to workers.
const TURNS_MAX: usize = 16;

/// Time of turns that still run when the built-in host has ended.
const END_TIMES: StopTimes =
    StopTimes { repeatable: Duration::from_secs(2), writes: Duration::from_secs(9) };

#[derive(Debug)]
pub(crate) struct LocalTurns {
    functions: Arc<FunctionHandlers>,
    slots: Arc<Semaphore>,
    memory: InstanceMemory,
    is_short_of_memory: AtomicBool,
}

impl LocalTurns {
    pub(crate) fn new(functions: Arc<FunctionHandlers>) -> Self {
        Self {
            functions,
            slots: Arc::new(Semaphore::new(TURNS_MAX)),
            memory: InstanceMemory::read(),
            is_short_of_memory: AtomicBool::new(false),
        }
    }

    fn has_memory(&self) -> bool {
        let limit_kb = self.memory.resident_kb_max();
        resident_kb().is_none_or(|kb| is_within_limit(kb, limit_kb, &self.is_short_of_memory))
    }
}

/// True if a turn may start. A refusal sets `is_short` and is logged once until a call finds less than
/// nine tenths of the limit in use.
fn is_within_limit(resident_kb: u64, limit_kb: u64, is_short: &AtomicBool) -> bool {
    if resident_kb > limit_kb {
        if !is_short.swap(true, Ordering::Relaxed) {
            tracing::info!(
                resident_kb,
                limit_kb,
                "memory limit of `execution: here` reached; workers take the turns"
            );
        }
        return false;
    }
    if resident_kb < limit_kb / 10 * 9 {
        is_short.store(false, Ordering::Relaxed);
    }
    true
}

impl TurnRunner for LocalTurns {
    fn start(&self, nudge: Nudge, gone: CancellationToken) -> bool {
        let services = &self.functions.services;
        let id = &nudge.key.conversation_id;
        if services.shutdown.is_begun() || !self.has_memory() {
            return false;
        }
        let Ok(slot) = Arc::clone(&self.slots).try_acquire_owned() else {
            tracing::debug!(conversation.id = %id, "turn not taken here: 16 such turns run already");
            return false;
        };
        let Some(owner_turn) = self.functions.owner_turns.start(&nudge.key) else {
            tracing::debug!(conversation.id = %id, "turn not taken here: the owner has as many running turns as it may have");
            return false;
        };
        let functions = Arc::clone(&self.functions);
        // A task of its own: the request may end before the turn.
        services.shutdown.spawn(async move {
            let (_slot, _owner_turn) = (slot, owner_turn);
            let time = functions.services.limits.turn_duration * 2;
            let turns = AssertUnwindSafe(functions.take_turns(&nudge, Some(&gone)));
            let failure = match tokio::time::timeout(time, turns.catch_unwind()).await {
                Ok(Ok(Ok(()))) => return,
                Ok(Ok(Err(failure))) => failure.0,
                Ok(Err(_panic)) => "it panicked".to_owned(),
                Err(_elapsed) => format!("it did not end within {} s", time.as_secs()),
            };
            tracing::warn!(conversation.id = %nudge.key.conversation_id, error = %failure, "turn failed; a worker is woken for it");
            enqueue_nudge(&functions.services, queue::TURNS, &nudge, Duration::ZERO).await;
        });
        true
    }
}

/// Runs the built-in host until it is stopped. The host ends the event streams at once: the effects of their
/// clients' turns, and of requests whose client is gone, have the rest of the grace time.
pub(crate) async fn run_host(
    host: RunningHost,
    stop: &CancellationToken,
    shutdown: &Shutdown,
) -> Result<(), HostError> {
    let stop = stop.child_token();
    let run = async {
        let outcome = host.run(stop.clone()).await;
        stop.cancel();
        outcome
    };
    let stopping = async {
        stop.cancelled().await;
        Instant::now()
    };
    let (outcome, stopped_at) = tokio::join!(run, stopping);
    let rest = DEV_STOP_TIMEOUT.saturating_sub(stopped_at.elapsed());
    let _ = tokio::time::timeout(rest, shutdown.wait_for_work()).await;
    shutdown.begin(END_TIMES);
    let _ = tokio::time::timeout(STOP_TIMEOUT, shutdown.wait_for_work()).await;
    outcome
}

#[cfg(test)]
mod tests {
    use super::*;
    use turnwheel_test_support::captured_log::CapturedLog;

    #[test]
    fn memory_limit_is_logged_once_until_memory_is_free() {
        let log = CapturedLog::start();
        let is_short = AtomicBool::new(false);
        let check = |resident_kb: u64, is_allowed: bool, line_count: usize| {
            assert_eq!(is_within_limit(resident_kb, 1_000, &is_short), is_allowed, "{resident_kb}");
            let text = log.text();
            assert_eq!(text.lines().count(), line_count, "{resident_kb}: {text}");
        };
        check(1_000, true, 0);
        check(1_001, false, 1);
        check(1_002, false, 1);
        // Between nine tenths and the limit.
        check(900, true, 1);
        check(1_001, false, 1);
        check(899, true, 1);
        check(1_001, false, 2);
        let text = log.text();
        let message = "memory limit of `execution: here` reached; workers take the turns resident_kb=1001 limit_kb=1000";
        let is_expected = |line: &str| line.contains("INFO") && line.contains(message);
        assert!(text.lines().all(is_expected), "{text}");
    }
}
