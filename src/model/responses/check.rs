//! The last look at a request (invariant 8): what the service would refuse is not sent, so that it costs nothing and the record
//! says why. The plan of the input keeps these rules by itself; this is who notices when it does not. What an item's type keeps (a
//! known role, arguments, a list of summaries) needs no rule.

use std::collections::HashSet;

use crate::model::responses::ids::WIRE_ID_MAX;
use crate::model::responses::item::{Item, Part, Role, Words};

/// Characters of one tool's output.
const OUTPUT_CHARS_MAX: usize = 10_485_760;

/// What the service would not take about a request's input; `None`: nothing.
pub(crate) fn objection(input: &[Item<'_>]) -> Option<String> {
    if input.is_empty() {
        return Some(
            "there is nothing to answer: the conversation has no message, and the agent no instructions.".to_owned(),
        );
    }
    let mut look = Look::default();
    for (position, item) in input.iter().enumerate() {
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
    /// Of the instructions so far.
    role: Option<Role>,
}

impl<'a> Look<'a> {
    fn at(&mut self, item: &'a Item<'_>) -> Result<(), &'static str> {
        let is_of_model = !matches!(item, Item::Told { .. } | Item::FunctionCallOutput { .. });
        if self.is_after_thought && !is_of_model {
            return Err("stands between a thought and what it led to");
        }
        self.is_after_thought = matches!(item, Item::Reasoning { .. });
        self.id(item)?;
        match item {
            Item::Told { role, content } => self.told(*role, content),
            Item::FunctionCall { call_id, name, .. } => self.call(call_id, name),
            Item::FunctionCallOutput { call_id, output } => self.output(call_id, output),
            // What the service keeps nothing of has to come back whole.
            Item::Reasoning { encrypted_content, .. } if encrypted_content.is_empty() => {
                Err("is a thought without its content")
            }
            // The model's own words and items of the service go back as they came.
            Item::Reasoning { .. } | Item::Message { .. } | Item::Carried(_) => Ok(()),
        }
    }

    fn end(&self) -> Result<(), &'static str> {
        if self.is_after_thought {
            return Err("is a thought without what it led to");
        }
        if self.open.is_empty() { Ok(()) } else { Err("comes before the output of a call") }
    }

    fn id(&mut self, item: &'a Item<'_>) -> Result<(), &'static str> {
        let Some(id) = item.id() else { return Ok(()) };
        if id.is_empty() || id.len() > WIRE_ID_MAX {
            return Err("has an id that is too long or empty");
        }
        if matches!(item, Item::FunctionCall { .. }) && !id.starts_with("fc") {
            return Err("is a call whose id is none of a call");
        }
        if self.item_ids.insert(id) { Ok(()) } else { Err("has the id of an earlier one") }
    }

    fn told(&mut self, role: Role, content: &Words<'_>) -> Result<(), &'static str> {
        if !self.open.is_empty() {
            return Err("stands between a call and its output");
        }
        if role != Role::User && *self.role.get_or_insert(role) != role {
            return Err("mixes the roles system and developer");
        }
        let is_empty = match content {
            Words::Text(text) => text.is_empty(),
            Words::Parts(parts) => parts.is_empty() || parts.iter().any(Part::is_empty),
        };
        if is_empty { Err("is a message without content") } else { Ok(()) }
    }

    fn call(&mut self, id: &'a str, name: &str) -> Result<(), &'static str> {
        if !is_plain(id) {
            return Err("is a call without a legal call_id");
        }
        if !is_plain(name) {
            return Err("is a call of a tool without a legal name");
        }
        self.open.push(id);
        if self.call_ids.insert(id) { Ok(()) } else { Err("has the call_id of an earlier call") }
    }

    fn output(&mut self, id: &str, text: &str) -> Result<(), &'static str> {
        let Some(position) = self.open.iter().position(|open| *open == id) else {
            return Err("is an output without its call");
        };
        self.open.swap_remove(position);
        if text.is_empty() {
            return Err("is an output without content");
        }
        if text.len() > OUTPUT_CHARS_MAX && text.chars().count() > OUTPUT_CHARS_MAX {
            return Err("is an output of more than 10 million characters");
        }
        Ok(())
    }
}

/// 1 to 64 of the characters that ids and names may have.
fn is_plain(text: &str) -> bool {
    let is_legal = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-';
    (1..=WIRE_ID_MAX).contains(&text.len()) && text.bytes().all(is_legal)
}

#[cfg(test)]
mod tests;
