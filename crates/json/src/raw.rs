//! JSON that is stored unparsed and written back unchanged, numbers included.

use std::collections::HashSet;
use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;
use serde_json::error::Category;
use serde_json::value::RawValue;

use crate::exact::{self, ExactJson};
use crate::foreign::read_foreign_json;
use crate::strict::{self, JsonError, pointer_token, truncate};

/// Levels of arrays and objects that `serde_json` reads.
#[cfg(test)]
const DEPTH_MAX: usize = 127;
/// Levels of what clients send.
pub const BODY_DEPTH_MAX: usize = 110;
/// Levels of a stored entry, which wraps such a body. Responses wrap it in more levels.
pub const ENTRY_DEPTH_MAX: usize = exact::DEPTH_MAX;

/// JSON text, valid by construction. Two values are equal if they are equal as JSON.
#[derive(Clone)]
pub struct RawJson(Box<RawValue>);

impl RawJson {
    /// # Errors
    /// The text is not JSON: reject it.
    pub fn from_text(text: impl Into<String>) -> Result<Self, serde_json::Error> {
        RawValue::from_string(text.into()).map(Self)
    }

    /// Serialises any value. A value that cannot be serialised (a map with keys that are no
    /// strings) becomes `null`.
    pub fn from_value(value: &impl Serialize) -> Self {
        Self(serde_json::value::to_raw_value(value).unwrap_or_else(|_| RawValue::NULL.to_owned()))
    }

    pub fn text(&self) -> &str {
        self.0.get()
    }

    /// Parses to a tree. Numbers beyond 64 bits lose digits here, and only here. Values that nest too
    /// deeply for a tree are text in it.
    pub fn to_value(&self) -> Value {
        serde_json::from_str(self.text()).unwrap_or_else(|_| {
            let foreign = read_foreign_json(self.text());
            foreign.and_then(|it| it.json.read().ok()).unwrap_or(Value::Null)
        })
    }

    /// # Errors
    /// The JSON does not match the type: report it with [`redacted_error`].
    pub fn read<'a, T: Deserialize<'a>>(&'a self) -> Result<T, serde_json::Error> {
        serde_json::from_str(self.text())
    }

    /// Deserialises the JSON and rounds no number: each one becomes an integer, a [`RawValue`], or a
    /// float that prints as the same number. Exception: a 64-bit integer that becomes a float in a
    /// flattened, untagged or internally tagged type is not checked.
    ///
    /// # Errors
    /// The JSON does not match the type, or nests too deep, or a float would round a number: report it
    /// to the sender.
    pub fn read_exact<'a, T: Deserialize<'a>>(&'a self) -> Result<T, JsonError> {
        if self.depth() > ENTRY_DEPTH_MAX {
            let detail = "the JSON nests too deeply".to_owned();
            return Err(JsonError { pointer: String::new(), detail });
        }
        strict::from_exact_str(self.text())
    }

    /// The value of a top-level member, if it is a string.
    pub fn string_member(&self, name: &str) -> Option<String> {
        self.to_value().get(name).and_then(Value::as_str).map(ToOwned::to_owned)
    }

    /// JSON with sorted members: one text for equal values.
    pub fn canonical_text(&self) -> String {
        if let Ok(Some(tree)) = ExactJson::parse_if_long(self.text()) {
            return tree.normal_text();
        }
        let mut value = self.to_value();
        value.sort_all_objects();
        value.to_string()
    }

    /// Levels of arrays and objects within one another.
    pub fn depth(&self) -> usize {
        text_depth(self.text())
    }

    /// The members of an object, in order; of duplicates all. `None`: this is no object.
    pub fn members(&self) -> Option<Vec<(String, Self)>> {
        self.read::<Members>().ok().map(|members| members.0)
    }

    /// An object with these members, which keep their text.
    pub fn from_members(members: Vec<(String, Self)>) -> Self {
        Self::from_value(&Members(members))
    }

    /// This object with further members. Names that it has already stay as they are.
    #[must_use]
    pub fn with_members(self, added: Vec<(String, Self)>) -> Self {
        let mut members = self.members().unwrap_or_default();
        for (name, value) in added {
            if members.iter().all(|(known, _)| *known != name) {
                members.push((name, value));
            }
        }
        Self::from_members(members)
    }

    /// Removes members that are null, down to this many levels of objects.
    #[must_use]
    pub fn without_null_members(self, levels: usize) -> Self {
        if levels == 0 || !self.text().contains("null") {
            return self;
        }
        let Some(members) = self.members() else { return self };
        let present = members.into_iter().filter(|(_, value)| value.text() != "null");
        let present = present.map(|(name, value)| (name, value.without_null_members(levels - 1)));
        Self::from_members(present.collect())
    }

