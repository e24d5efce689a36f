//! A client of `turnwheel dev` in a folder with agents, with the fake model.

use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::dev_process::DevProcess;
use super::openapi_check;

const TIMEOUT: Duration = Duration::from_mins(2);

pub(crate) struct DevClient {
    pub(crate) dev: DevProcess,
    pub(crate) http: reqwest::Client,
    data: tempfile::TempDir,
}

impl DevClient {
    /// Starts the process in the folder, with a data folder of its own.
    pub(crate) fn start(folder: &Path, settings: &[(&str, String)]) -> Self {
        let data = tempfile::tempdir().unwrap();
        let dev = DevProcess::start_in(folder, data.path(), settings);
        Self { dev, http: reqwest::Client::new(), data }
    }

    /// Ends the process. Returns its data folder.
    pub(crate) fn stop(mut self) -> tempfile::TempDir {
        self.dev.kill();
        self.data
    }

    /// Starts the process again with the same data.
    pub(crate) fn restart(mut self, folder: &Path, settings: &[(&str, String)]) -> Self {
        self.dev.kill();
        let dev = DevProcess::start_in(folder, self.data.path(), settings);
        Self { dev, ..self }
    }

    pub(crate) async fn get(&self, path: &str) -> Value {
        let request = self.http.get(self.dev.url(path)).timeout(TIMEOUT);
        openapi_check::send(request).await.unwrap().json()
    }

    async fn post(&self, path: &str, body: &Value) -> Value {
        let request = self.http.post(self.dev.url(path)).json(body).timeout(TIMEOUT);
        let response = openapi_check::send(request).await.unwrap();
        assert!(response.status.is_success(), "{response:?}\n{}", self.dev.log());
        response.json()
    }

    /// The prompt, once it has ended or waits for an approval.
    pub(crate) async fn prompt(&self, conversation: &str, input: &str) -> Value {
        let body = json!({"conversationId": conversation, "input": input});
        self.post("/api/prompts?wait=60", &body).await
    }

    /// Decides the first open request of the conversation. Returns the request.
    pub(crate) async fn decide(&self, conversation: &str, decision: &str) -> Value {
        let path = format!("/api/conversations/{conversation}");
        let open = self.get(&path).await["pendingApprovals"][0].clone();
        let id = open["id"].as_str().unwrap_or_else(|| panic!("no request: {open}")).to_owned();
        self.post(&format!("{path}/approvals/{id}"), &json!({"decision": decision})).await;
        open
    }

    /// Waits until the conversation has the property.
    pub(crate) async fn wait_for(&self, conversation: &str, has: impl Fn(&Value) -> bool) {
        self.poll_until(&format!("/api/conversations/{conversation}"), has).await;
    }

    /// Polls the path until the response has the property. Returns it.
    pub(crate) async fn poll_until(&self, path: &str, has: impl Fn(&Value) -> bool) -> Value {
        let deadline = Instant::now() + TIMEOUT;
        loop {
            let seen = self.get(path).await;
            if has(&seen) {
                return seen;
            }
            assert!(Instant::now() < deadline, "{seen}\n{}", self.dev.log());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    pub(crate) async fn wait_until_idle(&self, conversation: &str) {
        self.wait_for(conversation, |seen| seen["state"] == "idle").await;
    }
}
