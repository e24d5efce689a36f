//! Definitions of a server's tools: checked when they are read, and stored for other processes.

use rmcp::model::Tool;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::clock::Timestamp;
use crate::digest::sha256_hex;
use crate::tools::http::text::byte_prefix;
use crate::tools::validate::Checker;

/// Pages of a list of tools.
pub(super) const PAGES_MAX: usize = 20;
/// Tools of one server.
const TOOLS_MAX: usize = 256;
/// Bytes of all definitions of one server. They are one document.
const BYTES_MAX: usize = 1_000_000;
/// Bytes of the schema of one tool.
const SCHEMA_BYTES_MAX: usize = 32 * 1024;
/// Nesting of the schema of one tool.
const SCHEMA_DEPTH_MAX: usize = 32;
/// Bytes of a description.
const DESCRIPTION_BYTES_MAX: usize = 4 * 1024;
const NAME_BYTES_MAX: usize = 128;

/// The tools of a server at one time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Definitions {
    pub(crate) fetched_at: Timestamp,
    /// In the server's order; names are unique.
    pub(crate) tools: Vec<RemoteTool>,
    /// Tools that cannot be offered.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) rejected: Vec<RejectedTool>,
}

/// A tool as its server defines it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct RemoteTool {
    pub(crate) name: String,
    pub(crate) title: Option<String>,
    pub(crate) description: String,
    /// A schema that compiles, of an object.
    pub(crate) parameters: Value,
    /// Hint of the server.
    #[serde(default)]
    pub(crate) is_read_only: bool,
    /// Hint of the server.
    #[serde(default)]
    pub(crate) is_idempotent: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RejectedTool {
    pub(crate) name: String,
    pub(crate) reason: String,
}

impl Definitions {
    /// # Errors
    /// The list is too large to be used. The text completes "the server cannot be read: …".
    pub(super) fn new(now: Timestamp, listed: Vec<Tool>) -> Result<Self, String> {
        Self::check_count(listed.len())?;
        let mut definitions = Self { fetched_at: now, tools: Vec::new(), rejected: Vec::new() };
        for tool in listed {
            let name = byte_prefix(&tool.name, NAME_BYTES_MAX).to_owned();
            let is_known = definitions.tools.iter().any(|other| other.name == name);
            match RemoteTool::check(tool) {
                Ok(_) if is_known => {
                    let reason = "its server lists another tool of this name".to_owned();
                    definitions.rejected.push(RejectedTool { name, reason });
                }
                Ok(tool) => definitions.tools.push(tool),
                Err(reason) => definitions.rejected.push(RejectedTool { name, reason }),
            }
        }
        let bytes = serde_json::to_vec(&definitions).map_or(usize::MAX, |json| json.len());
        if bytes > BYTES_MAX {
            return Err(format!("its definitions have over {BYTES_MAX} bytes"));
        }
        Ok(definitions)
    }

    pub(super) fn check_count(count: usize) -> Result<(), String> {
        if count > TOOLS_MAX {
            return Err(format!("it lists over {TOOLS_MAX} tools"));
        }
        Ok(())
    }

    /// Logs what differs from the definitions before. A change of a definition may be an attack.
    pub(super) fn log_changes(&self, server: &str, before: Option<&Self>) {
        for RejectedTool { name, reason } in &self.rejected {
            tracing::warn!(server, tool = %name, cause = %reason, "MCP tool left out");
        }
        let Some(before) = before else { return };
        for name in self.changed_since(before) {
            tracing::warn!(server, tool = %name, "MCP tool definition changed");
        }
    }

    /// Names of tools that both have, with other definitions.
    pub(crate) fn changed_since<'d>(&'d self, before: &Self) -> Vec<&'d str> {
        let is_changed = |tool: &&RemoteTool| {
            let old = before.tools.iter().find(|old| old.name == tool.name);
            old.is_some_and(|old| old != *tool)
        };
        self.tools.iter().filter(is_changed).map(|tool| tool.name.as_str()).collect()
    }
}

impl RemoteTool {
    fn check(tool: Tool) -> Result<Self, String> {
        let is_plain = |byte: u8| byte.is_ascii_graphic() && !matches!(byte, b'"' | b'`' | b'\\');
        if tool.name.is_empty()
            || tool.name.len() > NAME_BYTES_MAX
            || !tool.name.bytes().all(is_plain)
        {
            return Err(format!("its name is not 1 to {NAME_BYTES_MAX} plain characters"));
        }
        let mut schema = (*tool.input_schema).clone();
        schema.entry("type").or_insert_with(|| json!("object"));
        schema.entry("properties").or_insert_with(|| json!({}));
        let parameters = Value::Object(schema);
        check_schema(&parameters)?;
        let hints = tool.annotations.unwrap_or_default();
        let description = tool.description.unwrap_or_default();
        Ok(Self {
            description: byte_prefix(description.trim(), DESCRIPTION_BYTES_MAX).to_owned(),
            title: tool.title.map(|title| byte_prefix(&title, NAME_BYTES_MAX).to_owned()),
            parameters,
            is_read_only: hints.read_only_hint.unwrap_or_default(),
            is_idempotent: hints.idempotent_hint.unwrap_or_default(),
            name: tool.name.into_owned(),
        })
    }

    /// Changes with everything that the model or an approver relies on.
    pub(super) fn revision(&self, source: &str) -> String {
        let mut hash = sha256_hex(format!("{source}\n{}", json!(self)).as_bytes());
        hash.truncate(16);
        hash
    }
}

fn check_schema(schema: &Value) -> Result<(), String> {
    if depth(schema) > SCHEMA_DEPTH_MAX {
        return Err(format!("its schema is nested over {SCHEMA_DEPTH_MAX} levels"));
    }
    if schema.to_string().len() > SCHEMA_BYTES_MAX {
        return Err(format!("its schema has over {SCHEMA_BYTES_MAX} bytes"));
    }
    if schema.get("type") != Some(&json!("object")) {
        return Err("its schema is not of an object".to_owned());
    }
    // Also refuses references to other documents: nothing is fetched.
    let reason = Checker::new(schema).err();
    reason.map_or(Ok(()), |reason| Err(byte_prefix(&reason, 500).to_owned()))
}

fn depth(value: &Value) -> usize {
    match value {
        Value::Array(items) => 1 + items.iter().map(depth).max().unwrap_or_default(),
        Value::Object(members) => 1 + members.values().map(depth).max().unwrap_or_default(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => 0,
    }
}
