//! Tests of `mcp.json` and of `mcp` entries in agent files.

use std::collections::BTreeSet;

use insta::assert_snapshot;

use super::{builtin_tools, file_context};
use crate::{AgentFileContext, LoadedAgents, McpFile, McpServers, load_texts};
use turnwheel_tools::http::address_rules::AddressRules;
use turnwheel_tools::http::client::HttpClient;

/// The servers and the mistakes of a file, as in `dev`, where `files` may be started.
fn load(text: &str, earlier: &McpServers, may_start_programs: bool) -> (McpServers, Vec<String>) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("mcp.json");
    std::fs::write(&path, text).unwrap();
    let client = HttpClient::new(AddressRules::default()).unwrap();
    let file = McpFile { path, stdio: vec!["files".to_owned()], may_start_programs };
    let (servers, mistakes) = file.load(&file_context(&builtin_tools(), &client), earlier);
    (servers, mistakes.iter().map(ToString::to_string).collect())
}

fn load_agent(text: &str, servers: &McpServers) -> LoadedAgents {
    let client = HttpClient::new(AddressRules::default()).unwrap();
    let tools = builtin_tools();
    let context = AgentFileContext { mcp: servers, ..file_context(&tools, &client) };
    load_texts(&[("clerk".to_owned(), text.to_owned())].into(), "agents", &context)
}

fn mistakes_of(text: &str, servers: &McpServers) -> String {
    let loaded = load_agent(text, servers);
    let lines: Vec<String> = loaded.mistakes.iter().map(ToString::to_string).collect();
    lines.join("\n")
}

const SERVERS: &str = r#"{
  "servers": {
    "desk": {
      "type": "http", "url": "${PAYMENTS_URL}/mcp", "trusted": true,
      "headers": { "x-key": "${KEY}" }
    },
    "ledger": { "url": "https://l.example/mcp", "auth": { "entra": "api://ledger/.default" }, "session": "conversation" },
    "crm": {
      "url": "https://c.example/mcp",
      "auth": { "oauth": { "tokenUrl": "https://id.example/token", "clientId": "a", "clientSecret": "${KEY}", "scope": "read" } }
    },
    "files": { "command": "node", "args": [], "env": { "KEY": "${KEY}" } },
    "other": { "transport": "stdio", "command": "node", "args": ["x.js"] },
    "lost": { "url": "https://x.example/", "headers": { "x-key": "${GONE}" } }
  }
}"#;

#[test]
fn both_shapes_of_the_file_are_read() {
    for text in [SERVERS.to_owned(), SERVERS.replace("\"servers\"", "\"mcpServers\"")] {
        let (servers, mistakes) = load(&text, McpServers::none(), true);
        let names: Vec<&str> = servers.iter().map(|server| server.name.as_str()).collect();
        assert_eq!(names, ["crm", "desk", "files", "ledger"]);
        assert_eq!(mistakes.len(), 1, "{mistakes:?}");
        assert!(mistakes[0].starts_with("mcp.json:14: the app setting GONE is not set"));
        let desk = servers.iter().find(|server| server.name == "desk").unwrap();
        assert!(desk.is_trusted);
        let with_sessions = servers.iter().filter(|server| server.has_conversation_sessions());
        assert_eq!(with_sessions.map(|server| &*server.name).collect::<Vec<_>>(), ["ledger"]);
    }
}

#[test]
fn unchanged_entry_keeps_its_server() {
    let (first, _) = load(SERVERS, McpServers::none(), true);
    let (second, _) = load(&SERVERS.replace("l.example", "m.example"), &first, true);
    let is_kept = |name: &str| {
        let find = |servers: &McpServers| servers.iter().find(|it| it.name == name).cloned();
        std::sync::Arc::ptr_eq(&find(&first).unwrap(), &find(&second).unwrap())
    };
    assert_eq!([is_kept("desk"), is_kept("ledger")], [true, false]);
}

