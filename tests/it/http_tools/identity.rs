//! Tools that send a token of the app's identity: it goes to the tool's server only.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use azure_core::credentials::{AccessToken, TokenCredential, TokenRequestOptions};
use turnwheel::azure::credential::Credentials;
use turnwheel::settings::azure::Identity;
use turnwheel::tools::RunTool;
use turnwheel::tools::http::addresses::AddressRules;
use turnwheel::tools::http::client::HttpClient;

use super::bench::{Bench, text, tool_of};
use super::server::{Reply, Server};
use super::{look, pay};

const AUTH: &str = "auth: { entra: 'api://payments/.default' }";

/// A credential that numbers its tokens, and fails when signed out.
#[derive(Debug, Default)]
struct Person {
    is_gone: AtomicBool,
    asked: AtomicUsize,
    scopes: Mutex<Vec<String>>,
}

#[async_trait::async_trait]
impl TokenCredential for Person {
    async fn get_token(
        &self,
        scopes: &[&str],
        _: Option<TokenRequestOptions<'_>>,
    ) -> azure_core::Result<AccessToken> {
        self.scopes.lock().unwrap().extend(scopes.iter().map(|scope| (*scope).to_owned()));
        let number = self.asked.fetch_add(1, Ordering::SeqCst);
        if self.is_gone.load(Ordering::SeqCst) {
            let kind = azure_core::error::ErrorKind::Credential;
            return Err(azure_core::Error::with_message(kind, "signed out: hush-reason"));
        }
        let expires_on = azure_core::time::OffsetDateTime::UNIX_EPOCH;
        Ok(AccessToken { token: format!("hush-token-{number}").into(), expires_on })
    }
}

fn signed(spec: &str, server: &Server, person: &Arc<Person>) -> Arc<dyn RunTool> {
    let identity = Identity::Managed { client_id: None };
    let credential = Arc::clone(person) as Arc<dyn TokenCredential>;
    let tokens = Credentials::default().with(identity.clone(), credential).tokens(&identity);
    let client = HttpClient::new(AddressRules::default().with_loopback()).unwrap();
    tool_of(spec, &server.url, &client.with_identity(tokens))
}

#[tokio::test]
async fn every_attempt_shows_a_token_of_the_apps_identity() {
    let server = Server::start(&[Reply::status(503), Reply::text("fine")]);
    let person = Arc::new(Person::default());
    let tool = signed(&look(AUTH), &server, &person);
    assert_eq!(text(&Bench::new().returned(&tool, "{}").await), "fine");
    let shown: Vec<String> = server
        .requests()
        .iter()
        .map(|request| request.header("authorization").unwrap().to_owned())
        .collect();
    assert_eq!(shown, ["Bearer hush-token-0", "Bearer hush-token-1"]);
    assert_eq!(*person.scopes.lock().unwrap(), ["api://payments/.default"; 2]);
    assert!(!format!("{tool:?}").contains("hush"));
}

#[tokio::test]
async fn a_token_does_not_follow_a_redirect() {
    let elsewhere = Server::start(&[Reply::text("gotcha")]);
    let server = Server::start(&[Reply::status(302).with("location", &elsewhere.url)]);
    let tool = signed(&pay(AUTH), &server, &Arc::default());
    let said = Bench::new().unknown(&tool, r#"{"to":"Ada"}"#).await;
    assert!(said.contains("a redirect, which is not followed"), "{said}");
    assert_eq!(server.requests().len(), 1);
    assert_eq!(elsewhere.requests().len(), 0);
}

#[tokio::test]
async fn a_server_that_sends_the_token_back_does_not_show_it_to_the_model() {
    for reply in [
        Reply::text("you sent Bearer hush-token-0!"),
        Reply::json(r#"{"authorization":"Bearer hush-token-0"}"#),
        Reply::status(400).with_body("text/plain", "bad: hush-token-0"),
    ] {
        let server = Server::start(&[reply]);
        let tool = signed(&pay(AUTH), &server, &Arc::default());
        let result = Bench::new().returned(&tool, r#"{"to":"Ada"}"#).await;
        let shown = format!("{} {:?}", text(&result), result.structured);
        assert!(!shown.contains("hush") && shown.contains("[token]"), "{shown}");
    }
}

#[tokio::test]
async fn without_a_token_nothing_is_sent_and_a_write_is_not_in_doubt() {
    let server = Server::start(&[Reply::text("fine")]);
    let person = Arc::new(Person::default());
    person.is_gone.store(true, Ordering::SeqCst);
    for (spec, times) in [(pay(AUTH), 1), (look(AUTH), 3)] {
        let tool = signed(&spec, &server, &person);
        let before = person.asked.load(Ordering::SeqCst);
        let result = Bench::new().returned(&tool, r#"{"to":"Ada"}"#).await;
        let said = text(&result);
        assert!(
            said.contains("needs a token of the app's identity")
                && said.contains("Nothing was sent."),
            "{said}"
        );
        assert!(result.is_error && !said.contains("hush"), "{said}");
        assert_eq!(person.asked.load(Ordering::SeqCst) - before, times, "{spec}");
    }
    assert_eq!(server.requests().len(), 0);
}
