//! Turns the events of a conversation into printed rows. Nothing that was printed changes: a message that begins again continues
//! after the text that is printed.

use std::collections::{BTreeMap, HashSet};

use tokio::time::Instant;
use turnwheel_json::exact::ExactJson;

use crate::approval::{describe_decision, render_request};
use crate::markdown::Markdown;
use crate::members::{
    content_text, cost, flag, items, json_line, member, member_at, number, text, text_at, texts,
};
use crate::rows::{Row, result_row};
use crate::sanitize::{Sanitizer, clean_line, shorten};
use crate::style::Style;
use crate::wrap::{Layout, wrap_text};

/// Characters of a notice.
const NOTICE_MAX: usize = 400;

/// A printed row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Printed {
    /// Text of the model.
    Text(String),
    /// Everything else.
    Notice(String),
}

impl Printed {
    pub(crate) fn row(&self) -> &str {
        match self {
            Self::Text(row) | Self::Notice(row) => row,
        }
    }
}

/// An open request, and the time since it is on the screen.
#[derive(Clone, Debug)]
pub(crate) struct ShownApproval {
    pub(crate) approval: ExactJson,
    pub(crate) since: Instant,
}

impl ShownApproval {
    pub(crate) fn id(&self) -> &str {
        text(&self.approval, "id")
    }
}

/// A file that a tool sent to the user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct OfferedFile {
    pub(crate) artifact_id: String,
    pub(crate) name: String,
}

/// The end of a prompt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PromptOutcome {
    pub(crate) prompt_id: String,
    pub(crate) state: String,
}

/// Renders the text of the model.
#[derive(Debug)]
enum TextRenderer {
    Markdown(Box<Markdown>),
    /// Lines as they are; the last one is not complete.
    Plain(String),
}

impl TextRenderer {
    fn push(&mut self, text: &str) -> Vec<String> {
        match self {
            Self::Markdown(markdown) => markdown.push(text),
            Self::Plain(line) => {
                line.push_str(text);
                let mut lines: Vec<String> = line.split('\n').map(str::to_owned).collect();
                *line = lines.pop().unwrap_or_default();
                lines
            }
        }
    }

    fn finish(&mut self) -> Vec<String> {
        match self {
            Self::Markdown(markdown) => markdown.finish(),
            Self::Plain(line) if line.is_empty() => Vec::new(),
            Self::Plain(line) => vec![std::mem::take(line)],
        }
    }
}

/// A text block of the message that streams.
#[derive(Debug)]
struct StreamedBlock {
    /// The text so far, as received.
    source: String,
    sanitizer: Sanitizer,
    renderer: TextRenderer,
}

#[derive(Debug)]
struct StreamedMessage {
    id: String,
    blocks: BTreeMap<u64, StreamedBlock>,
}

/// Options of the output.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TranscriptOptions {
    pub(crate) layout: Layout,
    /// False: the model's text as it is, for programs.
    pub(crate) is_markdown: bool,
}

#[derive(Debug)]
pub(crate) struct Transcript {
    options: TranscriptOptions,
    streamed: Option<StreamedMessage>,
    /// Inputs that this program sent: their text is on the screen.
    own_inputs: HashSet<String>,
    pub(crate) approvals: Vec<ShownApproval>,
    pub(crate) files: Vec<OfferedFile>,
    pub(crate) is_running: bool,
    /// USD of the prompt.
    pub(crate) cost: f64,
    pub(crate) queued: HashSet<String>,
    pub(crate) last_outcome: Option<PromptOutcome>,
}

impl Transcript {
    pub(crate) fn new(options: TranscriptOptions) -> Self {
        Self {
            options,
            streamed: None,
            own_inputs: HashSet::new(),
            approvals: Vec::new(),
            files: Vec::new(),
            is_running: false,
            cost: 0.0,
            queued: HashSet::new(),
            last_outcome: None,
        }
    }

    /// Sets the width of the rows to come.
    pub(crate) fn set_layout(&mut self, layout: Layout) {
        self.options.layout = layout;
        for block in self.streamed.iter_mut().flat_map(|streamed| streamed.blocks.values_mut()) {
            if let TextRenderer::Markdown(markdown) = &mut block.renderer {
                markdown.set_layout(layout);
            }
        }
    }

