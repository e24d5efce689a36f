//! The example `examples/rust-extension`, and kills of its process around commands, input hooks, and
//! moves and forks that wait for an answer.

use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::support::dev_process::DevProcess;
use crate::support::openapi_check::SendValidated as _;
use crate::support::restarting_client::RestartingClient;

const TIMEOUT: Duration = Duration::from_mins(2);
const NOTE: &str = "/api/conversations/c/commands/note";

/// Data of the custom entries of this type.
async fn customs(client: &mut RestartingClient, custom_type: &str) -> Vec<Value> {
    let entries = client.get("/api/conversations/c/entries?limit=100").await;
    let entries = entries["items"].as_array().unwrap().iter();
    entries.filter(|it| it["customType"] == custom_type).map(|it| it["data"].clone()).collect()
}

/// Number of times that the command ran, in all processes.
fn command_runs(mut client: RestartingClient) -> usize {
    let last_log = client.dev.whole_log();
    let logs = client.earlier_logs.iter().chain([&last_log]);
    logs.map(|log| log.matches("a note is taken").count()).sum()
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
    let hits = std::mem::take(&mut client.hits);
    (command_runs(client), hits)
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
        // The second request that is accepted is the command. Without its hits the kill came before
        // the command, or while it ran.
        let expected = match (count("admission.accept"), count("admission.accepted")) {
            (2, 2) => 1..=1,
            (2, _) => 2..=2,
            _ => 1..=2,
        };
        assert!(expected.contains(&runs), "{at}: {runs} runs, {hits:?}");
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
        "pending-work.before",
        "pending-work.after",
    ];
    let kills = futures_util::future::join_all(fail_points.map(kill_at_each_hit)).await;
    assert!(kills.iter().sum::<usize>() >= 8, "{kills:?}");
}

/// Answers the question about the stored request with yes, and returns its result.
async fn confirm(client: &mut RestartingClient, accepted: &Value) -> Value {
    let input = accepted["inputId"].as_str().unwrap_or_else(|| panic!("{accepted}"));
    let deadline = Instant::now() + TIMEOUT;
    loop {
        let view = client.get(&format!("/api/conversations/c/inbox/{input}")).await;
        if !view["result"].is_null() {
            return view["result"].clone();
        }
        let pending = client.get("/api/conversations/c").await["pendingApprovals"].clone();
        if let Some(id) = pending[0]["id"].as_str() {
            // The request may be decided already.
            let path = format!("/api/conversations/c/approvals/{id}");
            let post = client.http.post(client.dev.url(&path)).timeout(Duration::from_secs(2));
            let _unknown =
                post.json(&json!({"decision": "answer", "value": true})).send_validated().await;
        }
        assert!(Instant::now() < deadline, "{view}\n{}", client.dev.log());
    }
}

/// Number of stored entries of this type.
async fn entry_count(client: &mut RestartingClient, entry_type: &str) -> usize {
    let entries = client.get("/api/conversations/c/entries?limit=100").await;
    let entries = entries["items"].as_array().unwrap().iter();
    entries.filter(|it| it["type"] == entry_type).count()
}

/// Moves the leaf, then forks; each waits for an answer. Returns the fail points that were hit before
/// the kill.
async fn move_and_fork(halt_at: Option<String>) -> Vec<String> {
    let name = format!("{halt_at:?}");
    let mut client = RestartingClient::new(start, halt_at);
    let message = |text: &str| json!({"role": "user", "content": text, "timestamp": 1});
    let create = json!({"id": "c", "messages": [message("one"), message("two"), message("three")]});
    client.post("/api/conversations", "create", &create).await;
    let points = client.get("/api/conversations/c/fork-points").await;
    let (one, two) = (points["items"][0]["entryId"].clone(), points["items"][1]["entryId"].clone());
    let to = json!({"entryId": two, "label": "back"});
    let (accepted, _) = client.post("/api/conversations/c/leaf", "move", &to).await;
    assert_eq!(accepted["waiting"], true, "{name}: {accepted}");
    let moved = confirm(&mut client, &accepted).await;
    assert_eq!((&moved["moved"], &moved["text"]), (&json!(true), &json!("two")), "{name}: {moved}");
    let source = client.get("/api/conversations/c").await;
    assert_eq!(source["leafId"], moved["leafId"], "{name}");
    let copy = json!({"entryId": one, "position": "at", "conversationId": "f"});
    let (accepted, _) = client.post("/api/conversations/c/fork", "fork", &copy).await;
    let forked = confirm(&mut client, &accepted).await;
    assert_eq!(forked["conversation"]["id"], "f", "{name}: {forked}");
    let counts =
        (entry_count(&mut client, "request").await, entry_count(&mut client, "label").await);
    assert_eq!(counts, (2, 1), "{name}");
    let copied = client.get("/api/conversations/f/messages").await;
    assert_eq!(copied["items"].as_array().unwrap().len(), 1, "{name}: {copied}");
    client.hits
}

/// Kills at each hit of the fail point, until a run has fewer hits. Returns the number of kills.
async fn kill_moves_and_forks_at(fail_point: &str) -> usize {
    let mut kills = 0;
    while !move_and_fork(Some(format!("{fail_point}#{}", kills + 1))).await.is_empty() {
        kills += 1;
    }
    kills
}

/// A move and a fork that wait for an answer are made once, and each asks once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kill_while_a_move_and_a_fork_wait_makes_each_once() {
    assert_eq!(move_and_fork(None).await, [""; 0]);
    let fail_points = [
        "admission.accepted",
        "admission.decided",
        "inbox.after",
        "pending-work.before",
        "pending-work.after",
        "fork.begun",
        "fork.commit",
    ];
    let kills = futures_util::future::join_all(fail_points.map(kill_moves_and_forks_at)).await;
    assert!(kills.iter().all(|kills| *kills > 0), "{kills:?}");
}

/// Runs a prompt whose tool changes the state of the plugin. Returns the fail points that were hit
/// before the kill.
async fn reserve_once(halt_at: Option<String>) -> Vec<String> {
    let name = format!("{halt_at:?}");
    let mut client = RestartingClient::new(start, halt_at);
    let (prompt, _) = client.post("/api/prompts", "one", &reserve(7)).await;
    client.wait_for(&prompt, "completed").await;
    let plugins = client.get("/api/conversations/c/plugins").await;
    assert_eq!(plugins["items"][0]["state"], json!({"reserved": 7}), "{name}: {plugins}");
    let messages = client.get("/api/conversations/c/messages").await;
    let results = messages["items"].as_array().unwrap().iter();
    let results: Vec<_> = results.filter(|message| message["role"] == "toolResult").collect();
    assert_eq!(results.len(), 1, "{name}: {messages}");
    assert_eq!(results[0]["content"][0]["text"], "7 of lamp are reserved.", "{name}");
    client.hits
}

async fn kill_reservations_at(fail_point: &str) -> usize {
    let mut kills = 0;
    while !reserve_once(Some(format!("{fail_point}#{}", kills + 1))).await.is_empty() {
        kills += 1;
    }
    kills
}

/// The plugin counts a reservation once, and the hooks of the extension make its outcome not unknown.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kill_around_plugins_and_result_hooks_counts_once() {
    assert_eq!(reserve_once(None).await, [""; 0]);
    let fail_points = [
        "prepare.before",
        "prepare.after",
        "response.before",
        "response.after",
        "tool-result.before",
        "tool-result.after",
        "result.before",
        "result.after",
    ];
    let kills = futures_util::future::join_all(fail_points.map(kill_reservations_at)).await;
    assert!(kills.iter().all(|kills| *kills > 0), "{kills:?}");
}
