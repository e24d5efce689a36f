//! Records the requests that the model of a test environment receives.

use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use serde_json::Value;

use super::test_env::TestEnv;
use super::user_skills::handle_nudges;
use turnwheel_model::responses::body::build_request_body;
use turnwheel_model::responses::names::ToolNames;
use turnwheel_model::{Listener, Model, ModelRecord, ModelRequest, ModelResponse};
use turnwheel_platform::fail_points::NoFailPoints;
use turnwheel_record::services::Services;

/// Passes requests to another model and keeps their bodies.
#[derive(Debug)]
pub(super) struct RecordingModel {
    model: Arc<dyn Model>,
    bodies: Mutex<Vec<Value>>,
}

impl RecordingModel {
    /// Records the requests of the environment's next workers to this model.
    pub(super) fn install(env: &mut TestEnv, model: Arc<dyn Model>) -> Arc<Self> {
        let model = Arc::new(Self { model, bodies: Mutex::default() });
        env.model_override = Some(model.clone());
        model
    }

    /// Records the requests to the scripted model.
    pub(super) fn install_scripted(env: &mut TestEnv) -> Arc<Self> {
        let scripted = env.model.clone();
        Self::install(env, scripted)
    }

    pub(super) fn bodies(&self) -> Vec<Value> {
        self.bodies.lock().unwrap().clone()
    }

    pub(super) fn clear(&self) {
        self.bodies.lock().unwrap().clear();
    }
}

#[async_trait]
impl Model for RecordingModel {
    async fn respond(&self, request: ModelRequest<'_>, listener: &dyn Listener) -> ModelResponse {
        let names = ToolNames::new(request.tools);
        let body = build_request_body(&request, &names).to_bytes().unwrap();
        self.bodies.lock().unwrap().push(serde_json::from_slice(&body).unwrap());
        self.model.respond(request, listener).await
    }

    fn record(&self, model: &str) -> Result<ModelRecord, String> {
        self.model.record(model)
    }
}

/// An environment with one worker and its recorded requests.
pub(super) struct RecordedEnv {
    pub(super) env: TestEnv,
    pub(super) services: Services,
    pub(super) model: Arc<RecordingModel>,
}

impl RecordedEnv {
    pub(super) fn new(mut env: TestEnv) -> Self {
        let model = RecordingModel::install_scripted(&mut env);
        let services = env.new_worker(Arc::new(NoFailPoints));
        Self { env, services, model }
    }

    /// Runs a prompt of the conversation `c` until it waits or ends. Returns the bodies of its
    /// requests.
    pub(super) async fn run(&mut self, input: &str) -> Vec<Value> {
        self.model.clear();
        if self.env.head().await.is_none() {
            self.env.send_prompt_to(&self.services, "c", input).await;
        } else {
            self.env.queue_prompt(&self.services, &TestEnv::key(), input).await.unwrap();
        }
        handle_nudges(&self.env, &self.services).await;
        self.model.bodies()
    }
}

/// The system prompt of a request.
pub(super) fn system_text(body: &Value) -> String {
    body["input"][0]["content"].as_str().map_or_else(|| body["input"][0].to_string(), str::to_owned)
}
