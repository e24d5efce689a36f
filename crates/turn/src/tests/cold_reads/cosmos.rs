//! Requests of a worker without cached entries, on the Cosmos emulator.

use bytes::Bytes;

use super::*;
use crate::delivery::handle;
use turnwheel_commands::session_import::{SessionImport, import_session};
use turnwheel_platform::telemetry::cost_meter::{CostMeter, with_meter};
use turnwheel_record::contract::CommandError;
use turnwheel_storage::queue::{self, Queue as _};
use turnwheel_storage::store::cosmos::testing::{connect_store, start_in_process};

/// Entries of the conversation. Cosmos DB returns at most 1,000 documents with one response.
const ENTRIES: usize = 2_500;

/// A file with one abandoned branch, which has all entries but the first two.
fn session_file() -> String {
    let at = "2026-11-21T20:19:09.669Z";
    let mut lines =
        vec![json!({"type": "session", "version": 3, "id": "s", "cwd": "/", "timestamp": at})];
    for number in 0..ENTRIES {
        let parent = match number {
            0 => Value::Null,
            _ if number + 1 == ENTRIES => json!("00000001"),
            _ => json!(format!("{:08x}", number - 1)),
        };
        lines.push(json!({
            "type": "message", "id": format!("{number:08x}"), "parentId": parent, "timestamp": at,
            "message": {"role": "user", "content": "word", "timestamp": 0},
        }));
    }
    let lines: Vec<String> = lines.iter().map(Value::to_string).collect();
    lines.join("\n")
}

/// Requests of each kind in the next turn, by a new worker.
async fn measure_cold_turn(env: &mut TestEnv, prompt: &str) -> Vec<(&'static str, u32)> {
    let client = env.new_worker(Arc::new(NoFailPoints));
    env.queue_prompt(&client, &TestEnv::key(), prompt).await.unwrap();
    let cold = env.new_worker(Arc::new(NoFailPoints));
    let received = env.queue.receive(queue::TURNS, 1, std::time::Duration::from_mins(1)).await;
    let message = received.unwrap().remove(0);
    let nudge = serde_json::from_str(&message.text).unwrap();
    let meter = Arc::new(CostMeter::default());
    with_meter(Arc::clone(&meter), handle(&cold, &nudge)).await.unwrap();
    env.queue.delete(queue::TURNS, &message.id, &message.pop_receipt).await.unwrap();
    let costs = meter.costs();
    let costs = costs.iter().filter(|(operation, _)| operation.starts_with("cosmos."));
    costs.map(|(operation, cost)| (*operation, cost.requests)).collect()
}

#[tokio::test(start_paused = true)]
async fn cold_turn_costs_same_requests_whatever_abandoned_branches() {
    let emulator = start_in_process(1);
    let mut env = TestEnv::with_script(1, uses_files);
    env.worker_store = Arc::new(connect_store(&emulator, Vec::new()).await);
    let services = env.new_worker(Arc::new(NoFailPoints));
    let request =
        SessionImport { conversation_id: Some("c".to_owned()), ..SessionImport::default() };
    let parts = futures_util::stream::iter([Ok::<_, CommandError>(Bytes::from(session_file()))]);
    let owner = super::super::test_env::owner();
    import_session(&services, &owner, request, &idempotency("import"), parts).await.unwrap();

    let listed = measure_cold_turn(&mut env, "one").await;
    let partition = Partition::Conversation(TestEnv::key());
    let stored =
        services.store.read(&partition, HEAD_ID, Freshness::Latest).await.unwrap().unwrap();
    let mut head = documents::read_head(&stored).unwrap();
    assert_eq!(head.context.len(), 2, "{:?}", head.context);
    head.context = Vec::new();
    let write = Write::Replace(documents::head_document(&head).unwrap(), Some(stored.etag));
    services.store.write(&partition, vec![write]).await.unwrap();
    let all = measure_cold_turn(&mut env, "two").await;
    // One of the selects is for the inbox; the others read a range each, or 1,000 entries.
    let costs = |selects| [("cosmos.read", 1), ("cosmos.select", selects), ("cosmos.write", 2)];
    assert_eq!((listed, all), (costs(3).to_vec(), costs(4).to_vec()));
}
