//! Files in the agents folder with names like those of agent or `certify` files, which are never read.

use std::collections::BTreeSet;
use std::path::Path;

use super::mistakes::{Findings, Mistake};
use super::yaml::Position;

const AGENT_SUFFIX: &str = ".agent.md";
const CERTIFY_SUFFIX: &str = ".certify.yaml";

/// Returns one mistake per file that is never read: an ending in other letter case, or a `certify`
/// conversation without its agent. Returns none if the folder cannot be read, which
/// [`super::load_folder`] reports.
pub fn find_unread_files(folder: &Path) -> Vec<Mistake> {
    let folder_name =
        folder.file_name().map_or_else(|| "agents".into(), |name| name.to_string_lossy());
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let names: BTreeSet<String> =
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    let has_agent = |agent: &str| names.contains(&format!("{agent}{AGENT_SUFFIX}"));
    let mut mistakes = Vec::new();
    for name in names.iter().filter(|name| !name.starts_with('.')) {
        let lower = name.to_ascii_lowercase();
        let reason = if lower.ends_with(AGENT_SUFFIX) && !name.ends_with(AGENT_SUFFIX) {
            format!(
                "nothing reads this file: its ending must be `{AGENT_SUFFIX}`, in lower case; rename it"
            )
        } else if let Some(agent) =
            name.strip_suffix(CERTIFY_SUFFIX).filter(|agent| !has_agent(agent))
        {
            format!(
                "nothing reads this file: its folder has no {agent}{AGENT_SUFFIX}; rename or remove it"
            )
        } else {
            continue;
        };
        let mut findings = Findings::new(format!("{folder_name}/{name}"));
        findings.add(Position::START, reason);
        mistakes.extend(findings.into_sorted());
    }
    mistakes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unread_files_are_reported() {
        let parent = tempfile::tempdir().unwrap();
        let folder = parent.path().join("agents");
        assert_eq!(find_unread_files(&folder), []);
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
        let found: Vec<String> =
            find_unread_files(&folder).iter().map(ToString::to_string).collect();
        assert_eq!(
            found,
            [
                "agents/ghost.certify.yaml:1: nothing reads this file: its folder has no ghost.agent.md; rename or remove it",
                "agents/x.agent.MD:1: nothing reads this file: its ending must be `.agent.md`, in lower case; rename it",
            ]
        );
    }
}
