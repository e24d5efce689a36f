//! Parser of one agent file: YAML front matter, then the instructions.

use std::sync::Arc;

use serde_json::Value;

use crate::agents::mistakes::{Findings, suggestion};
use crate::agents::yaml::{self, At, Member, Node, Yaml};
use crate::agents::{Agent, ToolSet, fields, http_tool, settings};
use crate::tools::http::client::HttpClient;
use crate::tools::{RunTool, sha256_hex};

/// Tools, app settings and address rules that an agent file may refer to.
pub(super) struct Sources<'s> {
    pub(super) tools: &'s ToolSet,
    pub(super) app_settings: &'s dyn Fn(&str) -> Option<String>,
    pub(super) client: &'s HttpClient,
}

/// Returns the agent, or `None` after adding at least one finding.
pub(super) fn read(
    name: &str,
    text: &str,
    sources: &Sources<'_>,
    findings: &mut Findings,
) -> Option<Agent> {
    if !is_agent_name(name) {
        findings.add(
            At::START,
            "an agent's name, the file name before `.agent.md`, is 1 to 64 of a-z, 0-9 and -",
        );
    }
    let unmarked = text.strip_prefix('\u{feff}').unwrap_or(text);
    if unmarked.trim().is_empty() {
        findings.add(At::START, "the file is empty: write instructions for the agent");
        return None;
    }
    let (matter, instructions) = split(unmarked, findings)?;
    if instructions.trim().is_empty() {
        let line = u64::try_from(matter.lines().count()).unwrap_or_default() + 1;
        findings.add(
            At { line, column: 1 },
            "there are no instructions: write them below the front matter",
        );
    }
    let node = match yaml::parse(matter) {
        Ok(node) => node,
        Err((at, reason)) => {
            findings.add(at, reason);
            return None;
        }
    };
    let members = members_of(&node, name, findings);
    let (mut description, mut tools, mut response_schema) = (String::new(), Vec::new(), None);
    for member in members {
        match member.key.as_str() {
            "description" => {
                fields::text(member, findings).unwrap_or_default().clone_into(&mut description);
                no_settings(&member.value, findings);
            }
            "tools" => tools = read_tools(member, sources, findings),
            "responseSchema" => {
                response_schema = schema(member, findings).map(|(schema, _)| schema);
            }
            _ => no_settings(&member.value, findings),
        }
    }
    let settings = settings::read(members, findings);
    if let (Some(active), Some(member)) = (&settings.active_tools, node.member("activeTools")) {
        for wanted in active {
            if !tools.iter().any(|tool| tool.definition().name == *wanted) {
                let hint =
                    suggestion(wanted, tools.iter().map(|tool| tool.definition().name.as_str()));
                findings.add(
                    member.value.at,
                    format!("`activeTools` names `{wanted}`, which is not among `tools`: {hint}"),
                );
            }
        }
    }
    findings.is_empty().then(|| Agent {
        name: name.to_owned(),
        description,
        settings,
        instructions: instructions.trim().to_owned(),
        tools,
        response_schema,
        session_id: None,
        revision: short_hash(text),
    })
}

/// The first 16 hex digits of the text's SHA-256.
pub(super) fn short_hash(text: &str) -> String {
    sha256_hex(text.as_bytes()).chars().take(16).collect()
}

fn is_agent_name(name: &str) -> bool {
    (1..=64).contains(&name.len())
        && name.bytes().all(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-'))
}

/// Splits a file into its front matter and the text after it. The front matter keeps its opening
/// line, so that line numbers are those of the file.
fn split<'t>(text: &'t str, findings: &mut Findings) -> Option<(&'t str, &'t str)> {
    let is_fence = |line: &str| line.trim_end() == "---";
    if !text.lines().next().is_some_and(is_fence) {
        if text.trim_start().lines().next().is_some_and(is_fence) {
            findings.add(
                At::START,
                "the front matter must begin in the first line: remove the lines before `---`",
            );
            return None;
        }
        return Some(("", text));
    }
    let mut end = 0;
    for (number, line) in text.split_inclusive('\n').enumerate() {
        if number > 0 && is_fence(line) {
            let after = text.get(end + line.len()..).unwrap_or_default();
            return Some((text.get(..end).unwrap_or_default(), after));
        }
        end += line.len();
    }
    findings.add(
        At::START,
        "the front matter is not closed: write `---` on a line of its own before the instructions",
    );
    None
}

/// Keys of the Azure Functions agents runtime and of other agent formats.
const REMEDIES: fields::Remedies<'static> = &[
    (
        "trigger",
        "a key of the Azure Functions agents runtime; here prompts come by HTTP, queue or schedule, without a key in the file",
    ),
    (
        "builtin_endpoints",
        "a key of the Azure Functions agents runtime; here every agent has the HTTP API",
    ),
    (
        "mcp",
        "a key of the Azure Functions agents runtime; here write each operation of the server as an `http` tool",
    ),
    ("instructions", "write the instructions below the front matter"),
    ("system_prompt", "write the instructions below the front matter"),
];

const TOOL_REMEDIES: fields::Remedies<'static> = &[
    ("mcp", "write each operation of the server as an `http` tool"),
    ("bash", NO_SHELL),
    ("shell", NO_SHELL),
];

const NO_SHELL: &str = "there is no shell; an `http` tool may call a service that runs commands";

