//! Artifact store for simulations: in memory, with injected faults from one seed.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;

use super::{
    ARTIFACT_BYTES_MAX, ArtifactError, ArtifactMetadata, ArtifactScope, Artifacts, clamp_range,
    has_plain_names, sort_oldest_first,
};
use turnwheel_platform::ids::ArtifactId;
use turnwheel_platform::ids::fault_plan::FaultPlan;

/// Faults of a remote blob store: probabilities from 0 to 1, per call. Zero by default.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ArtifactFaults {
    /// Puts that fail after some of their blocks. Uncommitted blocks are not visible: the next put
    /// starts again.
    pub interrupted: f64,
    /// Puts that succeed, but whose response is lost.
    pub response_lost: f64,
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
    scopes: HashMap<ArtifactScope, BTreeMap<ArtifactId, (ArtifactMetadata, Bytes)>>,
    rng: fastrand::Rng,
    failure_percent: u8,
    /// Fault plan, in which each fault is reproducible by its place.
    fault_plan: Option<(FaultPlan, ArtifactFaults)>,
    calls: u64,
    /// Late puts, and the call at which each takes effect.
    late_puts: Vec<(u64, ArtifactScope, ArtifactMetadata, Bytes)>,
}

/// Outcome of a put.
enum PutOutcome {
    Done,
    Interrupted,
    ResponseLost,
    Late(u64),
}

impl MemoryArtifacts {
    /// `failure_percent` is the percentage of failing calls. Half of them take effect completely,
    /// and only their response is lost.
    pub fn new(seed: u64, failure_percent: u8) -> Self {
        Self(Mutex::new(State {
            scopes: HashMap::new(),
            rng: fastrand::Rng::with_seed(seed),
            failure_percent,
            fault_plan: None,
            calls: 0,
            late_puts: Vec::new(),
        }))
    }

    /// Simulates the faults of a remote store, each reproducible by its place.
    pub fn with_fault_plan(plan: FaultPlan, faults: ArtifactFaults) -> Self {
        let artifacts = Self::new(0, 0);
        artifacts.lock_state().fault_plan = Some((plan, faults));
        artifacts
    }

    /// Sets the percentage of calls that fail from now on.
    #[cfg(test)]
    pub(crate) fn set_failure_percent(&self, failure_percent: u8) {
        self.lock_state().failure_percent = failure_percent;
    }

    /// Sets the faults of later calls.
    pub fn set_faults(&self, plan: &FaultPlan, faults: ArtifactFaults) {
        self.lock_state().fault_plan = Some((plan.clone(), faults));
    }

    /// Ends all faults. Late puts never take effect.
    pub fn clear_faults(&self) {
        let mut state = self.lock_state();
        state.fault_plan = None;
        state.late_puts.clear();
    }

    fn lock_state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn call<T>(
        &self,
        scope: &ArtifactScope,
        work: impl FnOnce(&mut State) -> Result<T, ArtifactError>,
    ) -> Result<T, ArtifactError> {
        let mut state = self.lock_state();
        state.start_call();
        let at = scope.key.conversation_id.as_str();
        if let Some((plan, faults)) = &state.fault_plan
            && plan.should_inject("a call of the artifacts failed", at, faults.unavailable)
        {
            return Err(ArtifactError::Unavailable("simulated: request lost".into()));
        }
        let fails = state.should_fail();
        if fails && state.rng.bool() {
            return Err(ArtifactError::Unavailable("simulated: request lost".into()));
        }
        let answer = work(&mut state);
        if fails {
            return Err(ArtifactError::Unavailable("simulated: response lost".into()));
        }
        answer
    }

    /// Delays a slow call, before its work or after it.
    async fn simulate_delay(&self, scope: &ArtifactScope, is_before: bool) {
        const SLOW: [&str; 2] =
            ["an artifact was delayed, then stored", "an artifact was stored, then delayed"];
        let wait = {
            let state = self.lock_state();
            let Some((plan, faults)) = &state.fault_plan else { return };
            let (at, [slow, done]) = (scope.key.conversation_id.as_str(), SLOW);
            let what = if is_before { slow } else { done };
            if !plan.should_inject(what, at, faults.slow / 2.0) {
                return;
            }
            let most = u64::try_from(faults.slow_max.as_millis()).unwrap_or(u64::MAX);
            Duration::from_millis(plan.fault_size(what, at, most.saturating_add(1)))
        };
        tokio::time::sleep(wait).await;
    }
}

