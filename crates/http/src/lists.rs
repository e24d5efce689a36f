//! Paginated lists: query parameters, continuations bound to their query, and links to the next
//! page.

use axum::response::Response;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use http::header::LINK;
use http::{HeaderValue, StatusCode, Uri};
use serde::Serialize;
use subtle::ConstantTimeEq as _;

use crate::json;
use crate::problem::Problem;
use turnwheel_json::raw::raw_object;
use turnwheel_platform::clock::{Timestamp, parse_iso};
use turnwheel_platform::digest::sha256_hex;
use turnwheel_record::contract::FieldError;

const LIMIT_DEFAULT: usize = 20;
const LIMIT_MAX: usize = 100;
const CHECKSUM_LENGTH: usize = 16;

/// Query parameters. Parameters that no handler reads are ignored here, such as the host's `code`.
#[derive(Debug)]
pub(crate) struct QueryParams(Vec<(String, String)>);

impl QueryParams {
    pub(crate) fn from_uri(uri: &Uri) -> Self {
        let query = uri.query().unwrap_or_default();
        Self(url::form_urlencoded::parse(query.as_bytes()).into_owned().collect())
    }

    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(given, _)| given == name).map(|(_, value)| value.as_str())
    }

    /// Returns a whole number from `min` to `max`.
    pub(crate) fn number(&self, name: &str, min: u64, max: u64) -> Result<Option<u64>, Problem> {
        let Some(text) = self.get(name) else { return Ok(None) };
        match text.parse::<u64>() {
            Ok(number) if (min..=max).contains(&number) => Ok(Some(number)),
            Ok(_) | Err(_) if max == u64::MAX => Err(parameter_error(
                name,
                &format!("`{name}` must be a whole number, {min} or more."),
            )),
            Ok(_) | Err(_) => Err(parameter_error(
                name,
                &format!("`{name}` must be a whole number from {min} to {max}."),
            )),
        }
    }

    pub(crate) fn flag(&self, name: &str) -> Result<Option<bool>, Problem> {
        match self.get(name) {
            None => Ok(None),
            Some("true" | "1") => Ok(Some(true)),
            Some("false" | "0") => Ok(Some(false)),
            Some(_) => Err(parameter_error(name, &format!("`{name}` must be `true` or `false`."))),
        }
    }

    /// Returns one of these values.
    pub(crate) fn choice(&self, name: &str, values: &[&str]) -> Result<Option<&str>, Problem> {
        match self.get(name) {
            Some(value) if !values.contains(&value) => {
                let values: Vec<String> = values.iter().map(|value| format!("`{value}`")).collect();
                let detail = format!("`{name}` must be one of {}.", values.join(", "));
                Err(parameter_error(name, &detail))
            }
            value => Ok(value),
        }
    }

    pub(crate) fn time(&self, name: &str) -> Result<Option<Timestamp>, Problem> {
        let Some(text) = self.get(name) else { return Ok(None) };
        let detail = format!("`{name}` must be a time, such as 2026-11-23T12:36:51Z.");
        parse_iso(text).map(Some).ok_or_else(|| parameter_error(name, &detail))
    }

    pub(crate) fn limit(&self) -> Result<usize, Problem> {
        self.limit_up_to(LIMIT_MAX)
    }

    pub(crate) fn limit_up_to(&self, max: usize) -> Result<usize, Problem> {
        let limit = self.number("limit", 1, max as u64)?;
        Ok(limit.and_then(|limit| usize::try_from(limit).ok()).unwrap_or(LIMIT_DEFAULT))
    }

    /// Returns the position at which the previous page of the same query ended.
    pub(crate) fn continuation(&self, query: &str) -> Result<Option<String>, Problem> {
        let Some(text) = self.get("continuation") else { return Ok(None) };
        decode_continuation(text, query).map(Some).ok_or_else(|| {
            parameter_error(
                "continuation",
                "This continuation belongs to another list. Omit it to get the first page.",
            )
        })
    }

    /// Like [`QueryParams::continuation`], as an index into a list in memory.
    pub(crate) fn position(&self, query: &str) -> Result<usize, Problem> {
        let text = self.continuation(query)?;
        Ok(text.and_then(|text| text.parse().ok()).unwrap_or(0))
    }
}

