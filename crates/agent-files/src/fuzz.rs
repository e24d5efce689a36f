//! Fuzz tests of agent files and `mcp.json`: any text is an agent or servers, or mistakes, and never
//! reveals a setting.

use std::sync::LazyLock;

use super::file::parse_agent_file;
use super::mistakes::{Findings, Mistake};
use super::yaml::{self, Node, Yaml};
use super::{McpFile, McpServers, ToolSet};
use crate::file_context::AgentFileContext;
use turnwheel_test_support::fuzz::{SECRET, check};
use turnwheel_tools::http::address_rules::AddressRules;
use turnwheel_tools::http::client::HttpClient;

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
    let sources = context(&tools);
    let mut findings = Findings::new("agents/a.agent.md");
    let agent = parse_agent_file("a", text, &sources, &mut findings);
    assert_eq!(agent.is_none(), findings.file_mistakes() > 0, "either an agent or mistakes");
    check_mistakes(text, &findings.into_sorted());
    if let Some(agent) = agent {
        assert!(text.contains(SECRET) || !format!("{agent:?}").contains(SECRET), "{agent:?}");
    }
}

fn context(tools: &ToolSet) -> AgentFileContext<'_> {
    AgentFileContext {
        plugins: &[],
        extensions: &[],
        skills: &[],
        context_files: &[],
        mcp: McpServers::none(),
        tools,
        app_settings: &app_settings,
        client: &CLIENT,
    }
}

/// Each mistake has a line of the text, and reveals no setting.
fn check_mistakes(text: &str, mistakes: &[Mistake]) {
    // A carriage return alone ends a line in YAML, as in many editors.
    let line_ends = text.replace("\r\n", "\n").matches(['\r', '\n']).count() as u64;
    let lines = line_ends + 1;
    for mistake in mistakes {
        assert!((1..=lines).contains(&mistake.line), "line {} of {lines}", mistake.line);
        assert!(text.contains(SECRET) || !mistake.reason.contains(SECRET), "{mistake}");
    }
}

fn mcp_file(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    let tools = ToolSet::new();
    for may_start_programs in [false, true] {
        let stdio = vec!["files".to_owned()];
        let file = McpFile { path: "mcp.json".into(), stdio, may_start_programs };
        let (servers, mistakes) = file.parse(text, &context(&tools));
        check_mistakes(text, &mistakes);
        assert!(may_start_programs || servers.iter().all(|server| !server.is_program()));
        for server in servers.iter() {
            let shown = format!("{server:?} {}", server.document_id());
            assert!(text.contains(SECRET) || !shown.contains(SECRET), "{shown}");
        }
    }
}

#[test]
fn fuzz_mcp_file() {
    check("mcp_file", mcp_file);
}

#[test]
fn fuzz_agent_file() {
    check("agent_file", agent_file);
}
