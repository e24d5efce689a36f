//! Ctrl-C in `dev`: the first lets running work commit, the second ends the process at once.

use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::dev_process::DevProcess;
use crate::support::openapi_check::SendValidated as _;
use crate::support::step_server::{AGENT, PendingCall, StepServer};

const TIMEOUT: Duration = Duration::from_mins(2);

struct TestEnv {
    folder: TempDir,
    steps: StepServer,
    client: reqwest::Client,
}

impl TestEnv {
    async fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("agents")).unwrap();
        std::fs::write(folder.path().join("agents/worker.agent.md"), AGENT).unwrap();
        Self { folder, steps: StepServer::start().await, client: reqwest::Client::new() }
    }

    fn start_dev(&self) -> DevProcess {
        let folder: &Path = self.folder.path();
        DevProcess::start_in(folder, &folder.join("data"), &[("STEPS", self.steps.url.clone())])
    }

    /// Sends a prompt whose tool call waits.
    async fn start_prompt(&mut self, dev: &DevProcess) -> (String, PendingCall) {
        let body = json!({"conversationId": "c", "input": "use step with {} then say done"});
        let accepted =
            self.client.post(dev.url("/api/prompts")).json(&body).send_validated().await.unwrap();
        let accepted: Value = accepted.json().await.unwrap();
        let step = self.steps.next_call().await.unwrap_or_else(|| panic!("{}", dev.log()));
        (accepted["promptId"].as_str().unwrap().to_owned(), step)
    }
}

/// Sends one Ctrl-C and waits until the process announces its end.
async fn interrupt_once(dev: &mut DevProcess) {
    assert!(dev.interrupt(Duration::ZERO).is_none());
    let texts = [
        "Stopping: model responses and tool calls under way have up to",
        "Ctrl-C again ends at once.",
    ];
    dev.wait_for_log(&texts).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn interrupt_commits_running_work_and_exits_0() {
    let mut env = TestEnv::new().await;
    let mut dev = env.start_dev();
    let (id, step) = env.start_prompt(&dev).await;
    interrupt_once(&mut dev).await;
    step.finish();
    assert_eq!(dev.wait(TIMEOUT).and_then(|status| status.code()), Some(0), "{}", dev.log());

    let dev = env.start_dev();
    let path = format!("/api/conversations/c/prompts/{id}?wait=60");
    let ended = env.client.get(dev.url(&path)).send_validated().await.unwrap();
    let ended: Value = ended.json().await.unwrap();
    assert_eq!(ended["state"], "completed", "{ended}");
    assert_eq!(ended["output"][0]["result"]["output"], "stepped", "{ended}");
    assert!(!env.steps.has_call(), "the committed call is not repeated");
}

/// The host ends event streams at once. The call of a turn that runs for one has the same grace time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn interrupt_commits_work_of_a_client_with_a_stream() {
    let mut env = TestEnv::new().await;
    let agent = AGENT.replacen("---\n", "---\nexecution: here\n", 1);
    std::fs::write(env.folder.path().join("agents/worker.agent.md"), agent).unwrap();
    let mut dev = env.start_dev();
    let created = env.client.post(dev.url("/api/conversations")).json(&json!({"id": "c"}));
    assert_eq!(created.send_validated().await.unwrap().status(), 201);
    let events = env.client.get(dev.url("/api/conversations/c/events"));
    let mut events = events.send().await.unwrap();
    let body = json!({"input": "use step with {} then say done"});
    let sent = env.client.post(dev.url("/api/conversations/c/prompts")).json(&body);
    assert_eq!(sent.send_validated().await.unwrap().status(), 202);
    let step = env.steps.next_call().await.unwrap_or_else(|| panic!("{}", dev.log()));
    interrupt_once(&mut dev).await;
    while events.chunk().await.is_ok_and(|chunk| chunk.is_some()) {}
    // Without the grace time the call would be given back after 2 s.
    tokio::time::sleep(Duration::from_secs(4)).await;
    step.finish();
    assert_eq!(dev.wait(TIMEOUT).and_then(|status| status.code()), Some(0), "{}", dev.log());

    let dev = env.start_dev();
    let view = env.client.get(dev.url("/api/conversations/c?wait=60")).send_validated().await;
    let view: Value = view.unwrap().json().await.unwrap();
    assert_eq!(view["state"], "idle", "{view}");
    assert!(!env.steps.has_call(), "the committed call is not repeated");
}

/// An agent whose tool takes long to check: each item is compared with each of 900 schemas.
fn slow_schema_agent() -> String {
    let branches: Vec<Value> =
        (0..900).map(|n| json!({"properties": {"x": {"const": n}}})).collect();
    let parameters = json!({"type": "object", "properties": {"n": {"items": {"anyOf": branches}}}});
    format!(
        "---\ntools:\n  - http: {{ name: check, description: Checks., url: \"${{STEPS}}/step\", method: POST, effect: read, parameters: {parameters} }}\n---\nWork.\n"
    )
}

/// The signal comes while calls are checked; the next process makes the checks that are left.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hostile_calls_stop_neither_an_end_nor_a_start() {
    let env = TestEnv::new().await;
    std::fs::write(env.folder.path().join("agents/worker.agent.md"), slow_schema_agent()).unwrap();
    let mut dev = env.start_dev();
    let items = json!(vec![json!({"x": -1}); 700]);
    let mut paths = Vec::new();
    for n in 0..8 {
        let id = format!("c{n}");
        let input = format!(r#"use check with {{"n":{items}}} then say done"#);
        let body = json!({"conversationId": id, "input": input});
        let accepted = env.client.post(dev.url("/api/prompts")).json(&body).send_validated();
        let accepted: Value = accepted.await.unwrap().json().await.unwrap();
        let prompt = accepted["promptId"].as_str().unwrap();
        paths.push(format!("/api/conversations/{id}/prompts/{prompt}?wait=60"));
    }
    let health = env.client.get(dev.url("/api/health")).send_validated().await.unwrap();
    assert_eq!(health.status(), 200);
    interrupt_once(&mut dev).await;
    assert_eq!(dev.wait(TIMEOUT).and_then(|status| status.code()), Some(0), "{}", dev.log());

    let dev = env.start_dev();
    for path in paths {
        let ended = env.client.get(dev.url(&path)).send_validated().await.unwrap();
        let ended: Value = ended.json().await.unwrap();
        assert_eq!(ended["state"], "completed", "{ended}");
        let result = &ended["output"][0]["result"];
        let error = result["error"].as_str().unwrap_or_else(|| panic!("{ended}"));
        assert!(error.contains("Validation failed"), "{error:.300}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn second_interrupt_exits_1_at_once() {
    let mut env = TestEnv::new().await;
    let mut dev = env.start_dev();
    let (_, _step) = env.start_prompt(&dev).await;
    interrupt_once(&mut dev).await;
    // After the time for running work the code would be 0.
    let status = dev.interrupt(TIMEOUT);
    assert_eq!(status.and_then(|status| status.code()), Some(1), "{}", dev.log());
}
