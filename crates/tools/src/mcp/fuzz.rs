//! Fuzz tests of definitions and results: none stops the process, and all stored and returned data
//! has its bounds.

use serde_json::{Value, json};

use super::definitions::Definitions;
use super::message::ReceivedResult;
use super::result::{McpContent, convert_result};
use crate::test_env::TestEnv;
use crate::validate::validate;
use crate::{TIMEOUT_DEFAULT, ToolDefinition};
use turnwheel_conversation::content::joined_text;
use turnwheel_conversation::request::Effect;
use turnwheel_json::foreign::read_foreign_json;
use turnwheel_json::raw::RawJson;
use turnwheel_platform::clock::Timestamp;
use turnwheel_test_support::fuzz::check;

fn tools(input: &[u8]) {
    let Some(listed) =
        read_foreign_json(&String::from_utf8_lossy(input)).and_then(|it| it.json.read().ok())
    else {
        return;
    };
    let listed: Vec<RawJson> = listed;
    let count = listed.len();
    let Ok(definitions) = Definitions::new(Timestamp(1), &listed) else { return };
    assert!(definitions.tools.len() + definitions.rejected.len() <= count);
    let stored = serde_json::to_string(&definitions).unwrap();
    assert!(stored.len() <= 1_000_000);
    assert_eq!(serde_json::from_str::<Definitions>(&stored).unwrap(), definitions);
    for (index, tool) in definitions.tools.iter().enumerate() {
        let mut earlier = definitions.tools[..index].iter();
        assert!(earlier.all(|other| other.name != tool.name), "{}", tool.name);
        assert!((1..=128).contains(&tool.name.len()) && tool.description.len() <= 4096);
        let definition = ToolDefinition {
            name: tool.name.clone(),
            label: String::new(),
            description: tool.description.clone(),
            parameters: tool.parameters.clone(),
            effect: Effect::Write,
            on_unknown: turnwheel_conversation::phase::OnUnknown::Ask,
            timeout: TIMEOUT_DEFAULT,
            is_strict: false,
            revision: tool.revision("x"),
        };
        for arguments in [json!({}), json!({ "a": [1, null, "x"], "to": "é", "n": 1.5 })] {
            let _valid_or_not = validate(&definition, &RawJson::from_value(&arguments));
        }
    }
}

fn result(input: &[u8]) {
    let Some(foreign) = read_foreign_json(&String::from_utf8_lossy(input)) else { return };
    let is_error = foreign.json.to_value().get("isError") == Some(&json!(true));
    let received = ReceivedResult { json: foreign.json, notes: Vec::new() };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let context = TestEnv::new().context();
        let whole = convert_result(&received, McpContent::Json, &context).await;
        if let Some(details) = whole.details {
            let text: Value = serde_json::from_str(&joined_text(&whole.content)).unwrap();
            assert_eq!(details.to_value()["mcpResult"], text);
        }
        assert!(!is_error || whole.is_error);
        let native = convert_result(&received, McpContent::Native, &context).await;
        assert!(!is_error || native.is_error);
        assert!(!native.content.is_empty() || native.is_error);
    });
}

#[test]
fn fuzz_mcp_tools() {
    check("mcp_tools", tools);
}

#[test]
fn fuzz_mcp_result() {
    check("mcp_result", result);
}
