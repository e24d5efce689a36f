//! Tests of agent files whose app settings have no value: all of them are reported, and no mistake that
//! follows from them.

use std::collections::BTreeSet;

use super::load_files;
use crate::LoadedAgents;

/// Names of the settings without a value, of mistakes that are all of this kind.
fn unset(loaded: &LoadedAgents) -> BTreeSet<&str> {
    let names = loaded.mistakes.iter().map(|it| it.missing_setting.as_deref().expect(&it.reason));
    names.collect()
}

const AGENT: &str = "---
activeTools: [pay, count]
guardrails: { tools: [pay] }
tools:
  - http:
      name: pay
      method: POST
      parameters: { properties: { to: {} } }
      url: https://${HOST}:${PORT}/{to}
      headers: { x-key: '${PAY_KEY}', x-to: '${PREFIX}{to}' }
      body: { from: '${ACCOUNT}', list: ['${ITEM}'] }
      auth: { entra: 'api://pay/.default' }
  - http: { name: count, url: '${COUNT_URL}' }
extensions:
  - http: { name: guard, url: '${GUARD_URL}', secret: '${GUARD_SECRET}', events: [tool_call] }
plugins:
  - http: { name: p, url: '${P_URL}', secret: '${P_SECRET}', tools: [{ http: { name: t, url: '${T_URL}' } }] }
---
x";

#[test]
fn all_unset_settings_of_an_agent_are_reported() {
    let loaded = load_files(&[("clerk.agent.md", AGENT), ("other.agent.md", "x")]);
    let expected = [
        "ACCOUNT",
        "COUNT_URL",
        "GUARD_SECRET",
        "GUARD_URL",
        "HOST",
        "ITEM",
        "PAY_KEY",
        "PORT",
        "PREFIX",
        "P_SECRET",
        "P_URL",
        "T_URL",
    ];
    assert_eq!(unset(&loaded), BTreeSet::from(expected));
    assert_eq!(loaded.catalog.agents.keys().collect::<Vec<_>>(), ["other"]);
    assert_eq!(loaded.catalog.texts.keys().collect::<Vec<_>>(), ["other"]);
    assert!(loaded.catalog.broken.contains_key("clerk"));
    assert_eq!(loaded.unset_agents.keys().collect::<Vec<_>>(), ["clerk"]);
    assert_eq!(loaded.unset_agents["clerk"].tools.len(), 2);
}

#[test]
fn empty_settings_and_references_count_as_unset() {
    for name in ["EMPTY", "VAULTED", "GONE"] {
        for member in ["url: '${NAME}'", "url: 'https://a.example/', headers: { x: '${NAME}' }"] {
            let member = member.replace("NAME", name);
            let text = format!("---\ntools:\n  - http: {{ name: a, {member} }}\n---\nx");
            let loaded = load_files(&[("a.agent.md", &text)]);
            assert_eq!(unset(&loaded), BTreeSet::from([name]));
            let is_reference = loaded.mistakes[0].reason.contains("is a Key Vault reference");
            assert_eq!(is_reference, name == "VAULTED", "{:?}", loaded.mistakes);
        }
    }
}

#[test]
fn mistakes_beside_unset_settings_are_reported() {
    for (changed, reason) in [
        (("{to}\n", "{too}\n"), "`{too}` is not among the `parameters`: did you mean `to`?"),
        (("[pay, count]", "[pay, cound]"), "`activeTools` names `cound`"),
        (("tools: [pay]", "tools: [pays]"), "`guardrails` names `pays`"),
        (("name: count", "name: pay"), "there is another tool `pay`"),
        (("'${P_SECRET}'", "'${P_SECRET}-${KEY}x'"), "`secret` names the app setting"),
        (("POST", "GET"), "a GET has no body"),
    ] {
        let loaded = load_files(&[("clerk.agent.md", &AGENT.replace(changed.0, changed.1))]);
        let all = loaded.mistakes.iter();
        let (missing, others): (Vec<_>, Vec<_>) = all.partition(|it| it.missing_setting.is_some());
        assert!(others.iter().any(|it| it.reason.starts_with(reason)), "{reason}: {others:?}");
        assert!(missing.len() >= 11, "{reason}: {missing:?}");
        assert!(loaded.unset_agents.is_empty(), "{reason}");
    }
}