impl State {
    fn start_call(&mut self) {
        self.calls += 1;
        let now = self.calls;
        let (landing, waiting) =
            std::mem::take(&mut self.late_puts).into_iter().partition(|(at, ..)| *at <= now);
        self.late_puts = waiting;
        for (_, shelf, facts, bytes) in landing {
            self.insert(&shelf, facts, bytes);
        }
    }

    fn should_fail(&mut self) -> bool {
        self.rng.u8(0..100) < self.failure_percent
    }

    fn insert(&mut self, scope: &ArtifactScope, metadata: ArtifactMetadata, bytes: Bytes) {
        let scope = self.scopes.entry(scope.clone()).or_default();
        scope.entry(metadata.id.clone()).or_insert((metadata, bytes));
    }

    fn choose_put_outcome(&mut self, scope: &ArtifactScope) -> PutOutcome {
        const LATE: &str = "an artifact came late";
        let at = scope.key.conversation_id.as_str();
        let Some((plan, faults)) = &self.fault_plan else {
            return match (self.should_fail(), self.rng.bool()) {
                (false, _) => PutOutcome::Done,
                (true, true) => PutOutcome::Interrupted,
                (true, false) => PutOutcome::ResponseLost,
            };
        };
        if plan.should_inject("an artifact was truncated", at, faults.interrupted) {
            PutOutcome::Interrupted
        } else if plan.should_inject(
            "an artifact was stored and its response lost",
            at,
            faults.response_lost,
        ) {
            PutOutcome::ResponseLost
        } else if plan.should_inject(LATE, at, faults.late) {
            PutOutcome::Late(self.calls + 1 + plan.fault_size(LATE, at, LATE_CALLS_MAX))
        } else {
            PutOutcome::Done
        }
    }

    fn find(
        &self,
        scope: &ArtifactScope,
        id: &ArtifactId,
    ) -> Result<&(ArtifactMetadata, Bytes), ArtifactError> {
        self.scopes.get(scope).and_then(|all| all.get(id)).ok_or(ArtifactError::NotFound)
    }
}

#[async_trait]
impl Artifacts for MemoryArtifacts {
    async fn put(
        &self,
        scope: &ArtifactScope,
        metadata: &ArtifactMetadata,
        bytes: Bytes,
    ) -> Result<(), ArtifactError> {
        let size = bytes.len() as u64;
        if size > ARTIFACT_BYTES_MAX {
            return Err(ArtifactError::TooLarge(size));
        }
        if !has_plain_names(scope) || metadata.id.parts().is_none() {
            return Err(ArtifactError::NotFound);
        }
        let metadata = ArtifactMetadata { size, ..metadata.clone() };
        let unavailable = |why: &'static str| Err(ArtifactError::Unavailable(why.into()));
        self.simulate_delay(scope, true).await;
        let answer = {
            let mut state = self.lock_state();
            state.start_call();
            match state.choose_put_outcome(scope) {
                PutOutcome::Done => {
                    state.insert(scope, metadata, bytes);
                    Ok(())
                }
                PutOutcome::Interrupted => unavailable("simulated: request lost"),
                PutOutcome::ResponseLost => {
                    state.insert(scope, metadata, bytes);
                    unavailable("simulated: response lost")
                }
                PutOutcome::Late(at) => {
                    state.late_puts.push((at, scope.clone(), metadata, bytes));
                    unavailable("simulated: request still in flight")
                }
            }
        };
        self.simulate_delay(scope, false).await;
        answer
    }

    async fn metadata(
        &self,
        scope: &ArtifactScope,
        id: &ArtifactId,
    ) -> Result<ArtifactMetadata, ArtifactError> {
        self.simulate_delay(scope, true).await;
        self.call(scope, |state| state.find(scope, id).map(|(metadata, _)| metadata.clone()))
    }

