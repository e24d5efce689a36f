//! The key `memory` of agent files, and the plugin that adds a user's notes to the system prompt.

use std::sync::Arc;

use crate::fields;
use crate::mistakes::Findings;
use crate::skills::{FIND_SKILLS, LOAD_SKILL};
use crate::yaml::{Member, Node, Yaml};
use turnwheel_conversation::memory::PROJECT_NAME_CHARS_MAX;
use turnwheel_extensions::plugin::RegisteredPlugin;
use turnwheel_extensions::prepare::Prepare;
use turnwheel_extensions::{Plugin, PluginError, PluginTools};
use turnwheel_platform::ids::is_plain_text;
use turnwheel_tools::CallableTool;
use turnwheel_tools::code::ServiceRegistry;
use turnwheel_tools::memory::{FORGET, Forget, MemoryAccess, REMEMBER, Remember};
use turnwheel_tools::user_skills::CREATE_SKILL;

const PLUGIN_NAME: &str = "memory";
const KEYS: [&str; 3] = ["write", "project", "shared"];

/// The memory of an agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AgentMemory {
    /// True if it is on although all callers are one user.
    pub allows_shared_user: bool,
}

/// When an agent may change the memory.
#[derive(Clone, Copy, Debug)]
enum MemoryWrites {
    Auto,
    Ask,
    Off,
}

/// Reads the key `memory`, and adds its plugin to those of the agent.
pub(super) fn add_memory(
    front_matter: &Node,
    name: &str,
    tools: &[Arc<dyn CallableTool>],
    plugins: &mut Vec<Arc<RegisteredPlugin>>,
    findings: &mut Findings,
) -> Option<AgentMemory> {
    let member = front_matter.find_member("memory")?;
    let (memory, plugin) = read_memory(member, name, tools, plugins, findings)?;
    plugins.push(plugin);
    Some(memory)
}

/// Reads `true` or a map. `tools` and `plugins` are those of the agent, `name` is its name.
fn read_memory(
    member: &Member,
    name: &str,
    tools: &[Arc<dyn CallableTool>],
    plugins: &[Arc<RegisteredPlugin>],
    findings: &mut Findings,
) -> Option<(AgentMemory, Arc<RegisteredPlugin>)> {
    let (mut writes, mut project, mut allows_shared_user) = (None, name.to_owned(), false);
    match &member.value.yaml {
        Yaml::Bool(is_on) => is_on.then_some(())?,
        Yaml::Map(_) => {
            for field in fields::read_members(&member.value, "`memory`", &KEYS, findings) {
                match field.key.as_str() {
                    "write" => writes = fields::read_choice(field, &WRITES, findings),
                    "shared" => {
                        allows_shared_user = fields::read_bool(field, findings).unwrap_or_default();
                    }
                    "project" => project = read_project(field, findings).unwrap_or_default(),
                    _ => {}
                }
            }
        }
        Yaml::Null | Yaml::Number(_) | Yaml::Text(_) | Yaml::List(_) => {
            let reason = "`memory` is true, or a map of write, project and shared";
            findings.add(member.value.position, reason);
            return None;
        }
    }
    let default =
        if reads_untrusted_input(tools, plugins) { MemoryWrites::Ask } else { MemoryWrites::Auto };
    let plugin = MemoryPlugin { project: project.into(), writes: writes.unwrap_or(default) };
    let registered = RegisteredPlugin::new(plugin, ServiceRegistry::default());
    let conflict = find_conflict(tools, plugins);
    match (registered, conflict) {
        (Ok(plugin), None) => Some((AgentMemory { allows_shared_user }, Arc::new(plugin))),
        (Ok(_), Some(reason)) => {
            findings.add(member.value.position, reason);
            None
        }
        (Err(mistakes), _) => {
            for mistake in mistakes {
                findings.add(member.value.position, mistake);
            }
            None
        }
    }
}

