//! The key `extensions` of agent files.

use std::sync::Arc;

use crate::fields;
use crate::file_context::AgentFileContext;
use crate::http_endpoint::read_http_hook;
use crate::mistakes::{Findings, suggest_name};
use crate::yaml::{Member, Node, Yaml};
use turnwheel_conversation::action::Action;
use turnwheel_extensions::command::{find_command, find_name_mistake};
use turnwheel_extensions::http::HttpExtension;
use turnwheel_extensions::{
    CommandSpec, Events, Extension, HTTP_EVENTS, Hook, LOCAL_EVENTS, Permissions,
};

const KEYS: [&str; 10] = [
    "name",
    "url",
    "secret",
    "events",
    "actions",
    "tools",
    "entries",
    "commands",
    "timeout",
    "onFailure",
];
const COMMAND_KEYS: [&str; 4] = ["name", "description", "argumentHint", "shortcut"];

/// Names of built-in extensions.
const RESERVED: [&str; 1] = ["guardrails"];

/// The extensions in the order of the file.
pub(super) fn read_extensions(
    member: &Member,
    context: &AgentFileContext<'_>,
    findings: &mut Findings,
) -> Vec<Arc<dyn Extension>> {
    let items = match &member.value.yaml {
        Yaml::List(items) => items.as_slice(),
        Yaml::Null => return Vec::new(),
        Yaml::Bool(_) | Yaml::Number(_) | Yaml::Text(_) | Yaml::Map(_) => {
            let reason = "`extensions` is a list: begin each extension with `- http:`";
            findings.add(member.value.position, reason);
            return Vec::new();
        }
    };
    let mut extensions: Vec<Arc<dyn Extension>> = Vec::new();
    for item in items {
        let Some(extension) = read_extension(item, context, findings) else { continue };
        let name = &extension.name;
        let is_taken = extensions.iter().chain(context.extensions).any(|it| it.name() == name);
        if is_taken || RESERVED.contains(&name.as_str()) {
            let reason = format!("there is another extension `{name}`: names are unique");
            findings.add(item.position, reason);
            continue;
        }
        let earlier = context.extensions.iter().chain(&extensions);
        let taken = extension.commands.iter().find_map(|command| {
            let found = find_command(earlier.clone(), &command.name)?;
            Some((found.spec.name, found.extension.name().to_owned()))
        });
        if let Some((command, owner)) = taken {
            let reason = format!(
                "two commands have the name `{command}`, of the extensions `{owner}` and `{name}`: rename one"
            );
            findings.add(item.position, reason);
        }
        extensions.push(Arc::new(extension));
    }
    extensions
}

fn read_extension(
    item: &Node,
    context: &AgentFileContext<'_>,
    findings: &mut Findings,
) -> Option<HttpExtension> {
    if let Yaml::Text(_) = &item.yaml {
        let reason = "extensions of the app run for all agents: list only `http` extensions here";
        findings.add(item.position, reason);
        return None;
    }
    fields::read_members(item, "an extension", &["http"], findings);
    let http = &item.find_member("http")?.value;
    let before = findings.file_mistakes();
    let hook = read_http_hook(http, "an http extension", &KEYS, context, findings);
    let events = http.find_member("events");
    if events.is_none() && matches!(http.yaml, Yaml::Map(_)) {
        findings.add(http.position, "an http extension needs `events`");
    }
    let events = events.map(|member| read_events(member, findings));
    let commands = http.find_member("commands").map(|member| read_commands(member, findings));
    if let (Some(events), Some(member)) = (events, http.find_member("events"))
        && events.contains(Hook::Command) != commands.is_some()
    {
        let reason =
            "the event `command` needs `commands`, and `commands` need the event `command`";
        findings.add(member.position, reason);
    }
    let is_optional = http.find_member("onFailure").and_then(|member| {
        fields::read_choice(member, &[("block", false), ("allow", true)], findings)
    });
    let permissions = read_permissions(http, findings);
    if findings.file_mistakes() > before {
        return None;
    }
    let hook = hook?;
    Some(HttpExtension {
        permissions,
        name: hook.name.to_owned(),
        events: events?,
        endpoint: hook.endpoint,
        commands: commands.unwrap_or_default(),
        is_optional: is_optional.unwrap_or_default(),
    })
}

