//! Tests of the mapping of service errors, and of request costs.

use std::error::Error as _;
use std::sync::Arc;

use azure_data_cosmos::fault_injection::{
    FaultInjectionConditionBuilder, FaultInjectionErrorType as Fault, FaultInjectionResultBuilder,
    FaultInjectionRule, FaultInjectionRuleBuilder, FaultOperationType as Operation,
};

use super::{at, document, etag, head, in_process, key, store};
use crate::clock::Timestamp;
use crate::ids::WorkerId;
use crate::store::{
    ClaimRequest, ConversationStore, Freshness, HEAD_ID, HeadQuery, Kind, Selection, StoreError,
    Write,
};
use crate::telemetry::meter::{Cost, Meter, metered};

fn rule(fault: Fault, operation: Operation) -> Arc<FaultInjectionRule> {
    let result = FaultInjectionResultBuilder::new().with_error(fault).build();
    let condition = FaultInjectionConditionBuilder::new().with_operation_type(operation).build();
    let rule = FaultInjectionRuleBuilder::new(format!("{fault:?} of {operation:?}"), result);
    Arc::new(rule.with_condition(condition).build())
}

/// The text of the source of an unavailable error.
fn below(error: &StoreError) -> String {
    assert!(matches!(error, StoreError::Unavailable(_)), "{error:?}");
    error.source().unwrap().to_string()
}

#[tokio::test(start_paused = true)]
async fn a_batch_without_an_answer_may_have_been_applied() {
    for (fault, is_applied) in [
        (Fault::ResponseTimeoutAfterService, true),
        (Fault::ResponseTimeout, false),
        (Fault::ConnectionError, false),
        (Fault::Timeout, false),
        (Fault::ServiceUnavailable, false),
        (Fault::InternalServerError, false),
        (Fault::TooManyRequests, false),
        (Fault::RetryWith, false),
    ] {
        let emulator = in_process(1);
        let rules = vec![rule(fault, Operation::BatchItem)];
        let failing = store(&emulator, rules).await;
        let answer = failing.write(&at(), vec![Write::Create(head())]).await;
        assert!(matches!(answer, Err(StoreError::Unavailable(_))), "{fault:?}: {answer:?}");
        let steady = store(&emulator, Vec::new()).await;
        let stored = steady.read(&at(), HEAD_ID, Freshness::Latest).await.unwrap();
        assert_eq!(stored.is_some(), is_applied, "{fault:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_batch_that_the_sdk_sent_twice_loses_against_itself() {
    let emulator = in_process(1);
    let fault = rule(Fault::ResponseTimeoutAfterService, Operation::BatchItem);
    let once = FaultInjectionRuleBuilder::new("once", fault.result().clone())
        .with_condition(fault.condition().clone())
        .with_hit_limit(1);
    let store = store(&emulator, vec![Arc::new(once.build())]).await;
    let answer = store.write(&at(), vec![Write::Create(head())]).await;
    assert!(matches!(answer, Err(StoreError::Conflict)), "{answer:?}");
    assert!(store.read(&at(), HEAD_ID, Freshness::Latest).await.unwrap().is_some(), "the batch won");
}

#[tokio::test(start_paused = true)]
async fn a_read_that_fails_is_no_missing_document() {
    for fault in [Fault::ServiceUnavailable, Fault::Timeout, Fault::ReadSessionNotAvailable] {
        let emulator = in_process(1);
        let rules = vec![rule(fault, Operation::ReadItem), rule(fault, Operation::QueryItem)];
        let store = store(&emulator, rules).await;
        let answer = store.read(&at(), HEAD_ID, Freshness::Latest).await;
        assert!(matches!(answer, Err(StoreError::Unavailable(_))), "{fault:?}: {answer:?}");
        let answer = store.select(&at(), &Selection::all(Kind::Entry), Freshness::Latest).await;
        assert!(matches!(answer, Err(StoreError::Unavailable(_))), "{fault:?}: {answer:?}");
        let answer = store.due(Timestamp(1), 10, None).await;
        assert!(matches!(answer, Err(StoreError::Unavailable(_))), "{fault:?}: {answer:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_throttled_store_says_so() {
    let emulator = in_process(1);
    let store = store(&emulator, vec![rule(Fault::TooManyRequests, Operation::BatchItem)]).await;
    let error = store.write(&at(), vec![Write::Create(head())]).await.unwrap_err();
    let text = below(&error);
    assert!(text.starts_with("Cosmos returned 429"), "{text}");
    assert!(text.contains("(activity "), "{text}");
}

#[tokio::test]
async fn every_request_is_counted_those_that_fail_too() {
    let emulator = in_process(1);
    let store = store(&emulator, Vec::new()).await;
    let meter = Arc::new(Meter::default());
    let work = async {
        store.write(&at(), vec![Write::Create(head())]).await.unwrap();
        let stale = Write::Replace(head(), Some(etag("\"other\"")));
        let entry = Write::Create(document(Kind::Entry, "e", "{}"));
        store.write(&at(), vec![entry, stale]).await.unwrap_err();
        store.read(&at(), HEAD_ID, Freshness::Latest).await.unwrap();
        store.read(&at(), "nothing", Freshness::Any).await.unwrap();
        store.select(&at(), &Selection::all(Kind::Entry), Freshness::Latest).await.unwrap();
        let (key, worker) = (key(), WorkerId::new("w"));
        let (now, until) = (Timestamp(1), Timestamp(2));
        let request = ClaimRequest { key: &key, worker: &worker, now, until };
        store.claim(request).await.unwrap();
        let query = HeadQuery {
            tenant: key.tenant.clone(),
            user: None,
            state: None,
            limit: 10,
            continuation: None,
        };
        store.heads(&query).await.unwrap();
        store.due(Timestamp(1), 10, None).await.unwrap();
    };
    metered(Arc::clone(&meter), work).await;
    let costs = meter.costs();
    let shown: Vec<(&str, u32)> =
        costs.iter().map(|(operation, cost)| (*operation, cost.requests)).collect();
    assert_eq!(
        shown,
        [
            ("cosmos.claim", 1),
            ("cosmos.due", 2),
            ("cosmos.heads", 1),
            ("cosmos.read", 2),
            ("cosmos.select", 1),
            ("cosmos.write", 2),
        ]
    );
    assert!(costs.values().all(|cost| cost.request_units > 0.0), "{costs:?}");
}

#[tokio::test(start_paused = true)]
async fn what_the_sdk_repeats_is_counted_as_often() {
    let emulator = in_process(1);
    let store = store(&emulator, vec![rule(Fault::ServiceUnavailable, Operation::BatchItem)]).await;
    let meter = Arc::new(Meter::default());
    let work = async { store.write(&at(), vec![Write::Create(head())]).await };
    metered(Arc::clone(&meter), work).await.unwrap_err();
    let Cost { requests, .. } = meter.total("cosmos.write");
    assert!(requests > 1, "{requests}");
}