const WRITES: [(&str, MemoryWrites); 3] =
    [("auto", MemoryWrites::Auto), ("ask", MemoryWrites::Ask), ("off", MemoryWrites::Off)];

fn read_project(field: &Member, findings: &mut Findings) -> Option<String> {
    let name = fields::read_text(field, findings)?;
    if is_project_name(name) {
        return Some(name.to_owned());
    }
    let reason = format!("`project` is 1 to {PROJECT_NAME_CHARS_MAX} of A-Z a-z 0-9 _ . -");
    findings.add(field.value.position, reason);
    None
}

pub fn is_project_name(name: &str) -> bool {
    is_plain_text(name) && name.len() <= PROJECT_NAME_CHARS_MAX
}

/// True if the agent has a tool whose results someone else may have written. Only `schedule` and the
/// tools of skills return nothing but the app's and the user's own texts.
fn reads_untrusted_input(
    tools: &[Arc<dyn CallableTool>],
    plugins: &[Arc<RegisteredPlugin>],
) -> bool {
    let of_plugins = plugins.iter().flat_map(|plugin| plugin.tools());
    let mut all = tools.iter().chain(of_plugins);
    let harmless = ["schedule", LOAD_SKILL, FIND_SKILLS, CREATE_SKILL];
    all.any(|tool| !harmless.contains(&tool.definition().name.as_str()))
}

/// Why the plugin of the memory cannot be used beside the tools and other plugins of the agent.
fn find_conflict(
    tools: &[Arc<dyn CallableTool>],
    plugins: &[Arc<RegisteredPlugin>],
) -> Option<String> {
    if plugins.iter().any(|plugin| plugin.name() == PLUGIN_NAME) {
        return Some(format!("`memory` adds a plugin `{PLUGIN_NAME}`: rename the other one"));
    }
    let of_plugins = plugins.iter().flat_map(|plugin| plugin.tools());
    let mut names = tools.iter().chain(of_plugins).map(|tool| tool.definition().name.as_str());
    let taken = names.find(|name| [REMEMBER, FORGET].contains(name))?;
    Some(format!("`memory` adds a tool `{taken}`, and the agent has another one: rename that one"))
}

/// The plugin of a memory. `write` is `auto`, `ask` or `off`.
#[cfg(any(test, feature = "testing"))]
#[expect(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]
pub fn memory_plugin(write: &str, project: &str) -> Arc<RegisteredPlugin> {
    let writes = WRITES.iter().find(|(name, _)| *name == write).unwrap().1;
    let plugin = MemoryPlugin { project: project.into(), writes };
    Arc::new(RegisteredPlugin::new(plugin, ServiceRegistry::default()).unwrap())
}

/// Adds the notes of the user to the system prompt, and offers `remember` and `forget`.
#[derive(Debug)]
struct MemoryPlugin {
    project: Arc<str>,
    writes: MemoryWrites,
}

impl Plugin for MemoryPlugin {
    type State = ();

    fn name(&self) -> &'static str {
        PLUGIN_NAME
    }

    fn tools(&self, tools: &mut PluginTools) {
        let needs_approval = match self.writes {
            MemoryWrites::Auto => false,
            MemoryWrites::Ask => true,
            MemoryWrites::Off => return,
        };
        let access = MemoryAccess { project: Arc::clone(&self.project), needs_approval };
        tools.tool(Remember(access.clone())).tool(Forget(access));
    }

    async fn prepare(&self, cx: &mut Prepare<'_, ()>) -> Result<(), PluginError> {
        let Some(documents) = cx.user_documents() else { return Ok(()) };
        if let Some(text) = documents.render_memory(&self.project) {
            cx.context(text);
        }
        match self.writes {
            MemoryWrites::Auto | MemoryWrites::Ask => {
                cx.activate(REMEMBER)?;
                cx.activate(FORGET)
            }
            MemoryWrites::Off => Ok(()),
        }
    }
}
