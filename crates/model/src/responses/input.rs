//! Converts a history to Responses input items. Pure and total: every history gives a request that
//! the service accepts.

use std::borrow::Cow;
use std::collections::HashSet;

use serde_json::Value;

use crate::chat;
use crate::responses::fold::REPLAYABLE_ITEMS;
use crate::responses::ids::{WIRE_ID_MAX, plain_id, short_hash, split_call_id};
use crate::responses::item::{ContentPart, InputItem, MessageContent, Role};
use crate::responses::names::ToolNames;
use crate::{ModelRecord, ModelRequest};
use turnwheel_conversation::content::{Block, Content, Image, Text, Thinking, ToolCall};
use turnwheel_conversation::message::{AssistantMessage, Message, ToolResultMessage, UserMessage};
use turnwheel_conversation::projection::render::{FileAccess, render_file};
use turnwheel_json::partial::object_text;
use turnwheel_json::raw::RawJson;
use turnwheel_json::text::repair_surrogates;

/// Output of a tool that returned no content.
const NO_OUTPUT: &str = "(no output)";
const UNSUPPORTED_IMAGE: &str = "(image omitted: it is not a PNG, JPEG, GIF or WebP picture)";
const FOREIGN_CALL_ID_CHARS: usize = 9;
/// Beginnings of the ids of messages, reasoning items and calls. The service refuses others.
const MESSAGE_ID_PREFIX: &str = "msg";
const REASONING_ID_PREFIX: &str = "rs";
const CALL_ID_PREFIX: &str = "fc";
const IMAGES_NOT_ACCEPTED: &str = "(image omitted: this model takes no images)";

/// Builds the input: the system prompt first, then each message's items in order.
pub fn build_input<'a>(request: &ModelRequest<'a>, names: &'a ToolNames) -> Vec<InputItem<'a>> {
    let mut builder = InputBuilder::new(request, names);
    if let Some(system) = request.system.filter(|system| !system.is_empty()) {
        let is_developer = request.model.reasoning
            && request.model.compat.supports_developer_role
            && !builder.is_chat;
        let role = if is_developer { Role::Developer } else { Role::System };
        builder.items.push(InputItem::InputMessage { role, content: MessageContent::Text(system) });
    }
    for message in request.messages {
        builder.add_message(message);
    }
    builder.flush_images();
    builder.items
}

struct InputBuilder<'a> {
    model: &'a ModelRecord,
    /// True if Chat Completions messages are made of the items. They contain no reasoning, unless
    /// the endpoint requires it.
    is_chat: bool,
    names: &'a ToolNames,
    /// Access to files that are not sent as images.
    file_access: FileAccess,
    items: Vec<InputItem<'a>>,
    /// Item ids in use; each may occur once in a request.
    item_ids: HashSet<Cow<'a, str>>,
    call_ids: HashSet<Cow<'a, str>>,
    /// Calls of the last response without an output: stored id, `call_id` on the wire.
    open_calls: Vec<(&'a str, Cow<'a, str>)>,
    /// Images of the tool results since the last other message. They follow the last of these
    /// outputs, because nothing may separate outputs.
    pending_images: Vec<ContentPart<'a>>,
    /// Number of messages that produced items.
    message_number: usize,
}

impl<'a> InputBuilder<'a> {
    fn new(request: &ModelRequest<'a>, names: &'a ToolNames) -> Self {
        let about = request.messages.len();
        let can_read = request.tools.iter().any(|tool| tool.name == "read");
        Self {
            model: request.model,
            is_chat: request.model.api == chat::API,
            names,
            file_access: if can_read { FileAccess::ReadTool } else { FileAccess::Unavailable },
            items: Vec::with_capacity(about + about / 2),
            item_ids: HashSet::with_capacity(about),
            call_ids: HashSet::with_capacity(about / 2),
            open_calls: Vec::new(),
            pending_images: Vec::new(),
            message_number: 0,
        }
    }

    fn add_message(&mut self, message: &'a Message) {
        let before = self.items.len();
        match message {
            Message::User(user) => {
                self.flush_images();
                self.add_user_message(user);
            }
            Message::Assistant(answer) if !answer.is_failed() => {
                self.flush_images();
                self.add_response(answer);
            }
            Message::ToolResult(result) => self.add_tool_result(result),
            // The projection has already converted the ones meant for the model to user messages.
            Message::Assistant(_)
            | Message::BashExecution(_)
            | Message::Custom(_)
            | Message::BranchSummary(_)
            | Message::CompactionSummary(_)
            | Message::Other(_) => {}
        }
        if self.items.len() > before {
            self.message_number += 1;
        }
    }

