//! Tests of approvals that the definition of a tool demands.

use super::*;
use crate::http::ApprovalRule;
use crate::http::template::{Piece, Template};

/// Reasons of the approvals of a call with a small and one with a large number.
async fn reasons(meta: &Value, rules: McpRules) -> [Option<String>; 2] {
    let mut pay = tool("pay", "x");
    pay["_meta"] = meta.clone();
    let server = TestServer::start(json!([pay])).await;
    // A demand only restricts, so it needs no trust.
    let source = McpToolSource::new(server.connect(false), rules);
    source.server.refresh(NOW).await.unwrap();
    let tool = source.tools().remove(0);
    [r#"{"n":1}"#, r#"{"n":200}"#].map(|text| {
        let text = RawJson::from_text(text).unwrap();
        let arguments = Arguments { value: text.to_value(), text };
        tool.required_approval(&arguments).map(|approval| approval.reason)
    })
}

#[tokio::test]
async fn definition_demands_an_approval() {
    let usual = || Some("Calling mcp__desk__pay requires approval.".to_owned());
    let large = json!({ "properties": { "n": { "exclusiveMinimum": 100 } } });
    for (value, expected) in [
        (json!("always"), [usual(), usual()]),
        (json!(true), [usual(), usual()]),
        (
            json!({ "reason": "Pays {n}." }),
            [Some("Pays {n}.".to_owned()), Some("Pays {n}.".to_owned())],
        ),
        (json!({ "when": large.clone() }), [None, usual()]),
        (json!({ "when": large, "reason": "Large." }), [None, Some("Large.".to_owned())]),
        // A condition that cannot be checked leaves no call out.
        (json!({ "when": { "type": "number-like" } }), [usual(), usual()]),
        (json!({ "when": 5, "reason": 5 }), [usual(), usual()]),
        (json!([1]), [usual(), usual()]),
        (json!(false), [None, None]),
        (json!(null), [None, None]),
    ] {
        let meta = json!({ "turnwheel/approval": value });
        assert_eq!(reasons(&meta, rules(None)).await, expected, "{meta}");
    }
    assert_eq!(reasons(&json!({ "turnwheel/other": true }), rules(None)).await, [None, None]);
}

#[tokio::test]
async fn rule_of_the_agent_file_takes_precedence() {
    let rule = ApprovalRule {
        condition: None,
        reason: Template(vec![Piece::Text("Of the file.".to_owned())]),
        approvers: vec!["link".to_owned()],
        is_requester_excluded: false,
        expires_after: Duration::from_hours(1),
    };
    let rules = McpRules { approval: Some(rule), has_reason: true, ..rules(None) };
    let meta = json!({ "turnwheel/approval": { "reason": "Of the server." } });
    let expected = Some("Of the file.".to_owned());
    assert_eq!(reasons(&meta, rules).await, [expected.clone(), expected]);
}

#[tokio::test]
async fn changed_demand_is_another_definition() {
    let revision = async |meta: Value| {
        let mut pay = tool("pay", "x");
        pay["_meta"] = meta;
        let (_server, source) = connected(json!([pay]), None, false).await;
        source.tools()[0].definition().revision.clone()
    };
    let without = revision(json!(null)).await;
    assert_ne!(revision(json!({ "turnwheel/approval": "always" })).await, without);
    assert_eq!(revision(json!({ "other": 1 })).await, without);
}
