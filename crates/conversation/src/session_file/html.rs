//! A conversation as one static HTML page. All texts are untrusted input and are escaped; the page
//! has no scripts and loads nothing.

use std::fmt::Write as _;

use crate::content::{Block, Content};
use crate::entry::{Entry, EntryBody, Output};
use crate::message::Message;

const STYLE: &str = "body{font:16px/1.5 system-ui,sans-serif;max-width:50rem;margin:2rem auto;padding:0 1rem}\
section{border-top:1px solid #8888;padding:.5rem 0}h2{font-size:.8rem;margin:0;color:#777}\
pre{white-space:pre-wrap;overflow-wrap:anywhere;margin:.3rem 0;font:inherit}code{white-space:pre-wrap;overflow-wrap:anywhere}";

pub fn html_start(title: &str) -> String {
    let title = escape(title);
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n\
         <title>{title}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<h1>{title}</h1>\n"
    )
}

pub fn html_end() -> String {
    "</body>\n</html>\n".to_owned()
}

/// The section of an entry; empty for entries that readers do not need.
#[expect(clippy::wildcard_enum_match_arm, reason = "the other kinds are not shown")]
pub fn html_entry(entry: &Entry) -> String {
    let mut section = Section::default();
    let title = match &entry.body {
        EntryBody::Message(it) => section.add_message(&it.message),
        EntryBody::CustomMessage(it) if it.display => {
            section.add_content(&it.content);
            it.custom_type.clone()
        }
        EntryBody::Compaction(it) => {
            section.add_text(&it.summary);
            "summary of earlier messages".to_owned()
        }
        EntryBody::BranchSummary(it) => {
            section.add_text(&it.summary);
            "summary of another branch".to_owned()
        }
        EntryBody::Output(output) => match &output.output {
            Output::File(file) => {
                section.add_text(&file.path);
                "file".to_owned()
            }
            Output::Widget(widget) => {
                section.add_text(&widget.fallback);
                "widget".to_owned()
            }
            Output::Other(_) => return String::new(),
        },
        _ => return String::new(),
    };
    if section.0.is_empty() {
        return String::new();
    }
    format!(
        "<section>\n<h2>{} · {}</h2>\n{}</section>\n",
        escape(&title),
        escape(&entry.base.timestamp.to_string()),
        section.0
    )
}

/// HTML of the content of an entry.
#[derive(Default)]
struct Section(String);

impl Section {
    /// Returns the title.
    fn add_message(&mut self, message: &Message) -> String {
        match message {
            Message::User(it) => self.add_content(&it.content),
            Message::Assistant(it) => {
                self.add_blocks(&it.content);
                if let Some(error) = &it.error_message {
                    self.add_text(error);
                }
            }
            Message::ToolResult(it) => {
                self.add_blocks(&it.content);
                return format!("result of {}", it.tool_name);
            }
            Message::BashExecution(it) => {
                self.add_code(&it.command);
                self.add_text(&it.output);
            }
            Message::Custom(it) if it.display => self.add_content(&it.content),
            Message::BranchSummary(it) => self.add_text(&it.summary),
            Message::CompactionSummary(it) => self.add_text(&it.summary),
            Message::Custom(_) | Message::Other(_) => {}
        }
        message.role()
    }

    fn add_content(&mut self, content: &Content) {
        match content {
            Content::Text(text) => self.add_text(text),
            Content::Blocks(blocks) => self.add_blocks(blocks),
        }
    }

    fn add_blocks(&mut self, blocks: &[Block]) {
        for block in blocks {
            match block {
                Block::Text(text) => self.add_text(&text.text),
                Block::Thinking(thinking) => {
                    if !thinking.thinking.is_empty() {
                        let _ = writeln!(
                            self.0,
                            "<details><summary>thinking</summary><pre>{}</pre></details>",
                            escape(&thinking.thinking)
                        );
                    }
                }
                Block::ToolCall(call) => {
                    self.add_code(&format!("{} {}", call.name, call.arguments.text()));
                }
                Block::Image(image) => self.add_text(&format!("[image, {}]", image.mime_type)),
                Block::File(file) => {
                    let name = file.path.as_deref().unwrap_or(file.artifact_id.as_str());
                    self.add_text(&format!("[file {name}]"));
                }
                Block::Other(_) => self.add_text("[other content]"),
            }
        }
    }

    fn add_text(&mut self, text: &str) {
        if !text.is_empty() {
            let _ = writeln!(self.0, "<pre>{}</pre>", escape(text));
        }
    }

    fn add_code(&mut self, text: &str) {
        let _ = writeln!(self.0, "<pre><code>{}</code></pre>", escape(text));
    }
}

/// Text in which no character begins or ends a tag, an attribute or a reference.
fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            // Browsers drop or replace these.
            '\0' => escaped.push('\u{fffd}'),
            letter => escaped.push(letter),
        }
    }
    escaped
}
