//! Ctrl-C in `dev`: the first lets running work commit, the second ends the process at once.

use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::process::Dev;
use crate::support::steps::{AGENT, Step, Steps};

const PATIENCE: Duration = Duration::from_mins(1);

struct Stage {
    folder: TempDir,
    steps: Steps,
    client: reqwest::Client,
}

impl Stage {
    async fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("agents")).unwrap();
        std::fs::write(folder.path().join("agents/worker.agent.md"), AGENT).unwrap();
        Self { folder, steps: Steps::start().await, client: reqwest::Client::new() }
    }

    fn dev(&self) -> Dev {
        let folder: &Path = self.folder.path();
        Dev::start_in(folder, &folder.join("data"), &[("STEPS", self.steps.url.clone())])
    }

    /// Sends a prompt whose tool call waits.
    async fn prompt(&mut self, dev: &Dev) -> (String, Step) {
        let body = json!({"conversationId": "c", "input": "use step with {} then say done"});
        let accepted = self.client.post(dev.url("/api/prompts")).json(&body).send().await.unwrap();
        let accepted: Value = accepted.json().await.unwrap();
        let step = self.steps.next().await.unwrap_or_else(|| panic!("{}", dev.log()));
        (accepted["promptId"].as_str().unwrap().to_owned(), step)
    }
}

/// Sends one Ctrl-C and waits until the process announces its end.
async fn interrupt(dev: &mut Dev) {
    assert!(dev.interrupt(Duration::ZERO).is_none());
    let announced = async {
        while !dev.log().contains("Ctrl-C again ends at once.") {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(PATIENCE, announced).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn interrupt_commits_work_under_way_and_exits_0() {
    let mut stage = Stage::new().await;
    let mut dev = stage.dev();
    let (id, step) = stage.prompt(&dev).await;
    interrupt(&mut dev).await;
    assert!(dev.log().contains("Stopping: model responses and tool calls under way have up to"));
    step.finish();
    assert_eq!(dev.wait(PATIENCE).and_then(|status| status.code()), Some(0), "{}", dev.log());

    let dev = stage.dev();
    let path = format!("/api/conversations/c/prompts/{id}?wait=30");
    let ended = stage.client.get(dev.url(&path)).send().await.unwrap();
    let ended: Value = ended.json().await.unwrap();
    assert_eq!(ended["state"], "completed", "{ended}");
    assert_eq!(ended["output"][0]["result"]["output"], "stepped", "{ended}");
    assert!(!stage.steps.has_call(), "the committed call is not repeated");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn second_interrupt_exits_1_at_once() {
    let mut stage = Stage::new().await;
    let mut dev = stage.dev();
    let (_, _step) = stage.prompt(&dev).await;
    interrupt(&mut dev).await;
    let status = dev.interrupt(Duration::from_secs(10));
    assert_eq!(status.and_then(|status| status.code()), Some(1), "{}", dev.log());
}
