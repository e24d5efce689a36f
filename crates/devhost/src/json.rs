//! JSON as the Functions host's library, Newtonsoft.Json, keeps and writes it: long integers whole,
//! dates in UTC, numbers in their shortest form.

mod date;

use std::borrow::Cow;
use std::fmt::Write as _;

use serde_json::{Number, Value};

#[derive(Clone, Debug, PartialEq)]
pub enum Json {
    Null,
    Bool(bool),
    /// Its decimal digits, after a `-` if it is negative.
    Integer(String),
    Float(f64),
    Text(String),
    Array(Vec<Self>),
    /// No name occurs twice.
    Object(Vec<(String, Self)>),
}

/// How the host reads texts as JSON. The default is strict; the Functions host also accepts
/// comments, single quotes and more, which only tests need.
#[derive(Clone, Copy, Debug)]
pub struct JsonReader {
    /// Reads a message or an output: one value without text around it.
    pub text: fn(&str) -> Option<Json>,
    /// Reads a response of the handler.
    pub response: fn(&str) -> Option<Json>,
}

impl Default for JsonReader {
    fn default() -> Self {
        Self { text: read_strictly, response: read_strictly }
    }
}

impl JsonReader {
    /// Reads the object or array that a text holds; `None` for every other text.
    pub(super) fn read_container(self, text: &str) -> Option<Json> {
        let text = text.trim();
        let has_ends = |open, close| text.starts_with(open) && text.ends_with(close);
        if has_ends('{', '}') || has_ends('[', ']') { (self.text)(text) } else { None }
    }
}

fn read_strictly(text: &str) -> Option<Json> {
    serde_json::from_str::<Value>(text).ok().map(Json::from)
}

impl From<Value> for Json {
    fn from(value: Value) -> Self {
        match value {
            Value::Null => Self::Null,
            Value::Bool(flag) => Self::Bool(flag),
            Value::Number(number) if number.is_f64() => {
                Self::Float(number.as_f64().unwrap_or_default())
            }
            Value::Number(number) => Self::Integer(number.to_string()),
            Value::String(text) => Self::Text(text),
            Value::Array(elements) => Self::Array(elements.into_iter().map(Self::from).collect()),
            Value::Object(members) => {
                let members = members.into_iter();
                Self::Object(members.map(|(name, value)| (name, Self::from(value))).collect())
            }
        }
    }
}

impl Json {
    /// The text of a scalar as .NET formats it, empty for null; `None` for an array or an object.
    pub(super) fn scalar_text(&self) -> Option<Cow<'_, str>> {
        Some(match self {
            Self::Null => "".into(),
            Self::Bool(flag) => (if *flag { "True" } else { "False" }).into(),
            Self::Integer(digits) => digits.into(),
            Self::Float(number) => format_float(*number).into(),
            Self::Text(text) => match date::parse(text) {
                Some(date) => date.to_text().into(),
                None => text.into(),
            },
            Self::Array(_) | Self::Object(_) => return None,
        })
    }

    /// The value as the host serialises it. A number that `Value` cannot hold loses digits.
    pub(super) fn to_value(&self) -> Value {
        match self {
            Self::Null => Value::Null,
            Self::Bool(flag) => (*flag).into(),
            Self::Integer(digits) => digits.parse::<Number>().map_or(Value::Null, Value::Number),
            Self::Float(number) => match Number::from_f64(*number) {
                Some(finite) => Value::Number(finite),
                None => format_float(*number).into(),
            },
            Self::Text(text) => serialized_text(text).into(),
            Self::Array(elements) => elements.iter().map(Self::to_value).collect(),
            Self::Object(members) => {
                members.iter().map(|(name, value)| (name.clone(), value.to_value())).collect()
            }
        }
    }

    /// The value as indented JSON.
    pub(super) fn to_indented(&self) -> String {
        let mut text = String::new();
        self.write_indented(&mut text, 0);
        text
    }

    fn write_indented(&self, text: &mut String, depth: usize) {
        let line = |text: &mut String, depth: usize| {
            text.push('\n');
            text.extend(std::iter::repeat_n("  ", depth));
        };
        match self {
            Self::Null => text.push_str("null"),
            Self::Bool(flag) => _ = write!(text, "{flag}"),
            Self::Integer(digits) => text.push_str(digits),
            Self::Float(number) => text.push_str(&float_literal(*number)),
            Self::Text(inner) => text.push_str(&quote(&serialized_text(inner))),
            Self::Array(elements) if elements.is_empty() => text.push_str("[]"),
            Self::Object(members) if members.is_empty() => text.push_str("{}"),
            Self::Array(elements) => {
                for (index, element) in elements.iter().enumerate() {
                    text.push(if index == 0 { '[' } else { ',' });
                    line(text, depth + 1);
                    element.write_indented(text, depth + 1);
                }
                line(text, depth);
                text.push(']');
            }
            Self::Object(members) => {
                for (index, (name, value)) in members.iter().enumerate() {
                    text.push(if index == 0 { '{' } else { ',' });
                    line(text, depth + 1);
                    _ = write!(text, "{}: ", quote(name));
                    value.write_indented(text, depth + 1);
                }
                line(text, depth);
                text.push('}');
            }
        }
    }
}

