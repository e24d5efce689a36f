//! Tests of HTTP extensions and HTTP plugins in agent files.

use std::time::Duration;

use insta::assert_snapshot;

use super::load_files;
use turnwheel_extensions::{Hook, Permissions};

#[test]
fn http_extensions_and_plugins_are_read() {
    let text = "---
guardrails: true
tools: [read]
extensions:
  - http: { name: guard, url: 'https://guard.example/hook', secret: '${HOOK_SECRET}', events: [tool_call, turn_end] }
  - http:
      name: mask
      url: https://mask.example/${KEY}
      secret: ${HOOK_SECRET}
      events: [tool_result]
      timeout: 30s
      onFailure: allow
plugins:
  - http:
      name: counter
      url: https://plugins.example/
      secret: ${HOOK_SECRET}
      timeout: 250ms
      optional: true
      tools:
        - ls
        - http: { name: count, url: 'https://tools.example/' }
---
Help.
";
    let loaded = load_files(&[("a.agent.md", text)]);
    assert_eq!(loaded.mistakes, []);
    let agent = loaded.catalog.find(None).unwrap();
    let [guardrails, guard, mask] = agent.extensions.as_slice() else { panic!("{agent:?}") };
    assert_eq!(guardrails.name(), "guardrails");
    assert_eq!((guard.name(), mask.name()), ("guard", "mask"));
    let has = |hook: Hook| (guard.events().contains(hook), mask.events().contains(hook));
    assert_eq!(has(Hook::ToolCall), (true, false));
    assert_eq!(has(Hook::TurnEnd), (true, false));
    assert_eq!(has(Hook::ToolResult), (false, true));
    assert_eq!(has(Hook::Context), (false, false));
    assert_eq!((guard.is_optional(), mask.is_optional()), (false, true));
    assert_eq!(guard.timeout(), Some(Duration::from_secs(5)));
    assert_eq!(mask.timeout(), Some(Duration::from_secs(30)));
    let [counter] = agent.plugins.as_slice() else { panic!("{agent:?}") };
    assert!(counter.is_optional());
    assert_eq!(counter.hook().timeout(), Some(Duration::from_millis(250)));
    let tools = counter.tools().iter().map(|tool| tool.definition().name.as_str());
    assert_eq!(tools.collect::<Vec<_>>(), ["ls", "count"]);
}

