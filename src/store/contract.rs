//! Contract tests that every store implementation passes.
//!
//! The tests share no tenant, so an implementation may use one store for all of them.

mod batches;
mod claims;
mod lists;
mod random;

use std::sync::Arc;

use serde_json::json;

use crate::agent::head::{Claim, Head};
use crate::agent::raw::RawJson;
use crate::clock::Timestamp;
use crate::ids::{ConversationId, ConversationKey, Ids as _, SystemIds, TenantId, UserId};
use crate::store::{
    ConversationStore, Document, ETag, Freshness, HEAD_ID, Kind, Partition, Stored, Write, entry_id,
};

pub(crate) async fn contract(make: impl AsyncFn() -> Arc<dyn ConversationStore>) {
    batches::what_was_created_reads_back_as_it_was(&*make().await).await;
    batches::an_id_is_created_once(&*make().await).await;
    batches::a_replace_needs_the_version_it_names(&*make().await).await;
    batches::a_delete_needs_the_version_it_names(&*make().await).await;
    batches::an_etag_never_comes_back(&*make().await).await;
    batches::a_refused_batch_leaves_nothing(&*make().await).await;
    batches::the_same_batch_is_not_taken_twice(&*make().await).await;
    batches::a_batch_has_bounds(&*make().await).await;
    batches::what_no_store_takes_is_named(&*make().await).await;
    batches::a_receipt_replaces_its_inbox_item(&*make().await).await;
    batches::what_lives_for_a_time_is_kept_with_it(&*make().await).await;
    batches::racing_increments_lose_nothing(&*make().await).await;
    lists::a_selection_has_order_and_bounds(&*make().await).await;
    lists::partitions_do_not_see_each_other(&*make().await).await;
    lists::what_is_due_is_listed_once(&*make().await).await;
    lists::a_sweep_is_not_disturbed_by_new_work(&*make().await).await;
    lists::heads_are_newest_first_by_user_and_state(&*make().await).await;
    lists::pages_of_heads_lose_and_double_nothing_while_new_ones_come(&*make().await).await;
    lists::a_continuation_belongs_to_its_query(&*make().await).await;
    claims::one_of_two_workers_gets_the_claim(&*make().await).await;
    claims::an_ended_claim_is_taken_over_five_seconds_later(&*make().await).await;
    claims::a_renewed_claim_lasts_longer(&*make().await).await;
    claims::a_claim_given_back_is_free_at_once(&*make().await).await;
    claims::whoever_has_the_claim_is_named(&*make().await).await;
    claims::a_claim_brings_what_waits_by_id(&*make().await).await;
    claims::only_what_exists_is_claimed_and_a_deleted_head_is(&*make().await).await;
}

fn fresh_tenant() -> TenantId {
    TenantId::new(format!("t{}", SystemIds.fresh()))
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

fn document(kind: Kind, id: &str, body: &str) -> Document {
    let body = RawJson::from_text(body).unwrap();
    let ttl = matches!(kind, Kind::Live | Kind::Watch).then_some(60);
    Document { id: id.to_owned(), kind, body, due: None, created_at: None, state: None, ttl }
}

fn entry(seq: u64) -> Document {
    document(Kind::Entry, &entry_id(seq), &format!(r#"{{"seq":{seq}}}"#))
}

fn due_at(document: Document, due: u64) -> Document {
    Document { due: Some(Timestamp(due)), ..document }
}

/// A head as the driver writes it, so that a store can read the lease from it.
fn head(key: &ConversationKey, created_at: u64, state: &str, claim: Option<&Claim>) -> Document {
    let body = json!({
        "schema": 1, "minReader": 1,
        "tenant": key.tenant, "user": key.user, "conversationId": key.conversation_id,
        "incarnation": "0a1b2c3d", "commitId": SystemIds.fresh(), "revision": 1,
        "claim": claim, "phase": {"owed": "idle"}, "seq": 0, "eventSeq": 0, "turn": 0,
        "agent": "demo", "createdAt": created_at, "updatedAt": created_at,
    });
    let body = RawJson::of(&body);
    body.read::<Head>().unwrap();
    Document {
        id: HEAD_ID.to_owned(),
        kind: Kind::Head,
        body,
        due: None,
        created_at: Some(Timestamp(created_at)),
        state: Some(state.to_owned()),
        ttl: None,
    }
}

async fn create(store: &dyn ConversationStore, at: &Partition, document: Document) -> ETag {
    let etags = store.write(at, vec![Write::Create(document)]).await.unwrap();
    etags.into_iter().next().unwrap()
}

async fn latest(store: &dyn ConversationStore, at: &Partition, id: &str) -> Option<Stored> {
    store.read(at, id, Freshness::Latest).await.unwrap()
}
