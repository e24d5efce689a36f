//! Parser of one agent file: YAML front matter, then the instructions.

use std::sync::Arc;

use serde_json::json;

use crate::file_context::{AgentFileContext, hash_prefix};
use crate::front_matter::{FileKind, parse_yaml, split_front_matter};
use crate::mistakes::Findings;
use crate::remedies::FRONT_MATTER_REMEDIES;
use crate::sections::{SECTIONS, read_sections};
use crate::yaml::{Node, Position, Yaml};
use crate::{AgentDefinition, ContextFile, Skill, fields};
use turnwheel_platform::text_encoding::skip_byte_order_mark;

/// The parts of an agent file.
struct AgentFileParts<'t> {
    /// The agent's name.
    name: &'t str,
    text: &'t str,
    front_matter: Node,
    /// Empty if the agent has the default system prompt.
    instructions: &'t str,
}

/// Returns the agent, or `None` after adding at least one finding. If the only findings are app settings
/// without a value, returns an agent with stand-ins for texts with these settings.
pub(super) fn parse_agent_file(
    name: &str,
    text: &str,
    context: &AgentFileContext<'_>,
    findings: &mut Findings,
) -> Option<AgentDefinition> {
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
    let (front_matter, instructions) = split_front_matter(unmarked, FileKind::Agent, findings)?;
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

/// Returns the agent as [`parse_agent_file`] does.
fn read_agent(
    file: &AgentFileParts<'_>,
    context: &AgentFileContext<'_>,
    findings: &mut Findings,
) -> Option<AgentDefinition> {
    let AgentFileParts { name, text, front_matter: node, instructions } = file;
    check_front_matter(node, name, findings);
    let (agent, parts) = read_sections(name, node, context, findings);
    (findings.file_mistakes() == 0).then(|| AgentDefinition {
        instructions: parts.append_to(instructions).into(),
        has_default_prompt: instructions.is_empty(),
        revision: revision(text, &agent.skills, &parts.context_files),
        context_files: parts.context_files,
        ..agent
    })
}

/// Revision of an agent with these skills and context files.
fn revision(text: &str, skills: &[Arc<Skill>], context_files: &[Arc<ContextFile>]) -> String {
    let skills: Vec<&Skill> = skills.iter().map(Arc::as_ref).collect();
    let files: Vec<&ContextFile> = context_files.iter().map(Arc::as_ref).collect();
    hash_prefix(&json!([text, skills, files]).to_string())
}

fn is_agent_name(name: &str) -> bool {
    (1..=64).contains(&name.len())
        && name.bytes().all(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-'))
}

/// Reports a wrong name, and keys that no section has.
fn check_front_matter(node: &Node, name: &str, findings: &mut Findings) {
    if matches!(node.yaml, Yaml::Null) {
        return;
    }
    if let Some(member) = node.find_member("name")
        && !matches!(&member.value.yaml, Yaml::Text(given) if given == name)
    {
        let reason = format!(
            "the file's name makes this the agent `{name}`: rename the file, or remove `name`"
        );
        findings.add(member.position, reason);
    }
    let known: Vec<&str> = SECTIONS.iter().flat_map(|section| section.keys).copied().collect();
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
}
