//! The parts of an agent file that its readers share.

use std::fmt;
use std::sync::Arc;

use serde_json::Value;

use crate::context_file::ContextFile;
use crate::mistakes::Findings;
use crate::skills::Skill;
use crate::yaml::{Member, Node, Position, Yaml};
use crate::{McpServers, ToolSet};
use turnwheel_extensions::Extension;
use turnwheel_extensions::plugin::RegisteredPlugin;
use turnwheel_tools::http::client::HttpClient;
use turnwheel_tools::sha256_hex;
use turnwheel_tools::validate::bounded_schema::{BoundedSchema, SchemaProblem};

/// Tools, plugins, skills, context files, app settings and address rules that an agent file may refer to.
pub struct AgentFileContext<'s> {
    pub tools: &'s ToolSet,
    pub plugins: &'s [Arc<RegisteredPlugin>],
    /// Extensions of the app.
    pub extensions: &'s [Arc<dyn Extension>],
    pub skills: &'s [Arc<Skill>],
    pub context_files: &'s [Arc<ContextFile>],
    /// Those of `mcp.json`.
    pub mcp: &'s McpServers,
    pub app_settings: &'s dyn Fn(&str) -> Option<String>,
    pub client: &'s HttpClient,
}

impl fmt::Debug for AgentFileContext<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AgentFileContext").finish_non_exhaustive()
    }
}

/// Parses a member as a JSON Schema. Words without a meaning do not count.
pub(super) fn parse_schema(member: &Member, findings: &mut Findings) -> Option<Value> {
    read_schema(member, findings, BoundedSchema::new).map(|(schema, _)| schema)
}

/// Parses a member as a JSON Schema that decides about a right: each word counts.
pub(super) fn parse_condition(member: &Member, findings: &mut Findings) -> Option<BoundedSchema> {
    read_schema(member, findings, BoundedSchema::new_strict).map(|(_, schema)| schema)
}

fn read_schema(
    member: &Member,
    findings: &mut Findings,
    compile: fn(&Value) -> Result<BoundedSchema, SchemaProblem>,
) -> Option<(Value, BoundedSchema)> {
    if !matches!(member.value.yaml, Yaml::Map(_)) {
        let kind = member.value.kind();
        findings.add(
            member.value.position,
            format!("`{}` is a JSON Schema, a map, not {kind}", member.key),
        );
        return None;
    }
    let schema = member.value.to_json();
    match compile(&schema) {
        Ok(bounded) => Some((schema, bounded)),
        Err(SchemaProblem { pointer, reason }) => {
            let reason = unknown_type(&schema, &pointer).unwrap_or(reason);
            let at = position_at_pointer(&member.value, &pointer).unwrap_or(member.value.position);
            let place = if pointer.is_empty() { String::new() } else { format!(" (at {pointer})") };
            findings.add(at, format!("`{}` is not a JSON Schema{place}: {reason}", member.key));
            None
        }
    }
}

/// The reason of a `type` that JSON Schema does not have.
fn unknown_type(schema: &Value, pointer: &str) -> Option<String> {
    let kind = schema.pointer(pointer).filter(|_| pointer.ends_with("/type"))?;
    (kind.is_string() || kind.is_array()).then(|| {
        format!(
            "{kind} is not a type: there are string, number, integer, boolean, object, array and null"
        )
    })
}

/// Adds a finding for `${NAME}` in a place where it would not be replaced.
pub(super) fn reject_app_settings(node: &Node, findings: &mut Findings) {
    match &node.yaml {
        Yaml::Text(text) if text.contains("${") => findings.add(
            node.position,
            "app settings (`${NAME}`) may stand only in the url, headers and body of an http tool, and in the url and secret of an http extension or plugin",
        ),
        Yaml::List(items) => items.iter().for_each(|item| reject_app_settings(item, findings)),
        Yaml::Map(members) => {
            for member in members {
                reject_app_settings(&member.value, findings);
            }
        }
        Yaml::Null | Yaml::Bool(_) | Yaml::Number(_) | Yaml::Text(_) => {}
    }
}

/// The first 16 hex digits of the text's SHA-256.
pub(super) fn hash_prefix(text: &str) -> String {
    sha256_hex(text.as_bytes()).chars().take(16).collect()
}

/// Position of the node at a JSON pointer.
fn position_at_pointer(node: &Node, pointer: &str) -> Option<Position> {
    let mut current = node;
    for step in pointer.split('/').skip(1) {
        let step = step.replace("~1", "/").replace("~0", "~");
        current = match &current.yaml {
            Yaml::Map(_) => &current.find_member(&step)?.value,
            Yaml::List(items) => items.get(step.parse::<usize>().ok()?)?,
            Yaml::Null | Yaml::Bool(_) | Yaml::Number(_) | Yaml::Text(_) => {
                return Some(current.position);
            }
        };
    }
    Some(current.position)
}
