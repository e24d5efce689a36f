//! Service over an embedded store, whose model makes tool rounds without a network.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use schemars::JsonSchema;
use serde::Deserialize;
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
use turnwheel::testing::store::embedded::EmbeddedStore;
use turnwheel::testing::tools::code::build_code_tool;
use turnwheel::testing::turn::delivery;
use turnwheel::{Effect, Tool, ToolContext, ToolError, ToolResult};

/// Too few to fill the write-ahead log, so that its growth is visible.
pub(crate) const ROUNDS: usize = 60;

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
            json!({"type": "toolCall", "id": "c1", "name": "look", "arguments": {"place": "x"}})
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

#[derive(Deserialize, JsonSchema)]
struct Place {
    place: String,
}

struct Look;

impl Tool for Look {
    type Args = Place;

    fn name(&self) -> &'static str {
        "look"
    }

    fn description(&self) -> &'static str {
        "Reads a place."
    }

    fn effect(&self) -> Effect {
        Effect::Read
    }

    async fn call(&self, args: Place, _cx: ToolContext) -> Result<ToolResult, ToolError> {
        Ok(ToolResult::text(args.place))
    }
}

/// Services with a prompt that makes [`ROUNDS`] tool rounds, one message each.
pub(crate) async fn start_rounds(store: Arc<EmbeddedStore>) -> Services {
    let agent = AgentDefinition {
        name: "echoing".to_owned(),
        settings: Settings { max_rounds: Some(200), ..Settings::default() },
        tools: vec![build_code_tool(Look).unwrap()],
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
    let services = Services { agents: agents.into(), ..Services::new(worker, ports) };
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
    let sender = Sender {
        source: Source::User,
        traceparent: None,
        when_busy: WhenBusy::Reject,
        clients: None,
    };
    begin_conversation(&services, &owner, request, &idempotency, &sender).await.unwrap();
    services
}

/// Handles the next message. False: none is left.
pub(crate) async fn handle_next(services: &Services) -> bool {
    let messages = services.queue.receive(queue::TURNS, 1, Duration::from_mins(1)).await.unwrap();
    let Some(message) = messages.into_iter().next() else { return false };
    let nudge = serde_json::from_str(&message.text).unwrap();
    delivery::handle(services, &nudge).await.unwrap();
    services.queue.delete(queue::TURNS, &message.id, &message.pop_receipt).await.unwrap();
    true
}
