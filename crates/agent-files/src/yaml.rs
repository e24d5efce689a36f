//! YAML 1.2 tree with the position of each value, so that every mistake has a line.

use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};
use serde_saphyr::{Location, Spanned};

use turnwheel_json::decimal::Decimal;

/// Line and column in the file, both from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Position {
    pub(super) line: u64,
    pub(super) column: u64,
}

impl Position {
    pub(super) const START: Self = Self { line: 1, column: 1 };

    fn from_location(location: Location) -> Self {
        Self { line: location.line().max(1), column: location.column().max(1) }
    }
}

#[derive(Clone, Debug)]
pub(super) struct Node {
    pub(super) position: Position,
    pub(super) yaml: Yaml,
}

#[derive(Clone, Debug)]
pub(super) enum Yaml {
    Null,
    Bool(bool),
    Number(Number),
    Text(String),
    List(Vec<Node>),
    /// In the file's order. The parser ensures unique keys.
    Map(Vec<Member>),
}

#[derive(Clone, Debug)]
pub(super) struct Member {
    pub(super) key: String,
    pub(super) position: Position,
    pub(super) value: Node,
}

/// Depth of nested lists and maps.
const DEPTH_MAX: usize = 32;
/// Values that aliases repeat.
const REPEATS_MAX: usize = 10_000;
/// Bytes of all repeated values.
pub(super) const REPEATED_BYTES_MAX: usize = 8 * 1024 * 1024;

/// Reads one document.
///
/// # Errors
/// The text is not YAML. Report the position and the reason, which is one line.
pub(super) fn parse(text: &str) -> Result<Node, (Position, String)> {
    // No repeated value is longer than the file.
    let repeats_max = (REPEATED_BYTES_MAX / text.len().max(1)).min(REPEATS_MAX);
    let options = serde_saphyr::options! {
        // In YAML 1.2 `off`, `no` and `yes` are text.
        strict_booleans: true,
        underscored_numbers_as_strings: true,
        // This parser and the readers of the tree are recursive: depth must not overflow the stack.
        budget: serde_saphyr::budget! { max_depth: DEPTH_MAX, flow_nesting_limit: DEPTH_MAX },
        // Aliases must not expand a few lines to a gigabyte.
        alias_limits: serde_saphyr::alias_limits! { max_total_replayed_events: repeats_max },
    };
    let node: Node = serde_saphyr::from_str_with_options(text, options).map_err(|error| {
        let at = error.location().map_or(Position::START, Position::from_location);
        let whole = error.without_snippet().render();
        let reason = whole.lines().next().unwrap_or_default();
        let reason = reason.split(" at line ").next().unwrap_or(reason);
        // Removes the parser's advice, which is for programmers.
        let reason = reason.split(", set ").next().unwrap_or(reason);
        let hint = if reason.starts_with("mapping values") {
            ": put text that holds `: ` in quotes"
        } else {
            ""
        };
        (at, format!("this is not YAML: {reason}{hint}"))
    })?;
    let lines: Vec<&str> = text.lines().collect();
    check_numbers(&node, &lines).map(|()| node)
}

/// Rejects numbers that a float changes: a bound of an approval would be another one.
fn check_numbers(node: &Node, lines: &[&str]) -> Result<(), (Position, String)> {
    match &node.yaml {
        Yaml::Number(number) if number.is_f64() => {
            let place = |number: u64| usize::try_from(number.saturating_sub(1)).ok();
            let Position { line, column } = node.position;
            let line = place(line).and_then(|line| lines.get(line)).copied().unwrap_or_default();
            let is_part = |letter: &char| {
                letter.is_ascii_digit() || matches!(letter, '+' | '-' | '.' | 'e' | 'E')
            };
            let start = place(column).unwrap_or_default();
            let text: String = line.chars().skip(start).take_while(is_part).collect();
            let written = Decimal::parse(text.trim_start_matches('+').trim_end_matches('.'));
            if written.is_some_and(|written| Some(written) != Decimal::from_number(number)) {
                let reason = format!(
                    "the number {text} has more digits than are kept: write at most 15, or a text"
                );
                return Err((node.position, reason));
            }
            Ok(())
        }
        Yaml::List(items) => items.iter().try_for_each(|item| check_numbers(item, lines)),
        Yaml::Map(members) => {
            members.iter().try_for_each(|member| check_numbers(&member.value, lines))
        }
        Yaml::Null | Yaml::Bool(_) | Yaml::Number(_) | Yaml::Text(_) => Ok(()),
    }
}

