//! Tests of access tokens for MCP servers.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use azure_core::credentials::{AccessToken, TokenCredential, TokenRequestOptions};

use super::*;
use crate::http::address_rules::AddressRules;
use crate::mcp::authorization::OAuthClient;
use turnwheel_azure::credential::Credentials;
use turnwheel_platform::settings::azure::AzureIdentity;
use turnwheel_platform::settings::secret::Secret;

fn oauth(token_url: &str) -> Authorization {
    let (id, secret) = ("app:1".to_owned(), Secret::new("s3cret-value".to_owned()));
    let scope = Some("mail.send mail.read".to_owned());
    let resource = Some("https://desk.example/mcp".to_owned());
    let token_url = token_url.parse().unwrap();
    Authorization::OAuth(Arc::new(OAuthClient::new(token_url, id, secret, scope, resource)))
}

fn source_of(server: &TestServer) -> McpToolSource {
    let auth = oauth(&server.url.replace("/mcp", "/token"));
    McpToolSource::new(server.connect_with(false, Some(auth)), rules(None))
}

#[tokio::test]
async fn client_credentials_token_is_fetched_once() {
    let server = TestServer::start(json!([tool("send", "x")])).await;
    let source = source_of(&server);
    source.server.refresh(NOW).await.unwrap();
    for _ in 0..2 {
        assert!(!returned(call(&source, &TestEnv::new()).await).is_error);
    }
    let requests = server.token_requests();
    let [(headers, body)] = requests.as_slice() else { panic!("{requests:?}") };
    // `app%3A1:s3cret-value`
    assert_eq!(headers["authorization"], "Basic YXBwJTNBMTpzM2NyZXQtdmFsdWU=");
    assert_eq!(
        body,
        "grant_type=client_credentials&scope=mail.send+mail.read&resource=https%3A%2F%2Fdesk.example%2Fmcp"
    );
    assert_eq!(server.last("tools/call").0["authorization"], "Bearer token-1");
}

#[tokio::test]
async fn rejected_token_is_replaced_once() {
    let server = TestServer::start(json!([tool("send", "x")])).await;
    let source = source_of(&server);
    source.server.refresh(NOW).await.unwrap();
    server.revoke_token();
    assert!(!returned(call(&source, &TestEnv::new()).await).is_error);
    assert_eq!(server.token_requests().len(), 2);
    // The first call was refused, so nothing was done twice.
    assert_eq!(server.count("tools/call"), 2);
}

#[tokio::test]
async fn token_failure_names_its_host_and_no_secret() {
    let server = TestServer::start(json!([tool("send", "x")])).await;
    let source = source_of(&server);
    server.set_down(true);
    let reason = source.server.refresh(NOW).await.unwrap_err();
    assert_eq!(reason, "no token of 127.0.0.1: it responded 401 Unauthorized invalid_client");
    assert_eq!(server.count("initialize"), 0);
}

/// Also for a host name that resolves to such an address.
#[tokio::test]
async fn addresses_of_server_and_token_are_guarded() {
    let server = TestServer::start(json!([])).await;
    let strict = HttpClient::new(AddressRules::default()).unwrap();
    let at_token = |url: &str| Some(oauth(url));
    for (url, auth) in [
        (server.url.clone(), None),
        (server.url.replace("127.0.0.1", "localhost"), None),
        ("http://169.254.169.254/mcp".to_owned(), None),
        ("http://[::1]:1/mcp".to_owned(), None),
        ("http://[fd00:ec2::254]/mcp".to_owned(), None),
        ("http://[::ffff:169.254.169.254]/mcp".to_owned(), None),
        ("http://[64:ff9b::a9fe:a9fe]/mcp".to_owned(), None),
        ("https://desk.example/mcp".to_owned(), at_token(&server.url)),
        ("https://desk.example/mcp".to_owned(), at_token("http://localhost:1/token")),
    ] {
        let name = url.clone();
        let (url, client) = (url.parse().unwrap(), strict.clone());
        let mcp = new_server(false, HttpConnector { url, auth, client, ..server.connector() });
        let reason = mcp.refresh(NOW).await.unwrap_err();
        assert!(reason.contains("its address is private or local"), "{name}: {reason}");
    }
    assert!(server.methods().is_empty() && server.token_requests().is_empty());
}

/// A credential that numbers its tokens, and fails when signed out.
#[derive(Debug, Default)]
struct FakeCredential {
    is_signed_out: AtomicBool,
    requests: AtomicUsize,
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
        let number = self.requests.fetch_add(1, Ordering::SeqCst);
        if self.is_signed_out.load(Ordering::SeqCst) {
            let kind = azure_core::error::ErrorKind::Credential;
            return Err(azure_core::Error::with_message(kind, "signed out: hush-reason"));
        }
        let expires_on = azure_core::time::OffsetDateTime::UNIX_EPOCH;
        Ok(AccessToken { token: format!("hush-token-{number}").into(), expires_on })
    }
}

