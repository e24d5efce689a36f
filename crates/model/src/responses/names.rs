//! Mapping between tool names and their wire names, for one request.

use std::borrow::Cow;
use std::collections::HashMap;

use crate::ToolOffer;
use crate::responses::ids::{WIRE_ID_MAX, plain_id};

/// Tool names and wire names. Wire names match `[A-Za-z0-9_-]{1,64}`; tool names may be any text.
#[derive(Clone, Debug, Default)]
pub struct ToolNames {
    wire_by_own: HashMap<String, String>,
    own_by_wire: HashMap<String, String>,
}

impl ToolNames {
    /// Maps the names of the tools. Colliding wire names get `_2`, `_3`, … in the order of the
    /// tools; a valid tool name stays unchanged.
    pub fn new(tools: &[ToolOffer<'_>]) -> Self {
        let mut names = Self::default();
        let is_plain = |tool: &&ToolOffer<'_>| to_wire_form(tool.name) == tool.name;
        for tool in tools.iter().filter(is_plain).chain(tools.iter().filter(|tool| !is_plain(tool)))
        {
            names.add_tool(tool.name);
        }
        names
    }

    /// Returns the wire name. Also works for a tool that is no longer offered, so that earlier
    /// calls keep a valid name.
    pub fn wire_name<'a>(&'a self, own: &'a str) -> Cow<'a, str> {
        self.wire_by_own
            .get(own)
            .map_or_else(|| to_wire_form(own), |wire| Cow::Borrowed(wire.as_str()))
    }

    /// Returns the tool name. An unknown wire name is returned unchanged; the core then reports an
    /// unknown tool.
    pub fn tool_name(&self, wire: &str) -> String {
        self.own_by_wire.get(wire).cloned().unwrap_or_else(|| wire.to_owned())
    }

    /// True for the wire name of an offered tool.
    pub fn is_known(&self, wire: &str) -> bool {
        self.own_by_wire.contains_key(wire)
    }

    fn add_tool(&mut self, own: &str) {
        if self.wire_by_own.contains_key(own) {
            return;
        }
        let base = to_wire_form(own);
        let mut wire = base.clone().into_owned();
        let mut number = 2;
        while self.own_by_wire.contains_key(&wire) {
            let suffix = format!("_{number}");
            let room = base.len().min(WIRE_ID_MAX - suffix.len());
            wire = format!("{}{suffix}", base.get(..room).unwrap_or_default());
            number += 1;
        }
        self.wire_by_own.insert(own.to_owned(), wire.clone());
        self.own_by_wire.insert(wire, own.to_owned());
    }
}

fn to_wire_form(own: &str) -> Cow<'_, str> {
    // Unlike in an id, a trailing `_` is part of the name.
    let ends = own.len() - own.trim_end_matches('_').len();
    let mut wire = plain_id(own);
    if ends > 0 && wire.len() + ends <= WIRE_ID_MAX {
        wire.to_mut().push_str(own.get(own.len() - ends..).unwrap_or_default());
    }
    if wire.is_empty() { Cow::Borrowed("tool") } else { wire }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offer(name: &str) -> ToolOffer<'_> {
        ToolOffer { name, description: "", parameters: &serde_json::Value::Null, strict: false }
    }

    #[test]
    fn wire_names_are_unique_and_map_back() {
        let long = "a".repeat(80);
        let own =
            ["payment.send", "payment_send", "payment send", "ok_", "日本", "語", long.as_str()];
        let names = ToolNames::new(&own.map(offer));
        let mut seen = std::collections::HashSet::new();
        for name in own {
            let wire = names.wire_name(name);
            assert!(wire.len() <= 64 && !wire.is_empty(), "{wire}");
            assert!(
                wire.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '-'),
                "{wire}"
            );
            assert_eq!(names.tool_name(&wire), name);
            assert!(seen.insert(wire), "{name} has the wire name of another tool");
        }
        assert_eq!(names.wire_name("payment_send"), "payment_send");
        assert_eq!(names.wire_name("payment.send"), "payment_send_2");
        assert_eq!(names.wire_name("ok_"), "ok_");
    }

    #[test]
    fn unknown_names_are_mapped_or_kept() {
        let names = ToolNames::default();
        assert_eq!(names.wire_name("old.tool"), "old_tool");
        assert_eq!(names.tool_name("invented"), "invented");
    }
}
