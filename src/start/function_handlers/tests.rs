//! Tests of deliveries that no repetition can complete.

mod impossible_nudges;
mod message_ids;
mod owner_turns;
mod read_check;
mod shutdown;
mod work_marks;

use serde_json::json;

use super::*;
use crate::start::test_services::TestServices;
use turnwheel_platform::clock::Timestamp;
use turnwheel_platform::ids::{ConversationId, ConversationKey, TenantId, UserId};
use turnwheel_platform::settings::ServiceSettings;
use turnwheel_storage::queue::MemoryQueue;
use turnwheel_storage::store::memory::MemoryStore;
use turnwheel_storage::store::{
    ConversationStore as _, Document, DocumentKind, HEAD_ID, Partition, Write,
};

const NOW: Timestamp = Timestamp(1_700_000_000_000);

struct TestHandlers {
    handlers: FunctionHandlers,
    store: Arc<MemoryStore>,
    queue: Arc<MemoryQueue>,
}

impl TestHandlers {
    fn new() -> Self {
        let TestServices { services, store, queue } = TestServices::new(NOW);
        Self { handlers: handlers_of(services), store, queue }
    }

    /// Delivers to the three functions that take nudges. Returns their outcomes, and true if they
    /// enqueued one.
    async fn deliver(&self, id: &str) -> ([Result<(), FunctionFailure>; 3], bool) {
        let message = serde_json::to_string(&Nudge::for_conversation(key(id), None)).unwrap();
        let meta = InvocationMeta::default;
        let outcomes = [
            Box::pin(self.handlers.turn(message.clone(), meta())).await,
            Box::pin(self.handlers.notify(message.clone(), meta())).await,
            Box::pin(self.handlers.turn_poison(message, meta())).await,
        ];
        (outcomes, self.queue.next_visible_in().is_some())
    }
}

/// Without a work file and settings.
fn handlers_of(services: Services) -> FunctionHandlers {
    FunctionHandlers {
        work_file: None,
        read_check: ReadCheck::new(&ServiceSettings::read(|_| None).unwrap()),
        clock_watch: ClockWatch::new(&*services.clock),
        owner_turns: OwnerTurns::new(None),
        services: Arc::new(services),
    }
}

fn key(id: &str) -> ConversationKey {
    ConversationKey {
        tenant: TenantId::new("default"),
        user: UserId::new("default"),
        conversation_id: ConversationId::new(id),
    }
}

#[tokio::test]
async fn nudge_with_too_long_id_is_removed() {
    let app = TestHandlers::new();
    let (outcomes, is_enqueued) = app.deliver(&"x".repeat(129)).await;
    assert_eq!((outcomes, is_enqueued), ([Ok(()), Ok(()), Ok(())], false));
    // The longest id is possible: the poison queue returns its nudge.
    let (outcomes, is_enqueued) = app.deliver(&"x".repeat(128)).await;
    assert_eq!((outcomes, is_enqueued), ([Ok(()), Ok(()), Ok(())], true));
}

/// A failed delivery would come back from the poison queue without end.
#[tokio::test]
async fn delivery_to_a_corrupt_conversation_is_acknowledged() {
    let app = TestHandlers::new();
    let head = Document {
        created_at: Some(NOW),
        state: Some("idle".to_owned()),
        ..Document::new(HEAD_ID, DocumentKind::Head, &json!({"phase": 5}), Some(NOW))
    };
    let notification =
        Document::new("n1", DocumentKind::Notification, &json!({"kind": 5}), Some(NOW));
    let writes = vec![Write::Create(head), Write::Create(notification)];
    app.store.write(&Partition::Conversation(key("c")), writes).await.unwrap();
    let message = serde_json::to_string(&Nudge::for_conversation(key("c"), None)).unwrap();
    let meta = InvocationMeta::default;
    let turn = Box::pin(app.handlers.turn(message.clone(), meta())).await;
    let notify = Box::pin(app.handlers.notify(message, meta())).await;
    assert_eq!((turn, notify), (Ok(()), Ok(())));
    assert!(app.queue.next_visible_in().is_none(), "the recovery sweep enqueues pending work");
}

/// A nudge of a commit that stays too large would come back from the poison queue without end.
#[test]
fn only_temporary_errors_are_delivered_again() {
    let text = String::new;
    for error in [StoreError::Unavailable("refused".into()), StoreError::Conflict] {
        assert!(!error.is_permanent(), "{error}");
    }
    for error in
        [StoreError::TooLarge(text()), StoreError::Invalid(text()), StoreError::Corrupt(text())]
    {
        assert!(error.is_permanent(), "{error}");
    }
}
