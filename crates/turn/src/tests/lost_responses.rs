//! Lost responses of Cosmos: the SDK injects its own faults between the store and the emulator.

use std::sync::Arc;

use azure_data_cosmos::fault_injection::{
    FaultInjectionConditionBuilder, FaultInjectionErrorType as Fault, FaultInjectionResultBuilder,
    FaultInjectionRule, FaultInjectionRuleBuilder, FaultOperationType as Operation,
};

use super::test_env::TestEnv;
use turnwheel_platform::fail_points::NoFailPoints;
use turnwheel_storage::store::cosmos::testing::{connect_store, start_in_process};

/// Enough hits to fail one operation of the SDK, which tries up to eight times.
const HITS: u32 = 9;

fn fault_rule(fault: Fault, operation: Operation, hits: Option<u32>) -> Arc<FaultInjectionRule> {
    let result = FaultInjectionResultBuilder::new().with_error(fault).build();
    let condition = FaultInjectionConditionBuilder::new().with_operation_type(operation).build();
    let name = format!("{fault:?} of {operation:?}");
    let rule = FaultInjectionRuleBuilder::new(name, result).with_condition(condition);
    Arc::new(hits.into_iter().fold(rule, FaultInjectionRuleBuilder::with_hit_limit).build())
}

/// The request from which faults are injected.
#[derive(Clone, Copy)]
enum FaultsFrom {
    FirstRequest,
    /// While no request gets a response, the client has to retry and the prompt is never
    /// accepted.
    AcceptedPrompt,
}

/// Runs a prompt with tools over Cosmos.
async fn run_prompt(rules: Vec<Arc<FaultInjectionRule>>, from: FaultsFrom) -> TestEnv {
    let emulator = start_in_process(1);
    for rule in &rules {
        rule.disable();
    }
    let store = connect_store(&emulator, rules.clone()).await;
    let mut env = TestEnv::new(7);
    env.worker_store = Arc::new(store);
    let enable = || rules.iter().for_each(|rule| rule.enable());
    if let FaultsFrom::FirstRequest = from {
        enable();
    }
    let services = env.new_worker(Arc::new(NoFailPoints));
    env.send_prompt(&services).await;
    enable();
    env.run_until_idle().await;
    for rule in &rules {
        rule.disable();
    }
    env
}

async fn assert_same_record_as_without_faults(
    rules: Vec<Arc<FaultInjectionRule>>,
    from: FaultsFrom,
) {
    let good = run_prompt(Vec::new(), from).await;
    let names: Vec<String> = rules.iter().map(|rule| rule.id().to_owned()).collect();
    let bad = run_prompt(rules.clone(), from).await;
    assert!(rules.iter().all(|rule| rule.hit_count() > 0), "{names:?} were never injected");
    assert_eq!(
        bad.normalised_entries().await,
        good.normalised_entries().await,
        "{names:?}: {:#?}",
        bad.run_log
    );
    let head = bad.head().await.unwrap();
    let entries = bad.entries().await;
    assert!(entries.iter().map(|entry| entry.base.seq).eq(1..=head.seq), "{names:?}");
    let events = bad.events().await;
    assert!(events.iter().map(|event| event.n).eq(1..=head.event_seq), "{names:?}");
    let done = bad.executions.lock().unwrap().clone();
    assert_eq!(done.len(), good.executions.lock().unwrap().len(), "{names:?}");
    assert!(done.values().all(|times| *times == 1), "{names:?}: a call ran twice: {done:?}");
    assert_eq!(*bad.model.calls.lock().unwrap(), *good.model.calls.lock().unwrap());
}

#[tokio::test(start_paused = true)]
async fn batch_with_lost_response_is_recognised_as_won() {
    let lost =
        |hits| vec![fault_rule(Fault::ResponseTimeoutAfterService, Operation::BatchItem, hits)];
    Box::pin(assert_same_record_as_without_faults(lost(Some(1)), FaultsFrom::FirstRequest)).await;
    Box::pin(assert_same_record_as_without_faults(lost(Some(HITS)), FaultsFrom::FirstRequest))
        .await;
    // No batch ever gets a response.
    Box::pin(assert_same_record_as_without_faults(lost(None), FaultsFrom::AcceptedPrompt)).await;
}

#[tokio::test(start_paused = true)]
async fn batch_that_never_arrived_is_sent_again() {
    for fault in [
        Fault::Timeout,
        Fault::ServiceUnavailable,
        Fault::InternalServerError,
        Fault::TooManyRequests,
        Fault::RetryWith,
        Fault::ConnectionError,
        Fault::ResponseTimeout,
    ] {
        for hits in [1, HITS] {
            let rules = vec![fault_rule(fault, Operation::BatchItem, Some(hits))];
            Box::pin(assert_same_record_as_without_faults(rules, FaultsFrom::FirstRequest)).await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn failed_read_does_not_decide_commit_winner() {
    let lost = Fault::ResponseTimeoutAfterService;
    let rules = vec![
        fault_rule(lost, Operation::BatchItem, Some(2 * HITS)),
        fault_rule(Fault::ServiceUnavailable, Operation::ReadItem, Some(HITS)),
    ];
    Box::pin(assert_same_record_as_without_faults(rules, FaultsFrom::FirstRequest)).await;
}