impl Node {
    pub(super) fn to_json(&self) -> Value {
        match &self.yaml {
            Yaml::Null => Value::Null,
            Yaml::Bool(flag) => Value::Bool(*flag),
            Yaml::Number(number) => Value::Number(number.clone()),
            Yaml::Text(text) => Value::String(text.clone()),
            Yaml::List(items) => items.iter().map(Self::to_json).collect(),
            Yaml::Map(members) => Value::Object(
                members
                    .iter()
                    .map(|member| (member.key.clone(), member.value.to_json()))
                    .collect::<Map<_, _>>(),
            ),
        }
    }

    /// Kind for messages: `a list`, `a number`.
    pub(super) fn kind(&self) -> &'static str {
        match &self.yaml {
            Yaml::Null => "empty",
            Yaml::Bool(_) => "true or false",
            Yaml::Number(_) => "a number",
            Yaml::Text(_) => "text",
            Yaml::List(_) => "a list",
            Yaml::Map(_) => "a map",
        }
    }

    /// Empty if it is no map.
    pub(super) fn members(&self) -> &[Member] {
        if let Yaml::Map(members) = &self.yaml { members } else { &[] }
    }

    pub(super) fn find_member(&self, key: &str) -> Option<&Member> {
        self.members().iter().find(|member| member.key == key)
    }
}

impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let spanned = Spanned::<Yaml>::deserialize(deserializer)?;
        Ok(Self { position: Position::from_location(spanned.referenced), yaml: spanned.value })
    }
}

impl<'de> Deserialize<'de> for Yaml {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reader;

        impl<'de> Visitor<'de> for Reader {
            type Value = Yaml;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("any value")
            }

            fn visit_unit<E>(self) -> Result<Yaml, E> {
                Ok(Yaml::Null)
            }

            fn visit_none<E>(self) -> Result<Yaml, E> {
                Ok(Yaml::Null)
            }

            fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Yaml, D::Error> {
                Yaml::deserialize(deserializer)
            }

            fn visit_bool<E>(self, flag: bool) -> Result<Yaml, E> {
                Ok(Yaml::Bool(flag))
            }

            fn visit_i64<E>(self, number: i64) -> Result<Yaml, E> {
                Ok(Yaml::Number(number.into()))
            }

            fn visit_u64<E>(self, number: u64) -> Result<Yaml, E> {
                Ok(Yaml::Number(number.into()))
            }

            fn visit_f64<E: serde::de::Error>(self, number: f64) -> Result<Yaml, E> {
                Number::from_f64(number)
                    .map(Yaml::Number)
                    .ok_or_else(|| E::custom("a number must be finite"))
            }

            fn visit_str<E>(self, text: &str) -> Result<Yaml, E> {
                Ok(Yaml::Text(text.to_owned()))
            }

            fn visit_string<E>(self, text: String) -> Result<Yaml, E> {
                Ok(Yaml::Text(text))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Yaml, A::Error> {
                let mut items = Vec::new();
                while let Some(item) = list.next_element()? {
                    items.push(item);
                }
                Ok(Yaml::List(items))
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Yaml, A::Error> {
                let mut members = Vec::new();
                while let Some(key) = map.next_key::<Spanned<String>>()? {
                    let at = Position::from_location(key.referenced);
                    members.push(Member { key: key.value, position: at, value: map.next_value()? });
                }
                Ok(Yaml::Map(members))
            }
        }

        deserializer.deserialize_any(Reader)
    }
}
