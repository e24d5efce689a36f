//! Converts a history to Responses input items. Pure and total: every history gives a request that
//! the service accepts.

use std::borrow::Cow;
use std::collections::HashSet;

use serde_json::Value;

use crate::agent::content::{Block, Content, Image, Text, Thinking, ToolCall};
use crate::agent::message::{AssistantMessage, Message, ToolResultMessage, UserMessage};
use crate::agent::projection::wording::{FileAccess, file_text};
use crate::agent::raw::RawJson;
use crate::agent::text::repair_surrogates;
use crate::model::responses::fold::CARRIED;
use crate::model::responses::ids::{WIRE_ID_MAX, hash, plain, split};
use crate::model::responses::item::{Item, Part, Role, Words};
use crate::model::responses::names::Names;
use crate::model::{ModelRecord, ModelRequest};

/// Output of a tool that returned no content.
const NO_OUTPUT: &str = "(no output)";
const NO_PICTURE: &str = "(image omitted: it is not a PNG, JPEG, GIF or WebP picture)";
const NO_IMAGES: &str = "(image omitted: this model takes no images)";

/// Builds the input: the system prompt first, then each message's items in order.
pub(crate) fn plan_input<'a>(request: &ModelRequest<'a>, names: &'a Names) -> Vec<Item<'a>> {
    let mut plan = Plan::new(request, names);
    if let Some(system) = request.system.filter(|system| !system.is_empty()) {
        let is_developer = request.model.reasoning && request.model.compat.supports_developer_role;
        let role = if is_developer { Role::Developer } else { Role::System };
        plan.items.push(Item::Told { role, content: Words::Text(system) });
    }
    for message in request.messages {
        plan.add(message);
    }
    plan.show_images();
    plan.items
}

struct Plan<'a> {
    model: &'a ModelRecord,
    names: &'a Names,
    /// Access to files that are not sent as images.
    file_access: FileAccess,
    items: Vec<Item<'a>>,
    /// Item ids in use; each may occur once in a request.
    item_ids: HashSet<Cow<'a, str>>,
    call_ids: HashSet<Cow<'a, str>>,
    /// Calls of the last response without an output: stored id, `call_id` on the wire.
    open_calls: Vec<(&'a str, Cow<'a, str>)>,
    /// Images of the tool results since the last other message. They follow the last of these
    /// outputs, because nothing may separate outputs.
    images: Vec<Part<'a>>,
    /// Number of messages that produced items.
    number: usize,
}

impl<'a> Plan<'a> {
    fn new(request: &ModelRequest<'a>, names: &'a Names) -> Self {
        let about = request.messages.len();
        let can_read = request.tools.iter().any(|tool| tool.name == "read");
        Self {
            model: request.model,
            names,
            file_access: if can_read { FileAccess::WithRead } else { FileAccess::Without },
            items: Vec::with_capacity(about + about / 2),
            item_ids: HashSet::with_capacity(about),
            call_ids: HashSet::with_capacity(about / 2),
            open_calls: Vec::new(),
            images: Vec::new(),
            number: 0,
        }
    }

    fn add(&mut self, message: &'a Message) {
        let before = self.items.len();
        match message {
            Message::User(user) => {
                self.show_images();
                self.user(user);
            }
            Message::Assistant(answer) if !answer.is_failed() => {
                self.show_images();
                self.answer(answer);
            }
            Message::ToolResult(result) => self.result(result),
            // The projection has already converted the ones meant for the model to user messages.
            Message::Assistant(_)
            | Message::BashExecution(_)
            | Message::Custom(_)
            | Message::BranchSummary(_)
            | Message::CompactionSummary(_)
            | Message::Other(_) => {}
        }
        if self.items.len() > before {
            self.number += 1;
        }
    }

