//! Contract tests of lists: order, bounds, and pages without gaps or duplicates.

use super::{
    create, create_conversation, create_in_inbox, document, due_at, entry, fresh_tenant, head,
    key_of, read_latest,
};
use crate::store::{
    ConversationStore, Document, DocumentKind, DueItem, Freshness, HEAD_ID, HeadQuery, Partition,
    Selection, StoreError, StoredDocument, Write, entry_id, events_id,
};
use turnwheel_platform::clock::Timestamp;
use turnwheel_platform::ids::{TenantId, UserId};

type Store<'a> = &'a dyn ConversationStore;

/// More pages than any list here has: an endless list fails the test instead of hanging it.
const PAGES_MAX: usize = 1000;

async fn select_ids(store: Store<'_>, at: &Partition, selection: &Selection) -> Vec<String> {
    let found = store.select(at, selection, Freshness::Latest).await.unwrap();
    found.into_iter().map(|stored| stored.document.id).collect()
}

pub(super) async fn selection_respects_order_and_bounds(store: Store<'_>) {
    let at = create_conversation(store).await;
    for seq in [10, 2, 1, 9, 3] {
        create(store, &at, entry(seq)).await;
    }
    for first in [4, 1] {
        create(store, &at, document(DocumentKind::Events, &events_id(first), "[]")).await;
    }
    create_in_inbox(store, &at, "in_b").await;
    create_in_inbox(store, &at, "in_a").await;
    let ids = |seqs: &[u64]| seqs.iter().copied().map(entry_id).collect::<Vec<_>>();
    let all = Selection::all(DocumentKind::Entry);
    assert_eq!(select_ids(store, &at, &all).await, ids(&[1, 2, 3, 9, 10]));
    let entries = |from: u64, to: u64| Selection {
        from_id: Some(entry_id(from)),
        to_id: Some(entry_id(to)),
        ..all.clone()
    };
    assert_eq!(select_ids(store, &at, &entries(2, 9)).await, ids(&[2, 3, 9]));
    assert_eq!(select_ids(store, &at, &entries(4, 8)).await, ids(&[]));
    let some = Selection { limit: 2, ..entries(2, 10) };
    assert_eq!(select_ids(store, &at, &some).await, ids(&[2, 3]));
    let none = Selection { limit: 0, ..Selection::all(DocumentKind::Entry) };
    assert_eq!(select_ids(store, &at, &none).await, ids(&[]));
    let from = Selection { from_id: Some(events_id(2)), ..Selection::all(DocumentKind::Events) };
    assert_eq!(select_ids(store, &at, &from).await, vec![events_id(4)]);
    let to = Selection { to_id: Some(events_id(2)), ..Selection::all(DocumentKind::Events) };
    assert_eq!(select_ids(store, &at, &to).await, vec![events_id(1)]);
    assert_eq!(
        select_ids(store, &at, &Selection::all(DocumentKind::Inbox)).await,
        vec!["in_a", "in_b"]
    );
    assert_eq!(
        select_ids(store, &at, &Selection::all(DocumentKind::Notification)).await,
        Vec::<String>::new()
    );
}

