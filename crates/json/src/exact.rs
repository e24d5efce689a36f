//! JSON as a tree whose numbers keep their text.

mod changes;

use std::collections::HashMap;

use serde::{Serialize, Serializer};
use serde_json::Value;
use serde_json::value::RawValue;

use crate::decimal::Decimal;
pub use changes::AmbiguousNumber;

/// Levels of arrays and objects that are read: those of a stored entry.
pub const DEPTH_MAX: usize = 120;

/// JSON text that nests too deep, or with a string that is no Unicode text.
#[derive(Debug)]
pub struct UnreadableJson;

/// A JSON value. Of duplicate members it has the last.
#[derive(Clone, Debug, PartialEq)]
pub enum ExactJson {
    Null,
    Bool(bool),
    /// A JSON number as it was written.
    Number(Box<str>),
    Text(String),
    List(Vec<ExactJson>),
    /// Names are unique.
    Object(Vec<(String, ExactJson)>),
}

/// True if the JSON text may have a number that floats change: one with 16 digits or an exponent.
fn may_have_long_number(text: &str) -> bool {
    let mut digits = 0;
    text.bytes().any(|byte| match byte {
        b'0'..=b'9' => {
            digits += 1;
            digits > 15
        }
        b'.' => false,
        b'e' | b'E' => digits > 0,
        _ => {
            digits = 0;
            false
        }
    })
}

impl ExactJson {
    /// The tree of a text with a number that floats change; `Ok(None)`: it has none.
    ///
    /// # Errors
    /// As for [`Self::parse`].
    pub fn parse_if_long(text: &str) -> Result<Option<Self>, UnreadableJson> {
        if !may_have_long_number(text) {
            return Ok(None);
        }
        let tree = TextReader { rest: text }.read_value(DEPTH_MAX).ok_or(UnreadableJson)?;
        Ok(tree.has_long_number().then_some(tree))
    }

    /// This object without the members that the other lacks.
    #[must_use]
    pub fn with_members_of(self, other: &serde_json::Map<String, Value>) -> Self {
        let Self::Object(mut members) = self else { return self };
        members.retain(|(name, _)| other.contains_key(name));
        Self::Object(members)
    }

    /// `None`: the text nests too deep, or a string in it is no Unicode text.
    pub fn parse(text: &str) -> Option<Self> {
        TextReader { rest: text }.read_value(DEPTH_MAX)
    }

    /// A tree of `serde_json`, whose numbers lose digits.
    pub fn to_value(&self) -> Value {
        match self {
            Self::Null => Value::Null,
            Self::Bool(flag) => Value::Bool(*flag),
            Self::Number(text) => serde_json::from_str(text).unwrap_or_default(),
            Self::Text(text) => Value::String(text.clone()),
            Self::List(items) => items.iter().map(Self::to_value).collect(),
            Self::Object(members) => Value::Object(
                members.iter().map(|(name, it)| (name.clone(), it.to_value())).collect(),
            ),
        }
    }

    /// True if a tree of `serde_json` may have another number.
    pub fn has_long_number(&self) -> bool {
        match self {
            Self::Number(text) => Decimal::parse(text).is_none_or(|it| it.may_differ_as_float()),
            Self::List(items) => items.iter().any(Self::has_long_number),
            Self::Object(members) => members.iter().any(|(_, it)| it.has_long_number()),
            Self::Null | Self::Bool(_) | Self::Text(_) => false,
        }
    }

    /// True if both are equal as JSON, whatever the order of their members is.
    pub fn is_equal_to(&self, other: &Value) -> bool {
        match (self, other) {
            (Self::Null, Value::Null) => true,
            (Self::Bool(one), Value::Bool(other)) => one == other,
            (Self::Number(text), Value::Number(number)) => {
                Decimal::parse(text).is_some_and(|one| Some(one) == Decimal::from_number(number))
            }
            (Self::Text(one), Value::String(other)) => one == other,
            (Self::List(items), Value::Array(others)) => {
                items.len() == others.len()
                    && items.iter().zip(others).all(|(one, other)| one.is_equal_to(other))
            }
            (Self::Object(members), Value::Object(others)) => {
                members.len() == others.len()
                    && members.iter().all(|(name, one)| {
                        others.get(name).is_some_and(|other| one.is_equal_to(other))
                    })
            }
            (
                Self::Null
                | Self::Bool(_)
                | Self::Number(_)
                | Self::Text(_)
                | Self::List(_)
                | Self::Object(_),
                _,
            ) => false,
        }
    }

