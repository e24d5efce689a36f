//! Tests of `guardrails` and `audit` in agent files.

use std::sync::Arc;

use insta::assert_snapshot;

use super::load_files;
use crate::{AgentDefinition, Execution};

fn load_agent(front_matter: &str) -> Arc<AgentDefinition> {
    let text = format!("---\ntools: [read, write]\n{front_matter}\n---\nx");
    let loaded = load_files(&[("a.agent.md", &text)]);
    assert_eq!(loaded.mistakes, [], "{front_matter}");
    Arc::clone(loaded.catalog.find(None).unwrap())
}

#[test]
fn guardrails_are_an_extension_of_the_agent() {
    for (front_matter, names) in [
        ("", vec![]),
        ("guardrails: false", vec![]),
        ("guardrails: true", vec!["guardrails"]),
        ("guardrails: {}", vec!["guardrails"]),
        ("guardrails: { tools: ['wr*'], patterns: ['x'], approvers: [link] }", vec!["guardrails"]),
    ] {
        let agent = load_agent(front_matter);
        let loaded: Vec<&str> = agent.extensions.iter().map(|extension| extension.name()).collect();
        assert_eq!(loaded, names, "{front_matter}");
    }
}

#[test]
fn guardrails_have_the_default_patterns_and_approvers() {
    let debug = |front_matter: &str| format!("{:?}", load_agent(front_matter).extensions);
    let default = debug("guardrails: true");
    for part in [r"rm\\s+-rf\\s+\\/", "(?i)DROP", "(?i)DELETE", "approvers: []", "604800s"] {
        assert!(default.contains(part), "{part} in {default}");
    }
    let own = debug("guardrails: { patterns: ['shutdown'], expiresAfter: 1h, approvers: [link] }");
    for part in ["shutdown", "3600s", r#"approvers: ["link"]"#] {
        assert!(own.contains(part), "{part} in {own}");
    }
    assert!(!own.contains("DROP"), "own patterns replace the default ones: {own}");
}

#[test]
fn title_is_auto_or_off() {
    for (front_matter, is_automatic) in [("", false), ("title: auto", true), ("title: off", false)]
    {
        assert_eq!(load_agent(front_matter).has_automatic_title, is_automatic, "{front_matter}");
    }
}

#[test]
fn execution_is_queue_or_here() {
    let cases = [("", Execution::Queue), ("execution: queue", Execution::Queue)];
    for (front_matter, expected) in cases.into_iter().chain([("execution: here", Execution::Here)])
    {
        assert_eq!(load_agent(front_matter).execution, expected, "{front_matter}");
    }
}

#[test]
fn audit_logs_and_notifies() {
    let cases = [
        ("", (false, false)),
        ("audit: true", (true, false)),
        ("audit: false", (false, false)),
        ("audit: { notify: true }", (true, true)),
        ("audit: { notify: false }", (true, false)),
    ];
    for (front_matter, expected) in cases {
        let audit = load_agent(front_matter).audit;
        assert_eq!((audit.is_logged, audit.is_notified), expected, "{front_matter}");
    }
}

#[test]
fn guardrails_mistakes_have_their_lines() {
    let first = r"---
tools: [read, write]
audit: loud
guardrails:
  tool: [read]
  tools:
    - raed
    - 'sql.*'
    - 5
  patterns:
    - 'rm ('
    - '(?=x)'
    - 'a{1000}{1000}{1000}'
    - ''
  approvers: [owners]
  expiresAfter: 91d
---
x";
    let second = "---\nguardrails: always\n---\nx";
    let third = "---\nguardrails:\n  tools: []\n  patterns: rm\n---\nx";
    let loaded =
        load_files(&[("a.agent.md", first), ("b.agent.md", second), ("c.agent.md", third)]);
    let lines: Vec<String> = loaded.mistakes.iter().map(ToString::to_string).collect();
    assert_snapshot!(lines.join("\n"), @"
    agents/a.agent.md:3: `audit` is true, false, or a map with `notify`
    agents/a.agent.md:5: unknown key `tool` of `guardrails`: did you mean `tools`?
    agents/a.agent.md:7: `guardrails` names `raed`, which matches none of `tools`: did you mean `read`?
    agents/a.agent.md:8: `guardrails` names `sql.*`, which matches none of `tools`: the nearest is `read`; there are: read, write
    agents/a.agent.md:9: an item of `tools` must be text and is a number
    agents/a.agent.md:11: `rm (` is not a regular expression: unclosed group
    agents/a.agent.md:12: `(?=x)` is not a regular expression: look-around, including look-ahead and look-behind, is not supported
    agents/a.agent.md:13: `a{1000}{1000}{1000}` is not a regular expression: Compiled regex exceeds size limit of 1048576 bytes.
    agents/a.agent.md:14: an item of `patterns` must be text and is empty
    agents/a.agent.md:15: `owners` is not an approver: did you mean `owner`?
    agents/a.agent.md:16: `expiresAfter` must be more than 0 and at most 90d
    agents/b.agent.md:2: `guardrails` is true, or a map of tools, patterns, approvers and expiresAfter
    agents/c.agent.md:3: `tools` is a list of at least one tool name
    agents/c.agent.md:4: `patterns` is a list of at least one regular expression
    ");
}
