//! Disk cost of a durable tool round, as exact counts: unlike times, they do not vary.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use serde_json::json;
use turnwheel::agent_settings::Settings;
use turnwheel::messages::{Content, Message};
use turnwheel::models::{Listener, Model, ModelRecord, ModelRequest, ModelResponse, ScriptedModel};
use turnwheel::testing::agent::entry::Source;
use turnwheel::testing::agents::{AgentDefinition, Catalog};
use turnwheel::testing::artifacts::MemoryArtifacts;
use turnwheel::testing::clock::{Clock, SystemClock};
use turnwheel::testing::commands::contract::Owner;
use turnwheel::testing::commands::idempotency::Idempotency;
use turnwheel::testing::commands::prompt::{
    FirstPromptRequest, Sender, WhenBusy, begin_conversation,
};
use turnwheel::testing::ids::{Ids, SystemIds, TenantId, UserId, WorkerId};
use turnwheel::testing::live::EmbeddedLive;
use turnwheel::testing::queue;
use turnwheel::testing::queue::MemoryQueue;
use turnwheel::testing::services::{ServicePorts, Services};
use turnwheel::testing::store::embedded::{DATABASE_FILE, EmbeddedStore};
use turnwheel::testing::tools::code::build_code_tool;
use turnwheel::testing::turn::delivery;

use crate::support::tools::Echo;

/// Too few to fill the write-ahead log, so that its growth is visible.
const ROUNDS: usize = 60;
/// Number of fsyncs of a checkpoint, measured with strace.
const SYNCS_PER_CHECKPOINT: u64 = 3;

/// Model with one tool call a round, then a text.
#[derive(Debug)]
struct ToolRoundsModel;

#[async_trait]
impl Model for ToolRoundsModel {
    async fn respond(&self, request: ModelRequest<'_>, _listener: &dyn Listener) -> ModelResponse {
        let results = request
            .messages
            .iter()
            .filter(|message| matches!(message, Message::ToolResult(_)))
            .count();
        let block = if results < ROUNDS {
            json!({"type": "toolCall", "id": "c1", "name": "echo", "arguments": {"value": "x"}})
        } else {
            json!({"type": "text", "text": "done"})
        };
        let message = json!({"content": [block], "api": "a", "provider": "p", "model": "m", "stopReason": "stop", "timestamp": 0});
        ModelResponse {
            message: serde_json::from_str(&message.to_string()).unwrap(),
            failure: None,
            metadata: turnwheel::models::CallMetadata::default(),
        }
    }

    fn record(&self, model: &str) -> Result<ModelRecord, String> {
        ScriptedModel.record(model)
    }
}

fn build_services(store: Arc<EmbeddedStore>) -> Services {
    let agent = AgentDefinition {
        name: "echoing".to_owned(),
        settings: Settings { max_rounds: Some(200), ..Settings::default() },
        tools: vec![build_code_tool(Echo(Arc::new(Mutex::default()))).unwrap()],
        revision: "r".to_owned(),
        ..AgentDefinition::default()
    };
    let agents = Catalog {
        agents: BTreeMap::from([("echoing".to_owned(), Arc::new(agent))]),
        ..Catalog::default()
    };
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::default());
    let ids: Arc<dyn Ids> = Arc::new(SystemIds);
    let worker = WorkerId::new(ids.new_id());
    let queue = MemoryQueue::new(Arc::clone(&clock), 0, queue::QueueFaults::default());
    let ports = ServicePorts {
        store,
        queue: Arc::new(queue),
        artifacts: Arc::new(MemoryArtifacts::new(0, 0)),
        live: Arc::new(EmbeddedLive::default()),
        model: Arc::new(ToolRoundsModel),
        clock,
        ids,
    };
    Services { agents: agents.into(), ..Services::new(worker, ports) }
}

#[tokio::test]
async fn tool_round_costs_two_fsyncs_and_constant_bytes() {
    let folder = tempfile::tempdir().unwrap();
    let store = Arc::new(EmbeddedStore::open(folder.path()).unwrap());
    let services = build_services(Arc::clone(&store));
    let owner = Owner { tenant: TenantId::new("t"), user: UserId::new("u") };
    let request = FirstPromptRequest {
        conversation_id: Some("c".to_owned()),
        input: Some(Content::Text("go".to_owned())),
        ..FirstPromptRequest::default()
    };
    let idempotency = Idempotency {
        key: "k".to_owned(),
        is_repeatable: true,
        route: "POST /prompts".to_owned(),
        body_hash: "h".to_owned(),
    };
    let sender = Sender { source: Source::User, traceparent: None, when_busy: WhenBusy::Reject };
    begin_conversation(&services, &owner, request, &idempotency, &sender).await.unwrap();
    let (commits, checkpoints) = (store.commit_count(), store.checkpoint_count());
    let log = folder.path().join(format!("{DATABASE_FILE}-wal"));
    let log_bytes = || std::fs::metadata(&log).unwrap().len();
    let mut bytes = vec![log_bytes()];
    let mut deliveries = 0;
    loop {
        let messages =
            services.queue.receive(queue::TURNS, 1, Duration::from_mins(1)).await.unwrap();
        let Some(message) = messages.into_iter().next() else { break };
        let nudge = serde_json::from_str(&message.text).unwrap();
        delivery::handle(&services, &nudge).await.unwrap();
        services.queue.delete(queue::TURNS, &message.id, &message.pop_receipt).await.unwrap();
        deliveries += 1;
        if deliveries % (ROUNDS / 2) == 0 {
            bytes.push(log_bytes());
        }
    }
    assert_eq!(deliveries, ROUNDS + 1, "one message is one turn");
    // The commits of the prompt and of the last response are not tool rounds.
    let commits = store.commit_count() - commits - 2;
    let syncs = commits + SYNCS_PER_CHECKPOINT * (store.checkpoint_count() - checkpoints);
    let rounds = ROUNDS as u64;
    assert!(10 * syncs <= 22 * rounds, "{syncs} fsyncs in {rounds} tool rounds");
    assert_eq!(commits, 2 * rounds, "the response with its intent, and the result");
    assert_eq!(store.checkpoint_count(), checkpoints, "without a checkpoint the log alone grows");
    let (first, second) = (bytes[1] - bytes[0], bytes[2] - bytes[1]);
    // B-trees grow by a level at the start. Writing the history again would double the bytes.
    assert!(second * 4 <= first * 5, "{first} bytes, then {second} for as many rounds");
}
