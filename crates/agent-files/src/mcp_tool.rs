//! Reader of `mcp` entries among the tools of an agent file.

use globset::{Glob, GlobSet, GlobSetBuilder};

use crate::fields::DurationMax;
use crate::file_context::{AgentFileContext, hash_prefix, reject_app_settings};
use crate::http_tool::read_effect;
use crate::mistakes::Findings;
use crate::yaml::{Member, Node, Yaml};
use crate::{approval, fields};
use turnwheel_conversation::phase::OnUnknown;
use turnwheel_tools::mcp::tool::{McpContent, McpRules, McpToolSource};
use turnwheel_tools::{TIMEOUT_DEFAULT, TIMEOUT_MAX};

const KEYS: [&str; 6] = ["server", "tools", "effect", "onUnknown", "approval", "timeout"];

const TO_FILE: &str = "write the server into mcp.json, and its name here";
const REMEDIES: fields::Remedies<'static> = &[
    ("url", TO_FILE),
    ("headers", TO_FILE),
    ("command", TO_FILE),
    ("args", TO_FILE),
    ("env", TO_FILE),
    ("auth", TO_FILE),
];

/// Reads `mcpContent` of the front matter.
pub(super) fn read_content(node: &Node, findings: &mut Findings) -> McpContent {
    const VALUES: [(&str, McpContent); 2] =
        [("native", McpContent::Native), ("json", McpContent::Json)];
    let member = node.find_member("mcpContent");
    member.and_then(|it| fields::read_choice(it, &VALUES, findings)).unwrap_or_default()
}

/// Reads the `mcp` entry of a tool: the name of a server, or a map.
pub(super) fn read_source(
    entry: &Member,
    content: McpContent,
    context: &AgentFileContext<'_>,
    findings: &mut Findings,
) -> Option<McpToolSource> {
    let before = findings.file_mistakes();
    reject_app_settings(&entry.value, findings);
    let node = &entry.value;
    let (name, at) = if let Yaml::Text(name) = &node.yaml {
        (name.as_str(), node.position)
    } else {
        fields::read_members_with_remedies(node, "an mcp entry", &KEYS, REMEDIES, findings);
        let Some(member) = node.find_member("server") else {
            findings.add(node.position, "an mcp entry needs `server`, a name in mcp.json");
            return None;
        };
        (fields::read_text(member, findings)?, member.value.position)
    };
    let server = context.mcp.find(name, at, findings);
    let selection = node.find_member("tools").and_then(|it| read_selection(it, findings));
    let effect = node.find_member("effect").and_then(|it| read_effect(it, findings));
    let choices = [("ask", OnUnknown::Ask), ("tell", OnUnknown::Tell)];
    let on_unknown =
        node.find_member("onUnknown").and_then(|it| fields::read_choice(it, &choices, findings));
    let timeout = node.find_member("timeout").and_then(|it| {
        fields::read_duration(it, DurationMax { time: TIMEOUT_MAX, text: "4m" }, findings)
    });
    let rule = node.find_member("approval");
    let rules = McpRules {
        selection,
        effect,
        on_unknown: on_unknown.unwrap_or_default(),
        // The parameters of the tools are not known here, so a rule can name none.
        approval: rule.map(|it| approval::read_approval(it, name, &[], findings)),
        has_reason: rule.is_some_and(|it| it.value.find_member("reason").is_some()),
        timeout: timeout.unwrap_or(TIMEOUT_DEFAULT),
        content,
        revision: hash_prefix(&format!("{}{}", revision_part(content), node.to_json())),
    };
    (findings.file_mistakes() == before).then_some(McpToolSource::new(server?, rules))
}

/// Open approvals are bound to revisions: never change these texts.
fn revision_part(content: McpContent) -> &'static str {
    match content {
        McpContent::Native => "Native",
        McpContent::Json => "Json",
    }
}

fn read_selection(member: &Member, findings: &mut Findings) -> Option<GlobSet> {
    let mut globs = GlobSetBuilder::new();
    let expected = "a list of tool names, in which `*` stands for any characters";
    for (text, node) in fields::read_texts(member, expected, findings) {
        match Glob::new(text) {
            Ok(glob) => {
                globs.add(glob);
            }
            Err(error) => findings.add(node.position, format!("`{text}` is no pattern: {error}")),
        }
    }
    globs.build().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn revisions_keep_the_texts_that_approvals_are_bound_to() {
        let parts = [McpContent::Native, McpContent::Json].map(revision_part);
        assert_eq!(parts, ["Native", "Json"]);
    }
}
