//! JSON that other programs have written. What is not valid but has a plain meaning is repaired, so
//! that one odd part does not cost the whole document.

use std::collections::HashSet;

use serde_json::Value;

use super::raw::RawJson;
use super::text::repair_surrogates;

#[cfg(test)]
mod tests;

/// Levels of arrays and objects that are kept as such. Entries and responses wrap such a document
/// in more levels, and all of them are read again.
pub const FOREIGN_DEPTH_MAX: usize = 96;

/// A document that was read.
#[derive(Debug)]
pub struct ForeignJson {
    pub json: RawJson,
    /// Repairs, for readers of the document. Empty: it has the sender's text.
    pub notes: Vec<&'static str>,
}

impl ForeignJson {
    pub fn has_duplicates(&self) -> bool {
        self.notes.contains(&NOTE_DUPLICATES)
    }

    /// The note about values that are text in place of what was written.
    pub fn value_note(&self) -> Option<&'static str> {
        self.notes.iter().copied().find(|note| *note != NOTE_DUPLICATES)
    }
}

pub const NOTE_NUMBERS: &str = "numbers that JSON does not have, such as NaN, are text";
/// The member of a result that marks an error.
const ERROR_MEMBER: &str = "isError";
const NOTE_DUPLICATES: &str = "of members with one name only the last counts";
const NOTE_DEPTH: &str = "values that nest too deeply are text";

/// Reads JSON text. A byte order mark, NUL characters around the document, unpaired surrogate
/// halves, control characters in strings and trailing commas are removed without a note. `None`:
/// the text is not JSON.
pub fn read_foreign_json(text: &str) -> Option<ForeignJson> {
    let text = text.trim_start_matches('\u{feff}').trim_matches(is_space);
    let mut repair = JsonRepair::new(&repair_surrogates(text));
    repair.copy_value(0)?;
    repair.skip_space();
    if repair.at < repair.text.len() {
        return None;
    }
    let JsonRepair { out, is_changed, notes, text, .. } = repair;
    let json = RawJson::from_text(if is_changed { out } else { text }).ok()?;
    Some(ForeignJson { json, notes })
}

/// Parses JSON. If it is not valid, mistakes that have a plain meaning are repaired.
pub fn read_value_or_repair(text: &str) -> Option<Value> {
    serde_json::from_str(text).ok().or_else(|| read_foreign_json(text)?.json.read().ok())
}

/// True if a value of `isError` means an error, in results of HTTP tools and MCP servers. Null is as
/// absent, and some serialisers write false as 0, as a text, or as an empty one.
pub fn means_error(flag: &Value) -> bool {
    match flag {
        Value::Null => false,
        Value::Bool(is_error) => *is_error,
        Value::Number(number) => number.as_f64() != Some(0.0),
        Value::String(text) => !text.is_empty() && !text.eq_ignore_ascii_case("false"),
        Value::Array(_) | Value::Object(_) => true,
    }
}

/// Changes the strings of a document, names of members included. A number that `change` would change
/// becomes a string. `None` of `change`: the text stays.
pub fn map_strings(json: RawJson, change: &dyn Fn(&str) -> Option<String>) -> RawJson {
    let text = json.text();
    let mut changed = String::new();
    let mut copied = 0;
    let mut at = 0;
    while let Some(byte) = text.as_bytes().get(at) {
        let start = at;
        at += token_length(text, at, *byte);
        let token = text.get(start..at).unwrap_or_default();
        let new = match byte {
            b'"' if token.contains('\\') => {
                serde_json::from_str::<String>(token).ok().and_then(|it| change(&it))
            }
            b'"' => token.get(1..token.len().saturating_sub(1)).and_then(change),
            b'-' | b'0'..=b'9' => change(token),
            _ => None,
        };
        if let Some(new) = new {
            changed.push_str(text.get(copied..start).unwrap_or_default());
            changed.push_str(&quote(&new));
            copied = at;
        }
    }
    if copied == 0 {
        return json;
    }
    changed.push_str(text.get(copied..).unwrap_or_default());
    RawJson::from_text(changed).unwrap_or(json)
}

/// Bytes of the token of valid JSON that begins at `at`.
fn token_length(text: &str, at: usize, first: u8) -> usize {
    let rest = text.as_bytes().get(at..).unwrap_or_default();
    match first {
        b'"' => string_length(rest).unwrap_or(rest.len()),
        b'-' | b'0'..=b'9' => rest.iter().take_while(|byte| is_bare(**byte)).count(),
        _ => 1,
    }
}

