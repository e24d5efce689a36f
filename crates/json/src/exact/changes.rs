//! Changes of a tree by a program that reads its numbers as floats. All other numbers keep their
//! digits, also those that have moved.

use std::cell::OnceCell;
use std::collections::HashMap;
use std::fmt;
use std::fmt::Write as _;

use serde_json::{Map, Number, Value};

use super::ExactJson;
use crate::decimal::Decimal;
use crate::text::sanitize_line;

/// Characters of a path in an error.
const PATH_CHARS_MAX: usize = 200;

/// A number of a change that could be several numbers, which are one float.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AmbiguousNumber {
    /// The number in the changed value: `rows[0].id`.
    path: String,
}

impl fmt::Display for AmbiguousNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "`{}` could be several numbers that differ only in digits beyond a float",
            self.path
        )
    }
}

impl std::error::Error for AmbiguousNumber {}

impl ExactJson {
    /// This tree with the differences between two values, of which `before` is its own. All other
    /// parts keep their text. A number that has moved is found by its value.
    ///
    /// # Errors
    /// A number could be several of this tree: refuse the change.
    pub fn with_changes(&self, before: &Value, after: &Value) -> Result<Self, AmbiguousNumber> {
        Merge::default().merge(Some(Part { written: self, before }), after)
    }

    /// The tree of a value, whose numbers have lost their digits before.
    fn from_value(value: &Value) -> Self {
        match value {
            Value::Null => Self::Null,
            Value::Bool(flag) => Self::Bool(*flag),
            Value::Number(number) => Self::Number(number.to_string().into()),
            Value::String(text) => Self::Text(text.clone()),
            Value::Array(items) => Self::List(items.iter().map(Self::from_value).collect()),
            Value::Object(members) => {
                let members = members.iter().map(|(name, it)| (name.clone(), Self::from_value(it)));
                Self::Object(members.collect())
            }
        }
    }
}

/// A part of the old tree, and its value, whose numbers have lost digits.
#[derive(Clone, Copy)]
struct Part<'t> {
    written: &'t ExactJson,
    before: &'t Value,
}

impl<'t> Part<'t> {
    /// Empty if this is no object.
    fn members(self) -> HashMap<&'t str, Self> {
        let (ExactJson::Object(written), Value::Object(before)) = (self.written, self.before)
        else {
            return HashMap::new();
        };
        let members = written.iter().filter_map(|(name, written)| {
            Some((name.as_str(), Self { written, before: before.get(name)? }))
        });
        members.collect()
    }

    /// Empty if this is no list.
    fn items(self) -> Vec<Self> {
        let (ExactJson::List(written), Value::Array(before)) = (self.written, self.before) else {
            return Vec::new();
        };
        written.iter().zip(before).map(|(written, before)| Self { written, before }).collect()
    }

    fn add_numbers(self, numbers: &mut WrittenNumbers<'t>) {
        if let (ExactJson::Number(text), Value::Number(value)) = (self.written, self.before) {
            numbers.entry(value).or_insert_with(|| WrittenNumber::new(text)).compare(text);
        }
        for part in self.members().into_values().chain(self.items()) {
            part.add_numbers(numbers);
        }
    }
}

/// Numbers of a part by their value in a tree that has lost digits.
type WrittenNumbers<'t> = HashMap<&'t Number, WrittenNumber<'t>>;

/// Numbers of one value, as they are written.
struct WrittenNumber<'t> {
    /// The text of one of them.
    text: &'t str,
    /// The number of this text, once another text is compared with it.
    decimal: OnceCell<Option<Decimal>>,
    /// True if they differ in digits beyond a float.
    is_several: bool,
    /// True if one of them is in another place than before, or gone, or a new one is there.
    has_moved: bool,
}

impl<'t> WrittenNumber<'t> {
    fn new(text: &'t str) -> Self {
        Self { text, decimal: OnceCell::new(), is_several: false, has_moved: false }
    }

