//! Reader of an agent file's `guardrails`.

use std::sync::Arc;

use regex::Regex;

use crate::approval::{EXPIRY_DEFAULT, read_approvers};
use crate::fields;
use crate::http_tool::EXPIRY_MAX;
use crate::mistakes::{Findings, suggest_name};
use crate::yaml::{Member, Yaml};
use turnwheel_extensions::guardrails::{
    DEFAULT_PATTERNS, Guardrails, compile_pattern, matches_name,
};
use turnwheel_tools::CallableTool;

const KEYS: [&str; 4] = ["tools", "patterns", "approvers", "expiresAfter"];

/// Returns `None` if the agent has no guardrails, or after adding a finding.
pub(super) fn read_guardrails(
    member: &Member,
    tools: &[Arc<dyn CallableTool>],
    findings: &mut Findings,
) -> Option<Guardrails> {
    let mut guardrails = Guardrails {
        tools: None,
        patterns: DEFAULT_PATTERNS.iter().filter_map(|text| compile_pattern(text).ok()).collect(),
        approvers: Vec::new(),
        expires_after: EXPIRY_DEFAULT,
    };
    match &member.value.yaml {
        Yaml::Bool(is_on) => return is_on.then_some(guardrails),
        Yaml::Map(_) => {}
        Yaml::Null | Yaml::Number(_) | Yaml::Text(_) | Yaml::List(_) => {
            let reason =
                "`guardrails` is true, or a map of tools, patterns, approvers and expiresAfter";
            findings.add(member.value.position, reason);
            return None;
        }
    }
    for field in fields::read_members(&member.value, "`guardrails`", &KEYS, findings) {
        match field.key.as_str() {
            "tools" => guardrails.tools = Some(read_tool_names(field, tools, findings)),
            "patterns" => guardrails.patterns = read_patterns(field, findings),
            "approvers" => guardrails.approvers = read_approvers(field, findings),
            "expiresAfter" => {
                guardrails.expires_after =
                    fields::read_duration(field, EXPIRY_MAX, findings).unwrap_or(EXPIRY_DEFAULT);
            }
            _ => {}
        }
    }
    Some(guardrails)
}

/// Adds a finding for each name that no tool has. A misspelt name would leave a tool unguarded.
fn read_tool_names(
    member: &Member,
    tools: &[Arc<dyn CallableTool>],
    findings: &mut Findings,
) -> Vec<String> {
    let names = || tools.iter().map(|tool| tool.definition().name.as_str());
    let mut patterns = Vec::new();
    for (pattern, item) in fields::read_texts(member, "a list of at least one tool name", findings)
    {
        if !names().any(|name| matches_name(pattern, name)) {
            let hint = suggest_name(pattern, names());
            let reason =
                format!("`guardrails` names `{pattern}`, which matches none of `tools`: {hint}");
            findings.add(item.position, reason);
        }
        patterns.push(pattern.to_owned());
    }
    patterns
}

fn read_patterns(member: &Member, findings: &mut Findings) -> Vec<Regex> {
    let mut patterns = Vec::new();
    for (text, item) in
        fields::read_texts(member, "a list of at least one regular expression", findings)
    {
        match compile_pattern(text) {
            Ok(pattern) => patterns.push(pattern),
            Err(error) => {
                let error = error.to_string();
                // The last line is the reason; the lines before it repeat the pattern.
                let reason = error.lines().last().unwrap_or_default();
                let reason = reason.strip_prefix("error: ").unwrap_or(reason);
                let reason = format!("`{text}` is not a regular expression: {reason}");
                findings.add(item.position, reason);
            }
        }
    }
    patterns
}
