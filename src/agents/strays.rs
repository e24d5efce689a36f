//! Files in the agents folder that look like agent or `certify` files but are never read.

use std::collections::BTreeSet;
use std::path::Path;

use super::mistakes::{Findings, Mistake};
use super::yaml::At;

const AGENT: &str = ".agent.md";
const CONVERSATION: &str = ".certify.yaml";

/// Returns one mistake per file that is never read: an ending in other letter case, or a `certify`
/// conversation without its agent. Returns none if the folder cannot be read, which
/// [`super::load_folder`] reports.
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
                "nothing reads this file: its ending must be `{AGENT}`, in lower case; rename it"
            )
        } else if let Some(agent) = name.strip_suffix(CONVERSATION).filter(|agent| !is_there(agent))
        {
            format!(
                "nothing reads this file: its folder has no {agent}{AGENT}; rename or remove it"
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
                "agents/ghost.certify.yaml:1: nothing reads this file: its folder has no ghost.agent.md; rename or remove it",
                "agents/x.agent.MD:1: nothing reads this file: its ending must be `.agent.md`, in lower case; rename it",
            ]
        );
    }
}
