//! Fuzz tests of untrusted input: bodies, headers, query parameters and approval links.

use std::fmt::Debug;

use http::{HeaderMap, HeaderName, HeaderValue, Uri};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::api::Access;
use super::body::{Json, parse};
use super::lists::Params;
use super::precondition::{Wanted, is_wanted, wanted};
use super::problem::Problem;
use super::token::SigningKeys;
use super::{events, idempotency, owner};
use crate::fuzz::check;
use crate::ids::is_plain;
use crate::settings::links::Auth;
use crate::turn::admission::compact::CompactRequest;
use crate::turn::admission::conversation::NewConversation;
use crate::turn::admission::decide::Said;
use crate::turn::admission::message::MessageRequest;
use crate::turn::admission::prompt::{FirstPromptRequest, PromptRequest};
use crate::turn::admission::stop::AbortRequest;
use crate::turn::admission::waiting::InputChange;
use crate::turn::schedules::create::NewSchedule;

/// Maximum size of a problem: error responses must not echo the whole input.
const PROBLEM_BYTES_MAX: usize = 16 * 1024;

fn refused(problem: &Problem) {
    let size = format!("{problem:?}").len();
    assert!(size <= PROBLEM_BYTES_MAX, "the problem has {size} bytes");
}

fn read<T: DeserializeOwned + Debug>(input: &[u8]) {
    match parse::<T>(input) {
        Ok(Json { hash, .. }) => assert_eq!(hash.len(), 64),
        Err(problem) => refused(&problem),
    }
}

fn http_body(input: &[u8]) {
    read::<PromptRequest>(input);
    read::<FirstPromptRequest>(input);
    read::<NewConversation>(input);
    read::<MessageRequest>(input);
    read::<InputChange>(input);
    read::<AbortRequest>(input);
    read::<CompactRequest>(input);
    read::<NewSchedule>(input);
    read::<Said>(input);
    read::<Map<String, Value>>(input);
}

fn headers(value: &[u8]) -> Option<HeaderMap> {
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

fn http_header(input: &[u8]) {
    let Some(headers) = headers(input) else { return };
    match idempotency::key(&headers) {
        Ok(key) => assert!(key.is_some_and(|key| key.starts_with("key:") && key.len() <= 259)),
        Err(problem) => refused(&problem),
    }
    events::last_event_id(&headers);
    is_wanted(&headers, "\"e\"");
    for size in [0, 1, 10] {
        if let Wanted::Part(part) = wanted(&headers, "\"e\"", size) {
            assert!(part.start < part.end && part.end <= size, "{part:?} of {size}");
        }
    }
    for auth in [Auth::Header, Auth::SignIn] {
        let access = Access { auth, is_sign_in_on: true, ..Access::dev() };
        match owner::caller(&access, &headers) {
            Ok(caller) => {
                let owner = caller.owner;
                assert!(is_plain(owner.tenant.as_str()) && is_plain(owner.user.as_str()));
            }
            Err(problem) => refused(&problem),
        }
    }
}

fn http_query(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    let Ok(uri) = format!("/api/conversations?{text}").parse::<Uri>() else { return };
    let params = Params::of(&uri);
    for refusal in [
        params.limit().map(|limit| assert!((1..=100).contains(&limit))),
        params.number("after", 0, u64::MAX).map(drop),
        params.flag("follow").map(drop),
        params.position("a list").map(drop),
    ] {
        if let Err(problem) = refusal {
            refused(&problem);
        }
    }
}

/// Only tokens that one of the keys signed are accepted, byte for byte.
fn approval_link(input: &[u8]) {
    let keys = SigningKeys::new(vec![vec![b'n'; 32], vec![b'o'; 32]]).unwrap();
    let old = SigningKeys::new(vec![vec![b'o'; 32]]).unwrap();
    let Ok(token) = std::str::from_utf8(input) else { return };
    if let Some(claims) = keys.verify(token.trim_end()) {
        let signed = [keys.sign(&claims), old.sign(&claims)];
        assert!(signed.iter().flatten().any(|signed| signed == token.trim_end()), "{token}");
    }
}

#[test]
fn a_body() {
    check("http_body", http_body);
}

#[test]
fn a_header() {
    check("http_header", http_header);
}

#[test]
fn a_query() {
    check("http_query", http_query);
}

#[test]
fn a_link() {
    check("approval_link", approval_link);
}
