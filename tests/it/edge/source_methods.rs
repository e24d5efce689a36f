//! Test of the table in `docs/rust.md`: each method of the sources' `Agent` and `AgentSession` with
//! its method and its route.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use regex::Regex;

use super::test_app::TestApp;

/// Methods in s3 §1.1.
const SOURCE_METHODS: [&str; 24] = [
    "prompt",
    "continue",
    "steer",
    "followUp",
    "abort",
    "waitForIdle",
    "subscribe",
    "setSystemPrompt",
    "setModel",
    "setThinkingLevel",
    "setTools",
    "replaceMessages",
    "appendMessage",
    "clearMessages",
    "reset",
    "sendCustomMessage",
    "sendUserMessage",
    "compact",
    "executeBash",
    "cycleModel",
    "newSession",
    "switchSession",
    "reload",
    "setSessionName",
];
/// Methods whose row states another way.
const WITHOUT_METHOD_AND_ROUTE: [&str; 1] = ["reload"];

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn public_methods(folder: &Path) -> BTreeSet<String> {
    let pattern = Regex::new(r"(?m)^    pub (?:async )?fn (\w+)").unwrap();
    let files = ["src/embedded.rs", "src/embedded/session.rs", "src/embedded/setters.rs"];
    let texts = files.map(|file| std::fs::read_to_string(folder.join(file)).unwrap());
    let names = |text: &String| {
        pattern.captures_iter(text).map(|found| found[1].to_owned()).collect::<Vec<_>>()
    };
    texts.iter().flat_map(names).collect()
}

#[tokio::test]
async fn every_method_of_the_source_has_a_route_or_method() {
    let page = std::fs::read_to_string(root().join("docs/rust.md")).unwrap();
    let (_, section) = page.split_once("### Methods of the sources").unwrap();
    let section = section.split("\n## ").next().unwrap();
    let methods = public_methods(&root());
    let document = TestApp::new().get_json("/api/openapi.json").await;
    let quoted = Regex::new("`([^`]+)`").unwrap();
    let quotations = |cell: &str| -> Vec<String> {
        quoted.captures_iter(cell).map(|found| found[1].to_owned()).collect()
    };
    let mut documented = BTreeSet::new();
    for row in section.lines().filter(|line| line.starts_with("| `")) {
        let cells: Vec<&str> = row.trim_matches('|').split(" | ").collect();
        let [source, method, http] = cells[..] else { panic!("three columns: {row}") };
        let (source, named) = (quotations(source), quotations(method));
        for method in &named {
            assert!(methods.contains(method), "`Agent` has no method {method}: {row}");
        }
        let mut routes = 0;
        for route in quotations(http) {
            let Some((verb, path)) = route.split_once(' ') else { continue };
            let path = path.replace('…', "/api/conversations/{id}");
            let operation = &document["paths"][path.as_str()][verb.to_lowercase()];
            assert!(operation.is_object(), "there is no route {verb} {path}: {row}");
            routes += 1;
        }
        for name in source {
            let is_other = WITHOUT_METHOD_AND_ROUTE.contains(&name.as_str());
            assert_eq!(named.is_empty() && routes == 0, is_other, "{row}");
            documented.insert(name);
        }
    }
    assert_eq!(documented, SOURCE_METHODS.map(str::to_owned).into());
}
