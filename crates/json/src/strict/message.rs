//! Messages and pointers of errors, for users of the API.

use super::{JsonError, POINTER_PREFIX, pointer_token};

/// Maximum bytes of a pointer or message. Both contain names and texts of the sender, of any
/// length.
const ERROR_BYTES_MAX: usize = 400;

/// Builds the error. The end of serde's text may have the pointer inside a value, or the name of a
/// member.
pub(super) fn json_error(mut pointer: String, text: &str) -> JsonError {
    let text = strip_position(text);
    let (text, inner_pointer) = match text.rsplit_once(POINTER_PREFIX) {
        Some((before, location)) if location.starts_with('/') => {
            (before, location.strip_suffix(')').unwrap_or(location))
        }
        _ => (text, ""),
    };
    pointer.push_str(inner_pointer);
    let named = text
        .strip_prefix("unknown field `")
        .or_else(|| text.strip_prefix("missing field `"))
        .and_then(|rest| rest.split('`').next());
    if let Some(name) = named {
        let step = format!("/{}", pointer_token(name));
        if !pointer.ends_with(&step) {
            pointer.push_str(&step);
        }
    }
    JsonError { pointer: truncate(pointer), detail: truncate(plain_message(text)) }
}

pub(crate) fn truncate(mut text: String) -> String {
    if text.len() > ERROR_BYTES_MAX {
        text.truncate(text.floor_char_boundary(ERROR_BYTES_MAX));
        text.push('…');
    }
    text
}

fn strip_position(text: &str) -> &str {
    text.rsplit_once(" at line ").map_or(text, |(before, _)| before)
}

/// Rewrites a message of serde for users of the API. Other messages stay unchanged.
pub fn plain_message(text: &str) -> String {
    for start in ["invalid type: ", "invalid value: ", "invalid length "] {
        if let Some((found, expected)) =
            text.strip_prefix(start).and_then(|rest| rest.rsplit_once(", expected "))
        {
            return format!(
                "this must be {}, not {}",
                describe_expected(expected),
                describe_found(found)
            );
        }
    }
    if let Some(spelling) = find_spelling(text) {
        return format!("{}: write `{spelling}`", text.split(", ").next().unwrap_or(text));
    }
    if let Some(rest) = text.strip_prefix("unknown variant `") {
        return format!("unknown value `{rest}");
    }
    for (theirs, ours) in [
        ("expected ident", "a word without quotes that is none of `true`, `false` and `null`"),
        ("expected value", "a value is missing or is not valid JSON"),
        ("EOF while parsing", "the JSON ends too early, in"),
        ("trailing characters", "unexpected text after the end of the JSON"),
        ("recursion limit exceeded", "the JSON nests too deeply"),
    ] {
        if let Some(rest) = text.strip_prefix(theirs) {
            return format!("{ours}{rest}");
        }
    }
    text.to_owned()
}

/// The expected member that differs from an unknown one in case, `_` and `-` alone.
fn find_spelling(text: &str) -> Option<&str> {
    let plain = |name: &str| name.replace(['_', '-'], "").to_lowercase();
    let mut names = text.strip_prefix("unknown field `")?.split('`');
    let unknown = plain(names.next()?);
    // Every second part is a name between two quotes.
    names.skip(1).step_by(2).find(|name| plain(name) == unknown)
}

fn describe_expected(expected: &str) -> String {
    let words = match expected {
        "a map" => "an object",
        "a sequence" => "a list",
        "a string" | "str" | "string" => "a text",
        "a boolean" => "true or false",
        "u8" => "a whole number from 0 to 255",
        "u16" => "a whole number from 0 to 65535",
        "u32" => "a whole number from 0 to 4294967295",
        "u64" | "usize" => "a whole number from 0",
        "i8" | "i16" | "i32" | "i64" | "isize" => "a whole number",
        "f32" | "f64" => "a number",
        "string or map" | "variant identifier" => "a text that names a value",
        _ if expected.starts_with("struct ") || expected.starts_with("internally tagged") => {
            "an object"
        }
        _ if expected.starts_with("enum ") => "a text that names a value",
        _ => return expected.to_owned(),
    };
    words.to_owned()
}

fn describe_found(found: &str) -> String {
    for (serde_text, description) in [
        ("sequence", "a list"),
        ("map", "an object"),
        ("string", "a text"),
        ("unit", "null"),
        ("floating point", "a number with a fraction"),
    ] {
        if found.starts_with(serde_text) {
            return description.to_owned();
        }
    }
    match found.strip_prefix("integer `").or_else(|| found.strip_prefix("boolean `")) {
        Some(value) => value.trim_end_matches('`').to_owned(),
        None => found.to_owned(),
    }
}

/// Converts a path to an RFC 6901 pointer.
pub(super) fn to_pointer(path: &serde_path_to_error::Path) -> String {
    use std::fmt::Write as _;

    use serde_path_to_error::Segment;
    path.iter().fold(String::new(), |mut pointer, segment| {
        match segment {
            Segment::Seq { index } => {
                let _ = write!(pointer, "/{index}");
            }
            Segment::Map { key } => {
                let _ = write!(pointer, "/{}", pointer_token(key));
            }
            Segment::Enum { .. } | Segment::Unknown => {}
        }
        pointer
    })
}
