//! Guardrails of an agent: a call whose arguments match a pattern needs an approval.

use std::time::Duration;

use async_trait::async_trait;
use regex::{Regex, RegexBuilder};

use crate::{
    ApprovalRequest, Events, Extension, Hook, HookContext, HookError, PendingToolCall,
    ToolCallDecision,
};
use turnwheel_json::exact::ExactJson;
use turnwheel_json::raw::RawJson;

#[cfg(test)]
mod tests;

/// Patterns of guardrails that list none. The first one is case-sensitive.
pub const DEFAULT_PATTERNS: [&str; 3] =
    [r"rm\s+-rf\s+\/", r"(?i)DROP\s+DATABASE", r"(?i)DELETE\s+FROM\s+\w+\s*;"];

/// Result text of a rejected call.
const REFUSAL: &str = "Blocked by guardrails";

/// Bytes of a call's arguments in a question. Open requests are stored in the head.
const QUOTE_BYTES_MAX: usize = 2 * 1024;

/// Bytes of arguments in the questions of all calls of a model response.
const QUOTES_BYTES_MAX: usize = 12 * 1024;

/// Memory of one compiled pattern.
const PATTERN_BYTES_MAX: usize = 1024 * 1024;

#[derive(Clone, Debug)]
pub struct Guardrails {
    /// Names of the guarded tools. A `*` at the end stands for any text. `None`: all tools.
    pub tools: Option<Vec<String>>,
    /// Each is matched against the arguments as compact JSON.
    pub patterns: Vec<Regex>,
    /// Empty: those of the tool, or else the owner.
    pub approvers: Vec<String>,
    pub expires_after: Duration,
}

/// # Errors
/// The text is no pattern, or it is too large. Report the error.
pub fn compile_pattern(text: &str) -> Result<Regex, regex::Error> {
    RegexBuilder::new(text).size_limit(PATTERN_BYTES_MAX).build()
}

/// True if `pattern` is this name, or ends in `*` and the name begins with the text before it.
pub fn matches_name(pattern: &str, name: &str) -> bool {
    pattern.strip_suffix('*').map_or(pattern == name, |prefix| name.starts_with(prefix))
}

impl Guardrails {
    /// The question to approvers, if a pattern matches.
    fn question(&self, call: &PendingToolCall<'_>) -> Option<String> {
        let is_guarded = |patterns: &Vec<String>| {
            patterns.iter().any(|pattern| matches_name(pattern, call.tool_name))
        };
        if !self.tools.as_ref().is_none_or(is_guarded) {
            return None;
        }
        // Not the model's own text: it may hold spaces and escapes that hide a match.
        // With the digits that are sent. A pattern may also be written for shortened numbers.
        let shortened = call.arguments.value.to_string();
        let written = ExactJson::parse(call.arguments.text.text());
        let json = written.map(|it| RawJson::from_value(&it).text().to_owned());
        let json = json.unwrap_or_else(|| shortened.clone());
        let is_match = |pattern: &Regex| pattern.is_match(&json) || pattern.is_match(&shortened);
        if !self.patterns.iter().any(is_match) {
            return None;
        }
        let bytes_max = QUOTE_BYTES_MAX.min(QUOTES_BYTES_MAX / call.calls_count.max(1));
        let command = call.arguments.value.get("command").and_then(|command| command.as_str());
        Some(match command.filter(|_| call.tool_name == "execute") {
            Some(command) => {
                format!("Allow potentially dangerous command?\n{}", shorten(command, bytes_max))
            }
            None => format!(
                "⚠️ Potentially dangerous operation detected:\n{}\n\nProceed?",
                shorten(&json, bytes_max)
            ),
        })
    }
}

fn shorten(text: &str, bytes_max: usize) -> String {
    let end = text.floor_char_boundary(bytes_max);
    match text.split_at_checked(end) {
        Some((start, rest)) if !rest.is_empty() => {
            format!("{start}… ({} more bytes in the call's arguments)", rest.len())
        }
        _ => text.to_owned(),
    }
}

#[async_trait]
impl Extension for Guardrails {
    fn name(&self) -> &'static str {
        "guardrails"
    }

    fn events(&self) -> Events {
        [Hook::ToolCall].into()
    }

    async fn before_tool_call(
        &self,
        _cx: &HookContext,
        call: &PendingToolCall<'_>,
    ) -> Result<ToolCallDecision, HookError> {
        Ok(self.question(call).map_or(ToolCallDecision::Allow, |reason| {
            ToolCallDecision::RequireApproval(ApprovalRequest {
                approvers: self.approvers.clone(),
                expires_after: self.expires_after,
                refusal: Some(REFUSAL.to_owned()),
                ..ApprovalRequest::because(reason)
            })
        }))
    }
}
