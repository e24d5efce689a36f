//! A client of `turnwheel dev` that survives kills of its process.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::Value;

use super::dev_process::DevProcess;
use super::openapi_check;

const TIMEOUT: Duration = Duration::from_mins(2);

/// Starts the process with a data folder and settings.
type StartProcess = Box<dyn Fn(&Path, &[(&str, String)]) -> DevProcess + Send + Sync>;

/// A client that repeats each request, with its key, until it succeeds. If the process halts at a
/// fail point, it is killed and another one starts.
pub(crate) struct RestartingClient {
    start: StartProcess,
    pub(crate) http: reqwest::Client,
    data: tempfile::TempDir,
    pub(crate) dev: DevProcess,
    /// Logs of killed processes.
    pub(crate) earlier_logs: Vec<String>,
    /// Fail points that the process hit before it was killed.
    pub(crate) hits: Vec<String>,
}

impl RestartingClient {
    pub(crate) fn new(
        start: impl Fn(&Path, &[(&str, String)]) -> DevProcess + Send + Sync + 'static,
        halt_at: Option<String>,
    ) -> Self {
        let data = tempfile::tempdir().unwrap();
        let settings: Vec<_> =
            halt_at.map(|name| ("TURNWHEEL_HALT_AT", name)).into_iter().collect();
        let dev = start(data.path(), &settings);
        let (earlier_logs, hits) = (Vec::new(), Vec::new());
        let start = Box::new(start);
        Self { start, http: reqwest::Client::new(), data, dev, earlier_logs, hits }
    }

    /// Exists once the process has halted: some requests get no response from then on.
    fn halt_file(&self) -> PathBuf {
        self.data.path().join("halted")
    }

    fn restart_if_halted(&mut self) {
        let halted = self.halt_file();
        if halted.exists() {
            self.dev.kill();
            let text = std::fs::read_to_string(&halted).unwrap();
            self.hits = text.lines().map(str::to_owned).collect();
            std::fs::remove_file(&halted).unwrap();
            self.restart();
        }
    }

    /// Kills the process, and starts another one with its data.
    pub(crate) fn restart(&mut self) {
        self.earlier_logs.push(self.dev.whole_log());
        self.dev = (self.start)(self.data.path(), &[]);
    }

    /// The response, and true if it is that of an earlier request with the key.
    pub(crate) async fn send(
        &mut self,
        request: impl Fn(&reqwest::Client, &DevProcess) -> reqwest::RequestBuilder,
    ) -> (Value, bool) {
        let deadline = Instant::now() + TIMEOUT;
        loop {
            assert!(Instant::now() < deadline, "no response: {}", self.dev.log());
            self.restart_if_halted();
            let request = request(&self.http, &self.dev).timeout(TIMEOUT);
            let halted = self.halt_file();
            let halts = async {
                while !halted.exists() {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
            };
            let exchanged = tokio::select! {
                biased;
                exchanged = openapi_check::send(request) => exchanged,
                () = halts => continue,
            };
            let Ok(response) = exchanged else { continue };
            let is_replayed = response.headers.contains_key("idempotency-replayed");
            let status = response.status;
            assert!(status.is_success() || status.is_server_error(), "{response:?}");
            if status.is_success() {
                return (response.json(), is_replayed);
            }
        }
    }

    pub(crate) async fn get(&mut self, path: &str) -> Value {
        self.send(|http, dev| http.get(dev.url(path))).await.0
    }

    pub(crate) async fn post(&mut self, path: &str, key: &str, body: &Value) -> (Value, bool) {
        let post = |http: &reqwest::Client, dev: &DevProcess| {
            http.post(dev.url(path)).header("idempotency-key", key).json(body)
        };
        self.send(post).await
    }

    /// Waits for the state of the prompt.
    pub(crate) async fn wait_for(&mut self, accepted: &Value, state: &str) {
        let id = accepted["promptId"].as_str().unwrap();
        let conversation = accepted["conversationId"].as_str().unwrap();
        let deadline = Instant::now() + TIMEOUT;
        loop {
            let prompt = self.get(&format!("/api/conversations/{conversation}/prompts/{id}")).await;
            if prompt["state"] == state {
                return;
            }
            assert!(Instant::now() < deadline, "{prompt}\n{}", self.dev.log());
        }
    }
}
