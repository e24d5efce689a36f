//! Tests of due scans over several physical partitions.

use std::collections::BTreeSet;
use std::sync::Arc;

use azure_core::http::StatusCode;
use azure_data_cosmos::fault_injection::{
    CustomResponseBuilder, FaultInjectionConditionBuilder, FaultInjectionResultBuilder,
    FaultInjectionRule, FaultInjectionRuleBuilder, FaultOperationType as Operation,
};

use super::super::testing::{CosmosEmulator, in_process, store};
use super::{head, key};
use crate::clock::Timestamp;
use crate::ids::{ConversationId, ConversationKey, TenantId};
use crate::store::{ConversationStore as _, Document, Partition, StoreError, Write};

const PARTITIONS: u32 = 8;

/// Creates twenty overdue conversations of twenty tenants, which lie in different partitions.
async fn overdue(emulator: &CosmosEmulator) -> BTreeSet<Partition> {
    let store = store(emulator, Vec::new()).await;
    let mut owed = BTreeSet::new();
    for number in 0..20 {
        let conversation_id = ConversationId::new(format!("c{number}"));
        let tenant = TenantId::new(format!("tenant-{number}"));
        let at = Partition::Conversation(ConversationKey { tenant, conversation_id, ..key() });
        let head = Document { due: Some(Timestamp(1)), ..head() };
        store.write(&at, vec![Write::Create(head)]).await.unwrap();
        owed.insert(at);
    }
    owed
}

#[tokio::test]
async fn looks_that_are_cut_short_do_not_leave_out_the_same_ones() {
    let emulator = in_process(PARTITIONS);
    let owed = overdue(&emulator).await;
    let store = store(&emulator, Vec::new()).await;
    let (mut found, mut is_ever_less) = (BTreeSet::new(), false);
    for _ in 0..100 {
        // The scan stops after its first page.
        let first = store.due(Timestamp(1), 800, None).await.unwrap();
        is_ever_less |= first.items.len() < owed.len();
        found.extend(first.items.into_iter().map(|owed| owed.partition));
    }
    assert!(is_ever_less, "some first pages are incomplete");
    assert_eq!(found, owed);
}

/// Rejects that many queries with an error that the SDK does not retry.
fn refused_queries(hits: Option<u32>) -> Arc<FaultInjectionRule> {
    let refusal = CustomResponseBuilder::new(StatusCode::Unauthorized).build();
    let result = FaultInjectionResultBuilder::new().with_custom_response(refusal).build();
    let query = FaultInjectionConditionBuilder::new().with_operation_type(Operation::QueryItem);
    let rule = FaultInjectionRuleBuilder::new("queries", result).with_condition(query.build());
    Arc::new(hits.into_iter().fold(rule, FaultInjectionRuleBuilder::with_hit_limit).build())
}

#[tokio::test]
async fn a_partition_that_does_not_answer_keeps_nothing_from_the_others_and_is_asked_again() {
    let emulator = in_process(PARTITIONS);
    let owed = overdue(&emulator).await;
    let rule = refused_queries(Some(3));
    let store = store(&emulator, vec![Arc::clone(&rule)]).await;
    let (mut found, mut continuation) = (BTreeSet::new(), None);
    loop {
        let page = store.due(Timestamp(1), 800, continuation.as_deref()).await.unwrap();
        found.extend(page.items.into_iter().map(|owed| owed.partition));
        continuation = page.continuation;
        if continuation.is_none() {
            break;
        }
    }
    assert_eq!(rule.hit_count(), 3);
    assert_eq!(found, owed);
}

#[tokio::test]
async fn partitions_that_answer_not_even_twice_are_told_when_all_others_were_asked() {
    let emulator = in_process(PARTITIONS);
    let owed = overdue(&emulator).await;
    let rule = refused_queries(None);
    let store = store(&emulator, vec![Arc::clone(&rule)]).await;
    rule.disable();
    let first = store.due(Timestamp(1), 800, None).await.unwrap();
    rule.enable();
    let second = store.due(Timestamp(1), 800, first.continuation.as_deref()).await.unwrap();
    assert_eq!(second.items.len(), 0, "half of the partitions fail");
    let told = store.due(Timestamp(1), 800, second.continuation.as_deref()).await.unwrap_err();
    assert!(matches!(told, StoreError::Unavailable(_)), "{told:?}");
    rule.disable();
    let again = store.due(Timestamp(1), 800, second.continuation.as_deref()).await.unwrap();
    let found = [first.items, again.items].concat();
    assert_eq!(found.into_iter().map(|owed| owed.partition).collect::<BTreeSet<_>>(), owed);
}

#[tokio::test]
async fn an_account_that_does_not_answer_ends_the_look() {
    let emulator = in_process(PARTITIONS);
    overdue(&emulator).await;
    let store = store(&emulator, vec![refused_queries(None)]).await;
    let refused = store.due(Timestamp(1), 800, None).await.unwrap_err();
    assert!(matches!(refused, StoreError::Unavailable(_)), "{refused:?}");
}
