//! Parser of one agent file: YAML front matter, then the instructions.

use std::sync::Arc;

use serde_json::json;

use crate::file_context::{AgentFileContext, hash_prefix, parse_schema, reject_app_settings};
use crate::front_matter::{parse_yaml, split_front_matter};
use crate::mistakes::{Findings, suggest_name};
use crate::remedies::{FRONT_MATTER_REMEDIES, TOOL_REMEDIES};
use crate::skills::{self, AgentSkills};
use crate::yaml::{Member, Node, Position, Yaml};
use crate::{
    Agent, ContextFile, Skill, audit, extension_settings, extensions, fields, guardrails,
    http_tool, mcp_tool, memory, plugins, profile, security, settings, shell, system_prompt,
};
use turnwheel_extensions::Extension;
use turnwheel_extensions::permissions::shared_name;
use turnwheel_extensions::plugin::RegisteredPlugin;
use turnwheel_platform::text_encoding::skip_byte_order_mark;
use turnwheel_tools::CallableTool;
use turnwheel_tools::mcp::tool::{McpToolSource, tool_name};

/// Adds a finding for each plugin that has the name of an extension.
fn check_shared_names(
    extensions: &[Arc<dyn Extension>],
    plugins: &[Arc<RegisteredPlugin>],
    node: &Node,
    context: &AgentFileContext<'_>,
    findings: &mut Findings,
) {
    let member = node.find_member("plugins").or_else(|| node.find_member("extensions"));
    let Some(position) = member.map(|member| member.value.position) else { return };
    for plugin in plugins {
        let name = plugin.name();
        if context.extensions.iter().chain(extensions).any(|it| it.name() == name) {
            findings.add(position, shared_name(name));
        }
    }
}

const EXAMPLES_MAX: usize = 10;
const EXAMPLE_CHARS_MAX: usize = 200;

/// The parts of an agent file.
struct AgentFileParts<'t> {
    /// The agent's name.
    name: &'t str,
    text: &'t str,
    front_matter: Node,
    /// Empty if the agent has the default system prompt.
    instructions: &'t str,
}

/// Returns the agent, or `None` after adding at least one finding.
pub(super) fn parse_agent_file(
    name: &str,
    text: &str,
    context: &AgentFileContext<'_>,
    findings: &mut Findings,
) -> Option<Agent> {
    let file = parse_parts(name, text, findings)?;
    read_agent(&file, context, findings)
}

fn parse_parts<'t>(
    name: &'t str,
    text: &'t str,
    findings: &mut Findings,
) -> Option<AgentFileParts<'t>> {
    if !is_agent_name(name) {
        findings.add(
            Position::START,
            "an agent's name, the file name before `.agent.md`, is 1 to 64 of a-z, 0-9 and -",
        );
    }
    let unmarked = skip_byte_order_mark(text);
    if unmarked.trim().is_empty() {
        findings.add(Position::START, "the file is empty: write instructions for the agent");
        return None;
    }
    let (front_matter, instructions) = split_front_matter(unmarked, findings)?;
    let instructions = instructions.trim();
    let node = parse_yaml(front_matter, findings);
    let has_parts = node.as_ref().is_some_and(|node| node.find_member("systemPrompt").is_some());
    if instructions.is_empty() && !has_parts {
        let line = u64::try_from(front_matter.lines().count()).unwrap_or_default() + 1;
        findings.add(
            Position { line, column: 1 },
            "there are no instructions: write them below the front matter, or set `systemPrompt: assembled`",
        );
    }
    Some(AgentFileParts { name, text, front_matter: node?, instructions })
}

