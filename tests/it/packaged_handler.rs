//! The packaged program with a Functions host, as `func start` runs it: the host's queues, the
//! sample settings, no Cosmos DB.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use turnwheel::testing::azure::storage::TransportSettings;
use turnwheel::testing::queue::{Queue as _, StorageQueue, TURNS};

use crate::support::azure::storage_settings;
use crate::support::azurite::shared_azurite;

const TIMEOUT: Duration = Duration::from_secs(30);

/// Killed when dropped, as the host kills it.
struct Handler(Child);

impl Drop for Handler {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn package_into(folder: &Path) {
    let program = env!("CARGO_BIN_EXE_turnwheel");
    let staged = Command::new(program)
        .args(["package", "--binary", program, "--out"])
        .arg(folder)
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .unwrap();
    assert!(staged.status.success(), "{}", String::from_utf8_lossy(&staged.stderr));
}

/// The sample settings, and those that `func` and the user add.
fn settings(folder: &Path, storage: &str, port: u16) -> BTreeMap<String, String> {
    let sample = std::fs::read_to_string(folder.join("local.settings.sample.json")).unwrap();
    let sample: Value = serde_json::from_str(&sample).unwrap();
    let values = sample["Values"].as_object().unwrap().iter();
    let mut settings: BTreeMap<String, String> =
        values.map(|(name, value)| (name.clone(), value.as_str().unwrap().to_owned())).collect();
    let added = [
        ("AzureWebJobsStorage", storage),
        ("TURNWHEEL_MODEL", "scripted"),
        ("TURNWHEEL_SIGNING_KEYS", "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA="),
        ("WEBSITE_HOSTNAME", "localhost:7071"),
        ("FUNCTIONS_CUSTOMHANDLER_PORT", &port.to_string()),
    ];
    settings.extend(added.map(|(name, value)| (name.to_owned(), value.to_owned())));
    settings
}

#[tokio::test]
async fn packaged_handler_completes_prompt_with_functions_host() {
    let folder = tempfile::tempdir().unwrap();
    let dist = folder.path().join("dist");
    package_into(&dist);
    let emulator = shared_azurite().await;
    let [(_, storage)] = storage_settings(emulator).try_into().unwrap();
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let child = Command::new(dist.join("turnwheel"))
        .current_dir(&dist)
        .env_clear()
        .envs(settings(&dist, &storage, port))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let _handler = Handler(child);
    let client = reqwest::Client::new();
    let base = format!("http://127.0.0.1:{port}");
    let deadline = Instant::now() + TIMEOUT;
    while client.get(&base).send().await.is_err() {
        assert!(Instant::now() < deadline, "the handler does not respond");
        tokio::time::sleep(Duration::from_millis(25)).await;
    }
    let prompt = json!({"agent": "assistant", "conversationId": "hosted", "input": "Hello"});
    let accepted = client.post(format!("{base}/api/prompts")).json(&prompt).send().await.unwrap();
    assert_eq!(accepted.status(), 202);
    let accepted: Value = accepted.json().await.unwrap();
    let path = accepted["promptId"].as_str().unwrap();
    let path = format!("{base}/api/conversations/hosted/prompts/{path}");
    // The test acts as the host: it receives the nudge that the HTTP function sent, and delivers
    // the outputs itself.
    let queue = StorageQueue::connect(&emulator.account(), None, "", &TransportSettings::default())
        .unwrap();
    let mut nudges = Vec::new();
    loop {
        let view: Value = client.get(&path).send().await.unwrap().json().await.unwrap();
        if view["state"] == "completed" {
            break;
        }
        assert!(Instant::now() < deadline, "the prompt does not end: {view}");
        let received = queue.receive(TURNS, 32, Duration::from_hours(1)).await.unwrap();
        nudges.extend(received.into_iter().map(|message| message.text));
        for nudge in std::mem::take(&mut nudges) {
            let envelope = json!({"Data": {"message": json!(nudge).to_string()}, "Metadata": {}});
            let answer = client.post(format!("{base}/turn")).json(&envelope).send().await.unwrap();
            assert_eq!(answer.status(), 200);
            let answer: Value = answer.json().await.unwrap();
            let outputs = answer["Outputs"]["nudges"].as_array().cloned().unwrap_or_default();
            nudges.extend(outputs.iter().map(|nudge| nudge.as_str().unwrap().to_owned()));
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}
