//! The key `plugins` of agent files.

use std::sync::Arc;

use crate::agents::file_context::AgentFileContext;
use crate::agents::mistakes::{Findings, suggest_name};
use crate::agents::yaml::{Member, Yaml};
use crate::extensions::plugin::RegisteredPlugin;
use crate::tools::CallableTool;

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
            findings.add(member.value.position, "`plugins` is a list: begin each name with `- `");
            return Vec::new();
        }
    };
    let mut plugins: Vec<Arc<RegisteredPlugin>> = Vec::new();
    for item in items {
        let Yaml::Text(name) = &item.yaml else {
            findings.add(item.position, "a plugin is the name of a plugin of the app");
            continue;
        };
        let Some(plugin) = context.plugins.iter().find(|plugin| plugin.name() == name) else {
            let hint = suggest_name(name, context.plugins.iter().map(|plugin| plugin.name()));
            findings.add(item.position, format!("there is no plugin `{name}`: {hint}"));
            continue;
        };
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
        plugins.push(Arc::clone(plugin));
    }
    plugins
}
