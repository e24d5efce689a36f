//! Contract tests that every store implementation passes.
//!
//! The tests share no tenant, so an implementation may use one store for all of them.

mod batches;
mod inbox_counts;
mod leases;
mod lists;
mod random_operations;
mod searches;

use std::sync::Arc;

use serde_json::json;

use crate::store::{
    ConversationStore, Document, DocumentKind, ETag, Freshness, HEAD_ID, Partition, StoredDocument,
    Write, entry_id,
};
use turnwheel_conversation::head::{Head, Lease};
use turnwheel_json::raw::RawJson;
use turnwheel_platform::clock::Timestamp;
use turnwheel_platform::ids::{
    ConversationId, ConversationKey, Ids as _, SystemIds, TenantId, UserId,
};

pub(crate) async fn assert_store_contract(make: impl AsyncFn() -> Arc<dyn ConversationStore>) {
    batches::created_documents_read_back_unchanged(&*make().await).await;
    batches::create_conflicts_when_id_exists(&*make().await).await;
    batches::replace_requires_matching_etag(&*make().await).await;
    batches::delete_requires_matching_etag(&*make().await).await;
    batches::etag_is_never_reused(&*make().await).await;
    batches::conflicting_batch_writes_nothing(&*make().await).await;
    batches::identical_batch_conflicts_when_resent(&*make().await).await;
    batches::batch_rejects_excess_operations_and_bytes(&*make().await).await;
    batches::invalid_requests_are_rejected_with_reason(&*make().await).await;
    batches::receipt_replaces_inbox_item(&*make().await).await;
    batches::time_to_live_is_stored(&*make().await).await;
    batches::concurrent_increments_are_not_lost(&*make().await).await;
    inbox_counts::commit_that_has_not_seen_an_item_loses(&*make().await).await;
    inbox_counts::head_is_due_for_the_earliest_change(&*make().await).await;
    inbox_counts::lease_in_the_head_keeps_its_time(&*make().await).await;
    inbox_counts::unknown_count_stays_unknown(&*make().await).await;
    inbox_counts::missing_and_deleted_conversations_accept_nothing(&*make().await).await;
    inbox_counts::inbox_document_without_count_is_rejected(&*make().await).await;
    inbox_counts::concurrent_changes_are_all_counted(&*make().await).await;
    inbox_counts::concurrent_changes_stay_within_their_room(&*make().await).await;
    inbox_counts::change_outside_of_its_room_is_refused(&*make().await).await;
    lists::selection_of_entries_includes_documents_that_contain_them(&*make().await).await;
    lists::selection_respects_order_and_bounds(&*make().await).await;
    lists::partitions_are_isolated(&*make().await).await;
    lists::user_partitions_are_isolated(&*make().await).await;
    lists::due_items_are_listed_once(&*make().await).await;
    lists::sweep_is_stable_when_work_is_added(&*make().await).await;
    lists::heads_are_listed_newest_first_with_filters(&*make().await).await;
    lists::head_pages_are_stable_when_heads_are_added(&*make().await).await;
    lists::head_pages_may_differ_in_size(&*make().await).await;
    lists::continuation_of_other_query_is_rejected(&*make().await).await;
    searches::newest_entries_with_the_text_are_found(&*make().await).await;
    searches::search_never_leaves_the_user_and_skips_the_conversation(&*make().await).await;
    searches::text_is_compared_literally(&*make().await).await;
    searches::replaced_and_deleted_entries_are_not_found(&*make().await).await;
    searches::invalid_searches_are_rejected(&*make().await).await;
    leases::one_of_two_workers_acquires_lease(&*make().await).await;
    leases::expired_lease_is_taken_over_after_five_seconds(&*make().await).await;
    leases::lease_with_a_known_wrong_end_is_over(&*make().await).await;
    leases::renewed_lease_lasts_longer(&*make().await).await;
    leases::released_lease_is_available_at_once(&*make().await).await;
    leases::lease_holder_is_reported(&*make().await).await;
    leases::lease_requires_existing_head(&*make().await).await;
}

fn fresh_tenant() -> TenantId {
    TenantId::new(format!("t{}", SystemIds.new_id()))
}

fn key_of(tenant: &TenantId, user: &str, conversation: &str) -> ConversationKey {
    ConversationKey {
        tenant: tenant.clone(),
        user: UserId::new(user),
        conversation_id: ConversationId::new(conversation),
    }
}

fn fresh_conversation() -> Partition {
    Partition::Conversation(key_of(&fresh_tenant(), "ada", "c1"))
}

fn document(kind: DocumentKind, id: &str, body: &str) -> Document {
    let body = RawJson::from_text(body).unwrap();
    let ttl = matches!(kind, DocumentKind::Live | DocumentKind::Watch).then_some(60);
    Document { body, ttl, ..Document::new(id, kind, &(), None) }
}

fn entry(seq: u64) -> Document {
    document(DocumentKind::Entry, &entry_id(seq), &format!(r#"{{"seq":{seq}}}"#))
}

fn due_at(document: Document, due: u64) -> Document {
    Document { due: Some(Timestamp(due)), ..document }
}

/// A head as the driver writes it, so that a store can read the lease from it.
fn head(key: &ConversationKey, created_at: u64, state: &str, claim: Option<&Lease>) -> Document {
    let body = json!({
        "schema": 1, "minReader": 1,
        "tenant": key.tenant, "user": key.user, "conversationId": key.conversation_id,
        "incarnation": "0a1b2c3d", "commitId": SystemIds.new_id(), "revision": 1,
        "claim": claim, "phase": {"owed": "idle"}, "seq": 0, "eventSeq": 0, "turn": 0,
        "agent": "demo", "createdAt": created_at, "updatedAt": created_at,
    });
    let head = Document::new(HEAD_ID, DocumentKind::Head, &body, None);
    head.body.read::<Head>().unwrap();
    Document {
        created_at: Some(Timestamp(created_at)),
        state: Some(state.to_owned()),
        inbox_count: Some(0),
        ..head
    }
}

/// Creates the head of a fresh conversation.
async fn create_conversation(store: &dyn ConversationStore) -> Partition {
    let key = key_of(&fresh_tenant(), "ada", "c1");
    let at = Partition::Conversation(key.clone());
    create(store, &at, head(&key, 1, "running", None)).await;
    at
}

async fn create_in_inbox(store: &dyn ConversationStore, at: &Partition, id: &str) -> ETag {
    let item = document(DocumentKind::Inbox, id, "{}");
    let writes = vec![Write::Create(item), Write::CountInboxChange { due: None, room: None }];
    store.write(at, writes).await.unwrap().into_iter().next().unwrap()
}

async fn create(store: &dyn ConversationStore, at: &Partition, document: Document) -> ETag {
    let etags = store.write(at, vec![Write::Create(document)]).await.unwrap();
    etags.into_iter().next().unwrap()
}

async fn read_latest(
    store: &dyn ConversationStore,
    at: &Partition,
    id: &str,
) -> Option<StoredDocument> {
    store.read(at, id, Freshness::Latest).await.unwrap()
}
