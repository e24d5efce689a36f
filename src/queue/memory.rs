//! In-memory queues for simulations, with virtual time. All faults come from one seed, so that a
//! failed run can be reproduced.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::watch;

use super::line::{Line, Message, Moment};
use super::{PROMPTS, Queue, QueueError, Received, check};
use crate::clock::Clock;
use crate::ids::fate::Fate;

/// Fault probabilities in percent. All are 0 by default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Faults {
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
    lines: BTreeMap<String, Line>,
    dice: fastrand::Rng,
    /// Replaces the random numbers if set.
    fate: Option<Fate>,
    faults: Faults,
    last_id: u64,
}

impl MemoryQueue {
    pub fn new(clock: Arc<dyn Clock>, seed: u64, faults: Faults) -> Self {
        let dice = fastrand::Rng::with_seed(seed);
        let state = State { lines: BTreeMap::new(), dice, fate: None, faults, last_id: 0 };
        Self { clock, state: Mutex::new(state) }
    }

    /// Creates queues whose faults follow a plan, in which each fault is identified by its site.
    pub fn with_fate(clock: Arc<dyn Clock>, fate: Fate, faults: Faults) -> Self {
        let queue = Self::new(clock, 0, faults);
        queue.state().fate = Some(fate);
        queue
    }

    /// Sets the faults of later calls. Simulations end without faults, to check that all work
    /// completes.
    pub fn set_faults(&self, faults: Faults) {
        self.state().faults = faults;
    }

    /// Deletes the queue with all its messages.
    pub fn drop_queue(&self, queue: &str) {
        self.state().lines.remove(queue);
    }

    /// Time until a hidden message of any queue becomes visible. A simulation may advance its clock
    /// by this time. `None` if no message is hidden.
    pub fn next_visible_in(&self) -> Option<Duration> {
        let now = self.clock.monotonic();
        let state = self.state();
        let next = state.lines.values().filter_map(|line| line.first_visible_after(now)).min()?;
        Some(next.saturating_sub(now))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn act<T>(
        &self,
        queue: &str,
        work: impl FnOnce(&mut State, Moment) -> Result<T, QueueError>,
    ) -> Result<T, QueueError> {
        const FAILED: &str = "a call of the queue failed";
        let now = Moment::of(&*self.clock);
        let mut state = self.state();
        let percent = state.faults.unavailable;
        let fails = state.happens(FAILED, queue, percent);
        if fails && state.size(FAILED, queue, 1) == 0 {
            return Err(QueueError::Unavailable("simulated: the call was lost".into()));
        }
        let answer = work(&mut state, now);
        if fails {
            return Err(QueueError::Unavailable("simulated: the response was lost".into()));
        }
        answer
    }
}

impl State {
    fn happens(&mut self, what: &'static str, queue: &str, percent: u8) -> bool {
        match &self.fate {
            Some(fate) => fate.says(what, queue, f64::from(percent) / 100.0),
            None => self.dice.u8(0..100) < percent,
        }
    }

    /// Returns a number from 0 to `most`.
    fn size(&mut self, what: &'static str, queue: &str, most: u64) -> u64 {
        match &self.fate {
            Some(fate) => fate.size(what, queue, most.saturating_add(1)),
            None => self.dice.u64(0..=most),
        }
    }

    fn fresh(&mut self) -> String {
        self.last_id += 1;
        format!("{:032x}", self.last_id)
    }

    fn send(&mut self, queue: &str, text: &str, visible_at: Duration, now: Moment) {
        const LATE: &str = "a message came late";
        const AHEAD: &str = "a message overtook others";
        let is_losable = queue != PROMPTS && !queue.ends_with("-poison");
        if is_losable && self.happens("a message was lost", queue, self.faults.lose) {
            return;
        }
        let is_double = self.happens("a message came twice", queue, self.faults.double);
        for _ in 0..if is_double { 2 } else { 1 } {
            let mut visible_at = visible_at;
            if self.happens(LATE, queue, self.faults.delay) {
                let most = crate::clock::millis(self.faults.delay_max);
                let late = Duration::from_millis(self.size(LATE, queue, most));
                visible_at = visible_at.saturating_add(late);
            }
            if self.happens(AHEAD, queue, self.faults.reorder) && visible_at <= now.monotonic {
                let most = crate::clock::millis(now.monotonic);
                visible_at = Duration::from_millis(self.size(AHEAD, queue, most));
            }
            let message = Message::new(self.fresh(), text.to_owned(), now.wall);
            self.lines.entry(queue.to_owned()).or_default().insert(message, visible_at);
        }
    }
}

#[async_trait]
impl Queue for MemoryQueue {
    async fn send(&self, queue: &str, text: String, delay: Duration) -> Result<(), QueueError> {
        check(&text)?;
        self.act(queue, |state, now| {
            state.send(queue, &text, now.monotonic.saturating_add(delay), now);
            Ok(())
        })
    }

