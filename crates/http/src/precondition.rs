//! Conditional requests: `If-Match` of changes, `If-None-Match` of reads, `Range` and `If-Range` of
//! downloads.

use std::ops::Range;

use axum::body::Body;
use axum::response::Response;
use http::header::{ETAG, IF_MATCH, IF_NONE_MATCH, IF_RANGE, RANGE};
use http::{HeaderMap, HeaderValue, StatusCode};

use turnwheel_platform::digest::sha256_hex;

/// True if `If-Match` allows a change of this version. Without the header every change is allowed.
pub(crate) fn is_match_allowed(headers: &HeaderMap, etag: &str) -> bool {
    let mut values = headers.get_all(IF_MATCH).iter().peekable();
    if values.peek().is_none() {
        return true;
    }
    values
        .filter_map(|value| value.to_str().ok())
        .any(|text| text.split(',').map(str::trim).any(|tag| tag == "*" || tag == etag))
}

/// True if the client has this version. The comparison is weak (RFC 9110 §13.1.2).
pub(crate) fn is_unchanged(headers: &HeaderMap, etag: &str) -> bool {
    headers
        .get_all(IF_NONE_MATCH)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|text| text.split(',').map(str::trim))
        .any(|tag| tag == "*" || tag.strip_prefix("W/").unwrap_or(tag) == etag)
}

pub(crate) fn not_modified(etag: &str) -> Response {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::NOT_MODIFIED;
    if let Ok(etag) = HeaderValue::from_str(etag) {
        response.headers_mut().insert(ETAG, etag);
    }
    response
}

/// Adds an `ETag` made of the content, or returns 304 if the client has that content.
pub(crate) fn with_content_etag(
    headers: &HeaderMap,
    content: &str,
    mut response: Response,
) -> Response {
    let etag = format!("\"{}\"", sha256_hex(content.as_bytes()));
    if is_unchanged(headers, &etag) {
        return not_modified(&etag);
    }
    if let Ok(etag) = HeaderValue::from_str(&etag) {
        response.headers_mut().insert(ETAG, etag);
    }
    response
}

/// Bytes that a download requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum RequestedRange {
    Whole,
    Part(Range<u64>),
    /// A range outside of the content.
    Unsatisfiable,
}

/// Returns the requested bytes by RFC 9110 §14. Several ranges, other units and malformed ranges
/// are ignored.
pub(crate) fn requested_range(headers: &HeaderMap, etag: &str, size: u64) -> RequestedRange {
    let text = |name| headers.get(name).and_then(|value: &HeaderValue| value.to_str().ok());
    let Some(range) = text(RANGE) else { return RequestedRange::Whole };
    if text(IF_RANGE).is_some_and(|tag| tag.trim() != etag) {
        return RequestedRange::Whole;
    }
    let Some((first, last)) =
        range.trim().strip_prefix("bytes=").and_then(|range| range.split_once('-'))
    else {
        return RequestedRange::Whole;
    };
    let number = |text: &str| text.trim().parse::<u64>().ok();
    match (first.trim(), last.trim()) {
        ("", last) => match number(last) {
            Some(0) => RequestedRange::Unsatisfiable,
            Some(length) if size > 0 => RequestedRange::Part(size.saturating_sub(length)..size),
            Some(_) => RequestedRange::Unsatisfiable,
            None => RequestedRange::Whole,
        },
        (first, "") => match number(first) {
            Some(first) if first < size => RequestedRange::Part(first..size),
            Some(_) => RequestedRange::Unsatisfiable,
            None => RequestedRange::Whole,
        },
        (first, last) => match (number(first), number(last)) {
            (Some(first), Some(last)) if first > last => RequestedRange::Whole,
            (Some(first), Some(last)) if first < size => {
                RequestedRange::Part(first..size.min(last.saturating_add(1)))
            }
            (Some(_), Some(_)) => RequestedRange::Unsatisfiable,
            _ => RequestedRange::Whole,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(list: &[(http::HeaderName, &str)]) -> HeaderMap {
        list.iter().map(|(name, value)| (name.clone(), value.parse().unwrap())).collect()
    }

    #[test]
    fn if_match_allows_only_listed_versions() {
        for (given, is_allowed) in [
            ("\"a-2\"", true),
            ("*", true),
            ("\"x\", \"a-2\"", true),
            ("\"a-1\"", false),
            ("W/\"a-2\"", false),
            ("", false),
        ] {
            assert_eq!(
                is_match_allowed(&headers(&[(IF_MATCH, given)]), "\"a-2\""),
                is_allowed,
                "{given}"
            );
        }
        assert!(is_match_allowed(&HeaderMap::new(), "\"a-2\""));
    }

    #[test]
    fn if_none_match_detects_known_versions() {
        for (given, is_known) in [
            ("\"a-2\"", true),
            ("W/\"a-2\"", true),
            ("*", true),
            ("\"x\", \"a-2\"", true),
            ("\"a-1\"", false),
        ] {
            assert_eq!(is_unchanged(&headers(&[(IF_NONE_MATCH, given)]), "\"a-2\""), is_known);
        }
        assert!(!is_unchanged(&HeaderMap::new(), "\"a-2\""));
    }

    #[test]
    fn single_byte_range_is_served() {
        for (given, expected) in [
            ("bytes=0-4", RequestedRange::Part(0..5)),
            ("bytes=5-", RequestedRange::Part(5..10)),
            ("bytes=-3", RequestedRange::Part(7..10)),
            ("bytes=-30", RequestedRange::Part(0..10)),
            ("bytes=8-99", RequestedRange::Part(8..10)),
            ("bytes=10-", RequestedRange::Unsatisfiable),
            ("bytes=10-12", RequestedRange::Unsatisfiable),
            ("bytes=-0", RequestedRange::Unsatisfiable),
            ("bytes=5-2", RequestedRange::Whole),
            ("bytes=0-1,3-4", RequestedRange::Whole),
            ("lines=1-2", RequestedRange::Whole),
            ("bytes=x-", RequestedRange::Whole),
        ] {
            assert_eq!(
                requested_range(&headers(&[(RANGE, given)]), "\"e\"", 10),
                expected,
                "{given}"
            );
        }
        assert_eq!(
            requested_range(&headers(&[(RANGE, "bytes=-5")]), "\"e\"", 0),
            RequestedRange::Unsatisfiable
        );
        assert_eq!(
            requested_range(&headers(&[(RANGE, "bytes=0-1"), (IF_RANGE, "\"old\"")]), "\"e\"", 10),
            RequestedRange::Whole
        );
        assert_eq!(
            requested_range(&headers(&[(RANGE, "bytes=0-1"), (IF_RANGE, "\"e\"")]), "\"e\"", 10),
            RequestedRange::Part(0..2)
        );
    }
}
