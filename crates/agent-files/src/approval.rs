//! Reader of a tool's `approval`: its condition, its approvers and its expiry.

use std::time::Duration;

use crate::fields;
use crate::file_context::parse_condition;
use crate::http_tool::{EXPIRY_MAX, parse_template};
use crate::mistakes::{Findings, suggest_name};
use crate::yaml::{Member, Node, Yaml};
use turnwheel_tools::http::ApprovalRule;
use turnwheel_tools::http::template::{Piece, Template};
use turnwheel_tools::is_approver;

const KEYS: [&str; 5] = ["when", "reason", "approvers", "notRequester", "expiresAfter"];
pub(super) const EXPIRY_DEFAULT: Duration = Duration::from_hours(7 * 24);

pub(super) fn read_approval(
    member: &Member,
    tool: &str,
    declared: &[String],
    findings: &mut Findings,
) -> ApprovalRule {
    let mut approval = ApprovalRule {
        condition: None,
        reason: Template(vec![Piece::Text(format!("Calling {tool} requires approval."))]),
        approvers: vec!["owner".to_owned()],
        is_requester_excluded: false,
        expires_after: EXPIRY_DEFAULT,
    };
    match &member.value.yaml {
        Yaml::Null | Yaml::Bool(true) => return approval,
        Yaml::Text(text) if text == "always" => return approval,
        Yaml::Bool(false) => {
            findings.add(
                member.value.position,
                "remove `approval`: without it no approval is requested",
            );
            return approval;
        }
        Yaml::Text(text) => {
            let reason = format!(
                "`{text}` is not a value of `approval`: write `always`, `true`, or a map of {}",
                KEYS.join(", ")
            );
            findings.add(member.value.position, reason);
            return approval;
        }
        Yaml::Number(_) | Yaml::List(_) | Yaml::Map(_) => {}
    }
    for field in fields::read_members(&member.value, "`approval`", &KEYS, findings) {
        match field.key.as_str() {
            "when" => {
                check_condition_names(&field.value, declared, findings);
                approval.condition = parse_condition(field, findings);
            }
            "reason" => {
                let parsed = fields::read_text(field, findings).and_then(|text| {
                    parse_template(text, field.value.position, None, declared, findings)
                });
                approval.reason = parsed.unwrap_or_default();
            }
            "approvers" => approval.approvers = read_approvers(field, findings),
            "notRequester" => {
                approval.is_requester_excluded =
                    fields::read_bool(field, findings).unwrap_or_default();
            }
            "expiresAfter" => {
                approval.expires_after =
                    fields::read_duration(field, EXPIRY_MAX, findings).unwrap_or(EXPIRY_DEFAULT);
            }
            _ => {}
        }
    }
    if approval.is_requester_excluded && approval.approvers.iter().all(|who| who == "owner") {
        findings.add(
            member.position,
            "with `notRequester` the owner may not decide the owner's own requests: add `link` or `role:NAME` to `approvers`",
        );
    }
    approval
}

fn suggest_approver(text: &str) -> String {
    const KNOWN: [&str; 3] = ["owner", "link", "role:NAME"];
    if text.is_empty() || text.starts_with("role") {
        return suggest_name("role:NAME", KNOWN);
    }
    let hint = suggest_name(text, KNOWN);
    if hint.starts_with("did you mean") {
        return hint;
    }
    format!("write `role:{text}` for a role; there are: {}", KNOWN.join(", "))
}

/// Adds a finding for each name in `when` that is not a parameter. A misspelt name matches all
/// calls or none, so that a required approval could be skipped.
fn check_condition_names(when: &Node, declared: &[String], findings: &mut Findings) {
    let mut names = Vec::new();
    if let Some(Member { value: Node { yaml: Yaml::Map(properties), .. }, .. }) =
        when.find_member("properties")
    {
        names.extend(properties.iter().map(|member| (member.key.as_str(), member.position)));
    }
    if let Some(Member { value: Node { yaml: Yaml::List(required), .. }, .. }) =
        when.find_member("required")
    {
        names.extend(required.iter().filter_map(|item| match &item.yaml {
            Yaml::Text(name) => Some((name.as_str(), item.position)),
            Yaml::Null | Yaml::Bool(_) | Yaml::Number(_) | Yaml::List(_) | Yaml::Map(_) => None,
        }));
    }
    for (name, at) in names {
        if !declared.iter().any(|known| known == name) {
            let hint = suggest_name(name, declared.iter().map(String::as_str));
            findings.add(
                at,
                format!("`when` names `{name}`, which is not among the `parameters`: {hint}"),
            );
        }
    }
}

pub(super) fn read_approvers(member: &Member, findings: &mut Findings) -> Vec<String> {
    let mut approvers = Vec::new();
    let items = match &member.value.yaml {
        Yaml::List(items) => items.as_slice(),
        Yaml::Null | Yaml::Bool(_) | Yaml::Number(_) | Yaml::Text(_) | Yaml::Map(_) => &[],
    };
    if items.is_empty() {
        findings.add(
            member.value.position,
            "`approvers` is a list of at least one: owner, link, role:NAME",
        );
    }
    for item in items {
        let text = match &item.yaml {
            Yaml::Text(text) => text.as_str(),
            Yaml::Null | Yaml::Bool(_) | Yaml::Number(_) | Yaml::List(_) | Yaml::Map(_) => "",
        };
        if is_approver(text) {
            approvers.push(text.to_owned());
        } else {
            let hint = suggest_approver(text);
            findings.add(item.position, format!("`{text}` is not an approver: {hint}"));
        }
    }
    approvers
}
