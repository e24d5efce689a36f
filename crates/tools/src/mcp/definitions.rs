//! Definitions of a server's tools: checked when they are read, and stored for other processes.

use std::collections::HashSet;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::http::text::byte_prefix;
use crate::mcp::approval::condition_of;
use crate::mcp::message::plain_text;
use crate::validate::Checker;
use crate::validate::bounds::{PATTERN_STATES_MAX, SchemaIndex, json_depth};
use turnwheel_json::raw::RawJson;
use turnwheel_platform::clock::Timestamp;
use turnwheel_platform::digest::sha256_hex;

/// Tools of one server.
pub(super) const TOOLS_MAX: usize = 256;
/// Bytes of all definitions of one server. They are one document.
const BYTES_MAX: usize = 1_000_000;
/// Bytes of the schema of one tool.
const SCHEMA_BYTES_MAX: usize = 32 * 1024;
/// States of the regular expressions of one server, which are compiled when they are read: of its
/// accepted tools, and of the others.
const SERVER_STATES_MAX: u64 = 2_000_000;
/// States of the regular expressions of a tool that do not count. All tools together have as many.
const FEW_STATES_MAX: u64 = 7_000;
/// Nesting of the schema of one tool.
const SCHEMA_DEPTH_MAX: usize = 32;
/// Bytes of a description.
const DESCRIPTION_BYTES_MAX: usize = 4 * 1024;
const NAME_BYTES_MAX: usize = 128;
/// Member of a definition's `_meta`: the approval that calls need.
const APPROVAL: &str = "turnwheel/approval";

/// The tools of a server at one time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Definitions {
    pub fetched_at: Timestamp,
    /// In the server's order; names are unique.
    pub tools: Vec<RemoteTool>,
    /// Tools that cannot be offered.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rejected: Vec<RejectedTool>,
}

/// A tool as its server defines it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RemoteTool {
    pub name: String,
    pub title: Option<String>,
    pub description: String,
    /// A schema that compiles, of an object.
    pub parameters: Value,
    /// Hint of the server.
    #[serde(default)]
    pub is_read_only: bool,
    /// Hint of the server.
    #[serde(default)]
    pub is_idempotent: bool,
    /// [`APPROVAL`] of its `_meta`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub approval: Option<Value>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RejectedTool {
    pub name: String,
    pub reason: String,
}

impl Definitions {
    /// Each definition is read by itself. A repeated one counts once.
    ///
    /// # Errors
    /// The list is too large to be used. The text completes "the server cannot be read: …".
    pub(super) fn new(now: Timestamp, listed: &[RawJson]) -> Result<Self, String> {
        Self::check_count(listed.len())?;
        let mut definitions = Self { fetched_at: now, tools: Vec::new(), rejected: Vec::new() };
        let mut texts = HashSet::new();
        let (mut accepted, mut refused) = (0_u64, 0_u64);
        for (index, raw) in listed.iter().enumerate() {
            if !texts.insert(raw.text()) {
                continue;
            }
            let listed = ListedTool::read(raw);
            let name = match listed.name.as_deref().map(|it| byte_prefix(it, NAME_BYTES_MAX)) {
                None | Some("") => format!("(number {})", index + 1),
                Some(name) => name.to_owned(),
            };
            let is_known = definitions.tools.iter().any(|other| other.name == name);
            let states = listed.pattern_states();
            if accepted.max(refused).saturating_add(states) > SERVER_STATES_MAX {
                let reason = "the regular expressions of its server are too large".to_owned();
                definitions.rejected.push(RejectedTool { name, reason });
                continue;
            }
            let reason = match RemoteTool::check(listed) {
                Ok(tool) if !is_known => {
                    accepted = accepted.saturating_add(states);
                    definitions.tools.push(tool);
                    continue;
                }
                Ok(_) => "its server lists another tool of this name".to_owned(),
                Err(reason) => reason,
            };
            refused = refused.saturating_add(states);
            definitions.rejected.push(RejectedTool { name, reason });
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
    pub fn changed_since<'d>(&'d self, before: &Self) -> Vec<&'d str> {
        let is_changed = |tool: &&RemoteTool| {
            let old = before.tools.iter().find(|old| old.name == tool.name);
            old.is_some_and(|old| old != *tool)
        };
        self.tools.iter().filter(is_changed).map(|tool| tool.name.as_str()).collect()
    }
}

/// The members of a definition that count. Those of another type are as absent, and other members
/// are never read.
#[derive(Default)]
struct ListedTool {
    name: Option<String>,
    title: Option<String>,
    description: String,
    schema: Option<Value>,
    is_read_only: bool,
    is_idempotent: bool,
    approval: Option<Value>,
}

impl ListedTool {
    fn read(raw: &RawJson) -> Self {
        let mut tool = Self::default();
        for (name, value) in raw.members().unwrap_or_default() {
            match name.as_str() {
                "name" => tool.name = value.read().ok(),
                "title" => tool.title = read_scalar(&value),
                "description" => tool.description = read_scalar(&value).unwrap_or_default(),
                "inputSchema" => tool.schema = value.read().ok().filter(|it| *it != Value::Null),
                "annotations" => {
                    let hints = value.members().unwrap_or_default();
                    // Only a plain `true` makes a tool less than a write.
                    let is_set = |hint: &str| {
                        hints.iter().any(|(name, value)| name == hint && value.text() == "true")
                    };
                    tool.is_read_only = is_set("readOnlyHint");
                    tool.is_idempotent = is_set("idempotentHint");
                }
                "_meta" => {
                    let members = value.members().unwrap_or_default();
                    let found = members.into_iter().find(|(name, _)| name == APPROVAL);
                    tool.approval = found.and_then(|(_, value)| value.read().ok());
                }
                _ => {}
            }
        }
        tool
    }

