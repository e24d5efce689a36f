//! The fault `late`: nudges are withheld, and arrive when everything else is done.

use std::time::Duration;

use crate::client::Task;
use crate::fault_run::FaultRun;
use turnwheel_record::nudge::Nudge;
use turnwheel_storage::queue::{self, Queue as _};

/// The longest delay of a nudge.
const NUDGE_DELAY_MAX: Duration = Duration::from_secs(1);

impl FaultRun<'_> {
    /// Removes all nudges from the queues, and keeps the one of the current delivery.
    pub(super) async fn withhold_nudges(&mut self, task: &Task) {
        match task {
            Task::Turn(nudge) => self.late_nudges.push((queue::TURNS, nudge_text(nudge))),
            Task::Notify(nudge) => self.late_nudges.push((queue::NOTIFY, nudge_text(nudge))),
            Task::Prompt(_) | Task::Fork { .. } | Task::Move { .. } | Task::Decision { .. } => {}
        }
        for name in [queue::TURNS, queue::NOTIFY] {
            self.environment.clock.skip(NUDGE_DELAY_MAX);
            for message in self.environment.receive(name, 32).await {
                self.environment.delete(name, &message).await;
                self.late_nudges.push((name, message.text));
            }
        }
        self.log.push(format!("{} nudges are delayed", self.late_nudges.len()));
    }

    /// Sends the delayed nudges after everything else is done: they must find no pending work.
    pub(super) async fn send_late_nudges(&mut self) -> Result<(), String> {
        if self.late_nudges.is_empty() {
            return Ok(());
        }
        let before = self.environment.store.commits();
        for (name, text) in std::mem::take(&mut self.late_nudges) {
            let _ = self.environment.queue.send(name, text, Duration::ZERO).await;
        }
        while self.deliver_next().await {}
        if self.environment.store.commits() == before {
            Ok(())
        } else {
            Err("invariant 2 (queues are disposable): a late nudge changed the state".to_owned())
        }
    }
}

fn nudge_text(nudge: &Nudge) -> String {
    serde_json::to_string(nudge).unwrap_or_default()
}
