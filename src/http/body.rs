//! Request bodies: read within limits, checked for their type, parsed with the place of every
//! error.

use axum::body::Body;
use axum::extract::{FromRequest, Request};
use bytes::{Bytes, BytesMut};
use http::HeaderMap;
use http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use http_body_util::BodyExt as _;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::sync::Semaphore;

use crate::agent::strict;
use crate::agent::text::repair_surrogates;
use crate::http::Shared;
use crate::http::problem::{self, Problem};
use crate::server::is_too_slow;
use crate::turn::admission::Fault;
use crate::turn::admission::idempotency::canonical_hash;

/// Maximum bytes of a request body.
pub(crate) const BODY_BYTES_MAX: usize = 10 * 1024 * 1024;
/// Maximum bytes of an oversized body that are read and discarded.
const DRAINED_BYTES_MAX: usize = 64 * 1024 * 1024;
/// Maximum kibibytes of all request bodies received concurrently, without the first [`PORTION_KIB`]
/// of each. Bounds the memory that many large, slow bodies can use.
pub(crate) const BODIES_KIB_MAX: usize = 128 * 1024;
/// Kibibytes that every body may use, and the step in which larger bodies reserve more.
const PORTION_KIB: u32 = 256;
const BUSY_SECONDS: u64 = 5;

/// A JSON body and the hash that identifies it for idempotency.
#[derive(Debug)]
pub(crate) struct Json<T> {
    pub(crate) value: T,
    /// SHA-256 of the canonical form.
    pub(crate) hash: String,
}

impl<T: DeserializeOwned> FromRequest<Shared> for Json<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, api: &Shared) -> Result<Self, Problem> {
        let (parts, body) = request.into_parts();
        let bytes = read(&api.bodies, &parts.headers, body).await?;
        if !bytes.is_empty() {
            check_type(&parts.headers)?;
        }
        parse(&bytes)
    }
}

/// Reads the whole body. `body_kib` has the free kibibytes for large bodies.
pub(crate) async fn read(
    bodies: &Semaphore,
    headers: &HeaderMap,
    mut body: Body,
) -> Result<Bytes, Problem> {
    let announced = headers
        .get(CONTENT_LENGTH)
        .and_then(|value| value.to_str().ok())
        .and_then(|text| text.parse::<usize>().ok());
    if announced.is_some_and(|length| length > BODY_BYTES_MAX) {
        drain(&mut body).await;
        return Err(too_large());
    }
    // Most bodies arrive in one chunk, which is not copied.
    let (mut first, mut whole) = (Bytes::new(), BytesMut::new());
    // Released when the body has been read.
    let mut portions = Vec::new();
    let mut room = PORTION_KIB as usize * 1024;
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame.map_err(|error| broken_off(&error))?.into_data() else { continue };
        let length = first.len() + whole.len() + data.len();
        if length > BODY_BYTES_MAX {
            drain(&mut body).await;
            return Err(too_large());
        }
        while length > room {
            let portion = bodies.try_acquire_many(PORTION_KIB).map_err(|_| too_many())?;
            portions.push(portion);
            room += PORTION_KIB as usize * 1024;
        }
        if first.is_empty() && whole.is_empty() {
            first = data;
            continue;
        }
        if whole.is_empty() {
            whole = BytesMut::from(std::mem::take(&mut first));
        }
        whole.extend_from_slice(&data);
    }
    Ok(if whole.is_empty() { first } else { whole.freeze() })
}

/// Discards the rest: most clients read a response only after they have sent the whole body. Stops
/// after [`DRAINED_BYTES_MAX`].
async fn drain(body: &mut Body) {
    let mut drained = 0;
    while let Some(Ok(frame)) = body.frame().await {
        drained += frame.data_ref().map_or(0, Bytes::len);
        if drained > DRAINED_BYTES_MAX {
            return;
        }
    }
}

