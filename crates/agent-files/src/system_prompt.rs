//! The key `systemPrompt` of agent files: a system prompt of more parts than the instructions.

use std::fmt::Write as _;
use std::sync::Arc;

use crate::AgentDefinition;
use crate::context_file::ContextFile;
use crate::fields;
use crate::file_context::AgentFileContext;
use crate::mistakes::{Findings, suggest_name};
use crate::yaml::{Member, Node, Yaml};
use turnwheel_conversation::schedule::zone::Zone;
use turnwheel_extensions::plugin::RegisteredPlugin;
use turnwheel_extensions::prepare::Prepare;
use turnwheel_extensions::{Plugin, PluginError};
use turnwheel_tools::CallableTool;
use turnwheel_tools::code::ServiceRegistry;

#[cfg(test)]
mod tests;

/// Bytes of the appended text and the context files of an agent.
const BYTES_MAX: usize = 256 * 1024;
const PLUGIN_NAME: &str = "system-prompt";
/// Name of the plugin with the context file of the workspace.
const WORKSPACE_PLUGIN: &str = "workspace-context";
/// The value of `contextFiles` for the context file of the workspace.
const WORKSPACE: &str = "workspace";
const HEADING: &str = "# Project Context\n\nProject-specific instructions and guidelines:";
const KEYS: [&str; 4] = ["append", "contextFiles", "date", "timeZone"];
const VALUES: &str = "`systemPrompt` is `assembled`, or a map of its parts";

/// The parts of a system prompt beside the instructions.
#[derive(Clone, Debug, Default)]
pub struct SystemPromptParts {
    pub append: String,
    pub context_files: Vec<Arc<ContextFile>>,
    /// Adds the context file of the workspace to each model call.
    pub(super) workspace_plugin: Option<Arc<RegisteredPlugin>>,
    /// Adds the date to each model call.
    pub plugin: Option<Arc<RegisteredPlugin>>,
}

/// `plugins` are the other plugins of the agent.
pub(super) fn read_system_prompt(
    front_matter: &Node,
    plugins: &[Arc<RegisteredPlugin>],
    context: &AgentFileContext<'_>,
    findings: &mut Findings,
) -> SystemPromptParts {
    let Some(member) = front_matter.find_member("systemPrompt") else {
        return SystemPromptParts::default();
    };
    match &member.value.yaml {
        Yaml::Text(text) if text == "assembled" => {}
        Yaml::Map(_) => {
            fields::read_members(&member.value, "`systemPrompt`", &KEYS, findings);
        }
        Yaml::Text(_) | Yaml::Null | Yaml::Bool(_) | Yaml::Number(_) | Yaml::List(_) => {
            findings.add(member.value.position, VALUES);
        }
    }
    let part = |key: &str| member.value.find_member(key);
    let zone = part("timeZone").and_then(|it| read_time_zone(it, findings));
    let has_date = part("date").and_then(|it| fields::read_bool(it, findings)).unwrap_or(true);
    if let Some(zone) = part("timeZone").filter(|_| !has_date) {
        findings.add(zone.position, "`timeZone` is for the date: remove it, or `date: false`");
    }
    let is_taken = plugins.iter().any(|plugin| plugin.name() == PLUGIN_NAME);
    if has_date && is_taken {
        let reason = format!(
            "the date is a plugin `{PLUGIN_NAME}`: rename the other one, or set `date: false`"
        );
        findings.add(member.position, reason);
    }
    let append = part("append").and_then(|it| fields::read_text(it, findings)).unwrap_or_default();
    let files = part("contextFiles").map(|it| read_context_files(it, context, findings));
    let ContextFileNames { files: context_files, has_workspace } = files.unwrap_or_default();
    if has_workspace && plugins.iter().any(|plugin| plugin.name() == WORKSPACE_PLUGIN) {
        let reason =
            format!("`contextFiles` adds a plugin `{WORKSPACE_PLUGIN}`: rename the other one");
        findings.add(member.position, reason);
    }
    let has_files = !context_files.is_empty();
    let parts = SystemPromptParts {
        append: append.trim().to_owned(),
        context_files,
        workspace_plugin: has_workspace.then(|| workspace_plugin(has_files)),
        plugin: has_date.then(|| date_plugin(zone.unwrap_or_else(Zone::utc))),
    };
    if let Some(reason) = parts.find_mistake() {
        findings.add(member.position, reason);
    }
    parts
}