    /// One text for equal values: sorted members, and one text for equal numbers.
    pub fn normal_text(&self) -> String {
        match self {
            Self::Number(text) => {
                Decimal::parse(text).map_or_else(|| text.to_string(), |it| it.normal_text())
            }
            Self::List(items) => {
                let items: Vec<_> = items.iter().map(Self::normal_text).collect();
                format!("[{}]", items.join(","))
            }
            Self::Object(members) => {
                let mut sorted: Vec<_> = members.iter().collect();
                sorted.sort_by(|(one, _), (other, _)| one.cmp(other));
                let members = sorted.into_iter().map(|(name, value)| {
                    format!("{}:{}", Value::from(name.as_str()), value.normal_text())
                });
                format!("{{{}}}", members.collect::<Vec<_>>().join(","))
            }
            Self::Null | Self::Bool(_) | Self::Text(_) => self.to_value().to_string(),
        }
    }
}

impl Serialize for ExactJson {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Null => serializer.serialize_unit(),
            Self::Bool(flag) => serializer.serialize_bool(*flag),
            Self::Number(text) => RawValue::from_string(text.to_string())
                .map_err(serde::ser::Error::custom)?
                .serialize(serializer),
            Self::Text(text) => serializer.serialize_str(text),
            Self::List(items) => serializer.collect_seq(items),
            Self::Object(members) => {
                serializer.collect_map(members.iter().map(|(name, value)| (name, value)))
            }
        }
    }
}

/// Reader of text that is JSON.
struct TextReader<'t> {
    rest: &'t str,
}

impl<'t> TextReader<'t> {
    fn read_value(&mut self, depth_left: usize) -> Option<ExactJson> {
        self.skip_space();
        match self.rest.as_bytes().first()? {
            b'{' => {
                let depth_left = depth_left.checked_sub(1)?;
                let mut members: Vec<(String, ExactJson)> = Vec::new();
                let mut places: HashMap<String, usize> = HashMap::new();
                self.read_items('}', |reader| {
                    let name = reader.read_string()?;
                    reader.skip_space();
                    reader.rest = reader.rest.strip_prefix(':')?;
                    let value = reader.read_value(depth_left)?;
                    let known = places.get(&name).and_then(|place| members.get_mut(*place));
                    if let Some((_, earlier)) = known {
                        *earlier = value;
                    } else {
                        places.insert(name.clone(), members.len());
                        members.push((name, value));
                    }
                    Some(())
                })?;
                Some(ExactJson::Object(members))
            }
            b'[' => {
                let depth_left = depth_left.checked_sub(1)?;
                let mut items = Vec::new();
                self.read_items(']', |reader| {
                    items.push(reader.read_value(depth_left)?);
                    Some(())
                })?;
                Some(ExactJson::List(items))
            }
            b'"' => self.read_string().map(ExactJson::Text),
            _ => {
                let is_end = |letter: char| matches!(letter, ',' | ']' | '}') || is_space(letter);
                let word = self.take(self.rest.find(is_end).unwrap_or(self.rest.len()))?;
                Some(match word {
                    "null" => ExactJson::Null,
                    "true" => ExactJson::Bool(true),
                    "false" => ExactJson::Bool(false),
                    number => ExactJson::Number(number.into()),
                })
            }
        }
    }

    /// Reads items up to the closing bracket, beginning with the opening one.
    fn read_items(
        &mut self,
        end: char,
        mut read_item: impl FnMut(&mut Self) -> Option<()>,
    ) -> Option<()> {
        self.take(1)?;
        self.skip_space();
        if let Some(rest) = self.rest.strip_prefix(end) {
            self.rest = rest;
            return Some(());
        }
        loop {
            self.skip_space();
            read_item(self)?;
            self.skip_space();
            if let Some(rest) = self.rest.strip_prefix(end) {
                self.rest = rest;
                return Some(());
            }
            self.rest = self.rest.strip_prefix(',')?;
        }
    }

