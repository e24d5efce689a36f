//! In-memory queues for simulations, with virtual time. All faults come from one seed, so that a
//! failed run can be reproduced.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::watch;

use super::visibility_queue::{ClockReading, HeldMessage, VisibilityQueue};
use super::{PROMPTS, Queue, QueueError, QueueMessage, validate_text};
use turnwheel_platform::clock::Clock;
use turnwheel_platform::ids::fault_plan::FaultPlan;

/// Fault probabilities in percent. All are 0 by default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueFaults {
    /// Sends that succeed but never arrive. Excludes `agent-prompts` and the poison queues: they
    /// hold the only copy, and the service does not lose it.
    pub lose: u8,
    /// Sends that arrive twice.
    pub double: u8,
    /// Sends that arrive up to `delay_max` late.
    pub delay: u8,
    pub delay_max: Duration,
    /// Sends that overtake earlier messages.
    pub reorder: u8,
    /// Calls that fail. Half of them take effect and lose only the response.
    pub unavailable: u8,
}

pub struct MemoryQueue {
    clock: Arc<dyn Clock>,
    state: Mutex<State>,
}

struct State {
    queues: BTreeMap<String, VisibilityQueue>,
    rng: fastrand::Rng,
    /// Replaces the random numbers if set.
    fault_plan: Option<FaultPlan>,
    faults: QueueFaults,
    last_id: u64,
}

impl MemoryQueue {
    pub fn new(clock: Arc<dyn Clock>, seed: u64, faults: QueueFaults) -> Self {
        let rng = fastrand::Rng::with_seed(seed);
        let state = State { queues: BTreeMap::new(), rng, fault_plan: None, faults, last_id: 0 };
        Self { clock, state: Mutex::new(state) }
    }

    /// Creates queues whose faults follow a plan, in which each fault is identified by its site.
    pub fn with_fault_plan(clock: Arc<dyn Clock>, plan: FaultPlan, faults: QueueFaults) -> Self {
        let queue = Self::new(clock, 0, faults);
        queue.lock_state().fault_plan = Some(plan);
        queue
    }

    /// Sets the faults of later calls. Simulations end without faults, to check that all work
    /// completes.
    pub fn set_faults(&self, faults: QueueFaults) {
        self.lock_state().faults = faults;
    }

    /// Deletes the queue with all its messages.
    pub fn drop_queue(&self, queue: &str) {
        self.lock_state().queues.remove(queue);
    }

    /// Time until a hidden message of any queue becomes visible. A simulation may advance its clock
    /// by this time. `None` if no message is hidden.
    pub fn next_visible_in(&self) -> Option<Duration> {
        let now = self.clock.monotonic();
        let state = self.lock_state();
        let next = state.queues.values().filter_map(|line| line.first_visible_after(now)).min()?;
        Some(next.saturating_sub(now))
    }

    fn lock_state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run_call<T>(
        &self,
        queue: &str,
        work: impl FnOnce(&mut State, ClockReading) -> Result<T, QueueError>,
    ) -> Result<T, QueueError> {
        const FAILED: &str = "a call of the queue failed";
        let now = ClockReading::read(&*self.clock);
        let mut state = self.lock_state();
        let percent = state.faults.unavailable;
        let is_failing = state.should_inject(FAILED, queue, percent);
        if is_failing && state.random_up_to(FAILED, queue, 1) == 0 {
            return Err(QueueError::Unavailable("simulated: the call was lost".into()));
        }
        let answer = work(&mut state, now);
        if is_failing {
            return Err(QueueError::Unavailable("simulated: the response was lost".into()));
        }
        answer
    }
}

impl State {
    fn should_inject(&mut self, what: &'static str, queue: &str, percent: u8) -> bool {
        match &self.fault_plan {
            Some(plan) => plan.should_inject(what, queue, f64::from(percent) / 100.0),
            None => self.rng.u8(0..100) < percent,
        }
    }

