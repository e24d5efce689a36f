//! The example `examples/rust-extension`, and kills of its process around commands and input hooks.

use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::support::dev_process::DevProcess;
use crate::support::restarting_client::RestartingClient;

const TIMEOUT: Duration = Duration::from_secs(30);
const NOTE: &str = "/api/conversations/c/commands/note";

/// Data of the custom entries of this type.
async fn customs(client: &mut RestartingClient, custom_type: &str) -> Vec<Value> {
    let entries = client.get("/api/conversations/c/entries?limit=100").await;
    let entries = entries["items"].as_array().unwrap().iter();
    entries.filter(|it| it["customType"] == custom_type).map(|it| it["data"].clone()).collect()
}

/// Number of times that the command ran, in all processes.
fn command_runs(client: &RestartingClient) -> usize {
    let all = client.earlier_logs.iter().cloned().chain([client.dev.shared_log()]);
    all.map(|log| log.lock().unwrap().matches("a note is taken").count()).sum()
}

fn start(data: &Path, settings: &[(&str, String)]) -> DevProcess {
    DevProcess::start_example("rust-extension", data, settings)
}

fn reserve(count: u32) -> Value {
    let call = json!({"item": "lamp", "count": count});
    json!({"conversationId": "c", "input": format!("use reserve with {call} then say done")})
}

#[tokio::test]
async fn example_reserves_after_an_approval() {
    let mut client = RestartingClient::new(start, None);
    let (first, _) = client.post("/api/prompts", "one", &reserve(250)).await;
    client.wait_for(&first, "waiting_for_approval").await;
    let view = client.get("/api/conversations/c").await;
    let approval = &view["pendingApprovals"][0];
    assert_eq!(approval["reason"], "Reserve 250 items?", "{view}");
    let path = format!("/api/conversations/c/approvals/{}", approval["id"].as_str().unwrap());
    client.post(&path, "decide", &json!({"decision": "approve"})).await;
    client.wait_for(&first, "completed").await;
    let second = json!({"input": reserve(2_000)["input"]});
    let (second, _) = client.post("/api/conversations/c/prompts", "two", &second).await;
    client.wait_for(&second, "completed").await;
    let messages = client.get("/api/conversations/c/messages").await.to_string();
    for text in ["250 of lamp are reserved.", "Nobody reserves more than 1000 items."] {
        assert!(messages.contains(text), "{messages}");
    }
    let plugins = client.get("/api/conversations/c/plugins").await;
    assert_eq!(plugins["items"][0]["state"], json!({"reserved": 250}), "{plugins}");
}

/// Takes a note while a prompt with a card number runs. Returns the number of runs of the command,
/// and the fail points that were hit before the kill.
async fn take_note(halt_at: Option<String>) -> (usize, Vec<String>) {
    let name = format!("{halt_at:?}");
    let mut client = RestartingClient::new(start, halt_at);
    let begin = json!({"conversationId": "c", "input": "say 4111111111111111 is paid"});
    let (begun, _) = client.post("/api/prompts", "begin", &begin).await;
    let args = json!({"args": "Ada called."});
    let (noted, _) = client.post(NOTE, "note", &args).await;
    assert_eq!(noted["output"], "Noted.", "{name}: {noted}");
    for _ in 0..2 {
        let (again, is_replayed) = client.post(NOTE, "note", &args).await;
        assert_eq!((again, is_replayed), (noted.clone(), true), "{name}");
    }
    client.wait_for(&begun, "completed").await;
    let deadline = Instant::now() + TIMEOUT;
    while customs(&mut client, "rules/note").await.is_empty() {
        assert!(Instant::now() < deadline, "{name}: {}", client.dev.log());
    }
    assert_eq!(
        customs(&mut client, "rules/note").await,
        [json!({"text": "Ada called."})],
        "{name}"
    );
    assert_eq!(customs(&mut client, "rules/masked").await, [json!({})], "{name}");
    let messages = client.get("/api/conversations/c/messages").await.to_string();
    assert!(messages.contains("say [card] is paid"), "{name}: {messages}");
    assert!(!messages.contains("41111"), "{name}: {messages}");
    (command_runs(&client), client.hits)
}

/// Kills at each hit of the fail point, until a run has fewer hits. Returns the number of kills.
async fn kill_at_each_hit(fail_point: &str) -> usize {
    let mut kills = 0;
    loop {
        let at = format!("{fail_point}#{}", kills + 1);
        let (runs, hits) = take_note(Some(at.clone())).await;
        if hits.is_empty() {
            return kills;
        }
        kills += 1;
        let count = |name: &str| hits.iter().filter(|hit| *hit == name).count();
        // The second request that is accepted is the command.
        let is_lost = count("admission.accept") == 2 && count("admission.accepted") < 2;
        assert_eq!(runs, 1 + usize::from(is_lost), "{at}: {hits:?}");
    }
}

/// A command whose response was lost does not run again once it is stored, and the changes of
/// commands and input hooks land once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kill_around_commands_and_input_hooks_changes_nothing_twice() {
    assert_eq!(take_note(None).await.0, 1);
    let fail_points = [
        "admission.accept",
        "admission.accepted",
        "admission.nudge",
        "inbox.after",
        "take-in.before",
        "take-in.after",
    ];
    let kills = futures_util::future::join_all(fail_points.map(kill_at_each_hit)).await;
    assert!(kills.iter().sum::<usize>() >= 8, "{kills:?}");
}
