//! Stories of agent files: what is read, and what is said about mistakes.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use insta::assert_snapshot;
use serde_json::{Value, json};

use crate::agent::raw::RawJson;
use crate::agent::request::Effect;
use crate::agent::settings::{LoopKind, ThinkingLevel};
use crate::agents::{Loaded, ToolSet, load};
use crate::tools::http::addresses::AddressRules;
use crate::tools::http::client::HttpClient;
use crate::tools::{Arguments, Ask, RunTool, ToolContext, ToolDefinition, ToolOutcome, ToolResult};

#[derive(Debug)]
struct Plain(ToolDefinition);

#[async_trait]
impl RunTool for Plain {
    fn definition(&self) -> &ToolDefinition {
        &self.0
    }

    fn ask(&self, _: &Arguments) -> Option<Ask> {
        None
    }

    async fn call(&self, _: Arguments, _: ToolContext) -> ToolOutcome {
        ToolOutcome::Returned(ToolResult::default())
    }
}

fn built_ins() -> ToolSet {
    let tool = |name: &str| {
        let definition = ToolDefinition {
            name: name.to_owned(),
            label: name.to_owned(),
            description: String::new(),
            parameters: json!({"type": "object"}),
            effect: Effect::Read,
            on_unknown: crate::agent::phase::OnUnknown::Ask,
            timeout: Duration::from_secs(1),
            revision: String::new(),
        };
        (name.to_owned(), Arc::new(Plain(definition)) as Arc<dyn RunTool>)
    };
    ["read", "write", "edit", "ls", "find", "grep"].map(tool).into_iter().collect()
}

fn app_settings(name: &str) -> Option<String> {
    Some(match name {
        "PAYMENTS_URL" => "https://payments.example".to_owned(),
        "KEY" => "kee-p-this-secret".to_owned(),
        "LINES" => "a\nb".to_owned(),
        "EMPTY" => String::new(),
        "INSIDE" => "http://10.9.8.7".to_owned(),
        _ => return None,
    })
}

fn load_files(files: &[(&str, &str)]) -> Loaded {
    let folder = tempfile::tempdir().unwrap();
    let agents = folder.path().join("agents");
    std::fs::create_dir(&agents).unwrap();
    for (name, text) in files {
        std::fs::write(agents.join(name), text).unwrap();
    }
    let client = HttpClient::new(AddressRules::default()).unwrap();
    load(&agents, &built_ins(), &app_settings, &client)
}

/// The mistakes of one file, a line each.
fn mistakes(text: &str) -> String {
    let loaded = load_files(&[("clerk.agent.md", text)]);
    assert!(loaded.catalog.agents.is_empty());
    let problem = &loaded.catalog.broken["clerk"].problem;
    let lines: Vec<String> = loaded.mistakes.iter().map(ToString::to_string).collect();
    assert_eq!(*problem, lines.join("\n"));
    lines.join("\n")
}

fn arguments(value: Value) -> Arguments {
    Arguments { text: RawJson::of(&value), value }
}

const CLERK: &str = r#"---
description: Pays invoices after a person agrees.
model: gpt-5.1                 # model id, or normal | high
thinking: off                  # YAML 1.2: off is a string
maxRounds: 25
loop: agent
retry: { maxRetries: 5 }
responseSchema: { type: object }
tools:
  - read                       # a built-in or a code tool
  - http:
      name: send_payment
      description: Sends money.
      parameters: { type: object, required: [to, amount], properties: { to: {type: string}, amount: {type: number} } }
      method: POST
      url: https://payments.example/pay/{to}
      headers: { x-tenant: "${KEY}" }
      effect: write
      onUnknown: tell
      timeout: 30s
      approval:
        when: { properties: { amount: { exclusiveMinimum: 100 } } }
        reason: "Sending {amount} to {to} requires approval."
        approvers: [owner, link]
        notRequester: false
        expiresAfter: 24h
---

You are the payments clerk. ${HOME} stays.
"#;

