//! The last look at a request (invariant 8): what the service would refuse is not sent, so that it costs nothing and the record
//! says why. The plan of the input keeps these rules by itself; this is who notices when it does not.

use std::collections::HashSet;

use serde_json::Value;

use crate::model::responses::ids::WIRE_ID_MAX;

/// Characters of one tool's output.
const OUTPUT_CHARS_MAX: usize = 10_485_760;

/// What the service would not take about a request's body; `None`: nothing.
pub fn objection(body: &Value) -> Option<String> {
    let items = body.get("input").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    if items.is_empty() {
        return Some(
            "there is nothing to answer: the conversation has no message, and the agent no instructions.".to_owned(),
        );
    }
    let mut look = Look::default();
    for (position, item) in items.iter().enumerate() {
        if let Err(reason) = look.at(item) {
            return Some(format!("item {position} of its input {reason}."));
        }
    }
    look.end().err().map(|reason| format!("the end of its input {reason}."))
}

#[derive(Default)]
struct Look<'a> {
    /// Calls without an output so far.
    open: Vec<&'a str>,
    call_ids: HashSet<&'a str>,
    item_ids: HashSet<&'a str>,
    /// Whether the last item was a thought, whose successor has to come now.
    is_after_thought: bool,
    roles: HashSet<&'a str>,
}

impl<'a> Look<'a> {
    fn at(&mut self, item: &'a Value) -> Result<(), &'static str> {
        let kind = text(item, "type").unwrap_or("message");
        let role = text(item, "role").unwrap_or_default();
        let is_of_model =
            kind != "function_call_output" && (kind != "message" || role == "assistant");
        if self.is_after_thought && !is_of_model {
            return Err("stands between a thought and what it led to");
        }
        self.is_after_thought = kind == "reasoning";
        self.id(item, kind)?;
        match kind {
            "message" => self.message(item, role),
            "function_call" => self.call(item),
            "function_call_output" => self.output(item),
            "reasoning" => thought(item),
            // Items of the service that go back as they came.
            _ => Ok(()),
        }
    }

    fn end(&self) -> Result<(), &'static str> {
        if self.is_after_thought {
            return Err("is a thought without what it led to");
        }
        if self.open.is_empty() { Ok(()) } else { Err("comes before the output of a call") }
    }

    fn id(&mut self, item: &'a Value, kind: &str) -> Result<(), &'static str> {
        let Some(id) = text(item, "id") else { return Ok(()) };
        if id.is_empty() || id.len() > WIRE_ID_MAX {
            return Err("has an id that is too long or empty");
        }
        if kind == "function_call" && !id.starts_with("fc") {
            return Err("is a call whose id is none of a call");
        }
        if self.item_ids.insert(id) { Ok(()) } else { Err("has the id of an earlier one") }
    }

    fn message(&mut self, item: &'a Value, role: &'a str) -> Result<(), &'static str> {
        if !["user", "assistant", "system", "developer"].contains(&role) {
            return Err("is a message of an unknown role");
        }
        if role != "assistant" && !self.open.is_empty() {
            return Err("stands between a call and its output");
        }
        self.roles.insert(role);
        if self.roles.contains("system") && self.roles.contains("developer") {
            return Err("mixes the roles system and developer");
        }
        let is_empty = match item.get("content") {
            Some(Value::String(text)) => text.is_empty(),
            Some(Value::Array(parts)) => parts.is_empty() || parts.iter().any(is_empty_input),
            _ => true,
        };
        if is_empty { Err("is a message without content") } else { Ok(()) }
    }

    fn call(&mut self, item: &'a Value) -> Result<(), &'static str> {
        let id = text(item, "call_id").unwrap_or_default();
        let name = text(item, "name").unwrap_or_default();
        if !is_plain(id) {
            return Err("is a call without a legal call_id");
        }
        if !is_plain(name) {
            return Err("is a call of a tool without a legal name");
        }
        if text(item, "arguments").is_none() {
            return Err("is a call without arguments");
        }
        self.open.push(id);
        if self.call_ids.insert(id) { Ok(()) } else { Err("has the call_id of an earlier call") }
    }

    fn output(&mut self, item: &'a Value) -> Result<(), &'static str> {
        let id = text(item, "call_id").unwrap_or_default();
        let Some(position) = self.open.iter().position(|open| *open == id) else {
            return Err("is an output without its call");
        };
        self.open.swap_remove(position);
        match text(item, "output") {
            Some("") | None => Err("is an output without content"),
            Some(text)
                if text.len() > OUTPUT_CHARS_MAX && text.chars().count() > OUTPUT_CHARS_MAX =>
            {
                Err("is an output of more than 10 million characters")
            }
            Some(_) => Ok(()),
        }
    }
}

fn text<'a>(item: &'a Value, member: &str) -> Option<&'a str> {
    item.get(member)?.as_str()
}

/// 1 to 64 of the characters that ids and names may have.
fn is_plain(text: &str) -> bool {
    let is_legal = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-';
    (1..=WIRE_ID_MAX).contains(&text.len()) && text.bytes().all(is_legal)
}

/// What the service keeps nothing of has to come back whole.
fn thought(item: &Value) -> Result<(), &'static str> {
    let is_whole = text(item, "encrypted_content").is_some_and(|content| !content.is_empty())
        && item.get("summary").is_some_and(Value::is_array);
    if is_whole { Ok(()) } else { Err("is a thought without its content") }
}

/// The model's own parts go back as they came.
fn is_empty_input(part: &Value) -> bool {
    match text(part, "type") {
        Some("input_text") => text(part, "text").is_none_or(str::is_empty),
        Some("input_image") => text(part, "image_url").is_none_or(str::is_empty),
        Some(_) => false,
        None => true,
    }
}

#[cfg(test)]
mod tests;