    /// Notes an input that this program sent.
    pub(crate) fn add_own_input(&mut self, input_id: &str, is_queued: bool) {
        self.own_inputs.insert(input_id.to_owned());
        if is_queued {
            self.queued.insert(input_id.to_owned());
        }
    }

    /// A notice in one style.
    pub(crate) fn notice(&self, notice: &str, style: Style) -> Vec<Printed> {
        let rows = wrap_text(self.options.layout, "", notice, style);
        rows.into_iter().map(Printed::Notice).collect()
    }

    /// Applies an event, and returns the rows that it adds.
    pub(crate) fn apply(&mut self, event: &ExactJson, now: Instant) -> Vec<Printed> {
        match text(event, "type") {
            "agent_start" => {
                self.is_running = true;
                Vec::new()
            }
            "agent_settled" => {
                self.is_running = false;
                self.queued.clear();
                self.end_message()
            }
            "prompt.created" => {
                self.is_running = true;
                self.cost = 0.0;
                Vec::new()
            }
            "message_start" => self.start_message(event),
            "message_update" => self.update_message(event),
            "message_snapshot" => {
                self.continue_message(text(event, "messageId"), items(event, "content"))
            }
            "message_reset" => self.reset_message(text(event, "messageId")),
            "message_end" => self.finish_message(event),
            "tool_execution_start" => {
                let name = [text(event, "toolLabel"), text(event, "toolName")];
                let name = name.into_iter().find(|name| !name.is_empty()).unwrap_or("tool");
                let arguments = member(event, "args").map(json_line).unwrap_or_default();
                self.row(&Row::new('▸', clean_line(name), &arguments).styled(Style::CODE))
            }
            "tool_execution_end" => {
                let content = member_at(event, &["result", "content"]).map(content_text);
                let content = content.unwrap_or_default();
                self.row(&result_row(event, &content))
            }
            "prompt.approval-requested" | "prompt.approval-settled" => {
                self.apply_approval(event, now)
            }
            "prompt.completed" | "prompt.error" => self.end_prompt(event),
            "prompt.output" => self.offer_file(event),
            kind => self.apply_other(kind, event),
        }
    }

    fn row(&self, row: &Row) -> Vec<Printed> {
        row.render(self.options.layout, "").into_iter().map(Printed::Notice).collect()
    }

    fn start_message(&mut self, event: &ExactJson) -> Vec<Printed> {
        let id = text(event, "messageId");
        let is_of_model = text_at(event, &["message", "role"]) == Some("assistant");
        if !is_of_model || self.streamed.as_ref().is_some_and(|streamed| streamed.id == id) {
            return Vec::new();
        }
        let rows = self.end_message();
        self.streamed = Some(StreamedMessage { id: id.to_owned(), blocks: BTreeMap::new() });
        rows
    }

    fn update_message(&mut self, event: &ExactJson) -> Vec<Printed> {
        let Some(update) = member(event, "assistantMessageEvent") else { return Vec::new() };
        let index = number(update, "contentIndex");
        match text(update, "type") {
            "text_delta" => self.push_text(text(event, "messageId"), index, text(update, "delta")),
            "text_end" => {
                let mut rows =
                    self.complete_block(text(event, "messageId"), index, text(update, "content"));
                rows.extend(self.end_block(index));
                rows
            }
            _ => Vec::new(),
        }
    }

    fn block(&mut self, message_id: &str, index: u64) -> Option<&mut StreamedBlock> {
        let options = self.options;
        let streamed = self.streamed.as_mut().filter(|streamed| streamed.id == message_id)?;
        Some(streamed.blocks.entry(index).or_insert_with(|| StreamedBlock {
            source: String::new(),
            sanitizer: Sanitizer::default(),
            renderer: if options.is_markdown {
                TextRenderer::Markdown(Box::new(Markdown::new(options.layout)))
            } else {
                TextRenderer::Plain(String::new())
            },
        }))
    }

    fn push_text(&mut self, message_id: &str, index: u64, delta: &str) -> Vec<Printed> {
        let Some(block) = self.block(message_id, index) else { return Vec::new() };
        block.source.push_str(delta);
        let clean = block.sanitizer.push(delta);
        block.renderer.push(&clean).into_iter().map(Printed::Text).collect()
    }

