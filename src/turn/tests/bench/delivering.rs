//! Deliveries, each by its own worker, which may crash at each fail point; and the other faults
//! injected meanwhile.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::watch;

use super::isolating::SimulatedChild;
use super::probes::CrashProbe;
use super::story::SCENE;
use super::{Bench, Scene, Steady};
use crate::queue::{self, Queue as _};
use crate::turn::{Isolation, NoProbe, Nudge, delivery, recount};

impl Bench {
    /// True if the fault `what` is to be injected now.
    pub(super) fn happens(&mut self, what: &'static str, at: &str, in_a_hundred: u8) -> bool {
        match &self.fate {
            Some(fate) => fate.says(what, at, f64::from(in_a_hundred) / 100.0),
            // Without a chance, no random number is drawn.
            None => in_a_hundred > 0 && self.dice.u8(0..100) < in_a_hundred,
        }
    }

    /// Size of the fault, from 0 to `bound - 1`.
    pub(super) fn size(&mut self, what: &'static str, at: &str, bound: u64) -> u64 {
        match &self.fate {
            Some(fate) => fate.size(what, at, bound),
            None => self.dice.u64(0..bound.max(1)),
        }
    }

    /// Offset of the next worker's wall clock from the slowest; zero for every second worker.
    pub(super) fn clock_ahead(&mut self) -> Duration {
        const SKEWED: &str = "a clock was ahead";
        let most = u64::try_from(self.skew_max.as_millis()).unwrap();
        if most == 0 || !self.happens(SKEWED, "a worker", 50) {
            return Duration::ZERO;
        }
        Duration::from_millis(self.size(SKEWED, "a worker", most + 1))
    }

    /// Handles the messages on the queue, one delivery each; a crash leaves its message on the
    /// queue. Returns false if the queue was empty.
    pub(in crate::turn::tests) async fn deliver(&mut self) -> bool {
        let received = self.queue.receive(queue::TURNS, 3, Duration::from_secs(90)).await;
        let Ok(received) = received else { return true };
        let is_any = !received.is_empty();
        let mut running = Vec::new();
        let (one_process, _) = watch::channel(None);
        let one_process = Arc::new(one_process);
        for message in received {
            let crashed = if self.steady.is_some() || self.shares_processes {
                Arc::clone(&one_process)
            } else {
                Arc::new(watch::channel(None).0)
            };
            let mut crash = crashed.subscribe();
            let nudge: Nudge = serde_json::from_str(&message.text).unwrap();
            let scene = Scene::default();
            let probe = CrashProbe {
                dice: Mutex::new(fastrand::Rng::with_seed(self.dice.u64(..))),
                fate: self.fate.clone(),
                at: nudge.key.conversation_id.to_string(),
                in_a_hundred: self.crash_in_a_hundred,
                is_judged: self.killer.is_some(),
                is_killed_by_calls: self.killer == Some(nudge.key.conversation_id.as_str()),
                still_in_a_hundred: self.still_in_a_hundred,
                crashed,
                scene: scene.clone(),
            };
            let child = SimulatedChild::of(&probe, self.dice.u64(..));
            let mut world = self.worker(Arc::new(probe));
            world.isolation = Isolation::By(Arc::new(child));
            scene.is(&self.called(&world));
            let queue = self.queue.clone();
            let told = scene.clone();
            running.push(SCENE.scope(scene, async move {
                tokio::select! {
                    biased;
                    at = crash.wait_for(Option::is_some) => {
                        (true, format!("{told} crashed: {:?}", at.unwrap().unwrap()))
                    }
                    outcome = delivery::handle(&world, &nudge) => {
                        if outcome.is_ok() {
                            let _ = queue.delete(queue::TURNS, &message.id, &message.pop_receipt).await;
                        }
                        (false, format!("{told} for {}: {outcome:?}", nudge.key.conversation_id))
                    }
                }
            }));
        }
        let chat = self.next_chat();
        let (ended, done) = tokio::join!(futures_util::future::join_all(running), chat);
        self.note_act(done);
        let mut has_crashed = false;
        for (is_crash, told) in ended {
            has_crashed |= is_crash;
            self.story.push(told);
        }
        if has_crashed && self.steady.is_some() {
            self.start_again().await;
        }
        is_any
    }

    /// Restarts the process of an embedded store, whose leases and wake-up messages are lost.
    pub(in crate::turn::tests) async fn start_again(&mut self) {
        self.queue.drop_queue(queue::TURNS);
        self.shared = self.store.clone();
        if let Some(steady) = self.steady.take() {
            self.use_steady(Steady::reopen(steady));
        }
        let world = self.worker(Arc::new(NoProbe));
        let rung = recount::start_up(&world).await;
        self.story.push(format!("restarted, enqueued: {rung:?}"));
    }

    /// Workers use the embedded store from now on; a crash is one of the whole process.
    pub(in crate::turn::tests) fn use_steady(&mut self, steady: Arc<Steady>) {
        self.shared = steady.clone();
        self.steady = Some(steady);
    }

    /// Deletes both queues, with the configured chance.
    pub(super) fn lose_queues(&mut self) {
        if self.happens("the queues were deleted", "queues", self.queues_lost_in_a_hundred) {
            self.story.push("the queues were deleted");
            self.queue.drop_queue(queue::TURNS);
            self.queue.drop_queue(queue::NOTIFY);
        }
    }
}