/// Entries that a commit stored together are found by the number of the last of them.
pub(super) async fn selection_of_entries_includes_documents_that_contain_them(store: Store<'_>) {
    let at = create_conversation(store).await;
    let commit = |first: u64, last: u64| Document {
        last_entry: Some(entry_id(last)),
        ..document(DocumentKind::Events, &events_id(first), "{}")
    };
    create(store, &at, commit(7, 4)).await;
    create(store, &at, entry(1)).await;
    create(store, &at, commit(9, 20)).await;
    create(store, &at, entry(5)).await;
    create(store, &at, document(DocumentKind::Events, &events_id(8), "{}")).await;
    let [one, five] = [1, 5].map(entry_id);
    let [seven, eight, nine] = [7, 8, 9].map(events_id);
    let all = [one.clone(), seven.clone(), five.clone(), nine.clone()];
    assert_eq!(select_ids(store, &at, &Selection::all(DocumentKind::Entry)).await, all);
    // The last number of a document may be higher than that of the entry.
    assert_eq!(select_ids(store, &at, &Selection::entries(2, 4)).await, [&*seven]);
    assert_eq!(select_ids(store, &at, &Selection::entries(2, 5)).await, [&*seven, &*five, &*nine]);
    assert_eq!(select_ids(store, &at, &Selection::entries(6, 6)).await, [&*nine]);
    assert_eq!(select_ids(store, &at, &Selection::entries(21, 30)).await, Vec::<String>::new());
    let events = select_ids(store, &at, &Selection::all(DocumentKind::Events)).await;
    assert_eq!(events, [&*seven, &*eight, &*nine]);
    let found = read_latest(store, &at, &seven).await.unwrap();
    assert_eq!(found.document, commit(7, 4));
    let replaced = Document { last_entry: None, ..found.document };
    store.write(&at, vec![Write::Replace(replaced, Some(found.etag))]).await.unwrap();
    assert_eq!(select_ids(store, &at, &Selection::entries(2, 4)).await, [""; 0]);
    let bad = Document { last_entry: Some(one), ..entry(9) };
    let refused = store.write(&at, vec![Write::Create(bad)]).await;
    assert!(matches!(refused, Err(StoreError::Invalid(_))), "{refused:?}");
}

pub(super) async fn partitions_are_isolated(store: Store<'_>) {
    let (tenant, other_tenant) = (fresh_tenant(), fresh_tenant());
    let conversation = |tenant, user, id| Partition::Conversation(key_of(tenant, user, id));
    let here = conversation(&tenant, "ada", "c1");
    create(store, &here, entry(1)).await;
    for elsewhere in [
        conversation(&tenant, "ada", "c2"),
        conversation(&tenant, "bob", "c1"),
        conversation(&other_tenant, "ada", "c1"),
    ] {
        assert!(read_latest(store, &elsewhere, &entry_id(1)).await.is_none());
        assert!(
            select_ids(store, &elsewhere, &Selection::all(DocumentKind::Entry)).await.is_empty()
        );
        create(store, &elsewhere, entry(1)).await;
    }
    let scope = Partition::Scope(tenant);
    let account = due_at(document(DocumentKind::Scope, "account", "{}"), 3);
    create(store, &scope, account).await;
    assert!(read_latest(store, &here, "account").await.is_none());
    assert!(read_latest(store, &scope, &entry_id(1)).await.is_none());
    assert!(read_latest(store, &Partition::Scope(other_tenant), "account").await.is_none());
    assert_eq!(
        select_ids(store, &scope, &Selection::all(DocumentKind::Scope)).await,
        vec!["account"]
    );
}

