//! Reader of the list of tools, of an agent or of a plugin.

use std::sync::Arc;

use crate::file_context::AgentFileContext;
use crate::mistakes::{Findings, suggest_name};
use crate::remedies::TOOL_REMEDIES;
use crate::yaml::{Member, Node, Yaml};
use crate::{fields, http_tool};
use turnwheel_tools::CallableTool;

/// Reads all tools except the `mcp` entries.
pub(super) fn read_tools(
    member: &Member,
    context: &AgentFileContext<'_>,
    findings: &mut Findings,
) -> Vec<Arc<dyn CallableTool>> {
    let items = match &member.value.yaml {
        Yaml::List(items) => items.as_slice(),
        Yaml::Null => return Vec::new(),
        Yaml::Bool(_) | Yaml::Number(_) | Yaml::Text(_) | Yaml::Map(_) => {
            findings.add(member.value.position, "`tools` is a list: begin each tool with `- `");
            return Vec::new();
        }
    };
    let mut tools: Vec<Arc<dyn CallableTool>> = Vec::new();
    for item in items {
        let Some(tool) = read_tool(item, context, findings) else { continue };
        let name = &tool.definition().name;
        if tools.iter().any(|other| other.definition().name == *name) {
            findings.add(
                item.position,
                format!("there is another tool `{name}`: names are unique in an agent"),
            );
        } else {
            tools.push(tool);
        }
    }
    tools
}

fn read_tool(
    item: &Node,
    context: &AgentFileContext<'_>,
    findings: &mut Findings,
) -> Option<Arc<dyn CallableTool>> {
    const NEITHER: &str = "a tool is a name, or a map that begins with `http:` or `mcp:`";
    match &item.yaml {
        Yaml::Text(name) => {
            let found = context.tools.get(name);
            if found.is_none() {
                let hint = fields::find_remedy(name, TOOL_REMEDIES).unwrap_or_else(|| {
                    suggest_name(name, context.tools.keys().map(String::as_str))
                });
                findings.add(item.position, format!("there is no tool `{name}`: {hint}"));
            }
            found.map(Arc::clone)
        }
        Yaml::Map(members) => {
            fields::read_members_with_remedies(
                item,
                "a tool",
                &["http", "mcp"],
                TOOL_REMEDIES,
                findings,
            );
            let http = members.iter().find(|member| member.key == "http")?;
            http_tool::read_http_tool(&http.value, context, findings)
                .map(|tool| Arc::new(tool) as _)
        }
        Yaml::Null | Yaml::Bool(_) | Yaml::Number(_) | Yaml::List(_) => {
            findings.add(item.position, NEITHER);
            None
        }
    }
}
