//! Property tests: random operations give the same results on memory, disk and Cosmos.

use std::collections::HashMap;

use proptest::prelude::*;

use super::{document, due_at, head, key_of};
use crate::store::cosmos::testing::{connect_store, start_in_process};
use crate::store::embedded::EmbeddedStore;
use crate::store::memory::MemoryStore;
use crate::store::{
    ConversationStore, Document, DocumentKind, ETag, Freshness, HEAD_ID, HeadQuery, Partition,
    Selection, StoreError, StoredDocument, Write, entry_id,
};
use turnwheel_json::raw::RawJson;
use turnwheel_platform::clock::Timestamp;
use turnwheel_platform::ids::{TenantId, UserId};

#[derive(Clone, Debug)]
enum Operation {
    Write(usize, Vec<Change>),
    Read(usize, usize),
    Select(usize, Selection),
    ListDue(u64, usize),
    ListHeads(Option<usize>, Option<&'static str>, usize),
    Reopen,
}

#[derive(Clone, Debug)]
struct Change {
    action: ChangeAction,
    slot: usize,
    due: Option<u64>,
    version: EtagCondition,
    value: u32,
}

#[derive(Clone, Copy, Debug)]
enum ChangeAction {
    Create,
    Replace,
    Delete,
}

/// The `ETag` condition of a change: none, the newest returned `ETag`, or the one before.
#[derive(Clone, Copy, Debug)]
enum EtagCondition {
    Any,
    Newest,
    Older,
}

const USERS: [&str; 2] = ["ada", "bob"];
const STATES: [&str; 3] = ["idle", "running", "deleted"];
/// Interleaved ids, and kinds with and without an index of their own.
const SLOTS: [(DocumentKind, &str); 9] = [
    (DocumentKind::Entry, "000000000001"),
    (DocumentKind::Entry, "000000000002"),
    (DocumentKind::Events, "ev-000000000001"),
    (DocumentKind::Inbox, "in_1"),
    (DocumentKind::Receipt, "in_1"),
    (DocumentKind::Notification, "A"),
    (DocumentKind::Live, "live"),
    (DocumentKind::Watch, "watch"),
    (DocumentKind::Head, "head"),
];

fn partition(number: usize) -> Partition {
    let tenant = TenantId::new("t");
    match number {
        0..=3 => {
            let conversation = ["c1", "c2"][number / 2];
            Partition::Conversation(key_of(&tenant, USERS[number % 2], conversation))
        }
        _ => Partition::Scope(tenant),
    }
}

fn build_document(at: &Partition, change: &Change) -> Document {
    let (kind, id) = SLOTS[change.slot];
    let found = match at {
        Partition::Scope(_) | Partition::User { .. } => {
            document(DocumentKind::Scope, &format!("s{id}"), &change.value.to_string())
        }
        Partition::Conversation(key) if kind == DocumentKind::Head => {
            let state = STATES[usize::try_from(change.value).unwrap() % STATES.len()];
            head(key, u64::from(change.value) / 3, state, None)
        }
        Partition::Conversation(_) => {
            let found = document(kind, id, &change.value.to_string());
            let contains_entries = kind == DocumentKind::Events && change.value.is_multiple_of(2);
            // Never two entries with one number, whose order is open.
            let last_entry = contains_entries.then(|| entry_id(3 + u64::from(change.value)));
            Document { last_entry, ..found }
        }
    };
    match change.due {
        Some(due) => due_at(found, due),
        None => found,
    }
}

fn operation_strategy() -> impl Strategy<Value = Operation> {
    let verb = prop_oneof![
        Just(ChangeAction::Create),
        Just(ChangeAction::Replace),
        Just(ChangeAction::Delete)
    ];
    let version = prop_oneof![1 => Just(EtagCondition::Any), 3 => Just(EtagCondition::Newest), 1 => Just(EtagCondition::Older)];
    let due = prop::option::of(0_u64..6);
    let change = (verb, 0..SLOTS.len(), due, version, 0_u32..12).prop_map(
        |(verb, slot, due, version, value)| Change { action: verb, slot, due, version, value },
    );
    let bound =
        || prop::option::of(prop::sample::select(SLOTS.map(|(_, id)| id.to_owned()).to_vec()));
    let kind = prop::sample::select(SLOTS.map(|(kind, _)| kind).to_vec());
    let selection =
        (kind, bound(), bound(), 0_usize..4).prop_map(|(kind, from_id, to_id, limit)| Selection {
            to_last_entry: None,
            kind,
            from_id,
            to_id,
            limit,
        });
    let state = prop::option::of(prop::sample::select(STATES.to_vec()));
    prop_oneof![
        12 => (0_usize..5, prop::collection::vec(change, 1..4))
            .prop_map(|(at, changes)| Operation::Write(at, changes)),
        2 => (0_usize..5, 0..SLOTS.len()).prop_map(|(at, slot)| Operation::Read(at, slot)),
        3 => (0_usize..5, selection).prop_map(|(at, selection)| Operation::Select(at, selection)),
        2 => (0_u64..6, 1_usize..4).prop_map(|(at, limit)| Operation::ListDue(at, limit)),
        2 => (prop::option::of(0_usize..2), state, 1_usize..4)
            .prop_map(|(user, state, limit)| Operation::ListHeads(user, state, limit)),
        1 => Just(Operation::Reopen),
    ]
}

/// Comparison of order where the port leaves it open: due items, and heads of one millisecond.
#[derive(Clone, Copy)]
enum OrderComparison {
    Same,
    Open,
}

impl OrderComparison {
    /// Records the end of a page; compared only if the order is compared.
    fn record_page_end(self, found: &mut Vec<String>) {
        if matches!(self, Self::Same) {
            found.push("next page".to_owned());
        }
    }

