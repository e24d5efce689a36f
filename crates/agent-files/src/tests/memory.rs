//! Tests of `memory` in agent files.

use std::sync::Arc;

use serde_json::json;

use super::{arguments, load_files};
use crate::AgentDefinition;

fn load_agent(front_matter: &str) -> Arc<AgentDefinition> {
    let text = format!("---\n{front_matter}\n---\nx");
    let loaded = load_files(&[("a.agent.md", &text)]);
    assert_eq!(loaded.mistakes, [], "{front_matter}");
    Arc::clone(loaded.catalog.find(None).unwrap())
}

/// The tools of the memory, each with true if it needs an approval.
fn approvals(agent: &AgentDefinition) -> Vec<(String, bool)> {
    let tools = agent.plugins.iter().flat_map(|plugin| plugin.tools());
    let is_own = |name: &str| ["remember", "forget"].contains(&name);
    let tools = tools.filter(|tool| is_own(&tool.definition().name));
    let needs = tools.map(|tool| {
        let given = arguments(json!({"text": "likes tea"}));
        (tool.definition().name.clone(), tool.required_approval(&given).is_some())
    });
    needs.collect()
}

#[test]
fn agents_with_tools_ask_before_they_write() {
    for (front_matter, needs_approval) in [
        ("memory: true", false),
        ("memory: {}", false),
        ("memory: true\ntools: []", false),
        ("memory: true\ntools: [ls]", true),
        ("memory: { project: p }\ntools: [read, write]", true),
        ("memory: true\ntools: [read]\nactiveTools: []", true),
        ("memory: { write: auto }\ntools: [read]", false),
        // The tools of skills return texts of the app and the user.
        ("memory: true\nuserSkills: true", false),
        ("memory: { write: ask }", true),
    ] {
        let tools = approvals(&load_agent(front_matter));
        let expected = ["remember", "forget"].map(|name| (name.to_owned(), needs_approval));
        assert_eq!(tools, expected, "{front_matter}");
    }
    assert_eq!(approvals(&load_agent("memory: { write: off }")), []);
}

#[test]
fn memory_is_off_without_its_key() {
    for (front_matter, shared) in [
        ("description: x", None),
        ("memory: false", None),
        ("memory: true", Some(false)),
        ("memory: { shared: true }", Some(true)),
    ] {
        let agent = load_agent(front_matter);
        let memory = agent.memory.as_ref().map(|memory| memory.allows_shared_user);
        assert_eq!(memory, shared, "{front_matter}");
        assert_eq!(agent.plugins.len(), usize::from(shared.is_some()), "{front_matter}");
    }
}

#[test]
fn mistakes_in_memory_name_the_remedy() {
    for (front_matter, expected) in [
        ("memory: yes please", "`memory` is true, or a map of write, project and shared"),
        ("memory: { write: never }", "auto"),
        ("memory: { project: 'a b' }", "`project` is 1 to 64 of A-Z a-z 0-9 _ . -"),
        ("memory: { shared: maybe }", "`shared` must be true or false"),
        ("memory: { sahred: true }", "sahred"),
    ] {
        let loaded = load_files(&[("a.agent.md", &format!("---\n{front_matter}\n---\nx"))]);
        let [mistake] = &loaded.mistakes[..] else { panic!("{:?}", loaded.mistakes) };
        assert!(mistake.to_string().contains(expected), "{mistake}");
    }
}
