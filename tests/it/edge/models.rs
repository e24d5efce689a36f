//! Tests of the list of models, and of prompts without a model.

use std::sync::Arc;

use serde_json::{Value, json};
use turnwheel::testing::model::responses::{ModelApiClient, ResponsesConfig, SecretText};

use super::test_app::TestApp;

/// An app with Azure OpenAI, which no test here calls.
fn app_with_models(default_model: Option<&str>, deployments: &str) -> TestApp {
    let config = ResponsesConfig {
        base_url: Some("https://r.openai.azure.com".to_owned()),
        api_key: Some(SecretText::new("key-of-this-test")),
        default_model: default_model.map(str::to_owned),
        deployment_map: Some(deployments.to_owned()),
        ..ResponsesConfig::default()
    };
    let model = Arc::new(ModelApiClient::new(&config, None).unwrap());
    TestApp::new().with_services(|services| services.model = model)
}

#[tokio::test]
async fn models_lists_tiers_levels_and_prices() {
    let app = app_with_models(Some("gpt-5.1"), "high=gpt-5.4,gpt-4o=omni");
    let app = app.with_agent(|agent| agent.settings.model = Some("mystery".to_owned()));
    let models = app.get_json("/api/models").await;
    assert_eq!(
        models["items"][0],
        json!({
            "id": "gpt-5.1", "tiers": ["normal"], "provider": "azure", "images": true,
            "thinkingLevels": ["off", "low", "medium", "high"],
            "contextWindow": 400_000, "maxOutputTokens": 128_000,
            "prices": {"input": 1.25, "output": 10.0, "cacheRead": 0.125, "cacheWrite": 0.0},
        })
    );
    let high = &models["items"][1];
    assert_eq!((&high["id"], &high["tiers"]), (&json!("gpt-5.4"), &json!(["high"])));
    assert_eq!(high["thinkingLevels"], json!(["off", "low", "medium", "high", "xhigh"]));
    assert_eq!(high["longContextPrices"]["input"], 5.0);
    let of_map = &models["items"][2];
    assert_eq!((&of_map["id"], &of_map["tiers"]), (&json!("gpt-4o"), &json!([])));
    assert_eq!(of_map["thinkingLevels"], json!(["off"]));
    let of_agent = &models["items"][3];
    assert_eq!((&of_agent["id"], of_agent.get("prices")), (&json!("mystery"), None));
    assert_eq!(models["items"].as_array().unwrap().len(), 4);
    let scripted = TestApp::new().get_json("/api/models").await;
    assert_eq!(scripted["items"][0]["tiers"], json!(["normal", "high"]));
}

#[tokio::test]
async fn prompt_without_model_is_refused() {
    let app = app_with_models(None, "");
    app.post("/api/conversations", &json!({"id": "c"})).send().await.expect_status(201);
    let no_model = "No model selected. No model configured for `normal`: set TURNWHEEL_MODEL";
    for path in ["/api/prompts", "/api/conversations/c/prompts"] {
        let refused = app.post(path, &json!({"input": "hi"})).send().await;
        let refused = refused.expect_problem(503, "unavailable");
        assert!(refused["detail"].as_str().unwrap().starts_with(no_model), "{refused}");
        let refused = app.post(path, &json!({"input": "hi", "model": "high"})).send().await;
        let refused = refused.expect_problem(400, "bad-request");
        let error = refused["errors"][0]["detail"].as_str().unwrap();
        assert!(error.starts_with("No model selected. No model configured for `high`"), "{error}");
    }
    let prompts = app.get_json("/api/conversations/c/prompts").await;
    assert_eq!(prompts["items"], Value::Array(Vec::new()));
    let named = json!({"input": "hi", "model": "gpt-5.1"});
    app.post("/api/conversations/c/prompts", &named).send().await.expect_status(202);
}
