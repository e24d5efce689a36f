//! Keys in a Key Vault: a rejected call reads the rotated key, and no error quotes the old key.

use std::sync::{Arc, Mutex};

use azure_core::credentials::{AccessToken, TokenCredential, TokenRequestOptions};
use azure_core::http::headers::Headers;
use azure_core::http::{
    AsyncRawResponse, ClientOptions, HttpClient, Request, StatusCode, Transport,
};
use turnwheel::agent::content::joined_text;
use turnwheel::azure::vault::VaultSecret;
use turnwheel::model::responses::{AzureResponses, ResponsesConfig};
use turnwheel::model::{Answer, Failure, Model};
use turnwheel::settings::azure::SecretPlace;

use super::{Heard, call, config, failed, user};
use crate::support::fake_model::{FakeModel, Play, Script};

/// Returns these values in turn, and repeats the last one.
#[derive(Debug)]
struct Vault(Mutex<Vec<&'static str>>);

#[async_trait::async_trait]
impl HttpClient for Vault {
    async fn execute_request(&self, _: &Request) -> azure_core::Result<AsyncRawResponse> {
        let mut values = self.0.lock().unwrap();
        let value = if values.len() > 1 { values.remove(0) } else { values[0] };
        let body = format!(r#"{{"value":"{value}"}}"#);
        Ok(AsyncRawResponse::from_bytes(StatusCode::Ok, Headers::new(), body))
    }
}

#[derive(Debug)]
struct Nobody;

#[async_trait::async_trait]
impl TokenCredential for Nobody {
    async fn get_token(
        &self,
        _: &[&str],
        _: Option<TokenRequestOptions<'_>>,
    ) -> azure_core::Result<AccessToken> {
        panic!("this vault requires no token")
    }
}

async fn asked(fake: &FakeModel, values: &[&'static str], times: usize) -> Vec<Answer> {
    let place = SecretPlace {
        vault: "https://mine.vault.azure.net".parse().unwrap(),
        name: "model-key".to_owned(),
        version: None,
    };
    let vault: Arc<dyn HttpClient> = Arc::new(Vault(Mutex::new(values.to_vec())));
    let options =
        ClientOptions { transport: Some(Transport::new(vault)), ..ClientOptions::default() };
    let key = VaultSecret::with_options(place, Arc::new(Nobody), options).unwrap();
    let config = ResponsesConfig { api_key: None, ..config(&fake.url) };
    let model = AzureResponses::with_vault_key(&config, Arc::new(key)).unwrap();
    let record = model.record("gpt-5-mini").unwrap();
    let mut answers = Vec::new();
    for _ in 0..times {
        answers.push(call(&model, &record, &[user("hi")], &Heard::default()).await);
    }
    answers
}

fn refusal() -> Play {
    Play::Http {
        status: 401,
        headers: Vec::new(),
        body: r#"{"error":{"code":"401","message":"hush-old-key is no key"}}"#.to_owned(),
    }
}

fn keys(fake: &FakeModel) -> Vec<String> {
    let of = |name: &str| {
        fake.asked().iter().map(|asked| asked.headers[name].to_str().unwrap().to_owned()).collect()
    };
    of("api-key")
}

#[tokio::test]
async fn a_refused_key_is_read_again_and_its_successor_answers_the_same_call() {
    let answer = |text| Play::Answer(Script::text(text));
    let fake = FakeModel::start([answer("one"), refusal(), answer("two"), answer("three")]).await;
    let answers = asked(&fake, &["hush-old-key", "hush-new-key"], 3).await;
    let texts: Vec<String> =
        answers.iter().map(|answer| joined_text(&answer.message.content)).collect();
    assert_eq!(texts, ["one", "two", "three"]);
    assert_eq!(keys(&fake), ["hush-old-key", "hush-old-key", "hush-new-key", "hush-new-key"]);
}

#[tokio::test]
async fn a_refused_key_without_a_successor_fails_once_and_is_not_quoted() {
    let fake = FakeModel::start([refusal()]).await;
    let answers = asked(&fake, &["hush-old-key"], 1).await;
    let (said, failure) = failed(&answers[0]);
    assert!(said.starts_with("HTTP 401: … is no key.") && !said.contains("hush"), "{said}");
    assert_eq!(failure, &Failure::Final);
    assert_eq!(keys(&fake).len(), 1);
}