    async fn receive(
        &self,
        queue: &str,
        count_max: usize,
        hide: Duration,
    ) -> Result<Vec<Received>, QueueError> {
        self.act(queue, |state, now| {
            // The queue is removed for the call, because the receipts borrow the same state.
            let Some(mut line) = state.lines.remove(queue) else { return Ok(Vec::new()) };
            let all = line.receive(now, count_max, hide, || state.fresh());
            state.lines.insert(queue.to_owned(), line);
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
        self.act(queue, |state, now| {
            let receipt = state.fresh();
            let line = state.lines.get_mut(queue).ok_or(QueueError::Gone)?;
            line.renew(id, pop_receipt, now.monotonic.saturating_add(hide), receipt.clone())?;
            Ok(receipt)
        })
    }

    async fn delete(&self, queue: &str, id: &str, pop_receipt: &str) -> Result<(), QueueError> {
        self.act(queue, |state, _| {
            let line = state.lines.get_mut(queue).ok_or(QueueError::Gone)?;
            line.check(id, pop_receipt)?;
            line.remove(id);
            Ok(())
        })
    }

    async fn length(&self, queue: &str) -> Result<u64, QueueError> {
        self.act(queue, |state, _| {
            Ok(state.lines.get(queue).map_or(0, |line| line.len().try_into().unwrap_or(u64::MAX)))
        })
    }

    /// Returns `None`: virtual time has no notifications. Use [`MemoryQueue::next_visible_in`].
    fn arrivals(&self, _queue: &str) -> Option<watch::Receiver<u64>> {
        None
    }
}

impl fmt::Debug for MemoryQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.state();
        f.debug_struct("MemoryQueue")
            .field("faults", &state.faults)
            .field("queues", &state.lines.keys())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::{ManualClock, Timestamp};
    use crate::queue::{TURNS, contract};

    const HIDE: Duration = Duration::from_secs(30);

    fn queue(seed: u64, faults: Faults) -> (Arc<ManualClock>, MemoryQueue) {
        let clock = Arc::new(ManualClock::new(Timestamp(1_000_000)));
        (Arc::clone(&clock), MemoryQueue::new(clock, seed, faults))
    }

    /// Sends `0` to `99`, one second apart, and returns the texts in order of arrival.
    async fn arrivals_of(seed: u64, faults: Faults, name: &str) -> Vec<String> {
        let (clock, queue) = queue(seed, faults);
        for number in 0..100 {
            clock.advance(Duration::from_secs(1));
            // Failed calls are not repeated here.
            let _ = queue.send(name, number.to_string(), Duration::ZERO).await;
        }
        queue.set_faults(Faults::default());
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
    async fn it_keeps_the_contract() {
        let (clock, queue) = queue(1, Faults::default());
        let pass = |span| {
            clock.advance(span);
            contract::passed()
        };
        contract::contract(&queue, "contract", &pass).await;
    }

    #[tokio::test]
    async fn without_faults_everything_arrives_once_and_in_order() {
        assert_eq!(arrivals_of(1, Faults::default(), TURNS).await, in_order());
    }

    #[tokio::test]
    async fn the_same_seed_gives_the_same_run_and_another_seed_another() {
        let faults = Faults {
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
    async fn each_fault_does_what_it_says() {
        let none = Faults::default();
        let lost = arrivals_of(3, Faults { lose: 30, ..none }, TURNS).await;
        assert!((50..90).contains(&lost.len()), "{} of 100 arrived", lost.len());

        let doubled = arrivals_of(3, Faults { double: 30, ..none }, TURNS).await;
        assert!((110..150).contains(&doubled.len()), "{} of 100 arrived", doubled.len());

        let late = Faults { delay: 30, delay_max: Duration::from_mins(5), ..none };
        for shuffled in [late, Faults { reorder: 30, ..none }] {
            let mut texts = arrivals_of(3, shuffled, TURNS).await;
            assert_ne!(texts, in_order());
            texts.sort_by_key(|text| text.parse::<u32>().unwrap());
            assert_eq!(texts, in_order());
        }

        let failed = arrivals_of(3, Faults { unavailable: 60, ..none }, TURNS).await;
        assert!(
            (41..95).contains(&failed.len()),
            "half of the failed calls took effect, {} arrived",
            failed.len()
        );
    }

    #[tokio::test]
    async fn what_only_the_queue_holds_is_never_lost() {
        let faults = Faults { lose: 100, ..Faults::default() };
        assert_eq!(arrivals_of(1, faults, PROMPTS).await.len(), 100);
        assert_eq!(arrivals_of(1, faults, TURNS).await.len(), 0);
    }
}
