//! Keys in a Key Vault: a rejected call reads the rotated key, and no error quotes the old key.

use std::sync::{Arc, Mutex};

use azure_core::credentials::{AccessToken, TokenCredential, TokenRequestOptions};
use azure_core::http::headers::Headers;
use azure_core::http::{
    AsyncRawResponse, ClientOptions, HttpClient, Request, StatusCode, Transport,
};
use turnwheel::models::{Model, ModelFailure, ModelResponse};
use turnwheel::testing::agent::content::joined_text;
use turnwheel::testing::azure::vault::VaultSecret;
use turnwheel::testing::model::responses::{ModelApiClient, ResponsesConfig};
use turnwheel::testing::settings::azure::KeyVaultSecret;

use super::{RecordingListener, call_model, config, expect_failure, user_message};
use crate::support::fake_model::{FakeModel, ResponseScript, ScriptedResponse};

/// Returns these values in turn, and repeats the last one.
#[derive(Debug)]
struct FakeVault(Mutex<Vec<&'static str>>);

#[async_trait::async_trait]
impl HttpClient for FakeVault {
    async fn execute_request(&self, _: &Request) -> azure_core::Result<AsyncRawResponse> {
        let mut values = self.0.lock().unwrap();
        let value = if values.len() > 1 { values.remove(0) } else { values[0] };
        let body = format!(r#"{{"value":"{value}"}}"#);
        Ok(AsyncRawResponse::from_bytes(StatusCode::Ok, Headers::new(), body))
    }
}

#[derive(Debug)]
struct UnusedCredential;

#[async_trait::async_trait]
impl TokenCredential for UnusedCredential {
    async fn get_token(
        &self,
        _: &[&str],
        _: Option<TokenRequestOptions<'_>>,
    ) -> azure_core::Result<AccessToken> {
        panic!("this vault requires no token")
    }
}

async fn call_with_vault_keys(
    fake: &FakeModel,
    values: &[&'static str],
    call_count: usize,
) -> Vec<ModelResponse> {
    let location = KeyVaultSecret {
        vault: "https://mine.vault.azure.net".parse().unwrap(),
        name: "model-key".to_owned(),
        version: None,
    };
    let vault: Arc<dyn HttpClient> = Arc::new(FakeVault(Mutex::new(values.to_vec())));
    let options =
        ClientOptions { transport: Some(Transport::new(vault)), ..ClientOptions::default() };
    let key = VaultSecret::with_options(location, Arc::new(UnusedCredential), options).unwrap();
    let config = ResponsesConfig { api_key: None, ..config(&fake.url) };
    let model = ModelApiClient::with_vault_key(&config, Arc::new(key)).unwrap();
    let record = model.record("gpt-5-mini").unwrap();
    let mut responses = Vec::new();
    for _ in 0..call_count {
        responses.push(
            call_model(&model, &record, &[user_message("hi")], &RecordingListener::default()).await,
        );
    }
    responses
}

fn rejected_key_response() -> ScriptedResponse {
    ScriptedResponse::Http {
        status: 401,
        headers: Vec::new(),
        body: r#"{"error":{"code":"401","message":"hush-old-key is no key"}}"#.to_owned(),
    }
}

fn sent_api_keys(fake: &FakeModel) -> Vec<String> {
    let header_values = |name: &str| {
        fake.received_requests()
            .iter()
            .map(|request| request.headers[name].to_str().unwrap().to_owned())
            .collect()
    };
    header_values("api-key")
}

#[tokio::test]
async fn rejected_key_is_reread_and_call_succeeds() {
    let answer = |text| ScriptedResponse::Response(ResponseScript::text(text));
    let fake =
        FakeModel::start([answer("one"), rejected_key_response(), answer("two"), answer("three")])
            .await;
    let answers = call_with_vault_keys(&fake, &["hush-old-key", "hush-new-key"], 3).await;
    let texts: Vec<String> =
        answers.iter().map(|answer| joined_text(&answer.message.content)).collect();
    assert_eq!(texts, ["one", "two", "three"]);
    assert_eq!(
        sent_api_keys(&fake),
        ["hush-old-key", "hush-old-key", "hush-new-key", "hush-new-key"]
    );
}

#[tokio::test]
async fn rejected_key_without_rotation_fails_unquoted() {
    let fake = FakeModel::start([rejected_key_response()]).await;
    let answers = call_with_vault_keys(&fake, &["hush-old-key"], 1).await;
    let (error_text, failure) = expect_failure(&answers[0]);
    assert!(
        error_text.starts_with("HTTP 401: … is no key.") && !error_text.contains("hush"),
        "{error_text}"
    );
    assert_eq!(failure, &ModelFailure::Permanent);
    assert_eq!(sent_api_keys(&fake).len(), 1);
}
