//! Tests of prompt admission: repeated requests are accepted once.

use serde_json::json;

use super::stage::{Paced, Stage, says};

#[tokio::test]
async fn the_same_key_is_answered_the_same_and_runs_once() {
    let stage = Stage::set([says("Hello")]).await;
    let body = json!({"conversationId": "c", "input": "Hi", "metadata": {"a": "1", "b": "2"}});
    let key = [("idempotency-key", "order-7")];
    let first = stage.post("/api/prompts", &key, &body).await;
    assert_eq!((first.status, first.is_replayed()), (202, false), "{}", first.body);
    assert!(first.headers.contains_key("location"));

    // The key quoted, as in the draft standard, and the members in another order.
    let same = json!({"metadata": {"b": "2", "a": "1"}, "input": "Hi", "conversationId": "c"});
    let again = stage.post("/api/prompts", &[("idempotency-key", "\"order-7\"")], &same).await;
    assert_eq!((again.status, again.is_replayed()), (202, true));
    assert_eq!(again.body, first.body);
    assert_eq!(again.headers["location"], first.headers["location"]);

    // `wait` is not part of the request that the key identifies.
    let waited = stage.post("/api/prompts?wait=30", &key, &body).await;
    assert_eq!(
        (waited.status, &waited.body["state"]),
        (200, &json!("completed")),
        "{}",
        waited.body
    );
    assert_eq!(waited.body["id"], first.body["promptId"]);
    let late = stage.post("/api/prompts", &key, &body).await;
    assert_eq!((late.status, late.is_replayed(), late.body), (202, true, first.body));
    assert_eq!(stage.model.requests().len(), 1);
    stage.service.stop().await;
}

#[tokio::test]
async fn a_key_with_another_body_is_refused_and_a_refused_request_keeps_no_key() {
    let stage = Stage::set([says("Hello"), says("Again")]).await;
    let key = [("idempotency-key", "k")];
    let refused =
        stage.post("/api/prompts", &key, &json!({"conversationId": "c", "inptu": "Hi"})).await;
    assert_eq!((refused.status, refused.problem()), (400, "bad-request"));
    assert!(refused.body.to_string().contains("inptu"), "{}", refused.body);

    let body = json!({"conversationId": "c", "input": "Hi"});
    let first = stage.post("/api/prompts?wait=30", &key, &body).await;
    assert_eq!((first.status, first.is_replayed()), (200, false), "{}", first.body);
    let other = json!({"conversationId": "c", "input": "Ho"});
    let reused = stage.post("/api/prompts", &key, &other).await;
    assert_eq!((reused.status, reused.problem()), (422, "idempotency-key-reused"));
    // Another route is another scope of keys.
    let path = "/api/conversations/c/prompts?wait=30";
    let elsewhere = stage.post(path, &key, &json!({"input": "Ho"})).await;
    assert_eq!((elsewhere.status, &elsewhere.body["state"]), (200, &json!("completed")));
    assert_eq!(stage.model.requests().len(), 2);
    stage.service.stop().await;
}

#[tokio::test]
async fn while_a_prompt_runs_another_is_refused_and_named_the_one_that_runs() {
    let (paced, play) = Paced::answer(&["Hel".to_owned(), "lo".to_owned()]);
    let stage = Stage::set([play, says("Next")]).await;
    let first =
        stage.post("/api/prompts", &[], &json!({"conversationId": "c", "input": "Hi"})).await;
    assert_eq!(first.status, 202);
    let path = "/api/conversations/c/prompts";
    let key = [("idempotency-key", "k")];
    let second = stage.post(path, &key, &json!({"input": "Me too"})).await;
    assert_eq!((second.status, second.problem()), (409, "already-processing"), "{}", second.body);
    assert_eq!(second.body["promptId"], first.body["promptId"]);
    // The wait ends first: the response is the accepted prompt.
    let prompt = first.body["promptId"].as_str().unwrap();
    let running = stage.get(&format!("{path}/{prompt}?wait=0"), &[]).await;
    assert_eq!((running.status, &running.body["state"]), (200, &json!("running")));

    paced.all();
    assert_eq!(stage.service.settled("c", prompt).await["output"][0]["content"], "Hello");
    let second = stage.post(&format!("{path}?wait=30"), &key, &json!({"input": "Me too"})).await;
    assert_eq!((second.status, second.is_replayed()), (200, false), "a rejected request must not store its key");
    stage.service.stop().await;
}

#[tokio::test]
async fn a_wait_out_of_bounds_is_refused_before_anything_is_kept() {
    let stage = Stage::set([]).await;
    let body = json!({"conversationId": "c", "input": "Hi"});
    for wait in ["61", "-1", "soon"] {
        let refused = stage.post(&format!("/api/prompts?wait={wait}"), &[], &body).await;
        assert_eq!((refused.status, refused.problem()), (400, "bad-request"), "{wait}");
    }
    assert_eq!(stage.get("/api/conversations/c", &[]).await.status, 404);
    stage.service.stop().await;
}
