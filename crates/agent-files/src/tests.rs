//! Tests of agent files: their agents, tools and mistakes.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use serde_json::{Value, json};

use crate::{AgentFileContext, LoadedAgents, McpServers, ToolSet, load_folder, load_texts};
use turnwheel_conversation::request::Effect;
use turnwheel_conversation::settings::{LoopKind, ThinkingLevel};
use turnwheel_json::raw::RawJson;
use turnwheel_tools::http::address_rules::AddressRules;
use turnwheel_tools::http::client::HttpClient;
use turnwheel_tools::{
    ApprovalRequirement, Arguments, CallableTool, ToolContext, ToolDefinition, ToolOutcome,
    ToolResult,
};

mod extension_settings;
mod guardrails;
mod http_hooks;
mod http_tools;
mod mcp;
mod memory;
mod mistakes;
mod profile;
mod schema;
mod unset_settings;

#[derive(Debug)]
struct StubTool(ToolDefinition);

#[async_trait]
impl CallableTool for StubTool {
    fn definition(&self) -> &ToolDefinition {
        &self.0
    }

    fn required_approval(&self, _: &Arguments) -> Option<ApprovalRequirement> {
        None
    }

    async fn call(&self, _: Arguments, _: ToolContext) -> ToolOutcome {
        ToolOutcome::Returned(ToolResult::default())
    }
}

pub(super) fn builtin_tools() -> ToolSet {
    let tool = |name: &str| {
        let definition = ToolDefinition {
            is_strict: false,
            name: name.to_owned(),
            label: name.to_owned(),
            description: String::new(),
            parameters: json!({"type": "object"}),
            effect: Effect::Read,
            on_unknown: turnwheel_conversation::phase::OnUnknown::Ask,
            timeout: Duration::from_secs(1),
            revision: String::new(),
        };
        (name.to_owned(), Arc::new(StubTool(definition)) as Arc<dyn CallableTool>)
    };
    ["read", "write", "edit", "ls", "find", "grep"].map(tool).into_iter().collect()
}

fn app_settings(name: &str) -> Option<String> {
    Some(match name {
        "PAYMENTS_URL" => "https://payments.example".to_owned(),
        "KEY" => "kee-p-this-secret".to_owned(),
        "LINES" => "a\nb".to_owned(),
        "EMPTY" => String::new(),
        "VAULTED" => {
            "@Microsoft.KeyVault(SecretUri=https://v.vault.azure.net/secrets/s)".to_owned()
        }
        "INSIDE" => "http://10.9.8.7".to_owned(),
        "HOOK_SECRET" => "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw".to_owned(),
        _ => return None,
    })
}

pub(super) fn file_context<'s>(tools: &'s ToolSet, client: &'s HttpClient) -> AgentFileContext<'s> {
    AgentFileContext {
        tools,
        plugins: &[],
        skills: &[],
        context_files: &[],
        mcp: McpServers::none(),
        extensions: &[],
        app_settings: &app_settings,
        client,
    }
}

fn load_files(files: &[(&str, &str)]) -> LoadedAgents {
    let folder = tempfile::tempdir().unwrap();
    let agents = folder.path().join("agents");
    std::fs::create_dir(&agents).unwrap();
    for (name, text) in files {
        std::fs::write(agents.join(name), text).unwrap();
    }
    let client = HttpClient::new(AddressRules::default()).unwrap();
    load_folder(&agents, "agents", &file_context(&builtin_tools(), &client))
}

