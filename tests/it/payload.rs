//! The app's additions to model requests: a payload hook, headers, and the retention of the prompt
//! cache.

use async_trait::async_trait;
use serde_json::{Value, json};
use turnwheel::App;
use turnwheel::extensions::{Extension, HookContext, HookError, ModelPayload};

use crate::support::fake_model::{FakeModel, ReceivedRequest, ResponseScript, ScriptedResponse};
use crate::support::service::Service;

#[derive(Debug)]
struct TagPayload;

#[async_trait]
impl Extension for TagPayload {
    fn name(&self) -> &'static str {
        "tags"
    }

    async fn on_payload(
        &self,
        _cx: &HookContext,
        payload: &mut ModelPayload<'_>,
    ) -> Result<(), HookError> {
        payload.json_mut()?["metadata"] = json!({"team": "clerks"});
        Ok(())
    }
}

#[derive(Debug)]
struct HangingHook;

#[async_trait]
impl Extension for HangingHook {
    fn name(&self) -> &'static str {
        "hangs"
    }

    async fn on_payload(
        &self,
        _cx: &HookContext,
        _payload: &mut ModelPayload<'_>,
    ) -> Result<(), HookError> {
        std::future::pending().await
    }
}

/// Runs one prompt. Returns its view and the model requests.
async fn run_prompt(app: App, more: &[(&str, &str)]) -> (Value, Vec<ReceivedRequest>) {
    let folder = tempfile::tempdir().unwrap();
    let agents = folder.path().join("agents");
    std::fs::create_dir(&agents).unwrap();
    let file = "---\nretry: { enabled: false }\n---\nHelp.\n";
    std::fs::write(agents.join("helper.agent.md"), file).unwrap();
    let model = FakeModel::start([ScriptedResponse::Response(ResponseScript::text("hello"))]).await;
    let mut settings = vec![
        ("AZURE_OPENAI_BASE_URL", model.url.as_str()),
        ("AZURE_OPENAI_API_KEY", "a-key"),
        ("TURNWHEEL_MODEL", "gpt-5-mini"),
    ];
    settings.extend(more);
    let service = Service::start(app, folder.path(), &settings).await;
    let (status, accepted) = service.post("/api/prompts", &json!({"input": "go"})).await;
    assert_eq!(status, 202, "{accepted}");
    let id = |name: &str| accepted[name].as_str().unwrap().to_owned();
    let prompt = service.wait_for_prompt(&id("conversationId"), &id("promptId")).await;
    service.stop().await;
    (prompt, model.received_requests())
}

#[tokio::test]
async fn payload_hook_headers_and_cache_retention_reach_request() {
    let more =
        [("AZURE_OPENAI_HEADERS", "x-team=clerks"), ("AZURE_OPENAI_CACHE_RETENTION", "long")];
    let (prompt, requests) = Box::pin(run_prompt(App::new().extension(TagPayload), &more)).await;
    assert_eq!(prompt["state"], "completed", "{prompt}");
    assert_eq!(requests[0].body["metadata"], json!({"team": "clerks"}));
    assert_eq!(requests[0].body["prompt_cache_retention"], "24h");
    assert!(requests[0].body["prompt_cache_key"].is_string());
    assert_eq!(requests[0].headers["x-team"], "clerks");
    assert_eq!(requests[0].headers["api-key"], "a-key");
}

#[tokio::test]
async fn model_headers_override_app_headers() {
    let prices = r#"{"gpt-5-mini":{"headers":{"X-Team":"models","x-route":"eu"},"compat":{"supportsDeveloperRole":false}}}"#;
    let more = [("AZURE_OPENAI_HEADERS", "x-team=clerks,x-app=desk"), ("TURNWHEEL_PRICES", prices)];
    let (prompt, requests) = Box::pin(run_prompt(App::new(), &more)).await;
    assert_eq!(prompt["state"], "completed", "{prompt}");
    let headers = &requests[0].headers;
    assert_eq!(headers.get_all("x-team").iter().collect::<Vec<_>>(), ["models"]);
    assert_eq!(headers["x-route"], "eu");
    assert_eq!(headers["x-app"], "desk");
    assert_eq!(requests[0].body["input"][0]["role"], "system");
}

#[tokio::test]
async fn cache_retention_defaults_to_short_and_allows_none() {
    let (_, short) = Box::pin(run_prompt(App::new(), &[])).await;
    assert!(short[0].body["prompt_cache_key"].is_string());
    assert_eq!(short[0].body.get("prompt_cache_retention"), None);
    let more = [("AZURE_OPENAI_CACHE_RETENTION", "none")];
    let (_, none) = Box::pin(run_prompt(App::new(), &more)).await;
    assert_eq!(none[0].body.get("prompt_cache_key"), None);
}

#[tokio::test]
async fn failing_payload_hook_fails_the_model_call_unsent() {
    let more = [("TURNWHEEL_HOOK_TIMEOUT", "100ms")];
    let (prompt, requests) = Box::pin(run_prompt(App::new().extension(HangingHook), &more)).await;
    assert_eq!(prompt["state"], "failed", "{prompt}");
    assert_eq!(
        prompt["error"]["message"],
        "The request was not sent: extension \"hangs\" failed in on_payload: no result within 100ms"
    );
    assert!(requests.is_empty());
}
