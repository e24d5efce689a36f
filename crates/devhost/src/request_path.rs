//! Paths of requests as the Functions host reads them, and as it passes them on.
//!
//! Source: Kestrel's `UrlDecoder` and `PathNormalizer`; YARP's `RequestUtilities.EncodePath`.

use std::borrow::Cow;

use http::Uri;
use http::uri::PathAndQuery;
use percent_encoding::{AsciiSet, CONTROLS, NON_ALPHANUMERIC, utf8_percent_encode};

/// Everything except the characters that RFC 3986 allows in a path.
const PATH_ESCAPES: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~')
    .remove(b'!')
    .remove(b'$')
    .remove(b'&')
    .remove(b'\'')
    .remove(b'(')
    .remove(b')')
    .remove(b'*')
    .remove(b'+')
    .remove(b',')
    .remove(b';')
    .remove(b'=')
    .remove(b':')
    .remove(b'@')
    .remove(b'/');
const QUERY_ESCAPES: &AsciiSet = &CONTROLS
    .add(b' ')
    .add(b'"')
    .add(b'<')
    .add(b'>')
    .add(b'\\')
    .add(b'^')
    .add(b'`')
    .add(b'{')
    .add(b'|')
    .add(b'}');

/// A path without percent encoding and dot segments. An encoded slash stays `%2F`: it separates
/// nothing.
#[derive(Debug)]
pub(super) struct RequestPath<'a> {
    decoded: Cow<'a, str>,
    query: Option<&'a str>,
}

impl<'a> RequestPath<'a> {
    /// Returns `None` for a target that the host rejects with 400.
    pub(super) fn parse(uri: &'a Uri) -> Option<Self> {
        let (path, query) = (uri.path(), uri.query());
        if !path.starts_with('/') || !path.is_ascii() || !query.is_none_or(str::is_ascii) {
            return None;
        }
        let is_plain = !path.contains('%') && !path.contains("/.");
        let decoded =
            if is_plain { path.into() } else { remove_dot_segments(&decode(path)?).into() };
        Some(Self { decoded, query })
    }

    pub(super) fn decoded(&self) -> &str {
        &self.decoded
    }

    /// The path and query that the handler gets: `%2F` becomes `%252F`.
    pub(super) fn to_path_and_query(&self) -> Option<PathAndQuery> {
        let mut text = utf8_percent_encode(&self.decoded, PATH_ESCAPES).to_string();
        if let Some(query) = self.query {
            text.push('?');
            text.extend(utf8_percent_encode(&escape_lone_percents(query), QUERY_ESCAPES));
        }
        PathAndQuery::try_from(text).ok()
    }
}

/// The byte of `%41` at the start of a text.
fn encoded_byte(text: &str) -> Option<u8> {
    let digits = text.strip_prefix('%')?.get(..2)?;
    digits.bytes().all(|byte| byte.is_ascii_hexdigit()).then_some(())?;
    u8::from_str_radix(digits, 16).ok()
}

/// Decodes each character of UTF-8. Other bytes and `%2F` stay encoded; a NUL is an error.
fn decode(path: &str) -> Option<String> {
    let mut decoded = String::with_capacity(path.len());
    let mut rest = path;
    while let Some(letter) = rest.chars().next() {
        let length = match encoded_byte(rest) {
            Some(0) => return None,
            None | Some(b'/') => 0,
            Some(byte) => usize::try_from(byte.leading_ones()).ok()?.max(1),
        };
        let bytes: Option<Vec<u8>> =
            (0..length).map(|index| encoded_byte(rest.get(index * 3..)?)).collect();
        let character = bytes.and_then(|bytes| String::from_utf8(bytes).ok());
        if let Some(character) = character.filter(|_| length > 0) {
            decoded.push_str(&character);
            rest = rest.get(length * 3..)?;
        } else {
            decoded.push(letter);
            rest = rest.get(letter.len_utf8()..)?;
        }
    }
    Some(decoded)
}

/// Resolves `.` and `..` as RFC 3986 does. The start is the highest folder.
fn remove_dot_segments(path: &str) -> String {
    let mut kept: Vec<&str> = Vec::new();
    let mut ends_in_folder = false;
    for segment in path.split('/').skip(1) {
        ends_in_folder = segment == "." || segment == "..";
        match segment {
            "." => {}
            ".." => _ = kept.pop(),
            _ => kept.push(segment),
        }
    }
    if ends_in_folder {
        kept.push("");
    }
    format!("/{}", kept.join("/"))
}

/// Encodes each `%` that begins no encoded byte.
fn escape_lone_percents(query: &str) -> Cow<'_, str> {
    if !query.contains('%') {
        return query.into();
    }
    let mut parts = query.split('%');
    let mut escaped = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let is_encoded = encoded_byte(&format!("%{part}")).is_some();
        escaped.push_str(if is_encoded { "%" } else { "%25" });
        escaped.push_str(part);
    }
    escaped.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn passed_on(target: &str) -> Option<String> {
        let uri: Uri = target.parse().unwrap();
        RequestPath::parse(&uri)?.to_path_and_query().map(|path| path.to_string())
    }

    #[test]
    fn paths_are_decoded_and_encoded_again() {
        for (target, expected) in [
            ("/api/a%2Fb", "/api/a%252Fb"),
            ("/api/a%2fb%3F%25", "/api/a%252fb%3F%25"),
            ("/api/%78%C3%A9%FF", "/api/x%C3%A9%25FF"),
            ("/api/a%zz%", "/api/a%25zz%25"),
            ("/api/%E2%82%AC%E2%82x", "/api/%E2%82%AC%25E2%2582x"),
            ("/api/a/%2e%2E/b/./c/..", "/api/b/"),
            ("/../../api/x", "/api/x"),
            ("/api/x/..%2f..%2fturn", "/api/x/..%252f..%252fturn"),
            ("/api/x//y", "/api/x//y"),
            ("/api?a=%zz&b=%&c=%2F", "/api?a=%25zz&b=%25&c=%2F"),
            ("/api?", "/api?"),
        ] {
            assert_eq!(passed_on(target).as_deref(), Some(expected), "{target}");
        }
        assert_eq!(passed_on("/api/a%00b"), None);
    }
}