    async fn get(
        &self,
        scope: &ArtifactScope,
        id: &ArtifactId,
        range: Option<Range<u64>>,
    ) -> Result<Bytes, ArtifactError> {
        self.simulate_delay(scope, true).await;
        self.call(scope, |state| {
            let (metadata, bytes) = state.find(scope, id)?;
            let range = clamp_range(range, metadata.size);
            // The conversion succeeds: the size is that of bytes in memory.
            let [start, end] =
                [range.start, range.end].map(|at| usize::try_from(at).unwrap_or(bytes.len()));
            Ok(bytes.slice(start..end))
        })
    }

    async fn list(&self, scope: &ArtifactScope) -> Result<Vec<ArtifactMetadata>, ArtifactError> {
        self.call(scope, |state| {
            let all = state.scopes.get(scope).into_iter().flatten();
            Ok(sort_oldest_first(all.map(|(_, (metadata, _))| metadata.clone()).collect()))
        })
    }

    async fn delete_all(&self, scope: &ArtifactScope) -> Result<(), ArtifactError> {
        self.call(scope, |state| {
            state.scopes.remove(scope);
            Ok(())
        })
    }
}

impl fmt::Debug for MemoryArtifacts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryArtifacts").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::super::contract::{self, test_metadata, test_scope};
    use super::*;

    #[tokio::test]
    async fn memory_artifacts_fulfil_contract() {
        contract::run_contract(&MemoryArtifacts::new(1, 0), "contract").await;
    }

    /// Puts 200 artifacts through a store whose calls fail with probability 0.5. Returns the
    /// success of each put, and the number of stored artifacts.
    async fn put_with_faults(seed: u64) -> (Vec<bool>, usize) {
        let artifacts = MemoryArtifacts::new(seed, 50);
        let scope = test_scope("shaky");
        let mut answers = Vec::new();
        for number in 0..200 {
            let bytes = Bytes::from(number.to_string());
            answers.push(
                artifacts.put(&scope, &test_metadata("tw_c_1_2_3", &bytes, 1), bytes).await.is_ok(),
            );
        }
        artifacts.set_failure_percent(0);
        let all = artifacts.list(&scope).await.unwrap();
        for metadata in &all {
            let bytes = artifacts.get(&scope, &metadata.id, None).await.unwrap();
            assert_eq!(bytes.len() as u64, metadata.size, "never a partial artifact");
        }
        (answers, all.len())
    }

    #[tokio::test]
    async fn failed_put_may_have_taken_effect() {
        let (answers, there) = put_with_faults(5).await;
        let answered = answers.iter().filter(|is_ok| **is_ok).count();
        assert!((70..130).contains(&answered), "{answered} of 200 succeeded");
        assert!(answered < there && there < 200, "{answered} succeeded, {there} are stored");
        assert_eq!(put_with_faults(5).await, (answers.clone(), there));
        assert_ne!(put_with_faults(6).await.0, answers);
    }

    #[tokio::test(start_paused = true)]
    async fn injected_faults_lose_no_acknowledged_artifact() {
        let faults = ArtifactFaults {
            interrupted: 0.2,
            response_lost: 0.2,
            late: 0.2,
            unavailable: 0.2,
            slow: 0.2,
            slow_max: Duration::from_secs(15),
        };
        let plan = FaultPlan::new(2);
        let artifacts = MemoryArtifacts::with_fault_plan(plan.clone(), faults);
        let scope = test_scope("far");
        let (mut answered, mut not_answered) = (Vec::new(), Vec::new());
        for number in 0..100 {
            let bytes = Bytes::from(number.to_string());
            let metadata = test_metadata("tw_c_1_2_3", &bytes, 1);
            let is_answered = artifacts.put(&scope, &metadata, bytes).await.is_ok();
            if is_answered { answered.push(metadata.id) } else { not_answered.push(metadata.id) }
        }
        artifacts.clear_faults();
        let kinds: std::collections::BTreeSet<_> =
            plan.injected().into_iter().map(|fault| fault.kind).collect();
        assert_eq!(kinds.len(), 5, "{kinds:?}");
        for id in &answered {
            artifacts.get(&scope, id, None).await.unwrap();
        }
        let all = artifacts.list(&scope).await.unwrap().len();
        assert!(answered.len() < all && all < 100, "{} of {all}", answered.len());
        assert_eq!(answered.len() + not_answered.len(), 100);
    }
}