    fn decimal(&self) -> Option<&Decimal> {
        self.decimal.get_or_init(|| Decimal::parse(self.text)).as_ref()
    }

    fn compare(&mut self, text: &str) {
        self.is_several =
            self.is_several || text != self.text && self.decimal() != Decimal::parse(text).as_ref();
    }

    /// True if the place of a number does not show which of several it is.
    fn is_doubtful(&self) -> bool {
        self.is_several && self.has_moved
    }

    /// True if a number of this value in a new place can only be the written one. A short number may
    /// be one of the program's own.
    fn is_only_meaning_of(&self, value: &Number) -> bool {
        let own = Decimal::from_number(value).filter(|own| !own.may_differ_as_float());
        !self.is_several && (own.is_none() || own.as_ref() == self.decimal())
    }
}

/// Marks the numbers that are not in the places that they had.
fn mark_moved(numbers: &mut WrittenNumbers<'_>, before: Option<&Value>, after: Option<&Value>) {
    if before == after {
        return;
    }
    for number in [before, after].into_iter().flatten().filter_map(Value::as_number) {
        if let Some(known) = numbers.get_mut(number) {
            known.has_moved = true;
        }
    }
    let items = |value: Option<&Value>| value.and_then(Value::as_array).map_or(0, Vec::len);
    for index in 0..items(before).max(items(after)) {
        let item = before.and_then(|it| it.get(index));
        mark_moved(numbers, item, after.and_then(|it| it.get(index)));
    }
    let is_new = |name: &str| before.and_then(|it| it.get(name)).is_none();
    for (name, value) in before.and_then(Value::as_object).into_iter().flatten() {
        mark_moved(numbers, Some(value), after.and_then(|it| it.get(name)));
    }
    for (name, value) in after.and_then(Value::as_object).into_iter().flatten() {
        if is_new(name) {
            mark_moved(numbers, None, Some(value));
        }
    }
}

enum Segment<'a> {
    Name(&'a str),
    Index(usize),
}

/// State of a walk through the changed value.
#[derive(Default)]
struct Merge<'t, 'a> {
    /// Numbers of the old parts around the current value, outermost first. A list is the last one:
    /// its items may have moved, so that the place in it does not show the old part.
    scopes: Vec<WrittenNumbers<'t>>,
    is_in_list: bool,
    /// True in a list with a number that is doubtful.
    has_doubt: bool,
    path: Vec<Segment<'a>>,
}

impl<'t, 'a> Merge<'t, 'a> {
    /// `part`: the old part in the place of `after`.
    fn merge(
        &mut self,
        part: Option<Part<'t>>,
        after: &'a Value,
    ) -> Result<ExactJson, AmbiguousNumber> {
        if let Some(part) = part
            && part.before == after
            && !self.has_doubt
        {
            return Ok(part.written.clone());
        }
        let (depth, is_in_list, has_doubt) = (self.scopes.len(), self.is_in_list, self.has_doubt);
        let merged = match after {
            Value::Object(members) => {
                self.enter(part, after);
                self.merge_object(part, members)?
            }
            Value::Array(items) => {
                self.enter(part, after);
                self.merge_list(part, items)?
            }
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {
                self.merge_leaf(part, after)?
            }
        };
        self.scopes.truncate(depth);
        (self.is_in_list, self.has_doubt) = (is_in_list, has_doubt);
        Ok(merged)
    }

    /// Adds the numbers of the part in whose place `after` is.
    fn enter(&mut self, part: Option<Part<'t>>, after: &Value) {
        let Some(part) = part.filter(|_| !self.is_in_list) else { return };
        let mut numbers = WrittenNumbers::new();
        part.add_numbers(&mut numbers);
        self.is_in_list = after.is_array();
        if self.is_in_list && numbers.values().any(|number| number.is_several) {
            mark_moved(&mut numbers, Some(part.before), Some(after));
            self.has_doubt = numbers.values().any(WrittenNumber::is_doubtful);
        }
        self.scopes.push(numbers);
    }

