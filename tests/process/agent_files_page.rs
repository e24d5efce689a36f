//! The reference of agent files, `docs/agent-files.md`: one row for each key, and none for unknown keys.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

const PAGE: &str = "docs/agent-files.md";

/// A key that no map knows and that is similar to none: its error message lists all known keys.
const UNKNOWN: &str = "zzzzzzzzzzzz";

/// An agent file with an unknown key in each map.
const FILE: &str = "---
zzzzzzzzzzzz: 1
retry: { zzzzzzzzzzzz: 1 }
compaction: { zzzzzzzzzzzz: 1 }
guardrails: { zzzzzzzzzzzz: 1 }
audit: { zzzzzzzzzzzz: 1 }
systemPrompt: { zzzzzzzzzzzz: 1 }
memory: { zzzzzzzzzzzz: 1 }
profile: { zzzzzzzzzzzz: 1 }
userSkills: { zzzzzzzzzzzz: 1 }
budget: { zzzzzzzzzzzz: 1, prompt: { zzzzzzzzzzzz: 1 } }
extensions:
  - zzzzzzzzzzzz: 1
  - http: { zzzzzzzzzzzz: 1 }
plugins:
  - zzzzzzzzzzzz: 1
  - http: { zzzzzzzzzzzz: 1 }
tools:
  - zzzzzzzzzzzz: 1
  - http:
      name: call
      url: https://service.example/
      zzzzzzzzzzzz: 1
      auth: { zzzzzzzzzzzz: 1 }
      approval: { zzzzzzzzzzzz: 1 }
  - mcp: { zzzzzzzzzzzz: 1 }
---
Call the service.
";

/// Maps by their name in error messages, each with the prefix of its rows.
const MAPS: [(&str, &str); 18] = [
    ("the front matter", ""),
    ("a tool", ""),
    ("an http tool", "http."),
    ("an mcp entry", "mcp."),
    ("`auth`", "http.auth."),
    ("`approval`", "http.approval."),
    ("`retry`", "retry."),
    ("`compaction`", "compaction."),
    ("`guardrails`", "guardrails."),
    ("`audit`", "audit."),
    ("`systemPrompt`", "systemPrompt."),
    ("`memory`", "memory."),
    ("`profile`", "profile."),
    ("`userSkills`", "userSkills."),
    ("an extension", "extensions."),
    ("an http extension", "extensions.http."),
    ("a plugin", "plugins."),
    ("an http plugin", "plugins.http."),
];

/// Output of `turnwheel doctor` for the file.
fn report() -> String {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let agents = folder.path().join("agents");
    std::fs::create_dir(&agents).expect("a folder of agent files");
    std::fs::write(agents.join("maps.agent.md"), FILE).expect("an agent file");
    let output = Command::new(env!("CARGO_BIN_EXE_turnwheel"))
        .args(["doctor", "--offline"])
        .current_dir(folder.path())
        .env_clear()
        .output()
        .expect("turnwheel starts");
    String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned()
}

/// Keys that the error about the unknown key of `map` lists: `…; there are: name, url`.
fn listed_keys(report: &str, map: &str) -> Vec<String> {
    let start = format!("unknown key `{UNKNOWN}` of {map}: ");
    let message = report.lines().find_map(|line| line.split_once(start.as_str()));
    let keys = message.and_then(|(_, message)| message.split_once("there are: "));
    let (_, keys) = keys.unwrap_or_else(|| panic!("no error lists the keys of {map}:\n{report}"));
    keys.split(", ").map(|key| key.trim().to_owned()).collect()
}

/// Every key of an agent file, as the rows of the page name it.
fn known_keys() -> BTreeSet<String> {
    let report = report();
    let mut known: BTreeSet<String> = MAPS
        .iter()
        .flat_map(|(map, prefix)| {
            let keys = listed_keys(&report, map).into_iter();
            keys.map(move |key| format!("{prefix}{key}"))
        })
        .collect();
    for level in listed_keys(&report, "`budget`") {
        let units = listed_keys(&report, "`budget.prompt`").into_iter();
        known.extend(units.map(|unit| format!("budget.{level}.{unit}")));
    }
    // Accepted if it is the file's name, and never suggested.
    known.insert("name".to_owned());
    known
}

/// First cells of the tables whose first column is `key` and whose second is `type`.
fn rows(page: &str) -> Vec<String> {
    let mut is_keys = false;
    let mut rows = Vec::new();
    for line in page.lines() {
        if line.starts_with("| key | type |") {
            is_keys = true;
        } else if !line.starts_with('|') {
            is_keys = false;
        }
        let row = line.strip_prefix("| `").filter(|_| is_keys);
        rows.extend(row.and_then(|row| row.split('`').next()).map(str::to_owned));
    }
    rows
}

#[test]
fn agent_file_reference_has_one_row_per_key() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join(PAGE);
    let rows = rows(&std::fs::read_to_string(page).unwrap());
    let documented: BTreeSet<String> = rows.iter().cloned().collect();
    assert_eq!(documented.len(), rows.len(), "{PAGE} has two rows for a key: {rows:?}");
    let known = known_keys();
    assert!(known.len() > 40, "the errors list the keys: {known:?}");
    let missing: Vec<&String> = known.difference(&documented).collect();
    assert!(missing.is_empty(), "{PAGE} has no row for {missing:?}");
    let unknown: Vec<&String> = documented.difference(&known).collect();
    assert!(unknown.is_empty(), "{PAGE} has rows for keys that agent files reject: {unknown:?}");
}