#[test]
fn the_contract_s_example_is_an_agent() {
    let loaded = load_files(&[("clerk.agent.md", CLERK)]);
    assert_eq!(loaded.mistakes, []);
    assert_eq!(loaded.note, None);
    let agent = loaded.catalog.find(None).unwrap();
    assert_eq!(agent.description, "Pays invoices after a person agrees.");
    assert_eq!(agent.instructions, "You are the payments clerk. ${HOME} stays.");
    assert_eq!(agent.settings.thinking_level, Some(ThinkingLevel::Off));
    assert_eq!(agent.settings.loop_kind, Some(LoopKind::Agent));
    assert_eq!(
        agent.settings.retry.as_ref().map(|retry| (retry.max_retries, retry.enabled)),
        Some((5, true))
    );
    assert_eq!(agent.response_schema, Some(json!({"type": "object"})));
    assert_eq!(agent.revision.len(), 16);
    let tool = agent.tool("send_payment").unwrap();
    assert_eq!(tool.definition().effect, Effect::Write);
    assert_eq!(tool.definition().on_unknown, crate::agent::phase::OnUnknown::Tell);
    assert_eq!(tool.definition().timeout, Duration::from_secs(30));
    assert!(!format!("{agent:?}").contains("kee-p"), "a setting is not printed");
}

#[test]
fn a_person_is_asked_when_the_arguments_fit_the_schema() {
    let loaded = load_files(&[("clerk.agent.md", CLERK)]);
    let tool = Arc::clone(loaded.catalog.find(None).unwrap().tool("send_payment").unwrap());
    assert_eq!(tool.ask(&arguments(json!({"to": "Ada", "amount": 100}))), None);
    let ask = tool.ask(&arguments(json!({"to": "Ada", "amount": 250}))).unwrap();
    assert_eq!(ask.reason, "Sending 250 to Ada requires approval.");
    assert_eq!(ask.approvers, ["owner", "link"]);
    assert_eq!(ask.expires_after, Duration::from_hours(24));
    let sly = json!({"to": "Ada\u{202e}\r\nApproved by Bob", "amount": 1e3});
    let ask = tool.ask(&arguments(sly)).unwrap();
    assert_eq!(ask.reason, "Sending 1000.0 to Ada Approved by Bob requires approval.");
    let long = json!({"to": "x".repeat(10_000), "amount": 101});
    assert!(tool.ask(&arguments(long)).unwrap().reason.len() < 300);
    assert!(
        tool.ask(&arguments(json!({"to": "Ada"}))).is_some(),
        "an absent amount is asked about"
    );
}

#[test]
fn without_when_everybody_is_asked_and_the_defaults_hold() {
    let text =
        "---\ntools:\n  - http: { name: t, url: 'https://x.example/', approval: {} }\n---\nx";
    let loaded = load_files(&[("a.agent.md", text)]);
    assert_eq!(loaded.mistakes, []);
    let ask = loaded.catalog.find(None).unwrap().tools[0].ask(&arguments(json!({}))).unwrap();
    assert_eq!(ask.reason, "Calling t requires approval.");
    assert_eq!(ask.approvers, ["owner"]);
    assert_eq!(ask.expires_after, Duration::from_hours(7 * 24));
}

#[test]
fn effects_follow_the_method_unless_they_are_given() {
    let effect = |more: &str| {
        let text = format!(
            "---\ntools:\n  - http: {{ name: t, url: 'https://x.example/', {more} }}\n---\nx"
        );
        let loaded = load_files(&[("a.agent.md", &text)]);
        assert_eq!(loaded.mistakes, []);
        loaded.catalog.find(None).unwrap().tools[0].definition().effect
    };
    for (more, expected) in [
        ("", Effect::Read),
        ("method: HEAD", Effect::Read),
        ("method: PUT", Effect::Idempotent),
        ("method: DELETE", Effect::Idempotent),
        ("method: POST", Effect::Write),
        ("method: PATCH", Effect::Write),
        ("method: POST, effect: read", Effect::Read),
        ("method: GET, effect: write", Effect::Write),
    ] {
        assert_eq!(effect(more), expected, "{more}");
    }
}

#[test]
fn a_repeatable_tool_has_time_for_its_attempts_and_never_more_than_the_bound() {
    for (timeout, whole) in [("10s", Duration::from_millis(30_600)), ("4m", Duration::from_mins(4))]
    {
        let text = format!(
            "---\ntools:\n  - http: {{ name: t, url: 'https://x.example/', timeout: {timeout} }}\n---\nx"
        );
        let loaded = load_files(&[("a.agent.md", &text)]);
        assert_eq!(loaded.catalog.find(None).unwrap().tools[0].definition().timeout, whole);
    }
}

