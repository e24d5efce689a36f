//! Records of one line. A crash leaves several on a line, or a torn one before a whole one.

use std::borrow::Cow;

use crate::session_file::object::Object;
use turnwheel_json::foreign::{read_foreign_json, string_length};
use turnwheel_json::raw::RawJson;
use turnwheel_json::text::repair_surrogates;

/// Bytes that a search for the next record may parse in one line.
const SEARCH_BYTES_MAX: usize = 8 * 1024 * 1024;

pub(super) const NOT_JSON: &str = "the line is not JSON";
const CUT_JSON: &str = "the line ends within its JSON";
const NO_OBJECT: &str = "the line is no JSON object";
const HALF_CHARACTERS: &str = "halves of characters are removed";
const TORN: &str = "a record is torn: the next one follows on the line";

#[derive(Debug)]
pub(super) enum Record<'l> {
    /// A JSON object, and what was repaired in it.
    Whole(RawJson, Vec<&'static str>),
    /// Text that is no record, and the reason.
    Damaged(&'l str, &'static str),
}

/// Reads the records one after another. Commas and NUL characters between them are ignored. Empty:
/// the line is blank.
pub(super) fn split_records(line: &str) -> Vec<Record<'_>> {
    let mut records = Vec::new();
    let mut budget = SEARCH_BYTES_MAX;
    let mut rest = line.trim_matches(is_separator);
    while !rest.is_empty() {
        let reason = match next_value(rest) {
            Ok((object, length)) if object.text().starts_with('{') => {
                records.push(remove_half_characters(object));
                rest = rest.get(length..).unwrap_or_default().trim_start_matches(is_separator);
                continue;
            }
            Ok(_) => NO_OBJECT,
            Err(error) if error.is_eof() => CUT_JSON,
            Err(_) => NOT_JSON,
        };
        if records.is_empty()
            && let Some(read) = read_foreign_json(rest)
            && read.json.text().starts_with('{')
        {
            records.push(Record::Whole(read.json, read.notes));
            break;
        }
        let (damaged, next) = match find_record(rest, &mut budget) {
            Some(at) => rest.split_at_checked(at).unwrap_or((rest, "")),
            None => (rest, ""),
        };
        records.push(Record::Damaged(damaged, if next.is_empty() { reason } else { TORN }));
        rest = next;
    }
    records
}

/// JavaScript cuts a text within a character and writes the half as an escape, which no text has.
fn remove_half_characters(object: RawJson) -> Record<'static> {
    let repaired = match repair_surrogates(object.text()) {
        Cow::Borrowed(_) => None,
        Cow::Owned(text) => RawJson::from_text(text).ok(),
    };
    match repaired {
        Some(repaired) => Record::Whole(repaired, vec![HALF_CHARACTERS]),
        None => Record::Whole(object, Vec::new()),
    }
}

fn is_separator(letter: char) -> bool {
    letter.is_whitespace() || matches!(letter, '\0' | ',' | '\u{feff}')
}

/// The value that begins the text, and its bytes.
fn next_value(text: &str) -> serde_json::Result<(RawJson, usize)> {
    let mut values = serde_json::Deserializer::from_str(text).into_iter::<RawJson>();
    let value = values.next().unwrap_or_else(|| RawJson::from_text(""))?;
    Ok((value, values.byte_offset()))
}

/// Position of the first whole record behind the beginning of a torn one.
fn find_record(text: &str, budget: &mut usize) -> Option<usize> {
    let mut from = 1;
    loop {
        let at = from + text.get(from..)?.find('{')?;
        let candidate = text.get(at..)?;
        let length = match next_value(candidate) {
            Ok((object, _)) if is_record(&object) => return Some(at),
            // No record is within another object.
            Ok((_, length)) => length,
            Err(error) => {
                let parsed = if error.is_eof() { candidate.len() } else { error.column() };
                *budget = budget.checked_sub(parsed)?;
                1
            }
        };
        *budget = budget.checked_sub(length)?;
        from = at + length;
    }
}

/// True for an entry with its place in the tree, an entry of version 1, and a header. A block of a
/// message, which may have an id and a type, is none.
fn is_record(raw: &RawJson) -> bool {
    let Some(object) = Object::from_raw(raw) else { return false };
    let has_id = object.has("id") || object.has("entryId");
    match object.text("type").as_deref() {
        Some("session" | "turnwheel") => has_id,
        Some("message") if !has_id => {
            object.get("message").is_some_and(|message| message.text().starts_with('{'))
        }
        Some(_) => has_id && object.has("parentId"),
        None => false,
    }
}

