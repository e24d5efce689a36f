//! Fuzz test of agent files: any text is an agent or mistakes, and never reveals a setting.

use std::sync::LazyLock;

use super::file::parse_agent_file;
use super::mistakes::Findings;
use super::yaml::{self, Node, Yaml};
use super::{McpServers, ToolSet};
use crate::agents::file_context::AgentFileContext;
use crate::fuzz::{SECRET, check};
use crate::tools::http::address_rules::AddressRules;
use crate::tools::http::client::HttpClient;

static CLIENT: LazyLock<HttpClient> =
    LazyLock::new(|| HttpClient::new(AddressRules::default()).unwrap());

fn app_settings(name: &str) -> Option<String> {
    Some(match name {
        "KEY" => format!("{SECRET}-value"),
        "URL" => format!("https://{SECRET}.example/{SECRET}"),
        "INSIDE" => "http://10.9.8.7".to_owned(),
        "HOOK" => format!("whsec_{}", SECRET.repeat(8)),
        "LINES" => format!("{SECRET}\n{SECRET}"),
        _ => return None,
    })
}

/// Bytes of all texts plus the number of values.
fn expanded_size(node: &Node) -> usize {
    1 + match &node.yaml {
        Yaml::Null | Yaml::Bool(_) | Yaml::Number(_) => 0,
        Yaml::Text(text) => text.len(),
        Yaml::List(items) => items.iter().map(expanded_size).sum(),
        Yaml::Map(members) => {
            members.iter().map(|member| member.key.len() + expanded_size(&member.value)).sum()
        }
    }
}

fn agent_file(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    if text.contains('*')
        && let Ok(node) = yaml::parse(text)
    {
        // Escapes such as `\\L` are shorter than their values.
        assert!(expanded_size(&node) <= 2 * (text.len() + yaml::REPEATED_BYTES_MAX));
    }
    let tools = ToolSet::new();
    let sources = AgentFileContext {
        plugins: &[],
        extensions: &[],
        skills: &[],
        context_files: &[],
        mcp: McpServers::none(),
        tools: &tools,
        app_settings: &app_settings,
        client: &CLIENT,
    };
    let mut findings = Findings::new("agents/a.agent.md");
    let agent = parse_agent_file("a", text, &sources, &mut findings);
    assert_eq!(agent.is_none(), !findings.is_empty(), "either an agent or findings");
    // A carriage return alone ends a line in YAML, as in many editors.
    let line_ends = text.replace("\r\n", "\n").matches(['\r', '\n']).count() as u64;
    let lines = line_ends + 1;
    let input_has_secret = text.contains(SECRET);
    for mistake in findings.into_sorted() {
        assert!((1..=lines).contains(&mistake.line), "line {} of {lines}", mistake.line);
        assert!(input_has_secret || !mistake.reason.contains(SECRET), "{mistake}");
    }
    if let Some(agent) = agent {
        assert!(input_has_secret || !format!("{agent:?}").contains(SECRET), "{agent:?}");
    }
}

#[test]
fn fuzz_agent_file() {
    check("agent_file", agent_file);
}
