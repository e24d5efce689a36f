//! Kills of the process while it moves the leaf with a summary, forks, imports a session file and
//! inserts a prompt: the client repeats its request, and nothing is there twice or in part.

use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::support::dev_process::DevProcess;
use crate::support::restarting_client::RestartingClient;

const TIMEOUT: Duration = Duration::from_mins(2);
const CONVERSATION: &str = "/api/conversations/c";

fn start(data: &Path, settings: &[(&str, String)]) -> DevProcess {
    DevProcess::start(data, settings)
}

async fn entries(client: &mut RestartingClient, id: &str) -> Vec<Value> {
    let page = client.get(&format!("/api/conversations/{id}/entries?limit=100")).await;
    page["items"].as_array().unwrap().clone()
}

/// Kinds and roles of the entries, without the traces of lost model calls.
fn kinds(entries: &[Value]) -> Vec<String> {
    let kind = |entry: &Value| {
        let role = entry["message"]["role"].as_str().or(entry["type"].as_str());
        role.unwrap().to_owned()
    };
    let kinds = entries.iter().map(kind);
    kinds.filter(|kind| !["lost_call", "failed_summary"].contains(&kind.as_str())).collect()
}

fn session_file() -> String {
    let header = json!({"type": "session", "version": 3, "id": "s", "timestamp": "2026-01-01T00:00:00.000Z", "cwd": "/"});
    let mut lines = vec![header.to_string()];
    for number in 0..95 {
        let parent = (number > 0).then(|| format!("e{}", number - 1));
        let message = json!({"role": "user", "content": format!("line {number}"), "timestamp": 1});
        lines.push(json!({"type": "message", "id": format!("e{number}"), "parentId": parent, "timestamp": "2026-01-01T00:00:01.000Z", "message": message}).to_string());
    }
    lines.join("\n") + "\n"
}

/// Waits until the leaf has moved with its summary and label. Returns the entries.
async fn wait_for_summary(client: &mut RestartingClient) -> Vec<Value> {
    let deadline = Instant::now() + TIMEOUT;
    loop {
        let entries = entries(client, "c").await;
        if entries.iter().any(|entry| entry["type"] == "label") {
            return entries;
        }
        assert!(Instant::now() < deadline, "{}", client.dev.log());
    }
}

/// Uses the session tree. Returns the results, and the fail points that were hit before the kill.
async fn use_tree(halt_at: Option<String>) -> (Value, Vec<String>) {
    let mut client = RestartingClient::new(start, halt_at);
    let begin = json!({"agent": "assistant", "conversationId": "c", "input": "say one"});
    let (begun, _) = client.post("/api/prompts", "begin", &begin).await;
    client.wait_for(&begun, "completed").await;
    let (file, _) = client
        .send(|http, dev| {
            let url = dev.url(&format!("{CONVERSATION}/artifacts?name=a.txt"));
            let request = http.post(url).header("idempotency-key", "file");
            request.header("content-type", "text/plain").body("hello")
        })
        .await;
    let blocks = json!([
        {"type": "text", "text": "say two"},
        {"type": "file", "artifactId": file["id"]},
    ]);
    let prompts = format!("{CONVERSATION}/prompts");
    let (second, _) = client.post(&prompts, "second", &json!({"input": blocks})).await;
    client.wait_for(&second, "completed").await;
    let insertion = json!({
        "input": "made elsewhere", "source": "schedule", "output": [{"type": "text", "content": "done"}]
    });
    let (inserted, _) = client.post(&format!("{prompts}/import"), "insert", &insertion).await;
    client.wait_for(&inserted, "completed").await;
    let before = entries(&mut client, "c").await;
    let is_second = |entry: &&Value| entry["message"]["content"][0]["text"] == "say two";
    let target = before.iter().find(is_second).unwrap()["id"].clone();
    let leaf = before.last().unwrap()["id"].clone();

    let fork = json!({"entryId": leaf, "position": "at", "conversationId": "f"});
    client.post(&format!("{CONVERSATION}/fork"), "fork", &fork).await;
    let (third, _) =
        client.post("/api/conversations/f/prompts", "third", &json!({"input": "say three"})).await;
    client.wait_for(&third, "completed").await;

    let summary = json!({"entryId": target, "summarize": true, "label": "left"});
    client.post(&format!("{CONVERSATION}/leaf"), "move", &summary).await;
    let after = wait_for_summary(&mut client).await;
    let conversation = client.get(CONVERSATION).await;
    assert_eq!(conversation["leafId"], after.last().unwrap()["id"]);

    client
        .send(|http, dev| {
            let url = dev.url("/api/conversations/import?conversationId=i&agent=assistant");
            let request = http.post(url).header("idempotency-key", "import");
            request.header("content-type", "application/x-ndjson").body(session_file())
        })
        .await;
    let imported = entries(&mut client, "i").await;
    let forked = entries(&mut client, "f").await;
    let copied = forked.get(..before.len()).unwrap_or_default();
    assert_eq!(copied, before, "the fork has the entries of its source");
    let artifact = format!("/api/conversations/f/artifacts/{}", file["id"].as_str().unwrap());
    let copy = client.send(|http, dev| http.get(dev.url("/api/conversations/f/artifacts"))).await.0;
    assert!(copy.to_string().contains(file["id"].as_str().unwrap()), "{artifact}: {copy}");
    let observed = json!({
        "c": kinds(&after), "f": kinds(&forked), "i": kinds(&imported),
        "state": conversation["state"],
    });
    (observed, client.hits)
}

/// Kills at each hit of the fail point, until a run has fewer hits. Returns the number of kills.
async fn kill_at_each_hit(fail_point: &str, expected: &Value) -> usize {
    let mut kills = 0;
    loop {
        let at = format!("{fail_point}#{}", kills + 1);
        let (observed, hits) = use_tree(Some(at.clone())).await;
        assert_eq!(observed, *expected, "{at}: {hits:?}");
        if hits.is_empty() {
            return kills;
        }
        kills += 1;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kill_around_moves_forks_and_imports_changes_nothing_twice() {
    let (expected, _) = use_tree(None).await;
    let summaries = expected["c"].as_array().unwrap().iter().filter(|it| *it == "branch_summary");
    assert_eq!((summaries.count(), expected["i"].as_array().unwrap().len()), (1, 95), "{expected}");
    let fail_points = [
        "navigate.before",
        "navigate.after",
        "fork.begun",
        "fork.artifact",
        "fork.commit",
        "admission.import",
    ];
    let kills = fail_points.map(|fail_point| kill_at_each_hit(fail_point, &expected));
    let kills = futures_util::future::join_all(kills).await;
    assert!(kills.iter().all(|kills| *kills >= 1), "{kills:?}");
}