/// Returns `None` after adding at least one finding.
fn read_agent(
    file: &AgentFileParts<'_>,
    context: &AgentFileContext<'_>,
    findings: &mut Findings,
) -> Option<Agent> {
    let AgentFileParts { name, text, front_matter: node, instructions } = file;
    let members = read_front_matter(node, name, findings);
    let (mut description, mut tools, mut response_schema) = (String::new(), Vec::new(), None);
    for member in members {
        match member.key.as_str() {
            "description" => {
                fields::read_text(member, findings)
                    .unwrap_or_default()
                    .clone_into(&mut description);
                reject_app_settings(&member.value, findings);
            }
            "tools" => tools = read_tools(member, context, findings),
            "responseSchema" => {
                response_schema = parse_schema(member, findings);
            }
            "extensions" | "plugins" | "skills" | "skillsIndex" | "userSkills" | "memory"
            | "profile" | "mcpContent" => {}
            _ => reject_app_settings(&member.value, findings),
        }
    }
    shell::apply_shell_approval(node, &mut tools, findings);
    let mcp = read_mcp_sources(node, context, findings);
    let mut plugins = read_all_plugins(node, &tools, context, findings);
    let skills = skills::read_skills(node, &tools, &plugins, context, findings);
    let AgentSkills { skills, has_user_skills, form, files, plugin } = skills.unwrap_or_default();
    plugins.extend(plugin);
    let parts = system_prompt::read_system_prompt(node, &plugins, context, findings);
    plugins.splice(..0, parts.workspace_plugin.clone());
    plugins.extend(parts.plugin.clone());
    let profile = profile::add_profile(node, &mut plugins, findings);
    let memory = memory::add_memory(node, name, &tools, &mut plugins, findings);
    let settings = settings::read_settings(members, findings);
    if let (Some(active), Some(member)) = (&settings.active_tools, node.find_member("activeTools"))
    {
        check_active_tools(active, &tools, &mcp, member.value.position, findings);
    }
    let extensions = read_all_extensions(node, &tools, context, findings);
    check_shared_names(&extensions, &plugins, node, context, findings);
    let extension_settings =
        extension_settings::read_extension_settings(node, context.extensions, &plugins, findings);
    let has_automatic_title = read_title(node, findings);
    let security = node.find_member("security").map(|it| security::read_security(it, findings));
    let examples = read_examples(node, findings);
    let audit = node.find_member("audit").map(|it| audit::read_audit(it, findings));
    findings.is_empty().then(|| Agent {
        name: (*name).to_owned(),
        description,
        examples,
        settings,
        instructions: parts.append_to(instructions).into(),
        has_default_prompt: instructions.is_empty(),
        tools,
        mcp,
        extensions,
        audit: audit.unwrap_or_default(),
        security: security.unwrap_or_default(),
        has_automatic_title,
        extension_settings: Arc::new(extension_settings),
        plugins,
        response_schema,
        session_id: None,
        memory,
        profile,
        revision: revision(text, &skills, &parts.context_files),
        skills,
        skill_index: form,
        package_files: files,
        has_user_skills,
        context_files: parts.context_files,
    })
}

/// Revision of an agent with these skills and context files.
fn revision(text: &str, skills: &[Arc<Skill>], context_files: &[Arc<ContextFile>]) -> String {
    let skills: Vec<&Skill> = skills.iter().map(Arc::as_ref).collect();
    let files: Vec<&ContextFile> = context_files.iter().map(Arc::as_ref).collect();
    hash_prefix(&json!([text, skills, files]).to_string())
}

/// Reads inputs that a page may propose.
fn read_examples(node: &Node, findings: &mut Findings) -> Vec<String> {
    let Some(member) = node.find_member("examples") else { return Vec::new() };
    let texts = fields::read_texts(member, "a list of inputs", findings);
    if texts.len() > EXAMPLES_MAX {
        let reason = format!("`examples` has at most {EXAMPLES_MAX} inputs");
        findings.add(member.value.position, reason);
    }
    for (text, node) in &texts {
        if text.trim().is_empty() || text.chars().count() > EXAMPLE_CHARS_MAX {
            let reason = format!("an example has 1 to {EXAMPLE_CHARS_MAX} characters");
            findings.add(node.position, reason);
        }
    }
    texts.into_iter().map(|(text, _)| text.to_owned()).collect()
}

fn read_title(node: &Node, findings: &mut Findings) -> bool {
    const VALUES: [(&str, bool); 2] = [("auto", true), ("off", false)];
    let member = node.find_member("title");
    member.and_then(|it| fields::read_choice(it, &VALUES, findings)).unwrap_or_default()
}

