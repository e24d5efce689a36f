//! Nudges that name no possible document.

use serde_json::json;

use crate::start::function_handlers::tests::handlers_of;
use crate::start::function_handlers::*;
use turnwheel_model::scripted::ScriptedModel;
use turnwheel_platform::clock::{Clock, SystemClock};
use turnwheel_platform::ids::{SystemIds, WorkerId};
use turnwheel_record::services::ServicePorts;
use turnwheel_storage::artifacts::MemoryArtifacts;
use turnwheel_storage::live::EmbeddedLive;
use turnwheel_storage::queue::{MemoryQueue, Queue as _, QueueFaults};
use turnwheel_storage::store::memory::MemoryStore;
use turnwheel_test_support::captured_log::CapturedLog;

fn handlers(queue: Arc<MemoryQueue>, clock: &Arc<dyn Clock>) -> FunctionHandlers {
    let ports = ServicePorts {
        store: Arc::new(MemoryStore::new()),
        queue,
        artifacts: Arc::new(MemoryArtifacts::new(0, 0)),
        live: Arc::new(EmbeddedLive::default()),
        model: Arc::new(ScriptedModel),
        clock: Arc::clone(clock),
        ids: Arc::new(SystemIds),
    };
    handlers_of(Services::new(WorkerId::new("w"), ports))
}

#[tokio::test]
async fn impossible_nudge_is_removed_with_one_line() {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::default());
    let queue = Arc::new(MemoryQueue::new(Arc::clone(&clock), 0, QueueFaults::default()));
    let handlers = handlers(Arc::clone(&queue), &clock);
    let nudge =
        |tenant: &str, id: &str| json!({"tenant": tenant, "user": "u", "conversationId": id});
    let mut messages = ["", "..", "../../etc", "a/b", "a b"].map(|id| nudge("t", id)).to_vec();
    messages.extend([nudge("a tenant", "c"), json!({"tenant": "t"}), json!([]), json!("text")]);
    for message in messages {
        let log = CapturedLog::start();
        let meta = InvocationMeta::default;
        handlers.turn(message.to_string(), meta()).await.unwrap();
        handlers.notify(message.to_string(), meta()).await.unwrap();
        let text = log.text();
        let removals = text.lines().filter(|line| line.contains("invalid queue message removed"));
        assert_eq!(removals.count(), 2, "{message}: {text}");
        let problems = text.lines().filter(|line| line.contains("WARN") || line.contains("ERROR"));
        assert_eq!(problems.count(), 2, "{message}: {text}");
        for queue_name in [queue::TURNS, queue::NOTIFY] {
            assert_eq!(queue.length(queue_name).await.unwrap(), 0, "{message}");
        }
    }
}
