//! Tests of the function that runs turns.

use crate::start::function_handlers::tests::handlers_of;
use crate::start::function_handlers::*;
use turnwheel_model::scripted::ScriptedModel;
use turnwheel_platform::clock::{ManualClock, Timestamp};
use turnwheel_platform::ids::{
    ConversationId, ConversationKey, SeededIds, TenantId, UserId, WorkerId,
};
use turnwheel_platform::settings::ServiceSettings;
use turnwheel_record::services::ServicePorts;
use turnwheel_storage::artifacts::MemoryArtifacts;
use turnwheel_storage::live::EmbeddedLive;
use turnwheel_storage::queue::{MemoryQueue, Queue as _, QueueFaults};
use turnwheel_storage::store::memory::MemoryStore;

fn nudge(user: &str, id: &str) -> Nudge {
    let key = ConversationKey {
        tenant: TenantId::new("t"),
        user: UserId::new(user),
        conversation_id: ConversationId::new(id),
    };
    Nudge::for_conversation(key, None)
}

fn handlers(clock: &Arc<ManualClock>, queue: &Arc<MemoryQueue>) -> FunctionHandlers {
    let read = |name: &str| (name == "TURNWHEEL_OWNER_TURNS_MAX").then(|| "1".to_owned());
    let settings = ServiceSettings::read(read).unwrap();
    let ports = ServicePorts {
        store: Arc::new(MemoryStore::new()),
        queue: Arc::clone(queue) as _,
        artifacts: Arc::new(MemoryArtifacts::new(0, 0)),
        live: Arc::new(EmbeddedLive::default()),
        model: Arc::new(ScriptedModel),
        clock: Arc::clone(clock) as _,
        ids: Arc::new(SeededIds::new(1)),
    };
    FunctionHandlers {
        owner_turns: OwnerTurns::new(settings.owner_turns_max),
        ..handlers_of(Services::new(WorkerId::new("w"), ports))
    }
}

#[tokio::test]
async fn further_turns_of_an_owner_wait_in_the_queue() {
    let clock = Arc::new(ManualClock::new(Timestamp(1_000)));
    let queue = Arc::new(MemoryQueue::new(Arc::clone(&clock) as _, 0, QueueFaults::default()));
    let handlers = handlers(&clock, &queue);
    let deliver = async |nudge: &Nudge| {
        let message = serde_json::to_string(nudge).unwrap();
        handlers.turn(message, InvocationMeta::default()).await.unwrap();
    };
    let waiting = async || {
        let received = queue.receive(queue::TURNS, 9, OWNER_RETRY_DELAY).await.unwrap();
        received.into_iter().map(|message| message.text).collect::<Vec<_>>()
    };
    let (second, other) = (nudge("ann", "c2"), nudge("bob", "c3"));
    let running = handlers.owner_turns.start(&nudge("ann", "c1").key).unwrap();
    deliver(&second).await;
    deliver(&other).await;
    assert_eq!(waiting().await, Vec::<String>::new(), "it waits for a second");
    clock.advance(OWNER_RETRY_DELAY);
    let again = waiting().await;
    assert_eq!(again, [serde_json::to_string(&second).unwrap()]);
    queue.drop_queue(queue::TURNS);
    drop(running);
    deliver(&second).await;
    clock.advance(OWNER_RETRY_DELAY);
    assert_eq!(waiting().await, Vec::<String>::new(), "there is room for the turn");
}