#[test]
fn changed_setting_changes_the_destination_and_the_server() {
    let servers = |base: &'static str, key: &'static str, earlier: &McpServers| {
        let settings = move |name: &str| match name {
            "BASE" => Some(base.to_owned()),
            _ => Some(key.to_owned()),
        };
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("mcp.json");
        let text = r#"{"servers": {"desk": {"url": "${BASE}/mcp", "headers": {"x-key": "${KEY}"}},
            "files": {"command": "node", "args": ["${BASE}"], "env": {"API_TOKEN": "${KEY}"}}}}"#;
        std::fs::write(&path, text).unwrap();
        let (client, tools) = (HttpClient::new(AddressRules::default()).unwrap(), builtin_tools());
        let context = AgentFileContext { app_settings: &settings, ..file_context(&tools, &client) };
        let file = McpFile { path, stdio: vec!["files".to_owned()], may_start_programs: true };
        let (servers, mistakes) = file.load(&context, earlier);
        assert!(mistakes.is_empty(), "{mistakes:?}");
        servers
    };
    let first = servers("https://a.example", "key-one-1", McpServers::none());
    let moved = servers("https://b.example", "key-one-1", &first);
    let rotated = servers("https://a.example", "key-two-2", &first);
    for name in ["desk", "files"] {
        let of = |servers: &McpServers, tool: &str| {
            let server = servers.iter().find(|it| it.name == name).unwrap();
            server.destination(tool)
        };
        assert_ne!(of(&first, "t").hash, of(&moved, "t").hash, "{name}");
        assert_eq!(of(&first, "t"), of(&rotated, "t"), "{name}");
        assert_ne!(of(&first, "t").hash, of(&first, "u").hash, "{name}");
    }
    let shown = first.iter().find(|it| it.name == "desk").unwrap().destination("t").shown.unwrap();
    assert_eq!(shown.to_string(), "tool t of MCP server desk (POST a.example)");
}

#[test]
fn mistakes_of_the_file_have_their_lines() {
    let text = r#"{
  "servers": {
    "bad name": { "url": "https://a.example/" },
    "neither": {},
    "both": { "type": "http", "url": "https://a.example/", "command": "node" },
    "old": { "type": "sse", "url": "https://a.example/" },
    "inside": { "url": "http://10.1.2.3/" },
    "argument": { "url": "https://a.example/{x}" },
    "owner": { "url": "https://a.example/", "headers": { "mcp-session-id": "1", "x": "${TURNWHEEL_KEY}" } },
    "plain": { "url": "http://a.example/", "auth": { "entra": "api://a/.default" } },
    "twice": { "url": "https://a.example/", "headers": { "Authorization": "x" }, "auth": { "entra": "api://a/.default" } },
    "oauth": { "url": "https://a.example/", "auth": { "oauth": { "tokenUrl": "http://169.254.169.254/token", "clientId": "a", "key": "b" } } },
    "program": { "command": "${KEY}", "args": "x" },
    "text": "x",
    "user": { "url": "https://a.example/", "session": "user" }
  },
  "server": {}
}"#;
    let (servers, mistakes) = load(text, McpServers::none(), true);
    assert_eq!(servers.iter().count(), 0);
    assert_snapshot!(mistakes.join("\n"), @r"
    mcp.json:3: a server's name is 1 to 32 of A-Z, a-z, 0-9 and `-`
    mcp.json:4: a server needs `url`, or `command` for a program
    mcp.json:5: unknown key `command` of an http server: the nearest is `trusted`; there are: type, transport, url, headers, auth, session, trusted
    mcp.json:6: the transport `sse` is obsolete: use the server's streamable HTTP url and `http`
    mcp.json:7: tools may not call this url: the address is private, local or reserved; an operator can list it in TURNWHEEL_HTTP_TOOLS_ALLOW
    mcp.json:8: there is no `{x}` here: a server has no arguments
    mcp.json:9: `mcp-session-id` is no header that a server may be sent
    mcp.json:9: the app setting TURNWHEEL_KEY belongs to the platform or to Turnwheel and may not be sent: give the tool a setting of its own
    mcp.json:10: `auth` sends a token, which needs encryption: begin the url with https://
    mcp.json:11: `auth` sends the header `authorization`: remove it from `headers`
    mcp.json:12: `oauth` needs `clientSecret`
    mcp.json:12: `auth` sends a token, which needs encryption: begin the url with https://
    mcp.json:12: tools may not call this url: the address is private, local or reserved; an operator can list it in TURNWHEEL_HTTP_TOOLS_ALLOW
    mcp.json:12: unknown key `key` of `oauth`: the nearest is `scope`; there are: tokenUrl, clientId, clientSecret, scope, resource
    mcp.json:13: `command` is without app settings: write them into `args` or `env`
    mcp.json:13: `args` is a list of arguments
    mcp.json:14: a server is a map, not text
    mcp.json:15: `user` is not a value of `session`: the nearest is `process`; there are: process, conversation
    mcp.json:17: unknown key `server` of mcp.json: did you mean `servers`?
    ");
    for (text, expected) in [
        ("{\n  \"servers\": {,}\n}", "mcp.json:2: the file is not JSON"),
        ("[]", "mcp.json:1: mcp.json is a map"),
        ("{}", "mcp.json:1: the file needs `servers`"),
        ("{\"servers\": {},\n\"mcpServers\": {}}", "mcp.json:2: write one of"),
    ] {
        let (_, mistakes) = load(text, McpServers::none(), true);
        assert!(mistakes[0].starts_with(expected), "{mistakes:?}");
    }
}