/// Bytes of the string that begins the text, with its quotation marks.
pub fn string_length(text: &[u8]) -> Option<usize> {
    let mut is_escaped = false;
    for (index, byte) in text.iter().enumerate().skip(1) {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' => is_escaped = true,
            b'"' => return Some(index + 1),
            _ => {}
        }
    }
    None
}

fn quote(text: &str) -> String {
    RawJson::from_value(&text).text().to_owned()
}

fn is_space(letter: char) -> bool {
    matches!(letter, ' ' | '\t' | '\n' | '\r' | '\0')
}

/// Bytes of numbers and words.
fn is_bare(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'-' | b'.' | b'_')
}

/// Copies a document and repairs it. Its recursion ends at [`FOREIGN_DEPTH_MAX`].
struct JsonRepair {
    text: String,
    at: usize,
    out: String,
    /// True if `out` has another meaning or form than `text`, apart from white space.
    is_changed: bool,
    notes: Vec<&'static str>,
}

impl JsonRepair {
    fn new(text: &str) -> Self {
        let out = String::with_capacity(text.len());
        Self { text: text.to_owned(), at: 0, out, is_changed: false, notes: Vec::new() }
    }

    fn note(&mut self, note: &'static str) {
        self.is_changed = true;
        if !self.notes.contains(&note) {
            self.notes.push(note);
        }
    }

    fn rest(&self) -> &[u8] {
        self.text.as_bytes().get(self.at..).unwrap_or_default()
    }

    /// The next byte after white space.
    fn peek(&mut self) -> Option<u8> {
        self.skip_space();
        self.rest().first().copied()
    }

    fn skip_space(&mut self) {
        let count = self.rest().iter().take_while(|byte| is_space(char::from(**byte))).count();
        self.is_changed |= self.rest().iter().take(count).any(|byte| *byte == 0);
        self.at += count;
    }

    fn copy_value(&mut self, depth: usize) -> Option<()> {
        match self.peek()? {
            b'{' | b'[' if depth >= FOREIGN_DEPTH_MAX => self.copy_deep_value(),
            b'{' => self.copy_object(depth + 1),
            b'[' => self.copy_array(depth + 1),
            b'"' => self.copy_string(),
            _ => self.copy_bare(),
        }
    }

    fn copy_array(&mut self, depth: usize) -> Option<()> {
        self.open('[');
        let mut count = 0;
        loop {
            if self.peek()? == b']' {
                self.is_changed |= count > 0;
                break;
            }
            if count > 0 {
                self.out.push(',');
            }
            self.copy_value(depth)?;
            count += 1;
            if !self.continues(b']')? {
                break;
            }
        }
        self.close(']');
        Some(())
    }

    fn copy_object(&mut self, depth: usize) -> Option<()> {
        self.open('{');
        let start = self.out.len();
        // Ranges of `out`: a name, and the member with its name.
        let mut members: Vec<(String, usize, usize)> = Vec::new();
        loop {
            match self.peek()? {
                b'}' => {
                    self.is_changed |= !members.is_empty();
                    break;
                }
                b'"' => {}
                _ => return None,
            }
            if !members.is_empty() {
                self.out.push(',');
            }
            let from = self.out.len();
            self.copy_string()?;
            let name = self.out.get(from..).unwrap_or_default().to_owned();
            let name = serde_json::from_str(&name).unwrap_or(name);
            if self.peek()? != b':' {
                return None;
            }
            self.at += 1;
            self.out.push(':');
            self.copy_value(depth)?;
            members.push((name, from, self.out.len()));
            if !self.continues(b'}')? {
                break;
            }
        }
        self.remove_duplicates(start, &members);
        self.close('}');
        Some(())
    }

    fn open(&mut self, bracket: char) {
        self.at += 1;
        self.out.push(bracket);
    }

    fn close(&mut self, bracket: char) {
        self.at += 1;
        self.out.push(bracket);
    }

    /// Reads the comma after a value. False: the next byte is the closing bracket.
    fn continues(&mut self, closing: u8) -> Option<bool> {
        match self.peek()? {
            b',' => {
                self.at += 1;
                Some(true)
            }
            byte if byte == closing => Some(false),
            _ => None,
        }
    }

