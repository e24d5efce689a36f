//! Files in the folder of agents that somebody believes in and nothing reads.

use std::collections::BTreeSet;
use std::path::Path;

use super::mistakes::{Findings, Mistake};
use super::yaml::At;

const AGENT: &str = ".agent.md";
const CONVERSATION: &str = ".certify.yaml";

/// One mistake for each: an ending in other letters, a conversation for `certify` without its agent. Empty when the folder
/// cannot be read, which [`super::load()`] reports.
pub fn strays(folder: &Path) -> Vec<Mistake> {
    let shown = folder.file_name().map_or_else(|| "agents".into(), |name| name.to_string_lossy());
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let names: BTreeSet<String> =
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    let is_there = |agent: &str| names.contains(&format!("{agent}{AGENT}"));
    let mut found = Vec::new();
    for name in names.iter().filter(|name| !name.starts_with('.')) {
        let lower = name.to_ascii_lowercase();
        let reason = if lower.ends_with(AGENT) && !name.ends_with(AGENT) {
            format!(
                "nothing reads this file: its ending is not `{AGENT}`, in small letters; rename it"
            )
        } else if let Some(agent) = name.strip_suffix(CONVERSATION).filter(|agent| !is_there(agent))
        {
            format!(
                "nothing reads this file: there is no {agent}{AGENT} beside it; rename it, or remove it"
            )
        } else {
            continue;
        };
        let mut findings = Findings::of(format!("{shown}/{name}"));
        findings.add(At::START, reason);
        found.extend(findings.into_sorted());
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_that_nothing_reads_are_found() {
        let parent = tempfile::tempdir().unwrap();
        let folder = parent.path().join("agents");
        assert_eq!(strays(&folder), []);
        std::fs::create_dir(&folder).unwrap();
        let names = [
            "clerk.agent.md",
            "clerk.certify.yaml",
            "ghost.certify.yaml",
            "x.agent.MD",
            ".y.Agent.md",
            "README.md",
        ];
        for name in names {
            std::fs::write(folder.join(name), "").unwrap();
        }
        let found: Vec<String> = strays(&folder).iter().map(ToString::to_string).collect();
        assert_eq!(
            found,
            [
                "agents/ghost.certify.yaml:1: nothing reads this file: there is no ghost.agent.md beside it; rename it, or remove it",
                "agents/x.agent.MD:1: nothing reads this file: its ending is not `.agent.md`, in small letters; rename it",
            ]
        );
    }
}