    /// Returns a number from 0 to `most`.
    fn random_up_to(&mut self, what: &'static str, queue: &str, most: u64) -> u64 {
        match &self.fault_plan {
            Some(plan) => plan.fault_size(what, queue, most.saturating_add(1)),
            None => self.rng.u64(0..=most),
        }
    }

    fn fresh_id(&mut self) -> String {
        self.last_id += 1;
        format!("{:032x}", self.last_id)
    }

    fn send(&mut self, queue: &str, text: &str, visible_at: Duration, now: ClockReading) {
        const LATE: &str = "a message came late";
        const AHEAD: &str = "a message overtook others";
        let is_losable = queue != PROMPTS && !queue.ends_with("-poison");
        if is_losable && self.should_inject("a message was lost", queue, self.faults.lose) {
            return;
        }
        let is_double = self.should_inject("a message came twice", queue, self.faults.double);
        for _ in 0..if is_double { 2 } else { 1 } {
            let mut visible_at = visible_at;
            if self.should_inject(LATE, queue, self.faults.delay) {
                let most = turnwheel_platform::clock::millis(self.faults.delay_max);
                let late = Duration::from_millis(self.random_up_to(LATE, queue, most));
                visible_at = visible_at.saturating_add(late);
            }
            if self.should_inject(AHEAD, queue, self.faults.reorder) && visible_at <= now.monotonic
            {
                let most = turnwheel_platform::clock::millis(now.monotonic);
                visible_at = Duration::from_millis(self.random_up_to(AHEAD, queue, most));
            }
            let message = HeldMessage::new(self.fresh_id(), text.to_owned(), now.wall);
            self.queues.entry(queue.to_owned()).or_default().insert(message, visible_at);
        }
    }
}

#[async_trait]
impl Queue for MemoryQueue {
    async fn send(&self, queue: &str, text: String, delay: Duration) -> Result<(), QueueError> {
        validate_text(&text)?;
        self.run_call(queue, |state, now| {
            state.send(queue, &text, now.monotonic.saturating_add(delay), now);
            Ok(())
        })
    }

    async fn receive(
        &self,
        queue: &str,
        count_max: usize,
        hide: Duration,
    ) -> Result<Vec<QueueMessage>, QueueError> {
        self.run_call(queue, |state, now| {
            // The queue is removed for the call, because the receipts borrow the same state.
            let Some(mut line) = state.queues.remove(queue) else { return Ok(Vec::new()) };
            let all = line.receive(now, count_max, hide, || state.fresh_id());
            state.queues.insert(queue.to_owned(), line);
            Ok(all)
        })
    }

    async fn renew(
        &self,
        queue: &str,
        id: &str,
        pop_receipt: &str,
        hide: Duration,
    ) -> Result<String, QueueError> {
        self.run_call(queue, |state, now| {
            let receipt = state.fresh_id();
            let line = state.queues.get_mut(queue).ok_or(QueueError::Gone)?;
            line.renew(id, pop_receipt, now.monotonic.saturating_add(hide), receipt.clone())?;
            Ok(receipt)
        })
    }

    async fn delete(&self, queue: &str, id: &str, pop_receipt: &str) -> Result<(), QueueError> {
        self.run_call(queue, |state, _| {
            let line = state.queues.get_mut(queue).ok_or(QueueError::Gone)?;
            line.check_receipt(id, pop_receipt)?;
            line.remove(id);
            Ok(())
        })
    }

    async fn length(&self, queue: &str) -> Result<u64, QueueError> {
        self.run_call(queue, |state, _| {
            Ok(state.queues.get(queue).map_or(0, |line| line.len().try_into().unwrap_or(u64::MAX)))
        })
    }

    /// Returns `None`: virtual time has no notifications. Use [`MemoryQueue::next_visible_in`].
    fn arrivals(&self, _queue: &str) -> Option<watch::Receiver<u64>> {
        None
    }
}

