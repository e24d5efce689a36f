//! Tests of due scans over several physical partitions.

use std::collections::BTreeSet;
use std::sync::Arc;

use azure_core::http::StatusCode;
use azure_data_cosmos::fault_injection::{
    CustomResponseBuilder, FaultInjectionConditionBuilder, FaultInjectionResultBuilder,
    FaultInjectionRule, FaultInjectionRuleBuilder, FaultOperationType as Operation,
};

use super::super::testing::{CosmosEmulator, connect_store, start_in_process};
use super::{head, key};
use crate::store::{ConversationStore as _, Document, Partition, StoreError, Write};
use turnwheel_json::raw::RawJson;
use turnwheel_platform::clock::Timestamp;
use turnwheel_platform::ids::{ConversationId, ConversationKey, TenantId};

const PARTITIONS: u32 = 8;

/// Creates twenty overdue conversations of twenty tenants, which lie in different partitions.
async fn create_overdue_conversations(emulator: &CosmosEmulator) -> BTreeSet<Partition> {
    let store = connect_store(emulator, Vec::new()).await;
    let mut partitions = BTreeSet::new();
    for number in 0..20 {
        let conversation_id = ConversationId::new(format!("c{number}"));
        let tenant = TenantId::new(format!("tenant-{number}"));
        let at = Partition::Conversation(ConversationKey { tenant, conversation_id, ..key() });
        let head = Document { due: Some(Timestamp(1)), ..head() };
        store.write(&at, vec![Write::Create(head)]).await.unwrap();
        partitions.insert(at);
    }
    partitions
}

#[tokio::test]
async fn interrupted_scans_start_at_different_partitions() {
    let emulator = start_in_process(PARTITIONS);
    let expected = create_overdue_conversations(&emulator).await;
    let store = connect_store(&emulator, Vec::new()).await;
    let (mut found, mut has_partial_page) = (BTreeSet::new(), false);
    for _ in 0..100 {
        // The scan stops after its first page.
        let first = store.list_due(Timestamp(1), 800, None).await.unwrap();
        has_partial_page |= first.items.len() < expected.len();
        found.extend(first.items.into_iter().map(|expected| expected.partition));
    }
    assert!(has_partial_page, "some first pages are incomplete");
    assert_eq!(found, expected);
}

#[tokio::test]
async fn due_heads_show_whether_they_are_leased() {
    let emulator = start_in_process(PARTITIONS);
    let store = connect_store(&emulator, Vec::new()).await;
    for (id, body, is_leased) in [
        (
            "leased",
            r#"{"claim":{"worker":"w","epoch":1,"until":"2026-11-27T00:00:00.000Z"}}"#,
            true,
        ),
        ("free", r#"{"seq":0}"#, false),
        // Stored as text, because Cosmos would change the number.
        ("text", r#"{"seq":0,"amount":1.0}"#, true),
    ] {
        let conversation_id = ConversationId::new(id);
        let at = Partition::Conversation(ConversationKey { conversation_id, ..key() });
        let body = RawJson::from_text(body).unwrap();
        let head = Document { due: Some(Timestamp(1)), body, ..head() };
        store.write(&at, vec![Write::Create(head)]).await.unwrap();
        let mut found = Vec::new();
        let mut continuation = None;
        loop {
            let page = store.list_due(Timestamp(1), 800, continuation.as_deref()).await.unwrap();
            found.extend(page.items.into_iter().filter(|item| item.partition == at));
            continuation = page.continuation;
            if continuation.is_none() {
                break;
            }
        }
        assert_eq!(found.len(), 1, "{id}");
        assert_eq!(found[0].is_leased, is_leased, "{id}");
    }
}

/// Rejects that many queries with an error that the SDK does not retry.
fn rejecting_rule(hits: Option<u32>) -> Arc<FaultInjectionRule> {
    let refusal = CustomResponseBuilder::new(StatusCode::Unauthorized).build();
    let result = FaultInjectionResultBuilder::new().with_custom_response(refusal).build();
    let query = FaultInjectionConditionBuilder::new().with_operation_type(Operation::QueryItem);
    let rule = FaultInjectionRuleBuilder::new("queries", result).with_condition(query.build());
    Arc::new(hits.into_iter().fold(rule, FaultInjectionRuleBuilder::with_hit_limit).build())
}

#[tokio::test]
async fn failed_partition_is_retried_after_the_others() {
    let emulator = start_in_process(PARTITIONS);
    let expected = create_overdue_conversations(&emulator).await;
    let rule = rejecting_rule(Some(3));
    let store = connect_store(&emulator, vec![Arc::clone(&rule)]).await;
    let (mut found, mut continuation) = (BTreeSet::new(), None);
    loop {
        let page = store.list_due(Timestamp(1), 800, continuation.as_deref()).await.unwrap();
        found.extend(page.items.into_iter().map(|expected| expected.partition));
        continuation = page.continuation;
        if continuation.is_none() {
            break;
        }
    }
    assert_eq!(rule.hit_count(), 3);
    assert_eq!(found, expected);
}

#[tokio::test]
async fn partition_error_is_reported_after_second_failure() {
    let emulator = start_in_process(PARTITIONS);
    let expected = create_overdue_conversations(&emulator).await;
    let rule = rejecting_rule(None);
    let store = connect_store(&emulator, vec![Arc::clone(&rule)]).await;
    rule.disable();
    let first = store.list_due(Timestamp(1), 800, None).await.unwrap();
    rule.enable();
    let second = store.list_due(Timestamp(1), 800, first.continuation.as_deref()).await.unwrap();
    assert_eq!(second.items.len(), 0, "half of the partitions fail");
    let error =
        store.list_due(Timestamp(1), 800, second.continuation.as_deref()).await.unwrap_err();
    assert!(matches!(error, StoreError::Unavailable(_)), "{error:?}");
    rule.disable();
    let again = store.list_due(Timestamp(1), 800, second.continuation.as_deref()).await.unwrap();
    let found = [first.items, again.items].concat();
    assert_eq!(
        found.into_iter().map(|expected| expected.partition).collect::<BTreeSet<_>>(),
        expected
    );
}

#[tokio::test]
async fn scan_fails_when_all_partitions_fail() {
    let emulator = start_in_process(PARTITIONS);
    create_overdue_conversations(&emulator).await;
    let store = connect_store(&emulator, vec![rejecting_rule(None)]).await;
    let refused = store.list_due(Timestamp(1), 800, None).await.unwrap_err();
    assert!(matches!(refused, StoreError::Unavailable(_)), "{refused:?}");
}
