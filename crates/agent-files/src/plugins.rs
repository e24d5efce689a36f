//! The key `plugins` of agent files.

use std::sync::Arc;

use crate::fields;
use crate::file_context::AgentFileContext;
use crate::http_endpoint::read_http_hook;
use crate::mistakes::{Findings, suggest_name};
use crate::tool_list::read_tools;
use crate::yaml::{Member, Node, Yaml};
use turnwheel_extensions::http::HttpPlugin;
use turnwheel_extensions::plugin::RegisteredPlugin;
use turnwheel_tools::CallableTool;

const KEYS: [&str; 6] = ["name", "url", "secret", "timeout", "optional", "tools"];

/// The plugins in the order of the file. `tools` are those of the agent: names are unique.
pub(super) fn read_plugins(
    member: &Member,
    tools: &[Arc<dyn CallableTool>],
    context: &AgentFileContext<'_>,
    findings: &mut Findings,
) -> Vec<Arc<RegisteredPlugin>> {
    let items = match &member.value.yaml {
        Yaml::List(items) => items.as_slice(),
        Yaml::Null => return Vec::new(),
        Yaml::Bool(_) | Yaml::Number(_) | Yaml::Text(_) | Yaml::Map(_) => {
            findings.add(member.value.position, "`plugins` is a list: begin each plugin with `- `");
            return Vec::new();
        }
    };
    let mut plugins: Vec<Arc<RegisteredPlugin>> = Vec::new();
    for item in items {
        let Some(plugin) = read_plugin(item, context, findings) else { continue };
        let name = plugin.name();
        if plugins.iter().any(|other| other.name() == name) {
            findings.add(item.position, format!("the plugin `{name}` is listed twice"));
            continue;
        }
        let name_of = |tool: &Arc<dyn CallableTool>| tool.definition().name.clone();
        let earlier = tools.iter().chain(plugins.iter().flat_map(|plugin| plugin.tools()));
        let conflict = earlier
            .map(name_of)
            .find(|earlier| plugin.tools().iter().any(|tool| name_of(tool) == *earlier));
        if let Some(conflict) = conflict {
            findings.add(
                item.position,
                format!("the plugin `{name}` has a tool `{conflict}`, and there is another one: names are unique in an agent"),
            );
            continue;
        }
        plugins.push(plugin);
    }
    plugins
}

fn read_plugin(
    item: &Node,
    context: &AgentFileContext<'_>,
    findings: &mut Findings,
) -> Option<Arc<RegisteredPlugin>> {
    const NEITHER: &str =
        "a plugin is the name of a plugin of the app, or a map that begins with `http:`";
    match &item.yaml {
        Yaml::Text(name) => {
            let found = context.plugins.iter().find(|plugin| plugin.name() == name);
            if found.is_none() {
                let hint = suggest_name(name, context.plugins.iter().map(|plugin| plugin.name()));
                findings.add(item.position, format!("there is no plugin `{name}`: {hint}"));
            }
            found.map(Arc::clone)
        }
        Yaml::Map(_) => {
            fields::read_members(item, "a plugin", &["http"], findings);
            read_http_plugin(&item.find_member("http")?.value, context, findings)
        }
        Yaml::Null | Yaml::Bool(_) | Yaml::Number(_) | Yaml::List(_) => {
            findings.add(item.position, NEITHER);
            None
        }
    }
}

fn read_http_plugin(
    node: &Node,
    context: &AgentFileContext<'_>,
    findings: &mut Findings,
) -> Option<Arc<RegisteredPlugin>> {
    let before = findings.file_mistakes();
    let hook = read_http_hook(node, "an http plugin", &KEYS, context, findings);
    let tools = node.find_member("tools").map(|member| {
        reject_mcp_entries(&member.value, findings);
        read_tools(member, context, findings)
    });
    let is_optional =
        node.find_member("optional").and_then(|member| fields::read_bool(member, findings));
    if findings.file_mistakes() > before {
        return None;
    }
    let hook = hook?;
    let name = hook.name.to_owned();
    if context.plugins.iter().any(|plugin| plugin.name() == name) {
        // Both would have the same stored state.
        let reason = format!("the app has a plugin `{name}`: give this one another name");
        findings.add(node.position, reason);
        return None;
    }
    let plugin = HttpPlugin { name, endpoint: hook.endpoint };
    let is_optional = is_optional.unwrap_or_default();
    RegisteredPlugin::from_http(plugin, tools.unwrap_or_default(), is_optional)
        .map(Arc::new)
        .map_err(|mistakes| mistakes.into_iter().for_each(|it| findings.add(node.position, it)))
        .ok()
}

/// A plugin declares its tools, and the tools of an MCP server are known only at run time.
fn reject_mcp_entries(tools: &Node, findings: &mut Findings) {
    let Yaml::List(items) = &tools.yaml else { return };
    for member in items.iter().filter_map(|item| item.find_member("mcp")) {
        findings.add(
            member.position,
            "a plugin has no tools of MCP servers: write the `mcp` entry under `tools` of the agent",
        );
    }
}
