//! The sections of an agent file: the keys of each, and its reader.

use std::sync::Arc;

use crate::file_context::{AgentFileContext, parse_schema, reject_app_settings};
use crate::mistakes::{Findings, suggest_name};
use crate::skills::{self, AgentSkills};
use crate::system_prompt::{self, SystemPromptParts};
use crate::tool_list::read_tools;
use crate::yaml::{Member, Node, Yaml};
use crate::{
    AgentDefinition, Execution, audit, extension_settings, extensions, fields, guardrails,
    mcp_tool, memory, plugins, profile, security, settings, shell,
};
use turnwheel_extensions::permissions::shared_name;
use turnwheel_tools::mcp::tool::tool_name;

const EXAMPLES_MAX: usize = 10;
const EXAMPLE_CHARS_MAX: usize = 200;

/// Keys of the front matter with their reader.
pub(super) struct Section {
    pub(super) keys: &'static [&'static str],
    /// Rule for app settings in texts of the values.
    app_settings: AppSettings,
    /// Reads the keys, of which each may be absent.
    read: fn(&mut SectionReader<'_>),
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum AppSettings {
    /// Its reader decides about them.
    Read,
    Rejected,
}

use AppSettings::{Read, Rejected};

const fn section(
    keys: &'static [&'static str],
    app_settings: AppSettings,
    read: fn(&mut SectionReader<'_>),
) -> Section {
    Section { keys, app_settings, read }
}

/// In the order of reading: a section uses the parts of the agent that earlier ones have read.
pub(super) const SECTIONS: &[Section] = &[
    section(&["description"], Rejected, read_description),
    section(&["examples"], Rejected, read_examples),
    section(&["tools"], Read, |it| {
        if let Some(member) = it.find("tools") {
            it.agent.tools = read_tools(member, it.context, it.findings);
        }
    }),
    section(&["shellApproval"], Rejected, |it| {
        shell::apply_shell_approval(it.node, &mut it.agent.tools, it.findings);
    }),
    section(&["mcpContent"], Read, read_mcp_sources),
    section(&["plugins"], Read, |it| {
        if let Some(member) = it.find("plugins") {
            it.agent.plugins =
                plugins::read_plugins(member, &it.agent.tools, it.context, it.findings);
        }
    }),
    section(&["skills", "skillsIndex", "userSkills"], Read, read_skills),
    section(&["systemPrompt"], Rejected, read_system_prompt),
    section(&["profile"], Read, |it| {
        it.agent.profile = profile::add_profile(it.node, &mut it.agent.plugins, it.findings);
    }),
    section(&["memory"], Read, |it| {
        let AgentDefinition { name, tools, plugins, .. } = &mut it.agent;
        it.agent.memory = memory::add_memory(it.node, name, tools, plugins, it.findings);
    }),
    section(&settings::KEYS, Rejected, read_settings),
    section(&["guardrails"], Rejected, |it| {
        let guardrails = it
            .find("guardrails")
            .and_then(|member| guardrails::read_guardrails(member, &it.agent.tools, it.findings));
        it.agent.extensions.extend(guardrails.map(|guardrails| Arc::new(guardrails) as _));
    }),
    section(&["extensions"], Read, read_extensions),
    section(&["extensionSettings"], Rejected, |it| {
        let (own, plugins) = (it.context.extensions, &it.agent.plugins);
        let read = extension_settings::read_extension_settings(it.node, own, plugins, it.findings);
        it.agent.extension_settings = Arc::new(read);
    }),
    section(&["responseSchema"], Read, |it| {
        it.agent.response_schema =
            it.find("responseSchema").and_then(|member| parse_schema(member, it.findings));
    }),
    section(&["title"], Rejected, |it| {
        const VALUES: [(&str, bool); 2] = [("auto", true), ("off", false)];
        let title =
            it.find("title").and_then(|member| fields::read_choice(member, &VALUES, it.findings));
        it.agent.has_automatic_title = title.unwrap_or_default();
    }),
    section(&["execution"], Rejected, |it| {
        const VALUES: [(&str, Execution); 2] =
            [("queue", Execution::Queue), ("here", Execution::Here)];
        let member = it.find("execution");
        let given = member.and_then(|member| fields::read_choice(member, &VALUES, it.findings));
        it.agent.execution = given.unwrap_or_default();
    }),
    section(&["security"], Rejected, |it| {
        if let Some(member) = it.find("security") {
            it.agent.security = security::read_security(member, it.findings);
        }
    }),
    section(&["audit"], Rejected, |it| {
        if let Some(member) = it.find("audit") {
            it.agent.audit = audit::read_audit(member, it.findings);
        }
    }),
];

/// The agent so far, and the sources of its sections.
pub(super) struct SectionReader<'f> {
    /// The front matter.
    node: &'f Node,
    context: &'f AgentFileContext<'f>,
    findings: &'f mut Findings,
    agent: AgentDefinition,
    parts: SystemPromptParts,
}

