//! `TURNWHEEL_PAUSED`: agents and tools whose work is queued but not started.

use std::collections::BTreeSet;

use super::reader::{Reader, listed};

const EXPECTED: &str =
    "`*` for everything, or a list of `agent:NAME` and `tool:NAME`, separated by commas";
const ALL: &str = "*";

/// Paused agents and tools; empty if nothing is paused.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Brakes {
    /// Each target as configured: `*`, `agent:NAME` or `tool:NAME`.
    on: BTreeSet<String>,
}

impl Brakes {
    /// The pause that applies to an agent's next turn.
    pub fn of_agent(&self, agent: &str) -> Option<&str> {
        self.find(ALL).or_else(|| self.find(&format!("agent:{agent}")))
    }

    /// The pause that applies to a tool's next call, in any agent.
    pub fn of_tool(&self, tool: &str) -> Option<&str> {
        self.find(&format!("tool:{tool}"))
    }

    pub fn has(&self, on: &str) -> bool {
        self.on.contains(on)
    }

    pub fn is_off(&self) -> bool {
        self.on.is_empty()
    }

    /// All targets as configured, sorted.
    pub fn all(&self) -> Vec<&str> {
        self.on.iter().map(String::as_str).collect()
    }

    /// Targets that name no existing agent or tool. They are an error, because a pause that matches
    /// nothing gives false confidence.
    pub fn about_nothing(
        &self,
        is_agent: impl Fn(&str) -> bool,
        is_tool: impl Fn(&str) -> bool,
    ) -> Vec<&str> {
        let is_about_nothing = |on: &&str| match on.split_once(':') {
            Some(("agent", name)) => !is_agent(name),
            Some(("tool", name)) => !is_tool(name),
            _ => false,
        };
        self.on.iter().map(String::as_str).filter(is_about_nothing).collect()
    }

    fn find(&self, on: &str) -> Option<&str> {
        self.on.get(on).map(String::as_str)
    }
}

/// Parses the setting; `None` if the text is invalid.
pub fn parse(text: &str) -> Option<Brakes> {
    let is_named = |part: &str| match part.split_once(':') {
        Some(("agent" | "tool", name)) => !name.is_empty() && !name.contains(':'),
        _ => part == ALL,
    };
    let on: BTreeSet<String> = listed(text).map(ToOwned::to_owned).collect();
    on.iter().all(|part| is_named(part)).then_some(Brakes { on })
}

pub(super) fn read(reader: &mut Reader<'_>) -> Brakes {
    reader.parse("TURNWHEEL_PAUSED", EXPECTED, parse).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_brake_is_on_an_agent_a_tool_or_everything() {
        let some = parse("agent:clerk, tool:pay").unwrap();
        assert_eq!((some.of_agent("clerk"), some.of_agent("other")), (Some("agent:clerk"), None));
        assert_eq!((some.of_tool("pay"), some.of_tool("clerk")), (Some("tool:pay"), None));
        let all = parse("*").unwrap();
        assert_eq!((all.of_agent("any"), all.of_tool("any")), (Some("*"), None));
        assert!(Brakes::default().is_off() && !all.is_off());
        for wrong in ["clerk", "agent:", "tools:pay", "agent:a:b", "agent:clerk;tool:pay", "all"] {
            assert_eq!(parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn a_brake_on_nothing_is_found() {
        let brakes = parse("agent:clerk,agent:clark,tool:pay,tool:pya,*").unwrap();
        let found = brakes.about_nothing(|agent| agent == "clerk", |tool| tool == "pay");
        assert_eq!(found, ["agent:clark", "tool:pya"]);
    }
}