fn read_all_plugins(
    node: &Node,
    tools: &[Arc<dyn CallableTool>],
    context: &AgentFileContext<'_>,
    findings: &mut Findings,
) -> Vec<Arc<RegisteredPlugin>> {
    let member = node.find_member("plugins");
    member.map(|it| plugins::read_plugins(it, tools, context, findings)).unwrap_or_default()
}

/// The built-in extensions, then those of the list.
fn read_all_extensions(
    node: &Node,
    tools: &[Arc<dyn CallableTool>],
    context: &AgentFileContext<'_>,
    findings: &mut Findings,
) -> Vec<Arc<dyn Extension>> {
    let guards = node.find_member("guardrails");
    let guards = guards.and_then(|member| guardrails::read_guardrails(member, tools, findings));
    let mut all: Vec<Arc<dyn Extension>> = Vec::new();
    all.extend(guards.map(|guards| Arc::new(guards) as _));
    if let Some(member) = node.find_member("extensions") {
        all.extend(extensions::read_extensions(member, context, findings));
    }
    all
}

fn is_agent_name(name: &str) -> bool {
    (1..=64).contains(&name.len())
        && name.bytes().all(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-'))
}

fn read_front_matter<'n>(node: &'n Node, name: &str, findings: &mut Findings) -> &'n [Member] {
    const OWN: [&str; 19] = [
        "description",
        "examples",
        "tools",
        "extensions",
        "extensionSettings",
        "plugins",
        "skills",
        "skillsIndex",
        "userSkills",
        "memory",
        "profile",
        "responseSchema",
        "guardrails",
        "audit",
        "security",
        "shellApproval",
        "title",
        "systemPrompt",
        "mcpContent",
    ];
    if matches!(node.yaml, Yaml::Null) {
        return &[];
    }
    if let Some(member) = node.find_member("name")
        && !matches!(&member.value.yaml, Yaml::Text(given) if given == name)
    {
        let reason = format!(
            "the file's name makes this the agent `{name}`: rename the file, or remove `name`"
        );
        findings.add(member.position, reason);
    }
    let known: Vec<&str> = OWN.into_iter().chain(settings::KEYS).collect();
    let mut unnamed = node.clone();
    if let Yaml::Map(members) = &mut unnamed.yaml {
        members.retain(|member| member.key != "name");
    }
    fields::read_members_with_remedies(
        &unnamed,
        "the front matter",
        &known,
        FRONT_MATTER_REMEDIES,
        findings,
    );
    match &node.yaml {
        Yaml::Map(members) => members,
        Yaml::Null | Yaml::Bool(_) | Yaml::Number(_) | Yaml::Text(_) | Yaml::List(_) => &[],
    }
}

/// Reports active tools that the agent does not have.
fn check_active_tools(
    active_tools: &[String],
    tools: &[Arc<dyn CallableTool>],
    mcp: &[McpToolSource],
    position: Position,
    findings: &mut Findings,
) {
    let names = || tools.iter().map(|tool| tool.definition().name.as_str());
    for active_tool in active_tools {
        let is_of_server =
            mcp.iter().any(|it| active_tool.starts_with(&tool_name(&it.server.name, "")));
        if !is_of_server && !names().any(|name| name == active_tool) {
            let hint = suggest_name(active_tool, names());
            findings.add(
                position,
                format!("`activeTools` names `{active_tool}`, which is not among `tools`: {hint}"),
            );
        }
    }
}

/// The `mcp` entries among the tools.
fn read_mcp_sources(
    node: &Node,
    context: &AgentFileContext<'_>,
    findings: &mut Findings,
) -> Vec<McpToolSource> {
    let content = mcp_tool::read_content(node, findings);
    let Some(Member { value: Node { yaml: Yaml::List(items), .. }, .. }) =
        node.find_member("tools")
    else {
        return Vec::new();
    };
    let entries = items.iter().filter_map(|item| item.find_member("mcp"));
    entries.filter_map(|it| mcp_tool::read_source(it, content, context, findings)).collect()
}

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