/// The actions, tools and entry types that the extension may use. An absent list allows none.
fn read_permissions(http: &Node, findings: &mut Findings) -> Permissions {
    let mut list = |key: &str, expected: &str| {
        let Some(member) = http.find_member(key) else { return Vec::new() };
        let texts = fields::read_texts(member, expected, findings);
        if key == "actions" {
            for (name, node) in &texts {
                if *name != "*" && !Action::NAMES.contains(name) {
                    let hint = suggest_name(name, Action::NAMES);
                    findings.add(node.position, format!("`{name}` is not an action: {hint}"));
                }
            }
        }
        texts.into_iter().map(|(text, _)| text.to_owned()).collect()
    };
    let actions = list("actions", "a list of at least one action, such as notify, or `*`");
    let tools = list("tools", "a list of at least one tool that setActiveTools may name, or `*`");
    let entries = list("entries", "a list of at least one type of appendEntry, or `*`");
    Permissions::new().with_actions(actions).with_tools(tools).with_storage(entries)
}

fn read_events(member: &Member, findings: &mut Findings) -> Events {
    let items = match &member.value.yaml {
        Yaml::List(items) => items.as_slice(),
        Yaml::Null | Yaml::Bool(_) | Yaml::Number(_) | Yaml::Text(_) | Yaml::Map(_) => &[],
    };
    if items.is_empty() {
        let reason = format!("`events` is a list of at least one of {}", event_names().join(", "));
        findings.add(member.value.position, reason);
    }
    let hooks = items.iter().filter_map(|item| read_event(item, findings));
    hooks.fold(Events::from([]), Events::with)
}

fn read_event(item: &Node, findings: &mut Findings) -> Option<Hook> {
    let Yaml::Text(name) = &item.yaml else {
        findings.add(item.position, format!("an event is a name, not {}", item.kind()));
        return None;
    };
    let found = HTTP_EVENTS.iter().copied().find(|hook| hook.name() == name);
    if found.is_none() {
        let reason = if LOCAL_EVENTS.iter().any(|hook| hook.name() == name) {
            format!(
                "`{name}` would send the whole history before every model call: an extension in Rust has this event"
            )
        } else {
            format!("`{name}` is not an event: {}", suggest_name(name, event_names()))
        };
        findings.add(item.position, reason);
    }
    found
}

fn read_commands(member: &Member, findings: &mut Findings) -> Vec<CommandSpec> {
    let items = match &member.value.yaml {
        Yaml::List(items) => items.as_slice(),
        Yaml::Null | Yaml::Bool(_) | Yaml::Number(_) | Yaml::Text(_) | Yaml::Map(_) => &[],
    };
    if items.is_empty() {
        let reason = "`commands` is a list: begin each command with `- name:`";
        findings.add(member.value.position, reason);
    }
    let mut commands: Vec<CommandSpec> = Vec::new();
    for item in items {
        let Some(command) = read_command(item, findings) else { continue };
        if commands.iter().any(|other| other.name == command.name) {
            let reason = format!("the command `{}` is listed twice", command.name);
            findings.add(item.position, reason);
            continue;
        }
        commands.push(command);
    }
    commands
}

fn read_command(item: &Node, findings: &mut Findings) -> Option<CommandSpec> {
    let members = fields::read_members(item, "a command", &COMMAND_KEYS, findings);
    let mut text = |key: &str| {
        let member = members.iter().find(|member| member.key == key)?;
        fields::read_text(member, findings).map(str::to_owned)
    };
    let (name, description) = (text("name"), text("description"));
    let (argument_hint, shortcut) = (text("argumentHint"), text("shortcut"));
    let Some(name) = name else {
        findings.add(item.position, "a command needs a `name`");
        return None;
    };
    if let Some(reason) = find_name_mistake(&name) {
        findings.add(item.position, reason);
        return None;
    }
    Some(CommandSpec {
        name,
        description: description.unwrap_or_default(),
        argument_hint,
        shortcut,
    })
}

fn event_names() -> Vec<&'static str> {
    HTTP_EVENTS.iter().map(|hook| hook.name()).collect()
}
