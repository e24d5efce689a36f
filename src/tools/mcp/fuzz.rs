//! Fuzz tests of definitions and results: none stops the process, and all stored and returned data
//! has its bounds.

use rmcp::model::{CallToolResult, Tool};
use serde_json::{Value, json};

use super::definitions::Definitions;
use super::result::{McpContent, convert_result};
use crate::agent::content::joined_text;
use crate::agent::raw::RawJson;
use crate::agent::request::Effect;
use crate::clock::Timestamp;
use crate::fuzz::check;
use crate::tools::test_env::TestEnv;
use crate::tools::validate::validate;
use crate::tools::{TIMEOUT_DEFAULT, ToolDefinition};

fn tools(input: &[u8]) {
    let Ok(listed) = serde_json::from_slice::<Vec<Tool>>(input) else { return };
    let count = listed.len();
    let Ok(definitions) = Definitions::new(Timestamp(1), listed) else { return };
    assert_eq!(definitions.tools.len() + definitions.rejected.len(), count);
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
            on_unknown: crate::agent::phase::OnUnknown::Ask,
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
    let Ok(result) = serde_json::from_slice::<CallToolResult>(input) else { return };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let is_error = result.is_error.unwrap_or_default();
    runtime.block_on(async {
        let context = TestEnv::new().context();
        let whole = convert_result(result.clone(), McpContent::Json, &context).await;
        let text: Value = serde_json::from_str(&joined_text(&whole.content)).unwrap();
        assert_eq!(whole.details.unwrap().to_value()["mcpResult"], text);
        assert_eq!(whole.is_error, is_error);
        let native = convert_result(result, McpContent::Native, &context).await;
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
