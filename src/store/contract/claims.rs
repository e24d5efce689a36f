//! Contract tests of leases: one worker at a time, for stores with leases inside and outside heads.

use futures_util::future::join;

use super::{create, document, due_at, entry, fresh_tenant, head, key_of, latest};
use crate::agent::head::{Claim, Head};
use crate::clock::Timestamp;
use crate::ids::{ConversationKey, WorkerId};
use crate::store::{
    ClaimRequest, Claimed, ConversationStore, HEAD_ID, Kind, Partition, StoreError, Stored, Write,
};

type Store<'a> = &'a dyn ConversationStore;

async fn begin(store: Store<'_>) -> ConversationKey {
    let key = key_of(&fresh_tenant(), "ada", "c1");
    let document = head(&key, 1, "running", None);
    create(store, &Partition::Conversation(key.clone()), document).await;
    key
}

async fn ask(
    store: Store<'_>,
    key: &ConversationKey,
    worker: &str,
    [now, until]: [u64; 2],
) -> Claimed {
    let (worker, now, until) = (WorkerId::new(worker), Timestamp(now), Timestamp(until));
    store.claim(ClaimRequest { key, worker: &worker, now, until }).await.unwrap()
}

/// Commits a head with the lease, which acquires it, or without, which releases it.
async fn commit(
    store: Store<'_>,
    key: &ConversationKey,
    old: &Stored,
    claim: Option<(&str, u64)>,
) -> bool {
    let claim = claim.map(|(worker, until)| Claim {
        worker: WorkerId::new(worker),
        epoch: 1,
        until: Timestamp(until),
    });
    let write = Write::Replace(head(key, 1, "running", claim.as_ref()), Some(old.etag.clone()));
    match store.write(&Partition::Conversation(key.clone()), vec![write]).await {
        Ok(_) => true,
        Err(StoreError::Conflict) => false,
        Err(error) => panic!("{error}"),
    }
}

/// Acquires the lease as a worker does. Returns true on success.
async fn take(store: Store<'_>, key: &ConversationKey, worker: &str, times: [u64; 2]) -> bool {
    match ask(store, key, worker, times).await {
        Claimed::Missing | Claimed::Held { .. } => false,
        Claimed::Free { is_settled: true, .. } => true,
        Claimed::Free { head, is_settled: false, .. } => {
            commit(store, key, &head, Some((worker, times[1]))).await
        }
    }
}

pub(super) async fn one_of_two_workers_gets_the_claim(store: Store<'_>) {
    let key = begin(store).await;
    let one = take(store, &key, "w1", [1_000, 61_000]);
    let (one, two) = join(one, take(store, &key, "w2", [1_000, 61_000])).await;
    assert!(one != two, "exactly one worker gets the lease: {one} {two}");
    let (winner, loser) = if one { ("w1", "w2") } else { ("w2", "w1") };
    let held = ask(store, &key, loser, [2_000, 62_000]).await;
    assert_eq!(held, Claimed::Held { until: Timestamp(61_000) });
    assert!(take(store, &key, winner, [2_000, 62_000]).await, "its own lease again");
}

pub(super) async fn an_ended_claim_is_taken_over_five_seconds_later(store: Store<'_>) {
    let key = begin(store).await;
    assert!(take(store, &key, "w1", [1_000, 61_000]).await);
    for now in [60_999, 61_000, 65_999] {
        let held = ask(store, &key, "w2", [now, now + 60_000]).await;
        assert_eq!(held, Claimed::Held { until: Timestamp(61_000) }, "at {now}");
    }
    assert!(take(store, &key, "w2", [66_000, 126_000]).await);
    let held = ask(store, &key, "w1", [66_001, 126_001]).await;
    assert_eq!(held, Claimed::Held { until: Timestamp(126_000) });
}

pub(super) async fn a_renewed_claim_lasts_longer(store: Store<'_>) {
    let key = begin(store).await;
    assert!(take(store, &key, "w1", [1_000, 61_000]).await);
    let renew = async |worker: &str, now: u64| {
        let worker = WorkerId::new(worker);
        let (now, until) = (Timestamp(now), Timestamp(now + 60_000));
        store.renew(ClaimRequest { key: &key, worker: &worker, now, until }).await
    };
    if renew("w1", 21_000).await.unwrap() {
        let stolen = renew("w2", 21_000).await;
        assert!(matches!(stolen, Err(StoreError::Conflict)), "{stolen:?}");
    } else {
        assert!(take(store, &key, "w1", [21_000, 81_000]).await, "renewed by a commit");
    }
    let held = ask(store, &key, "w2", [70_000, 130_000]).await;
    assert_eq!(held, Claimed::Held { until: Timestamp(81_000) });
    assert!(take(store, &key, "w2", [86_000, 146_000]).await);
    if let Ok(is_renewed) = renew("w1", 87_000).await {
        assert!(!is_renewed, "another worker has taken the lease over");
    }
}