fn arguments(value: Value) -> Arguments {
    Arguments { text: RawJson::from_value(&value), value }
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
fn example_agent_file_loads_as_an_agent() {
    let loaded = load_files(&[("clerk.agent.md", CLERK)]);
    assert_eq!(loaded.mistakes, []);
    assert_eq!(loaded.note, None);
    let agent = loaded.catalog.find(None).unwrap();
    assert_eq!(agent.description, "Pays invoices after a person agrees.");
    assert_eq!(&*agent.instructions, "You are the payments clerk. ${HOME} stays.");
    assert_eq!(agent.settings.thinking_level, Some(ThinkingLevel::Off));
    assert_eq!(agent.settings.loop_kind, Some(LoopKind::Agent));
    assert_eq!(
        agent.settings.retry.as_ref().map(|retry| (retry.max_retries, retry.enabled)),
        Some((5, true))
    );
    assert_eq!(agent.response_schema, Some(json!({"type": "object"})));
    assert_eq!(agent.revision.len(), 16);
    let tool = agent.find_tool("send_payment").unwrap();
    assert_eq!(tool.definition().effect, Effect::Write);
    assert_eq!(tool.definition().on_unknown, turnwheel_conversation::phase::OnUnknown::Tell);
    assert_eq!(tool.definition().timeout, Duration::from_secs(30));
    assert!(!format!("{agent:?}").contains("kee-p"), "`Debug` prints no app setting");
}

#[test]
fn approval_is_required_when_arguments_match_condition() {
    let loaded = load_files(&[("clerk.agent.md", CLERK)]);
    let tool = Arc::clone(loaded.catalog.find(None).unwrap().find_tool("send_payment").unwrap());
    assert_eq!(tool.required_approval(&arguments(json!({"to": "Ada", "amount": 100}))), None);
    let ask = tool.required_approval(&arguments(json!({"to": "Ada", "amount": 250}))).unwrap();
    assert_eq!(ask.reason, "Sending 250 to Ada requires approval.");
    assert_eq!(ask.approvers, ["owner", "link"]);
    assert_eq!(ask.expires_after, Duration::from_hours(24));
    let hostile = json!({"to": "Ada\u{202e}\r\nApproved by Bob", "amount": 1e3});
    let ask = tool.required_approval(&arguments(hostile)).unwrap();
    assert_eq!(ask.reason, "Sending 1000.0 to Ada Approved by Bob requires approval.");
    let long = json!({"to": "x".repeat(10_000), "amount": 101});
    assert!(tool.required_approval(&arguments(long)).unwrap().reason.len() < 300);
    assert!(
        tool.required_approval(&arguments(json!({"to": "Ada"}))).is_some(),
        "a call without an amount needs an approval"
    );
}

#[test]
fn approval_without_condition_applies_to_every_call() {
    let text =
        "---\ntools:\n  - http: { name: t, url: 'https://x.example/', approval: {} }\n---\nx";
    let loaded = load_files(&[("a.agent.md", text)]);
    assert_eq!(loaded.mistakes, []);
    let ask = loaded.catalog.find(None).unwrap().tools[0]
        .required_approval(&arguments(json!({})))
        .unwrap();
    assert_eq!(ask.reason, "Calling t requires approval.");
    assert_eq!(ask.approvers, ["owner"]);
    assert_eq!(ask.expires_after, Duration::from_hours(7 * 24));
}

#[test]
fn effect_follows_http_method_unless_given() {
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
fn repeatable_tool_timeout_covers_its_attempts_within_maximum() {
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
fn agent_file_may_have_only_instructions() {
    let loaded =
        load_files(&[("a.agent.md", "Be kind.\n"), ("b.agent.md", "---\n---\nBe brief.\n")]);
    assert_eq!(loaded.mistakes, []);
    assert_eq!(&*loaded.catalog.agents["a"].instructions, "Be kind.");
    assert_eq!(&*loaded.catalog.agents["b"].instructions, "Be brief.");
}

#[test]
fn broken_agent_file_does_not_affect_others() {
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

#[cfg(unix)]
#[test]
fn agent_file_link_must_stay_in_folder() {
    use std::os::unix::fs::symlink;

    let place = tempfile::tempdir().unwrap();
    let secret = place.path().join("id_ed25519");
    std::fs::write(&secret, "a private key").unwrap();
    let agents = place.path().join("project/agents");
    std::fs::create_dir_all(agents.join("..data")).unwrap();
    std::fs::write(agents.join("..data/clerk"), "Be kind.").unwrap();
    symlink("..data/clerk", agents.join("clerk.agent.md")).unwrap();
    symlink(&secret, agents.join("whole.agent.md")).unwrap();
    symlink("../../id_ed25519", agents.join("climbing.agent.md")).unwrap();
    symlink("/dev/zero", agents.join("endless.agent.md")).unwrap();
    symlink("nowhere", agents.join("broken.agent.md")).unwrap();
    std::fs::create_dir(agents.join("folder.agent.md")).unwrap();
    // The folder itself may be a link, because the deployment names it.
    let linked = place.path().join("agents");
    symlink(&agents, &linked).unwrap();
    let client = HttpClient::new(AddressRules::default()).unwrap();
    let loaded = load_folder(&linked, "agents", &file_context(&builtin_tools(), &client));
    assert_eq!(&*loaded.catalog.agents["clerk"].instructions, "Be kind.");
    assert_eq!(loaded.catalog.agents.len(), 1);
    for (name, why) in [
        ("whole", "a target outside of the folder"),
        ("climbing", "a target outside of the folder"),
        ("endless", "a target outside of the folder"),
        ("broken", "cannot be read"),
        ("folder", "is not a file"),
    ] {
        let problem = &loaded.catalog.broken[name].problem;
        assert!(problem.contains(why) && !problem.contains("private key"), "{problem}");
    }
}

#[test]
fn missing_agents_folder_gives_note_without_mistakes() {
    let loaded = load_files(&[]);
    assert!(loaded.note.unwrap().contains(".agent.md"));
    let client = HttpClient::new(AddressRules::default()).unwrap();
    let nowhere = tempfile::tempdir().unwrap().path().join("agents");
    let loaded = load_folder(&nowhere, "agents", &file_context(&builtin_tools(), &client));
    assert_eq!(loaded.mistakes, []);
    assert!(loaded.note.unwrap().contains("no folder `agents`"));
}

#[test]
fn included_agent_files_load_without_mistakes() {
    let folder = std::path::Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).join("agents");
    let client = HttpClient::new(AddressRules::default()).unwrap();
    let loaded = load_folder(&folder, "agents", &file_context(&builtin_tools(), &client));
    assert_eq!(loaded.mistakes, []);
    let clerk = loaded.catalog.find(Some("payments-clerk")).unwrap();
    let names: Vec<&str> = clerk.tools.iter().map(|tool| tool.definition().name.as_str()).collect();
    assert_eq!(names, ["send_payment", "list_payments"]);
    let ask =
        clerk.tools[0].required_approval(&arguments(json!({"to": "Ada", "amount": 250}))).unwrap();
    assert_eq!(ask.reason, "Sending 250 to Ada requires approval.");
    assert!(loaded.catalog.find(Some("assistant")).unwrap().tools.len() == 6);
}

#[test]
fn destination_has_the_values_of_settings_but_no_secrets() {
    const TOOL: &str = "---\ntools:\n  - http:\n      name: pay\n      method: POST\n      parameters: { properties: { to: {} } }\n";
    let destination = |tool: &str, changed: (&str, &str)| {
        let settings = |name: &str| {
            let value = match name {
                _ if name == changed.0 => changed.1,
                "BASE" => "https://pay.example/v1",
                "ACCOUNT" => "a1",
                _ => "kee-p-this-secret",
            };
            Some(value.to_owned())
        };
        let (client, tools) = (HttpClient::new(AddressRules::default()).unwrap(), builtin_tools());
        let context = AgentFileContext { app_settings: &settings, ..file_context(&tools, &client) };
        let text = format!("{TOOL}{tool}---\nx");
        let loaded = load_texts(&[("a".to_owned(), text)].into(), "agents", &context);
        assert_eq!(loaded.mistakes, []);
        loaded.catalog.find(None).unwrap().tools[0].destination()
    };
    for (tool, setting, value, is_noticed) in [
        ("      url: '${BASE}/pay/{to}'\n", "BASE", "https://other.example/v1", true),
        ("      url: '${BASE}/pay/{to}'\n", "BASE", "https://pay.example/v2", true),
        ("      url: 'https://x.example/${ACCOUNT}/{to}'\n", "ACCOUNT", "a2", true),
        ("      url: 'https://x.example/?a=${ACCOUNT}&to={to}'\n", "ACCOUNT", "a2", true),
        ("      url: 'https://x.example/?key=${API_KEY}'\n", "API_KEY", "another-secret", false),
        ("      url: '${HOOK_KEY}/pay'\n", "HOOK_KEY", "https://evil.example/secret", true),
        (
            "      url: 'https://x.example/'\n      headers: { x-account: '${ACCOUNT}' }\n",
            "ACCOUNT",
            "a2",
            true,
        ),
        (
            "      url: 'https://x.example/'\n      headers: { authorization: '${ACCOUNT}' }\n",
            "ACCOUNT",
            "a2",
            false,
        ),
        (
            "      url: 'https://x.example/'\n      body: { from: '${ACCOUNT}' }\n",
            "ACCOUNT",
            "a2",
            true,
        ),
        (
            "      url: 'https://x.example/'\n      body: { pass: '${API_TOKEN}' }\n",
            "API_TOKEN",
            "other-secret",
            false,
        ),
    ] {
        let unchanged = if setting == "HOOK_KEY" {
            destination(tool, ("HOOK_KEY", "https://pay.example/secret"))
        } else {
            destination(tool, ("", ""))
        };
        let changed = destination(tool, (setting, value));
        assert_eq!(unchanged.hash != changed.hash, is_noticed, "{tool} {setting}");
    }
    let shown = destination("      url: '${BASE}/pay/{to}'\n", ("", "")).shown.unwrap();
    let shown = serde_json::to_value(&shown).unwrap();
    assert_eq!(shown, json!({"type": "http", "method": "POST", "host": "pay.example"}));
}

#[test]
fn agent_and_tool_revisions_follow_their_definitions() {
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
