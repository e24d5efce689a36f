//! The key `extensions` of agent files.

use std::sync::Arc;

use crate::agents::fields;
use crate::agents::file_context::AgentFileContext;
use crate::agents::http_endpoint::read_http_hook;
use crate::agents::mistakes::{Findings, suggest_name};
use crate::agents::yaml::{Member, Node, Yaml};
use crate::extensions::http::{HTTP_EVENTS, HttpExtension, LOCAL_EVENTS};
use crate::extensions::{Events, Extension, Hook};

const KEYS: [&str; 6] = ["name", "url", "secret", "events", "timeout", "onFailure"];

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
        let is_taken = extensions.iter().any(|other| other.name() == name);
        if is_taken || RESERVED.contains(&name.as_str()) {
            let reason = format!("there is another extension `{name}`: names are unique");
            findings.add(item.position, reason);
            continue;
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
    let before = findings.len();
    let hook = read_http_hook(http, ("an http extension", &KEYS), context, findings);
    let events = http.find_member("events");
    if events.is_none() && matches!(http.yaml, Yaml::Map(_)) {
        findings.add(http.position, "an http extension needs `events`");
    }
    let events = events.map(|member| read_events(member, findings));
    let is_optional = http.find_member("onFailure").and_then(|member| {
        fields::read_choice(member, &[("block", false), ("allow", true)], findings)
    });
    if findings.len() > before {
        return None;
    }
    let hook = hook?;
    Some(HttpExtension {
        name: hook.name.to_owned(),
        events: events?,
        endpoint: hook.endpoint,
        is_optional: is_optional.unwrap_or_default(),
    })
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
    let found = HTTP_EVENTS.into_iter().find(|hook| hook.name() == name);
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

fn event_names() -> Vec<&'static str> {
    HTTP_EVENTS.iter().map(|hook| hook.name()).collect()
}
