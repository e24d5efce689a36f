//! Final validation of a request (invariant 8). A request that the service would reject is not
//! sent: it costs nothing, and the record contains the reason. The input builder keeps these rules
//! itself; this check detects its errors. The types of items already guarantee known roles,
//! arguments and lists of summaries.

use std::collections::HashSet;

use crate::responses::ids::WIRE_ID_MAX;
use crate::responses::item::{ContentPart, InputItem, MessageContent, Role};

/// Characters of a tool output.
const OUTPUT_CHARS_MAX: usize = 10_485_760;

/// Returns the first reason why the service would reject the input; `None` without any.
pub fn find_violation(input: &[InputItem<'_>]) -> Option<String> {
    if input.is_empty() {
        return Some(
            "the input is empty: the conversation has no message, and the agent has no instructions.".to_owned(),
        );
    }
    let mut checker = InputChecker::default();
    for (position, item) in input.iter().enumerate() {
        if let Err(reason) = checker.check_item(item) {
            return Some(format!("item {position} of its input {reason}."));
        }
    }
    checker.check_end().err().map(|reason| format!("the end of its input {reason}."))
}

#[derive(Default)]
struct InputChecker<'a> {
    /// Calls without an output so far.
    open_calls: Vec<&'a str>,
    call_ids: HashSet<&'a str>,
    item_ids: HashSet<&'a str>,
    /// True if the last item was a reasoning item, whose successor must follow.
    is_after_reasoning: bool,
    /// Role of the instructions so far.
    instruction_role: Option<Role>,
}

impl<'a> InputChecker<'a> {
    fn check_item(&mut self, item: &'a InputItem<'_>) -> Result<(), &'static str> {
        let is_model_output =
            !matches!(item, InputItem::InputMessage { .. } | InputItem::FunctionCallOutput { .. });
        if self.is_after_reasoning && !is_model_output {
            return Err("separates a reasoning item from its successor");
        }
        self.is_after_reasoning = matches!(item, InputItem::Reasoning { .. });
        self.check_id(item)?;
        match item {
            InputItem::InputMessage { role, content } => self.check_message(*role, content),
            InputItem::FunctionCall { arguments, .. }
                if !arguments.trim_start().starts_with('{') =>
            {
                Err("is a call whose arguments are no object")
            }
            InputItem::FunctionCall { call_id, name, .. } => self.check_call(call_id, name),
            InputItem::FunctionCallOutput { call_id, output } => self.check_output(call_id, output),
            // The service stores no reasoning, so it must be replayed whole.
            InputItem::Reasoning { encrypted_content, .. } if encrypted_content.is_empty() => {
                Err("is a reasoning item without its content")
            }
            // Output text of the model and items of the service are replayed unchanged.
            InputItem::Reasoning { .. }
            | InputItem::ReasoningText { .. }
            | InputItem::Message { .. }
            | InputItem::ProviderItem(_) => Ok(()),
        }
    }

    fn check_end(&self) -> Result<(), &'static str> {
        if self.is_after_reasoning {
            return Err("is a reasoning item without its successor");
        }
        if self.open_calls.is_empty() { Ok(()) } else { Err("lacks the output of a call") }
    }

    fn check_id(&mut self, item: &'a InputItem<'_>) -> Result<(), &'static str> {
        let Some(id) = item.id() else { return Ok(()) };
        if id.is_empty() || id.len() > WIRE_ID_MAX {
            return Err("has an id that is too long or empty");
        }
        if matches!(item, InputItem::FunctionCall { .. }) && !id.starts_with("fc") {
            return Err("is a call whose id does not begin with fc");
        }
        if self.item_ids.insert(id) { Ok(()) } else { Err("has the id of an earlier item") }
    }

    fn check_message(
        &mut self,
        role: Role,
        content: &MessageContent<'_>,
    ) -> Result<(), &'static str> {
        if !self.open_calls.is_empty() {
            return Err("separates a call from its output");
        }
        if role != Role::User && *self.instruction_role.get_or_insert(role) != role {
            return Err("mixes the roles system and developer");
        }
        let is_empty = match content {
            MessageContent::Text(text) => text.is_empty(),
            MessageContent::Parts(parts) => {
                parts.is_empty() || parts.iter().any(ContentPart::is_empty)
            }
        };
        if is_empty { Err("is a message without content") } else { Ok(()) }
    }

    fn check_call(&mut self, id: &'a str, name: &str) -> Result<(), &'static str> {
        if !is_valid_wire_id(id) {
            return Err("is a call without a valid call_id");
        }
        if !is_valid_wire_id(name) {
            return Err("is a call of a tool without a valid name");
        }
        self.open_calls.push(id);
        if self.call_ids.insert(id) { Ok(()) } else { Err("has the call_id of an earlier call") }
    }

    fn check_output(&mut self, id: &str, text: &str) -> Result<(), &'static str> {
        let Some(position) = self.open_calls.iter().position(|open| *open == id) else {
            return Err("is an output without its call");
        };
        self.open_calls.swap_remove(position);
        if text.is_empty() {
            return Err("is an output without content");
        }
        if text.len() > OUTPUT_CHARS_MAX && text.chars().count() > OUTPUT_CHARS_MAX {
            return Err("is an output of more than 10 million characters");
        }
        Ok(())
    }
}

/// True for 1 to 64 characters that are valid in ids and names.
fn is_valid_wire_id(text: &str) -> bool {
    let is_legal = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-';
    (1..=WIRE_ID_MAX).contains(&text.len()) && text.bytes().all(is_legal)
}

#[cfg(test)]
mod tests;
