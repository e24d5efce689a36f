//! Tests of the JSON Schema of agent files: it accepts the files that the readers accept, and finds the usual
//! mistakes.

use std::collections::BTreeSet;
use std::path::Path;

use jsonschema::Validator;
use serde_json::Value;

use super::load_files;
use crate::front_matter::{FileKind, parse_yaml, split_front_matter};
use crate::mistakes::Findings;
use crate::schema::agent_file_schema;
use crate::sections::SECTIONS;

fn validator() -> Validator {
    jsonschema::draft202012::new(&agent_file_schema()).unwrap()
}

/// The front matter of an agent file as JSON.
fn front_matter(text: &str) -> Value {
    let mut findings = Findings::new("a.agent.md");
    let (yaml, _) = split_front_matter(text, FileKind::Agent, &mut findings).unwrap();
    parse_yaml(yaml, &mut findings).unwrap_or_else(|| panic!("no YAML: {text}")).to_json()
}

fn mistakes(text: &str) -> Vec<String> {
    let front_matter = front_matter(text);
    let validator = validator();
    let errors = validator.iter_errors(&front_matter);
    errors.map(|error| format!("{}: {error}", error.instance_path())).collect()
}

#[test]
fn schema_has_each_key_of_the_section_table() {
    let schema = agent_file_schema();
    let properties: BTreeSet<&str> =
        schema["properties"].as_object().unwrap().keys().map(String::as_str).collect();
    let mut keys: BTreeSet<&str> = SECTIONS.iter().flat_map(|it| it.keys).copied().collect();
    keys.insert("name");
    assert_eq!(properties, keys);
    // An absolute URI without a fragment, so that other schemas refer to it.
    let id = url::Url::parse(schema["$id"].as_str().unwrap()).unwrap();
    assert_eq!((id.as_str(), id.fragment()), ("urn:turnwheel:schema:agent-file", None));
    jsonschema::meta::validate(&schema).unwrap();
}

/// Each row of the reference has an example of its key.
#[test]
fn examples_of_the_reference_are_valid() {
    let page = std::fs::read_to_string(repository().join("docs/agent-files.md")).unwrap();
    let mut checked = 0;
    for line in page.lines().filter(|line| line.starts_with("| `")) {
        let cells: Vec<&str> = line.trim_matches('|').split(" | ").map(str::trim).collect();
        let [key, _, _, _, example] = cells.as_slice() else { continue };
        let Some(example) = example.strip_prefix('`').and_then(|it| it.strip_suffix('`')) else {
            continue;
        };
        let key = key.trim_matches('`');
        let Some(text) = example_file(key, &example.replace("\\|", "|")) else { continue };
        assert_eq!(mistakes(&text), Vec::<String>::new(), "{key}: {text}");
        checked += 1;
    }
    assert!(checked > 80, "only {checked} examples");
}

/// The example of a key in a whole file, where the key belongs.
fn example_file(key: &str, example: &str) -> Option<String> {
    let hook = "name: a, url: 'https://a.example/', secret: '${S}'";
    let member = |kind: &str, required: &str| {
        let name = example.split(':').next();
        let required = required.split(", ").filter(|it| it.split(':').next() != name);
        let lines: Vec<&str> = required.chain([example]).collect();
        format!("{kind}:\n  - http:\n      {}", lines.join("\n      "))
    };
    let front_matter = match key {
        "http" | "mcp" | "extensions.http" | "plugins.http" if example.contains('…') => {
            return None;
        }
        "http" | "mcp" => format!("tools:\n  {example}"),
        _ if key.starts_with("http.auth.") || key.starts_with("http.approval.") => {
            let kind = if key.starts_with("http.auth.") { "auth" } else { "approval" };
            let value = example.strip_prefix("auth: ").unwrap_or(example);
            let value = if kind == "auth" { value.to_owned() } else { format!("{{ {value} }}") };
            format!("tools:\n  - http: {{ name: a, url: 'https://a.example/', {kind}: {value} }}")
        }
        _ if key.starts_with("http.") => member("tools", "name: a, url: 'https://a.example/'"),
        _ if key.starts_with("mcp.") => {
            let server = if key == "mcp.server" { "" } else { "server: a, " };
            format!("tools:\n  - mcp: {{ {server}{example} }}")
        }
        _ if key.starts_with("extensions.http.") => {
            member("extensions", &format!("{hook}, events: [input]"))
        }
        _ if key.starts_with("plugins.http.") => member("plugins", hook),
        _ => example.to_owned(),
    };
    Some(format!("---\n{front_matter}\n---\nHelp.\n"))
}

fn repository() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

/// The agent files of this repository: each is one that the readers accept.
#[test]
fn agent_files_of_the_repository_are_valid() {
    let mut files = Vec::new();
    for folder in ["agents", "examples", "templates"] {
        collect(&repository().join(folder), &mut files);
    }
    assert!(files.len() >= 8, "{files:?}");
    for file in files {
        let text = std::fs::read_to_string(&file).unwrap();
        assert_eq!(mistakes(&text), Vec::<String>::new(), "{}", file.display());
    }
}

