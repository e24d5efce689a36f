//! Fuzz test of agent files: any text is an agent or mistakes, and never reveals a setting.

use std::sync::LazyLock;

use super::ToolSet;
use super::file::{Sources, read};
use super::mistakes::Findings;
use super::yaml::{self, Node, Yaml};
use crate::fuzz::{SECRET, check};
use crate::tools::http::addresses::AddressRules;
use crate::tools::http::client::HttpClient;

static CLIENT: LazyLock<HttpClient> =
    LazyLock::new(|| HttpClient::new(AddressRules::default()).unwrap());

fn app_settings(name: &str) -> Option<String> {
    Some(match name {
        "KEY" => format!("{SECRET}-value"),
        "URL" => format!("https://{SECRET}.example/{SECRET}"),
        "INSIDE" => "http://10.9.8.7".to_owned(),
        "LINES" => format!("{SECRET}\n{SECRET}"),
        _ => return None,
    })
}

/// Bytes of all texts plus the number of values.
fn weight(node: &Node) -> usize {
    1 + match &node.yaml {
        Yaml::Null | Yaml::Bool(_) | Yaml::Number(_) => 0,
        Yaml::Text(text) => text.len(),
        Yaml::List(items) => items.iter().map(weight).sum(),
        Yaml::Map(members) => {
            members.iter().map(|member| member.key.len() + weight(&member.value)).sum()
        }
    }
}

fn agent_file(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    if text.contains('*')
        && let Ok(node) = yaml::parse(text)
    {
        // Escapes such as `\\L` are shorter than their values.
        assert!(weight(&node) <= 2 * (text.len() + yaml::REPEATED_BYTES_MAX));
    }
    let tools = ToolSet::new();
    let sources = Sources { tools: &tools, app_settings: &app_settings, client: &CLIENT };
    let mut findings = Findings::of("agents/a.agent.md");
    let agent = read("a", text, &sources, &mut findings);
    assert_eq!(agent.is_none(), !findings.is_empty(), "either an agent or findings");
    // A carriage return alone ends a line in YAML, as in many editors.
    let ends = text.replace("\r\n", "\n").matches(['\r', '\n']).count() as u64;
    let lines = ends + 1;
    let is_theirs = text.contains(SECRET);
    for mistake in findings.into_sorted() {
        assert!((1..=lines).contains(&mistake.line), "line {} of {lines}", mistake.line);
        assert!(is_theirs || !mistake.reason.contains(SECRET), "{mistake}");
    }
    if let Some(agent) = agent {
        assert!(is_theirs || !format!("{agent:?}").contains(SECRET), "{agent:?}");
    }
}

#[test]
fn an_agent_file() {
    check("agent_file", agent_file);
}