/// The leading members of a torn object that are whole and no lists or objects.
pub(super) fn leading_members(text: &str) -> Object {
    let mut object = Object::default();
    let mut rest = text.split_once('{').map_or("", |(_, rest)| rest);
    while let Some((name, value, after)) = next_member(rest) {
        if let Some(value) = value {
            object.set_raw(&name, value);
        }
        rest = after;
    }
    object
}

/// The next member of an object, its value unless it is a list or an object, and the rest.
fn next_member(text: &str) -> Option<(String, Option<RawJson>, &str)> {
    let text = text.trim_start_matches(is_separator);
    let (name, rest) = text.split_at_checked(string_length(text.as_bytes())?)?;
    let name: String = serde_json::from_str(name).ok()?;
    let rest = rest.trim_start().strip_prefix(':')?.trim_start();
    let (value, length) = next_value(rest).ok()?;
    let after = rest.get(length..)?;
    // A number or word at the end may be cut.
    let is_whole = value.text().starts_with('"') || !after.is_empty();
    let is_plain = is_whole && !value.text().starts_with(['{', '[']);
    Some((name, is_plain.then_some(value), after))
}

#[cfg(test)]
mod tests {
    use super::*;

    const RECORD: &str = r#"{"type":"message","id":"b","parentId":"a","message":{"role":"user","content":"{\"x\":1}"}}"#;

    fn kinds(line: &str) -> Vec<Result<String, &'static str>> {
        split_records(line)
            .into_iter()
            .map(|record| match record {
                Record::Whole(raw, _) => Ok(raw.text().to_owned()),
                Record::Damaged(_, reason) => Err(reason),
            })
            .collect()
    }

    #[test]
    fn whole_records_of_a_damaged_line_are_found() {
        let whole = || Ok(RECORD.to_owned());
        let call = r#"{"type":"message","id":"t","parentId":"a","message":{"content":[{"type":"toolCall","id":"c","name":"n","arguments":{}}"#;
        for (line, expected) in [
            (RECORD.to_owned(), vec![whole()]),
            (format!("{RECORD}{RECORD}"), vec![whole(), whole()]),
            (format!("{RECORD},\r{RECORD},"), vec![whole(), whole()]),
            (format!("\0\0\0{RECORD}\0"), vec![whole()]),
            (format!("{}{RECORD}", RECORD.get(..50).unwrap()), vec![Err(TORN), whole()]),
            (format!("{call}{RECORD}"), vec![Err(TORN), whole()]),
            (format!("{{\"type\":\"custom\",\"customTy{RECORD}"), vec![Err(TORN), whole()]),
            (
                format!("log line {RECORD} {}", RECORD.get(..9).unwrap()),
                vec![Err(TORN), whole(), Err(CUT_JSON)],
            ),
            ("\0\0 ,".to_owned(), vec![]),
            ("[1]".to_owned(), vec![Err(NO_OBJECT)]),
            ("no json".to_owned(), vec![Err(NOT_JSON)]),
            (call.to_owned(), vec![Err(CUT_JSON)]),
            (
                r#"{"type":"x","cost":NaN}"#.to_owned(),
                vec![Ok(r#"{"type":"x","cost":"NaN"}"#.to_owned())],
            ),
        ] {
            assert_eq!(kinds(&line), expected, "{line}");
        }
    }

    #[test]
    fn members_before_the_tear_are_read() {
        let text = r#"{"type":"message","extra":{"id":"no"},"id":"b","seq":1,"parentId":null,"message":{"id":"x"#;
        let members = leading_members(text);
        assert_eq!(members.text("id").as_deref(), Some("b"));
        assert_eq!(members.get("parentId").unwrap().text(), "null");
        assert!(!leading_members(r#"{"id":"cut"#).has("id"));
        assert!(!leading_members("no object").has("id"));
    }

    #[test]
    fn hostile_line_is_searched_in_bounded_time() {
        for part in ["{\"id\":", "{\"a\":[", "{", "{\"type\":\"message\"}"] {
            assert!(!split_records(&part.repeat(1_000_000 / part.len())).is_empty());
        }
    }
}