/// The documents of a user are apart from those of the tenant, of other users and of the user's
/// conversations; lists of heads exclude them, and the sweep returns those that are due.
pub(super) async fn user_partitions_are_isolated(store: Store<'_>) {
    let tenant = fresh_tenant();
    let user = |name: &str| Partition::User { tenant: tenant.clone(), user: UserId::new(name) };
    let (ada, bob) = (user("ada"), user("bob"));
    let conversation = key_of(&tenant, "ada", "c1");
    let here = Partition::Conversation(conversation.clone());
    create(store, &here, entry(1)).await;
    create(store, &here, head(&conversation, 1, "idle", None)).await;
    let note =
        |text: &str| document(DocumentKind::Scope, "memory", &format!(r#"{{"text":"{text}"}}"#));
    let of_ada = create(store, &ada, note("ada")).await;
    create(store, &bob, due_at(note("bob"), 7)).await;
    create(store, &Partition::Scope(tenant.clone()), note("tenant")).await;
    // One batch may change several documents of a user.
    let others = ["skill-a", "skill-b"].map(|id| document(DocumentKind::Scope, id, "{}"));
    store.write(&ada, others.map(Write::Create).into()).await.unwrap();
    store.write(&ada, vec![Write::Delete("skill-b".to_owned(), None)]).await.unwrap();
    let body = |stored: StoredDocument| stored.document.body.text().to_owned();
    for (at, name) in [(&ada, "ada"), (&bob, "bob")] {
        let stored = read_latest(store, at, "memory").await.unwrap();
        assert_eq!(body(stored), format!(r#"{{"text":"{name}"}}"#));
        assert!(read_latest(store, at, &entry_id(1)).await.is_none());
    }
    assert!(read_latest(store, &here, "memory").await.is_none());
    let all = Selection::all(DocumentKind::Scope);
    assert_eq!(select_ids(store, &ada, &all).await, vec!["memory", "skill-a"]);
    assert_eq!(select_ids(store, &bob, &all).await, vec!["memory"]);
    let query = HeadQuery {
        tenant: tenant.clone(),
        user: Some(UserId::new("ada")),
        state: None,
        limit: 10,
        continuation: None,
    };
    assert_eq!(store.list_heads(&query).await.unwrap().items.len(), 1);
    let due = sweep(store, &tenant, 10, async |_| {}).await;
    assert_eq!(due.iter().map(|item| &item.partition).collect::<Vec<_>>(), [&bob]);
    let replaced = Write::Replace(note("new"), Some(of_ada.clone()));
    store.write(&ada, vec![replaced]).await.unwrap();
    let stale = store.write(&ada, vec![Write::Delete("memory".to_owned(), Some(of_ada))]).await;
    assert!(matches!(stale, Err(StoreError::Conflict)), "{stale:?}");
    store.write(&ada, vec![Write::Delete("memory".to_owned(), None)]).await.unwrap();
    assert_eq!(select_ids(store, &ada, &all).await, vec!["skill-a"]);
    let refused = store.write(&ada, vec![Write::Create(entry(1))]).await;
    assert!(matches!(refused, Err(StoreError::Invalid(_))), "{refused:?}");
}

/// Sweeps page by page, runs `between` between the pages, and returns the items of one tenant.
async fn sweep(
    store: Store<'_>,
    tenant: &TenantId,
    at: u64,
    mut between: impl AsyncFnMut(&[DueItem]),
) -> Vec<DueItem> {
    let mut found = Vec::new();
    let mut continuation = None;
    for _ in 0..PAGES_MAX {
        let due = store.list_due(Timestamp(at), 2, continuation.as_deref()).await.unwrap();
        assert!(due.items.len() <= 2);
        found.extend(
            due.items.into_iter().filter(|item| item.partition.parts()[0] == tenant.as_str()),
        );
        continuation = due.continuation;
        if continuation.is_none() {
            return found;
        }
        between(&found).await;
    }
    panic!("the sweep does not end");
}

fn ids(found: &[DueItem]) -> Vec<&str> {
    let mut ids: Vec<_> = found.iter().map(|item| item.id.as_str()).collect();
    ids.sort_unstable();
    ids
}

pub(super) async fn due_items_are_listed_once(store: Store<'_>) {
    let tenant = fresh_tenant();
    let key = key_of(&tenant, "ada", "c1");
    let at = Partition::Conversation(key.clone());
    let notice = |id: &str| document(DocumentKind::Notification, id, "{}");
    create(store, &at, notice("owes-nothing")).await;
    for (id, due) in [("n_e", 50), ("n_a", 10), ("n_c", 20), ("n_b", 20), ("n_late", 51)] {
        create(store, &at, due_at(notice(id), due)).await;
    }
    create(store, &at, due_at(head(&key, 1, "deleted", None), 50)).await;
    let scope = Partition::Scope(tenant.clone());
    create(store, &scope, due_at(document(DocumentKind::Scope, "s_d", "{}"), 30)).await;

    let found = sweep(store, &tenant, 50, async |_| ()).await;
    assert_eq!(ids(&found), vec!["head", "n_a", "n_b", "n_c", "n_e", "s_d"]);
    let of_scope = found.iter().find(|item| item.id == "s_d").unwrap();
    let expected = DueItem {
        partition: scope,
        id: "s_d".to_owned(),
        kind: DocumentKind::Scope,
        due: Timestamp(30),
        is_leased: false,
    };
    assert_eq!(*of_scope, expected);
    assert!(found.iter().all(|item| !item.is_leased));
    assert_eq!(ids(&sweep(store, &tenant, 9, async |_| ()).await), Vec::<&str>::new());

    let settled = vec![
        Write::Replace(notice("n_a"), None),
        Write::Replace(due_at(notice("n_b"), 60), None),
        Write::Delete("n_c".to_owned(), None),
    ];
    store.write(&at, settled).await.unwrap();
    let found = sweep(store, &tenant, 50, async |_| ()).await;
    assert_eq!(ids(&found), vec!["head", "n_e", "s_d"]);
}

pub(super) async fn sweep_is_stable_when_work_is_added(store: Store<'_>) {
    let tenant = fresh_tenant();
    let at = Partition::Conversation(key_of(&tenant, "ada", "c1"));
    let notice = |number: usize, due| {
        due_at(document(DocumentKind::Notification, &format!("n_{number:03}"), "{}"), due)
    };
    for number in 0..11 {
        create(store, &at, notice(number, 10)).await;
    }
    let mut number = 0;
    let found = sweep(store, &tenant, 100, async |found| {
        number += 1;
        // New work due earlier and later than this page. Listed work is done, and due again after
        // the sweep.
        create(store, &at, notice(100 + number, 5)).await;
        create(store, &at, notice(200 + number, 50)).await;
        for item in found {
            let later = due_at(document(DocumentKind::Notification, &item.id, "{}"), 900);
            store.write(&at, vec![Write::Replace(later, None)]).await.unwrap();
        }
    })
    .await;
    let found = ids(&found);
    let mut once = found.clone();
    once.dedup();
    assert_eq!(found, once, "no item is listed twice");
    let missed = (0..11).filter(|number| !found.contains(&format!("n_{number:03}").as_str()));
    assert_eq!(missed.count(), 0);
}

fn query(tenant: &TenantId) -> HeadQuery {
    HeadQuery { tenant: tenant.clone(), user: None, state: None, limit: 100, continuation: None }
}

async fn list_conversation_ids(
    store: Store<'_>,
    mut query: HeadQuery,
    mut between: impl AsyncFnMut(usize),
) -> Vec<String> {
    let mut found = Vec::new();
    for page in 0..PAGES_MAX {
        let heads = store.list_heads(&query).await.unwrap();
        assert!(heads.items.len() <= query.limit);
        found.extend(heads.items.into_iter().map(|head| {
            assert_eq!(head.document.kind, DocumentKind::Head);
            head.document.body.string_member("conversationId").unwrap()
        }));
        query.continuation = heads.continuation;
        if query.continuation.is_none() {
            return found;
        }
        between(page).await;
    }
    panic!("the list does not end");
}

pub(super) async fn heads_are_listed_newest_first_with_filters(store: Store<'_>) {
    let (tenant, other_tenant) = (fresh_tenant(), fresh_tenant());
    for (tenant, user, id, created_at, state) in [
        (&tenant, "ada", "c1", 10, "idle"),
        (&tenant, "bob", "c2", 30, "idle"),
        (&tenant, "ada", "c3", 20, "running"),
        (&tenant, "ada", "c4", 40, "deleted"),
        (&tenant, "ada", "c5", 50, "idle"),
        (&other_tenant, "ada", "c6", 60, "idle"),
    ] {
        let key = key_of(tenant, user, id);
        let document = head(&key, created_at, state, None);
        create(store, &Partition::Conversation(key), document).await;
    }
    let scope = Partition::Scope(tenant.clone());
    create(store, &scope, document(DocumentKind::Scope, "account", "{}")).await;
    let list = async |user: Option<&str>, state: Option<&str>, limit| {
        let user = user.map(UserId::new);
        let state = state.map(ToOwned::to_owned);
        list_conversation_ids(
            store,
            HeadQuery { user, state, limit, ..query(&tenant) },
            async |_| (),
        )
        .await
    };
    for limit in [1, 2, 100] {
        assert_eq!(list(None, None, limit).await, ["c5", "c2", "c3", "c1"]);
        assert_eq!(list(Some("ada"), None, limit).await, ["c5", "c3", "c1"]);
        assert_eq!(list(Some("ada"), Some("idle"), limit).await, ["c5", "c1"]);
        assert_eq!(list(None, Some("running"), limit).await, ["c3"]);
        assert_eq!(list(None, Some("deleted"), limit).await, Vec::<String>::new());
        assert_eq!(list(Some("eve"), None, limit).await, Vec::<String>::new());
    }
    let key = key_of(&tenant, "ada", "c5");
    let gone = Write::Replace(head(&key, 50, "deleted", None), None);
    store.write(&Partition::Conversation(key.clone()), vec![gone]).await.unwrap();
    assert_eq!(list(Some("ada"), None, 100).await, ["c3", "c1"]);
    assert!(read_latest(store, &Partition::Conversation(key), HEAD_ID).await.is_some());
}

pub(super) async fn head_pages_are_stable_when_heads_are_added(store: Store<'_>) {
    let tenant = fresh_tenant();
    let begin = async |id: String, created_at| {
        let key = key_of(&tenant, "ada", &id);
        let document = head(&key, created_at, "idle", None);
        create(store, &Partition::Conversation(key), document).await;
    };
    // Three conversations start in each millisecond.
    for number in 0..23 {
        begin(format!("old-{number}"), number / 3).await;
    }
    let before = list_conversation_ids(store, query(&tenant), async |_| ()).await;
    assert_eq!(before.len(), 23);
    let first = HeadQuery { limit: 2, ..query(&tenant) };
    let paged = list_conversation_ids(store, first, async |page| {
        let number = u64::try_from(page).unwrap();
        begin(format!("new-{number}"), 100 + number).await;
    })
    .await;
    assert_eq!(paged, before);
}

pub(super) async fn head_pages_may_differ_in_size(store: Store<'_>) {
    let tenant = fresh_tenant();
    for number in 0..9 {
        let key = key_of(&tenant, "ada", &format!("c{number}"));
        let document = head(&key, number, "idle", None);
        create(store, &Partition::Conversation(key), document).await;
    }
    let mut found = Vec::new();
    let mut query = query(&tenant);
    for limit in (1..4).cycle().take(PAGES_MAX) {
        query.limit = limit;
        let page = store.list_heads(&query).await.unwrap();
        assert!(page.items.len() <= limit);
        let id = |head: StoredDocument| head.document.body.string_member("conversationId").unwrap();
        found.extend(page.items.into_iter().map(id));
        query.continuation = page.continuation;
        if query.continuation.is_none() {
            break;
        }
    }
    assert_eq!(found, ["c8", "c7", "c6", "c5", "c4", "c3", "c2", "c1", "c0"]);
}

pub(super) async fn continuation_of_other_query_is_rejected(store: Store<'_>) {
    let tenant = fresh_tenant();
    for id in ["c1", "c2"] {
        let key = key_of(&tenant, "ada", id);
        let document = due_at(head(&key, 1, "idle", None), 1);
        create(store, &Partition::Conversation(key), document).await;
    }
    let first = HeadQuery { limit: 1, ..query(&tenant) };
    let continuation = store.list_heads(&first).await.unwrap().continuation;
    assert!(continuation.is_some());
    for other in [
        HeadQuery { tenant: fresh_tenant(), continuation: continuation.clone(), ..first.clone() },
        HeadQuery { user: Some(UserId::new("ada")), continuation, ..first.clone() },
        HeadQuery { continuation: Some("garbage!".to_owned()), ..first },
    ] {
        assert!(matches!(store.list_heads(&other).await, Err(StoreError::Invalid(_))));
    }
    let due = store.list_due(Timestamp(1), 1, None).await.unwrap().continuation.unwrap();
    assert!(matches!(
        store.list_due(Timestamp(2), 1, Some(&due)).await,
        Err(StoreError::Invalid(_))
    ));
    assert!(matches!(
        store.list_due(Timestamp(1), 1, Some("x")).await,
        Err(StoreError::Invalid(_))
    ));
}
