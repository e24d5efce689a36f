//! Bodies: read within bounds, of the right type, and with the place of every mistake.

use axum::body::Body;
use axum::extract::{FromRequest, Request};
use bytes::Bytes;
use http::HeaderMap;
use http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::agent::text::repair_surrogates;
use crate::http::problem::{self, Problem};
use crate::turn::admission::Fault;
use crate::turn::admission::idempotency::canonical_hash;
use crate::turn::views::pointer_of;

/// Bytes of one request.
pub(crate) const BODY_BYTES_MAX: usize = 10 * 1024 * 1024;

/// A JSON body and what it is compared by.
#[derive(Debug)]
pub(crate) struct Json<T> {
    pub(crate) value: T,
    /// SHA-256 of the canonical form.
    pub(crate) hash: String,
}

impl<T: DeserializeOwned, S: Send + Sync> FromRequest<S> for Json<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, _: &S) -> Result<Self, Problem> {
        let (parts, body) = request.into_parts();
        let bytes = read(&parts.headers, body).await?;
        if !bytes.is_empty() {
            check_type(&parts.headers)?;
        }
        parse(&bytes)
    }
}

/// The whole body.
pub(crate) async fn read(headers: &HeaderMap, body: Body) -> Result<Bytes, Problem> {
    let announced = headers
        .get(CONTENT_LENGTH)
        .and_then(|value| value.to_str().ok())
        .and_then(|text| text.parse::<usize>().ok());
    if announced.is_some_and(|length| length > BODY_BYTES_MAX) {
        return Err(too_large());
    }
    match Limited::new(body, BODY_BYTES_MAX).collect().await {
        Ok(collected) => Ok(collected.to_bytes()),
        Err(error) if error.downcast_ref::<LengthLimitError>().is_some() => Err(too_large()),
        Err(_) => Err(Problem::bad_request("the body ended before it was complete")),
    }
}

fn too_large() -> Problem {
    Problem::new(
        problem::PAYLOAD_TOO_LARGE,
        "a body may be 10 MB long: add large content in parts, as artifacts",
    )
}

fn check_type(headers: &HeaderMap) -> Result<(), Problem> {
    let given = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let essence = given.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    let is_json = essence == "application/json"
        || (essence.starts_with("application/") && essence.ends_with("+json"));
    if is_json {
        return Ok(());
    }
    Err(Problem::new(problem::UNSUPPORTED_MEDIA_TYPE, "send the body as application/json"))
}

/// No body is an empty object.
pub(crate) fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<Json<T>, Problem> {
    let bytes = if bytes.is_empty() { b"{}".as_slice() } else { bytes };
    // A client that cuts a text in the middle of a character sends half of it as an escape.
    let repaired = std::str::from_utf8(bytes).map(repair_surrogates);
    let bytes = repaired.as_ref().map_or(bytes, |text| text.as_bytes());
    let tree: Value = serde_json::from_slice(bytes)
        .map_err(|error| Problem::bad_request(format!("the body is not JSON: {error}")))?;
    if !tree.is_object() {
        return Err(Problem::bad_request("the body is not a JSON object")
            .with_faults(vec![Fault::at("", "this is not an object")]));
    }
    let mut deserializer = serde_json::Deserializer::from_slice(bytes);
    let value = serde_path_to_error::deserialize(&mut deserializer).map_err(|error| {
        let fault = fault_of(&error);
        Problem::bad_request(fault.detail.clone()).with_faults(vec![fault])
    })?;
    Ok(Json { value, hash: canonical_hash(&tree) })
}

/// Bytes of a pointer or a sentence: names and texts in them are the sender's, and as long as it likes.
const FAULT_BYTES_MAX: usize = 400;

fn shortened(mut text: String) -> String {
    if text.len() > FAULT_BYTES_MAX {
        text.truncate(text.floor_char_boundary(FAULT_BYTES_MAX));
        text.push('…');
    }
    text
}

/// Where and what; positions in the text are left out, the pointer says more.
fn fault_of(error: &serde_path_to_error::Error<serde_json::Error>) -> Fault {
    let text = error.inner().to_string();
    let detail = match text.rsplit_once(" at line ") {
        Some((before, _)) => before.to_owned(),
        None => text,
    };
    let mut pointer = pointer_of(error.path());
    let named = detail
        .strip_prefix("unknown field `")
        .or_else(|| detail.strip_prefix("missing field `"))
        .and_then(|rest| rest.split('`').next());
    if let Some(name) = named {
        let step = format!("/{}", crate::turn::views::pointer_token(name));
        if !pointer.ends_with(&step) {
            pointer.push_str(&step);
        }
    }
    Fault::at(shortened(pointer), shortened(detail))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::turn::admission::conversation::NewConversation;

    fn fault(text: &str) -> String {
        let problem = parse::<NewConversation>(text.as_bytes()).unwrap_err();
        format!("{problem:?}")
            .split("faults: ")
            .nth(1)
            .unwrap()
            .split(']')
            .next()
            .unwrap()
            .to_owned()
    }

    #[test]
    fn an_unknown_field_is_named_and_pointed_at() {
        let told = fault(r#"{"agnet":"x"}"#);
        assert!(
            told.contains(r#"pointer: "/agnet""#) && told.contains("unknown field `agnet`"),
            "{told}"
        );
        let told = fault(r#"{"settings":{"retry":{"maxRetry":1}}}"#);
        assert!(told.contains(r#"pointer: "/settings/retry/maxRetry""#), "{told}");
    }

    #[test]
    fn a_wrong_type_is_pointed_at_without_a_position() {
        let told = fault(r#"{"metadata":{"a/b":1}}"#);
        assert!(
            told.contains(r#"pointer: "/metadata/a~1b""#) && !told.contains("at line"),
            "{told}"
        );
    }

    #[test]
    fn half_a_character_is_left_out_of_what_came() {
        let read = parse::<Value>(br#"{"input":"cut \ud83d", "a":"\ud83d\ude00"}"#).unwrap();
        assert_eq!(read.value, serde_json::json!({"input": "cut ", "a": "\u{1f600}"}));
    }

    #[test]
    fn no_body_is_an_empty_object() {
        assert!(parse::<NewConversation>(b"").is_ok());
        assert!(parse::<NewConversation>(b"[]").is_err());
        assert!(parse::<NewConversation>(b"{").is_err());
    }
}