fn collect(folder: &Path, files: &mut Vec<std::path::PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() && !path.ends_with("node_modules") {
            collect(&path, files);
        } else if path.to_str().unwrap().ends_with(".agent.md") {
            files.push(path);
        }
    }
}

/// Front matters with values at the bounds of their keys.
const VALUES: &[&str] = &[
    "description: a",
    "description: 1",
    "examples: [a]",
    "examples: []",
    "examples: [1]",
    "tools: [read]",
    "tools: read",
    "tools:",
    "tools: [{ http: { name: a, url: 'https://a.example/' } }]",
    "tools: [{ http: { name: a } }]",
    "tools: [{ http: { name: a, url: 'https://a.example/', methods: GET } }]",
    "tools: [{ http: { name: a, url: 'https://a.example/', timeout: 30 } }]",
    "tools: [{ http: { name: a, url: 'https://a.example/', timeout: 30s, approval: always } }]",
    "tools: [{ http: { name: a, url: 'https://a.example/', approval: never } }]",
    "tools: [{ http: { name: a, url: 'https://a.example/', approval: false } }]",
    "tools: [{ http: { name: a, url: 'https://a.example/', approval: { approvers: [boss] } } }]",
    "tools: [{ http: { name: a, url: 'https://a.example/', headers: { x-a: 1 } } }]",
    "tools: [{ http: { name: a, url: 'https://a.example/', headers: [a] } }]",
    "tools: [{ http: { name: a, url: 'https://a.example/', effect: readonly } }]",
    "tools: [{ http: { name: a b, url: 'https://a.example/' } }]",
    "title: auto",
    "title: on",
    "audit: true",
    "audit: { notify: true }",
    "audit: yes",
    "security: on",
    "security: ''",
    "security: 1",
    "guardrails: true",
    "guardrails: {}",
    "guardrails: { patterns: [] }",
    "guardrails: { patterns: [rm] }",
    "guardrails: { expiresAfter: 1w }",
    "systemPrompt: assembled",
    "systemPrompt: full",
    "systemPrompt: { date: false }",
    "systemPrompt: { append: 1 }",
    "systemPrompt: { contextFiles: workspace }",
    "memory: true",
    "memory: { write: ask }",
    "memory: { write: always }",
    "memory: { project: 'a b' }",
    "profile: true",
    "profile: { shared: 1 }",
    "model: gpt-5",
    "model: ''",
    "model: 5",
    "thinkingLevel: max",
    "thinkingLevel: huge",
    "loop: agent",
    "loop: forever",
    "temperature: 2",
    "temperature: 2.5",
    "temperature: -1",
    "temperature: warm",
    "maxOutputTokens: 1",
    "maxOutputTokens: 0",
    "maxOutputTokens: 1000001",
    "maxRounds: 0",
    "maxRounds: 1",
    "hardRoundsMax: 200",
    "hardRoundsMax: 201",
    "parallelToolsMax: 16",
    "parallelToolsMax: 17",
    "toolExecution: parallel",
    "toolExecution: both",
    "steeringMode: all",
    "steeringMode: none",
    "steeringSkipsTools: 1",
    "retry: { jitter: 1 }",
    "retry: { jitter: 2 }",
    "retry: { maxRetries: 101 }",
    "retry: { tries: 3 }",
    "retry: { maxDelayMs: 86400001 }",
    "compaction: { reserveTokens: 0 }",
    "compaction: { reserveTokens: -1 }",
    "compaction: true",
    "continuation: inline",
    "continuation: later",
    "budget: { prompt: { usd: 0.5 } }",
    "budget: { prompt: { usd: 0 } }",
    "budget: { prompt: { usd: 0.000000001 } }",
    "budget: { prompt: { usd: 0.0000000009 } }",
    "budget: { prompt: { usd: 1000000000 } }",
    "budget: { prompt: { usd: 1000000000.5 } }",
    "budget: { day: { usd: 1 } }",
    "budget: 0.5",
    "budget: { conversation: { tokens: 1 } }",
    "budget: { conversation: { tokens: 1.5 } }",
    "responseSchema: { type: object }",
    "responseSchema: text",
    "descripton: a",
    "skillsIndex: tree",
    "userSkills: false",
    "userSkills: maybe",
    "mcpContent: json",
    "mcpContent: xml",
    "extensions: http",
    "extensions: [guard]",
    "plugins: [{ http: { name: a } }]",
    "extensions: [{ http: { name: g, url: 'https://a.example/', secret: '${HOOK_SECRET}', events: [tool_call] } }]",
    "extensions: [{ http: { name: g, url: 'https://a.example/', secret: abc, events: [tool_call] } }]",
    "plugins: [{ http: { name: p, url: 'https://a.example/', secret: '${HOOK_SECRET}' } }]",
];

#[test]
fn readers_and_schema_agree_about_values() {
    for front_matter in VALUES {
        let text = format!("---\n{front_matter}\n---\nHelp.\n");
        let is_read = load_files(&[("a.agent.md", &text)]).mistakes.is_empty();
        let found = mistakes(&text);
        assert_eq!(found.is_empty(), is_read, "{front_matter}: {found:?}");
    }
}
