//! Maintenance commands: `rebuild-queue`, `redrive`, `usage` and `doctor`.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::support::azure::Azure;
use crate::support::process::Dev;

const PATIENCE: Duration = Duration::from_secs(30);

/// Runs a command that must succeed, and returns its stdout.
fn turnwheel(arguments: &[&str], settings: &[(&str, String)]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_turnwheel"))
        .args(arguments)
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .env_clear()
        .envs(settings.iter().map(|(name, value)| (*name, value.as_str())))
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    said
}

async fn until<T>(mut look: impl AsyncFnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = look().await {
            return found;
        }
        assert!(Instant::now() < deadline, "the condition was not met in time");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

async fn rejected(dev: &Dev) -> u64 {
    let url = dev.url("/admin/queues/agent-prompts-poison");
    let answer: Value = reqwest::get(url).await.unwrap().json().await.unwrap();
    answer["length"].as_u64().unwrap()
}

#[tokio::test]
async fn a_rejected_prompt_is_put_back_whether_or_not_the_service_runs() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().to_str().unwrap();
    let mut dev = Dev::start(folder.path(), &[]);
    let message = json!({"agent": "nobody", "input": "Hello"}).to_string();
    let put = reqwest::Client::new().post(dev.url("/admin/queues/agent-prompts/messages"));
    assert_eq!(put.body(message).send().await.unwrap().status(), 201);
    until(async || (rejected(&dev).await == 1).then_some(())).await;
    let put_back = "Moved 1 messages back to agent-prompts.\n";
    assert_eq!(turnwheel(&["redrive", "agent-prompts", "--data", data], &[]), put_back);
    // The agent is still unknown: the prompt is rejected again.
    until(async || (rejected(&dev).await == 1).then_some(())).await;
    let told = turnwheel(&["rebuild-queue", "--data", data], &[]);
    assert!(told.starts_with("Started the recovery sweep of the service at http://127.0.0.1:"), "{told}");
    dev.kill();
    assert_eq!(turnwheel(&["redrive", "agent-prompts", "--data", data], &[]), put_back);
    let told = turnwheel(&["rebuild-queue", "--data", data], &[]);
    assert!(told.starts_with("Nothing to rebuild"), "{told}");
}

#[tokio::test]
async fn usage_is_told_whether_or_not_the_service_runs() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().to_str().unwrap();
    let mut dev = Dev::start(folder.path(), &[]);
    let prompt = json!({"agent": "payments-clerk", "input": "Hello"});
    let asked = reqwest::Client::new().post(dev.url("/api/prompts?wait=20")).json(&prompt);
    assert_eq!(asked.send().await.unwrap().status(), 200);
    let asked = ["usage", "--by", "agent", "--data", data, "--json"];
    let told = until(async || {
        let told: Value = serde_json::from_str(&turnwheel(&asked, &[])).unwrap();
        (told["items"] != json!([])).then_some(told)
    })
    .await;
    let item = &told["items"][0];
    assert_eq!((&item["name"], &item["modelCalls"]), (&json!("payments-clerk"), &json!(1)));
    assert!(item["usage"]["totalTokens"].as_u64().unwrap() > 0, "{told}");
    dev.kill();
    let again: Value = serde_json::from_str(&turnwheel(&asked, &[])).unwrap();
    assert_eq!(again, told);
    let table = turnwheel(&["usage", "--by", "day", "--data", data], &[]);
    assert!(table.starts_with("day ") && table.lines().count() == 2, "{table}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rebuilt_queue_rings_for_what_a_dead_worker_left() {
    let azure = Azure::start(4).await;
    let folder = tempfile::tempdir().unwrap();
    let storage = ["--storage", "azure", "--queue-prefix", "upkeep"];
    let mut settings = azure.settings();
    settings.push(("TURNWHEEL_HALT_AT", "model.before#1".to_owned()));
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut dev =
        tokio::task::block_in_place(|| Dev::start_with(root, folder.path(), &storage, &settings));
    let prompt = json!({"agent": "payments-clerk", "input": "Hello"});
    let asked = reqwest::Client::new().post(dev.url("/api/prompts")).json(&prompt);
    let accepted: Value = asked.send().await.unwrap().json().await.unwrap();
    let halted = folder.path().join("halted");
    until(async || halted.exists().then_some(())).await;
    dev.kill();
    settings.pop();
    let id = accepted["conversationId"].as_str().unwrap();
    let told = turnwheel(&["why", id], &settings);
    assert!(told.starts_with("A worker has been calling the model since "), "{told}");
    assert!(turnwheel(&["ls"], &settings).contains(id), "also with other conversations in the account");
    let mut arguments = vec!["rebuild-queue"];
    arguments.extend(storage);
    assert_eq!(turnwheel(&arguments, &settings), "Enqueued 1 conversations.\n");
    let told = turnwheel(&["doctor"], &settings);
    assert!(told.contains("a tool round of short messages costs"), "{told}");
    // The queues without a prefix: other tests may have nudges there.
    assert!(told.contains("reachable; "), "{told}");
}
