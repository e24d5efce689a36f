//! Workers with deliberate errors: the simulated weeks detect each, and report few faults.

use std::sync::Arc;

use super::plan::{WeekPlan, WeekStore, run_week};
use crate::tests::simulation_runs::MinimisedFailure;
use crate::tests::test_env::StoreDecorator;
use turnwheel_platform::ids::fault_plan::FaultPlan;
use turnwheel_storage::store::memory::MemoryStore;
use turnwheel_storage::store::{ConversationStore, ETag, StoreError};

/// Treats an indeterminate write as won.
fn accept_indeterminate_writes(store: Arc<MemoryStore>) -> Arc<dyn ConversationStore> {
    StoreDecorator::with_result_map(store, |result, count| match result {
        Err(StoreError::Unavailable(_)) => Ok(vec![ETag("believed".to_owned()); count]),
        other => other,
    })
}

/// Treats a conflict as a batch that was written before.
fn accept_conflicts(store: Arc<MemoryStore>) -> Arc<dyn ConversationStore> {
    StoreDecorator::with_result_map(store, |result, count| match result {
        Err(StoreError::Conflict) => Ok(vec![ETag("claimed".to_owned()); count]),
        other => other,
    })
}

const FAULTS_MAX: usize = 3;

/// Returns the minimised run of the first week that has a violation by few faults, or of the last
/// week with a violation.
async fn minimise_first_failure(
    mutant: fn(Arc<MemoryStore>) -> Arc<dyn ConversationStore>,
) -> MinimisedFailure {
    let run = async |seed, fault_plan: FaultPlan| {
        run_week(seed, &fault_plan, &WeekPlan::from_seed(seed), WeekStore::Decorated(mutant)).await
    };
    let mut last = None;
    for seed in 1..=30 {
        let fault_plan = FaultPlan::new(seed);
        if run(seed, fault_plan.clone()).await.outcome.is_err() {
            let faults = fault_plan.injected();
            let failure = Box::pin(MinimisedFailure::minimise(seed, &faults, run)).await;
            if failure.faults.len() <= FAULTS_MAX {
                return failure;
            }
            last = Some(failure);
        }
    }
    last.expect("no week detected the error")
}

#[tokio::test(start_paused = true)]
async fn accepting_indeterminate_writes_is_detected_with_three_faults() {
    let failure = Box::pin(minimise_first_failure(accept_indeterminate_writes)).await;
    let report = failure.to_string();
    assert!((1..=FAULTS_MAX).contains(&failure.faults.len()), "{report}");
    assert!(failure.violations.contains("invariant "), "{report}");
    let is_store = |what: &str| what.contains("batch") || what.contains("the store was throttled");
    assert!(failure.faults.iter().any(|fault| is_store(fault.kind)), "{report}");
    assert!(report.contains(&failure.faults[0].to_string()), "{report}");
}

/// Inputs that clients send meanwhile are conflicts too: it may need no fault.
#[tokio::test(start_paused = true)]
async fn accepting_conflicts_is_detected_with_three_faults() {
    let failure = Box::pin(minimise_first_failure(accept_conflicts)).await;
    assert!(failure.faults.len() <= FAULTS_MAX, "{failure}");
    assert!(failure.violations.contains("invariant "), "{failure}");
}
