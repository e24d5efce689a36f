//! Contract tests of leases: one worker at a time, for stores with leases inside and outside heads.

use futures_util::future::join;

use super::{create, fresh_tenant, head, key_of, read_latest};
use crate::store::{
    ConversationStore, HEAD_ID, LeaseOutcome, LeaseRequest, Partition, StoreError, StoredDocument,
    Write,
};
use turnwheel_conversation::head::{Head, Lease};
use turnwheel_platform::clock::Timestamp;
use turnwheel_platform::ids::{ConversationKey, WorkerId};

type Store<'a> = &'a dyn ConversationStore;

async fn create_conversation(store: Store<'_>) -> ConversationKey {
    let key = key_of(&fresh_tenant(), "ada", "c1");
    let document = head(&key, 1, "running", None);
    create(store, &Partition::Conversation(key.clone()), document).await;
    key
}

async fn try_acquire(
    store: Store<'_>,
    key: &ConversationKey,
    worker: &str,
    [now, until]: [u64; 2],
) -> LeaseOutcome {
    let (worker, now, until) = (WorkerId::new(worker), Timestamp(now), Timestamp(until));
    store
        .acquire_lease(LeaseRequest { key, worker: &worker, now, until, expired: None })
        .await
        .unwrap()
}

/// Commits a head with the lease, which acquires it, or without, which releases it.
async fn commit(
    store: Store<'_>,
    key: &ConversationKey,
    old: &StoredDocument,
    lease: Option<(&str, u64)>,
) -> bool {
    let lease = lease.map(|(worker, until)| Lease {
        worker: WorkerId::new(worker),
        epoch: 1,
        until: Timestamp(until),
    });
    let write = Write::Replace(head(key, 1, "running", lease.as_ref()), Some(old.etag.clone()));
    match store.write(&Partition::Conversation(key.clone()), vec![write]).await {
        Ok(_) => true,
        Err(StoreError::Conflict) => false,
        Err(error) => panic!("{error}"),
    }
}

/// Acquires the lease as a worker does. Returns true on success.
async fn acquire(store: Store<'_>, key: &ConversationKey, worker: &str, times: [u64; 2]) -> bool {
    match try_acquire(store, key, worker, times).await {
        LeaseOutcome::Missing | LeaseOutcome::Leased { .. } => false,
        LeaseOutcome::Available { is_acquired: true, .. } => true,
        LeaseOutcome::Available { head, is_acquired: false, .. } => {
            commit(store, key, &head, Some((worker, times[1]))).await
        }
    }
}

pub(super) async fn one_of_two_workers_acquires_lease(store: Store<'_>) {
    let key = create_conversation(store).await;
    let one = acquire(store, &key, "w1", [1_000, 61_000]);
    let (one, two) = join(one, acquire(store, &key, "w2", [1_000, 61_000])).await;
    assert!(one != two, "exactly one worker gets the lease: {one} {two}");
    let (winner, loser) = if one { ("w1", "w2") } else { ("w2", "w1") };
    let held = try_acquire(store, &key, loser, [2_000, 62_000]).await;
    assert_eq!(held, LeaseOutcome::Leased { until: Timestamp(61_000) });
    assert!(acquire(store, &key, winner, [2_000, 62_000]).await, "its own lease again");
}

pub(super) async fn expired_lease_is_taken_over_after_five_seconds(store: Store<'_>) {
    let key = create_conversation(store).await;
    assert!(acquire(store, &key, "w1", [1_000, 61_000]).await);
    for now in [60_999, 61_000, 65_999] {
        let held = try_acquire(store, &key, "w2", [now, now + 60_000]).await;
        assert_eq!(held, LeaseOutcome::Leased { until: Timestamp(61_000) }, "at {now}");
    }
    assert!(acquire(store, &key, "w2", [66_000, 126_000]).await);
    let held = try_acquire(store, &key, "w1", [66_001, 126_001]).await;
    assert_eq!(held, LeaseOutcome::Leased { until: Timestamp(126_000) });
}

/// Stores with leases outside heads measure them by their own monotonic clock.
pub(super) async fn lease_with_a_known_wrong_end_is_over(store: Store<'_>) {
    let key = create_conversation(store).await;
    assert!(acquire(store, &key, "w1", [9_000_000, 9_060_000]).await);
    let worker = WorkerId::new("w2");
    for (expired, is_over) in [(9_059_999, false), (9_060_000, store.has_leases_in_heads())] {
        let request = LeaseRequest {
            key: &key,
            worker: &worker,
            now: Timestamp(1_000),
            until: Timestamp(61_000),
            expired: Some(Timestamp(expired)),
        };
        let outcome = store.acquire_lease(request).await.unwrap();
        assert_eq!(matches!(outcome, LeaseOutcome::Available { .. }), is_over, "{outcome:?}");
    }
}

