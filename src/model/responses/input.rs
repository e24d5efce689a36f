//! History as Responses input items. Pure, and total: whatever the history holds, the request is one that the service takes.

use std::collections::HashSet;

use serde_json::{Value, json};

use crate::agent::content::{Block, Content, FileBlock, Image, Text, Thinking, ToolCall};
use crate::agent::message::{AssistantMessage, Message, ToolResultMessage, UserMessage};
use crate::agent::raw::RawJson;
use crate::agent::text::repair_surrogates;
use crate::model::responses::fold::CARRIED;
use crate::model::responses::ids::{WIRE_ID_MAX, hash, plain, split};
use crate::model::responses::names::Names;
use crate::model::{ModelRecord, ModelRequest};

/// What a tool said that said nothing.
const NO_OUTPUT: &str = "(no output)";
const NO_PICTURE: &str = "(image omitted: it is not a PNG, JPEG, GIF or WebP picture)";
const NO_IMAGES: &str = "(image omitted: this model takes no images)";

/// The system prompt as the first item, then each message's items in order.
pub fn plan_input(request: &ModelRequest<'_>, names: &Names) -> Vec<Value> {
    let mut plan = Plan::new(request.model, names);
    if let Some(system) = request.system.filter(|system| !system.is_empty()) {
        let role = if request.model.reasoning { "developer" } else { "system" };
        plan.items.push(json!({ "role": role, "content": system }));
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
    items: Vec<Value>,
    /// Item ids may stand in one request only once.
    item_ids: HashSet<String>,
    call_ids: HashSet<String>,
    /// Calls of the last answer that have no output yet: stored id, `call_id` on the wire.
    open_calls: Vec<(String, String)>,
    /// Of the tool results since the last other message: they go behind the last of these, for nothing may stand between outputs.
    images: Vec<Value>,
    /// Counts messages that left something behind.
    number: usize,
}

impl<'a> Plan<'a> {
    fn new(model: &'a ModelRecord, names: &'a Names) -> Self {
        Self {
            model,
            names,
            items: Vec::new(),
            item_ids: HashSet::new(),
            call_ids: HashSet::new(),
            open_calls: Vec::new(),
            images: Vec::new(),
            number: 0,
        }
    }

    fn add(&mut self, message: &Message) {
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
            // The projection has made user messages of those that speak to the model.
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

    fn user(&mut self, user: &UserMessage) {
        let parts = match &user.content {
            Content::Text(text) if text.is_empty() => Vec::new(),
            Content::Text(text) => vec![input_text(text)],
            Content::Blocks(blocks) => self.parts(blocks),
        };
        if !parts.is_empty() {
            self.items.push(json!({ "role": "user", "content": parts }));
        }
    }

    fn parts(&self, blocks: &[Block]) -> Vec<Value> {
        let mut parts: Vec<Value> = blocks
            .iter()
            .filter_map(|block| match block {
                Block::Text(text) => (!text.text.is_empty()).then(|| input_text(&text.text)),
                Block::Image(image) if is_picture(image) => {
                    self.model.images.then(|| input_image(image))
                }
                Block::Image(_) => Some(input_text(NO_PICTURE)),
                Block::File(file) => Some(input_text(&mention(file))),
                Block::Thinking(_) | Block::ToolCall(_) | Block::Other(_) => None,
            })
            .collect();
        if parts.is_empty() && blocks.iter().any(|block| matches!(block, Block::Image(_))) {
            parts.push(input_text(NO_IMAGES));
        }
        parts
    }

    fn answer(&mut self, answer: &AssistantMessage) {
        let is_ours = is_of_model(answer, self.model);
        // The service pairs item ids with the thoughts that led to them: where one of them cannot go back, none does.
        let keeps_thoughts = is_ours
            && answer.content.iter().all(|block| match block {
                Block::Thinking(thinking) => reasoning_item(thinking).is_some(),
                Block::Other(raw) => carried_item(raw).is_some(),
                Block::Text(_) | Block::ToolCall(_) => true,
                Block::Image(_) | Block::File(_) => false,
            });
        let start = self.items.len();
        self.open_calls.clear();
        for block in &answer.content {
            let item = match block {
                Block::Thinking(thinking) if keeps_thoughts => {
                    reasoning_item(thinking).map(|item| self.with_single_id(item))
                }
                // What another model thought is read as something it said.
                Block::Thinking(thinking) if !is_ours => self.foreign_thought(thinking),
                Block::Text(text) => self.text(text, is_ours, keeps_thoughts),
                Block::ToolCall(call) => Some(self.call(call, keeps_thoughts)),
                Block::Other(raw) => {
                    let item = if is_ours { carried_item(raw) } else { None };
                    item.map(|item| self.with_single_id(item))
                }
                Block::Thinking(_) | Block::Image(_) | Block::File(_) => None,
            };
            match item {
                Some(item) => self.items.push(item),
                // What followed the thoughts is left out, and they may not stand before something else.
                None if !matches!(block, Block::Thinking(_)) => self.drop_last_thoughts(start),
                None => {}
            }
        }
        self.drop_last_thoughts(start);
    }

    /// A reasoning item must have its successor.
    fn drop_last_thoughts(&mut self, start: usize) {
        let is_thought =
            |item: &Value| item.get("type").and_then(Value::as_str) == Some("reasoning");
        while self.items.len() > start && self.items.last().is_some_and(is_thought) {
            self.items.pop();
        }
    }

    fn with_single_id(&mut self, mut item: Value) -> Value {
        let id = item.get("id").and_then(Value::as_str).map(ToOwned::to_owned);
        let is_fit =
            id.is_some_and(|id| (1..=WIRE_ID_MAX).contains(&id.len()) && self.item_ids.insert(id));
        if let Some(object) = item.as_object_mut().filter(|_| !is_fit) {
            object.shift_remove("id");
        }
        item
    }

    fn foreign_thought(&mut self, thinking: &Thinking) -> Option<Value> {
        let is_redacted = thinking.extra.get("redacted").and_then(Value::as_bool) == Some(true);
        if is_redacted || thinking.thinking.trim().is_empty() {
            return None;
        }
        let id = self.unused_item_id(format!("msg_{}", self.number));
        Some(said(&thinking.thinking, &id))
    }

    fn text(&mut self, text: &Text, is_ours: bool, keeps_thoughts: bool) -> Option<Value> {
        let (id, phase) = match &text.text_signature {
            Some(signature) if is_ours => read_signature(signature),
            _ => (None, None),
        };
        if text.text.is_empty() && id.is_none() {
            return None;
        }
        let id = match id.filter(|_| keeps_thoughts) {
            Some(id) if id.len() <= WIRE_ID_MAX => id,
            Some(id) => format!("msg_{}", hash(&id)),
            None => format!("msg_{}", self.number),
        };
        let id = self.unused_item_id(id);
        let mut item = said(&text.text, &id);
        if let (Some(phase), Some(object)) = (phase, item.as_object_mut()) {
            object.insert("phase".to_owned(), Value::from(phase));
        }
        Some(item)
    }

    fn call(&mut self, call: &ToolCall, keeps_thoughts: bool) -> Value {
        let (call_id, item_id) = split(&call.id);
        let call_id = self.unused_call_id(call_id);
        self.open_calls.push((call.id.clone(), call_id.clone()));
        let is_fit = keeps_thoughts
            && item_id.starts_with("fc")
            && item_id.len() <= WIRE_ID_MAX
            && plain(item_id) == item_id
            && self.item_ids.insert(item_id.to_owned());
        let mut item = json!({ "type": "function_call" });
        if let Some(object) = item.as_object_mut() {
            if is_fit {
                object.insert("id".to_owned(), Value::from(item_id));
            }
            object.insert("call_id".to_owned(), Value::from(call_id));
            object.insert("name".to_owned(), Value::from(self.names.wire(&call.name)));
            object.insert("arguments".to_owned(), Value::from(arguments(&call.arguments)));
        }
        item
    }

    fn result(&mut self, result: &ToolResultMessage) {
        let texts: Vec<String> = result
            .content
            .iter()
            .filter_map(|block| match block {
                Block::Text(text) => Some(text.text.clone()),
                Block::File(file) => Some(mention(file)),
                Block::Thinking(_) | Block::Image(_) | Block::ToolCall(_) | Block::Other(_) => None,
            })
            .collect();
        let images: Vec<&Image> = result
            .content
            .iter()
            .filter_map(|block| match block {
                Block::Image(image) if is_picture(image) => Some(image),
                Block::Image(_)
                | Block::Text(_)
                | Block::Thinking(_)
                | Block::ToolCall(_)
                | Block::File(_)
                | Block::Other(_) => None,
            })
            .collect();
        let output = match (texts.is_empty(), images.is_empty()) {
            (true, false) if self.model.images => "(see attached image)".to_owned(),
            (true, false) => NO_IMAGES.to_owned(),
            _ => texts.join("\n"),
        };
        let output = match output.as_str() {
            "" if result.content.iter().any(|block| matches!(block, Block::Image(_))) => {
                NO_PICTURE.to_owned()
            }
            "" => NO_OUTPUT.to_owned(),
            _ => output,
        };
        let at = self.open_calls.iter().position(|(stored, _)| *stored == result.tool_call_id);
        let call_id = match at {
            Some(at) => self.open_calls.remove(at).1,
            None => call_id_of(split(&result.tool_call_id).0),
        };
        self.items
            .push(json!({ "type": "function_call_output", "call_id": call_id, "output": output }));
        if self.model.images {
            self.images.extend(images.into_iter().map(input_image));
        }
    }

    fn show_images(&mut self) {
        if self.images.is_empty() {
            return;
        }
        let mut parts = vec![input_text("Attached image(s) from tool result:")];
        parts.append(&mut self.images);
        self.items.push(json!({ "role": "user", "content": parts }));
    }

    fn unused_item_id(&mut self, wanted: String) -> String {
        let id = unused(&self.item_ids, wanted);
        self.item_ids.insert(id.clone());
        id
    }

    /// Models repeat ids; an output must still find its call.
    fn unused_call_id(&mut self, call_id: &str) -> String {
        let id = unused(&self.call_ids, call_id_of(call_id));
        self.call_ids.insert(id.clone());
        id
    }
}

fn call_id_of(text: &str) -> String {
    let id = plain(text);
    if id.is_empty() { format!("call_{}", hash(text)) } else { id }
}

fn unused(taken: &HashSet<String>, wanted: String) -> String {
    if !taken.contains(&wanted) {
        return wanted;
    }
    let head = wanted.get(..wanted.len().min(WIRE_ID_MAX - 8)).unwrap_or(&wanted);
    let mut number = 2;
    loop {
        let id = format!("{head}_{number}");
        if !taken.contains(&id) {
            return id;
        }
        number += 1;
    }
}

/// Signatures mean something only to the model that gave them. An imported answer may lack the api's name.
fn is_of_model(answer: &AssistantMessage, model: &ModelRecord) -> bool {
    answer.model == model.id && (answer.api == model.api || answer.api.is_empty())
}

/// `None` when it cannot be sent again: nothing is stored with the service, so that without `encrypted_content` it would
/// look for an id that it does not have.
fn reasoning_item(thinking: &Thinking) -> Option<Value> {
    let signature = repair_surrogates(thinking.thinking_signature.as_deref()?);
    let stored: Value = serde_json::from_str(&signature).ok()?;
    let is_thought = stored.get("type")?.as_str()? == "reasoning";
    let encrypted =
        stored.get("encrypted_content")?.as_str().filter(|content| !content.is_empty())?;
    if !is_thought {
        return None;
    }
    let summary = stored
        .get("summary")
        .filter(|summary| summary.is_array())
        .cloned()
        .unwrap_or_else(|| json!([]));
    let mut item = json!({ "type": "reasoning" });
    let object = item.as_object_mut()?;
    if let Some(id) = stored.get("id").filter(|id| id.is_string()) {
        object.insert("id".to_owned(), id.clone());
    }
    object.insert("summary".to_owned(), summary);
    if let Some(content) = stored
        .get("content")
        .filter(|content| content.as_array().is_some_and(|parts| !parts.is_empty()))
    {
        object.insert("content".to_owned(), content.clone());
    }
    object.insert("encrypted_content".to_owned(), Value::from(encrypted));
    Some(item)
}

/// See the fold's carried items.
fn carried_item(raw: &RawJson) -> Option<Value> {
    let mut block = raw.value();
    if block.get("type")?.as_str()? != "providerItem" {
        return None;
    }
    let item = block.get_mut("item")?.take();
    CARRIED.contains(&item.get("type")?.as_str()?).then_some(item)
}

/// The message item's id, alone or with its phase as JSON.
fn read_signature(signature: &str) -> (Option<String>, Option<String>) {
    if !signature.starts_with('{') {
        return (Some(signature.to_owned()).filter(|id| !id.is_empty()), None);
    }
    let stored: Value = serde_json::from_str(signature).unwrap_or_default();
    let text = |name: &str| stored.get(name).and_then(Value::as_str).map(ToOwned::to_owned);
    (text("id").filter(|id| !id.is_empty()), text("phase"))
}

/// The model's own text. What was no JSON had become a JSON string and goes back as it came.
fn arguments(raw: &RawJson) -> String {
    let text = repair_surrogates(raw.text());
    match text.starts_with('"').then(|| serde_json::from_str::<String>(&text)) {
        Some(Ok(came)) => came,
        _ => text.into_owned(),
    }
}

fn said(text: &str, id: &str) -> Value {
    json!({
        "type": "message",
        "role": "assistant",
        "content": [{ "type": "output_text", "text": text, "annotations": [] }],
        "status": "completed",
        "id": id,
    })
}

fn input_text(text: &str) -> Value {
    json!({ "type": "input_text", "text": text })
}

/// Others would be refused, and with them every later request.
fn is_picture(image: &Image) -> bool {
    matches!(image.mime_type.as_str(), "image/png" | "image/jpeg" | "image/gif" | "image/webp")
}

fn input_image(image: &Image) -> Value {
    let url = format!("data:{};base64,{}", image.mime_type, image.data);
    json!({ "type": "input_image", "detail": "auto", "image_url": url })
}

/// A file is not sent, only named: tools read it.
fn mention(file: &FileBlock) -> String {
    let name = file.path.as_deref().unwrap_or(file.artifact_id.as_str());
    let kind = file.mime_type.as_deref().map(|kind| format!(", {kind}")).unwrap_or_default();
    let size = file.size.map(|size| format!(", {size} bytes")).unwrap_or_default();
    format!("[file: {name}{kind}{size}]")
}

#[cfg(test)]
mod tests;
