//! Tests of approvals as JSON: characters that hide or reorder others are removed, or escapes.

use schemars::JsonSchema;
use serde::Deserialize;
use turnwheel::testing::tools::code::build_code_tool;
use turnwheel::{Approval, Effect, Tool, ToolContext, ToolError, ToolResult};

use super::test_app::TestApp;

struct Transfer;

#[derive(Deserialize, JsonSchema)]
struct Payee {
    to: String,
}

impl Tool for Transfer {
    type Args = Payee;

    fn name(&self) -> &'static str {
        "transfer"
    }

    fn label(&self) -> &'static str {
        "Trans\u{202e}fer"
    }

    fn description(&self) -> &'static str {
        "Transfers money."
    }

    fn effect(&self) -> Effect {
        Effect::Write
    }

    fn approval(&self, args: &Payee) -> Option<Approval> {
        Some(Approval::because(format!("Transfer to {}", args.to)))
    }

    async fn call(&self, args: Payee, _cx: ToolContext) -> Result<ToolResult, ToolError> {
        Ok(ToolResult::text(args.to))
    }
}

#[tokio::test]
async fn approval_as_json_hides_no_characters() {
    let to = "\u{202e}adA\u{200b}";
    let transfer = build_code_tool(Transfer).unwrap();
    let app = TestApp::new().with_agent(|agent| agent.tools.push(transfer));
    app.run(&format!("use transfer with {{\"to\": \"{to}\"}} then say done")).await;
    for path in ["/api/approvals", "/api/conversations/c"] {
        let response = app.get(path).send().await.expect_status(200);
        let json = response.json();
        let approval = [&json["items"][0], &json["pendingApprovals"][0]];
        let approval = approval.into_iter().find(|it| it.is_object()).unwrap();
        assert_eq!(approval["arguments"]["to"], to, "the value is the same");
        assert_eq!(approval["reason"], "Transfer to adA");
        assert_eq!(approval["toolLabel"], "Transfer");
        assert!(response.text.contains(r#""\u202EadA\u200B""#), "{}", response.text);
        assert!(!response.text.contains(['\u{202e}', '\u{200b}']), "{}", response.text);
    }
    // Other events have the call as the model wrote it.
    let events = app.get("/api/conversations/c/events?follow=false").send().await.text;
    let is_request =
        |line: &&str| line.starts_with("data: ") && line.contains(r#""prompt.approval-requested""#);
    let event = events.lines().find(is_request).unwrap();
    assert_eq!(event.matches(r#""\u202EadA\u200B""#).count(), 2, "{event}");
    assert!(!event.contains(['\u{202e}', '\u{200b}']), "{event}");
}
