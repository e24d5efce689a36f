//! Rows of a conversation: one for each stored entry or event, as in the timeline of the console.

use std::collections::HashMap;

use turnwheel_json::exact::ExactJson;

use crate::approval::{describe_decision, local_clock};
use crate::members::{
    content_text, cost, flag, items, json_line, member_or_null, number, text, text_at,
};
use crate::sanitize::shorten;
use crate::style::Style;
use crate::wrap::{Layout, Wrapper};

/// Characters of a row that describe the step.
const SUMMARY_MAX: usize = 240;

/// A step of a conversation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Row {
    /// One character.
    pub(crate) mark: char,
    pub(crate) title: String,
    pub(crate) summary: String,
    pub(crate) style: Style,
}

impl Row {
    pub(crate) fn new(mark: char, title: impl Into<String>, summary: &str) -> Self {
        let summary = shorten(summary, SUMMARY_MAX);
        Self { mark, title: title.into(), summary, style: Style::PLAIN }
    }

    pub(crate) fn styled(self, style: Style) -> Self {
        Self { style, ..self }
    }

    /// Renders the row after its time of day, which may be empty.
    pub(crate) fn render(&self, layout: Layout, time: &str) -> Vec<String> {
        let time = local_clock(time);
        let beginning = if time.is_empty() { String::new() } else { format!("{time} ") };
        let indent = " ".repeat(beginning.len() + 2);
        let mut wrapper = Wrapper::new(layout, &beginning, &indent, Style::DIM);
        wrapper.push_text(&format!("{} {}", self.mark, self.title), self.style);
        if !self.summary.is_empty() {
            wrapper.push(' ', Style::PLAIN);
            wrapper.push_text(&self.summary, Style::PLAIN);
        }
        wrapper.finish()
    }
}

/// Turns entries into rows, in the order of `seq`.
#[derive(Debug, Default)]
pub(crate) struct EntryRows {
    /// Titles of requests by id.
    requests: HashMap<String, String>,
}

impl EntryRows {
    /// `None`: the entry is part of another row.
    pub(crate) fn row(&mut self, entry: &ExactJson) -> Option<Row> {
        match text(entry, "type") {
            "prompt" => {
                let source = text(entry, "source");
                Some(
                    Row::new('─', format!("prompt {source}").trim_end().to_owned(), "")
                        .styled(Style::DIM),
                )
            }
            "message" => message_row(member_or_null(entry, "message")),
            "tool_started" => {
                Some(Row::new('▸', name_of_tool(entry), "started").styled(Style::DIM))
            }
            "request" => {
                let request = member_or_null(entry, "request");
                let title = shorten(text(request, "title"), SUMMARY_MAX);
                self.requests.insert(text(request, "id").to_owned(), title.clone());
                let summary = format!("{} {}", text(request, "id"), text(request, "reason"));
                Some(Row::new('?', title, &summary).styled(Style::ALERT))
            }
            "decision" => {
                let decision = member_or_null(entry, "decision");
                let title = self.requests.get(text(decision, "approvalId"));
                let title = title.map_or("decision", String::as_str);
                Some(Row::new('✓', describe_decision(title, decision, "reason"), ""))
            }
            "prompt_end" => Some(end_row(entry)),
            kind => other_row(kind, entry),
        }
    }
}

fn name_of_tool(value: &ExactJson) -> String {
    let name = [text(value, "toolName"), text(value, "tool"), text(value, "function")];
    shorten(name.into_iter().find(|name| !name.is_empty()).unwrap_or("tool"), SUMMARY_MAX)
}

fn message_row(message: &ExactJson) -> Option<Row> {
    let content = content_text(member_or_null(message, "content"));
    match text(message, "role") {
        "user" => Some(Row::new('>', "you", &content).styled(Style::BOLD)),
        "assistant" => Some(model_row(message, &content)),
        "toolResult" => Some(result_row(message, &content)),
        "bashExecution" => Some(Row::new(
            '$',
            shorten(text(message, "command"), SUMMARY_MAX),
            text(message, "output"),
        )),
        "custom" => {
            Some(Row::new('·', shorten(text(message, "customType"), SUMMARY_MAX), &content))
        }
        _ => None,
    }
}

fn model_row(message: &ExactJson, content: &str) -> Row {
    let calls: Vec<String> = items(message, "content")
        .iter()
        .filter(|block| text(block, "type") == "toolCall")
        .map(|call| {
            let arguments = json_line(member_or_null(call, "arguments"));
            format!("{} {arguments}", text(call, "name"))
        })
        .collect();
    let usage = member_or_null(message, "usage");
    let mut title = shorten(text(message, "model"), SUMMARY_MAX);
    if number(usage, "totalTokens") > 0 {
        title = format!("{title} {} tokens", number(usage, "totalTokens"));
    }
    if cost(usage) > 0.0 {
        title = format!("{title} ${:.4}", cost(usage));
    }
    if text(message, "stopReason") == "error" {
        return Row::new('✗', title, text(message, "errorMessage")).styled(Style::BAD);
    }
    let summary = if calls.is_empty() {
        content.to_owned()
    } else {
        format!("{content} ▸ {}", calls.join(", "))
    };
    Row::new('●', title, &summary).styled(Style::GOOD)
}

