//! Conversion of results of MCP tools.

use rmcp::model::{CallToolResult, ContentBlock};
use serde_json::{Value, json};

use crate::agent::content::Block;
use crate::agent::raw::RawJson;
use crate::tools::http::full_result::convert_full_result;
use crate::tools::{ToolContext, ToolResult};

/// Form of a result for the model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum McpContent {
    /// Text and images as blocks, and JSON text for all other content.
    #[default]
    Native,
    /// The JSON text of the whole result.
    Json,
}

pub(super) async fn convert_result(
    result: CallToolResult,
    form: McpContent,
    context: &ToolContext,
) -> ToolResult {
    let whole = json!(result);
    if form == McpContent::Json {
        return ToolResult {
            content: vec![Block::text(whole.to_string())],
            details: Some(RawJson::from_value(&json!({ "mcpResult": whole }))),
            is_error: result.is_error.unwrap_or_default(),
            ..ToolResult::default()
        };
    }
    let content: Vec<Value> = result.content.iter().map(native_block).collect();
    let mut members = json!({ "content": content, "isError": result.is_error.unwrap_or_default() });
    if let (Some(members), Some(structured)) = (members.as_object_mut(), result.structured_content)
    {
        members.insert("structuredContent".to_owned(), structured);
    }
    let mut converted = convert_full_result(&members.to_string(), context).await;
    if converted.content.is_empty() && !converted.is_error {
        converted.content.push(Block::text("The tool returned no content."));
    }
    converted
}

fn native_block(block: &ContentBlock) -> Value {
    if let ContentBlock::Text(text) = block {
        json!({ "type": "text", "text": text.text })
    } else if let ContentBlock::Image(image) = block {
        json!({ "type": "image", "data": image.data, "mimeType": image.mime_type })
    } else {
        json!({ "type": "text", "text": json!(block).to_string() })
    }
}
