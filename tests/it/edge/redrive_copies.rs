//! Rejected messages of `agent-prompts` that an operator returns to their queue.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use turnwheel::testing::agents::Catalog;
use turnwheel::testing::commands::prompt_queue::{QueueMessageOutcome, accept_queue_message};
use turnwheel::testing::queue::{PROMPTS, Queue as _, poison_queue, redrive};

use super::test_app::TestApp;

/// Returns the messages of the poison queue to their queue, and delivers them.
async fn redrive_and_deliver(app: &TestApp) -> Vec<QueueMessageOutcome> {
    redrive(&*app.queue, PROMPTS).await.unwrap();
    let mut outcomes = Vec::new();
    for message in app.queue.receive(PROMPTS, 32, Duration::from_mins(1)).await.unwrap() {
        let outcome = accept_queue_message(&app.services, &message.text, &message.id).await;
        outcomes.push(outcome.unwrap());
        app.queue.delete(PROMPTS, &message.id, &message.pop_receipt).await.unwrap();
    }
    outcomes
}

/// A process that dies after it has rejected a message, and before the host deletes it, leaves two copies.
#[tokio::test]
async fn copies_of_rejected_message_start_one_prompt() {
    let plain = json!({"conversationId": "c", "agent": "clerk", "input": "use pay with {\"amount\": 50} then say done"});
    for text in [STANDARD.encode(plain.to_string()), plain.to_string()] {
        let app = TestApp::new();
        let app = app.with_services(|services| services.agents = Catalog::default().into());
        for _ in 0..2 {
            let outcome = accept_queue_message(&app.services, &text, "m1").await.unwrap();
            assert!(matches!(outcome, QueueMessageOutcome::Rejected { .. }), "{outcome:?}");
        }
        // The cause is not corrected yet: the messages are rejected again.
        let rejected = redrive_and_deliver(&app).await;
        assert!(
            matches!(
                rejected[..],
                [QueueMessageOutcome::Rejected { .. }, QueueMessageOutcome::Rejected { .. }]
            ),
            "{rejected:?}"
        );
        let poison = poison_queue(PROMPTS);
        for message in app.queue.receive(&poison, 32, Duration::from_secs(1)).await.unwrap() {
            let details: Value = serde_json::from_str(&message.text).unwrap();
            assert_eq!(details["messageId"], "m1", "{details}");
        }
        app.clock.advance(Duration::from_secs(2));

        let app = app.with_agent(|_| ());
        let accepted = redrive_and_deliver(&app).await;
        assert!(
            matches!(
                accepted[..],
                [QueueMessageOutcome::Accepted(_), QueueMessageOutcome::Accepted(_)]
            ),
            "{accepted:?}"
        );
        app.work().await;
        assert_eq!(app.pay.payments.lock().unwrap().len(), 1);
        let prompts = app.get_json("/api/conversations/c/prompts").await;
        assert_eq!(prompts["items"].as_array().unwrap().len(), 1, "{prompts}");
        let conversation = app.get_json("/api/conversations/c").await;
        assert_eq!(conversation["metadata"]["messageId"], "m1");
    }
}
