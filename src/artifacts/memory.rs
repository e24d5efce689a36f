//! Artifact store for simulations: in memory, with injected faults from one seed.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;

use super::{
    ARTIFACT_BYTES_MAX, ArtifactError, ArtifactFacts, Artifacts, Shelf, cut, is_nameable,
    oldest_first,
};
use crate::ids::ArtifactId;
use crate::ids::fate::Fate;

/// Faults of a remote blob store: probabilities from 0 to 1, per call. Zero by default.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Faults {
    /// Puts that fail after some of their blocks. Uncommitted blocks are not visible: the next put
    /// starts again.
    pub cut: f64,
    /// Puts that succeed, but whose response is lost.
    pub unheard: f64,
    /// Puts without a response that take effect some calls later.
    pub late: f64,
    /// Calls other than puts that fail.
    pub unavailable: f64,
    /// Calls that take up to `slow_max`: half of them wait before their work, half of them after
    /// it.
    pub slow: f64,
    pub slow_max: Duration,
}

/// Number of calls after which a late put takes effect, at most.
const LATE_CALLS_MAX: u64 = 4;

pub struct MemoryArtifacts(Mutex<State>);

struct State {
    shelves: HashMap<Shelf, BTreeMap<ArtifactId, (ArtifactFacts, Bytes)>>,
    dice: fastrand::Rng,
    unavailable: u8,
    /// Fault plan, in which each fault is reproducible by its place.
    fate: Option<(Fate, Faults)>,
    calls: u64,
    /// Late puts, and the call at which each takes effect.
    late: Vec<(u64, Shelf, ArtifactFacts, Bytes)>,
}

/// Outcome of a put.
enum Put {
    Done,
    Cut,
    Unheard,
    Late(u64),
}

impl MemoryArtifacts {
    /// `failure_percent` is the percentage of failing calls. Half of them take effect completely,
    /// and only their response is lost.
    pub fn new(seed: u64, unavailable: u8) -> Self {
        Self(Mutex::new(State {
            shelves: HashMap::new(),
            dice: fastrand::Rng::with_seed(seed),
            unavailable,
            fate: None,
            calls: 0,
            late: Vec::new(),
        }))
    }

    /// Simulates the faults of a remote store, each reproducible by its place.
    pub fn with_fate(fate: Fate, faults: Faults) -> Self {
        let artifacts = Self::new(0, 0);
        artifacts.state().fate = Some((fate, faults));
        artifacts
    }

    /// Sets the percentage of calls that fail from now on.
    pub fn set_unavailable(&self, unavailable: u8) {
        self.state().unavailable = unavailable;
    }

    /// Sets the faults of later calls.
    pub fn set_faults(&self, fate: &Fate, faults: Faults) {
        self.state().fate = Some((fate.clone(), faults));
    }

    /// Ends all faults. Late puts never take effect.
    pub fn calm(&self) {
        let mut state = self.state();
        state.fate = None;
        state.late.clear();
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn act<T>(
        &self,
        shelf: &Shelf,
        work: impl FnOnce(&mut State) -> Result<T, ArtifactError>,
    ) -> Result<T, ArtifactError> {
        let mut state = self.state();
        state.begin();
        let at = shelf.key.conversation_id.as_str();
        if let Some((fate, faults)) = &state.fate
            && fate.says("a call of the artifacts failed", at, faults.unavailable)
        {
            return Err(ArtifactError::Unavailable("simulated: request lost".into()));
        }
        let fails = state.fails();
        if fails && state.dice.bool() {
            return Err(ArtifactError::Unavailable("simulated: request lost".into()));
        }
        let answer = work(&mut state);
        if fails {
            return Err(ArtifactError::Unavailable("simulated: response lost".into()));
        }
        answer
    }

    /// Delays a slow call, before its work or after it.
    async fn linger(&self, shelf: &Shelf, is_before: bool) {
        const SLOW: [&str; 2] =
            ["an artifact was slow, then done", "an artifact was done, then slow"];
        let wait = {
            let state = self.state();
            let Some((fate, faults)) = &state.fate else { return };
            let (at, [slow, done]) = (shelf.key.conversation_id.as_str(), SLOW);
            let what = if is_before { slow } else { done };
            if !fate.says(what, at, faults.slow / 2.0) {
                return;
            }
            let most = u64::try_from(faults.slow_max.as_millis()).unwrap_or(u64::MAX);
            Duration::from_millis(fate.size(what, at, most.saturating_add(1)))
        };
        tokio::time::sleep(wait).await;
    }
}

impl State {
    fn begin(&mut self) {
        self.calls += 1;
        let now = self.calls;
        let (landing, waiting) =
            std::mem::take(&mut self.late).into_iter().partition(|(at, ..)| *at <= now);
        self.late = waiting;
        for (_, shelf, facts, bytes) in landing {
            self.put(&shelf, facts, bytes);
        }
    }

