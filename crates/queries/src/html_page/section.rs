//! An entry as a section of the page.

use std::fmt::Write as _;

use turnwheel_conversation::content::{Block, Content, ToolCall};
use turnwheel_conversation::entry::{Entry, EntryBody, Output, PromptEnd};
use turnwheel_conversation::message::{AssistantMessage, Message, ToolResultMessage};
use turnwheel_conversation::request::Decision;
use turnwheel_json::raw::RawJson;

use super::{PageZone, escape, markdown};

/// Lines and bytes of a result that is shown unfolded.
const OPEN_LINES_MAX: usize = 12;
const OPEN_BYTES_MAX: usize = 1_200;
/// Characters of the title of a branch.
const TITLE_CHARS_MAX: usize = 80;

/// The section of an entry; empty for entries that readers do not need.
pub(super) fn section(entry: &Entry, zone: &PageZone) -> String {
    let mut section = Section::default();
    section.add_entry(&entry.body);
    if section.title.is_empty() && section.content.is_empty() {
        return String::new();
    }
    let Section { title, facts, class, content } = section;
    let failed = if class == "failed" { "<b>failed</b> · " } else { "" };
    let facts = facts
        .iter()
        .fold(String::new(), |text, fact| text + " · <span>" + &escape(fact) + "</span>");
    let (title, time) = (escape(&title), zone.time(entry.base.timestamp));
    format!(
        "<section class=\"{class}\">\n<h2>{failed}{title} · {time}{facts}</h2>\n{content}</section>\n"
    )
}

/// The beginning of the first text of an entry, for the title of its branch.
pub(super) fn first_line(entry: &Entry) -> Option<String> {
    let text = match entry.body.message()? {
        Message::User(it) => match &it.content {
            Content::Text(text) => text.clone(),
            Content::Blocks(blocks) => first_text(blocks)?,
        },
        Message::Assistant(it) => first_text(&it.content)?,
        Message::ToolResult(_)
        | Message::BashExecution(_)
        | Message::Custom(_)
        | Message::BranchSummary(_)
        | Message::CompactionSummary(_)
        | Message::Other(_) => return None,
    };
    let line = text.lines().find(|line| !line.trim().is_empty())?;
    Some(line.trim().chars().take(TITLE_CHARS_MAX).collect())
}

#[expect(clippy::wildcard_enum_match_arm, reason = "other blocks have no text")]
fn first_text(blocks: &[Block]) -> Option<String> {
    blocks.iter().find_map(|block| match block {
        Block::Text(text) => Some(text.text.clone()),
        _ => None,
    })
}

#[derive(Default)]
struct Section {
    title: String,
    facts: Vec<String>,
    class: &'static str,
    content: String,
}

impl Section {
    #[expect(clippy::wildcard_enum_match_arm, reason = "the other kinds are not shown")]
    fn add_entry(&mut self, body: &EntryBody) {
        match body {
            EntryBody::Message(it) => self.add_message(&it.message),
            EntryBody::CustomMessage(it) if it.display => {
                self.title.clone_from(&it.custom_type);
                self.add_content(&it.content);
            }
            EntryBody::Compaction(it) => {
                self.add_summary("summary of earlier messages", &it.summary);
            }
            EntryBody::BranchSummary(it) => {
                self.add_summary("summary of another branch", &it.summary);
            }
            EntryBody::Output(output) => self.add_output(&output.output),
            EntryBody::Request(it) => {
                "approval request".clone_into(&mut self.title);
                self.add_text(&it.request.title);
                self.add_text(&it.request.reason);
            }
            EntryBody::Decision(it) => self.add_decision(&it.decision),
            EntryBody::PromptEnd(end) => self.add_end(end),
            _ => {}
        }
    }

    fn add_message(&mut self, message: &Message) {
        self.title = message.role();
        match message {
            Message::User(it) => {
                self.class = "user";
                self.add_content(&it.content);
            }
            Message::Assistant(it) => self.add_response(it),
            Message::ToolResult(it) => self.add_result(it),
            Message::BashExecution(it) => {
                self.add_code(&it.command);
                self.add_folded(&it.output);
            }
            Message::Custom(it) if it.display => self.add_content(&it.content),
            Message::BranchSummary(it) => self.add_markdown(&it.summary),
            Message::CompactionSummary(it) => self.add_markdown(&it.summary),
            Message::Custom(_) | Message::Other(_) => self.title.clear(),
        }
    }