    fn render(self, mut found: Vec<String>) -> String {
        if matches!(self, Self::Open) {
            found.sort();
        }
        found.join("; ")
    }
}

/// One store and the `ETag`s that it has returned: each store has its own.
struct StoreUnderTest<S> {
    store: S,
    etags: HashMap<(usize, String), Vec<ETag>>,
}

impl<S: ConversationStore> StoreUnderTest<S> {
    fn new(store: S) -> Self {
        Self { store, etags: HashMap::new() }
    }

    fn etag_for(&self, at: usize, id: &str, version: EtagCondition) -> Option<ETag> {
        let back = match version {
            EtagCondition::Any => return None,
            EtagCondition::Newest => 1,
            EtagCondition::Older => 2,
        };
        let known = self.etags.get(&(at, id.to_owned())).map_or(&[][..], Vec::as_slice);
        let found = known.len().checked_sub(back).map(|index| known[index].clone());
        Some(found.unwrap_or_else(|| ETag("0".to_owned())))
    }

    async fn write_changes(&mut self, at: usize, changes: &[Change]) -> String {
        let at_partition = partition(at);
        let documents: Vec<_> =
            changes.iter().map(|change| build_document(&at_partition, change)).collect();
        let writes = changes.iter().zip(&documents).map(|(change, document)| {
            let etag = self.etag_for(at, &document.id, change.version);
            match change.action {
                ChangeAction::Create => Write::Create(document.clone()),
                ChangeAction::Replace => Write::Replace(document.clone(), etag),
                ChangeAction::Delete => Write::Delete(document.id.clone(), etag),
            }
        });
        let mut writes: Vec<Write> = writes.collect();
        let is_of = |kind: DocumentKind| documents.iter().any(|document| document.kind == kind);
        let counts = is_of(DocumentKind::Inbox) && !is_of(DocumentKind::Head);
        if counts {
            let due = changes.first().and_then(|change| change.due).map(Timestamp);
            writes.push(Write::CountInboxChange { due, room: None });
        }
        match self.store.write(&at_partition, writes).await {
            Ok(mut etags) => {
                if counts {
                    let etag = etags.pop().unwrap();
                    self.etags.entry((at, HEAD_ID.to_owned())).or_default().push(etag);
                }
                let shown = etags.iter().map(|etag| etag.0.is_empty()).collect::<Vec<_>>();
                for (document, etag) in documents.into_iter().zip(etags) {
                    self.etags.entry((at, document.id)).or_default().push(etag);
                }
                format!("deleted {shown:?}")
            }
            Err(StoreError::Conflict) => "conflict".to_owned(),
            Err(error) => panic!("{error}"),
        }
    }