#[test]
fn agent_names_servers_of_the_file() {
    let (servers, _) = load(SERVERS, McpServers::none(), true);
    let text = "---
mcpContent: json
activeTools: [mcp__desk__send, read]
tools:
  - read
  - mcp: ledger
  - mcp: { server: desk, tools: [send_*], effect: idempotent, timeout: 30s, approval: { reason: Sends mail. } }
---
x";
    let loaded = load_agent(text, &servers);
    assert_eq!(loaded.mistakes, []);
    let agent = loaded.catalog.find(None).unwrap();
    let names: Vec<&str> = agent.mcp.iter().map(|it| it.server.name.as_str()).collect();
    assert_eq!(names, ["ledger", "desk"]);
}

#[test]
fn mistakes_of_mcp_entries_have_their_lines() {
    let (servers, _) = load(SERVERS, McpServers::none(), true);
    let text = "---
mcpContent: text
activeTools: [mcp__gone__x]
tools:
  - mcp: dsk
  - mcp: lost
  - mcp: other
  - mcp: { server: desk, effect: readonly, tools: ['['], timeout: 5m }
  - mcp: { server: desk, approval: { when: {}, reason: '{n}' } }
  - mcp: { server: ledger, tool: x }
  - mcp: []
plugins:
  - http: { name: p, url: 'https://p.example/', secret: '${HOOK_SECRET}', tools: [{ mcp: desk }] }
---
x";
    assert_snapshot!(mistakes_of(text, &servers), @r"
    agents/clerk.agent.md:2: `text` is not a value of `mcpContent`: the nearest is `json`; there are: native, json
    agents/clerk.agent.md:3: `activeTools` names `mcp__gone__x`, which is not among `tools`: there are none
    agents/clerk.agent.md:5: there is no server `dsk` in mcp.json: did you mean `desk`?
    agents/clerk.agent.md:6: the app setting GONE is not set: in Azure add it to the app's settings, here set the environment variable, or add it to `Values` in local.settings.json
    agents/clerk.agent.md:7: the server `other` is a program: to let `dev` start it, add its name to TURNWHEEL_MCP_STDIO
    agents/clerk.agent.md:8: `readonly` is not a value of `effect`: write `read`
    agents/clerk.agent.md:8: `[` is no pattern: error parsing glob '[': unclosed character class; missing ']'
    agents/clerk.agent.md:8: `timeout` must be more than 0 and at most 4m
    agents/clerk.agent.md:9: `{n}` is not among the `parameters`: there are none
    agents/clerk.agent.md:10: unknown key `tool` of an mcp entry: did you mean `tools`?
    agents/clerk.agent.md:11: an mcp entry is a map of keys and values, not a list
    agents/clerk.agent.md:11: an mcp entry needs `server`, a name in mcp.json
    agents/clerk.agent.md:13: a plugin has no tools of MCP servers: write the `mcp` entry under `tools` of the agent
    ");
}

#[test]
fn programs_are_started_only_by_dev_and_by_name() {
    let agent = |server: &str| format!("---\ntools:\n  - mcp: {server}\n---\nx");
    let (servers, mistakes) = load(SERVERS, McpServers::none(), false);
    assert_eq!(mistakes.len(), 1, "an entry that no agent names is no mistake: {mistakes:?}");
    assert_snapshot!(mistakes_of(&agent("files"), &servers), @"agents/clerk.agent.md:3: the server `files` is a program, which only `turnwheel dev` starts: elsewhere there may be no such program, and none outlives the worker; give the server a `url`");
    let (servers, _) = load(SERVERS, McpServers::none(), true);
    assert_eq!(mistakes_of(&agent("files"), &servers), "");
    assert_snapshot!(mistakes_of(&agent("other"), &servers), @"agents/clerk.agent.md:3: the server `other` is a program: to let `dev` start it, add its name to TURNWHEEL_MCP_STDIO");
}

#[test]
fn server_is_a_program_in_dev_and_has_a_url_elsewhere() {
    let text = r#"{"servers": {"files": {"command": "python3", "args": ["tools.py"], "url": "${FILES_URL}",
        "auth": { "entra": "api://files/.default" }, "trusted": true }}}"#;
    let agent = "---\ntools:\n  - mcp: files\n---\nx";
    let (servers, mistakes) = load(text, McpServers::none(), true);
    assert_eq!(mistakes, [""; 0]);
    assert!(servers.iter().all(|server| server.is_program() && server.is_trusted));
    assert_eq!(mistakes_of(agent, &servers), "");
    let (servers, mistakes) = load(text, McpServers::none(), false);
    assert!(mistakes[0].starts_with("mcp.json:1: the app setting FILES_URL is not set"));
    assert!(mistakes_of(agent, &servers).contains("the app setting FILES_URL is not set"));
    let text = text.replace("${FILES_URL}", "https://files.example/mcp");
    let (servers, mistakes) = load(&text, McpServers::none(), false);
    assert_eq!(mistakes, [""; 0]);
    assert!(servers.iter().all(|server| !server.is_program()));
    let (servers, _) =
        load(&text.replace("files\": {\"c", "other\": {\"c"), McpServers::none(), true);
    assert!(
        mistakes_of(&agent.replace("files", "other"), &servers).contains("TURNWHEEL_MCP_STDIO")
    );
}