    /// Keeps the last of the members with one name.
    fn remove_duplicates(&mut self, start: usize, members: &[(String, usize, usize)]) {
        let mut names = HashSet::new();
        let mut kept: Vec<&(String, usize, usize)> =
            members.iter().rev().filter(|(name, ..)| names.insert(name.as_str())).collect();
        if kept.len() == members.len() {
            return;
        }
        kept.reverse();
        // No later member turns an error into a success.
        let text_of = |(_, from, to): &(String, usize, usize)| self.out.get(*from..*to);
        let is_error = |member: &&(String, usize, usize)| {
            let value = text_of(member).and_then(|text| text.split_once(':'));
            member.0 == ERROR_MEMBER
                && value.is_some_and(|(_, value)| {
                    serde_json::from_str::<Value>(value).as_ref().map_or(true, means_error)
                })
        };
        let error = members.iter().find(is_error);
        let texts: Vec<&str> = kept
            .into_iter()
            .map(|member| error.filter(|_| member.0 == ERROR_MEMBER).unwrap_or(member))
            .filter_map(text_of)
            .collect();
        let joined = texts.join(",");
        self.out.truncate(start);
        self.out.push_str(&joined);
        self.note(NOTE_DUPLICATES);
    }

    fn copy_string(&mut self) -> Option<()> {
        let length = string_length(self.rest())?;
        let token = self.text.get(self.at..self.at + length)?;
        self.at += length;
        if serde_json::from_str::<String>(token).is_ok() {
            self.out.push_str(token);
            return Some(());
        }
        let repaired = repair_string(token);
        serde_json::from_str::<String>(&repaired).ok()?;
        self.out.push_str(&repaired);
        self.is_changed = true;
        Some(())
    }

    /// Copies a number or a word. Numbers that no reader of JSON has become strings.
    fn copy_bare(&mut self) -> Option<()> {
        let length = self.rest().iter().take_while(|byte| is_bare(**byte)).count();
        let token = self.text.get(self.at..self.at + length)?.to_owned();
        self.at += length;
        let is_json = match token.as_str() {
            "true" | "false" | "null" => true,
            number => serde_json::from_str::<serde_json::Number>(number).is_ok(),
        };
        if is_json {
            self.out.push_str(&token);
            return Some(());
        }
        let word = token.trim_start_matches(['+', '-']).to_ascii_lowercase();
        let is_number = matches!(word.as_str(), "nan" | "infinity" | "inf")
            || word.starts_with(|letter: char| letter.is_ascii_digit() || letter == '.')
                && token.parse::<f64>().is_ok();
        if !is_number {
            return None;
        }
        self.out.push_str(&quote(&token));
        self.note(NOTE_NUMBERS);
        Some(())
    }

    /// Copies an array or an object as a string with its text.
    fn copy_deep_value(&mut self) -> Option<()> {
        let mut depth = 0_usize;
        let start = self.at;
        loop {
            let byte = *self.rest().first()?;
            match byte {
                b'"' => {
                    self.at += string_length(self.rest())?;
                    continue;
                }
                b'{' | b'[' => depth += 1,
                b'}' | b']' => depth -= 1,
                _ => {}
            }
            self.at += 1;
            if depth == 0 {
                break;
            }
        }
        let quoted = quote(self.text.get(start..self.at)?);
        self.out.push_str(&quoted);
        self.note(NOTE_DEPTH);
        Some(())
    }
}

/// Escapes control characters of a string, and the backslash of an escape that JSON does not have.
fn repair_string(token: &str) -> String {
    let mut repaired = String::with_capacity(token.len());
    let mut rest = token;
    while let Some(letter) = rest.chars().next() {
        rest = rest.get(letter.len_utf8()..).unwrap_or_default();
        match letter {
            '\\' if has_escape(rest) => {
                let length = rest.chars().next().map_or(0, char::len_utf8);
                repaired.push('\\');
                repaired.push_str(rest.get(..length).unwrap_or_default());
                rest = rest.get(length..).unwrap_or_default();
            }
            '\\' => repaired.push_str("\\\\"),
            control if u32::from(control) < 0x20 => {
                repaired.push_str(quote(&control.to_string()).trim_matches('"'));
            }
            letter => repaired.push(letter),
        }
    }
    repaired
}

/// True if an escape of JSON begins the text, without its backslash.
fn has_escape(text: &str) -> bool {
    if let Some(digits) = text.strip_prefix('u') {
        return digits.get(..4).is_some_and(|it| it.bytes().all(|byte| byte.is_ascii_hexdigit()));
    }
    text.starts_with(['"', '\\', '/', 'b', 'f', 'n', 'r', 't'])
}
