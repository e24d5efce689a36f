//! Tests of deletion: a deleted conversation disappears at once; a running write delays it.

use std::time::Duration;

use serde_json::json;
use turnwheel::store::Partition;
use turnwheel::turn::admission::delete::purge;

use super::rig::Rig;

#[tokio::test]
async fn a_deleted_conversation_is_gone_and_its_id_is_kept_for_a_while() {
    let rig = Rig::new();
    let prompt = rig.run("say hello").await;
    rig.ask(http::Method::POST, "/api/conversations/c/artifacts")
        .body("hello")
        .send()
        .await
        .is(201);
    rig.delete("/api/conversations/c").send().await.is(204);
    for path in [
        "",
        "/messages",
        "/entries",
        "/prompts",
        "/artifacts",
        "/events",
        &format!("/prompts/{prompt}"),
    ] {
        rig.get(&format!("/api/conversations/c{path}")).send().await.fails(404, "not-found");
    }
    rig.post("/api/conversations/c/prompts", &json!({"input": "x"}))
        .send()
        .await
        .fails(404, "not-found");
    rig.delete("/api/conversations/c").send().await.fails(404, "not-found");
    assert_eq!(rig.seen("/api/conversations").await["items"], json!([]));
    rig.post("/api/conversations", &json!({"id": "c"})).send().await.fails(409, "conflict");
    let partition = Partition::Conversation(Rig::key());
    let left = rig.store.documents(&partition);
    assert_eq!(left.iter().map(|stored| stored.document.id.as_str()).collect::<Vec<_>>(), ["head"]);
    assert!(!left[0].document.body.text().contains("hello"));
    rig.clock.advance(Duration::from_hours(8 * 24));
    purge(&rig.world, &Rig::key()).await.unwrap();
    assert!(rig.store.documents(&partition).is_empty());
    rig.post("/api/conversations", &json!({"id": "c"})).send().await.is(201);
}

#[tokio::test]
async fn a_write_under_way_is_waited_for() {
    let rig = Rig::new();
    rig.prompt("use pay with {\"amount\": 5, \"slowly\": true} then say done").await;
    let story = async {
        rig.pay.is_under_way.notified().await;
        let told = rig.delete("/api/conversations/c").send().await;
        assert!(told.header("retry-after").parse::<u64>().unwrap() >= 1);
        told.fails(409, "effect-in-flight");
        rig.pay.may_end.notify_one();
    };
    tokio::join!(rig.work(), story);
    assert_eq!(rig.pay.made.lock().unwrap().len(), 1);
    rig.delete("/api/conversations/c").send().await.is(204);
}