/// The row of a tool result, from a message or an event.
pub(crate) fn result_row(value: &ExactJson, content: &str) -> Row {
    let is_error = flag(value, "isError");
    if *member_or_null(value, "rejected") != ExactJson::Null {
        return Row::new('✗', format!("{} rejected", name_of_tool(value)), content)
            .styled(Style::BAD);
    }
    if is_error {
        Row::new('✗', format!("{} failed", name_of_tool(value)), content).styled(Style::BAD)
    } else {
        Row::new('✓', name_of_tool(value), content).styled(Style::GOOD)
    }
}

fn end_row(entry: &ExactJson) -> Row {
    let state = text(entry, "state");
    let reason = text_at(entry, &["error", "message"])
        .or_else(|| text_at(entry, &["incomplete", "message"]));
    let summary = reason.unwrap_or_else(|| text(entry, "stopReason"));
    let style = if state == "completed" { Style::DIM } else { Style::BAD };
    Row::new('─', format!("prompt {}", shorten(state, SUMMARY_MAX)), summary).styled(style)
}

fn other_row(kind: &str, entry: &ExactJson) -> Option<Row> {
    let row = match kind {
        "compaction" => Row::new('·', "compaction", text(entry, "summary")),
        "branch_summary" => Row::new('·', "summary of a branch", text(entry, "summary")),
        "recovery" => Row::new('↻', "recovery", text(entry, "reason")),
        "lost_call" => Row::new('↻', "model call lost with its process", ""),
        "model_change" => Row::new('·', "model changed", text(entry, "modelId")),
        "session_info" => Row::new('·', "name", text(entry, "name")),
        "label" => Row::new('·', "label", text(entry, "label")),
        "custom_message" => {
            let content = content_text(member_or_null(entry, "content"));
            Row::new('·', "message of a program", &content)
        }
        "output" => Row::new('·', "file", text_at(entry, &["output", "path"]).unwrap_or_default()),
        _ => return None,
    };
    Some(row.styled(Style::DIM))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::members::{exact, parse_json};

    const PLAIN: Layout = Layout { width: 60, is_coloured: false };

    fn render(entries: &[Value]) -> Vec<String> {
        let mut rows = EntryRows::default();
        entries
            .iter()
            .filter_map(|entry| rows.row(&exact(entry)))
            .flat_map(|row| row.render(PLAIN, ""))
            .collect()
    }

    #[test]
    fn entries_become_rows() {
        let rows = render(&[
            json!({"type": "prompt", "source": "user"}),
            json!({"type": "message", "message": {"role": "user", "content": "Pay 250\nto Ada"}}),
            json!({"type": "message", "message": {"role": "assistant", "model": "m", "usage": {"totalTokens": 7},
                "content": [{"type": "text", "text": "Ok"}, {"type": "toolCall", "name": "pay", "arguments": {"a": 1}}]}}),
            json!({"type": "request", "request": {"id": "rq_1", "title": "May pay run?", "reason": "250"}}),
            json!({"type": "decision", "decision": {"approvalId": "rq_1", "decision": "approve", "decidedBy": "ada"}}),
            json!({"type": "tool_started", "toolName": "pay"}),
            json!({"type": "message", "message": {"role": "toolResult", "toolName": "pay", "isError": true, "content": [{"type": "text", "text": "no\u{1b}[2J"}]}}),
            json!({"type": "later_kind"}),
            json!({"type": "prompt_end", "state": "failed", "error": {"message": "why"}}),
        ]);
        assert_eq!(
            rows,
            [
                "─ prompt user",
                "> you Pay 250 to Ada",
                "● m 7 tokens Ok ▸ pay {\"a\":1}",
                "? May pay run? rq_1 250",
                "✓ May pay run? approve, decided by `ada`",
                "▸ pay started",
                "✗ pay failed no",
                "─ prompt failed why",
            ]
        );
    }

    #[test]
    fn row_of_a_call_shows_each_digit() {
        let entry = r#"{"type":"message","message":{"role":"assistant","model":"m","content":[{"type":"toolCall","name":"pay","arguments":{"a":25122920421210000012345}}]}}"#;
        let row = EntryRows::default().row(&parse_json(entry.as_bytes()).unwrap()).unwrap();
        assert_eq!(row.summary, r#"▸ pay {"a":25122920421210000012345}"#);
    }
}