    fn merge_object(
        &mut self,
        part: Option<Part<'t>>,
        members: &'a Map<String, Value>,
    ) -> Result<ExactJson, AmbiguousNumber> {
        let old = part.map(Part::members).unwrap_or_default();
        let mut merged = Vec::with_capacity(members.len());
        for (name, value) in members {
            self.path.push(Segment::Name(name));
            merged.push((name.clone(), self.merge(old.get(name.as_str()).copied(), value)?));
            self.path.pop();
        }
        Ok(ExactJson::Object(merged))
    }

    fn merge_list(
        &mut self,
        part: Option<Part<'t>>,
        items: &'a [Value],
    ) -> Result<ExactJson, AmbiguousNumber> {
        let old = part.map(Part::items).unwrap_or_default();
        let mut merged = Vec::with_capacity(items.len());
        for (index, value) in items.iter().enumerate() {
            self.path.push(Segment::Index(index));
            merged.push(self.merge(old.get(index).copied(), value)?);
            self.path.pop();
        }
        Ok(ExactJson::List(merged))
    }

    fn merge_leaf(
        &self,
        part: Option<Part<'t>>,
        after: &Value,
    ) -> Result<ExactJson, AmbiguousNumber> {
        let known = after.as_number().and_then(|number| {
            let nearest = self.scopes.iter().rev().find_map(|numbers| numbers.get(number));
            nearest.map(|known| (number, known))
        });
        let same = part.filter(|part| part.before == after);
        match (same, known) {
            (Some(part), None) => Ok(part.written.clone()),
            (Some(part), Some((_, known))) if !known.is_doubtful() => Ok(part.written.clone()),
            (None, None) => Ok(ExactJson::from_value(after)),
            (None, Some((number, known))) if known.is_only_meaning_of(number) => {
                Ok(ExactJson::Number(known.text.into()))
            }
            (Some(_) | None, Some(_)) => Err(AmbiguousNumber { path: self.path_text() }),
        }
    }