    fn add_user_message(&mut self, user: &'a UserMessage) {
        let parts = match &user.content {
            Content::Text(text) if text.is_empty() => Vec::new(),
            Content::Text(text) => vec![ContentPart::text(text)],
            Content::Blocks(blocks) => self.content_parts(blocks),
        };
        if !parts.is_empty() {
            self.push_user_item(parts);
        }
    }

    fn push_user_item(&mut self, parts: Vec<ContentPart<'a>>) {
        self.items.push(InputItem::InputMessage {
            role: Role::User,
            content: MessageContent::Parts(parts),
        });
    }

    fn content_parts(&self, blocks: &'a [Block]) -> Vec<ContentPart<'a>> {
        let mut parts: Vec<ContentPart<'a>> = blocks
            .iter()
            .zip(blocks.iter().skip(1).map(Some).chain([None]))
            .filter_map(|(block, next)| match block {
                Block::Text(text) => (!text.text.is_empty()).then(|| ContentPart::text(&text.text)),
                Block::Image(image) if is_supported_image(image) => {
                    self.model.images.then(|| ContentPart::image(image))
                }
                Block::Image(_) => Some(ContentPart::text(UNSUPPORTED_IMAGE)),
                Block::File(file) => {
                    let is_shown = self.model.images
                        && file.mime_type.as_deref().is_some_and(|kind| kind.starts_with("image/"))
                        && matches!(next, Some(Block::Image(_)));
                    let access = if is_shown { FileAccess::Inline } else { self.file_access };
                    Some(ContentPart::text(render_file(file, access)))
                }
                Block::Thinking(_) | Block::ToolCall(_) | Block::Other(_) => None,
            })
            .collect();
        if parts.is_empty() && blocks.iter().any(|block| matches!(block, Block::Image(_))) {
            parts.push(ContentPart::text(IMAGES_NOT_ACCEPTED));
        }
        parts
    }

    fn add_response(&mut self, answer: &'a AssistantMessage) {
        let is_from_model = is_from_model(answer, self.model);
        let replayed: Vec<Option<InputItem<'a>>> = answer
            .content
            .iter()
            .map(|block| if is_from_model { replayed_item(block) } else { None })
            .collect();
        // The service pairs item ids with the reasoning items that precede them. If one reasoning
        // item cannot be replayed, none is.
        let keeps_reasoning = is_from_model
            && answer.content.iter().zip(&replayed).all(|(block, replayed)| match block {
                Block::Thinking(_) | Block::Other(_) => replayed.is_some(),
                Block::Text(_) | Block::ToolCall(_) => true,
                Block::Image(_) | Block::File(_) => false,
            });
        let start = self.items.len();
        self.open_calls.clear();
        for (block, replayed) in answer.content.iter().zip(replayed) {
            let item = match block {
                Block::Thinking(thinking) if self.is_chat => {
                    is_from_model.then(|| self.reasoning_text(thinking)).flatten()
                }
                Block::Thinking(_) if keeps_reasoning => self.with_unique_id(replayed),
                // Reasoning of another model is sent as its output text.
                Block::Thinking(thinking) if !is_from_model => self.foreign_reasoning(thinking),
                Block::Text(text) => self.text_item(text, is_from_model, keeps_reasoning),
                Block::ToolCall(call) if self.is_chat && !is_from_model => {
                    Some(self.foreign_call_item(call))
                }
                Block::ToolCall(call) => Some(self.call_item(call, keeps_reasoning)),
                Block::Other(_) => self.with_unique_id(replayed),
                Block::Thinking(_) | Block::Image(_) | Block::File(_) => None,
            };
            match item {
                Some(item) => self.items.push(item),
                // The successor of the reasoning items is omitted, and they may not precede another
                // item.
                None if !matches!(block, Block::Thinking(_)) => self.drop_trailing_reasoning(start),
                None => {}
            }
        }
        self.drop_trailing_reasoning(start);
    }

    /// Removes trailing reasoning items: each must have its successor.
    fn drop_trailing_reasoning(&mut self, start: usize) {
        while self.items.len() > start
            && matches!(self.items.last(), Some(InputItem::Reasoning { .. }))
        {
            self.items.pop();
        }
    }

    fn with_unique_id(&mut self, item: Option<InputItem<'a>>) -> Option<InputItem<'a>> {
        let item = item?;
        let is_reasoning = matches!(item, InputItem::Reasoning { .. });
        let is_usable = item.id().is_some_and(|id| {
            let is_valid = if is_reasoning {
                is_item_id(id, REASONING_ID_PREFIX)
            } else {
                (1..=WIRE_ID_MAX).contains(&id.len())
            };
            is_valid && self.item_ids.insert(Cow::Owned(id.to_owned()))
        });
        Some(if is_usable { item } else { item.without_id() })
    }

    fn reasoning_text(&self, thinking: &'a Thinking) -> Option<InputItem<'a>> {
        let text = thinking.thinking.as_str();
        let is_sent = self.model.compat.requires_reasoning_content_on_assistant_messages;
        (is_sent && !text.is_empty()).then_some(InputItem::ReasoningText { text })
    }

    fn foreign_reasoning(&mut self, thinking: &'a Thinking) -> Option<InputItem<'a>> {
        let is_redacted = thinking.extra.get("redacted").and_then(Value::as_bool) == Some(true);
        if is_redacted || thinking.thinking.trim().is_empty() {
            return None;
        }
        let id = reserve_id(&mut self.item_ids, format!("msg_{}", self.message_number).into());
        Some(InputItem::output_message(&thinking.thinking, id, None))
    }

    fn text_item(
        &mut self,
        text: &'a Text,
        is_from_model: bool,
        keeps_reasoning: bool,
    ) -> Option<InputItem<'a>> {
        let (id, phase) = match &text.text_signature {
            Some(signature) if is_from_model => parse_signature(signature),
            _ => (None, None),
        };
        if text.text.is_empty() && id.is_none() {
            return None;
        }
        let id = match id.filter(|_| keeps_reasoning) {
            Some(id) if is_item_id(&id, MESSAGE_ID_PREFIX) => id,
            // Gateways record ids that the service refuses.
            Some(id) => format!("msg_{}", short_hash(&id)).into(),
            None => format!("msg_{}", self.message_number).into(),
        };
        Some(InputItem::output_message(&text.text, reserve_id(&mut self.item_ids, id), phase))
    }

    /// A call of another model, for Chat Completions. Mistral's models accept only ids of nine
    /// letters and digits.
    fn foreign_call_item(&mut self, call: &'a ToolCall) -> InputItem<'a> {
        let short_id = |number: usize| {
            let mut id = short_hash(&format!("{number} {}", call.id));
            id.truncate(FOREIGN_CALL_ID_CHARS);
            Cow::Owned(id)
        };
        let mut number = 0;
        let mut call_id: Cow<'a, str> = short_id(number);
        while !self.call_ids.insert(call_id.clone()) {
            number += 1;
            call_id = short_id(number);
        }
        self.open_calls.push((call.id.as_str(), call_id.clone()));
        InputItem::FunctionCall {
            id: None,
            call_id,
            name: self.names.wire_name(&call.name),
            arguments: object_text(&call.arguments),
        }
    }

    fn call_item(&mut self, call: &'a ToolCall, keeps_reasoning: bool) -> InputItem<'a> {
        let (call_id, item_id) = split_call_id(&call.id);
        // Models repeat call ids. Ids are made unique, so that each output matches its call.
        let call_id = reserve_id(&mut self.call_ids, wire_call_id(call_id));
        self.open_calls.push((call.id.as_str(), call_id.clone()));
        let has_item_id = keeps_reasoning
            && is_item_id(item_id, CALL_ID_PREFIX)
            && self.item_ids.insert(Cow::Borrowed(item_id));
        InputItem::FunctionCall {
            id: has_item_id.then_some(item_id),
            call_id,
            name: self.names.wire_name(&call.name),
            arguments: object_text(&call.arguments),
        }
    }

    fn add_tool_result(&mut self, result: &'a ToolResultMessage) {
        let mut texts: Vec<Cow<'a, str>> = Vec::new();
        let mut pictures = Vec::new();
        let mut has_image = false;
        for block in &result.content {
            match block {
                Block::Text(text) => texts.push(Cow::Borrowed(&text.text)),
                Block::File(file) => {
                    texts.push(Cow::Owned(render_file(file, self.file_access)));
                }
                Block::Image(image) => {
                    has_image = true;
                    pictures.extend(is_supported_image(image).then(|| ContentPart::image(image)));
                }
                Block::Thinking(_) | Block::ToolCall(_) | Block::Other(_) => {}
            }
        }
        let said = if texts.is_empty() && !pictures.is_empty() {
            let seen = if self.model.images { "(see attached image)" } else { IMAGES_NOT_ACCEPTED };
            Cow::Borrowed(seen)
        } else {
            join_texts(texts)
        };
        let output = match said.as_ref() {
            "" if has_image => Cow::Borrowed(UNSUPPORTED_IMAGE),
            "" => Cow::Borrowed(NO_OUTPUT),
            _ => said,
        };
        let at = self.open_calls.iter().position(|(stored, _)| *stored == result.tool_call_id);
        let call_id = match at {
            Some(at) => self.open_calls.remove(at).1,
            None => wire_call_id(split_call_id(&result.tool_call_id).0),
        };
        self.items.push(InputItem::FunctionCallOutput { call_id, output });
        if self.model.images {
            self.pending_images.append(&mut pictures);
        }
    }

    fn flush_images(&mut self) {
        if self.pending_images.is_empty() {
            return;
        }
        let mut parts = vec![ContentPart::text("Attached image(s) from tool result:")];
        parts.append(&mut self.pending_images);
        self.push_user_item(parts);
    }
}

/// True for an id that the service accepts: it begins with the prefix of its kind, and its characters are
/// plain.
fn is_item_id(id: &str, prefix: &str) -> bool {
    (1..=WIRE_ID_MAX).contains(&id.len()) && id.starts_with(prefix) && plain_id(id) == id
}

/// Joins texts with newlines. A single text is borrowed unchanged.
fn join_texts(texts: Vec<Cow<'_, str>>) -> Cow<'_, str> {
    match <[_; 1]>::try_from(texts) {
        Ok([only]) => only,
        Err(texts) => Cow::Owned(texts.join("\n")),
    }
}

fn wire_call_id(text: &str) -> Cow<'_, str> {
    let id = plain_id(text);
    if id.is_empty() { format!("call_{}", short_hash(text)).into() } else { id }
}

/// Reserves the requested id, or a variant of it if it is in use.
fn reserve_id<'a>(taken: &mut HashSet<Cow<'a, str>>, wanted: Cow<'a, str>) -> Cow<'a, str> {
    if taken.insert(wanted.clone()) {
        return wanted;
    }
    let head = wanted.get(..wanted.len().min(WIRE_ID_MAX - 8)).unwrap_or(&wanted);
    let mut number = 2;
    loop {
        let id: Cow<'a, str> = format!("{head}_{number}").into();
        if taken.insert(id.clone()) {
            return id;
        }
        number += 1;
    }
}

/// True if this model produced the response: signatures are valid only for their own model. An
/// imported response may lack the API name.
fn is_from_model(answer: &AssistantMessage, model: &ModelRecord) -> bool {
    answer.model == model.id && (answer.api == model.api || answer.api.is_empty())
}

/// Returns the item to replay to the model that produced the block.
fn replayed_item(block: &Block) -> Option<InputItem<'static>> {
    match block {
        Block::Thinking(thinking) => reasoning_item(thinking),
        Block::Other(raw) => provider_item(raw),
        Block::Text(_) | Block::ToolCall(_) | Block::Image(_) | Block::File(_) => None,
    }
}

/// Returns the reasoning item of a block, or `None` if it cannot be replayed. The service stores
/// nothing: without `encrypted_content` it would look up an unknown id.
fn reasoning_item(thinking: &Thinking) -> Option<InputItem<'static>> {
    let signature = repair_surrogates(thinking.thinking_signature.as_deref()?);
    let mut stored: Value = serde_json::from_str(&signature).ok()?;
    let is_reasoning = stored.get("type")?.as_str()? == "reasoning";
    let mut take = |name: &str| stored.get_mut(name).map(Value::take);
    let encrypted_content = take("encrypted_content").and_then(into_text)?;
    (is_reasoning && !encrypted_content.is_empty()).then(|| InputItem::Reasoning {
        id: take("id").and_then(into_text),
        summary: take("summary").map(into_list).unwrap_or_default(),
        content: take("content").map(into_list).unwrap_or_default(),
        encrypted_content,
    })
}

/// Returns the provider item of a block, if its type is in [`REPLAYABLE_ITEMS`].
fn provider_item(raw: &RawJson) -> Option<InputItem<'static>> {
    let mut block = raw.to_value();
    if block.get("type")?.as_str()? != "providerItem" {
        return None;
    }
    let Value::Object(item) = block.get_mut("item")?.take() else { return None };
    REPLAYABLE_ITEMS.contains(&item.get("type")?.as_str()?).then_some(InputItem::ProviderItem(item))
}

/// Parses a text signature: the id of the message item, alone or with its phase as JSON.
fn parse_signature(signature: &str) -> (Option<Cow<'_, str>>, Option<String>) {
    if !signature.starts_with('{') {
        return (Some(Cow::Borrowed(signature)).filter(|id| !id.is_empty()), None);
    }
    let mut stored: Value = serde_json::from_str(signature).unwrap_or_default();
    let mut take = |name: &str| stored.get_mut(name).map(Value::take).and_then(into_text);
    (take("id").filter(|id| !id.is_empty()).map(Cow::Owned), take("phase"))
}

fn into_text(value: Value) -> Option<String> {
    if let Value::String(text) = value { Some(text) } else { None }
}

/// Returns the list; empty for another type.
fn into_list(value: Value) -> Vec<Value> {
    if let Value::Array(list) = value { list } else { Vec::new() }
}

/// True if the service accepts the image format. It rejects other formats, and with them every
/// later request.
fn is_supported_image(image: &Image) -> bool {
    image.type_error().is_none()
}

#[cfg(test)]
mod tests;