    fn fails(&mut self) -> bool {
        self.dice.u8(0..100) < self.unavailable
    }

    fn put(&mut self, shelf: &Shelf, facts: ArtifactFacts, bytes: Bytes) {
        let shelf = self.shelves.entry(shelf.clone()).or_default();
        shelf.entry(facts.id.clone()).or_insert((facts, bytes));
    }

    fn put_fault(&mut self, shelf: &Shelf) -> Put {
        const LATE: &str = "an artifact came late";
        let at = shelf.key.conversation_id.as_str();
        let Some((fate, faults)) = &self.fate else {
            return match (self.fails(), self.dice.bool()) {
                (false, _) => Put::Done,
                (true, true) => Put::Cut,
                (true, false) => Put::Unheard,
            };
        };
        if fate.says("an artifact was cut", at, faults.cut) {
            Put::Cut
        } else if fate.says("an artifact was kept unheard", at, faults.unheard) {
            Put::Unheard
        } else if fate.says(LATE, at, faults.late) {
            Put::Late(self.calls + 1 + fate.size(LATE, at, LATE_CALLS_MAX))
        } else {
            Put::Done
        }
    }

    fn find(
        &self,
        shelf: &Shelf,
        id: &ArtifactId,
    ) -> Result<&(ArtifactFacts, Bytes), ArtifactError> {
        self.shelves.get(shelf).and_then(|all| all.get(id)).ok_or(ArtifactError::NotFound)
    }
}

#[async_trait]
impl Artifacts for MemoryArtifacts {
    async fn put(
        &self,
        shelf: &Shelf,
        facts: &ArtifactFacts,
        bytes: Bytes,
    ) -> Result<(), ArtifactError> {
        let size = bytes.len() as u64;
        if size > ARTIFACT_BYTES_MAX {
            return Err(ArtifactError::TooLarge(size));
        }
        if !is_nameable(shelf) || facts.id.parts().is_none() {
            return Err(ArtifactError::NotFound);
        }
        let facts = ArtifactFacts { size, ..facts.clone() };
        let unavailable = |why: &'static str| Err(ArtifactError::Unavailable(why.into()));
        self.linger(shelf, true).await;
        let answer = {
            let mut state = self.state();
            state.begin();
            match state.put_fault(shelf) {
                Put::Done => {
                    state.put(shelf, facts, bytes);
                    Ok(())
                }
                Put::Cut => unavailable("simulated: request lost"),
                Put::Unheard => {
                    state.put(shelf, facts, bytes);
                    unavailable("simulated: response lost")
                }
                Put::Late(at) => {
                    state.late.push((at, shelf.clone(), facts, bytes));
                    unavailable("simulated: request still in flight")
                }
            }
        };
        self.linger(shelf, false).await;
        answer
    }

    async fn facts(&self, shelf: &Shelf, id: &ArtifactId) -> Result<ArtifactFacts, ArtifactError> {
        self.linger(shelf, true).await;
        self.act(shelf, |state| state.find(shelf, id).map(|(facts, _)| facts.clone()))
    }

    async fn get(
        &self,
        shelf: &Shelf,
        id: &ArtifactId,
        range: Option<Range<u64>>,
    ) -> Result<Bytes, ArtifactError> {
        self.linger(shelf, true).await;
        self.act(shelf, |state| {
            let (facts, bytes) = state.find(shelf, id)?;
            let range = cut(range, facts.size);
            // The conversion succeeds: the size is that of bytes in memory.
            let [start, end] =
                [range.start, range.end].map(|at| usize::try_from(at).unwrap_or(bytes.len()));
            Ok(bytes.slice(start..end))
        })
    }