    /// Removes duplicate members and keeps the last, which readers then agree on, approvers
    /// included. Text without duplicates stays unchanged.
    #[must_use]
    pub fn with_unique_members(self) -> Self {
        match self.read::<Value>() {
            Ok(value) if self.find_duplicate_member().is_some() => ExactJson::parse(self.text())
                .map_or_else(|| Self::from_value(&value), |tree| Self::from_value(&tree)),
            // Validation reports JSON that nests too deep for a tree.
            _ => self,
        }
    }

    /// Checks that all JSON parsers read the same values: each can parse the text, and no object has
    /// duplicate members.
    ///
    /// # Errors
    /// Returns the first ambiguous place: report it to the sender.
    pub fn check_unambiguous(&self) -> Result<(), JsonError> {
        let _tree: Value = strict::from_str(self.text())?;
        self.find_duplicate_member().map_or(Ok(()), |pointer| {
            let token = pointer.rsplit('/').next().unwrap_or_default();
            let name = token.replace("~1", "/").replace("~0", "~");
            let detail = format!("two members are named `{}`: send only one", truncate(name));
            Err(JsonError { pointer: truncate(pointer), detail })
        })
    }

    /// The pointer of a member whose name an earlier member of its object has. The JSON is one that
    /// [`Self::read`] makes a tree of, so its depth is bounded.
    fn find_duplicate_member(&self) -> Option<String> {
        let text = self.text().trim_start();
        let parts: Vec<(String, Self)> = if text.starts_with('{') {
            self.members()?
        } else if text.starts_with('[') {
            let items: Vec<Self> = self.read().ok()?;
            items.into_iter().enumerate().map(|(index, item)| (index.to_string(), item)).collect()
        } else {
            return None;
        };
        let mut names = HashSet::new();
        parts.iter().find_map(|(name, value)| {
            let is_first = names.insert(name.as_str());
            let inner = if is_first { value.find_duplicate_member()? } else { String::new() };
            Some(format!("/{}{inner}", pointer_token(name)))
        })
    }
}

/// An object of these members, whose values keep the text of their numbers.
#[macro_export]
macro_rules! raw_object {
    ({ $($name:literal: $value:expr),* $(,)? }) => {
        $crate::raw::RawJson::from_members(vec![
            $(($name.to_owned(), $crate::raw::RawJson::from_value(&$value)),)*
        ])
    };
}
pub use raw_object;

/// Levels of arrays and objects in JSON text.
pub fn text_depth(text: &str) -> usize {
    let (mut depth, mut deepest): (usize, usize) = (0, 0);
    let (mut in_string, mut is_escaped) = (false, false);
    for byte in text.bytes() {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' => is_escaped = true,
            b'"' => in_string = !in_string,
            b'[' | b'{' if !in_string => {
                depth += 1;
                deepest = deepest.max(depth);
            }
            b']' | b'}' if !in_string => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    deepest
}

/// Describes a JSON error and its position without quoting content, for logs and errors. serde's
/// own texts quote it.
pub fn redacted_error(error: &serde_json::Error) -> String {
    let text = error.to_string();
    // This text names only a member of our own types.
    if text.starts_with("missing field `") {
        return text;
    }
    let what = match error.classify() {
        Category::Io => "the JSON cannot be read",
        Category::Syntax => "the text is not JSON",
        Category::Eof => "the JSON ends too early",
        Category::Data if text.starts_with("unknown field `") => "a member is unknown",
        Category::Data if text.starts_with("unknown variant `") => "a value is unknown",
        Category::Data => "a value has the wrong type",
    };
    format!("{what} at line {} column {}", error.line(), error.column())
}

/// An object's members in order, duplicates included.
struct Members(Vec<(String, RawJson)>);

impl Serialize for Members {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(name, value)| (name, value)))
    }
}

impl<'de> Deserialize<'de> for Members {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Collector;

        impl<'de> serde::de::Visitor<'de> for Collector {
            type Value = Members;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: serde::de::MapAccess<'de>>(
                self,
                mut map: A,
            ) -> Result<Members, A::Error> {
                let mut members = Vec::new();
                while let Some(member) = map.next_entry()? {
                    members.push(member);
                }
                Ok(Members(members))
            }
        }
        deserializer.deserialize_map(Collector)
    }
}

impl PartialEq for RawJson {
    fn eq(&self, other: &Self) -> bool {
        if self.text() == other.text() {
            return true;
        }
        match (ExactJson::parse_if_long(self.text()), ExactJson::parse_if_long(other.text())) {
            (Ok(None), Ok(None)) => self.to_value() == other.to_value(),
            (Ok(Some(one)), Ok(Some(other))) => one.normal_text() == other.normal_text(),
            (Ok(_), Ok(_)) | (Err(_), _) | (_, Err(_)) => false,
        }
    }
}

