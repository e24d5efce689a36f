//! Lost responses of Cosmos: the SDK injects its own faults between the store and the emulator.

use std::sync::Arc;

use azure_data_cosmos::fault_injection::{
    FaultInjectionConditionBuilder, FaultInjectionErrorType as Fault, FaultInjectionResultBuilder,
    FaultInjectionRule, FaultInjectionRuleBuilder, FaultOperationType as Operation,
};

use super::bench::Bench;
use crate::store::cosmos::testing::{in_process, store};
use crate::turn::NoProbe;

/// Enough hits to fail one operation of the SDK, which tries up to eight times.
const SOME: u32 = 9;

fn rule(fault: Fault, operation: Operation, hits: Option<u32>) -> Arc<FaultInjectionRule> {
    let result = FaultInjectionResultBuilder::new().with_error(fault).build();
    let condition = FaultInjectionConditionBuilder::new().with_operation_type(operation).build();
    let name = format!("{fault:?} of {operation:?}");
    let rule = FaultInjectionRuleBuilder::new(name, result).with_condition(condition);
    Arc::new(hits.into_iter().fold(rule, FaultInjectionRuleBuilder::with_hit_limit).build())
}

/// The request from which faults are injected.
#[derive(Clone, Copy)]
enum From {
    TheFirstRequest,
    /// While no request gets a response, the client is asked to retry and the prompt is never
    /// accepted.
    TheAcceptedPrompt,
}

/// Runs a prompt with tools over Cosmos.
async fn day(rules: Vec<Arc<FaultInjectionRule>>, from: From) -> Bench {
    let emulator = in_process(1);
    for rule in &rules {
        rule.disable();
    }
    let store = store(&emulator, rules.clone()).await;
    let mut bench = Bench::new(7);
    bench.shared = Arc::new(store);
    let enable = || rules.iter().for_each(|rule| rule.enable());
    if let From::TheFirstRequest = from {
        enable();
    }
    let world = bench.worker(Arc::new(NoProbe));
    bench.ask(&world).await;
    enable();
    bench.run().await;
    for rule in &rules {
        rule.disable();
    }
    bench
}

async fn assert_as_on_a_good_day(rules: Vec<Arc<FaultInjectionRule>>, from: From) {
    let good = day(Vec::new(), from).await;
    let names: Vec<String> = rules.iter().map(|rule| rule.id().to_owned()).collect();
    let bad = day(rules.clone(), from).await;
    assert!(rules.iter().all(|rule| rule.hit_count() > 0), "{names:?} were never injected");
    assert_eq!(bad.normal().await, good.normal().await, "{names:?}: {:#?}", bad.story);
    let head = bad.head().await.unwrap();
    let entries = bad.entries().await;
    assert!(entries.iter().map(|entry| entry.base.seq).eq(1..=head.seq), "{names:?}");
    let events = bad.events().await;
    assert!(events.iter().map(|event| event.n).eq(1..=head.event_seq), "{names:?}");
    let done = bad.done.lock().unwrap().clone();
    assert_eq!(done.len(), good.done.lock().unwrap().len(), "{names:?}");
    assert!(done.values().all(|times| *times == 1), "{names:?}: a call ran twice: {done:?}");
    assert_eq!(*bad.model.answers.lock().unwrap(), *good.model.answers.lock().unwrap());
}

#[tokio::test(start_paused = true)]
async fn a_batch_whose_answer_was_lost_is_recognised_as_won() {
    let lost = |hits| vec![rule(Fault::ResponseTimeoutAfterService, Operation::BatchItem, hits)];
    Box::pin(assert_as_on_a_good_day(lost(Some(1)), From::TheFirstRequest)).await;
    Box::pin(assert_as_on_a_good_day(lost(Some(SOME)), From::TheFirstRequest)).await;
    // No batch ever gets a response.
    Box::pin(assert_as_on_a_good_day(lost(None), From::TheAcceptedPrompt)).await;
}

#[tokio::test(start_paused = true)]
async fn a_batch_that_was_never_taken_is_sent_again() {
    for fault in [
        Fault::Timeout,
        Fault::ServiceUnavailable,
        Fault::InternalServerError,
        Fault::TooManyRequests,
        Fault::RetryWith,
        Fault::ConnectionError,
        Fault::ResponseTimeout,
    ] {
        for hits in [1, SOME] {
            let rules = vec![rule(fault, Operation::BatchItem, Some(hits))];
            Box::pin(assert_as_on_a_good_day(rules, From::TheFirstRequest)).await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_read_that_fails_while_the_winner_is_looked_for_decides_nothing() {
    let lost = Fault::ResponseTimeoutAfterService;
    let rules = vec![
        rule(lost, Operation::BatchItem, Some(2 * SOME)),
        rule(Fault::ServiceUnavailable, Operation::ReadItem, Some(SOME)),
    ];
    Box::pin(assert_as_on_a_good_day(rules, From::TheFirstRequest)).await;
}
