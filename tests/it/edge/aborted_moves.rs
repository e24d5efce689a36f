//! Tests of moves of the leaf that abort the running prompt.

use serde_json::json;

use super::commands::WAITING_PROMPT;
use super::test_app::TestApp;

#[tokio::test]
async fn move_with_abort_follows_the_end_of_the_prompt() {
    let app = TestApp::new();
    app.run("say one").await;
    let target = app.message_id("say one").await;
    let end = app.leaf_id().await;
    let body = json!({"entryId": target, "abort": true});
    for (key, extra) in [
        ("plain", json!({})),
        ("text", json!({"summary": "left it", "label": "here"})),
        ("model", json!({"summarize": true, "label": "there"})),
    ] {
        app.post_leaf(&json!({"entryId": end}), &format!("{key}-back")).await.expect_status(200);
        app.run(WAITING_PROMPT).await;
        let mut body = body.clone();
        body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        let accepted = app.post_leaf(&body, key).await.expect_status(202).json();
        assert_eq!((&accepted["moved"], &accepted["text"]), (&json!(false), &json!("say one")));
        let path = format!("/api/conversations/c/inbox/{}", accepted["inputId"].as_str().unwrap());
        assert_eq!(app.get_json(&path).await["state"], "queued");
        app.work().await;
        assert_eq!(app.get_json(&path).await["state"], "landed", "{key}");
        let prompts = app.get_json("/api/conversations/c/prompts").await;
        let last = prompts["items"].as_array().unwrap().last().unwrap();
        assert_eq!((&last["state"], &last["onPath"]), (&json!("aborted"), &json!(false)), "{key}");
        let again = app.post_leaf(&body, key).await.expect_status(202);
        assert_eq!((again.json(), again.header("idempotency-replayed")), (accepted, "true"));
        let event = app.events_named("session_tree").await.pop().unwrap();
        assert_eq!(event["newLeafId"], app.leaf_id().await, "{key}");
        assert_eq!(event["summary"].is_null(), key == "plain", "{event}");
        let summaries = app.texts().await;
        assert_eq!(summaries.len(), usize::from(key != "plain"), "{key}: {summaries:?}");
    }
    let labels = app.get_json("/api/conversations/c/tree").await.to_string();
    assert!(labels.contains("\"here\"") && labels.contains("\"there\""), "{labels}");
    assert!(app.pay.payments.lock().unwrap().is_empty(), "the waiting call did not run");
    let idle = json!({"entryId": end, "abort": true});
    app.post_leaf(&idle, "idle").await.expect_status(200);
    app.run(WAITING_PROMPT).await;
    let long = json!({"entryId": end, "abort": true, "label": "x".repeat(65)});
    app.post_leaf(&long, "long").await.expect_problem(400, "bad-request");
    let unknown = json!({"entryId": "zzz", "abort": true});
    app.post_leaf(&unknown, "unknown").await.expect_problem(404, "not-found");
    app.work().await;
    let conversation = app.get_json("/api/conversations/c").await;
    assert_eq!(conversation["state"], "waiting_for_approval", "a refused request aborts nothing");
}
