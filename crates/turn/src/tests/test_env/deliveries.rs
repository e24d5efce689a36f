//! Deliveries, each by its own worker, which may crash at each fail point; and the other faults
//! injected meanwhile.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::fail_points::CrashFailPoints;
use super::isolated_process::SimulatedChild;
use super::run_log::POSITION;
use super::{DeterministicStore, TestEnv, WorkerPosition};
use crate::{crash_count, delivery};
use turnwheel_platform::fail_points::NoFailPoints;
use turnwheel_record::isolator::Isolation;
use turnwheel_record::nudge::Nudge;
use turnwheel_record::services::Services;
use turnwheel_storage::queue::{self, Queue as _};

impl TestEnv {
    /// True if the fault `what` is to be injected now.
    pub(super) fn should_inject(&mut self, what: &'static str, at: &str, percent: u8) -> bool {
        match &self.fault_plan {
            Some(fault_plan) => fault_plan.should_inject(what, at, f64::from(percent) / 100.0),
            // Without a chance, no random number is drawn.
            None => percent > 0 && self.rng.u8(0..100) < percent,
        }
    }

    /// Size of the fault, from 0 to `bound - 1`.
    pub(super) fn fault_size(&mut self, what: &'static str, at: &str, bound: u64) -> u64 {
        match &self.fault_plan {
            Some(fault_plan) => fault_plan.fault_size(what, at, bound),
            None => self.rng.u64(0..bound.max(1)),
        }
    }

    /// Offset of the next worker's wall clock from the slowest; zero for every second worker.
    pub(super) fn next_clock_offset(&mut self) -> Duration {
        const SKEWED: &str = "a clock was ahead";
        let max_millis = u64::try_from(self.clock_offset_max.as_millis()).unwrap();
        if max_millis == 0 || !self.should_inject(SKEWED, "a worker", 50) {
            return Duration::ZERO;
        }
        Duration::from_millis(self.fault_size(SKEWED, "a worker", max_millis + 1))
    }

    /// Handles the messages on the queue, one delivery each; a crash leaves its message on the
    /// queue. Returns false if the queue was empty.
    pub(crate) async fn deliver(&mut self) -> bool {
        let received = self.queue.receive(queue::TURNS, 3, Duration::from_secs(90)).await;
        let Ok(received) = received else { return true };
        let has_messages = !received.is_empty();
        let mut running = Vec::new();
        let (shared_crash, _) = watch::channel(None);
        let shared_crash = Arc::new(shared_crash);
        for message in received {
            let crashed = if self.embedded_store.is_some() || self.has_shared_process {
                Arc::clone(&shared_crash)
            } else {
                Arc::new(watch::channel(None).0)
            };
            let mut crash = crashed.subscribe();
            let nudge: Nudge = serde_json::from_str(&message.text).unwrap();
            let position = WorkerPosition::default();
            let client = self.next_client(nudge.key.conversation_id.as_str());
            let fail_points = CrashFailPoints {
                rng: Mutex::new(fastrand::Rng::with_seed(self.rng.u64(..))),
                fault_plan: self.fault_plan.clone(),
                conversation: nudge.key.conversation_id.to_string(),
                crash_percent: self.crash_percent,
                is_blame_checked: self.killer_id.is_some(),
                is_killed_by_calls: self.killer_id == Some(nudge.key.conversation_id.as_str()),
                stall_percent: self.stall_percent,
                crashed,
                position: position.clone(),
                client: client.clone(),
            };
            let child = SimulatedChild::from_parent(&fail_points, self.rng.u64(..));
            let mut services = self.new_worker(Arc::new(fail_points));
            services.isolation = Isolation::Isolator(Arc::new(child));
            self.put_on_instance(&mut services);
            position.set_worker(&self.worker_name(&services));
            let queue = self.queue.clone();
            let line = position.clone();
            running.push(POSITION.scope(position, async move {
                tokio::select! {
                    biased;
                    at = crash.wait_for(Option::is_some) => {
                        (true, format!("{line} crashed: {:?}", at.unwrap().unwrap()))
                    }
                    outcome = delivery::handle_for_client(&services, &nudge, client.as_ref()) => {
                        if outcome.is_ok() {
                            let _ = queue.delete(queue::TURNS, &message.id, &message.pop_receipt).await;
                        }
                        (false, format!("{line} for {}: {outcome:?}", nudge.key.conversation_id))
                    }
                }
            }));
        }
        let chat = Box::pin(self.next_client_action());
        let tree = Box::pin(self.next_tree_request());
        let (ended, action_outcome, tree_request) =
            tokio::join!(futures_util::future::join_all(running), chat, tree);
        self.record_action(action_outcome);
        self.record_tree_request(tree_request);
        let mut has_crashed = false;
        for (is_crash, line) in ended {
            has_crashed |= is_crash;
            self.run_log.push(line);
        }
        if has_crashed && self.embedded_store.is_some() {
            self.restart_process().await;
        }
        has_messages
    }

    /// A client for which the delivery runs, in random simulations.
    fn next_client(&mut self, conversation: &str) -> Option<CancellationToken> {
        self.fault_plan.as_ref()?;
        self.should_inject("a client waited", conversation, 20).then(CancellationToken::new)
    }

    /// Gives the worker the cache of an instance, whose heads may be old.
    fn put_on_instance(&mut self, services: &mut Services) {
        if self.version_mix.is_some() || self.embedded_store.is_some() {
            return;
        }
        let number = usize::try_from(self.fault_size("an instance", "a delivery", 2)).unwrap();
        if self.should_inject("an instance was replaced", "a delivery", 10) {
            // The instance was replaced.
            self.entry_caches[number] = Arc::default();
        }
        services.entry_cache = Arc::clone(&self.entry_caches[number]);
    }

    /// Restarts the process of an embedded store, whose leases and wake-up messages are lost.
    pub(crate) async fn restart_process(&mut self) {
        self.queue.drop_queue(queue::TURNS);
        self.worker_store = self.store.clone();
        if let Some(store) = self.embedded_store.take() {
            self.use_embedded_store(DeterministicStore::reopen(store));
        }
        let services = self.new_worker(Arc::new(NoFailPoints));
        let enqueued = crash_count::recover_at_start_up(&services).await;
        self.run_log.push(format!("restarted, enqueued: {enqueued:?}"));
    }

    /// Workers use the embedded store from now on; a crash is one of the whole process.
    pub(crate) fn use_embedded_store(&mut self, store: Arc<DeterministicStore>) {
        self.worker_store = store.clone();
        self.embedded_store = Some(store);
    }

    /// Deletes both queues, with the configured chance.
    pub(super) fn lose_queues_at_random(&mut self) {
        if self.should_inject("the queues were deleted", "queues", self.queue_loss_percent) {
            self.run_log.push("the queues were deleted");
            self.queue.drop_queue(queue::TURNS);
            self.queue.drop_queue(queue::NOTIFY);
        }
    }
}