    fn user(&mut self, user: &'a UserMessage) {
        let parts = match &user.content {
            Content::Text(text) if text.is_empty() => Vec::new(),
            Content::Text(text) => vec![Part::text(text)],
            Content::Blocks(blocks) => self.parts(blocks),
        };
        if !parts.is_empty() {
            self.tell(parts);
        }
    }

    fn tell(&mut self, parts: Vec<Part<'a>>) {
        self.items.push(Item::Told { role: Role::User, content: Words::Parts(parts) });
    }

    fn parts(&self, blocks: &'a [Block]) -> Vec<Part<'a>> {
        let mut parts: Vec<Part<'a>> = blocks
            .iter()
            .zip(blocks.iter().skip(1).map(Some).chain([None]))
            .filter_map(|(block, next)| match block {
                Block::Text(text) => (!text.text.is_empty()).then(|| Part::text(&text.text)),
                Block::Image(image) if is_picture(image) => {
                    self.model.images.then(|| Part::image(image))
                }
                Block::Image(_) => Some(Part::text(NO_PICTURE)),
                Block::File(file) => {
                    let is_shown = self.model.images
                        && file.mime_type.as_deref().is_some_and(|kind| kind.starts_with("image/"))
                        && matches!(next, Some(Block::Image(_)));
                    let access = if is_shown { FileAccess::Shown } else { self.file_access };
                    Some(Part::text(file_text(file, access)))
                }
                Block::Thinking(_) | Block::ToolCall(_) | Block::Other(_) => None,
            })
            .collect();
        if parts.is_empty() && blocks.iter().any(|block| matches!(block, Block::Image(_))) {
            parts.push(Part::text(NO_IMAGES));
        }
        parts
    }

    fn answer(&mut self, answer: &'a AssistantMessage) {
        let is_ours = is_of_model(answer, self.model);
        let returned: Vec<Option<Item<'a>>> = answer
            .content
            .iter()
            .map(|block| if is_ours { returned(block) } else { None })
            .collect();
        // The service pairs item ids with the reasoning items that precede them. If one reasoning
        // item cannot be replayed, none is.
        let keeps_thoughts = is_ours
            && answer.content.iter().zip(&returned).all(|(block, returned)| match block {
                Block::Thinking(_) | Block::Other(_) => returned.is_some(),
                Block::Text(_) | Block::ToolCall(_) => true,
                Block::Image(_) | Block::File(_) => false,
            });
        let start = self.items.len();
        self.open_calls.clear();
        for (block, returned) in answer.content.iter().zip(returned) {
            let item = match block {
                Block::Thinking(_) if keeps_thoughts => self.with_single_id(returned),
                // Reasoning of another model is sent as its output text.
                Block::Thinking(thinking) if !is_ours => self.foreign_thought(thinking),
                Block::Text(text) => self.text(text, is_ours, keeps_thoughts),
                Block::ToolCall(call) => Some(self.call(call, keeps_thoughts)),
                Block::Other(_) => self.with_single_id(returned),
                Block::Thinking(_) | Block::Image(_) | Block::File(_) => None,
            };
            match item {
                Some(item) => self.items.push(item),
                // The successor of the reasoning items is omitted, and they may not precede another
                // item.
                None if !matches!(block, Block::Thinking(_)) => self.drop_last_thoughts(start),
                None => {}
            }
        }
        self.drop_last_thoughts(start);
    }

    /// Removes trailing reasoning items: each must have its successor.
    fn drop_last_thoughts(&mut self, start: usize) {
        while self.items.len() > start && matches!(self.items.last(), Some(Item::Reasoning { .. }))
        {
            self.items.pop();
        }
    }

    fn with_single_id(&mut self, item: Option<Item<'a>>) -> Option<Item<'a>> {
        let item = item?;
        let is_fit = item.id().is_some_and(|id| {
            (1..=WIRE_ID_MAX).contains(&id.len()) && self.item_ids.insert(Cow::Owned(id.to_owned()))
        });
        Some(if is_fit { item } else { item.without_id() })
    }

    fn foreign_thought(&mut self, thinking: &'a Thinking) -> Option<Item<'a>> {
        let is_redacted = thinking.extra.get("redacted").and_then(Value::as_bool) == Some(true);
        if is_redacted || thinking.thinking.trim().is_empty() {
            return None;
        }
        let id = unused(&mut self.item_ids, format!("msg_{}", self.number).into());
        Some(Item::said(&thinking.thinking, id, None))
    }

    fn text(&mut self, text: &'a Text, is_ours: bool, keeps_thoughts: bool) -> Option<Item<'a>> {
        let (id, phase) = match &text.text_signature {
            Some(signature) if is_ours => read_signature(signature),
            _ => (None, None),
        };
        if text.text.is_empty() && id.is_none() {
            return None;
        }
        let id = match id.filter(|_| keeps_thoughts) {
            Some(id) if id.len() <= WIRE_ID_MAX => id,
            Some(id) => format!("msg_{}", hash(&id)).into(),
            None => format!("msg_{}", self.number).into(),
        };
        Some(Item::said(&text.text, unused(&mut self.item_ids, id), phase))
    }

    fn call(&mut self, call: &'a ToolCall, keeps_thoughts: bool) -> Item<'a> {
        let (call_id, item_id) = split(&call.id);
        // Models repeat call ids. Ids are made unique, so that each output matches its call.
        let call_id = unused(&mut self.call_ids, call_id_of(call_id));
        self.open_calls.push((call.id.as_str(), call_id.clone()));
        let is_fit = keeps_thoughts
            && item_id.starts_with("fc")
            && item_id.len() <= WIRE_ID_MAX
            && plain(item_id) == item_id
            && self.item_ids.insert(Cow::Borrowed(item_id));
        Item::FunctionCall {
            id: is_fit.then_some(item_id),
            call_id,
            name: self.names.wire(&call.name),
            arguments: arguments(&call.arguments),
        }
    }

    fn result(&mut self, result: &'a ToolResultMessage) {
        let mut texts: Vec<Cow<'a, str>> = Vec::new();
        let mut pictures = Vec::new();
        let mut has_image = false;
        for block in &result.content {
            match block {
                Block::Text(text) => texts.push(Cow::Borrowed(&text.text)),
                Block::File(file) => {
                    texts.push(Cow::Owned(file_text(file, self.file_access)));
                }
                Block::Image(image) => {
                    has_image = true;
                    pictures.extend(is_picture(image).then(|| Part::image(image)));
                }
                Block::Thinking(_) | Block::ToolCall(_) | Block::Other(_) => {}
            }
        }
        let said = if texts.is_empty() && !pictures.is_empty() {
            let seen = if self.model.images { "(see attached image)" } else { NO_IMAGES };
            Cow::Borrowed(seen)
        } else {
            joined(texts)
        };
        let output = match said.as_ref() {
            "" if has_image => Cow::Borrowed(NO_PICTURE),
            "" => Cow::Borrowed(NO_OUTPUT),
            _ => said,
        };
        let at = self.open_calls.iter().position(|(stored, _)| *stored == result.tool_call_id);
        let call_id = match at {
            Some(at) => self.open_calls.remove(at).1,
            None => call_id_of(split(&result.tool_call_id).0),
        };
        self.items.push(Item::FunctionCallOutput { call_id, output });
        if self.model.images {
            self.images.append(&mut pictures);
        }
    }

    fn show_images(&mut self) {
        if self.images.is_empty() {
            return;
        }
        let mut parts = vec![Part::text("Attached image(s) from tool result:")];
        parts.append(&mut self.images);
        self.tell(parts);
    }
}

/// Joins texts with newlines. A single text is borrowed unchanged.
fn joined(texts: Vec<Cow<'_, str>>) -> Cow<'_, str> {
    match <[_; 1]>::try_from(texts) {
        Ok([only]) => only,
        Err(texts) => Cow::Owned(texts.join("\n")),
    }
}

fn call_id_of(text: &str) -> Cow<'_, str> {
    let id = plain(text);
    if id.is_empty() { format!("call_{}", hash(text)).into() } else { id }
}

/// Reserves the requested id, or a variant of it if it is in use.
fn unused<'a>(taken: &mut HashSet<Cow<'a, str>>, wanted: Cow<'a, str>) -> Cow<'a, str> {
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
fn is_of_model(answer: &AssistantMessage, model: &ModelRecord) -> bool {
    answer.model == model.id && (answer.api == model.api || answer.api.is_empty())
}

/// Returns the item to replay to the model that produced the block.
fn returned(block: &Block) -> Option<Item<'static>> {
    match block {
        Block::Thinking(thinking) => reasoning_item(thinking),
        Block::Other(raw) => carried_item(raw),
        Block::Text(_) | Block::ToolCall(_) | Block::Image(_) | Block::File(_) => None,
    }
}

/// Returns the reasoning item of a block, or `None` if it cannot be replayed. The service stores
/// nothing: without `encrypted_content` it would look up an unknown id.
fn reasoning_item(thinking: &Thinking) -> Option<Item<'static>> {
    let signature = repair_surrogates(thinking.thinking_signature.as_deref()?);
    let mut stored: Value = serde_json::from_str(&signature).ok()?;
    let is_thought = stored.get("type")?.as_str()? == "reasoning";
    let mut take = |name: &str| stored.get_mut(name).map(Value::take);
    let encrypted_content = take("encrypted_content").and_then(text)?;
    (is_thought && !encrypted_content.is_empty()).then(|| Item::Reasoning {
        id: take("id").and_then(text),
        summary: take("summary").map(list).unwrap_or_default(),
        content: take("content").map(list).unwrap_or_default(),
        encrypted_content,
    })
}

/// Returns the provider item of a block, if its type is in [`REPLAYABLE_ITEMS`].
fn carried_item(raw: &RawJson) -> Option<Item<'static>> {
    let mut block = raw.value();
    if block.get("type")?.as_str()? != "providerItem" {
        return None;
    }
    let Value::Object(item) = block.get_mut("item")?.take() else { return None };
    CARRIED.contains(&item.get("type")?.as_str()?).then_some(Item::Carried(item))
}

/// Parses a text signature: the id of the message item, alone or with its phase as JSON.
fn read_signature(signature: &str) -> (Option<Cow<'_, str>>, Option<String>) {
    if !signature.starts_with('{') {
        return (Some(Cow::Borrowed(signature)).filter(|id| !id.is_empty()), None);
    }
    let mut stored: Value = serde_json::from_str(signature).unwrap_or_default();
    let mut take = |name: &str| stored.get_mut(name).map(Value::take).and_then(text);
    (take("id").filter(|id| !id.is_empty()).map(Cow::Owned), take("phase"))
}

fn text(value: Value) -> Option<String> {
    if let Value::String(text) = value { Some(text) } else { None }
}

/// Returns the list; empty for another type.
fn list(value: Value) -> Vec<Value> {
    if let Value::Array(list) = value { list } else { Vec::new() }
}

/// Returns the arguments as the model wrote them. Arguments that are not JSON are stored as a JSON
/// string and sent unquoted.
fn arguments(raw: &RawJson) -> Cow<'_, str> {
    let text = repair_surrogates(raw.text());
    match text.starts_with('"').then(|| serde_json::from_str::<String>(&text)) {
        Some(Ok(came)) => Cow::Owned(came),
        _ => text,
    }
}

/// True if the service accepts the image format. It rejects other formats, and with them every
/// later request.
fn is_picture(image: &Image) -> bool {
    matches!(image.mime_type.as_str(), "image/png" | "image/jpeg" | "image/gif" | "image/webp")
}

#[cfg(test)]
mod tests;