pub(super) async fn renewed_lease_lasts_longer(store: Store<'_>) {
    let key = create_conversation(store).await;
    assert!(acquire(store, &key, "w1", [1_000, 61_000]).await);
    let renew = async |worker: &str, now: u64| {
        let worker = WorkerId::new(worker);
        let (now, until) = (Timestamp(now), Timestamp(now + 60_000));
        store
            .renew_lease(LeaseRequest { key: &key, worker: &worker, now, until, expired: None })
            .await
    };
    if renew("w1", 21_000).await.unwrap() {
        let stolen = renew("w2", 21_000).await;
        assert!(matches!(stolen, Err(StoreError::Conflict)), "{stolen:?}");
    } else {
        assert!(acquire(store, &key, "w1", [21_000, 81_000]).await, "renewed by a commit");
    }
    let held = try_acquire(store, &key, "w2", [70_000, 130_000]).await;
    assert_eq!(held, LeaseOutcome::Leased { until: Timestamp(81_000) });
    assert!(acquire(store, &key, "w2", [86_000, 146_000]).await);
    if let Ok(is_renewed) = renew("w1", 87_000).await {
        assert!(!is_renewed, "another worker has taken the lease over");
    }
}

pub(super) async fn released_lease_is_available_at_once(store: Store<'_>) {
    let key = create_conversation(store).await;
    assert!(acquire(store, &key, "w1", [1_000, 61_000]).await);
    let LeaseOutcome::Available { head, .. } =
        try_acquire(store, &key, "w1", [2_000, 62_000]).await
    else {
        panic!("a worker can acquire its own lease again");
    };
    assert!(commit(store, &key, &head, None).await);
    store.release_lease(&key, &WorkerId::new("w2")).await;
    store.release_lease(&key, &WorkerId::new("w1")).await;
    store.release_lease(&key, &WorkerId::new("w1")).await;
    assert!(acquire(store, &key, "w2", [3_000, 63_000]).await);
    store.release_lease(&key, &WorkerId::new("w1")).await;
    let held = try_acquire(store, &key, "w1", [3_001, 63_001]).await;
    assert_eq!(
        held,
        LeaseOutcome::Leased { until: Timestamp(63_000) },
        "a late release changes nothing"
    );
}

/// Reads the worker and the end of the lease from the store, or else from the head.
async fn lease_holder(store: Store<'_>, key: &ConversationKey) -> Option<(String, u64)> {
    if let Some((worker, until)) = store.lease_holder(key) {
        return Some((worker.to_string(), until.0));
    }
    let stored = read_latest(store, &Partition::Conversation(key.clone()), HEAD_ID).await.unwrap();
    let lease = stored.document.body.read::<Head>().unwrap().lease?;
    Some((lease.worker.to_string(), lease.until.0))
}

pub(super) async fn lease_holder_is_reported(store: Store<'_>) {
    let key = create_conversation(store).await;
    assert_eq!(lease_holder(store, &key).await, None);
    assert!(acquire(store, &key, "w1", [1_000, 61_000]).await);
    assert_eq!(lease_holder(store, &key).await, Some(("w1".to_owned(), 61_000)));
    let LeaseOutcome::Available { head, .. } =
        try_acquire(store, &key, "w1", [1_000, 61_000]).await
    else {
        panic!("a worker can acquire its own lease again");
    };
    assert!(commit(store, &key, &head, None).await);
    store.release_lease(&key, &WorkerId::new("w1")).await;
    assert_eq!(lease_holder(store, &key).await, None);
}

pub(super) async fn lease_requires_existing_head(store: Store<'_>) {
    let key = key_of(&fresh_tenant(), "ada", "c1");
    assert_eq!(try_acquire(store, &key, "w1", [1, 2]).await, LeaseOutcome::Missing);
    let at = Partition::Conversation(key.clone());
    create(store, &at, head(&key, 1, "deleted", None)).await;
    assert!(acquire(store, &key, "w2", [1, 2]).await, "w1 has no lease on a missing head");
    let bad = key_of(&fresh_tenant(), "ada", "a/b");
    let worker = WorkerId::new("w1");
    let request = LeaseRequest {
        key: &bad,
        worker: &worker,
        now: Timestamp(1),
        until: Timestamp(2),
        expired: None,
    };
    assert!(matches!(store.acquire_lease(request).await, Err(StoreError::Invalid(_))));
}
