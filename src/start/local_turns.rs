//! Turns that a process takes because a client waits for them here (`execution: here`).

use std::fs;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use tokio::sync::Semaphore;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::start::function_handlers::{DEV_STOP_TIMEOUT, FunctionHandlers, STOP_TIMEOUT};
use turnwheel_commands::waiting_client::TurnRunner;
use turnwheel_devhost::{HostError, RunningHost};
use turnwheel_platform::shutdown::{Shutdown, StopTimes};
use turnwheel_record::nudge::Nudge;
use turnwheel_record::nudge_sender::enqueue_nudge;
use turnwheel_storage::queue;

/// Turns of one process at the same time. Messages bring the others to workers.
const TURNS_MAX: usize = 16;
/// Resident memory from which a process takes no turn itself. The smallest instance has 512 MB, which
/// the Functions host shares.
const RESIDENT_KB_MAX: u64 = 300 * 1024;

/// Time of turns that still run when the built-in host has ended.
const END_TIMES: StopTimes =
    StopTimes { repeatable: Duration::from_secs(2), writes: Duration::from_secs(9) };

#[derive(Debug)]
pub(crate) struct LocalTurns {
    functions: Arc<FunctionHandlers>,
    slots: Arc<Semaphore>,
}

impl LocalTurns {
    pub(crate) fn new(functions: Arc<FunctionHandlers>) -> Self {
        Self { functions, slots: Arc::new(Semaphore::new(TURNS_MAX)) }
    }
}

impl TurnRunner for LocalTurns {
    fn start(&self, nudge: Nudge, gone: CancellationToken) -> bool {
        let services = &self.functions.services;
        let id = &nudge.key.conversation_id;
        if services.shutdown.is_begun() {
            return false;
        }
        if resident_kb().is_some_and(|kb| kb > RESIDENT_KB_MAX) {
            tracing::debug!(conversation.id = %id, "turn not taken here: the process uses too much memory");
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
/// clients' turns have the rest of the grace time.
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

/// Resident memory of this process. `None`: unknown on this system.
fn resident_kb() -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    line.trim().strip_suffix("kB")?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    #[cfg(target_os = "linux")]
    #[test]
    fn resident_memory_is_read() {
        assert!(super::resident_kb().is_some_and(|kb| kb > 1_000));
    }
}