pub(super) async fn a_claim_given_back_is_free_at_once(store: Store<'_>) {
    let key = begin(store).await;
    assert!(take(store, &key, "w1", [1_000, 61_000]).await);
    let Claimed::Free { head, .. } = ask(store, &key, "w1", [2_000, 62_000]).await else {
        panic!("a worker can acquire its own lease again");
    };
    assert!(commit(store, &key, &head, None).await);
    store.release(&key, &WorkerId::new("w2")).await;
    store.release(&key, &WorkerId::new("w1")).await;
    store.release(&key, &WorkerId::new("w1")).await;
    assert!(take(store, &key, "w2", [3_000, 63_000]).await);
    store.release(&key, &WorkerId::new("w1")).await;
    let held = ask(store, &key, "w1", [3_001, 63_001]).await;
    assert_eq!(held, Claimed::Held { until: Timestamp(63_000) }, "a late release changes nothing");
}

/// Reads the worker and the end of the lease from the store, or else from the head.
async fn named(store: Store<'_>, key: &ConversationKey) -> Option<(String, u64)> {
    if let Some((worker, until)) = store.holder(key) {
        return Some((worker.to_string(), until.0));
    }
    let stored = latest(store, &Partition::Conversation(key.clone()), HEAD_ID).await.unwrap();
    let claim = stored.document.body.read::<Head>().unwrap().claim?;
    Some((claim.worker.to_string(), claim.until.0))
}

pub(super) async fn whoever_has_the_claim_is_named(store: Store<'_>) {
    let key = begin(store).await;
    assert_eq!(named(store, &key).await, None);
    assert!(take(store, &key, "w1", [1_000, 61_000]).await);
    assert_eq!(named(store, &key).await, Some(("w1".to_owned(), 61_000)));
    let Claimed::Free { head, .. } = ask(store, &key, "w1", [1_000, 61_000]).await else {
        panic!("a worker can acquire its own lease again");
    };
    assert!(commit(store, &key, &head, None).await);
    store.release(&key, &WorkerId::new("w1")).await;
    assert_eq!(named(store, &key).await, None);
}

pub(super) async fn a_claim_brings_what_waits_by_id(store: Store<'_>) {
    let waiting = async |worker: &str, key: &ConversationKey| {
        let claimed = ask(store, key, worker, [1_000, 61_000]).await;
        let Claimed::Free { head, inbox, .. } = claimed else { panic!("not available: {claimed:?}") };
        store.release(key, &WorkerId::new(worker)).await;
        (head, inbox)
    };
    let key = begin(store).await;
    let at = Partition::Conversation(key.clone());
    assert_eq!(waiting("w1", &key).await.1, []);
    let second = due_at(document(Kind::Inbox, "k-2", r#"{"n":2}"#), 500);
    let first = document(Kind::Inbox, "k-1", r#"{"n":1}"#);
    for other in [entry(1), document(Kind::Receipt, "k-0", "{}"), document(Kind::Notice, "n", "{}")]
    {
        create(store, &at, other).await;
    }
    create(store, &at, second.clone()).await;
    create(store, &at, first.clone()).await;
    let (stored, inbox) = waiting("w2", &key).await;
    let documents: Vec<_> = inbox.iter().map(|stored| stored.document.clone()).collect();
    assert_eq!(documents, [first, second]);
    // The commit that applies an item removes it from the inbox.
    let taken = document(Kind::Receipt, "k-1", r#"{"n":1}"#);
    let writes = vec![
        Write::Replace(head(&key, 1, "running", None), Some(stored.etag)),
        Write::Replace(taken, inbox.first().map(|item| item.etag.clone())),
    ];
    store.write(&at, writes).await.unwrap();
    let (_, inbox) = waiting("w3", &key).await;
    let ids: Vec<_> = inbox.iter().map(|stored| stored.document.id.as_str()).collect();
    assert_eq!(ids, ["k-2"]);
}

pub(super) async fn only_what_exists_is_claimed_and_a_deleted_head_is(store: Store<'_>) {
    let key = key_of(&fresh_tenant(), "ada", "c1");
    assert_eq!(ask(store, &key, "w1", [1, 2]).await, Claimed::Missing);
    let at = Partition::Conversation(key.clone());
    create(store, &at, head(&key, 1, "deleted", None)).await;
    assert!(take(store, &key, "w2", [1, 2]).await, "w1 has no lease on a missing head");
    let bad = key_of(&fresh_tenant(), "ada", "a/b");
    let worker = WorkerId::new("w1");
    let request =
        ClaimRequest { key: &bad, worker: &worker, now: Timestamp(1), until: Timestamp(2) };
    assert!(matches!(store.claim(request).await, Err(StoreError::Invalid(_))));
}