fn parameter_error(name: &str, detail: &str) -> Problem {
    Problem::bad_request(detail).with_errors(vec![FieldError::new(format!("?{name}"), detail)])
}

/// Encodes a continuation. Its checksum binds it to the query and is no secret: a forged one only
/// moves within the caller's own list.
pub(crate) fn encode_continuation(position: &str, query: &str) -> String {
    URL_SAFE_NO_PAD.encode(format!("{}{position}", checksum(position, query)))
}

fn decode_continuation(text: &str, query: &str) -> Option<String> {
    let plain = String::from_utf8(URL_SAFE_NO_PAD.decode(text).ok()?).ok()?;
    let (given, position) = plain.split_at_checked(CHECKSUM_LENGTH)?;
    let expected = checksum(position, query);
    bool::from(given.as_bytes().ct_eq(expected.as_bytes())).then(|| position.to_owned())
}

fn checksum(position: &str, query: &str) -> String {
    let mut check = sha256_hex(format!("continuation\n{query}\n{position}").as_bytes());
    check.truncate(CHECKSUM_LENGTH);
    check
}

/// Responds with `{items, continuation?}` and, if there are more items, a `Link`.
pub(crate) fn page_response<T: Serialize>(
    items: &[T],
    next: Option<&str>,
    uri: &Uri,
    query: &str,
) -> Response {
    let Some(position) = next else { return json(StatusCode::OK, &raw_object!({"items": items})) };
    let continuation = encode_continuation(position, query);
    let link = next_link(uri, &continuation);
    let mut response =
        json(StatusCode::OK, &raw_object!({"items": items, "continuation": continuation}));
    if let Ok(value) = HeaderValue::from_str(&link) {
        response.headers_mut().insert(LINK, value);
    }
    response
}

/// Returns the `Link` to the next page: the same query with the new continuation, without the
/// function key (`code`).
fn next_link(uri: &Uri, continuation: &str) -> String {
    let mut query = url::form_urlencoded::Serializer::new(String::new());
    for (name, value) in url::form_urlencoded::parse(uri.query().unwrap_or_default().as_bytes()) {
        if name != "continuation" && name != "code" {
            query.append_pair(&name, &value);
        }
    }
    query.append_pair("continuation", continuation);
    format!("<{}?{}>; rel=\"next\"", uri.path(), query.finish())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn continuation_is_valid_only_for_its_list() {
        let sealed = encode_continuation("42|x", "conversations of ann");
        assert_eq!(decode_continuation(&sealed, "conversations of ann").as_deref(), Some("42|x"));
        assert_eq!(decode_continuation(&sealed, "conversations of bob"), None);
        for forged in ["", "abc", "!!", &URL_SAFE_NO_PAD.encode("0123456789abcdef42")] {
            assert_eq!(decode_continuation(forged, "conversations of ann"), None, "{forged}");
        }
    }

    #[test]
    fn limit_must_be_one_to_a_hundred() {
        let limit =
            |query: &str| QueryParams::from_uri(&format!("/x?{query}").parse().unwrap()).limit();
        assert_eq!(
            (limit("").unwrap(), limit("limit=1").unwrap(), limit("limit=100").unwrap()),
            (20, 1, 100)
        );
        for bad in ["limit=0", "limit=101", "limit=x", "limit=-1", "limit="] {
            assert!(limit(bad).unwrap_err().detail.contains("1 to 100"), "{bad}");
        }
    }

    #[test]
    fn next_link_keeps_query_without_function_key() {
        let uri: Uri = "/api/conversations?limit=2&code=secret&continuation=old".parse().unwrap();
        assert_eq!(
            next_link(&uri, "new"),
            "</api/conversations?limit=2&continuation=new>; rel=\"next\""
        );
    }
}