/// A server whose requests need a token of the app's identity.
fn source_with_identity(server: &TestServer, fake: &Arc<FakeCredential>) -> McpToolSource {
    let identity = AzureIdentity::Managed { client_id: None };
    let credential = Arc::clone(fake) as Arc<dyn TokenCredential>;
    let tokens = Credentials::default().with_credential(identity.clone(), credential);
    let connector = server.connector();
    let client = connector.client.clone().with_identity(tokens.token_source(&identity));
    let auth = Some(Authorization::Entra("api://desk/.default".to_owned()));
    let connector = HttpConnector { auth, client, ..connector };
    McpToolSource::new(new_server(false, connector), rules(None))
}

#[tokio::test]
async fn each_request_sends_a_token_of_the_identity() {
    let server = TestServer::start(json!([tool("send", "x")])).await;
    let credential = Arc::new(FakeCredential::default());
    let source = source_with_identity(&server, &credential);
    source.server.refresh(NOW).await.unwrap();
    assert!(!returned(call(&source, &TestEnv::new()).await).is_error);
    for method in ["initialize", "tools/list", "tools/call"] {
        let (headers, _) = server.last(method);
        let sent = headers["authorization"].to_str().unwrap().to_owned();
        assert!(sent.starts_with("Bearer hush-token-"), "{method}: {sent}");
    }
    let scopes = credential.scopes.lock().unwrap().clone();
    assert!(scopes.len() >= 4 && scopes.iter().all(|it| it == "api://desk/.default"), "{scopes:?}");
    assert!(!format!("{source:?} {:?}", source.server).contains("hush"));
}

#[tokio::test]
async fn redirected_call_sends_its_token_to_no_other_address() {
    let server = TestServer::start(json!([tool("send", "x")])).await;
    let source = source_with_identity(&server, &Arc::default());
    source.server.refresh(NOW).await.unwrap();
    server.reply(Reply::Status(302));
    let reason = reason_of_unknown(call(&source, &TestEnv::new()).await);
    assert!(reason.contains("302") && !reason.contains("hush"), "{reason}");
    // The location is an address of the same server.
    assert_eq!((server.count("tools/call"), server.other_requests()), (1, 0));
}

#[tokio::test]
async fn echoed_token_is_hidden_from_the_model() {
    let server = TestServer::start(json!([tool("send", "x")])).await;
    let credential = Arc::new(FakeCredential::default());
    let source = source_with_identity(&server, &credential);
    source.server.refresh(NOW).await.unwrap();
    let echo = || {
        let token = format!("hush-token-{}", credential.requests.load(Ordering::SeqCst));
        json!({ "content": [{ "type": "text", "text": format!("sent: {token}") }],
            "structuredContent": { "token": token } })
    };
    let streamed = |result: Value| {
        let token = result["structuredContent"]["token"].clone();
        let progress = json!({ "jsonrpc": "2.0", "method": "notifications/progress",
            "params": { "progressToken": 1, "progress": 1, "message": token } });
        vec![progress, json!({ "jsonrpc": "2.0", "id": "ID", "result": result })]
    };
    let env = TestEnv::new();
    server.reply(Reply::Result(echo()));
    let plain = returned(call(&source, &env).await);
    server.reply(Reply::Stream(streamed(echo())));
    let in_stream = returned(call(&source, &env).await);
    for result in [plain, in_stream] {
        let shown = format!("{} {:?}", joined_text(&result.content), result.structured);
        assert!(!shown.contains("hush") && shown.contains("sent: [token]"), "{shown}");
    }
    let reports = env.progress_reports.lock().unwrap().clone();
    assert_eq!(reports, [ToolResult::text("[token]")]);
}

#[tokio::test]
async fn call_without_token_is_unsent_and_names_no_cause() {
    let server = TestServer::start(json!([tool("send", "x")])).await;
    let credential = Arc::new(FakeCredential::default());
    let source = source_with_identity(&server, &credential);
    source.server.refresh(NOW).await.unwrap();
    credential.is_signed_out.store(true, Ordering::SeqCst);
    let result = returned(call(&source, &TestEnv::new()).await);
    let text = joined_text(&result.content);
    let expected =
        "there is no token of the app's identity for api://desk/.default, so nothing was sent";
    assert!(result.is_error && text.contains(expected) && !text.contains("hush"), "{text}");
    assert_eq!(server.count("tools/call"), 0);
}