fn read_time_zone(member: &Member, findings: &mut Findings) -> Option<Zone> {
    let name = fields::read_text(member, findings)?;
    Zone::from_name(name).map_err(|reason| findings.add(member.value.position, reason)).ok()
}

/// The value of `contextFiles`.
#[derive(Default)]
struct ContextFileNames {
    files: Vec<Arc<ContextFile>>,
    has_workspace: bool,
}

/// Reads `all`, `workspace`, or a list of file names and `workspace`.
fn read_context_files(
    member: &Member,
    context: &AgentFileContext<'_>,
    findings: &mut Findings,
) -> ContextFileNames {
    match &member.value.yaml {
        Yaml::Text(text) if text == "all" => {
            let files = context.context_files.to_vec();
            return ContextFileNames { files, has_workspace: false };
        }
        Yaml::Text(text) if text == WORKSPACE => {
            return ContextFileNames { files: Vec::new(), has_workspace: true };
        }
        Yaml::Null
        | Yaml::Bool(_)
        | Yaml::Number(_)
        | Yaml::Text(_)
        | Yaml::List(_)
        | Yaml::Map(_) => {}
    }
    let expected = "`all`, `workspace`, or a list of files of the folder `context`";
    let mut files: Vec<Arc<ContextFile>> = Vec::new();
    let mut has_workspace = false;
    for (name, item) in fields::read_texts(member, expected, findings) {
        if name == WORKSPACE {
            has_workspace = true;
            continue;
        }
        let Some(file) = context.context_files.iter().find(|file| file.name() == name) else {
            let hint = suggest_name(name, context.context_files.iter().map(|file| file.name()));
            let reason = format!("the folder `context` has no file `{name}`: {hint}");
            findings.add(item.position, reason);
            continue;
        };
        if files.contains(file) {
            findings.add(item.position, format!("the file `{name}` is listed twice"));
        } else {
            files.push(Arc::clone(file));
        }
    }
    ContextFileNames { files, has_workspace }
}

impl SystemPromptParts {
    /// Why the appended text and the context files cannot be part of a system prompt.
    pub fn find_mistake(&self) -> Option<String> {
        let texts = self.context_files.iter().map(|file| file.text.len());
        let bytes = self.append.len() + texts.sum::<usize>();
        (bytes > BYTES_MAX).then(|| {
            format!(
                "`systemPrompt` has {bytes} bytes: at most {BYTES_MAX} are allowed; name fewer context files"
            )
        })
    }

    /// The instructions and the parts that follow them in every model call.
    pub fn append_to(&self, instructions: &str) -> String {
        let mut parts = vec![instructions.to_owned(), self.append.clone()];
        if !self.context_files.is_empty() {
            parts.push(HEADING.to_owned());
        }
        let files = self.context_files.iter();
        parts.extend(files.map(|file| format!("## {}\n\n{}", file.location, file.text)));
        parts.retain(|part| !part.is_empty());
        parts.join("\n\n")
    }
}

impl AgentDefinition {
    /// True if the file `AGENTS.md` of a workspace is part of the system prompt.
    pub fn reads_workspace_context(&self) -> bool {
        self.plugins.iter().any(|plugin| plugin.name() == WORKSPACE_PLUGIN)
    }