impl fmt::Debug for RawJson {
    /// Prints the size, never the content.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RawJson({} bytes)", self.text().len())
    }
}

impl Serialize for RawJson {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for RawJson {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Box::<RawValue>::deserialize(deserializer).map(Self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_of_the_maximum_depth_is_the_deepest_that_is_read() {
        for levels in [0, 1, DEPTH_MAX, DEPTH_MAX + 1] {
            let text = format!("{}{}", "[".repeat(levels), "]".repeat(levels));
            let raw = RawJson::from_text(if levels == 0 { "0" } else { &text }).unwrap();
            assert_eq!(raw.depth(), levels);
            assert_eq!(raw.read::<Value>().is_ok(), levels <= DEPTH_MAX);
        }
        let flat = RawJson::from_text(r#"[{"[[\"{{":"\\"},[0],"]]"]"#).unwrap();
        assert_eq!(flat.depth(), 2);
    }

    #[test]
    fn tree_of_deep_json_is_never_null() {
        let text = format!(r#"{{"a":{}1{},"b":2}}"#, "[".repeat(3_000), "]".repeat(3_000));
        let tree = RawJson::from_text(text).unwrap().to_value();
        assert!(tree["b"] == 2 && tree["a"].is_array());
    }

    #[test]
    fn equality_and_canonical_text_count_each_digit() {
        let raw = |text: &str| RawJson::from_text(text).unwrap();
        for (one, other, is_equal) in [
            (r#"{"a":1,"b":[2]}"#, r#"{ "b":[2],"a":1 }"#, true),
            (r#"{"a":12345678901234567890123}"#, r#"{"a": 12345678901234567890123}"#, true),
            (r#"{"a":12345678901234567890123}"#, r#"{"a":12345678901234567890124}"#, false),
            (r#"{"a":0.1000000000000000000001}"#, r#"{"a":0.1}"#, false),
            (r"[1e400]", r"[1e401]", false),
            (r"[10e399]", r"[1e400]", true),
            (r#"{"a":1}"#, r#"{"a":2}"#, false),
        ] {
            assert_eq!(raw(one) == raw(other), is_equal, "{one} {other}");
            let texts = (raw(one).canonical_text(), raw(other).canonical_text());
            assert_eq!(texts.0 == texts.1, is_equal, "{texts:?}");
        }
    }

    #[test]
    fn raw_json_keeps_last_duplicate_member() {
        let cases = [
            (r#"{"amount":1,"amount":9}"#, r#"{"amount":9}"#),
            (r#"[{"a":{"b":1,"b":2}}]"#, r#"[{"a":{"b":2}}]"#),
            (
                r#"{"amount": 12345678901234567890123.4500}"#,
                r#"{"amount": 12345678901234567890123.4500}"#,
            ),
            (r#""text""#, r#""text""#),
        ];
        for (given, expected) in cases {
            assert_eq!(RawJson::from_text(given).unwrap().with_unique_members().text(), expected);
        }
        let deep = format!("{}1{}", "[".repeat(50_000), "]".repeat(50_000));
        assert_eq!(RawJson::from_text(deep.clone()).unwrap().with_unique_members().text(), deep);
    }

    #[test]
    fn duplicate_member_error_has_name_and_pointer() {
        let check = |text: &str| RawJson::from_text(text).unwrap().check_unambiguous().err();
        let place = |text: &str| check(text).map(|error| error.pointer);
        let unique = [r#"{"a":1,"A":2,"b":{"a":1}}"#, r#"[{"a":1},{"a":2}]"#, r#""{'a':1}""#, "1"];
        for text in unique {
            assert_eq!(place(text), None, "{text}");
        }
        for (text, pointer) in [
            (r#"{"amount":1,"amount":1000}"#, "/amount"),
            (r#"{"amount":1,"\u0061mount":1}"#, "/amount"),
            (r#" [0, {"a/b": {"c": 1, "d": [], "c": null}}]"#, "/1/a~1b/c"),
        ] {
            assert_eq!(place(text).as_deref(), Some(pointer), "{text}");
        }
        let error = check(r#"{"a/~1":1,"a/~1":2}"#).unwrap();
        assert_eq!(error.pointer, "/a~1~01");
        assert_eq!(error.detail, "two members are named `a/~1`: send only one");
        let deep = format!("{}1{}", "[".repeat(50_000), "]".repeat(50_000));
        for text in [deep.as_str(), r#"{"a":1e400}"#, r#"{"\ud83d":1}"#] {
            assert!(place(text).is_some(), "some parsers reject it");
        }
        let read = RawJson::from_text(deep).unwrap().read_exact::<Value>();
        assert_eq!(read.unwrap_err().detail, "the JSON nests too deeply");
    }
}
