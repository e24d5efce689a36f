//! Idempotency keys: from the header `Idempotency-Key`, else the host's invocation id, else a fresh
//! id.

use http::HeaderMap;

use crate::Api;
use crate::problem::Problem;
use turnwheel_record::idempotency::{CLIENT_KEY_PREFIX, Idempotency, is_client_key};

const KEY_HEADER: &str = "idempotency-key";
/// The host's invocation id. The host repeats a request with the same id.
const INVOCATION_HEADER: &str = "x-azure-functions-invocationid";

pub(crate) fn resolve_idempotency(
    api: &Api,
    headers: &HeaderMap,
    route: impl Into<String>,
    body_hash: String,
) -> Result<Idempotency, Problem> {
    let given = parse_key(headers)?.or_else(|| invocation_key(headers));
    let is_repeatable = given.is_some();
    let key = given.unwrap_or_else(|| format!("fresh:{}", api.services.ids.new_id()));
    Ok(Idempotency { key, is_repeatable, route: route.into(), body_hash })
}

/// Returns the invocation id as a key. The prefix keeps ids of the host and keys of clients apart.
fn invocation_key(headers: &HeaderMap) -> Option<String> {
    let id = headers.get(INVOCATION_HEADER)?.to_str().ok()?.trim();
    is_client_key(id).then(|| format!("invocation:{id}"))
}

/// Parses the header as in draft-ietf-httpapi-idempotency-key (a quoted string), or unquoted as
/// most clients send it.
pub(super) fn parse_key(headers: &HeaderMap) -> Result<Option<String>, Problem> {
    let mut values = headers.get_all(KEY_HEADER).iter();
    let Some(value) = values.next() else { return Ok(None) };
    let invalid = || {
        Problem::bad_request(
            "`Idempotency-Key` must be 1 to 255 visible ASCII characters, quoted or bare. Send it once.",
        )
    };
    if values.next().is_some() {
        return Err(invalid());
    }
    let text = value.to_str().map_err(|_| invalid())?.trim();
    let key = match text.strip_prefix('"') {
        Some(rest) => unquote(rest.strip_suffix('"').ok_or_else(invalid)?).ok_or_else(invalid)?,
        None => text.to_owned(),
    };
    if is_client_key(&key) { Ok(Some(format!("{CLIENT_KEY_PREFIX}{key}"))) } else { Err(invalid()) }
}

/// Decodes an RFC 8941 string, which escapes only quotes and backslashes.
fn unquote(text: &str) -> Option<String> {
    let mut plain = String::with_capacity(text.len());
    let mut letters = text.chars();
    while let Some(letter) = letters.next() {
        match letter {
            '\\' => plain.push(letters.next().filter(|next| matches!(next, '"' | '\\'))?),
            '"' => return None,
            letter => plain.push(letter),
        }
    }
    Some(plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(value: &str) -> Result<Option<String>, Problem> {
        let mut headers = HeaderMap::new();
        headers.insert(KEY_HEADER, value.parse().unwrap());
        parse_key(&headers)
    }

    #[test]
    fn quoted_and_bare_idempotency_keys_are_equal() {
        for (given, expected) in [
            ("abc", "key:abc"),
            (r#""abc""#, "key:abc"),
            (r#""a\"b""#, r#"key:a"b"#),
            (" x ", "key:x"),
        ] {
            assert_eq!(read(given).unwrap().as_deref(), Some(expected));
        }
        assert_eq!(parse_key(&HeaderMap::new()).unwrap(), None);
    }

    #[test]
    fn invalid_idempotency_key_is_rejected() {
        for bad in ["", "\"\"", "a b", "\"abc", r#""a"b""#, r#""a\nb""#, &"x".repeat(256)] {
            assert!(read(bad).is_err(), "{bad:?}");
        }
        let mut twice = HeaderMap::new();
        twice.append(KEY_HEADER, "a".parse().unwrap());
        twice.append(KEY_HEADER, "b".parse().unwrap());
        assert!(parse_key(&twice).is_err());
    }

    #[test]
    fn client_key_differs_from_invocation_id() {
        let mut headers = HeaderMap::new();
        headers.insert(INVOCATION_HEADER, "abc".parse().unwrap());
        assert_ne!(invocation_key(&headers), read("abc").unwrap());
    }
}
