//! `TURNWHEEL_PAUSED`: agents and tools whose work is queued but not started.

use std::collections::BTreeSet;

use super::reader::{Reader, split_list};

const EXPECTED: &str =
    "`*` for everything, or a list of `agent:NAME` and `tool:NAME`, separated by commas";
const ALL: &str = "*";

/// Paused agents and tools; empty if nothing is paused.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pauses {
    /// Each target as configured: `*`, `agent:NAME` or `tool:NAME`.
    targets: BTreeSet<String>,
}

impl Pauses {
    /// The pause that applies to an agent's next turn.
    pub fn find_for_agent(&self, agent: &str) -> Option<&str> {
        self.find(ALL).or_else(|| self.find(&format!("agent:{agent}")))
    }

    /// The pause that applies to a tool's next call, in any agent.
    pub fn find_for_tool(&self, tool: &str) -> Option<&str> {
        self.find(&format!("tool:{tool}"))
    }

    pub fn contains(&self, target: &str) -> bool {
        self.targets.contains(target)
    }

    pub fn is_empty(&self) -> bool {
        self.targets.is_empty()
    }

    /// All targets as configured, sorted.
    pub fn to_vec(&self) -> Vec<&str> {
        self.targets.iter().map(String::as_str).collect()
    }

    /// Targets that name no existing agent or tool. They are an error, because a pause that matches
    /// nothing gives false confidence.
    pub fn find_unknown(
        &self,
        is_agent: impl Fn(&str) -> bool,
        is_tool: impl Fn(&str) -> bool,
    ) -> Vec<&str> {
        let is_unknown = |target: &&str| match target.split_once(':') {
            Some(("agent", name)) => !is_agent(name),
            Some(("tool", name)) => !is_tool(name),
            _ => false,
        };
        self.targets.iter().map(String::as_str).filter(is_unknown).collect()
    }

    fn find(&self, target: &str) -> Option<&str> {
        self.targets.get(target).map(String::as_str)
    }
}

/// Parses the setting; `None` if the text is invalid.
pub fn parse(text: &str) -> Option<Pauses> {
    let is_named = |part: &str| match part.split_once(':') {
        Some(("agent" | "tool", name)) => !name.is_empty() && !name.contains(':'),
        _ => part == ALL,
    };
    let targets: BTreeSet<String> = split_list(text).map(ToOwned::to_owned).collect();
    targets.iter().all(|part| is_named(part)).then_some(Pauses { targets })
}

pub(super) fn read(reader: &mut Reader<'_>) -> Pauses {
    reader.parse("TURNWHEEL_PAUSED", EXPECTED, parse).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pause_matches_agent_tool_or_everything() {
        let some = parse("agent:clerk, tool:pay").unwrap();
        assert_eq!(
            (some.find_for_agent("clerk"), some.find_for_agent("other")),
            (Some("agent:clerk"), None)
        );
        assert_eq!(
            (some.find_for_tool("pay"), some.find_for_tool("clerk")),
            (Some("tool:pay"), None)
        );
        let all = parse("*").unwrap();
        assert_eq!((all.find_for_agent("any"), all.find_for_tool("any")), (Some("*"), None));
        assert!(Pauses::default().is_empty() && !all.is_empty());
        for wrong in ["clerk", "agent:", "tools:pay", "agent:a:b", "agent:clerk;tool:pay", "all"] {
            assert_eq!(parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn pause_of_unknown_name_is_found() {
        let pauses = parse("agent:clerk,agent:clark,tool:pay,tool:pya,*").unwrap();
        let unknown = pauses.find_unknown(|agent| agent == "clerk", |tool| tool == "pay");
        assert_eq!(unknown, ["agent:clark", "tool:pya"]);
    }
}