#[test]
fn mistakes_of_http_hooks_have_their_lines() {
    let text = "---
tools: [read]
extensions:
  - guard
  - https: { name: a }
  - http: { name: A, url: 'https://x.example/{id}', events: [] }
  - http: { name: b, url: '${INSIDE}/', secret: whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw, events: [context, toolcall, 7] }
  - http: { name: c, url: 'ftp://x', secret: '${KEY}', events: [tool_call], timeout: 31s, onFailure: ignore }
  - http: { name: d, url: 'https://x.example/', secret: '${GONE}', events: tool_call, onfailure: allow }
  - http: { name: guardrails, url: 'https://x.example/', secret: '${HOOK_SECRET}', events: [tool_call] }
  - http: { name: e, url: 'https://x.example/', secret: '${TURNWHEEL_WEBHOOK_SECRET}', events: [tool_call], timeout: '${KEY}' }
  - http: { name: h, url: 'https://x.example/', secret: '${HOOK_SECRET}', events: [command] }
  - http:
      name: i
      url: https://x.example/
      secret: ${HOOK_SECRET}
      events: [tool_call]
      commands:
        - { name: Rules }
        - { name: compact }
        - { nam: rules, argumentHint: 7 }
        - { name: twice }
        - { name: twice }
plugins:
  - http: { name: f, url: 'https://x.example/', secret: '${HOOK_SECRET}', tools: [read] }
  - http: { name: g, url: 'https://x.example/', secret: '${HOOK_SECRET}x', optional: maybe, tools: [lss] }
  - 7
---
Help.
";
    let loaded = load_files(&[("a.agent.md", text)]);
    let problem = &loaded.catalog.broken["a"].problem;
    assert!(!problem.contains("MfKQ9r8"), "{problem}");
    assert_snapshot!(problem, @r"
    agents/a.agent.md:4: extensions of the app run for all agents: list only `http` extensions here
    agents/a.agent.md:5: unknown key `https` of an extension: did you mean `http`?
    agents/a.agent.md:6: an http extension needs `secret`
    agents/a.agent.md:6: a `name` is 1 to 64 of a-z, 0-9, `_` and `-`
    agents/a.agent.md:6: there is no `{id}` here: this url has no arguments
    agents/a.agent.md:6: `events` is a list of at least one of session_start, session_shutdown, input, before_agent_start, agent_start, turn_start, model_select, agent_end, tool_call, tool_result, turn_end, session_before_compact, session_compact, session_before_tree, session_tree, session_before_fork, session_fork, command, user_bash
    agents/a.agent.md:7: extensions and plugins may not have this url: the address is private, local or reserved; an operator can list it in TURNWHEEL_HTTP_TOOLS_ALLOW
    agents/a.agent.md:7: `secret` names the app setting with the secret: write it as ${NAME}
    agents/a.agent.md:7: `context` would send the whole history before every model call: an extension in Rust has this event
    agents/a.agent.md:7: `toolcall` is not an event: did you mean `tool_call`?
    agents/a.agent.md:7: an event is a name, not a number
    agents/a.agent.md:8: the url must begin with https:// or http://
    agents/a.agent.md:8: the app setting KEY must be `whsec_` and base64 of at least 24 bytes; several separated by spaces
    agents/a.agent.md:8: `timeout` must be more than 0 and at most 30s
    agents/a.agent.md:8: `ignore` is not a value of `onFailure`: the nearest is `allow`; there are: block, allow
    agents/a.agent.md:9: the app setting GONE is not set: in Azure add it to the app's settings, here set the environment variable, or add it to `Values` in local.settings.json
    agents/a.agent.md:9: `events` is a list of at least one of session_start, session_shutdown, input, before_agent_start, agent_start, turn_start, model_select, agent_end, tool_call, tool_result, turn_end, session_before_compact, session_compact, session_before_tree, session_tree, session_before_fork, session_fork, command, user_bash
    agents/a.agent.md:9: unknown key `onfailure` of an http extension: did you mean `onFailure`?
    agents/a.agent.md:10: there is another extension `guardrails`: names are unique
    agents/a.agent.md:11: the app setting TURNWHEEL_WEBHOOK_SECRET belongs to the platform or to Turnwheel and may not be sent: give the tool a setting of its own
    agents/a.agent.md:11: `timeout` is not a duration: write a whole number and its unit, like 500ms, 30s, 2m, 24h or 7d
    agents/a.agent.md:11: app settings (`${NAME}`) may stand only in the url, headers and body of an http tool, and in the url and secret of an http extension or plugin
    agents/a.agent.md:12: the event `command` needs `commands`, and `commands` need the event `command`
    agents/a.agent.md:17: the event `command` needs `commands`, and `commands` need the event `command`
    agents/a.agent.md:19: the command name `Rules` must be 1 to 64 of the characters a-z 0-9 _ - :
    agents/a.agent.md:20: clients have a command `compact` of their own: give this one another name
    agents/a.agent.md:21: a command needs a `name`
    agents/a.agent.md:21: unknown key `nam` of a command: did you mean `name`?
    agents/a.agent.md:21: `argumentHint` must be text and is a number: write it in quotes
    agents/a.agent.md:23: the command `twice` is listed twice
    agents/a.agent.md:25: the plugin `f` has a tool `read`, and there is another one: names are unique in an agent
    agents/a.agent.md:26: `secret` names the app setting with the secret: write it as ${NAME}
    agents/a.agent.md:26: `optional` must be true or false
    agents/a.agent.md:26: there is no tool `lss`: did you mean `ls`?
    agents/a.agent.md:27: a plugin is the name of a plugin of the app, or a map that begins with `http:`
    ");
}

/// Rust extensions without lists are not limited; the hooks of HTTP extensions refuse what is not listed.
#[test]
fn http_extension_without_lists_may_change_nothing() {
    let text = "---
extensions:
  - http: { name: guard, url: 'https://guard.example/hook', secret: '${HOOK_SECRET}', events: [tool_call] }
---
Help.
";
    let loaded = load_files(&[("a.agent.md", text)]);
    assert_eq!(loaded.mistakes, []);
    let agent = loaded.catalog.find(None).unwrap();
    let [guard] = agent.extensions.as_slice() else { panic!("{agent:?}") };
    let none = Permissions::new().with_actions([""; 0]).with_tools([""; 0]).with_storage([""; 0]);
    assert_eq!(guard.permissions(), none);
}
