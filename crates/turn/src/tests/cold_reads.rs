//! Reads of a worker that does not know the conversation: the entries that its context needs.

mod cosmos;

use std::sync::{Arc, Mutex};

use serde_json::{Value, json};

use super::compaction::handle_until_idle;
use super::invariant_checks::violation_lines;
use super::test_env::{TestEnv, idempotency, text};
use turnwheel_commands::compact::{CompactRequest, compact};
use turnwheel_commands::fork::{ForkRequest, fork_conversation};
use turnwheel_commands::leaf::{LeafRequest, move_leaf};
use turnwheel_conversation::context_ranges::SeqRange;
use turnwheel_conversation::entry::EntryBody;
use turnwheel_conversation::fork::ForkPosition;
use turnwheel_conversation::message::Message;
use turnwheel_conversation::settings::CompactionSettings;
use turnwheel_platform::fail_points::NoFailPoints;
use turnwheel_platform::ids::{ConversationId, ConversationKey};
use turnwheel_record::documents;
use turnwheel_record::services::Services;
use turnwheel_storage::store::interceptor::{InterceptedStore, StoreInterceptor, StoreRequest};
use turnwheel_storage::store::{
    ConversationStore as _, DocumentKind, Freshness, HEAD_ID, Partition, StoreError, Write,
};

/// First and last numbers of the entries that each request reads.
#[derive(Debug, Default)]
struct EntryReads(Mutex<Vec<(u64, u64)>>);

impl StoreInterceptor for EntryReads {
    fn before_request(&self, request: &StoreRequest<'_>) -> Result<(), StoreError> {
        if let StoreRequest::Select(selection) = request
            && selection.kind == DocumentKind::Entry
        {
            let number = |id: &Option<String>| id.as_ref().map_or(0, |id| id.parse().unwrap());
            let read = (number(&selection.from_id), number(&selection.to_id));
            self.0.lock().unwrap().push(read);
        }
        Ok(())
    }
}

type ReadLog = Arc<InterceptedStore<EntryReads>>;

/// The reads of workers since the last call. Those of the test name no numbers.
fn take_reads(log: &ReadLog) -> Vec<(u64, u64)> {
    let mut reads = std::mem::take(&mut *log.interceptor.0.lock().unwrap());
    reads.retain(|read| *read != (0, 0));
    reads
}

/// Writes or reads a file, or responds with a long text.
fn uses_files(results: usize, input: &str) -> Vec<Value> {
    let mut words = input.split(' ');
    let (name, path) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let arguments = match name {
        "write" => json!({"path": path, "content": format!("content of {path}")}),
        "read" => json!({"path": path}),
        _ => Value::Null,
    };
    if arguments.is_null() || results > 0 {
        return vec![text(&"a long answer ".repeat(20))];
    }
    vec![json!({"type": "toolCall", "id": "c1", "name": name, "arguments": arguments})]
}

async fn new_env() -> (TestEnv, Services, ReadLog) {
    let mut env = TestEnv::with_script(1, uses_files);
    let log: ReadLog = Arc::new(InterceptedStore::new(env.store.clone(), EntryReads::default()));
    env.worker_store = log.clone();
    env.settings.compaction =
        Some(CompactionSettings { enabled: true, reserve_tokens: 500, keep_recent_tokens: 100 });
    let services = env.new_worker(Arc::new(NoFailPoints));
    env.send_prompt_to(&services, "c", "write a.txt").await;
    handle_until_idle(&env, &services).await;
    (env, services, log)
}

async fn send(env: &TestEnv, services: &Services, input: &str) {
    env.queue_prompt(services, &TestEnv::key(), input).await.unwrap();
    handle_until_idle(env, services).await;
}

async fn send_many(env: &TestEnv, services: &Services, name: &str, count: usize) {
    for number in 0..count {
        send(env, services, &format!("{name} {number}: {}", "words ".repeat(30))).await;
    }
}

async fn compact_now(env: &TestEnv, services: &Services, key: &str) {
    let request = CompactRequest { instructions: None };
    compact(services, &TestEnv::key(), request, &idempotency(key)).await.unwrap();
    handle_until_idle(env, services).await;
}

fn cold_worker(env: &mut TestEnv) -> Services {
    env.new_worker(Arc::new(NoFailPoints))
}

async fn last_result(env: &TestEnv, key: &ConversationKey) -> String {
    let entries = env.entries_of(key).await;
    let result = entries.iter().rev().find_map(|entry| match entry.body.message() {
        Some(Message::ToolResult(result)) => {
            Some(turnwheel_conversation::content::joined_text(&result.content))
        }
        _ => None,
    });
    result.unwrap()
}

fn count_entries(reads: &[(u64, u64)]) -> u64 {
    reads.iter().map(|(from, to)| to + 1 - from).sum()
}

