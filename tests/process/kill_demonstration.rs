//! The kill demonstration of `turnwheel dev`: a request kills the process, the supervisor replaces it, and the conversation
//! goes on.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::sync::Semaphore;

use crate::support::dev_process::DevProcess;
use crate::support::fake_model::{FakeModel, ResponseScript, ScriptedResponse};

const TIMEOUT: Duration = Duration::from_mins(2);

struct Demonstration {
    dev: DevProcess,
    client: reqwest::Client,
    /// The process that was killed last.
    killed: u64,
}

impl Demonstration {
    fn start(data: &Path) -> Self {
        Self::new(DevProcess::start_supervised(data, &[]))
    }

    fn new(dev: DevProcess) -> Self {
        Self { dev, client: reqwest::Client::new(), killed: 0 }
    }

    /// `None`: no process responds.
    async fn try_get(&self, path: &str) -> Option<Value> {
        let request = self.client.get(self.dev.url(path)).timeout(Duration::from_secs(5));
        let response = request.send().await.ok()?;
        if response.status().is_success() { response.json().await.ok() } else { None }
    }

    /// Reads until the response satisfies the condition.
    async fn wait_for(&self, path: &str, is_wanted: impl Fn(&Value) -> bool) -> Value {
        let deadline = Instant::now() + TIMEOUT;
        loop {
            let found = self.try_get(path).await;
            if let Some(found) = found.as_ref().filter(|found| is_wanted(found)) {
                return found.clone();
            }
            assert!(Instant::now() < deadline, "{path}: {found:?}\n{}", self.dev.log());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    async fn post(&self, path: &str, body: &Value) -> (u16, String) {
        let request = self.client.post(self.dev.url(path)).json(body).timeout(TIMEOUT);
        let response = request.send().await.unwrap();
        (response.status().as_u16(), response.text().await.unwrap())
    }

    /// The process after the last kill.
    async fn process(&self) -> (u64, String) {
        let is_new = |me: &Value| me["process"]["id"].as_u64().is_some_and(|id| id != self.killed);
        let me = self.wait_for("/api/me", is_new).await;
        assert_eq!(me["features"], json!(["kill", "doctor"]));
        let process = &me["process"];
        (process["id"].as_u64().unwrap(), process["nonce"].as_str().unwrap().to_owned())
    }

    async fn kill(&mut self, when: &str) {
        let (id, nonce) = self.process().await;
        let body = json!({"when": when, "nonce": nonce});
        let (status, text) = self.post("/admin/process/kill", &body).await;
        assert_eq!(status, 202, "{text}");
        self.killed = id;
    }

    async fn prompt(&self, agent: &str, input: &str) -> String {
        let body = json!({"conversationId": "demo", "agent": agent, "input": input});
        let (status, text) = self.post("/api/prompts", &body).await;
        assert_eq!(status, 202, "{text}");
        let accepted: Value = serde_json::from_str(&text).unwrap();
        format!("/api/conversations/demo/prompts/{}", accepted["promptId"].as_str().unwrap())
    }
}

#[tokio::test]
async fn killed_processes_are_replaced_without_blaming_the_step() {
    let folder = tempfile::tempdir().unwrap();
    // The second call waits until the next kill is requested.
    let permits = Arc::new(Semaphore::new(0));
    let response = || ResponseScript::text("one two three");
    let model = FakeModel::start([
        ScriptedResponse::Response(response()),
        ScriptedResponse::Paced(Arc::clone(&permits), response().events()),
        ScriptedResponse::Response(response()),
    ])
    .await;
    let settings = [
        ("TURNWHEEL_MODEL", "gpt-5-mini".to_owned()),
        ("AZURE_OPENAI_BASE_URL", model.url.clone()),
        ("AZURE_OPENAI_API_KEY", "a-key".to_owned()),
    ];
    let dev = DevProcess::start_supervised(folder.path(), &settings);
    let mut demo = Demonstration::new(dev);
    let first = demo.process().await.0;
    demo.kill("now").await;
    let second = demo.process().await.0;
    assert_ne!(first, second);
    demo.dev.wait_for_log(&[&format!("process {first} killed (SIGKILL), restarted in ")]).await;
    // Twice in the same step: of an unknown cause, that would make the step suspect.
    demo.kill("model-streaming").await;
    let prompt = demo.prompt("assistant", "Count to three").await;
    demo.kill("model-streaming").await;
    permits.add_permits(100);
    let ended = demo.wait_for(&prompt, |prompt| prompt["state"] == "completed").await;
    let texts = ended["output"].as_array().unwrap();
    assert_eq!((texts.len(), &texts[0]["content"]), (1, &json!("one two three")));
    let (_, nonce) = demo.process().await;
    let request = json!({"when": "now", "nonce": nonce});
    let (status, text) = demo.post("/admin/process/kill", &request).await;
    assert_eq!((status, text.as_str()), (409, "At most 3 kills in a minute: wait.\n"));
    let log = demo.dev.whole_log();
    assert!(!log.contains("isolation"), "{log}");
}

#[tokio::test]
async fn write_in_flight_at_the_kill_has_unknown_outcome() {
    let folder = tempfile::tempdir().unwrap();
    let mut demo = Demonstration::start(folder.path());
    demo.kill("write-in-flight").await;
    let prompt = demo.prompt("payments-clerk", "Pay 40 to Ada").await;
    let waiting = |view: &Value| view["pendingApprovals"][0]["kind"] == "outcome";
    let conversation = demo.wait_for("/api/conversations/demo", waiting).await;
    let request = &conversation["pendingApprovals"][0];
    assert_eq!(
        (&request["toolName"], &request["agent"]),
        (&json!("send_payment"), &json!("payments-clerk"))
    );
    assert_eq!(
        (&request["arguments"]["amount"], &request["canDecide"]),
        (&json!(40), &json!(true))
    );
    assert_eq!(request["sent"]["attempt"], 1);
    assert!(request["sent"]["effectId"].is_string() && request["sent"]["sentAt"].is_string());
    let path = format!("/api/conversations/demo/approvals/{}", request["id"].as_str().unwrap());
    let (status, text) = demo.post(&path, &json!({"decision": "again"})).await;
    assert_eq!(status, 200, "{text}");
    demo.wait_for(&prompt, |prompt| prompt["state"] == "completed").await;
    let receipt = demo.wait_for(&format!("{prompt}/receipt"), |_| true).await;
    assert_eq!(
        (&receipt["writes"]["done"], &receipt["writes"]["repeated"]),
        (&json!(1), &json!(0))
    );
}

#[tokio::test]
async fn other_pages_and_old_nonces_kill_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let demo = Demonstration::start(folder.path());
    let (id, nonce) = demo.process().await;
    let send = async |nonce: &str, headers: &[(&'static str, &'static str)]| {
        let body = json!({"when": "now", "nonce": nonce});
        let mut request = demo.client.post(demo.dev.url("/admin/process/kill")).json(&body);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        request.send().await.unwrap().status().as_u16()
    };
    assert_eq!(send("0", &[]).await, 409);
    assert_eq!(send(&nonce, &[("origin", "http://localhost:1")]).await, 403);
    assert_eq!(send(&nonce, &[("sec-fetch-site", "same-site")]).await, 403);
    assert_eq!(send(&nonce, &[("origin", "https://evil.example")]).await, 403);
    assert_eq!(demo.process().await.0, id);
}

#[tokio::test]
async fn service_ends_with_its_supervisor() {
    let folder = tempfile::tempdir().unwrap();
    let mut demo = Demonstration::start(folder.path());
    demo.process().await;
    let status = demo.dev.interrupt(TIMEOUT).expect("the supervisor must end");
    assert!(status.success(), "{status}: {}", demo.dev.log());
    assert_eq!(demo.try_get("/api/me").await, None);
    // After a kill of the supervisor too, which cannot forward anything.
    let mut demo = Demonstration::start(folder.path());
    demo.process().await;
    demo.dev.kill();
    let deadline = Instant::now() + TIMEOUT;
    while demo.try_get("/api/me").await.is_some() {
        assert!(Instant::now() < deadline, "the service outlives its supervisor");
    }
}