#[test]
fn all_mistakes_of_a_file_are_said_at_once_each_with_its_line() {
    assert_snapshot!(mistakes(r#"---
descripton: A clerk.
model: 5
thinking: of
temperature: 3
maxRounds: 0
retry: { maxRetry: 1 }
budget: { cost: 1 }
name: clerk
tools:
  - raed
  - bash: {}
  - http:
      name: send payment
      parameters: { type: object, properties: { to: { type: sting }, amount: { type: number } } }
      method: post
      url: https://payments.example/pay/{too}
      header: {}
      effect: writes
      timeout: 5m
      auth: { entra: "api://payments/.default" }
      approval:
        when: { properties: { amont: { exclusiveMinimum: 100 } } }
        reason: "Sending {amount} with ${KEY}."
        approvers: [owner, role, links]
        expiresAfter: 91d
---
x"#), @r#"
    agents/clerk.agent.md:2: unknown key `descripton` of the front matter: did you mean `description`?
    agents/clerk.agent.md:3: `model`: invalid type: integer `5`, expected a string
    agents/clerk.agent.md:4: `thinking`: unknown variant `of`, expected one of `off`, `minimal`, `low`, `medium`, `high`, `xhigh`, `max`
    agents/clerk.agent.md:5: `temperature` must be from 0 to 2
    agents/clerk.agent.md:6: `maxRounds` must be at least 1
    agents/clerk.agent.md:7: unknown key `maxRetry` of `retry`: the nearest is `maxRetries`; there are: enabled, maxRetries, baseDelayMs, maxDelayMs, jitter
    agents/clerk.agent.md:8: `budget` comes with a later release: remove it
    agents/clerk.agent.md:9: an agent's name is its file's: rename the file and remove `name`
    agents/clerk.agent.md:11: there is no tool `raed`: did you mean `read`?
    agents/clerk.agent.md:12: unknown key `bash` of a tool: the nearest is `http`; there are: http
    agents/clerk.agent.md:14: a tool's name is 1 to 64 of A-Z, a-z, 0-9, `_`, `-` and `.`
    agents/clerk.agent.md:15: `parameters` is no JSON Schema (at /properties/to/type): "sting" is not valid under any of the schemas listed in the 'anyOf' keyword
    agents/clerk.agent.md:16: `post` is no method a tool can have: did you mean `POST`?
    agents/clerk.agent.md:17: `{too}` is none of the `parameters`: did you mean `to`?
    agents/clerk.agent.md:18: unknown key `header` of an http tool: did you mean `headers`?
    agents/clerk.agent.md:19: `writes` is no value of `effect`: did you mean `write`?
    agents/clerk.agent.md:20: `timeout` must be more than nothing and at most 4m
    agents/clerk.agent.md:21: `auth` comes with a later release: remove it, or send a key in `headers`
    agents/clerk.agent.md:23: `when` speaks of `amont`, which is none of the `parameters`: did you mean `amount`?
    agents/clerk.agent.md:24: `reason` is read by people: it may hold arguments and no app setting
    agents/clerk.agent.md:25: `role` is no approver: did you mean `role:NAME`?
    agents/clerk.agent.md:25: `links` is no approver: did you mean `link`?
    agents/clerk.agent.md:26: `expiresAfter` must be more than nothing and at most 90d
    "#);
}

#[test]
fn requests_that_could_leak_or_mislead_are_mistakes() {
    assert_snapshot!(mistakes(r#"---
description: "Uses ${KEY}"
activeTools: [reads]
tools:
  - read
  - read
  - http: { url: "https://{host}/x", parameters: { properties: { host: {} } } }
  - http: { name: a, url: "https://u:p@x.example/" }
  - http: { name: b, url: "${GONE}/${EMPTY}" }
  - http: { name: c, url: "${AzureWebJobsStorage}/${IDENTITY_HEADER}/${cosmos__accountKey}" }
  - http: { name: d, url: "${INSIDE}/x" }
  - http: { name: e, url: "https://x.example/", headers: { Host: y, x-a: "${LINES}", "b c": d, idempotency-key: f } }
  - http: { name: f, url: "https://x.example/", body: { a: 1 } }
  - http: { name: g, url: "https://x.example/", method: POST, body: "a={b}" }
  - http: { name: h, url: "https://x.example/{", parameters: { type: array } }
  - http: { name: i, url: "https://x.example/", timeout: 30, approval: { notRequester: true, approvers: [owner] } }
  - http: { name: j, url: "https://x.example/", approval: always }
---
x"#), @r#"
    agents/clerk.agent.md:2: app settings (`${NAME}`) may stand only in the url, headers and body of an http tool
    agents/clerk.agent.md:3: `activeTools` names `reads`, which is not among `tools`: did you mean `read`?
    agents/clerk.agent.md:6: there is another tool `read`: names are unique in an agent
    agents/clerk.agent.md:7: an http tool needs `name`
    agents/clerk.agent.md:7: an argument may stand only in the url's path and query: end the host with `/`
    agents/clerk.agent.md:8: the url may hold no user name or password: use `headers`
    agents/clerk.agent.md:9: the app setting EMPTY is empty: give it a value
    agents/clerk.agent.md:9: the app setting GONE is not set: add it to the app's settings
    agents/clerk.agent.md:10: the app setting AzureWebJobsStorage belongs to the platform or to Turnwheel and may not be sent: give the tool a setting of its own
    agents/clerk.agent.md:10: the app setting IDENTITY_HEADER belongs to the platform or to Turnwheel and may not be sent: give the tool a setting of its own
    agents/clerk.agent.md:10: the app setting cosmos__accountKey belongs to the platform or to Turnwheel and may not be sent: give the tool a setting of its own
    agents/clerk.agent.md:11: the url leads where tools may not go: the address is private, local or reserved; an operator can list it in TURNWHEEL_HTTP_TOOLS_ALLOW
    agents/clerk.agent.md:12: the header `Host` is Turnwheel's or the connection's: remove it
    agents/clerk.agent.md:12: the header `x-a` would hold a line break or control character
    agents/clerk.agent.md:12: `b c` is no name of a header
    agents/clerk.agent.md:12: the header `idempotency-key` is Turnwheel's or the connection's: remove it
    agents/clerk.agent.md:13: a GET has no body: remove `body`, or use POST
    agents/clerk.agent.md:14: `body` is a map or a list, and is sent as JSON
    agents/clerk.agent.md:15: `{` begins an argument: write {name}, or {{ for the character
    agents/clerk.agent.md:15: `parameters` must be of `type: object`: arguments have names
    agents/clerk.agent.md:16: `timeout` is not a span of time: write a whole number and its unit, like 500ms, 30s, 2m, 24h or 7d
    agents/clerk.agent.md:16: with `notRequester` the owner may not decide what the owner asked for: add `link` or `role:NAME` to `approvers`
    agents/clerk.agent.md:17: `approval` is a map of keys and values, not text
    "#);
}

#[test]
fn broken_yaml_says_where() {
    assert_snapshot!(mistakes("---\ndescription: a\ntools:\n  - read\n - write\n---\nx"), @"agents/clerk.agent.md:5: this is not YAML: while parsing a block mapping, did not find expected key");
    assert_snapshot!(mistakes("---\ndescription: works: always\n---\nx"), @"agents/clerk.agent.md:2: this is not YAML: mapping values are not allowed in this context: put text that holds `: ` in quotes");
    assert_snapshot!(mistakes("---\nmodel: a\nmodel: b\n---\nx"), @"agents/clerk.agent.md:3: this is not YAML: duplicate mapping key: model");
    assert_snapshot!(mistakes("---\n- a\n---\nx"), @"agents/clerk.agent.md:2: the front matter is a map of keys and values, not a list");
    assert_snapshot!(mistakes("---\nmodel: a\nx"), @"agents/clerk.agent.md:1: the front matter is not closed: write `---` on a line of its own before the instructions");
    assert_snapshot!(mistakes("\n---\nmodel: a\n---\nx"), @"agents/clerk.agent.md:1: the front matter must begin in the first line: remove what stands before `---`");
    assert_snapshot!(mistakes(" \n"), @"agents/clerk.agent.md:1: the file is empty: write what the agent is to do");
}

#[test]
fn an_alias_bomb_is_a_mistake() {
    let mut text = "---\na: &a [x,x,x,x,x,x,x,x,x,x]\n".to_owned();
    for (name, of) in [('b', 'a'), ('c', 'b'), ('d', 'c'), ('e', 'd'), ('f', 'e'), ('g', 'f')] {
        use std::fmt::Write as _;
        let _ = writeln!(text, "{name}: &{name} [{}]", vec![format!("*{of}"); 10].join(","));
    }
    assert!(mistakes(&format!("{text}---\nx")).contains("this is not YAML"), "bounded");
}

#[test]
fn lines_are_right_with_windows_line_ends_and_a_mark() {
    let text = "\u{feff}---\r\nmodel: a\r\nthinkin: low\r\n---\r\nx\r\n";
    assert_snapshot!(mistakes(text), @"agents/clerk.agent.md:3: unknown key `thinkin` of the front matter: did you mean `thinking`?");
}

#[test]
fn a_file_may_be_instructions_alone() {
    let loaded =
        load_files(&[("a.agent.md", "Be kind.\n"), ("b.agent.md", "---\n---\nBe brief.\n")]);
    assert_eq!(loaded.mistakes, []);
    assert_eq!(loaded.catalog.agents["a"].instructions, "Be kind.");
    assert_eq!(loaded.catalog.agents["b"].instructions, "Be brief.");
}

#[test]
fn one_broken_file_leaves_the_others_alone() {
    let loaded = load_files(&[
        ("Good.agent.md", "x"),
        ("bad.agent.md", "---\nmodl: x\n---\n"),
        ("good.agent.md", "x"),
        ("README.md", "not an agent"),
        (".#good.agent.md", "an editor's lock"),
    ]);
    let names: Vec<&String> = loaded.catalog.agents.keys().collect();
    assert_eq!(names, ["good"]);
    let broken: Vec<&String> = loaded.catalog.broken.keys().collect();
    assert_eq!(broken, ["Good", "bad"]);
}

#[test]
fn a_missing_or_empty_folder_is_no_mistake_and_says_what_to_do() {
    let loaded = load_files(&[]);
    assert!(loaded.note.unwrap().contains(".agent.md"));
    let client = HttpClient::new(AddressRules::default()).unwrap();
    let nowhere = tempfile::tempdir().unwrap().path().join("agents");
    let loaded = load(&nowhere, &built_ins(), &app_settings, &client);
    assert_eq!(loaded.mistakes, []);
    assert!(loaded.note.unwrap().contains("no folder `agents`"));
}

#[test]
fn the_agents_that_come_along_are_good() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("agents");
    let client = HttpClient::new(AddressRules::default()).unwrap();
    let loaded = load(&folder, &built_ins(), &app_settings, &client);
    assert_eq!(loaded.mistakes, []);
    let clerk = loaded.catalog.find(Some("payments-clerk")).unwrap();
    let names: Vec<&str> = clerk.tools.iter().map(|tool| tool.definition().name.as_str()).collect();
    assert_eq!(names, ["send_payment", "list_payments"]);
    let ask = clerk.tools[0].ask(&arguments(json!({"to": "Ada", "amount": 250}))).unwrap();
    assert_eq!(ask.reason, "Sending 250 to Ada requires approval.");
    assert!(loaded.catalog.find(Some("assistant")).unwrap().tools.len() == 6);
}

#[test]
fn a_revision_changes_with_the_file_and_a_tool_s_only_with_the_tool() {
    let revisions = |text: &str| {
        let loaded = load_files(&[("a.agent.md", text)]);
        let agent = Arc::clone(loaded.catalog.find(None).unwrap());
        (agent.revision.clone(), agent.tools[0].definition().revision.clone())
    };
    let tool = "tools:\n  - http: { name: t, url: 'https://x.example/' }\n";
    let first = revisions(&format!("---\n{tool}---\nx"));
    let other_words = revisions(&format!("---\n{tool}---\ny"));
    let other_tool = revisions(&format!("---\n{}---\nx", tool.replace("x.example", "y.example")));
    assert_ne!(first.0, other_words.0);
    assert_eq!(first.1, other_words.1);
    assert_ne!(first.1, other_tool.1);
}