/// Reads all sections of the front matter. The agent has its name, and no instructions yet.
pub(super) fn read_sections(
    name: &str,
    node: &Node,
    context: &AgentFileContext<'_>,
    findings: &mut Findings,
) -> (AgentDefinition, SystemPromptParts) {
    for member in node.members() {
        let section = SECTIONS.iter().find(|it| it.keys.contains(&member.key.as_str()));
        if section.is_none_or(|it| it.app_settings == Rejected) {
            reject_app_settings(&member.value, findings);
        }
    }
    let agent = AgentDefinition { name: name.to_owned(), ..AgentDefinition::default() };
    let mut reader =
        SectionReader { node, context, findings, agent, parts: SystemPromptParts::default() };
    for section in SECTIONS {
        (section.read)(&mut reader);
    }
    (reader.agent, reader.parts)
}

impl<'f> SectionReader<'f> {
    fn find(&self, key: &str) -> Option<&'f Member> {
        self.node.find_member(key)
    }
}

fn read_description(it: &mut SectionReader<'_>) {
    let Some(member) = it.find("description") else { return };
    it.agent.description = fields::read_text(member, it.findings).unwrap_or_default().to_owned();
}

/// Reads inputs that a page may propose.
fn read_examples(it: &mut SectionReader<'_>) {
    let Some(member) = it.find("examples") else { return };
    let texts = fields::read_texts(member, "a list of inputs", it.findings);
    if texts.len() > EXAMPLES_MAX {
        let reason = format!("`examples` has at most {EXAMPLES_MAX} inputs");
        it.findings.add(member.value.position, reason);
    }
    for (text, node) in &texts {
        if text.trim().is_empty() || text.chars().count() > EXAMPLE_CHARS_MAX {
            let reason = format!("an example has 1 to {EXAMPLE_CHARS_MAX} characters");
            it.findings.add(node.position, reason);
        }
    }
    it.agent.examples = texts.into_iter().map(|(text, _)| text.to_owned()).collect();
}

/// The `mcp` entries among the tools.
fn read_mcp_sources(it: &mut SectionReader<'_>) {
    let content = mcp_tool::read_content(it.node, it.findings);
    let Some(Member { value: Node { yaml: Yaml::List(items), .. }, .. }) = it.find("tools") else {
        return;
    };
    for entry in items.iter().filter_map(|item| item.find_member("mcp")) {
        let source = mcp_tool::read_source(entry, content, it.context, it.findings);
        it.agent.mcp.extend(source);
    }
}

fn read_skills(it: &mut SectionReader<'_>) {
    let agent = &mut it.agent;
    let read = skills::read_skills(it.node, &agent.tools, &agent.plugins, it.context, it.findings);
    let AgentSkills { skills, has_user_skills, form, files, plugin } = read.unwrap_or_default();
    agent.plugins.extend(plugin);
    (agent.skills, agent.has_user_skills) = (skills, has_user_skills);
    (agent.skill_index, agent.package_files) = (form, files);
}

fn read_system_prompt(it: &mut SectionReader<'_>) {
    let plugins = &mut it.agent.plugins;
    it.parts = system_prompt::read_system_prompt(it.node, plugins, it.context, it.findings);
    plugins.splice(..0, it.parts.workspace_plugin.clone());
    plugins.extend(it.parts.plugin.clone());
}

fn read_settings(it: &mut SectionReader<'_>) {
    it.agent.settings = settings::read_settings(it.node.members(), it.findings);
    let Some(member) = it.find("activeTools") else { return };
    let AgentDefinition { settings, tools, mcp, .. } = &it.agent;
    let names = || tools.iter().map(|tool| tool.definition().name.as_str());
    for name in settings.active_tools.iter().flatten() {
        let is_of_server = mcp.iter().any(|it| name.starts_with(&tool_name(&it.server.name, "")));
        if !is_of_server && !names().any(|known| known == name) {
            let hint = suggest_name(name, names());
            it.findings.add(
                member.value.position,
                format!("`activeTools` names `{name}`, which is not among `tools`: {hint}"),
            );
        }
    }
}

/// Reads the list, after the built-in extensions, and reports each plugin with the name of an
/// extension.
fn read_extensions(it: &mut SectionReader<'_>) {
    let list = it.find("extensions");
    if let Some(member) = list {
        let read = extensions::read_extensions(member, it.context, it.findings);
        it.agent.extensions.extend(read);
    }
    let Some(member) = it.find("plugins").or(list) else { return };
    for plugin in &it.agent.plugins {
        let name = plugin.name();
        if it.context.extensions.iter().chain(&it.agent.extensions).any(|it| it.name() == name) {
            it.findings.add(member.value.position, shared_name(name));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn each_key_has_one_section() {
        let keys: Vec<&str> = SECTIONS.iter().flat_map(|section| section.keys).copied().collect();
        assert_eq!(keys.iter().collect::<BTreeSet<_>>().len(), keys.len());
    }
}