    fn read_string(&mut self) -> Option<String> {
        let mut is_escaped = false;
        let end = self.rest.bytes().enumerate().skip(1).find(|(_, byte)| {
            let is_end = !is_escaped && *byte == b'"';
            is_escaped = !is_escaped && *byte == b'\\';
            is_end
        });
        let text = self.take(end?.0 + 1)?;
        serde_json::from_str(text).ok()
    }

    fn take(&mut self, bytes: usize) -> Option<&'t str> {
        let (taken, rest) = self.rest.split_at_checked(bytes)?;
        self.rest = rest;
        Some(taken)
    }

    fn skip_space(&mut self) {
        self.rest = self.rest.trim_start_matches(is_space);
    }
}

fn is_space(letter: char) -> bool {
    matches!(letter, ' ' | '\t' | '\n' | '\r')
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::raw::RawJson;

    fn exact(text: &str) -> ExactJson {
        ExactJson::parse(text).unwrap()
    }

    #[test]
    fn tree_keeps_the_text_of_numbers() {
        for text in [
            r#"{"a":[1.10,-0,1e400,{"b":123456789012345678901234567890}],"c":"\"é","d":null}"#,
            "[]",
            "{}",
            r#"[true,false,[[]],{"":0.1000000000000000055}]"#,
            "7",
            r#""\\""#,
        ] {
            assert_eq!(RawJson::from_value(&exact(text)).text(), text);
        }
        let spaced = " {\n \"a\" : [ 1.10 , \"x y\\\\\" ] ,\t\"a\":2.50 } ";
        assert_eq!(RawJson::from_value(&exact(spaced)).text(), r#"{"a":2.50}"#);
    }

    #[test]
    fn tree_agrees_with_the_one_of_serde() {
        for text in [
            r#"{"b":[1,2.5,"x"],"a":{"z":null,"y":true}}"#,
            r#"{"a":1,"b":2,"a":{"c":[]}}"#,
            "[[1],[2,[3]]]",
            r#""é\n\u00e9""#,
            "-12.5e3",
        ] {
            let value: Value = serde_json::from_str(text).unwrap();
            assert_eq!(exact(text).to_value(), value, "{text}");
            assert!(exact(text).is_equal_to(&value));
        }
        let deep = "[".repeat(DEPTH_MAX + 1) + &"]".repeat(DEPTH_MAX + 1);
        assert_eq!(ExactJson::parse(&deep), None);
        assert_eq!(ExactJson::parse(r#""\ud800""#), None);
    }

    #[test]
    fn only_numbers_that_floats_change_need_the_tree() {
        let is_long = |text: &str| ExactJson::parse_if_long(text).unwrap().is_some();
        for text in [
            "100.00000000000000000001",
            "[12345678901234567890]",
            r#"{"a":1e400}"#,
            r#"{"a":-1E-400,"b":"1"}"#,
        ] {
            assert!(is_long(text), "{text}");
        }
        for text in ["1", "[1.5e3]", r#"{"a":"12345678901234567890"}"#, "123456789012345", "{}"] {
            assert!(!is_long(text), "{text}");
        }
    }

    #[test]
    fn equality_counts_each_digit() {
        let value: Value = serde_json::from_str("[100,0.1]").unwrap();
        assert!(exact("[1e2,0.10]").is_equal_to(&value));
        assert!(!exact("[100,0.1000000000000000055511151231257827]").is_equal_to(&value));
        assert!(!exact("[100.00000000000000000001,0.1]").is_equal_to(&value));
        assert_ne!(exact("[1e-400]").normal_text(), exact("[0]").normal_text());
        assert_eq!(exact("[1.0]").normal_text(), exact("[1]").normal_text());
        assert_ne!(
            exact("[12345678901234567890123]").normal_text(),
            exact("[12345678901234567890124]").normal_text()
        );
    }
}
