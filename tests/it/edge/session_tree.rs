//! Tests of the views of the session tree: nodes, fork points, statistics and the last answer.

use serde_json::{Value, json};

use super::test_app::TestApp;

const TREE: &str = "/api/conversations/c/tree";

fn previews(tree: &Value) -> Vec<&str> {
    let items = tree["items"].as_array().unwrap().iter();
    items.filter_map(|node| node["preview"].as_str()).collect()
}

/// Two branches after the first prompt; the second is in use.
async fn branched_app() -> TestApp {
    let app = TestApp::new();
    app.run("say one").await;
    app.run("say two").await;
    let target = app.message_id("say two").await;
    let moved = json!({"entryId": target});
    app.post("/api/conversations/c/leaf", &moved).send().await.expect_status(200);
    app.run("say three").await;
    app
}

#[tokio::test]
async fn tree_shows_branches_messages_and_labels() {
    let app = branched_app().await;
    let two = app.message_id("say two").await;
    app.label(&two, "old").await.expect_status(200);
    let tree = app.get_json(TREE).await;
    assert_eq!(previews(&tree), ["say one", "say two", "say three", "old"], "{tree:#}");
    let node = |preview: &str| {
        let mut items = tree["items"].as_array().unwrap().iter();
        items.find(|node| node["preview"] == preview).unwrap()
    };
    assert_eq!(
        (&node("say two")["label"], &node("say two")["onPath"]),
        (&json!("old"), &json!(false))
    );
    assert_eq!(
        (&node("say three")["role"], &node("say three")["onPath"]),
        (&json!("user"), &json!(true))
    );
    // Both branches begin at the end of the first prompt, which is one node.
    let parent = &node("say two")["parentId"];
    assert_eq!(parent, &node("say three")["parentId"]);
    let fork = tree["items"].as_array().unwrap().iter().find(|it| it["id"] == *parent).unwrap();
    assert_eq!(fork["children"], json!([node("say two")["id"], node("say three")["id"]]));
    assert_eq!(fork["type"], "prompt_end");
    assert_eq!((&tree["isCut"], &tree["leafId"]), (&json!(false), &app.leaf_id().await));
}

#[tokio::test]
async fn tree_can_be_limited_to_a_part() {
    let app = branched_app().await;
    let two = app.message_id("say two").await;
    let part = app.get_json(&format!("{TREE}?from={two}")).await;
    assert_eq!(previews(&part)[0], "say two");
    assert_eq!(part["items"][0]["parentId"], Value::Null);
    let shallow = app.get_json(&format!("{TREE}?depth=0")).await;
    assert_eq!(shallow["items"].as_array().unwrap().len(), 1, "{shallow:#}");
    let problem =
        app.get(&format!("{TREE}?from=zzz")).send().await.expect_problem(404, "not-found");
    assert_eq!(problem["detail"], "Entry zzz not found");
    app.get(&format!("{TREE}?depth=x")).send().await.expect_problem(400, "bad-request");
}

#[tokio::test]
async fn all_entries_are_listed_in_pages_with_their_own_parents() {
    let app = branched_app().await;
    let entries = app.get_json("/api/conversations/c/entries?limit=100").await;
    let expected: Vec<(Value, Value)> = entries["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|entry| (entry["id"].clone(), entry["parentId"].clone()))
        .collect();
    let (mut found, mut path) = (Vec::new(), format!("{TREE}?all=true&limit=4"));
    loop {
        let page = app.get_json(&path).await;
        assert_eq!(page["entries"], expected.len());
        let items = page["items"].as_array().unwrap().iter();
        found.extend(items.map(|node| (node["id"].clone(), node["parentId"].clone())));
        let Some(next) = page["continuation"].as_str() else { break };
        path = format!("{TREE}?all=true&limit=4&continuation={next}");
    }
    assert_eq!(found, expected);
    app.get(&format!("{TREE}?all=true&continuation=abc"))
        .send()
        .await
        .expect_problem(400, "bad-request");
}

#[tokio::test]
async fn fork_points_stats_and_last_answer_are_those_of_the_source() {
    let app = branched_app().await;
    let points = app.get_json("/api/conversations/c/fork-points").await;
    let points = points["items"].as_array().unwrap().iter();
    let points: Vec<Value> = points.map(|point| json!([point["text"], point["onPath"]])).collect();
    assert_eq!(json!(points), json!([["say one", true], ["say two", false], ["say three", true]]));
    let stats = app.get_json("/api/conversations/c/stats").await;
    let count = |name: &str| stats[name].as_u64().unwrap();
    let messages =
        ["userMessages", "assistantMessages", "toolCalls", "toolResults", "totalMessages"];
    assert_eq!(messages.map(count), [2, 2, 0, 0, 4]);
    assert_eq!(count("branches"), 2);
    assert!(stats["usage"]["totalTokens"].as_u64().unwrap() > 0);
    let answer = app.get_json("/api/conversations/c/last-answer").await;
    assert_eq!(answer["text"], "three");
    assert!(answer["promptId"].is_string() && answer["entryId"].is_string());
}

#[tokio::test]
async fn empty_conversation_has_an_empty_tree() {
    let app = TestApp::new();
    let empty = json!({"id": "c"});
    app.post("/api/conversations", &empty).send().await.expect_status(201);
    let tree = app.get_json(TREE).await;
    assert_eq!(tree, json!({"leafId": null, "entries": 0, "items": [], "isCut": false}));
    assert_eq!(app.get_json("/api/conversations/c/last-answer").await, json!({"text": null}));
    let stats = app.get_json("/api/conversations/c/stats").await;
    assert_eq!((&stats["totalMessages"], &stats["branches"]), (&json!(0), &json!(0)));
}
