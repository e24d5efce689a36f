//! Fuzz tests of untrusted input: bodies, headers, query parameters and approval links.

use std::fmt::Debug;

use http::{HeaderMap, HeaderName, HeaderValue, Uri};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::approval_token::SigningKeys;
use super::body::{JsonBody, parse_json};
use super::lists::QueryParams;
use super::precondition::{RequestedRange, is_match_allowed, requested_range};
use super::problem::Problem;
use super::{auth, events, idempotency};
use crate::auth::Access;
use turnwheel_commands::abort::AbortRequest;
use turnwheel_commands::compact::CompactRequest;
use turnwheel_commands::conversation::NewConversation;
use turnwheel_commands::decide::DecisionRequest;
use turnwheel_commands::fork::ForkRequest;
use turnwheel_commands::inbox_edit::InputChange;
use turnwheel_commands::label::LabelRequest;
use turnwheel_commands::leaf::LeafRequest;
use turnwheel_commands::message::MessageRequest;
use turnwheel_commands::prompt::{FirstPromptRequest, PromptRequest};
use turnwheel_commands::schedules::create::NewSchedule;
use turnwheel_platform::ids::is_plain_text;
use turnwheel_platform::settings::links::Auth;
use turnwheel_test_support::fuzz::check;

/// Maximum size of a problem: error responses must not echo the whole input.
const PROBLEM_BYTES_MAX: usize = 16 * 1024;

fn assert_problem_is_bounded(problem: &Problem) {
    let size = format!("{problem:?}").len();
    assert!(size <= PROBLEM_BYTES_MAX, "the problem has {size} bytes");
}

fn parse_body<T: DeserializeOwned + Debug>(input: &[u8]) {
    match parse_json::<T>(input) {
        Ok(JsonBody { hash, .. }) => assert_eq!(hash.len(), 64),
        Err(problem) => assert_problem_is_bounded(&problem),
    }
}

fn fuzz_body(input: &[u8]) {
    parse_body::<PromptRequest>(input);
    parse_body::<FirstPromptRequest>(input);
    parse_body::<NewConversation>(input);
    parse_body::<MessageRequest>(input);
    parse_body::<InputChange>(input);
    parse_body::<AbortRequest>(input);
    parse_body::<CompactRequest>(input);
    parse_body::<ForkRequest>(input);
    parse_body::<LabelRequest>(input);
    parse_body::<LeafRequest>(input);
    parse_body::<NewSchedule>(input);
    parse_body::<DecisionRequest>(input);
    parse_body::<Map<String, Value>>(input);
}

fn all_headers(value: &[u8]) -> Option<HeaderMap> {
    let names = [
        "idempotency-key",
        "last-event-id",
        "range",
        "if-range",
        "if-match",
        "accept",
        "turnwheel-user",
        "turnwheel-tenant",
        "turnwheel-roles",
        "x-ms-client-principal",
    ];
    let value = HeaderValue::from_bytes(value).ok()?;
    Some(names.into_iter().map(|name| (HeaderName::from_static(name), value.clone())).collect())
}

fn fuzz_headers(input: &[u8]) {
    let Some(headers) = all_headers(input) else { return };
    match idempotency::parse_key(&headers) {
        Ok(key) => assert!(key.is_some_and(|key| key.starts_with("key:") && key.len() <= 259)),
        Err(problem) => assert_problem_is_bounded(&problem),
    }
    events::last_event_id(&headers);
    is_match_allowed(&headers, "\"e\"");
    for size in [0, 1, 10] {
        if let RequestedRange::Part(part) = requested_range(&headers, "\"e\"", size) {
            assert!(part.start < part.end && part.end <= size, "{part:?} of {size}");
        }
    }
    for auth in [Auth::Header, Auth::SignIn] {
        let access = Access { auth, is_sign_in_on: true, ..Access::dev() };
        match auth::authenticate(&access, &headers) {
            Ok(caller) => {
                let owner = caller.owner;
                assert!(is_plain_text(owner.tenant.as_str()) && is_plain_text(owner.user.as_str()));
            }
            Err(problem) => assert_problem_is_bounded(&problem),
        }
    }
}

fn fuzz_query(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    let Ok(uri) = format!("/api/conversations?{text}").parse::<Uri>() else { return };
    let params = QueryParams::from_uri(&uri);
    for result in [
        params.limit().map(|limit| assert!((1..=100).contains(&limit))),
        params.number("after", 0, u64::MAX).map(drop),
        params.flag("follow").map(drop),
        params.position("a list").map(drop),
    ] {
        if let Err(problem) = result {
            assert_problem_is_bounded(&problem);
        }
    }
}

/// Only tokens that one of the keys signed are accepted, byte for byte.
fn fuzz_approval_link(input: &[u8]) {
    let keys = SigningKeys::new(vec![vec![b'n'; 32], vec![b'o'; 32]]).unwrap();
    let old = SigningKeys::new(vec![vec![b'o'; 32]]).unwrap();
    let Ok(token) = std::str::from_utf8(input) else { return };
    if let Some(claims) = keys.verify(token.trim_end()) {
        let signed = [keys.sign(&claims), old.sign(&claims)];
        assert!(signed.iter().flatten().any(|signed| signed == token.trim_end()), "{token}");
    }
}

#[test]
fn body_parser_handles_untrusted_input() {
    check("http_body", fuzz_body);
}

#[test]
fn header_parsers_handle_untrusted_input() {
    check("http_header", fuzz_headers);
}

#[test]
fn query_parser_handles_untrusted_input() {
    check("http_query", fuzz_query);
}

#[test]
fn approval_token_accepts_only_signed_input() {
    check("approval_link", fuzz_approval_link);
}
