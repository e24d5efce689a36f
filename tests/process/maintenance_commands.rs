//! Maintenance commands: `rebuild-queue`, `redrive`, `usage` and `doctor`.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::support::azure::LocalAzure;
use crate::support::dev_process::DevProcess;
use crate::support::openapi_check::SendValidated as _;

const TIMEOUT: Duration = Duration::from_mins(2);

/// Runs a command that must succeed, and returns its stdout.
fn run_turnwheel(arguments: &[&str], settings: &[(&str, String)]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_turnwheel"))
        .args(arguments)
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .env_clear()
        .envs(settings.iter().map(|(name, value)| (*name, value.as_str())))
        .output()
        .unwrap();
    let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{stdout}{}", String::from_utf8_lossy(&output.stderr));
    stdout
}

async fn poll_until<T>(mut check: impl AsyncFnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + TIMEOUT;
    loop {
        if let Some(found) = check().await {
            return found;
        }
        assert!(Instant::now() < deadline, "the condition was not met in time");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

async fn rejected_count(dev: &DevProcess) -> u64 {
    let url = dev.url("/admin/queues/agent-prompts-poison");
    let answer = reqwest::Client::new().get(url).send_validated().await.unwrap();
    let answer: Value = answer.json().await.unwrap();
    answer["length"].as_u64().unwrap()
}

#[tokio::test]
async fn redrive_works_with_and_without_running_service() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().to_str().unwrap();
    let mut dev = DevProcess::start(folder.path(), &[]);
    let message = json!({"agent": "nobody", "input": "Hello"}).to_string();
    let put = reqwest::Client::new().post(dev.url("/admin/queues/agent-prompts/messages"));
    assert_eq!(put.body(message).send_validated().await.unwrap().status(), 201);
    poll_until(async || (rejected_count(&dev).await == 1).then_some(())).await;
    let put_back = "Moved 1 messages back to agent-prompts.\n";
    assert_eq!(run_turnwheel(&["redrive", "agent-prompts", "--data", data], &[]), put_back);
    // The agent is still unknown: the prompt is rejected again.
    poll_until(async || (rejected_count(&dev).await == 1).then_some(())).await;
    let output = run_turnwheel(&["rebuild-queue", "--data", data], &[]);
    assert!(
        output.starts_with("Started the recovery sweep of the service at http://127.0.0.1:"),
        "{output}"
    );
    dev.kill();
    assert_eq!(run_turnwheel(&["redrive", "agent-prompts", "--data", data], &[]), put_back);
    let output = run_turnwheel(&["rebuild-queue", "--data", data], &[]);
    assert!(output.starts_with("Nothing to rebuild"), "{output}");
}

#[tokio::test]
async fn usage_works_with_and_without_running_service() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().to_str().unwrap();
    let mut dev = DevProcess::start(folder.path(), &[]);
    let prompt = json!({"agent": "payments-clerk", "input": "Hello"});
    let arguments = reqwest::Client::new().post(dev.url("/api/prompts?wait=60")).json(&prompt);
    assert_eq!(arguments.send_validated().await.unwrap().status(), 200);
    let arguments = ["usage", "--by", "agent", "--data", data, "--json"];
    let report = poll_until(async || {
        let report: Value = serde_json::from_str(&run_turnwheel(&arguments, &[])).unwrap();
        (report["items"] != json!([])).then_some(report)
    })
    .await;
    let item = &report["items"][0];
    assert_eq!((&item["name"], &item["modelCalls"]), (&json!("payments-clerk"), &json!(1)));
    assert!(item["usage"]["totalTokens"].as_u64().unwrap() > 0, "{report}");
    dev.kill();
    let again: Value = serde_json::from_str(&run_turnwheel(&arguments, &[])).unwrap();
    assert_eq!(again, report);
    let table = run_turnwheel(&["usage", "--by", "day", "--data", data], &[]);
    assert!(table.starts_with("day ") && table.lines().count() == 2, "{table}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rebuild_queue_enqueues_work_of_dead_worker() {
    let azure = LocalAzure::start(4).await;
    let folder = tempfile::tempdir().unwrap();
    let storage = ["--storage", "azure", "--queue-prefix", "upkeep"];
    let mut settings = azure.settings();
    settings.push(("TURNWHEEL_HALT_AT", "model.before#1".to_owned()));
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut dev = tokio::task::block_in_place(|| {
        DevProcess::start_with(root, folder.path(), &storage, &settings)
    });
    let prompt = json!({"agent": "payments-clerk", "input": "Hello"});
    let request = reqwest::Client::new().post(dev.url("/api/prompts")).json(&prompt);
    let accepted: Value = request.send_validated().await.unwrap().json().await.unwrap();
    let halted = folder.path().join("halted");
    poll_until(async || halted.exists().then_some(())).await;
    dev.kill();
    settings.pop();
    let id = accepted["conversationId"].as_str().unwrap();
    let output = run_turnwheel(&["why", id], &settings);
    assert!(output.starts_with("A worker has been calling the model since "), "{output}");
    assert!(
        run_turnwheel(&["ls"], &settings).contains(id),
        "also with other conversations in the account"
    );
    let mut arguments = vec!["rebuild-queue"];
    arguments.extend(storage);
    assert_eq!(run_turnwheel(&arguments, &settings), "Enqueued 1 conversations.\n");
    let output = run_turnwheel(&["doctor"], &settings);
    assert!(output.contains("a tool round of short messages costs"), "{output}");
    // The queues without a prefix: other tests may have nudges there.
    assert!(output.contains("reachable; "), "{output}");
}
