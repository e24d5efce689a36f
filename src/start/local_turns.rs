//! Turns that the process takes which accepted their prompt, while its client waits (`execution: here`).

use std::fs;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use crate::start::function_handlers::{FunctionHandlers, STOP_TIMEOUT};
use turnwheel_commands::waiting_client::TurnRunner;
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
        let functions = Arc::clone(&self.functions);
        // A task of its own: the request may end before the turn.
        services.shutdown.spawn(async move {
            let _slot = slot;
            let time = functions.services.limits.turn_duration * 2;
            let turns = AssertUnwindSafe(functions.handle_nudge(&nudge, Some(&gone)));
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

/// Gives the turns back, or lets them end. For a process with the built-in host, which has ended.
pub(crate) async fn wait_for_end(shutdown: &Shutdown) {
    shutdown.begin(END_TIMES);
    let _ = tokio::time::timeout(STOP_TIMEOUT, shutdown.wait_for_work()).await;
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