    fn add_response(&mut self, response: &AssistantMessage) {
        if response.is_from_model() {
            let (usage, cost) = (&response.usage, response.usage.cost.total);
            self.facts.push(response.model.clone());
            self.facts.push(format!("{} in, {} out", usage.input, usage.output));
            if cost > 0.0 {
                self.facts.push(format!("${cost:.4}"));
            }
        }
        self.add_blocks(&response.content, true);
        if let Some(error) = &response.error_message {
            self.class = "failed";
            self.add_text(error);
        }
    }

    fn add_result(&mut self, result: &ToolResultMessage) {
        self.title = format!("result of {}", result.tool_name);
        if result.is_error {
            self.class = "failed";
        }
        let mut inner = Self::default();
        inner.add_blocks(&result.content, false);
        let is_long =
            inner.content.len() > OPEN_BYTES_MAX || inner.content.lines().count() > OPEN_LINES_MAX;
        if is_long {
            self.fold("result", &inner.content);
        } else {
            self.content.push_str(&inner.content);
        }
    }

    fn add_decision(&mut self, decision: &Decision) {
        self.title = format!("{}, decided by {}", decision.verdict.name(), decision.decided_by);
        self.add_text(decision.reason.as_deref().unwrap_or_default());
        if let Some(value) = &decision.value {
            self.add_code(&pretty(value));
        }
    }

    /// Only an end that readers would miss: the others are visible in the messages.
    fn add_end(&mut self, end: &PromptEnd) {
        if let Some(error) = &end.error {
            "end of the prompt".clone_into(&mut self.title);
            self.class = "failed";
            self.add_text(&error.message);
        }
    }

    fn add_output(&mut self, output: &Output) {
        match output {
            Output::File(file) => {
                "file".clone_into(&mut self.title);
                self.add_text(&file.path);
            }
            Output::Widget(widget) => {
                "widget".clone_into(&mut self.title);
                self.add_text(&widget.fallback);
            }
            Output::Other(_) => {}
        }
    }

    fn add_summary(&mut self, title: &str, summary: &str) {
        title.clone_into(&mut self.title);
        self.add_markdown(summary);
    }

    fn add_content(&mut self, content: &Content) {
        match content {
            Content::Text(text) => self.add_text(text),
            Content::Blocks(blocks) => self.add_blocks(blocks, false),
        }
    }

    fn add_blocks(&mut self, blocks: &[Block], is_markdown: bool) {
        for block in blocks {
            match block {
                Block::Text(text) if is_markdown => self.add_markdown(&text.text),
                Block::Text(text) => self.add_text(&text.text),
                Block::Thinking(it) if it.thinking.is_empty() => {}
                Block::Thinking(it) => {
                    let text = format!("<pre class=\"text\">{}</pre>\n", escape(&it.thinking));
                    self.fold("thinking", &text);
                }
                Block::ToolCall(call) => self.add_call(call),
                Block::Image(image) => self.add_text(&format!("[image, {}]", image.mime_type)),
                Block::File(file) => {
                    let name = file.path.as_deref().unwrap_or(file.artifact_id.as_str());
                    self.add_text(&format!("[file {name}]"));
                }
                Block::Other(_) => self.add_text("[other content]"),
            }
        }
    }

    fn add_call(&mut self, call: &ToolCall) {
        self.add_code(&format!("{} {}", call.name, pretty(&call.arguments)));
    }

    fn add_markdown(&mut self, text: &str) {
        self.content.push_str(&markdown::to_html(text));
    }

    fn add_folded(&mut self, text: &str) {
        if text.len() > OPEN_BYTES_MAX || text.lines().count() > OPEN_LINES_MAX {
            self.fold("output", &format!("<pre>{}</pre>\n", escape(text)));
        } else {
            self.add_text(text);
        }
    }

    /// `html` is escaped.
    fn fold(&mut self, title: &str, html: &str) {
        let _infallible =
            writeln!(self.content, "<details><summary>{title}</summary>\n{html}</details>");
    }

    fn add_text(&mut self, text: &str) {
        if !text.is_empty() {
            let _infallible = writeln!(self.content, "<pre class=\"text\">{}</pre>", escape(text));
        }
    }

    fn add_code(&mut self, text: &str) {
        let _infallible = writeln!(self.content, "<pre><code>{}</code></pre>", escape(text));
    }
}

/// The JSON as it was written, with a line for each member of an object. Each digit is kept.
fn pretty(json: &RawJson) -> String {
    let Some(members) = json.members().filter(|members| members.len() > 1) else {
        return json.text().to_owned();
    };
    let lines: Vec<String> = members
        .iter()
        .map(|(name, value)| {
            format!("  {}: {}", serde_json::Value::from(name.as_str()), value.text())
        })
        .collect();
    format!("{{\n{}\n}}", lines.join(",\n"))
}