    async fn list(&self, shelf: &Shelf) -> Result<Vec<ArtifactFacts>, ArtifactError> {
        self.act(shelf, |state| {
            let all = state.shelves.get(shelf).into_iter().flatten();
            Ok(oldest_first(all.map(|(_, (facts, _))| facts.clone()).collect()))
        })
    }

    async fn delete_all(&self, shelf: &Shelf) -> Result<(), ArtifactError> {
        self.act(shelf, |state| {
            state.shelves.remove(shelf);
            Ok(())
        })
    }
}

impl fmt::Debug for MemoryArtifacts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.state();
        f.debug_struct("MemoryArtifacts")
            .field("scopes", &state.shelves.len())
            .field("failure_percent", &state.unavailable)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::super::contract::{self, facts_of, shelf};
    use super::*;

    #[tokio::test]
    async fn it_keeps_the_contract() {
        contract::contract(&MemoryArtifacts::new(1, 0), "contract").await;
    }

    /// Puts 200 artifacts through a store whose calls fail with probability 0.5. Returns the
    /// success of each put, and the number of stored artifacts.
    async fn shaky(seed: u64) -> (Vec<bool>, usize) {
        let artifacts = MemoryArtifacts::new(seed, 50);
        let shelf = shelf("shaky");
        let mut answers = Vec::new();
        for number in 0..200 {
            let bytes = Bytes::from(number.to_string());
            answers.push(
                artifacts.put(&shelf, &facts_of("tw_c_1_2_3", &bytes, 1), bytes).await.is_ok(),
            );
        }
        artifacts.set_unavailable(0);
        let all = artifacts.list(&shelf).await.unwrap();
        for facts in &all {
            let bytes = artifacts.get(&shelf, &facts.id, None).await.unwrap();
            assert_eq!(bytes.len() as u64, facts.size, "never a partial artifact");
        }
        (answers, all.len())
    }

    #[tokio::test]
    async fn a_failed_put_may_have_happened_and_the_seed_says_which() {
        let (answers, there) = shaky(5).await;
        let answered = answers.iter().filter(|is_ok| **is_ok).count();
        assert!((70..130).contains(&answered), "{answered} of 200 succeeded");
        assert!(answered < there && there < 200, "{answered} succeeded, {there} are stored");
        assert_eq!(shaky(5).await, (answers.clone(), there));
        assert_ne!(shaky(6).await.0, answers);
    }

    #[tokio::test(start_paused = true)]
    async fn what_a_store_far_away_does_wrong_is_told_and_loses_nothing_that_was_answered() {
        let faults = Faults {
            cut: 0.2,
            unheard: 0.2,
            late: 0.2,
            unavailable: 0.2,
            slow: 0.2,
            slow_max: Duration::from_secs(15),
        };
        let fate = Fate::new(2);
        let artifacts = MemoryArtifacts::with_fate(fate.clone(), faults);
        let shelf = shelf("far");
        let (mut answered, mut not_answered) = (Vec::new(), Vec::new());
        for number in 0..100 {
            let bytes = Bytes::from(number.to_string());
            let facts = facts_of("tw_c_1_2_3", &bytes, 1);
            let is_answered = artifacts.put(&shelf, &facts, bytes).await.is_ok();
            if is_answered { answered.push(facts.id) } else { not_answered.push(facts.id) }
        }
        artifacts.calm();
        let kinds: std::collections::BTreeSet<_> =
            fate.happened().into_iter().map(|mishap| mishap.what).collect();
        assert_eq!(kinds.len(), 5, "{kinds:?}");
        for id in &answered {
            artifacts.get(&shelf, id, None).await.unwrap();
        }
        let all = artifacts.list(&shelf).await.unwrap().len();
        assert!(answered.len() < all && all < 100, "{} of {all}", answered.len());
        assert_eq!(answered.len() + not_answered.len(), 100);
    }
}