#[test]
fn all_missing_settings_of_a_server_are_reported() {
    let text = r#"{"servers": {"desk": {"url": "https://d.example/mcp", "headers": {"x": "${GONE}", "y": "${LOST}"}}}}"#;
    let (servers, mistakes) = load(text, McpServers::none(), true);
    let names = |lines: &str| ["GONE", "LOST"].map(|name| lines.contains(name));
    assert_eq!(names(&mistakes.join("\n")), [true, true], "{mistakes:?}");
    let of_agent = mistakes_of("---\ntools: [{ mcp: desk }]\n---\nx", &servers);
    assert_eq!(names(&of_agent), [true, true], "{of_agent}");
    assert_eq!(of_agent.lines().count(), 2, "{of_agent}");
}

/// Names of the settings that these mistakes report as not set.
fn unset(mistakes: &str) -> BTreeSet<&str> {
    let names = mistakes.lines().filter_map(|line| {
        let (_, rest) = line.split_once("the app setting ")?;
        rest.split_once(" is not set").map(|(name, _)| name)
    });
    names.collect()
}

#[test]
fn missing_settings_of_all_members_are_reported() {
    for (server, expected) in [
        (r#"{"url": "${A}/mcp", "headers": {"x-key": "${B}"}}"#, "A B"),
        (r#"{"url": "https://${A}:${B}/x", "auth": {"entra": "api://x/.default"}}"#, "A B"),
        (
            r#"{"url": "${A}", "headers": {"x": "${B}", "y": "k ${C}"}, "session": "conversation",
                "auth": {"oauth": {"tokenUrl": "${D}", "clientId": "${E}", "clientSecret": "${F}",
                "scope": "${G}", "resource": "${H}"}}}"#,
            "A B C D E F G H",
        ),
        (r#"{"command": "node", "env": {"X": "${A}", "Y": "${B}"}}"#, "A B"),
        (
            r#"{"command": "node", "args": ["${A}", "--b=${B}${C}"], "env": {"X": "${D}", "Y": "${E}", "Z": "${KEY}"}}"#,
            "A B C D E",
        ),
    ] {
        let expected: BTreeSet<&str> = expected.split(' ').collect();
        let text = format!(r#"{{"servers": {{"files": {server}}}}}"#);
        let (servers, mistakes) = load(&text, McpServers::none(), true);
        assert_eq!(unset(&mistakes.join("\n")), expected);
        assert_eq!(mistakes.len(), expected.len(), "{mistakes:?}");
        assert_eq!(servers.iter().count(), 0, "no usable server");
        let of_agent = mistakes_of("---\ntools: [{ mcp: files }]\n---\nx", &servers);
        assert_eq!(unset(&of_agent), expected);
        assert_eq!(of_agent.lines().count(), expected.len(), "{of_agent}");
    }
}

#[test]
fn missing_settings_of_several_servers_are_reported() {
    let text = r#"{"servers": {
        "desk": {"url": "${A}", "headers": {"x": "${B}"}},
        "crm": {"url": "https://c.example/", "headers": {"x": "${A}", "y": "${VAULTED}", "z": "${EMPTY}"}}
    }}"#;
    let (servers, mistakes) = load(text, McpServers::none(), false);
    assert_eq!(mistakes.len(), 5, "{mistakes:?}");
    let agent = "---\nactiveTools: [mcp__desk__a, t]\ntools:\n  - mcp: desk\n  - mcp: crm\n  - http: { name: t, url: '${C}' }\n---\nx";
    let loaded = load_agent(agent, &servers);
    let names: BTreeSet<&str> =
        loaded.mistakes.iter().map(|it| it.missing_setting.as_deref().unwrap()).collect();
    assert_eq!(names, BTreeSet::from(["A", "B", "C", "EMPTY", "VAULTED"]));
    assert_eq!(unset(&mistakes_of(agent, &servers)), BTreeSet::from(["A", "B", "C", "EMPTY"]));
    assert!(loaded.catalog.agents.is_empty());
    assert_eq!(loaded.unset_agents["clerk"].mcp.len(), 2);
}

#[test]
fn mistakes_do_not_hide_missing_settings() {
    for (server, mistake) in [
        (
            r#"{"type": "http", "headers": {"x": "${A}", "y": "${B}"}}"#,
            "an http server needs `url`",
        ),
        (
            r#"{"url": "ftp://a/", "headers": {"x": "${A}"}, "auth": {"oauth": {"tokenUrl": "https://a/", "clientId": "a", "clientSecret": "${B}"}}}"#,
            "the url must begin with https:// or http://",
        ),
        (
            r#"{"url": "https://a.example/", "headers": {"mcp-a": "${A}", "x": "${B}"}}"#,
            "`mcp-a` is no header",
        ),
        (
            r#"{"type": "stdio", "args": ["${A}"], "env": {"X": "${B}"}}"#,
            "a stdio server needs `command`",
        ),
        (
            r#"{"command": 1, "args": ["${A}"], "env": {"X": "${B}"}}"#,
            "`command` must be text and is a number",
        ),
        (
            r#"{"command": "node", "env": {"X": 1, "Y": "${A}", "Z": "${B}"}}"#,
            "`X` must be text and is a number",
        ),
    ] {
        let text = format!(r#"{{"servers": {{"files": {server}}}}}"#);
        let (servers, mistakes) = load(&text, McpServers::none(), true);
        let mistakes = mistakes.join("\n");
        assert_eq!(unset(&mistakes), BTreeSet::from(["A", "B"]), "{mistakes}");
        assert!(mistakes.contains(mistake), "{mistakes}");
        let of_agent = mistakes_of("---\ntools: [{ mcp: files }]\n---\nx", &servers);
        assert!(of_agent.contains("the server `files` has mistakes in mcp.json"), "{of_agent}");
    }
}

#[test]
fn program_with_missing_settings_is_refused_outside_dev() {
    let text = r#"{"servers": {"files": {"command": "node", "env": {"X": "${GONE}"}}}}"#;
    let (servers, mistakes) = load(text, McpServers::none(), false);
    assert_eq!(unset(&mistakes.join("\n")), BTreeSet::from(["GONE"]));
    let of_agent = mistakes_of("---\ntools: [{ mcp: files }]\n---\nx", &servers);
    assert!(of_agent.contains("is a program, which only `turnwheel dev` starts"), "{of_agent}");
}