    /// Runs an operation and renders its result without `ETag`s and continuations.
    async fn run_operation(&mut self, operation: &Operation, order: OrderComparison) -> String {
        match operation {
            Operation::Write(at, changes) => self.write_changes(*at, changes).await,
            Operation::Read(at, slot) => {
                let read =
                    self.store.read(&partition(*at), SLOTS[*slot].1, Freshness::Latest).await;
                render_documents(read.unwrap())
            }
            Operation::Select(at, selection) => {
                let found = self.store.select(&partition(*at), selection, Freshness::Latest).await;
                render_documents(found.unwrap())
            }
            Operation::ListDue(at, limit) => {
                let (mut found, mut continuation) = (Vec::new(), None);
                loop {
                    let at = Timestamp(*at);
                    let page =
                        self.store.list_due(at, *limit, continuation.as_deref()).await.unwrap();
                    found.extend(page.items.iter().map(|item| format!("{item:?}")));
                    order.record_page_end(&mut found);
                    continuation = page.continuation;
                    if continuation.is_none() {
                        return order.render(found);
                    }
                }
            }
            Operation::ListHeads(user, state, limit) => {
                let mut query = HeadQuery {
                    tenant: TenantId::new("t"),
                    user: user.map(|number| UserId::new(USERS[number])),
                    state: state.map(ToOwned::to_owned),
                    limit: *limit,
                    continuation: None,
                };
                let (mut found, mut last) = (Vec::new(), Timestamp(u64::MAX));
                loop {
                    let page = self.store.list_heads(&query).await.unwrap();
                    for head in page.items {
                        let created_at = head.document.created_at.unwrap();
                        assert!(created_at <= last, "newest first");
                        last = created_at;
                        found.push(render_documents([head]));
                    }
                    order.record_page_end(&mut found);
                    query.continuation = page.continuation;
                    if query.continuation.is_none() {
                        return order.render(found);
                    }
                }
            }
            Operation::Reopen => String::new(),
        }
    }
}

fn render_documents(found: impl IntoIterator<Item = StoredDocument>) -> String {
    let shown = |StoredDocument { mut document, .. }: StoredDocument| {
        // The commit id of a head differs between the stores.
        if document.kind == DocumentKind::Head {
            document.body = RawJson::from_value(&());
        }
        format!("{} {document:?}", document.body.text())
    };
    found.into_iter().map(shown).collect::<Vec<_>>().join(", ")
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn memory_and_embedded_store_agree(operations in prop::collection::vec(operation_strategy(), 1..60)) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let folder = tempfile::tempdir().unwrap();
        let open = || EmbeddedStore::open(folder.path()).unwrap();
        runtime.block_on(async {
            let mut memory = StoreUnderTest::new(MemoryStore::new());
            let mut disk = Some(StoreUnderTest::new(open()));
            for (number, operation) in operations.iter().enumerate() {
                if matches!(operation, Operation::Reopen) {
                    let StoreUnderTest { store, etags } = disk.take().unwrap();
                    drop(store);
                    disk = Some(StoreUnderTest { store: open(), etags });
                }
                let expected = memory.run_operation(operation, OrderComparison::Same).await;
                let answered = disk.as_mut().unwrap().run_operation(operation, OrderComparison::Same).await;
                assert_eq!(answered, expected, "operation {number}: {operation:?}");
            }
        });
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 16, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn memory_and_cosmos_store_agree(operations in prop::collection::vec(operation_strategy(), 1..60)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let mut memory = StoreUnderTest::new(MemoryStore::new());
            let emulator = start_in_process(2);
            let mut cosmos = StoreUnderTest::new(connect_store(&emulator, Vec::new()).await);
            for (number, operation) in operations.iter().enumerate() {
                let expected = memory.run_operation(operation, OrderComparison::Open).await;
                let answered = cosmos.run_operation(operation, OrderComparison::Open).await;
                assert_eq!(answered, expected, "operation {number}: {operation:?}");
            }
        });
    }
}