fn members_of<'n>(node: &'n Node, name: &str, findings: &mut Findings) -> &'n [Member] {
    const OWN: [&str; 3] = ["description", "tools", "responseSchema"];
    if matches!(node.yaml, Yaml::Null) {
        return &[];
    }
    if let Some(member) = node.member("name")
        && !matches!(&member.value.yaml, Yaml::Text(given) if given == name)
    {
        let reason = format!(
            "the file's name makes this the agent `{name}`: rename the file, or remove `name`"
        );
        findings.add(member.at, reason);
    }
    let known: Vec<&str> = OWN.into_iter().chain(settings::KEYS).collect();
    let mut rest = node.clone();
    if let Yaml::Map(members) = &mut rest.yaml {
        members.retain(|member| member.key != "name");
    }
    fields::members_or(&rest, "the front matter", &known, REMEDIES, findings);
    match &node.yaml {
        Yaml::Map(members) => members,
        Yaml::Null | Yaml::Bool(_) | Yaml::Number(_) | Yaml::Text(_) | Yaml::List(_) => &[],
    }
}

fn read_tools(
    member: &Member,
    sources: &Sources<'_>,
    findings: &mut Findings,
) -> Vec<Arc<dyn RunTool>> {
    let items = match &member.value.yaml {
        Yaml::List(items) => items.as_slice(),
        Yaml::Null => return Vec::new(),
        Yaml::Bool(_) | Yaml::Number(_) | Yaml::Text(_) | Yaml::Map(_) => {
            findings.add(member.value.at, "`tools` is a list: begin each tool with `- `");
            return Vec::new();
        }
    };
    let mut tools: Vec<Arc<dyn RunTool>> = Vec::new();
    for item in items {
        let Some(tool) = read_tool(item, sources, findings) else { continue };
        let name = &tool.definition().name;
        if tools.iter().any(|other| other.definition().name == *name) {
            findings.add(
                item.at,
                format!("there is another tool `{name}`: names are unique in an agent"),
            );
        } else {
            tools.push(tool);
        }
    }
    tools
}

fn read_tool(
    item: &Node,
    sources: &Sources<'_>,
    findings: &mut Findings,
) -> Option<Arc<dyn RunTool>> {
    const NEITHER: &str = "a tool is a name, or a map that begins with `http:`";
    match &item.yaml {
        Yaml::Text(name) => {
            let found = sources.tools.get(name);
            if found.is_none() {
                let hint = fields::remedy(name, TOOL_REMEDIES)
                    .unwrap_or_else(|| suggestion(name, sources.tools.keys().map(String::as_str)));
                findings.add(item.at, format!("there is no tool `{name}`: {hint}"));
            }
            found.map(Arc::clone)
        }
        Yaml::Map(members) => {
            fields::members_or(item, "a tool", &["http"], TOOL_REMEDIES, findings);
            let http = members.iter().find(|member| member.key == "http")?;
            http_tool::read(&http.value, sources, findings).map(|tool| Arc::new(tool) as _)
        }
        Yaml::Null | Yaml::Bool(_) | Yaml::Number(_) | Yaml::List(_) => {
            findings.add(item.at, NEITHER);
            None
        }
    }
}

/// Parses a member as a JSON Schema. Returns the schema and its validator.
pub(super) fn schema(
    member: &Member,
    findings: &mut Findings,
) -> Option<(Value, jsonschema::Validator)> {
    if !matches!(member.value.yaml, Yaml::Map(_)) {
        let kind = member.value.kind();
        findings
            .add(member.value.at, format!("`{}` is a JSON Schema, a map, not {kind}", member.key));
        return None;
    }
    let schema = member.value.json();
    match jsonschema::options().with_draft(jsonschema::Draft::Draft202012).build(&schema) {
        Ok(validator) => Some((schema, validator)),
        Err(error) => {
            let place = error.instance_path().to_string();
            let at = at_pointer(&member.value, &place).unwrap_or(member.value.at);
            let place = if place.is_empty() { String::new() } else { format!(" (at {place})") };
            findings.add(at, format!("`{}` is not a JSON Schema{place}: {error}", member.key));
            None
        }
    }
}

/// Position of the node at a JSON pointer.
fn at_pointer(node: &Node, pointer: &str) -> Option<At> {
    let mut here = node;
    for step in pointer.split('/').skip(1) {
        let step = step.replace("~1", "/").replace("~0", "~");
        here = match &here.yaml {
            Yaml::Map(_) => &here.member(&step)?.value,
            Yaml::List(items) => items.get(step.parse::<usize>().ok()?)?,
            Yaml::Null | Yaml::Bool(_) | Yaml::Number(_) | Yaml::Text(_) => return Some(here.at),
        };
    }
    Some(here.at)
}

/// Adds a finding for `${NAME}` in a place where it would not be replaced.
pub(super) fn no_settings(node: &Node, findings: &mut Findings) {
    match &node.yaml {
        Yaml::Text(text) if text.contains("${") => findings.add(
            node.at,
            "app settings (`${NAME}`) may stand only in the url, headers and body of an http tool",
        ),
        Yaml::List(items) => items.iter().for_each(|item| no_settings(item, findings)),
        Yaml::Map(members) => {
            for member in members {
                no_settings(&member.value, findings);
            }
        }
        Yaml::Null | Yaml::Bool(_) | Yaml::Number(_) | Yaml::Text(_) => {}
    }
}
