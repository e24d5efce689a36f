//! Tests of the stored forms of entries and events.

use proptest::prelude::*;
use serde_json::json;

use super::*;
use turnwheel_platform::ids::{ConversationId, ConversationKey, TenantId, UserId};
use turnwheel_storage::store::memory::MemoryStore;
use turnwheel_storage::store::{ConversationStore as _, Freshness, Partition, Selection};

fn event(n: u64) -> Event {
    let event = json!({"n": n, "at": 1, "turn": 1, "body": {"type": "agent_start"}});
    serde_json::from_value(event).unwrap()
}

fn named_entry(seq: u64, name: &str) -> Entry {
    let entry = json!({
        "entryId": format!("{seq:08}"), "parentId": null, "seq": seq,
        "timestamp": "2026-01-01T00:00:00.000Z", "type": "session_info", "name": name,
    });
    serde_json::from_value(entry).unwrap()
}

fn message_of_person(seq: u64, text: &str) -> Entry {
    let entry = json!({
        "entryId": format!("{seq:08}"), "parentId": null, "seq": seq,
        "timestamp": "2026-01-01T00:00:00.000Z", "type": "message",
        "message": {"role": "user", "content": text, "timestamp": 1},
    });
    serde_json::from_value(entry).unwrap()
}

fn commit(entries: &[Entry], events: &[Event]) -> Vec<Document> {
    let mut messages = PersonMessages::default();
    let entries = entries.iter().map(|entry| entry_document(entry, &mut messages)).collect();
    commit_documents(&CommitId::new("k1".to_owned()), entries, events)
}

fn ids(documents: &[Document]) -> Vec<&str> {
    documents.iter().map(|document| &*document.id).collect()
}

#[test]
fn events_document_contains_entries_except_searched_and_long_ones() {
    let entries = [
        named_entry(4, "one"),
        message_of_person(5, "Where is my parcel?"),
        named_entry(6, &"long ".repeat(4_000)),
        named_entry(7, "two"),
    ];
    let documents = commit(&entries, &[event(9), event(10)]);
    assert_eq!(ids(&documents), [&*entry_id(5), &*entry_id(6), &*events_id(9)]);
    let last = documents.last().unwrap();
    assert_eq!(last.last_entry.as_deref(), Some(&*entry_id(7)));
    let body: EventsBody = read(last).unwrap();
    assert_eq!(body.events.len(), 2);
    assert_eq!(last.body.to_value()["entries"].as_array().map(Vec::len), Some(2));
}

#[test]
fn entries_without_events_have_documents_of_their_own() {
    let entries = [named_entry(1, "one"), named_entry(2, "two")];
    assert_eq!(ids(&commit(&entries, &[])), [&*entry_id(1), &*entry_id(2)]);
    let only_events = commit(&[], &[event(1)]);
    assert_eq!(
        (ids(&only_events), only_events[0].last_entry.as_deref()),
        (vec![&*events_id(1)], None)
    );
}

/// The selection that [`Selection::entries`] describes finds every entry, however the commits stored
/// them.
async fn assert_entries_found(commits: Vec<Vec<Entry>>) {
    let store = MemoryStore::new();
    let partition = Partition::Conversation(ConversationKey {
        tenant: TenantId::new("t"),
        user: UserId::new("u"),
        conversation_id: ConversationId::new("c"),
    });
    let mut all = Vec::new();
    for (number, entries) in (1..).zip(commits) {
        let documents = commit(&entries, &[event(number)]);
        let writes = documents.into_iter().map(Write::Create).collect();
        store.write(&partition, writes).await.unwrap();
        all.extend(entries.into_iter().map(Arc::new));
    }
    let last = all.len() as u64;
    for (from, to) in [(1, last)].into_iter().chain((1..=last).map(|seq| (seq, seq))) {
        let selection = Selection::entries(from, to);
        let found = store.select(&partition, &selection, Freshness::Latest).await.unwrap();
        let expected = &all[usize::try_from(from - 1).unwrap()..usize::try_from(to).unwrap()];
        assert_eq!(read_entries_between(&found, from, to).unwrap(), expected);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_entry_is_found_by_its_number(
        commits in prop::collection::vec(prop::collection::vec((0_usize..6, 0_u8..4), 0..40), 1..5)
    ) {
        let mut seq = 0;
        let commits = commits.into_iter().map(|kinds| {
            let entry = |(kilobytes, kind): (usize, u8)| {
                seq += 1;
                let text = "x".repeat(kilobytes * 1_000);
                if kind == 0 { message_of_person(seq, &text) } else { named_entry(seq, &text) }
            };
            kinds.into_iter().map(entry).collect()
        }).collect();
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(assert_entries_found(commits));
    }
}
