//! Tests of access tokens for MCP servers.

use super::*;
use crate::settings::secret::Secret;
use crate::tools::http::address_rules::AddressRules;
use crate::tools::mcp::authorization::OAuthClient;

fn oauth(token_url: &str) -> Authorization {
    let credentials = ("app:1".to_owned(), Secret::new("s3cret-value".to_owned()));
    let scope = Some("mail.send mail.read".to_owned());
    let resource = Some("https://desk.example/mcp".to_owned());
    let token_url = token_url.parse().unwrap();
    Authorization::OAuth(Arc::new(OAuthClient::new(token_url, credentials, scope, resource)))
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
        ("https://desk.example/mcp".to_owned(), at_token(&server.url)),
        ("https://desk.example/mcp".to_owned(), at_token("http://localhost:1/token")),
    ] {
        let connector = HttpConnector {
            url: url.parse().unwrap(),
            headers: Vec::new(),
            auth,
            client: strict.clone(),
            redactor: Redactor::new(std::iter::empty()),
        };
        let mcp =
            McpServer::new("desk", "i".to_owned(), false, Connector::Http(Box::new(connector)));
        let reason = mcp.refresh(NOW).await.unwrap_err();
        assert!(reason.contains("its address is private or local"), "{url}: {reason}");
    }
    assert!(server.methods().is_empty() && server.token_requests().is_empty());
}