    /// States of the regular expressions in the schema, and in that of the approval, that are
    /// compiled. Few count as none, so that such a tool does not depend on the others.
    fn pattern_states(&self) -> u64 {
        let condition = self.approval.as_ref().and_then(condition_of);
        let schemas = self.schema.iter().chain(condition);
        let states = schemas.map(|schema| SchemaIndex::of_checked(schema).pattern_states());
        // A schema with more is refused before it is compiled.
        let compiled = states.filter(|states| *states <= PATTERN_STATES_MAX);
        let sum = compiled.fold(0, u64::saturating_add);
        if sum > FEW_STATES_MAX { sum } else { 0 }
    }
}

/// A text, or the text of a number.
fn read_scalar(value: &RawJson) -> Option<String> {
    let is_scalar = !value.text().starts_with(['{', '[', 'n']);
    is_scalar.then(|| plain_text(value))
}

impl RemoteTool {
    fn check(tool: ListedTool) -> Result<Self, String> {
        let is_plain = |byte: u8| byte.is_ascii_graphic() && !matches!(byte, b'"' | b'`' | b'\\');
        let name = tool.name.ok_or("its name is no text")?;
        if name.is_empty() || name.len() > NAME_BYTES_MAX || !name.bytes().all(is_plain) {
            return Err(format!("its name is not 1 to {NAME_BYTES_MAX} plain characters"));
        }
        let schema = tool.schema.ok_or("it has no `inputSchema`")?;
        let Value::Object(mut schema) = schema else {
            return Err("its schema is not of an object".to_owned());
        };
        if schema.get("type").is_none_or(Value::is_null) {
            schema.insert("type".to_owned(), json!("object"));
        }
        schema.entry("properties").or_insert_with(|| json!({}));
        let parameters = Value::Object(schema);
        check_schema(&parameters)?;
        Ok(Self {
            name,
            title: tool.title.map(|title| byte_prefix(&title, NAME_BYTES_MAX).to_owned()),
            description: byte_prefix(tool.description.trim(), DESCRIPTION_BYTES_MAX).to_owned(),
            parameters,
            is_read_only: tool.is_read_only,
            is_idempotent: tool.is_idempotent,
            approval: tool.approval.filter(|it| !matches!(it, Value::Null | Value::Bool(false))),
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
    if json_depth(schema) > SCHEMA_DEPTH_MAX {
        return Err(format!("its schema is nested over {SCHEMA_DEPTH_MAX} levels"));
    }
    if schema.to_string().len() > SCHEMA_BYTES_MAX {
        return Err(format!("its schema has over {SCHEMA_BYTES_MAX} bytes"));
    }
    let is_object = |kind: &Value| matches!(kind.as_str(), Some("object" | "any"));
    let is_of_object = match schema.get("type") {
        Some(Value::Array(kinds)) => kinds.iter().any(is_object),
        kind => kind.is_some_and(is_object),
    };
    if !is_of_object {
        return Err("its schema is not of an object".to_owned());
    }
    // Also refuses references to other documents: nothing is fetched.
    let reason = Checker::new(schema).err();
    reason.map_or(Ok(()), |reason| Err(byte_prefix(&reason, 500).to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_of_approvals_are_counted() {
        let approval = json!({ APPROVAL: { "when": { "pattern": "^.{0,1900}$" } } });
        let tool = |number: u32| json!({ "name": format!("t{number}"), "inputSchema": {}, "_meta": approval });
        let listed: Vec<RawJson> = (0..40).map(|it| RawJson::from_value(&tool(it))).collect();
        let definitions = Definitions::new(Timestamp(1), &listed).unwrap();
        let count = definitions.rejected.len();
        assert!((5..20).contains(&count), "{count}");
        assert!(definitions.rejected.iter().all(|it| it.reason.ends_with("are too large")));
        assert_eq!(definitions.tools.len() + count, 40);
    }

    #[test]
    fn refused_tools_leave_room_for_the_others() {
        let tool = |name: &str, pattern: &str, count: usize| {
            let texts: Vec<Value> =
                (0..count).map(|it| json!({ "pattern": format!("{pattern}{it}") })).collect();
            RawJson::from_value(&json!({"name": name, "inputSchema": {"anyOf": texts}}))
        };
        let huge = tool("huge", "^.{0,2000}", 31);
        assert!(ListedTool::read(&huge).schema.is_some_and(|schema| {
            SchemaIndex::of_checked(&schema).pattern_states() > 1_900_000
        }));
        let large = tool("large", "^.{0,1900}$", 1);
        let small = (0..20).map(|it| tool(&format!("small-{it}"), "^[a-z]{1,20}$", 2));
        let mut listed: Vec<RawJson> = [huge, large].into_iter().chain(small).collect();
        for _ in 0..2 {
            let definitions = Definitions::new(Timestamp(1), &listed).unwrap();
            assert_eq!(definitions.tools.len(), 21);
            let [RejectedTool { name, reason }] = &definitions.rejected[..] else {
                panic!("{:?}", definitions.rejected)
            };
            assert!(name == "huge" && reason.contains("too many regular expressions"), "{reason}");
            listed.reverse();
        }
        // What is compiled in vain is bounded too.
        listed.extend((0..35).map(|it| tool("twin", &format!("^.{{0,1900}}{it}"), 1)));
        listed.extend((20..40).map(|it| tool(&format!("small-{it}"), "^[a-z]{1,20}$", 2)));
        let definitions = Definitions::new(Timestamp(1), &listed).unwrap();
        assert_eq!(definitions.tools.len(), 42);
        let skipped = definitions.rejected.iter().filter(|it| it.reason.ends_with("are too large"));
        let count = skipped.count();
        assert!((2..10).contains(&count), "{count}");
    }
}