impl fmt::Debug for MemoryQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryQueue").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::queue::{TURNS, contract};
    use turnwheel_platform::clock::{ManualClock, Timestamp};

    const HIDE: Duration = Duration::from_secs(30);

    fn queue(seed: u64, faults: QueueFaults) -> (Arc<ManualClock>, MemoryQueue) {
        let clock = Arc::new(ManualClock::new(Timestamp(1_000_000)));
        (Arc::clone(&clock), MemoryQueue::new(clock, seed, faults))
    }

    /// Sends `0` to `99`, one second apart, and returns the texts in order of arrival.
    async fn arrivals_of(seed: u64, faults: QueueFaults, name: &str) -> Vec<String> {
        let (clock, queue) = queue(seed, faults);
        for number in 0..100 {
            clock.advance(Duration::from_secs(1));
            // Failed calls are not repeated here.
            let _ = queue.send(name, number.to_string(), Duration::ZERO).await;
        }
        queue.set_faults(QueueFaults::default());
        let mut texts = Vec::new();
        for _ in 0..500 {
            for message in queue.receive(name, 7, HIDE).await.unwrap() {
                queue.delete(name, &message.id, &message.pop_receipt).await.unwrap();
                texts.push(message.text);
            }
            if queue.length(name).await.unwrap() == 0 {
                return texts;
            }
            clock.advance(queue.next_visible_in().unwrap_or_default());
        }
        panic!("deleted messages are still there");
    }

    fn in_order() -> Vec<String> {
        (0..100).map(|number| number.to_string()).collect()
    }

    #[tokio::test]
    async fn memory_queue_passes_contract() {
        let (clock, queue) = queue(1, QueueFaults::default());
        let pass = |span| {
            clock.advance(span);
            contract::time_passed()
        };
        contract::assert_queue_contract(&queue, "contract", &pass).await;
    }

    #[tokio::test]
    async fn messages_arrive_in_order_without_faults() {
        assert_eq!(arrivals_of(1, QueueFaults::default(), TURNS).await, in_order());
    }

    #[tokio::test]
    async fn same_seed_reproduces_run() {
        let faults = QueueFaults {
            lose: 20,
            double: 20,
            delay: 20,
            delay_max: Duration::from_mins(5),
            reorder: 20,
            unavailable: 20,
        };
        let run = arrivals_of(7, faults, TURNS).await;
        assert_eq!(run, arrivals_of(7, faults, TURNS).await);
        assert_ne!(run, arrivals_of(8, faults, TURNS).await);
    }

    #[tokio::test]
    async fn each_fault_has_its_effect() {
        let none = QueueFaults::default();
        let lost = arrivals_of(3, QueueFaults { lose: 30, ..none }, TURNS).await;
        assert!((50..90).contains(&lost.len()), "{} of 100 arrived", lost.len());

        let doubled = arrivals_of(3, QueueFaults { double: 30, ..none }, TURNS).await;
        assert!((110..150).contains(&doubled.len()), "{} of 100 arrived", doubled.len());

        let late = QueueFaults { delay: 30, delay_max: Duration::from_mins(5), ..none };
        for shuffled in [late, QueueFaults { reorder: 30, ..none }] {
            let mut texts = arrivals_of(3, shuffled, TURNS).await;
            assert_ne!(texts, in_order());
            texts.sort_by_key(|text| text.parse::<u32>().unwrap());
            assert_eq!(texts, in_order());
        }

        let failed = arrivals_of(3, QueueFaults { unavailable: 60, ..none }, TURNS).await;
        assert!(
            (41..95).contains(&failed.len()),
            "half of the failed calls took effect, {} arrived",
            failed.len()
        );
    }

    #[tokio::test]
    async fn prompts_are_never_lost() {
        let faults = QueueFaults { lose: 100, ..QueueFaults::default() };
        assert_eq!(arrivals_of(1, faults, PROMPTS).await.len(), 100);
        assert_eq!(arrivals_of(1, faults, TURNS).await.len(), 0);
    }
}