fn broken_off(error: &axum::Error) -> Problem {
    if is_too_slow(error) {
        return Problem::new(
            problem::TOO_SLOW,
            "The request body arrived too slowly. Send it again at about 1 KB/s or faster.",
        );
    }
    Problem::bad_request("The request body ended before it was complete. Send it again.")
}

fn too_many() -> Problem {
    let detail = "This instance is receiving too many large request bodies. Send the request again after `Retry-After` seconds.";
    Problem::new(problem::UNAVAILABLE, detail).retry_after(BUSY_SECONDS)
}

fn too_large() -> Problem {
    Problem::new(
        problem::PAYLOAD_TOO_LARGE,
        "The body is longer than 10 MB. Add large content as artifacts of at most 10 MB each, and name them in `file` blocks.",
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
    Err(Problem::new(problem::UNSUPPORTED_MEDIA_TYPE, "Send the body as application/json."))
}

/// Parses a JSON body. An absent body is an empty object.
pub(crate) fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<Json<T>, Problem> {
    let bytes = if bytes.is_empty() { b"{}".as_slice() } else { bytes };
    let text = std::str::from_utf8(bytes)
        .map_err(|_| Problem::bad_request("The body is not UTF-8. Send JSON encoded as UTF-8."))?;
    // A client that cuts a text within a character sends half a surrogate pair as an escape.
    let text = repair_surrogates(text);
    let tree: Value = serde_json::from_str(&text).map_err(|error| {
        Problem::bad_request(format!("The body is not valid JSON: {}", strict::plain(&error.to_string())))
    })?;
    if !tree.is_object() {
        return Err(Problem::bad_request("The body is not a JSON object. Send an object.")
            .with_faults(vec![Fault::at("", "this must be an object")]));
    }
    let value = strict::read(&text).map_err(|mistake| {
        let fault = Fault::at(mistake.pointer, mistake.detail);
        Problem::bad_request(fault.detail.clone()).with_faults(vec![fault])
    })?;
    Ok(Json { value, hash: canonical_hash(&tree) })
}

#[cfg(test)]
mod tests {
    use futures_util::{FutureExt as _, StreamExt as _};

    use super::*;
    use crate::turn::admission::conversation::NewConversation;

    fn fault(text: &str) -> String {
        format!("{:?}", parse::<NewConversation>(text.as_bytes()).unwrap_err())
    }

    /// A body that sends `kib` kibibytes and never ends.
    fn endless(kib: usize) -> Body {
        let part = Ok::<_, std::convert::Infallible>(Bytes::from(vec![b'x'; 1024]));
        let parts = futures_util::stream::iter(std::iter::repeat_n(part, kib));
        Body::from_stream(parts.chain(futures_util::stream::pending()))
    }

    #[tokio::test]
    async fn large_bodies_that_come_slowly_share_what_there_is_and_small_ones_need_none() {
        let bodies = Semaphore::new(512);
        let headers = HeaderMap::new();
        let read = |body| Box::pin(read(&bodies, &headers, body));
        let mut large = read(endless(700));
        assert!((&mut large).now_or_never().is_none(), "the body waits for more data");
        assert_eq!(bodies.available_permits(), 0);
        let refused = read(endless(257)).now_or_never().unwrap().unwrap_err();
        assert_eq!(refused.kind, problem::UNAVAILABLE);
        let small = read(Body::from(vec![b'x'; 256 * 1024])).await.unwrap();
        assert_eq!(small.len(), 256 * 1024);
        drop(large);
        assert_eq!(bodies.available_permits(), 512, "a dropped body releases its reservation");
        let parts = [vec![b'a'; 200_000], vec![b'b'; 200_000]];
        let parts = futures_util::stream::iter(parts.map(Ok::<_, std::convert::Infallible>));
        let whole = read(Body::from_stream(parts)).await.unwrap();
        assert_eq!((whole.len(), whole[199_999], whole[200_000]), (400_000, b'a', b'b'));
        assert_eq!(bodies.available_permits(), 512, "a complete body releases its reservation");
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
