//! Complete service in this process: local host, handler and embedded store, on free ports.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use serde_json::Value;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use turnwheel::App;
use turnwheel::testing::app::{RunningService, ServiceOptions, StartError};
use turnwheel::testing::settings::ServiceSettings;
use turnwheel::testing::start_service;

use crate::support::api_response::ApiResponse;
use crate::support::openapi_check;

pub(crate) struct Service {
    pub(crate) base: String,
    pub(crate) client: reqwest::Client,
    stop: CancellationToken,
    task: JoinHandle<()>,
}

impl Service {
    /// Starts the service with agents from `folder/agents` and data in `folder/data`.
    pub(crate) async fn start(app: App, folder: &Path, settings: &[(&str, &str)]) -> Self {
        let started = Self::try_start(app, folder, settings).await;
        let running = started.unwrap_or_else(|error| panic!("{error}"));
        let base = format!("http://{}", running.address().unwrap());
        let stop = CancellationToken::new();
        let stopped = stop.clone();
        #[expect(clippy::disallowed_methods, reason = "the service beside the test, ended with it")]
        let task = tokio::spawn(async move { Box::pin(running.run(stopped)).await.unwrap() });
        Self { base, client: reqwest::Client::new(), stop, task }
    }

    /// Returns the service before it runs, or its start error.
    pub(crate) async fn try_start(
        app: App,
        folder: &Path,
        settings: &[(&str, &str)],
    ) -> Result<RunningService, StartError> {
        let settings: BTreeMap<String, String> = settings
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect();
        let settings = ServiceSettings::read(move |name| settings.get(name).cloned())
            .unwrap()
            .with_dev_defaults();
        let options = ServiceOptions {
            root: folder.to_owned(),
            data: folder.join("data"),
            ..ServiceOptions::default()
        };
        Box::pin(start_service(app, settings, options)).await
    }

    pub(crate) async fn get(&self, path: &str) -> Value {
        let request = self.client.get(format!("{}{path}", self.base));
        let ApiResponse { status, text, .. } = openapi_check::send(request).await.unwrap();
        assert!(status.is_success(), "GET {path}: {status} {text}");
        serde_json::from_str(&text).unwrap_or(Value::String(text))
    }

    /// Sends a POST request; returns status and body.
    pub(crate) async fn post(&self, path: &str, body: &Value) -> (u16, Value) {
        let request = self.client.post(format!("{}{path}", self.base)).json(body);
        let ApiResponse { status, text, .. } = openapi_check::send(request).await.unwrap();
        (status.as_u16(), serde_json::from_str(&text).unwrap_or(Value::String(text)))
    }

    /// Waits until the prompt has left `running`, and returns it.
    pub(crate) async fn wait_for_prompt(&self, conversation: &str, prompt: &str) -> Value {
        let path = format!("/api/conversations/{conversation}/prompts/{prompt}?wait=60");
        for _ in 0..3 {
            let prompt = self.get(&path).await;
            if prompt["state"] != "running" {
                return prompt;
            }
        }
        panic!("the prompt is still running");
    }

    pub(crate) async fn stop(self) {
        self.stop.cancel();
        tokio::time::timeout(Duration::from_mins(1), self.task).await.unwrap().unwrap();
    }
}
