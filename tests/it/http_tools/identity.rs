//! Tools that send a token of the app's identity: it goes to the tool's server only.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use azure_core::credentials::{AccessToken, TokenCredential, TokenRequestOptions};
use turnwheel::testing::azure::credential::Credentials;
use turnwheel::testing::settings::azure::AzureIdentity;
use turnwheel::testing::tools::CallableTool;
use turnwheel::testing::tools::http::address_rules::AddressRules;
use turnwheel::testing::tools::http::client::HttpClient;

use super::server::{Reply, Server};
use super::tool_caller::{ToolCaller, text, tool_with_client};
use super::{read_spec, write_spec};

const AUTH: &str = "auth: { entra: 'api://payments/.default' }";

/// A credential that numbers its tokens, and fails when signed out.
#[derive(Debug, Default)]
struct FakeCredential {
    is_signed_out: AtomicBool,
    token_requests: AtomicUsize,
    scopes: Mutex<Vec<String>>,
}

#[async_trait::async_trait]
impl TokenCredential for FakeCredential {
    async fn get_token(
        &self,
        scopes: &[&str],
        _: Option<TokenRequestOptions<'_>>,
    ) -> azure_core::Result<AccessToken> {
        self.scopes.lock().unwrap().extend(scopes.iter().map(|scope| (*scope).to_owned()));
        let number = self.token_requests.fetch_add(1, Ordering::SeqCst);
        if self.is_signed_out.load(Ordering::SeqCst) {
            let kind = azure_core::error::ErrorKind::Credential;
            return Err(azure_core::Error::with_message(kind, "signed out: hush-reason"));
        }
        let expires_on = azure_core::time::OffsetDateTime::UNIX_EPOCH;
        Ok(AccessToken { token: format!("hush-token-{number}").into(), expires_on })
    }
}

fn tool_with_identity(
    spec: &str,
    server: &Server,
    fake: &Arc<FakeCredential>,
) -> Arc<dyn CallableTool> {
    let identity = AzureIdentity::Managed { client_id: None };
    let credential = Arc::clone(fake) as Arc<dyn TokenCredential>;
    let tokens = Credentials::default()
        .with_credential(identity.clone(), credential)
        .token_source(&identity);
    let client = HttpClient::new(AddressRules::default().with_loopback()).unwrap();
    tool_with_client(spec, &server.url, &client.with_identity(tokens))
}

#[tokio::test]
async fn every_attempt_sends_a_token() {
    let server = Server::start(&[Reply::status(503), Reply::text("fine")]);
    let credential = Arc::new(FakeCredential::default());
    let tool = tool_with_identity(&read_spec(AUTH), &server, &credential);
    assert_eq!(text(&ToolCaller::new().expect_result(&tool, "{}").await), "fine");
    let rendered: Vec<String> = server
        .requests()
        .iter()
        .map(|request| request.header("authorization").unwrap().to_owned())
        .collect();
    assert_eq!(rendered, ["Bearer hush-token-0", "Bearer hush-token-1"]);
    assert_eq!(*credential.scopes.lock().unwrap(), ["api://payments/.default"; 2]);
    assert!(!format!("{tool:?}").contains("hush"));
}

#[tokio::test]
async fn token_is_not_sent_to_redirect_target() {
    let redirect_target = Server::start(&[Reply::text("gotcha")]);
    let server = Server::start(&[Reply::status(302).with("location", &redirect_target.url)]);
    let tool = tool_with_identity(&write_spec(AUTH), &server, &Arc::default());
    let message = ToolCaller::new().expect_unknown(&tool, r#"{"to":"Ada"}"#).await;
    assert!(message.contains("a redirect, which is not followed"), "{message}");
    assert_eq!(server.requests().len(), 1);
    assert_eq!(redirect_target.requests().len(), 0);
}

#[tokio::test]
async fn echoed_token_is_hidden_from_the_model() {
    for reply in [
        Reply::text("you sent Bearer hush-token-0!"),
        Reply::json(r#"{"authorization":"Bearer hush-token-0"}"#),
        Reply::status(400).with_body("text/plain", "bad: hush-token-0"),
    ] {
        let server = Server::start(&[reply]);
        let tool = tool_with_identity(&write_spec(AUTH), &server, &Arc::default());
        let result = ToolCaller::new().expect_result(&tool, r#"{"to":"Ada"}"#).await;
        let rendered = format!("{} {:?}", text(&result), result.structured);
        assert!(!rendered.contains("hush") && rendered.contains("[token]"), "{rendered}");
    }
}

/// A response without its end may end within the token.
#[tokio::test]
async fn echoed_token_is_hidden_from_approvers() {
    let text = b"caf\xe9: Bearer hush-token-0, ";
    for reply in [
        Reply::json(r#"{"authorization":"Bearer hush-tok"#).cut_short(),
        Reply::text("you sent Bearer hush-token-").cut_short(),
        Reply::status(200).with_bytes("text/plain", text).cut_short(),
        Reply::status(500).with_bytes("text/plain", text),
    ] {
        let server = Server::start(&[reply]);
        let tool = tool_with_identity(&write_spec(AUTH), &server, &Arc::default());
        let reason = ToolCaller::new().expect_unknown(&tool, r#"{"to":"Ada"}"#).await;
        assert!(!reason.contains("hush") && reason.contains("Bearer [token]"), "{reason}");
    }
}

#[tokio::test]
async fn call_without_token_is_unsent_and_not_unknown() {
    let server = Server::start(&[Reply::text("fine")]);
    let credential = Arc::new(FakeCredential::default());
    credential.is_signed_out.store(true, Ordering::SeqCst);
    for (spec, times) in [(write_spec(AUTH), 1), (read_spec(AUTH), 3)] {
        let tool = tool_with_identity(&spec, &server, &credential);
        let before = credential.token_requests.load(Ordering::SeqCst);
        let result = ToolCaller::new().expect_result(&tool, r#"{"to":"Ada"}"#).await;
        let message = text(&result);
        assert!(
            message.contains("needs a token of the app's identity")
                && message.contains("Nothing was sent."),
            "{message}"
        );
        assert!(result.is_error && !message.contains("hush"), "{message}");
        assert_eq!(credential.token_requests.load(Ordering::SeqCst) - before, times, "{spec}");
    }
    assert_eq!(server.requests().len(), 0);
}