#[tokio::test(start_paused = true)]
async fn cold_worker_reads_nothing_before_compaction() {
    let (mut env, services, log) = new_env().await;
    send_many(&env, &services, "before", 10).await;
    compact_now(&env, &services, "first").await;
    let compacted = env.head().await.unwrap();
    let [SeqRange { from, to: None }] = compacted.context[..] else {
        panic!("{:?}", compacted.context)
    };
    assert!(from > 30, "{from}");

    let cold = cold_worker(&mut env);
    take_reads(&log);
    send(&env, &cold, "read a.txt").await;
    let reads = take_reads(&log);
    assert_eq!(reads.len(), 1, "{reads:?}");
    assert_eq!(reads[0].0, from);
    assert!(last_result(&env, &TestEnv::key()).await.contains("content of a.txt"));

    // The next compaction carries the file on, by a worker that never read the result that wrote it.
    send(&env, &cold, "write b.txt").await;
    send_many(&env, &cold, "between", 5).await;
    compact_now(&env, &cold, "second").await;
    let cold = cold_worker(&mut env);
    take_reads(&log);
    for path in ["a.txt", "b.txt"] {
        send(&env, &cold, &format!("read {path} again")).await;
        let result = last_result(&env, &TestEnv::key()).await;
        assert!(result.contains(&format!("content of {path}")), "{result}");
    }
    let reads = take_reads(&log);
    assert!(reads.iter().all(|(first, _)| *first > from), "{reads:?}");
    assert_eq!(violation_lines(&env, &TestEnv::key(), (20, 0)).await, [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn cold_worker_reads_no_abandoned_branch() {
    let (mut env, services, log) = new_env().await;
    send(&env, &services, "start").await;
    let start = env.head().await.unwrap().leaf_id.unwrap();
    for branch in ["one", "two", "three", "four"] {
        send_many(&env, &services, branch, 8).await;
        let request = LeafRequest { entry_id: Some(start.to_string()), ..LeafRequest::default() };
        move_leaf(&services, &TestEnv::key(), &request, &idempotency(branch)).await.unwrap();
    }
    send(&env, &services, "last branch").await;
    let head = env.head().await.unwrap();
    let cold = cold_worker(&mut env);
    take_reads(&log);
    send(&env, &cold, "read a.txt").await;
    let reads = take_reads(&log);
    assert!(count_entries(&reads) * 4 < head.seq, "{reads:?} of {}", head.seq);
    assert!(last_result(&env, &TestEnv::key()).await.contains("content of a.txt"));
    assert_eq!(violation_lines(&env, &TestEnv::key(), (36, 0)).await, [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn wrong_or_absent_list_of_entries_is_harmless() {
    let (mut env, services, log) = new_env().await;
    send_many(&env, &services, "before", 10).await;
    compact_now(&env, &services, "first").await;
    for context in [Vec::new(), vec![SeqRange::from(47)], vec![SeqRange { from: 3, to: Some(9) }]] {
        let partition = Partition::Conversation(TestEnv::key());
        let stored = env.store.read(&partition, HEAD_ID, Freshness::Latest).await.unwrap().unwrap();
        let mut head = documents::read_head(&stored).unwrap();
        head.context = context;
        let write =
            Write::Replace(documents::head_document(&head).unwrap(), Some(stored.etag.clone()));
        env.store.write(&partition, vec![write]).await.unwrap();
        let cold = cold_worker(&mut env);
        take_reads(&log);
        send(&env, &cold, &format!("read a.txt {}", head.turn)).await;
        assert!(last_result(&env, &TestEnv::key()).await.contains("content of a.txt"));
        assert_eq!(take_reads(&log).iter().map(|read| read.0).min(), Some(1));
    }
}

#[tokio::test(start_paused = true)]
async fn fork_lists_entries_of_its_own() {
    let (mut env, services, log) = new_env().await;
    send_many(&env, &services, "before", 10).await;
    compact_now(&env, &services, "first").await;
    send(&env, &services, "after").await;
    let leaf = env.head().await.unwrap().leaf_id.unwrap();
    let request = ForkRequest {
        entry_id: leaf.to_string(),
        position: Some(ForkPosition::At),
        conversation_id: Some("f".to_owned()),
    };
    fork_conversation(&services, &TestEnv::key(), request, &idempotency("f")).await.unwrap();
    let key = ConversationKey { conversation_id: ConversationId::new("f"), ..TestEnv::key() };
    let head = env.head_of(&key).await.unwrap();
    let [SeqRange { from, to: None }] = head.context[..] else { panic!("{:?}", head.context) };
    let entries = env.entries_of(&key).await;
    let compaction = entries.iter().find_map(|entry| entry.body.compaction()).unwrap();
    let kept = entries.iter().find(|it| it.base.entry_id == compaction.first_kept_entry_id);
    assert!(kept.unwrap().base.seq >= from && from > 1);
    assert!(matches!(entries[0].body, EntryBody::Prompt(_)));
    let cold = cold_worker(&mut env);
    take_reads(&log);
    env.queue_prompt(&cold, &key, "read a.txt").await.unwrap();
    handle_until_idle(&env, &cold).await;
    assert_eq!(take_reads(&log).iter().map(|read| read.0).min(), Some(from));
    assert!(last_result(&env, &key).await.contains("content of a.txt"));
}
