//! Reader of a tool's `approval`: its condition, its approvers and its expiry.

use std::time::Duration;

use crate::agents::fields;
use crate::agents::file::schema;
use crate::agents::http_tool::{EXPIRY_MAX, template};
use crate::agents::mistakes::{Findings, suggestion};
use crate::agents::yaml::{Member, Node, Yaml};
use crate::tools::http::Approval;
use crate::tools::http::template::{Flaw, Piece, Template};

const KEYS: [&str; 5] = ["when", "reason", "approvers", "notRequester", "expiresAfter"];
const EXPIRY_DEFAULT: Duration = Duration::from_hours(7 * 24);

pub(super) fn read(
    member: &Member,
    tool: &str,
    declared: &[String],
    findings: &mut Findings,
) -> Approval {
    let mut approval = Approval {
        when: None,
        reason: Template(vec![Piece::Text(format!("Calling {tool} requires approval."))]),
        approvers: vec!["owner".to_owned()],
        not_requester: false,
        expires_after: EXPIRY_DEFAULT,
    };
    match &member.value.yaml {
        Yaml::Null | Yaml::Bool(true) => return approval,
        Yaml::Text(text) if text == "always" => return approval,
        Yaml::Bool(false) => {
            findings.add(member.value.at, "remove `approval`: without it no approval is requested");
            return approval;
        }
        Yaml::Text(_) | Yaml::Number(_) | Yaml::List(_) | Yaml::Map(_) => {}
    }
    for field in fields::members(&member.value, "`approval`", &KEYS, findings) {
        match field.key.as_str() {
            "when" => {
                when_names_parameters(&field.value, declared, findings);
                approval.when = schema(field, findings).map(|(_, validator)| validator);
            }
            "reason" => {
                let no_setting = |_: &str| {
                    let reason =
                        "`reason` is shown to users: it may hold arguments and no app setting";
                    Err(Flaw::Other(reason.to_owned()))
                };
                let parsed = fields::text(field, findings).and_then(|text| {
                    template(text, field.value.at, &no_setting, declared, findings)
                });
                approval.reason = parsed.unwrap_or_default();
            }
            "approvers" => approval.approvers = approvers(field, findings),
            "notRequester" => {
                approval.not_requester = fields::flag(field, findings).unwrap_or_default();
            }
            "expiresAfter" => {
                approval.expires_after =
                    fields::span(field, EXPIRY_MAX, findings).unwrap_or(EXPIRY_DEFAULT);
            }
            _ => {}
        }
    }
    if approval.not_requester && approval.approvers.iter().all(|who| who == "owner") {
        findings.add(
            member.at,
            "with `notRequester` the owner may not decide the owner's own requests: add `link` or `role:NAME` to `approvers`",
        );
    }
    approval
}

/// Adds a finding for each name in `when` that is not a parameter. A misspelt name matches all
/// calls or none, so that a required approval could be skipped.
fn when_names_parameters(when: &Node, declared: &[String], findings: &mut Findings) {
    let mut named = Vec::new();
    if let Some(Member { value: Node { yaml: Yaml::Map(properties), .. }, .. }) =
        when.member("properties")
    {
        named.extend(properties.iter().map(|member| (member.key.as_str(), member.at)));
    }
    if let Some(Member { value: Node { yaml: Yaml::List(required), .. }, .. }) =
        when.member("required")
    {
        named.extend(required.iter().filter_map(|item| match &item.yaml {
            Yaml::Text(name) => Some((name.as_str(), item.at)),
            Yaml::Null | Yaml::Bool(_) | Yaml::Number(_) | Yaml::List(_) | Yaml::Map(_) => None,
        }));
    }
    for (name, at) in named {
        if !declared.iter().any(|known| known == name) {
            let hint = suggestion(name, declared.iter().map(String::as_str));
            findings.add(
                at,
                format!("`when` names `{name}`, which is not among the `parameters`: {hint}"),
            );
        }
    }
}

fn approvers(member: &Member, findings: &mut Findings) -> Vec<String> {
    let mut approvers = Vec::new();
    let items = match &member.value.yaml {
        Yaml::List(items) => items.as_slice(),
        Yaml::Null | Yaml::Bool(_) | Yaml::Number(_) | Yaml::Text(_) | Yaml::Map(_) => &[],
    };
    if items.is_empty() {
        findings
            .add(member.value.at, "`approvers` is a list of at least one: owner, link, role:NAME");
    }
    for item in items {
        let text = match &item.yaml {
            Yaml::Text(text) => text.as_str(),
            Yaml::Null | Yaml::Bool(_) | Yaml::Number(_) | Yaml::List(_) | Yaml::Map(_) => "",
        };
        let is_role = text.strip_prefix("role:").is_some_and(|role| !role.trim().is_empty());
        if is_role || matches!(text, "owner" | "link") {
            approvers.push(text.to_owned());
        } else {
            let known = ["owner", "link", "role:NAME"];
            let meant = if text.starts_with("role") { "role:NAME" } else { text };
            let hint = suggestion(meant, known);
            findings.add(item.at, format!("`{text}` is not an approver: {hint}"));
        }
    }
    approvers
}