/// A text inside an array or object: a date loses its offset.
fn serialized_text(text: &str) -> Cow<'_, str> {
    date::parse(text).map_or(text.into(), |date| date.to_iso().into())
}

/// The text as a JSON string. Newtonsoft escapes three more characters than `serde_json`.
pub(super) fn quote(text: &str) -> String {
    let mut quoted = Value::from(text).to_string();
    for (separator, escape) in
        [('\u{85}', "\\u0085"), ('\u{2028}', "\\u2028"), ('\u{2029}', "\\u2029")]
    {
        if quoted.contains(separator) {
            quoted = quoted.replace(separator, escape);
        }
    }
    quoted
}

/// `100`, `0.1`, `-0`, `1E+21`, `1E-07`, `Infinity`: .NET's shortest form in the invariant culture.
fn format_float(number: f64) -> String {
    if number.is_nan() {
        return "NaN".to_owned();
    }
    if number.is_infinite() {
        return (if number < 0.0 { "-Infinity" } else { "Infinity" }).to_owned();
    }
    let scientific = format!("{number:e}");
    let parts = scientific.split_once('e').and_then(|(digits, exponent)| {
        exponent.parse::<i32>().ok().map(|exponent| (digits, exponent))
    });
    match parts {
        Some((digits, exponent)) if !(-4..15).contains(&exponent) => {
            let sign = if exponent < 0 { '-' } else { '+' };
            format!("{digits}E{sign}{:02}", exponent.abs())
        }
        Some(_) | None => number.to_string(),
    }
}

/// A number in JSON keeps a mark of its type: `100.0`. Infinity is a text.
fn float_literal(number: f64) -> String {
    let text = format_float(number);
    if !number.is_finite() {
        quote(&text)
    } else if text.contains(['.', 'E']) {
        text
    } else {
        text + ".0"
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn floats_have_the_shortest_dotnet_form() {
        let formatted = [100.0, 0.1, -0.0, 1e21, 1e-7, 5e-324, 1e15, 1e14, 0.000_01, f64::INFINITY];
        assert_eq!(
            formatted.map(format_float),
            [
                "100",
                "0.1",
                "-0",
                "1E+21",
                "1E-07",
                "5E-324",
                "1E+15",
                "100000000000000",
                "1E-05",
                "Infinity"
            ]
        );
        assert_eq!(float_literal(100.0), "100.0");
    }

    #[test]
    fn only_a_whole_container_is_read() {
        let reader = JsonReader::default();
        assert_eq!(reader.read_container("\u{a0}{}\r\n"), Some(Json::Object(Vec::new())));
        for text in ["\u{feff}{}", "{} // c", "3", "\"{}\"", "[1] tail", "{"] {
            assert_eq!(reader.read_container(text), None, "{text}");
        }
    }

    #[test]
    fn dates_and_numbers_are_rewritten_in_objects() {
        let value =
            Json::from(json!({"d": ["2026-11-21T10:00:00.500+02:00"], "n": 1.0, "s": "\u{2028}"}));
        assert_eq!(
            value.to_indented(),
            "{\n  \"d\": [\n    \"2026-11-21T08:00:00.5+00:00\"\n  ],\n  \"n\": 1.0,\n  \"s\": \"\\u2028\"\n}"
        );
        assert_eq!(value.to_value()["d"][0], "2026-11-21T08:00:00.5+00:00");
        let scalar = |value: Value| Json::from(value).scalar_text().unwrap().into_owned();
        assert_eq!(scalar(json!("2026-11-21T10:00:00+02:00")), "11/21/2026 08:00:00");
        assert_eq!(
            [scalar(json!(null)), scalar(json!(true)), scalar(json!(1.0))],
            ["", "True", "1"]
        );
    }
}