    /// The system prompt, without the texts of plugins, for these active tools.
    pub fn system_prompt(&self, active_tools: &[Arc<dyn CallableTool>]) -> Arc<str> {
        if self.has_default_prompt {
            default_prompt(active_tools, &self.instructions).into()
        } else {
            Arc::clone(&self.instructions)
        }
    }
}

/// The system prompt of an agent without instructions of its own: a default text, the active tools
/// and the guidelines for them, then `appended`.
fn default_prompt(tools: &[Arc<dyn CallableTool>], appended: &str) -> String {
    let mut text = "You are a helpful assistant. You answer questions and do tasks with your tools.\n\nAvailable tools:\n".to_owned();
    for tool in tools {
        let definition = tool.definition();
        let summary = first_sentence(&definition.description);
        let _infallible = writeln!(text, "- {}: {summary}", definition.name);
    }
    if tools.is_empty() {
        text.push_str("(none)\n");
    }
    text.push_str("\nIn addition to the tools above, you may have access to other tools.");
    let has = |name: &str| tools.iter().any(|tool| tool.definition().name == name);
    let has_search = has("grep") || has("find") || has("ls");
    let guidelines = [
        (has("bash") && !has_search, "Use bash for file operations"),
        (has("bash") && has_search, "Prefer grep/find/ls tools over bash"),
        (has("read") && has("edit"), "Use read to examine files before editing"),
    ];
    let guidelines: Vec<&str> =
        guidelines.into_iter().filter_map(|(is_used, line)| is_used.then_some(line)).collect();
    if !guidelines.is_empty() {
        text.push_str("\n\nGuidelines:");
    }
    for guideline in guidelines {
        let _infallible = write!(text, "\n- {guideline}");
    }
    if !appended.is_empty() {
        text.push_str("\n\n");
        text.push_str(appended);
    }
    text
}

fn first_sentence(description: &str) -> String {
    let words = description.split_whitespace().collect::<Vec<_>>().join(" ");
    let end = words.find(". ").unwrap_or(words.len());
    words.get(..end).unwrap_or_default().trim_end_matches('.').to_owned()
}

/// Adds the date and the working directory, after the texts of other plugins. The date is that of
/// the start of the prompt, so that the system prompt is the same in all its model calls.
#[derive(Debug)]
struct DatePlugin {
    zone: Zone,
}

pub fn date_plugin(zone: Zone) -> Arc<RegisteredPlugin> {
    let plugin = RegisteredPlugin::new(DatePlugin { zone }, ServiceRegistry::default());
    Arc::new(plugin.expect("its name is valid, and it has no tools"))
}

impl Plugin for DatePlugin {
    type State = ();

    fn name(&self) -> &'static str {
        PLUGIN_NAME
    }

    async fn prepare(&self, cx: &mut Prepare<'_, ()>) -> Result<(), PluginError> {
        let date = self.zone.to_local(cx.prompt().started_at).date();
        // The working directory is the root of the conversation's workspace.
        cx.context(format!("Current date: {date}\nCurrent working directory: /"));
        Ok(())
    }
}

/// Adds the context file of the workspace, after the context files of the package.
#[derive(Debug)]
struct WorkspacePlugin {
    /// True if the heading of the context files precedes it.
    has_heading: bool,
}

pub fn workspace_plugin(has_heading: bool) -> Arc<RegisteredPlugin> {
    let plugin = RegisteredPlugin::new(WorkspacePlugin { has_heading }, ServiceRegistry::default());
    Arc::new(plugin.expect("its name is valid, and it has no tools"))
}

impl Plugin for WorkspacePlugin {
    type State = ();

    fn name(&self) -> &'static str {
        WORKSPACE_PLUGIN
    }

    async fn prepare(&self, cx: &mut Prepare<'_, ()>) -> Result<(), PluginError> {
        let Some(text) = cx.workspace_context() else { return Ok(()) };
        let heading = if self.has_heading { String::new() } else { format!("{HEADING}\n\n") };
        cx.context(heading + text);
        Ok(())
    }
}
