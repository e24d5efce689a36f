//! The example's payments service, and its agent `payments-clerk`.

use std::path::Path;
use std::sync::Arc;

use serde_json::json;
use turnwheel::testing::agents::{AgentFileContext, McpServers, ToolSet, load_folder};
use turnwheel::testing::payments::PaymentsServer;
use turnwheel::testing::tools::http::address_rules::AddressRules;
use turnwheel::testing::tools::http::client::HttpClient;

use crate::http_tools::tool_caller::{ToolCaller, text};
use crate::support::openapi_check::SendValidated as _;

async fn request_payment(
    server: &PaymentsServer,
    key: Option<&str>,
    to: &str,
    body: &str,
) -> (u16, serde_json::Value) {
    let request =
        reqwest::Client::new().post(format!("{}/pay/{to}", server.base_url)).body(body.to_owned());
    let request = match key {
        Some(key) => request.header("idempotency-key", key),
        None => request,
    };
    let response = request.send_validated().await.unwrap();
    (response.status().as_u16(), response.json().await.unwrap())
}

#[tokio::test]
async fn idempotency_key_pays_once() {
    let server = PaymentsServer::start().await.unwrap();
    let first = request_payment(&server, Some("k1"), "Ada", r#"{"amount": 250}"#).await;
    let again = request_payment(&server, Some("k1"), "Ada", r#"{"amount": 250}"#).await;
    assert_eq!(first, again);
    assert_eq!(first.0, 200);
    assert_eq!(
        (&first.1["to"], &first.1["amount"], &first.1["status"]),
        (&json!("Ada"), &json!(250), &json!("sent"))
    );
    let other = request_payment(&server, Some("k2"), "Ada", r#"{"amount": 250}"#).await;
    assert_ne!(first.1["receipt"], other.1["receipt"]);
    let payments = server.payments();
    assert_eq!(payments.len(), 2);
    assert_eq!(payments[0].requests, 2);
    let elsewhere = PaymentsServer::start().await.unwrap();
    assert_eq!(
        request_payment(&elsewhere, Some("k1"), "Ada", r#"{"amount": 250}"#).await,
        first,
        "the key determines the receipt"
    );
}

#[tokio::test]
async fn payment_keeps_each_digit_of_its_amount() {
    let server = PaymentsServer::start().await.unwrap();
    let amount = "250.000000000000000000001";
    let body = format!(r#"{{"amount": {amount}}}"#);
    assert_eq!(request_payment(&server, Some("k"), "Ada", &body).await.0, 200);
    let other = request_payment(&server, Some("k"), "Ada", r#"{"amount": 250}"#).await;
    assert_eq!(other.0, 422, "the key belongs to another amount");
    assert_eq!(server.payments()[0].amount.text(), amount);
    let list = reqwest::Client::new().get(format!("{}/payments", server.base_url));
    let list = list.send_validated().await.unwrap().text().await.unwrap();
    assert!(list.contains(&format!(r#""amount":{amount}"#)), "{list}");
}

#[tokio::test]
async fn invalid_payment_gets_an_error_sentence() {
    let server = PaymentsServer::start().await.unwrap();
    for (key, to, body) in [
        (None, "Ada", r#"{"amount": 1}"#),
        (Some("k"), "%20", r#"{"amount": 1}"#),
        (Some("k"), "Ada", "{}"),
        (Some("k"), "Ada", r#"{"amount": "1"}"#),
        (Some("k"), "Ada", r#"{"amount": -1}"#),
        (Some("k"), "Ada", r#"{"amount": 1e99}"#),
        (Some("k"), "Ada", "no"),
    ] {
        let (status, answer) = request_payment(&server, key, to, body).await;
        assert_eq!(status, 400, "{body}");
        assert!(answer["error"].as_str().unwrap().ends_with('.'), "{answer}");
    }
    request_payment(&server, Some("k"), "Ada", r#"{"amount": 1}"#).await;
    assert_eq!(request_payment(&server, Some("k"), "Ada", r#"{"amount": 2}"#).await.0, 422);
    assert_eq!(server.payments().len(), 1);
}

#[tokio::test]
async fn payments_server_stops_when_dropped() {
    let server = PaymentsServer::start().await.unwrap();
    let url = format!("{}/payments", server.base_url);
    reqwest::Client::new().get(&url).send_validated().await.unwrap();
    drop(server);
    // The port closes when the server's task has ended; until then it may accept connections.
    let is_closed = async {
        while reqwest::Client::new().get(&url).send_validated().await.is_ok() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(std::time::Duration::from_mins(1), is_closed).await.unwrap();
}

#[tokio::test]
async fn repeated_call_of_clerk_pays_once() {
    let server = PaymentsServer::start().await.unwrap();
    let app_settings = |name: &str| (name == "PAYMENTS_URL").then(|| server.base_url.clone());
    let client = HttpClient::new(AddressRules::default().with_loopback()).unwrap();
    let tool = |name: &str| {
        Arc::new(placeholder_tool(name)) as Arc<dyn turnwheel::testing::tools::CallableTool>
    };
    let tools: ToolSet = ["read", "write", "edit", "ls", "find", "grep"]
        .into_iter()
        .map(|name| (name.to_owned(), tool(name)))
        .collect();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("agents");
    let context = AgentFileContext {
        tools: &tools,
        plugins: &[],
        extensions: &[],
        skills: &[],
        context_files: &[],
        mcp: McpServers::none(),
        app_settings: &app_settings,
        client: &client,
    };
    let loaded = load_folder(&folder, "agents", &context);
    assert_eq!(loaded.mistakes, []);
    let clerk = loaded.catalog.find(Some("payments-clerk")).unwrap();
    let (send, list) =
        (clerk.find_tool("send_payment").unwrap(), clerk.find_tool("list_payments").unwrap());
    let caller = ToolCaller::new();
    let first = caller.expect_result(send, r#"{"to":"Ada","amount":250}"#).await;
    let again = caller.expect_result(send, r#"{"to":"Ada","amount":250}"#).await;
    assert_eq!(first, again);
    let receipt = first.structured.unwrap().to_value()["receipt"].clone();
    let payments = server.payments();
    assert_eq!((payments.len(), payments[0].key.as_str()), (1, caller.effect_id.as_str()));
    let listed = caller.expect_result(list, "{}").await;
    assert!(text(&listed).contains(receipt.as_str().unwrap()), "{}", text(&listed));
}

/// Placeholder for a built-in tool that no test here calls.
#[derive(Debug)]
struct PlaceholderTool(turnwheel::testing::tools::ToolDefinition);

fn placeholder_tool(name: &str) -> PlaceholderTool {
    PlaceholderTool(turnwheel::testing::tools::ToolDefinition {
        is_strict: false,
        name: name.to_owned(),
        label: name.to_owned(),
        description: String::new(),
        parameters: json!({"type": "object"}),
        effect: turnwheel::Effect::Read,
        on_unknown: turnwheel::OnUnknown::Ask,
        timeout: turnwheel::testing::tools::TIMEOUT_DEFAULT,
        revision: String::new(),
    })
}

#[async_trait::async_trait]
impl turnwheel::testing::tools::CallableTool for PlaceholderTool {
    fn definition(&self) -> &turnwheel::testing::tools::ToolDefinition {
        &self.0
    }

    fn required_approval(
        &self,
        _: &turnwheel::testing::tools::Arguments,
    ) -> Option<turnwheel::testing::tools::ApprovalRequirement> {
        None
    }

    async fn call(
        &self,
        _: turnwheel::testing::tools::Arguments,
        _: turnwheel::testing::tools::ToolContext,
    ) -> turnwheel::testing::tools::ToolOutcome {
        turnwheel::testing::tools::ToolOutcome::Returned(turnwheel::ToolResult::default())
    }
}
