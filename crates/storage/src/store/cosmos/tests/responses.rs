//! Tests of the mapping of service errors, and of request costs.

use std::error::Error as _;
use std::sync::Arc;

use azure_data_cosmos::fault_injection::{
    FaultInjectionConditionBuilder, FaultInjectionErrorType as Fault, FaultInjectionResultBuilder,
    FaultInjectionRule, FaultInjectionRuleBuilder, FaultOperationType as Operation,
};

use super::{at, connect_store, document, etag, head, key, start_in_process};
use crate::store::{
    ConversationStore, DocumentKind, Freshness, HEAD_ID, HeadQuery, LeaseRequest, Selection,
    StoreError, Write,
};
use turnwheel_platform::clock::Timestamp;
use turnwheel_platform::ids::WorkerId;
use turnwheel_platform::telemetry::cost_meter::{CostMeter, MeteredCost, with_meter};

fn rule(fault: Fault, operation: Operation) -> Arc<FaultInjectionRule> {
    let result = FaultInjectionResultBuilder::new().with_error(fault).build();
    let condition = FaultInjectionConditionBuilder::new().with_operation_type(operation).build();
    let rule = FaultInjectionRuleBuilder::new(format!("{fault:?} of {operation:?}"), result);
    Arc::new(rule.with_condition(condition).build())
}

/// The text of the source of an unavailable error.
fn source_text(error: &StoreError) -> String {
    assert!(matches!(error, StoreError::Unavailable(_)), "{error:?}");
    error.source().unwrap().to_string()
}

#[tokio::test(start_paused = true)]
async fn batch_without_response_may_be_applied() {
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
        let emulator = start_in_process(1);
        let rules = vec![rule(fault, Operation::BatchItem)];
        let failing = connect_store(&emulator, rules).await;
        let answer = failing.write(&at(), vec![Write::Create(head())]).await;
        assert!(matches!(answer, Err(StoreError::Unavailable(_))), "{fault:?}: {answer:?}");
        let healthy = connect_store(&emulator, Vec::new()).await;
        let stored = healthy.read(&at(), HEAD_ID, Freshness::Latest).await.unwrap();
        assert_eq!(stored.is_some(), is_applied, "{fault:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn batch_conflicts_when_sdk_sends_it_twice() {
    let emulator = start_in_process(1);
    let fault = rule(Fault::ResponseTimeoutAfterService, Operation::BatchItem);
    let once = FaultInjectionRuleBuilder::new("once", fault.result().clone())
        .with_condition(fault.condition().clone())
        .with_hit_limit(1);
    let store = connect_store(&emulator, vec![Arc::new(once.build())]).await;
    let answer = store.write(&at(), vec![Write::Create(head())]).await;
    assert!(matches!(answer, Err(StoreError::Conflict)), "{answer:?}");
    assert!(
        store.read(&at(), HEAD_ID, Freshness::Latest).await.unwrap().is_some(),
        "the batch won"
    );
}

#[tokio::test(start_paused = true)]
async fn failed_read_is_not_reported_as_missing() {
    for fault in [Fault::ServiceUnavailable, Fault::Timeout, Fault::ReadSessionNotAvailable] {
        let emulator = start_in_process(1);
        let rules = vec![rule(fault, Operation::ReadItem), rule(fault, Operation::QueryItem)];
        let store = connect_store(&emulator, rules).await;
        let answer = store.read(&at(), HEAD_ID, Freshness::Latest).await;
        assert!(matches!(answer, Err(StoreError::Unavailable(_))), "{fault:?}: {answer:?}");
        let answer =
            store.select(&at(), &Selection::all(DocumentKind::Entry), Freshness::Latest).await;
        assert!(matches!(answer, Err(StoreError::Unavailable(_))), "{fault:?}: {answer:?}");
        let answer = store.list_due(Timestamp(1), 10, None).await;
        assert!(matches!(answer, Err(StoreError::Unavailable(_))), "{fault:?}: {answer:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn throttling_error_shows_status() {
    let emulator = start_in_process(1);
    let store =
        connect_store(&emulator, vec![rule(Fault::TooManyRequests, Operation::BatchItem)]).await;
    let error = store.write(&at(), vec![Write::Create(head())]).await.unwrap_err();
    let text = source_text(&error);
    assert!(text.starts_with("Cosmos returned 429"), "{text}");
    assert!(text.contains("(activity "), "{text}");
}

#[tokio::test]
async fn successful_and_failed_requests_are_counted() {
    let emulator = start_in_process(1);
    let store = connect_store(&emulator, Vec::new()).await;
    let meter = Arc::new(CostMeter::default());
    let work = async {
        store.write(&at(), vec![Write::Create(head())]).await.unwrap();
        let stale = Write::Replace(head(), Some(etag("\"other\"")));
        let entry = Write::Create(document(DocumentKind::Entry, "e", "{}"));
        store.write(&at(), vec![entry, stale]).await.unwrap_err();
        store.read(&at(), HEAD_ID, Freshness::Latest).await.unwrap();
        store.read(&at(), "nothing", Freshness::Any).await.unwrap();
        store.select(&at(), &Selection::all(DocumentKind::Entry), Freshness::Latest).await.unwrap();
        let (key, worker) = (key(), WorkerId::new("w"));
        let (now, until) = (Timestamp(1), Timestamp(2));
        let request = LeaseRequest { key: &key, worker: &worker, now, until, expired: None };
        store.acquire_lease(request).await.unwrap();
        let query = HeadQuery {
            tenant: key.tenant.clone(),
            user: None,
            state: None,
            limit: 10,
            continuation: None,
        };
        store.list_heads(&query).await.unwrap();
        store.list_due(Timestamp(1), 10, None).await.unwrap();
    };
    with_meter(Arc::clone(&meter), work).await;
    let costs = meter.costs();
    let shown: Vec<(&str, u32)> =
        costs.iter().map(|(operation, cost)| (*operation, cost.requests)).collect();
    assert_eq!(
        shown,
        [
            ("cosmos.due", 2),
            ("cosmos.heads", 1),
            ("cosmos.read", 3),
            ("cosmos.select", 1),
            ("cosmos.write", 2),
        ]
    );
    assert!(costs.values().all(|cost| cost.request_units > 0.0), "{costs:?}");
}

#[tokio::test(start_paused = true)]
async fn sdk_retries_are_counted() {
    let emulator = start_in_process(1);
    let store =
        connect_store(&emulator, vec![rule(Fault::ServiceUnavailable, Operation::BatchItem)]).await;
    let meter = Arc::new(CostMeter::default());
    let work = async { store.write(&at(), vec![Write::Create(head())]).await };
    with_meter(Arc::clone(&meter), work).await.unwrap_err();
    let MeteredCost { requests, .. } = meter.total("cosmos.write");
    assert!(requests > 1, "{requests}");
}