    /// Prints the part of the whole text that is not printed. Live pieces may have been lost.
    fn complete_block(&mut self, message_id: &str, index: u64, whole: &str) -> Vec<Printed> {
        let Some(block) = self.block(message_id, index) else { return Vec::new() };
        if let Some(rest) = whole.strip_prefix(block.source.as_str()) {
            let rest = rest.to_owned();
            return self.push_text(message_id, index, &rest);
        }
        let mut rows = self.end_block(index);
        rows.extend(self.notice("the text above lacks a part; the whole text:", Style::DIM));
        if let Some(streamed) = &mut self.streamed {
            streamed.blocks.remove(&index);
        }
        rows.extend(self.push_text(message_id, index, whole));
        rows
    }

    fn end_block(&mut self, index: u64) -> Vec<Printed> {
        let block = self.streamed.as_mut().and_then(|streamed| streamed.blocks.get_mut(&index));
        let rows = block.map(|block| block.renderer.finish()).unwrap_or_default();
        rows.into_iter().map(Printed::Text).collect()
    }

    /// Completes all text blocks of the message.
    fn continue_message(&mut self, message_id: &str, content: &[ExactJson]) -> Vec<Printed> {
        let texts = (0_u64..).zip(content).filter(|(_, block)| text(block, "type") == "text");
        texts
            .flat_map(|(index, block)| self.complete_block(message_id, index, text(block, "text")))
            .collect()
    }

    fn end_message(&mut self) -> Vec<Printed> {
        let Some(mut streamed) = self.streamed.take() else { return Vec::new() };
        let rows = streamed.blocks.values_mut().flat_map(|block| block.renderer.finish());
        rows.map(Printed::Text).collect()
    }

    fn reset_message(&mut self, message_id: &str) -> Vec<Printed> {
        if self.streamed.as_ref().is_none_or(|streamed| streamed.id != message_id) {
            return Vec::new();
        }
        let has_text = self.streamed.as_ref().is_some_and(|it| !it.blocks.is_empty());
        let mut rows = self.end_message();
        if has_text {
            rows.extend(self.notice("discarded: the model is called again", Style::DIM));
        }
        rows
    }

    fn finish_message(&mut self, event: &ExactJson) -> Vec<Printed> {
        let Some(message) = member(event, "message") else { return Vec::new() };
        let (id, input_id) = (text(event, "messageId"), text(event, "inputId"));
        match text(message, "role") {
            "assistant" => {
                let mut rows = self.start_message(event);
                rows.extend(self.continue_message(id, items(message, "content")));
                rows.extend(self.end_message());
                self.cost += member(message, "usage").map(cost).unwrap_or_default();
                if text(message, "stopReason") == "error" {
                    let error = shorten(text(message, "errorMessage"), NOTICE_MAX);
                    rows.extend(self.notice(&format!("✗ model call failed: {error}"), Style::BAD));
                }
                rows
            }
            "user" => {
                let was_queued = self.queued.remove(input_id);
                let is_own = self.own_inputs.remove(input_id);
                if is_own && !was_queued {
                    return Vec::new();
                }
                let content = member(message, "content").map(content_text).unwrap_or_default();
                let title = if is_own { "joined:" } else { "input:" };
                self.row(&Row::new('>', title, &content).styled(Style::BOLD))
            }
            "custom" if flag(message, "display") => {
                let content = member(message, "content").map(content_text).unwrap_or_default();
                self.row(&Row::new('·', clean_line(text(message, "customType")), &content))
            }
            _ => Vec::new(),
        }
    }

    fn apply_approval(&mut self, event: &ExactJson, now: Instant) -> Vec<Printed> {
        let Some(approval) = member(event, "approval") else { return Vec::new() };
        self.approvals.retain(|shown| shown.id() != text(approval, "id"));
        if text(event, "type") == "prompt.approval-settled" {
            let line = describe_decision(text(approval, "title"), approval, "decisionReason");
            return self.notice(&format!("✓ {line}"), Style::DIM);
        }
        self.show_approval(approval, now)
    }