    fn path_text(&self) -> String {
        let mut text = String::new();
        for segment in &self.path {
            let _infallible = match segment {
                Segment::Name(name) if text.is_empty() => write!(text, "{name}"),
                Segment::Name(name) => write!(text, ".{name}"),
                Segment::Index(index) => write!(text, "[{index}]"),
            };
        }
        sanitize_line(&text, PATH_CHARS_MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::raw::RawJson;

    /// The text after a change, or the path of an ambiguous number.
    fn changed(written: &str, after: &str) -> Result<String, String> {
        let tree = ExactJson::parse(written).unwrap();
        let after: Value = serde_json::from_str(after).unwrap();
        let merged = tree.with_changes(&tree.to_value(), &after).map_err(|error| error.path)?;
        Ok(RawJson::from_value(&merged).text().to_owned())
    }

    /// Two numbers with their floats, and one that has the float of the first.
    fn with_numbers(text: &str) -> String {
        let numbers = [
            ("FA", "1.2345678901234568e22"),
            ("FB", "9.876543210987654e22"),
            ("A2", "12345678901234567890124"),
            ("A", "12345678901234567890123"),
            ("B", "98765432109876543210987"),
        ];
        numbers.iter().fold(text.to_owned(), |text, (name, number)| text.replace(name, number))
    }

    #[test]
    fn changes_keep_the_text_of_other_parts() {
        for (written, after, expected) in [
            (r#"{"a":1.10,"b":"3"}"#, r#"{"a":1.1,"b":3}"#, r#"{"a":1.10,"b":3}"#),
            (r#"{"a":[1e2,"x"]}"#, r#"{"a":[1e2,"y",7]}"#, r#"{"a":[1e2,"y",7]}"#),
            (r#"{"a":A,"b":1}"#, r#"{"b":2}"#, r#"{"b":2}"#),
            (r#"{"a":A}"#, r#"{"a":"none"}"#, r#"{"a":"none"}"#),
            (r#"{"a":A}"#, r#"{"a":FA,"b":true}"#, r#"{"a":A,"b":true}"#),
            (r#"{"a":1.0}"#, r#"{"a":1}"#, r#"{"a":1}"#),
            (r#"{"a":5}"#, r#"{"a":"5","c":0.5}"#, r#"{"a":"5","c":0.5}"#),
            (r#"{"a":[A,A2,5]}"#, r#"{"a":[FA,FA,6]}"#, r#"{"a":[A,A2,6]}"#),
            (r#"{"a":[A,A2],"b":1}"#, r#"{"a":[FA,FA],"b":2}"#, r#"{"a":[A,A2],"b":2}"#),
            (r#"{"a":A,"b":A2}"#, r#"{"a":FA}"#, r#"{"a":A}"#),
        ] {
            let [written, after, expected] = [written, after, expected].map(with_numbers);
            assert_eq!(changed(&written, &after), Ok(expected), "{written}");
        }
    }

    #[test]
    fn moved_numbers_keep_their_digits() {
        for (written, after, expected) in [
            (r#"{"ids":[A,B]}"#, r#"{"ids":[FB]}"#, r#"{"ids":[B]}"#),
            (r#"{"ids":[A,B]}"#, r#"{"ids":[FB,7,FA]}"#, r#"{"ids":[B,7,A]}"#),
            ("[1.10,2.50]", "[2.5]", "[2.50]"),
            (r#"[{"id":A,"n":1},{"id":B,"n":2}]"#, r#"[{"id":FB,"n":3}]"#, r#"[{"id":B,"n":3}]"#),
            (r#"{"a":A}"#, r#"{"b":FA}"#, r#"{"b":A}"#),
            (r#"{"a":A}"#, r#"{"a":FA,"b":FA}"#, r#"{"a":A,"b":A}"#),
            (r#"{"a":{"id":A},"b":{}}"#, r#"{"a":{},"b":{"id":FA}}"#, r#"{"a":{},"b":{"id":A}}"#),
            (r#"{"a":{"x":A},"b":{"x":A2}}"#, r#"{"b":{"y":FA}}"#, r#"{"b":{"y":A2}}"#),
            (r#"{"a":A,"ids":[5,A2]}"#, r#"{"a":FA,"ids":[FA]}"#, r#"{"a":A,"ids":[A2]}"#),
        ] {
            let [written, after, expected] = [written, after, expected].map(with_numbers);
            assert_eq!(changed(&written, &after), Ok(expected), "{written}");
        }
    }

    #[test]
    fn number_that_could_be_several_is_an_error() {
        for (written, after, path) in [
            (r#"{"ids":[A,A2]}"#, r#"{"ids":[FA]}"#, "ids[0]"),
            (r#"{"ids":[A,A2]}"#, r#"{"ids":[FA,7]}"#, "ids[0]"),
            (r#"{"ids":[A,A2]}"#, r#"{"ids":[FA,FA,FA]}"#, "ids[0]"),
            (r#"{"ids":[5,A,A2]}"#, r#"{"ids":[FA,FA]}"#, "ids[0]"),
            (r#"{"a":A,"b":A2}"#, r#"{"a":FA,"c":FA}"#, "c"),
            (r#"{"a":[{"id":A,"n":1},{"id":A2,"n":2}]}"#, r#"{"a":[{"id":FA,"n":2}]}"#, "a[0].id"),
            ("[100.00000000000000000001]", "[100.0,100.0]", "[1]"),
        ] {
            let (written, after) = (with_numbers(written), with_numbers(after));
            assert_eq!(changed(&written, &after), Err(path.to_owned()), "{written}");
        }
        let error = AmbiguousNumber { path: "ids[0]".to_owned() };
        assert_eq!(
            error.to_string(),
            "`ids[0]` could be several numbers that differ only in digits beyond a float"
        );
    }
}
