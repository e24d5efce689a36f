//! Tests of mistakes in agent files: all are reported at once, each with its line.

use insta::assert_snapshot;

use super::load_files;
use crate::sections::SECTIONS;

/// Returns the mistakes of one file, one per line.
fn mistakes(text: &str) -> String {
    let loaded = load_files(&[("clerk.agent.md", text)]);
    assert!(loaded.catalog.agents.is_empty());
    let problem = &loaded.catalog.broken["clerk"].problem;
    let lines: Vec<String> = loaded.mistakes.iter().map(ToString::to_string).collect();
    assert_eq!(*problem, lines.join("\n"));
    lines.join("\n")
}

#[test]
fn all_mistakes_are_reported_with_their_lines() {
    assert_snapshot!(mistakes(r#"---
descripton: A clerk.
model: 5
thinking: of
temperature: 3
maxRounds: 0
retry: { maxRetry: 1 }
budget: { cost: 1 }
name: clark
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
      auth: { entra: "api://payments" }
      approval:
        when: { properties: { amont: { exclusiveMinimum: 100 } } }
        reason: "Sending {amount} with ${KEY}."
        approvers: [owner, role, links]
        expiresAfter: 91d
---
x"#), @r#"
    agents/clerk.agent.md:2: unknown key `descripton` of the front matter: did you mean `description`?
    agents/clerk.agent.md:3: `model`: this must be a text, not 5
    agents/clerk.agent.md:4: `thinking`: unknown value `of`, expected one of `off`, `minimal`, `low`, `medium`, `high`, `xhigh`, `max`
    agents/clerk.agent.md:5: `temperature` must be from 0 to 2
    agents/clerk.agent.md:6: `maxRounds` must be at least 1
    agents/clerk.agent.md:7: unknown key `maxRetry` of `retry`: the nearest is `maxRetries`; there are: enabled, maxRetries, baseDelayMs, maxDelayMs, jitter
    agents/clerk.agent.md:8: unknown key `cost` of `budget`: the nearest is `prompt`; there are: prompt, conversation
    agents/clerk.agent.md:9: the file's name makes this the agent `clerk`: rename the file, or remove `name`
    agents/clerk.agent.md:11: there is no tool `raed`: did you mean `read`?
    agents/clerk.agent.md:12: unknown key `bash` of a tool: shell tools need TURNWHEEL_SHELL: `sandbox` on a developer's Linux machine, `sessions` in Azure
    agents/clerk.agent.md:14: a tool's name is 1 to 64 of A-Z, a-z, 0-9, `_`, `-` and `.`
    agents/clerk.agent.md:15: `parameters` is not a JSON Schema (at /properties/to/type): "sting" is not a type: there are string, number, integer, boolean, object, array and null
    agents/clerk.agent.md:16: `post` is not a method of a tool: did you mean `POST`?
    agents/clerk.agent.md:17: `{too}` is not among the `parameters`: did you mean `to`?
    agents/clerk.agent.md:18: unknown key `header` of an http tool: did you mean `headers`?
    agents/clerk.agent.md:19: `writes` is not a value of `effect`: did you mean `write`?
    agents/clerk.agent.md:20: `timeout` must be more than 0 and at most 4m
    agents/clerk.agent.md:21: `entra` is the service's scope and ends in /.default, such as api://payments/.default
    agents/clerk.agent.md:23: `when` names `amont`, which is not among the `parameters`: did you mean `amount`?
    agents/clerk.agent.md:24: `reason` is shown to users: it may hold arguments and no app setting
    agents/clerk.agent.md:25: `role` is not an approver: did you mean `role:NAME`?
    agents/clerk.agent.md:25: `links` is not an approver: did you mean `link`?
    agents/clerk.agent.md:26: `expiresAfter` must be more than 0 and at most 90d
    "#);
}

#[test]
fn unsafe_http_requests_are_mistakes() {
    assert_snapshot!(mistakes(r#"---
description: "Uses ${KEY}"
activeTools: [reads]
tools:
  - read
  - read
  - http: { url: "https://{host}/x", parameters: { properties: { host: {} } } }
  - http: { name: a, url: "https://u:p@x.example/" }
  - http: { name: b, url: "${GONE}/${EMPTY}/${VAULTED}" }
  - http: { name: c, url: "${AzureWebJobsStorage}/${IDENTITY_HEADER}/${cosmos__accountKey}" }
  - http: { name: d, url: "${INSIDE}/x" }
  - http: { name: e, url: "https://x.example/", headers: { Host: y, x-a: "${LINES}", "b c": d, idempotency-key: f } }
  - http: { name: f, url: "https://x.example/", body: { a: 1 } }
  - http: { name: g, url: "https://x.example/", method: POST, body: "a={b}" }
  - http: { name: h, url: "https://x.example/{", parameters: { type: array } }
  - http: { name: i, url: "https://x.example/", timeout: 30, approval: { notRequester: true, approvers: [owner] } }
  - http: { name: j, url: "https://x.example/", approval: never }
  - http: { name: k, url: "http://x.example/", auth: { entra: "api://x/.default" }, headers: { Authorization: x } }
  - http: { name: l, url: "https://x.example/", auth: { key: x } }
  - http: { name: m, url: "https://x.example/", auth: "${KEY}" }
  - http: { name: n, url: "https://x.example/", auth: { entra: "${KEY}/.default" } }
  - http: { name: o, url: "https://x.example/", auth: {} }
---
x"#), @r#"
    agents/clerk.agent.md:2: app settings (`${NAME}`) may stand only in the url, headers and body of an http tool, and in the url and secret of an http extension or plugin
    agents/clerk.agent.md:3: `activeTools` names `reads`, which is not among `tools`: did you mean `read`?
    agents/clerk.agent.md:6: there is another tool `read`: names are unique in an agent
    agents/clerk.agent.md:7: an http tool needs `name`
    agents/clerk.agent.md:7: an argument may stand only in the url's path and query: end the host with `/`
    agents/clerk.agent.md:8: the url may hold no user name or password: use `headers`
    agents/clerk.agent.md:9: the app setting EMPTY is not set: in Azure add it to the app's settings, here set the environment variable, or add it to `Values` in local.settings.json
    agents/clerk.agent.md:9: the app setting GONE is not set: in Azure add it to the app's settings, here set the environment variable, or add it to `Values` in local.settings.json
    agents/clerk.agent.md:9: the app setting VAULTED is a Key Vault reference that is not resolved: in Azure give the app's identity the role `Key Vault Secrets User`, wait some minutes, or have App Service resolve it again (`az rest --method POST --uri "https://management.azure.com$(az functionapp show -g GROUP -n APP --query id -o tsv)/config/configreferences/appsettings/refresh?api-version=2022-03-01"`); elsewhere set the value itself
    agents/clerk.agent.md:10: the app setting AzureWebJobsStorage belongs to the platform or to Turnwheel and may not be sent: give the tool a setting of its own
    agents/clerk.agent.md:10: the app setting IDENTITY_HEADER belongs to the platform or to Turnwheel and may not be sent: give the tool a setting of its own
    agents/clerk.agent.md:10: the app setting cosmos__accountKey belongs to the platform or to Turnwheel and may not be sent: give the tool a setting of its own
    agents/clerk.agent.md:11: tools may not call this url: the address is private, local or reserved; an operator can list it in TURNWHEEL_HTTP_TOOLS_ALLOW
    agents/clerk.agent.md:12: Turnwheel or the connection sets the header `Host`: remove it
    agents/clerk.agent.md:12: the header `x-a` would hold a line break or control character
    agents/clerk.agent.md:12: `b c` is not a header name
    agents/clerk.agent.md:12: Turnwheel or the connection sets the header `idempotency-key`: remove it
    agents/clerk.agent.md:13: a GET has no body: remove `body`, or use POST
    agents/clerk.agent.md:14: `body` is a map or a list, and is sent as JSON
    agents/clerk.agent.md:15: `{` begins an argument: write {name}, or {{ for the character
    agents/clerk.agent.md:15: `parameters` must be of `type: object`: arguments have names
    agents/clerk.agent.md:16: `timeout` is not a duration: write a whole number and its unit, like 500ms, 30s, 2m, 24h or 7d
    agents/clerk.agent.md:16: with `notRequester` the owner may not decide the owner's own requests: add `link` or `role:NAME` to `approvers`
    agents/clerk.agent.md:17: `never` is not a value of `approval`: write `always`, `true`, or a map of when, reason, approvers, notRequester, expiresAfter
    agents/clerk.agent.md:18: `auth` sends a token, which needs encryption: begin the url with https://
    agents/clerk.agent.md:18: `auth` sends the header `authorization`: remove it from `headers`
    agents/clerk.agent.md:19: unknown key `key` of `auth`: the nearest is `entra`; there are: entra
    agents/clerk.agent.md:20: `auth` is { entra: SCOPE }, with the scope of the service that is called, such as api://payments/.default
    agents/clerk.agent.md:21: app settings (`${NAME}`) may stand only in the url, headers and body of an http tool, and in the url and secret of an http extension or plugin
    agents/clerk.agent.md:22: `auth` is { entra: SCOPE }, with the scope of the service that is called, such as api://payments/.default
    "#);
}

#[test]
fn invalid_yaml_is_reported_with_its_line() {
    assert_snapshot!(mistakes("---\ndescription: a\ntools:\n  - read\n - write\n---\nx"), @"agents/clerk.agent.md:5: this is not YAML: while parsing a block mapping, did not find expected key");
    assert_snapshot!(mistakes("---\ndescription: works: always\n---\nx"), @"agents/clerk.agent.md:2: this is not YAML: mapping values are not allowed in this context: put text that holds `: ` in quotes");
    assert_snapshot!(mistakes("---\nmodel: a\nmodel: b\n---\nx"), @"agents/clerk.agent.md:3: this is not YAML: duplicate mapping key: model");
    assert_snapshot!(mistakes("---\n- a\n---\nx"), @"agents/clerk.agent.md:2: the front matter is a map of keys and values, not a list");
    assert_snapshot!(mistakes("---\nmodel: a\nx"), @"agents/clerk.agent.md:1: the front matter is not closed: write `---` on a line of its own before the instructions");
    assert_snapshot!(mistakes("\n---\nmodel: a\n---\nx"), @"agents/clerk.agent.md:1: the front matter must begin in the first line: remove the lines before `---`");
    assert_snapshot!(mistakes(" \n"), @"agents/clerk.agent.md:1: the file is empty: write instructions for the agent");
}

#[test]
fn number_with_more_digits_than_floats_is_a_mistake() {
    let file = |limit: &str| {
        format!(
            "---\ntools:\n  - http:\n      name: t\n      url: https://x.example/\n      parameters: {{ properties: {{ n: {{}} }} }}\n      approval: {{ when: {{ properties: {{ n: {{ maximum: {limit} }} }} }} }}\n---\nx"
        )
    };
    for limit in
        ["100.00000000000000000001", "0.1000000000000000055511151231257827", "9007199254740993.5"]
    {
        let found = mistakes(&file(limit));
        let expected = format!(
            "agents/clerk.agent.md:7: the number {limit} has more digits than are kept: write at most 15, or a text"
        );
        assert_eq!(found, expected);
    }
    for limit in ["100", "-0.5", "1.50", "1e3", "2.5E-3", "18446744073709551615", "100.0", "1e22"] {
        assert_eq!(load_files(&[("clerk.agent.md", &file(limit))]).mistakes, [], "{limit}");
    }
}

#[test]
fn yaml_alias_bomb_is_a_mistake() {
    let mut text = "---\na: &a [x,x,x,x,x,x,x,x,x,x]\n".to_owned();
    for (name, of) in [('b', 'a'), ('c', 'b'), ('d', 'c'), ('e', 'd'), ('f', 'e'), ('g', 'f')] {
        use std::fmt::Write as _;
        let _ = writeln!(text, "{name}: &{name} [{}]", vec![format!("*{of}"); 10].join(","));
    }
    assert!(mistakes(&format!("{text}---\nx")).contains("this is not YAML"), "bounded");
}

#[test]
fn line_numbers_are_correct_with_crlf_and_bom() {
    let text = "\u{feff}---\r\nmodel: a\r\nthinkin: low\r\n---\r\nx\r\n";
    assert_snapshot!(mistakes(text), @"agents/clerk.agent.md:3: unknown key `thinkin` of the front matter: did you mean `thinking`?");
}

#[test]
fn remote_response_schema_is_not_fetched() {
    for place in ["https://schemas.example/a.json", "file:///etc/hostname"] {
        let text = format!("---\nresponseSchema: {{ $ref: '{place}' }}\n---\nx");
        assert!(mistakes(&text).contains("`responseSchema` is not a JSON Schema"), "{place}");
    }
}

#[test]
fn missing_app_setting_is_distinct_from_file_mistakes() {
    let text =
        "---\nmodl: x\ntools:\n  - http: { name: t, url: 'https://x.example/${GONE}' }\n---\nx";
    let loaded = load_files(&[("clerk.agent.md", text)]);
    let settings: Vec<Option<&str>> =
        loaded.mistakes.iter().map(|mistake| mistake.missing_setting.as_deref()).collect();
    assert_eq!(settings, [None, Some("GONE")]);
}

#[test]
fn parallel_tools_max_is_bounded() {
    assert_snapshot!(mistakes("---\ntoolExecution: all\nparallelToolsMax: 17\n---\nx"), @r"
    agents/clerk.agent.md:2: `toolExecution`: unknown value `all`, expected `sequential` or `parallel`
    agents/clerk.agent.md:3: `parallelToolsMax` must be from 1 to 16
    ");
}

#[test]
fn invalid_window_security_and_strict_schema_are_mistakes() {
    assert_snapshot!(mistakes("---\nloop: protocol\nhistoryWindow: 0\nsecurity: {}\ntools:\n  - http: { name: a, url: 'https://a.example', strict: true, parameters: { properties: { q: {} } } }\n---\nx"), @r"
    agents/clerk.agent.md:3: `historyWindow` must be at least 1
    agents/clerk.agent.md:4: `security` must be text and is a map
    agents/clerk.agent.md:6: `strict` needs every property in `required`: at # `q` is not (let it be null instead)
    ");
}

#[test]
fn protocol_mode_must_fit_loop_and_continuation() {
    assert_snapshot!(mistakes("---\ncontinuation: inline\nprotocolMode: auto\n---\nx"), @"agents/clerk.agent.md:3: `protocolMode` needs `loop: protocol`: set the loop or remove the mode");
    assert_snapshot!(mistakes("---\nloop: protocol\nprotocolMode: resume\n---\nx"), @"agents/clerk.agent.md:3: `protocolMode: resume` needs `continuation: inline`, because its connection lasts one delivery: set the continuation, or the mode `auto` or `replay`");
    assert_snapshot!(mistakes("---\nloop: protocol\nprotocolMode: socket\n---\nx"), @"agents/clerk.agent.md:3: `protocolMode`: unknown value `socket`, expected one of `auto`, `resume`, `replay`");
    let valid = "---\nloop: protocol\nprotocolMode: auto\n---\nx";
    assert!(load_files(&[("clerk.agent.md", valid)]).mistakes.is_empty());
}

#[test]
fn keys_of_other_formats_suggest_replacements() {
    assert_snapshot!(mistakes(r#"---
trigger: { type: timer }
builtin_endpoints: true
mcp: []
instructions: "Be kind."
tools:
  - bash
  - mcp: { url: "https://x.example" }
  - http:
      name: look
      inputSchema: {}
      input_schema: {}
      query: { q: "{q}" }
      effect: readonly
      url: https://x.example/
      approval: false
---
x"#), @r#"
    agents/clerk.agent.md:2: unknown key `trigger` of the front matter: a key of the Azure Functions agents runtime; here prompts come by HTTP, queue or schedule, without a key in the file
    agents/clerk.agent.md:3: unknown key `builtin_endpoints` of the front matter: a key of the Azure Functions agents runtime; here every agent has the HTTP API
    agents/clerk.agent.md:4: unknown key `mcp` of the front matter: a key of the Azure Functions agents runtime; here write `- mcp: SERVER` under `tools`, and the server into mcp.json
    agents/clerk.agent.md:5: unknown key `instructions` of the front matter: write the instructions below the front matter
    agents/clerk.agent.md:7: there is no tool `bash`: shell tools need TURNWHEEL_SHELL: `sandbox` on a developer's Linux machine, `sessions` in Azure
    agents/clerk.agent.md:8: an mcp entry needs `server`, a name in mcp.json
    agents/clerk.agent.md:8: unknown key `url` of an mcp entry: write the server into mcp.json, and its name here
    agents/clerk.agent.md:11: unknown key `inputSchema` of an http tool: write `parameters`
    agents/clerk.agent.md:12: unknown key `input_schema` of an http tool: write `parameters`
    agents/clerk.agent.md:13: unknown key `query` of an http tool: write it into `url`, such as `https://api.example/search?q={q}`
    agents/clerk.agent.md:14: `readonly` is not a value of `effect`: write `read`
    agents/clerk.agent.md:16: remove `approval`: without it no approval is requested
    "#);
}

#[test]
fn matching_name_and_plain_approval_are_accepted() {
    for approval in ["always", "true", "{}"] {
        let text = format!(
            "---\nname: clerk\ntools:\n  - http: {{ name: pay, method: POST, url: 'https://x.example/', approval: {approval} }}\n---\nx"
        );
        let loaded = load_files(&[("clerk.agent.md", &text)]);
        assert_eq!(loaded.mistakes, [], "{approval}");
        let tool = &loaded.catalog.agents["clerk"].tools[0];
        let value = serde_json::json!({});
        let text = turnwheel_json::raw::RawJson::from_value(&value);
        let requirement =
            tool.required_approval(&turnwheel_tools::Arguments { value, text }).expect(approval);
        assert_eq!(requirement.approvers, ["owner"]);
    }
}

/// The reason of the only mistake of an agent with these lines of front matter.
fn reason(front_matter: &str) -> String {
    let all = mistakes(&format!("---\n{front_matter}\n---\nx"));
    let (_, reason) = all.split_once(": ").unwrap();
    assert!(!reason.contains('\n'), "one mistake: {all}");
    reason.to_owned()
}

#[test]
fn mistakes_of_newcomers_name_the_remedy() {
    let tool = |members: &str| {
        format!("tools:\n  - http: {{ name: a, url: \"https://a.example/\", {members} }}")
    };
    let search =
        "there is no search tool: write an HTTP tool (`- http:`) that calls a search service";
    for (front_matter, expected) in [
        (
            tool("approval: yes"),
            "`yes` is not a value of `approval`: write `always`, `true`, or a map of when, reason",
        ),
        (tool("approval: required"), "`required` is not a value of `approval`: write `always`"),
        (
            tool("approval: { approvers: [Finance] }"),
            "`Finance` is not an approver: write `role:Finance` for a role",
        ),
        (tool("label: \"a\u{202e}b\""), "`label` is one line of 1 to 64 characters"),
        ("tools: [search]".to_owned(), search),
        ("tools: [web_search]".to_owned(), search),
        ("tools: [{ web_search: {} }]".to_owned(), search),
        ("tools: [code_interpreter]".to_owned(), "write `bash` or `shell`"),
        ("tools: [{ agent: billing }]".to_owned(), "Turnwheel has no sub-agents"),
        ("subagents: [billing]".to_owned(), "Turnwheel has no sub-agents"),
        ("handoffs: [billing]".to_owned(), "Turnwheel has no sub-agents"),
        (
            tool("parameters: { properties: { q: { type: str } } }"),
            "\"str\" is not a type: there are string, number",
        ),
        (
            "responseSchema: { type: [text, \"null\"] }".to_owned(),
            "[\"text\",\"null\"] is not a type",
        ),
        (
            "budget: 0.5".to_owned(),
            "`budget` is a map of limits, such as `{ prompt: { usd: 0.5 } }`",
        ),
        (
            "budget: high".to_owned(),
            "`budget` is a map of limits, such as `{ prompt: { usd: 0.5 } }`",
        ),
        ("maxRounds: ten".to_owned(), "`maxRounds` must be a whole number, at least 1"),
        ("hardRoundsMax: 1.5".to_owned(), "`hardRoundsMax` must be a whole number, from 1 to 200"),
        (
            "maxOutputTokens: -1".to_owned(),
            "`maxOutputTokens` must be a whole number, from 1 to 1000000",
        ),
    ] {
        let reason = reason(&front_matter);
        assert!(reason.contains(expected), "{front_matter}: {reason}");
    }
}

#[test]
fn front_matter_without_fences_is_a_mistake() {
    for text in
        ["description: A clerk.\ntools: []\n---\nx", "model: normal\nx", "tools:\n  - read\nx"]
    {
        let found = mistakes(text);
        assert!(
            found.contains("looks like front matter: write `---` on a line of its own"),
            "{found}"
        );
    }
    for text in [
        "Tools: use them.",
        "Note: be brief.",
        "description of a clerk",
        "See https://a.example: it helps.",
    ] {
        let loaded = load_files(&[("clerk.agent.md", text)]);
        assert!(loaded.mistakes.is_empty(), "{text}: {:?}", loaded.mistakes);
    }
}

#[test]
fn each_key_without_fences_is_a_mistake() {
    let agent_keys = SECTIONS.iter().flat_map(|section| section.keys).copied();
    for key in agent_keys.chain(["name", "approval", "argument-hint"]) {
        for begin in ["", "\n \n", "# note\n", "#\n\n  # two\n"] {
            for line in [": low", ":", ": {}", " : x", ":\tx"] {
                let found = mistakes(&format!("{begin}{key}{line}\n---\nYou help."));
                assert!(found.contains(&format!("`{key}:` looks like front matter")), "{found}");
            }
        }
        let found = mistakes(&format!("\"{key}\": x"));
        assert!(found.contains("looks like front matter"), "{found}");
        let found = mistakes(&format!("# note\n---\n# more\n{key}: x\n---\nYou help."));
        assert!(found.contains("the front matter must begin in the first line"), "{found}");
    }
}

#[test]
fn prompt_that_begins_like_prose_is_accepted() {
    for text in [
        "# Title\n\nYou help.",
        "# Title\nNote: be brief.\n\nmodel: x",
        "# Title\n\n---\n\nYou help.\n\n---\ntools: x",
        "## Tools\n\n- tools: use them",
        "Memory: none.",
        "models: a and b",
        "retry:soon",
        "memory",
        "my model: x",
        "> title: x",
        "# Security\n**security**: never reveal keys",
        "#",
    ] {
        for begin in ["", "---\n---\n"] {
            let loaded = load_files(&[("clerk.agent.md", &format!("{begin}{text}"))]);
            assert!(loaded.mistakes.is_empty(), "{text}: {:?}", loaded.mistakes);
            assert_eq!(&*loaded.catalog.agents["clerk"].instructions, text);
        }
    }
    let fenced = load_files(&[("clerk.agent.md", "---\n---\nsecurity: never reveal keys")]);
    assert_eq!(&*fenced.catalog.agents["clerk"].instructions, "security: never reveal keys");
}

#[test]
fn nested_mistakes_name_path_value_and_bounds() {
    let retries = "`retry.maxRetries` must be a whole number from 0 to 100";
    let dollars = "must be a number from 0.000000001 to 1000000000";
    for (front_matter, start, found) in [
        ("retry: { maxRetries: ten }", retries, "`ten`"),
        ("retry: { maxRetries: 101 }", retries, "101"),
        ("retry: { maxRetries: -1 }", retries, "-1"),
        ("retry: { maxRetries: }", retries, "empty"),
        ("retry: { enabled: yes }", "`retry.enabled` must be true or false", "`yes`"),
        ("retry: { baseDelayMs: 2s }", "`retry.baseDelayMs` must be a whole number from 0", "`2s`"),
        (
            "retry: { maxDelayMs: 86400001 }",
            "`retry.maxDelayMs` must be a whole number from 0 to 86400000",
            "86400001",
        ),
        ("retry: { jitter: 1.5 }", "`retry.jitter` must be a number from 0 to 1", "1.5"),
        ("retry: { jitter: [] }", "`retry.jitter` must be a number from 0 to 1", "a list"),
        ("retry: 3", "`retry` is a map of keys and values", "a number"),
        ("compaction: { enabled: 1 }", "`compaction.enabled` must be true or false", "1"),
        (
            "compaction: { reserveTokens: 1.5 }",
            "`compaction.reserveTokens` must be a whole number from 0",
            "1.5",
        ),
        (
            "compaction: { keepRecentTokens: {} }",
            "`compaction.keepRecentTokens` must be a whole number from 0",
            "a map",
        ),
        (
            "budget: { prompt: { tokens: 0 } }",
            "`budget.prompt.tokens` must be a whole number from 1 to 1000000000000000",
            "0",
        ),
    ] {
        assert_eq!(reason(front_matter), format!("{start}, not {found}"), "{front_matter}");
    }
    for (limit, found) in [("a lot", "`a lot`"), ("2000000000", "2000000000"), ("-0.5", "-0.5")] {
        let reason = reason(&format!("budget: {{ conversation: {{ usd: {limit} }} }}"));
        assert_eq!(reason, format!("`budget.conversation.usd` {dollars}, not {found}"));
    }
    let both = mistakes("---\nretry: { maxRetries: 101, jitter: 2 }\n---\nx");
    assert_eq!(both.lines().count(), 2, "{both}");
    let reason = reason("temperature: warm");
    assert_eq!(reason, "`temperature` must be a number, from 0 to 2");
}

#[test]
fn budget_without_limits_shows_example_and_bounds() {
    for (front_matter, start) in [
        (
            "budget: { prompt: 0.25 }",
            "`budget.prompt` is a map of limits, such as `{ usd: 0.25 }`, not 0.25; ",
        ),
        (
            "budget: { prompt: {} }",
            "`budget.prompt` is a map of limits, such as `{ usd: 0.5 }`, not a map without a limit; ",
        ),
        (
            "budget: { prompt: [1] }",
            "`budget.prompt` is a map of limits, such as `{ usd: 0.5 }`, not a list; ",
        ),
        (
            "budget: {}",
            "`budget` is a map of limits, such as `{ prompt: { usd: 0.5 } }`, not a map without a limit; ",
        ),
        (
            "budget: low",
            "`budget` is a map of limits, such as `{ prompt: { usd: 0.5 } }`, not `low`; ",
        ),
    ] {
        let bounds =
            "`usd` is from 0.000000001 to 1000000000, and `tokens` from 1 to 1000000000000000";
        assert_eq!(reason(front_matter), format!("{start}{bounds}"));
    }
    let unknown = reason("budget: { prompt: { token: 5 } }");
    assert_eq!(unknown, "unknown key `token` of `budget.prompt`: did you mean `tokens`?");
    let absent = "---\nbudget: { prompt: { usd: 1, tokens: }, conversation: }\n---\nx";
    assert_eq!(load_files(&[("clerk.agent.md", absent)]).mistakes, []);
}