    /// Shows an open request.
    pub(crate) fn show_approval(&mut self, approval: &ExactJson, now: Instant) -> Vec<Printed> {
        self.approvals.push(ShownApproval { approval: approval.clone(), since: now });
        let rows = render_request(self.options.layout, approval);
        rows.into_iter().map(Printed::Notice).collect()
    }

    fn end_prompt(&mut self, event: &ExactJson) -> Vec<Printed> {
        let state = text(event, "state").to_owned();
        let outcome = PromptOutcome { prompt_id: text(event, "promptId").to_owned(), state };
        let mut rows = self.end_message();
        let error = text_at(event, &["error", "message"]).unwrap_or_default();
        match outcome.state.as_str() {
            "failed" => {
                let line = format!("✗ the prompt failed: {}", shorten(error, NOTICE_MAX));
                rows.extend(self.notice(&line, Style::BAD));
            }
            "aborted" => rows.extend(self.notice("✗ the prompt was aborted", Style::BAD)),
            _ => {}
        }
        if let Some(message) = text_at(event, &["incomplete", "message"]) {
            let line = format!("the response is incomplete: {}", shorten(message, NOTICE_MAX));
            rows.extend(self.notice(&line, Style::ALERT));
        }
        self.last_outcome = Some(outcome);
        rows
    }

    fn offer_file(&mut self, event: &ExactJson) -> Vec<Printed> {
        let output = member(event, "output").filter(|output| text(output, "type") == "file");
        let Some(output) = output else { return Vec::new() };
        let name = text(output, "path").rsplit('/').next().unwrap_or_default();
        let name = shorten(name, NOTICE_MAX);
        let kind = if text(output, "mimeType").starts_with("image/") { "image" } else { "file" };
        self.files.push(OfferedFile {
            artifact_id: text(output, "artifactId").to_owned(),
            name: name.clone(),
        });
        let number_of_file = self.files.len();
        let size = number(output, "size").div_ceil(1024);
        let line = format!("[{kind} {name} {size} KB] /open {number_of_file}");
        self.notice(&line, Style::CODE)
    }

    fn apply_other(&mut self, kind: &str, event: &ExactJson) -> Vec<Printed> {
        let notice = match kind {
            "auto_retry_start" => format!(
                "the model call failed; retry {} of {} in {} s",
                number(event, "attempt"),
                number(event, "maxAttempts"),
                number(event, "delayMs").div_ceil(1000)
            ),
            "auto_compaction_start" => "older messages become a summary …".to_owned(),
            "auto_compaction_end" if !text(event, "errorMessage").is_empty() => {
                format!("no summary: {}", shorten(text(event, "errorMessage"), NOTICE_MAX))
            }
            "auto_compaction_end" => "older messages are a summary now".to_owned(),
            "session_tree" => "the conversation continues on another branch".to_owned(),
            "session_info_changed" if !text(event, "name").is_empty() => {
                format!("name: {}", shorten(text(event, "name"), NOTICE_MAX))
            }
            "notify" => format!(
                "[{}] {}",
                clean_line(text(event, "extension")),
                shorten(text(event, "text"), NOTICE_MAX)
            ),
            "tool_definition_changed" => {
                format!("changed tools: {}", clean_line(&texts(event, "tools").join(", ")))
            }
            "input_queued" => return self.note_queued(event),
            "input_cleared" => {
                self.queued.remove(text(event, "inputId"));
                return Vec::new();
            }
            _ => return Vec::new(),
        };
        self.notice(&notice, Style::DIM)
    }

    /// Shows an input that another client queued.
    fn note_queued(&mut self, event: &ExactJson) -> Vec<Printed> {
        let id = text(event, "inputId");
        let item = member(event, "item").filter(|item| text(item, "state") == "queued");
        let Some(item) = item else { return Vec::new() };
        self.queued.insert(id.to_owned());
        if self.own_inputs.contains(id) {
            return Vec::new();
        }
        let input = member(item, "input").map(content_text).unwrap_or_default();
        self.notice(&format!("queued: {}", shorten(&input, NOTICE_MAX)), Style::DIM)
    }
}

#[cfg(test)]
mod tests;
