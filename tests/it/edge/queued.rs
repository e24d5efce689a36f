//! Tests of `agent-prompts` messages: accepted, or moved to the poison queue with the reason.

use std::time::Duration;

use base64::Engine as _;
use serde_json::{Value, json};
use turnwheel::queue::{PROMPTS, Queue as _, poison_of};
use turnwheel::store::memory::Faults;
use turnwheel::turn::admission::queued::{Queued, accept_queued};

use super::rig::Rig;

async fn accept(rig: &Rig, text: &str, id: &str) -> Queued {
    accept_queued(&rig.world, text, id).await.unwrap()
}

#[tokio::test]
async fn a_message_is_a_prompt_and_its_id_is_the_key() {
    let rig = Rig::new();
    let plain = json!({"conversationId": "c", "agent": "clerk", "input": "say hello"}).to_string();
    let coded = base64::engine::general_purpose::STANDARD.encode(&plain);
    for (text, id) in [(&plain, "m1"), (&plain, "m1"), (&coded, "m1")] {
        assert!(matches!(accept(&rig, text, id).await, Queued::Accepted(_)), "{text}");
    }
    rig.work().await;
    let prompts = rig.seen("/api/conversations/c/prompts").await;
    assert_eq!(prompts["items"].as_array().unwrap().len(), 1);
    assert_eq!(prompts["items"][0]["state"], "completed");
}

#[tokio::test]
async fn while_the_conversation_is_busy_a_message_waits_its_turn() {
    let rig = Rig::new();
    for (id, word) in [("m1", "one"), ("m2", "two"), ("m3", "three")] {
        let text = json!({"conversationId": "c", "input": format!("say {word}")}).to_string();
        assert!(matches!(accept(&rig, &text, id).await, Queued::Accepted(_)));
        rig.clock.advance(Duration::from_millis(5));
    }
    rig.work().await;
    let prompts = rig.seen("/api/conversations/c/prompts").await;
    let said: Vec<Value> = prompts["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|prompt| prompt["output"][0]["content"].clone())
        .collect();
    assert_eq!(said, ["one", "two", "three"]);
}

#[tokio::test]
async fn what_cannot_be_used_is_put_aside_with_the_reason() {
    let rig = Rig::new();
    let cases = [
        ("{", "understood"),
        ("%%%", "neither JSON nor base64"),
        (r#"{"input":"x","colour":"red"}"#, "colour"),
        (r#"{"input":"x","agent":"nobody"}"#, "nobody"),
        (r#"{"input":"x","userId":"a/b"}"#, "userId"),
    ];
    for (number, (text, reason)) in cases.into_iter().enumerate() {
        let outcome = accept(&rig, text, &format!("m{number}")).await;
        assert!(
            matches!(&outcome, Queued::Rejected { reason: told } if told.contains(reason)),
            "{outcome:?}"
        );
        let poison = poison_of(PROMPTS);
        let aside = rig.queue.receive(&poison, 1, Duration::from_secs(1)).await.unwrap().remove(0);
        let told: Value = serde_json::from_str(&aside.text).unwrap();
        assert_eq!(told["original"], text);
        assert!(
            told["reason"].as_str().unwrap().contains(reason) && told["receivedAt"].is_string(),
            "{told}"
        );
        rig.queue.delete(&poison, &aside.id, &aside.pop_receipt).await.unwrap();
    }
}

#[tokio::test]
async fn message_for_another_agent_is_rejected_with_both_names() {
    let rig = Rig::new();
    rig.post("/api/conversations", &json!({"id": "c"})).send().await.is(201);
    let text = json!({"conversationId": "c", "agent": "other", "input": "x"}).to_string();
    let Queued::Rejected { reason } = accept(&rig, &text, "m1").await else {
        panic!("the message must be rejected");
    };
    assert!(reason.contains("belongs to agent `clerk`") && reason.contains("`other`"), "{reason}");
}

#[tokio::test(start_paused = true)]
async fn while_the_store_is_away_the_message_stays_on_its_queue() {
    let rig = Rig::new();
    rig.store.set_faults(Faults { unavailable_before: 1.0, ..Faults::default() });
    assert!(accept_queued(&rig.world, r#"{"input":"x"}"#, "m1").await.is_err());
    assert_eq!(rig.queue.length(&poison_of(PROMPTS)).await.unwrap(), 0);
}
