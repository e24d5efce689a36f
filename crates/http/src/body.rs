//! Request bodies: read within limits, checked for their type, parsed with the place of every
//! error.

use std::borrow::Cow;

use axum::body::Body;
use axum::extract::{FromRequest, Request};
use bytes::{Bytes, BytesMut};
use http::HeaderMap;
use http::header::{CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE};
use http_body_util::BodyExt as _;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use tokio::sync::{Semaphore, SemaphorePermit};

use crate::SharedApi;
use crate::problem::{self, Problem};
use turnwheel_json::raw::{BODY_DEPTH_MAX, text_depth};
use turnwheel_json::strict;
use turnwheel_json::text::repair_surrogates;
use turnwheel_platform::server::is_client_too_slow;
use turnwheel_platform::text_encoding::decode_utf8;
use turnwheel_record::contract::FieldError;
use turnwheel_record::idempotency::hash_body;

/// Maximum bytes of a request body.
pub(crate) const BODY_BYTES_MAX: usize = 10 * 1024 * 1024;
/// Maximum kibibytes of all request bodies received concurrently, without the first [`PORTION_KIB`]
/// of each. Bounds the memory that many large, slow bodies can use.
pub(crate) const BODIES_KIB_MAX: usize = 128 * 1024;
/// Kibibytes that every body may use, and the step in which larger bodies reserve more.
const PORTION_KIB: u32 = 256;
/// Kibibytes of a session file that is being imported: a line, a batch, and the ids.
const IMPORT_KIB: u32 = 24 * 1024;
const BUSY_RETRY_AFTER_SECONDS: u64 = 5;
/// The first bytes of data that gzip compressed.
const GZIP_MAGIC: [u8; 2] = [0x1f, 0x8b];

/// A JSON body and the hash that identifies it for idempotency.
#[derive(Debug)]
pub(crate) struct JsonBody<T> {
    pub value: T,
    /// SHA-256 of the canonical form.
    pub hash: String,
}

impl<T: DeserializeOwned> FromRequest<SharedApi> for JsonBody<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, api: &SharedApi) -> Result<Self, Problem> {
        parse_json(&read_json(request, api).await?)
    }
}

/// A merge patch of RFC 7396, in which null removes a member.
#[derive(Debug)]
pub(crate) struct MergePatch(pub Map<String, Value>);

impl FromRequest<SharedApi> for JsonBody<MergePatch> {
    type Rejection = Problem;

    async fn from_request(request: Request, api: &SharedApi) -> Result<Self, Problem> {
        let bytes = read_json(request, api).await?;
        let (text, value) = parse_object(&bytes)?;
        let hash = hash_body(&text, value.clone());
        Ok(Self { value: MergePatch(value), hash })
    }
}

/// The body of a request whose type is JSON, or an absent body.
async fn read_json(request: Request, api: &SharedApi) -> Result<Bytes, Problem> {
    let (parts, body) = request.into_parts();
    let bytes = read_body(&api.body_kib, &parts.headers, body).await?;
    if !bytes.is_empty() {
        check_content_type(&parts.headers)?;
    }
    Ok(bytes)
}

/// Reads the whole body. `body_kib` has the free kibibytes for large bodies.
pub(crate) async fn read_body(
    body_kib: &Semaphore,
    headers: &HeaderMap,
    mut body: Body,
) -> Result<Bytes, Problem> {
    check_content_encoding(headers)?;
    let announced = headers
        .get(CONTENT_LENGTH)
        .and_then(|value| value.to_str().ok())
        .and_then(|text| text.parse::<usize>().ok());
    if announced.is_some_and(|length| length > BODY_BYTES_MAX) {
        return Err(too_large());
    }
    // Most bodies arrive in one chunk, which is not copied.
    let (mut first_chunk, mut whole) = (Bytes::new(), BytesMut::new());
    // Released when the body has been read.
    let mut portions = Vec::new();
    let mut granted_bytes = PORTION_KIB as usize * 1024;
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame.map_err(|error| read_error(&error))?.into_data() else { continue };
        let length = first_chunk.len() + whole.len() + data.len();
        if length > BODY_BYTES_MAX {
            return Err(too_large());
        }
        while length > granted_bytes {
            let portion = body_kib.try_acquire_many(PORTION_KIB).map_err(|_| too_many_bodies())?;
            portions.push(portion);
            granted_bytes += PORTION_KIB as usize * 1024;
        }
        if first_chunk.is_empty() && whole.is_empty() {
            first_chunk = data;
            continue;
        }
        if whole.is_empty() {
            whole = BytesMut::from(std::mem::take(&mut first_chunk));
        }
        whole.extend_from_slice(&data);
    }
    Ok(if whole.is_empty() { first_chunk } else { whole.freeze() })
}

/// Reserves the memory of an import, whose body is read line by line.
pub(crate) fn reserve_import(body_kib: &Semaphore) -> Result<SemaphorePermit<'_>, Problem> {
    body_kib.try_acquire_many(IMPORT_KIB).map_err(|_| too_many_bodies())
}

fn read_error(error: &axum::Error) -> Problem {
    if is_client_too_slow(error) {
        return Problem::new(
            problem::REQUEST_TIMEOUT,
            "The request body arrived too slowly. Send it again at about 1 KB/s or faster.",
        );
    }
    Problem::bad_request("The request body ended before it was complete. Send it again.")
}

fn too_many_bodies() -> Problem {
    let detail = "This instance is receiving too many large request bodies. Send the request again after `Retry-After` seconds.";
    Problem::new(problem::UNAVAILABLE, detail).retry_after(BUSY_RETRY_AFTER_SECONDS)
}

fn too_large() -> Problem {
    Problem::new(
        problem::PAYLOAD_TOO_LARGE,
        "The body is longer than 10 MB. Add large content as artifacts of at most 10 MB each, and name them in `file` blocks.",
    )
}

pub(super) fn check_content_type(headers: &HeaderMap) -> Result<(), Problem> {
    let given = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let essence = given.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    let is_json = essence == "application/json"
        || (essence.starts_with("application/") && essence.ends_with("+json"));
    if is_json {
        return Ok(());
    }
    Err(Problem::new(problem::UNSUPPORTED_MEDIA_TYPE, "Send the body as application/json."))
}

/// Refuses a body that its header calls compressed.
pub(super) fn check_content_encoding(headers: &HeaderMap) -> Result<(), Problem> {
    let is_plain = |value: &http::HeaderValue| {
        value.to_str().is_ok_and(|text| {
            text.split(',')
                .map(str::trim)
                .all(|name| name.is_empty() || name.eq_ignore_ascii_case("identity"))
        })
    };
    if headers.get_all(CONTENT_ENCODING).iter().all(is_plain) {
        return Ok(());
    }
    Err(compressed())
}

/// Refuses data that are compressed, whatever the header says.
pub(super) fn check_uncompressed(bytes: &[u8]) -> Result<(), Problem> {
    if bytes.starts_with(&GZIP_MAGIC) { Err(compressed()) } else { Ok(()) }
}

fn compressed() -> Problem {
    Problem::new(
        problem::UNSUPPORTED_MEDIA_TYPE,
        "The body is compressed. Send it uncompressed, without `Content-Encoding`.",
    )
}

/// Returns the text of a body.
pub(crate) fn decode_text(bytes: &[u8]) -> Result<&str, Problem> {
    check_uncompressed(bytes)?;
    decode_utf8(bytes).map_err(|error| Problem::bad_request(format!("The body {error}.")))
}

/// Parses a JSON body. An absent body is an empty object, and a null member counts as absent.
pub(crate) fn parse_json<T: DeserializeOwned>(bytes: &[u8]) -> Result<JsonBody<T>, Problem> {
    let (text, mut members) = parse_object(bytes)?;
    members.retain(|_, value| !value.is_null());
    let value = strict::from_request(&text).map_err(|error| {
        let field_error = FieldError::new(error.pointer, error.detail);
        Problem::bad_request(field_error.detail.clone()).with_errors(vec![field_error])
    })?;
    Ok(JsonBody { value, hash: hash_body(&text, members) })
}

/// The text of a JSON object, and its members.
fn parse_object(bytes: &[u8]) -> Result<(Cow<'_, str>, Map<String, Value>), Problem> {
    let bytes = if bytes.is_empty() { b"{}".as_slice() } else { bytes };
    let text = decode_text(bytes)?;
    // A client that cuts a text within a character sends half a surrogate pair as an escape.
    let text = repair_surrogates(text);
    let tree: Value = serde_json::from_str(&text).map_err(|error| {
        Problem::bad_request(format!(
            "The body is not valid JSON: {}",
            strict::plain_message(&error.to_string())
        ))
    })?;
    if text_depth(&text) > BODY_DEPTH_MAX {
        return Err(Problem::bad_request(format!(
            "The body nests over {BODY_DEPTH_MAX} levels. Send flatter JSON."
        )));
    }
    let Value::Object(members) = tree else {
        return Err(Problem::bad_request("The body is not a JSON object. Send an object.")
            .with_errors(vec![FieldError::new("", "this must be an object")]));
    };
    Ok((text, members))
}

#[cfg(test)]
mod tests {
    use futures_util::{FutureExt as _, StreamExt as _};

    use super::*;
    use turnwheel_commands::conversation::NewConversation;

    fn field_error(text: &str) -> String {
        format!("{:?}", parse_json::<NewConversation>(text.as_bytes()).unwrap_err())
    }

    /// A body that sends `kib` kibibytes and never ends.
    fn endless_body(kib: usize) -> Body {
        let part = Ok::<_, std::convert::Infallible>(Bytes::from(vec![b'x'; 1024]));
        let parts = futures_util::stream::iter(std::iter::repeat_n(part, kib));
        Body::from_stream(parts.chain(futures_util::stream::pending()))
    }

    #[tokio::test]
    async fn large_slow_bodies_share_memory_limit() {
        let body_kib = Semaphore::new(512);
        let headers = HeaderMap::new();
        let read = |body| Box::pin(read_body(&body_kib, &headers, body));
        let mut large = read(endless_body(700));
        assert!((&mut large).now_or_never().is_none(), "the body waits for more data");
        assert_eq!(body_kib.available_permits(), 0);
        let problem = read(endless_body(257)).now_or_never().unwrap().unwrap_err();
        assert_eq!(problem.kind, problem::UNAVAILABLE);
        let small = read(Body::from(vec![b'x'; 256 * 1024])).await.unwrap();
        assert_eq!(small.len(), 256 * 1024);
        drop(large);
        assert_eq!(body_kib.available_permits(), 512, "a dropped body releases its reservation");
        let parts = [vec![b'a'; 200_000], vec![b'b'; 200_000]];
        let parts = futures_util::stream::iter(parts.map(Ok::<_, std::convert::Infallible>));
        let whole = read(Body::from_stream(parts)).await.unwrap();
        assert_eq!((whole.len(), whole[199_999], whole[200_000]), (400_000, b'a', b'b'));
        assert_eq!(body_kib.available_permits(), 512, "a complete body releases its reservation");
    }

    #[tokio::test]
    async fn compressed_body_is_an_unsupported_media_type() {
        let body_kib = Semaphore::new(512);
        for encoding in ["gzip", "identity, br", "deflate", "zstd"] {
            let headers = HeaderMap::from_iter([(CONTENT_ENCODING, encoding.parse().unwrap())]);
            let problem = read_body(&body_kib, &headers, Body::from("{}")).await.unwrap_err();
            assert_eq!(problem.kind, problem::UNSUPPORTED_MEDIA_TYPE, "{encoding}");
        }
        let headers = HeaderMap::from_iter([(CONTENT_ENCODING, "Identity".parse().unwrap())]);
        assert_eq!(read_body(&body_kib, &headers, Body::from("{}")).await.unwrap(), "{}");
        let problem = parse_json::<Value>(b"\x1f\x8b\x08\0\0\0\0\0\0\x03").unwrap_err();
        assert_eq!(problem.kind, problem::UNSUPPORTED_MEDIA_TYPE);
        assert!(problem.detail.contains("compressed"), "{}", problem.detail);
    }

    #[test]
    fn unknown_body_field_error_has_name_and_pointer() {
        let error = field_error(r#"{"agnet":"x"}"#);
        assert!(
            error.contains(r#"pointer: "/agnet""#) && error.contains("unknown field `agnet`"),
            "{error}"
        );
        let error = field_error(r#"{"settings":{"retry":{"maxRetry":1}}}"#);
        assert!(error.contains(r#"pointer: "/settings/retry/maxRetry""#), "{error}");
    }

    #[test]
    fn wrong_body_type_error_has_pointer() {
        let error = field_error(r#"{"metadata":{"a/b":1}}"#);
        assert!(
            error.contains(r#"pointer: "/metadata/a~1b""#) && !error.contains("at line"),
            "{error}"
        );
    }

    #[test]
    fn body_parser_drops_unpaired_surrogates() {
        let read = parse_json::<Value>(br#"{"input":"cut \ud83d", "a":"\ud83d\ude00"}"#).unwrap();
        assert_eq!(read.value, serde_json::json!({"input": "cut ", "a": "\u{1f600}"}));
    }

    #[test]
    fn absent_body_is_an_empty_object() {
        assert!(parse_json::<NewConversation>(b"").is_ok());
        assert!(parse_json::<NewConversation>(b"[]").is_err());
        assert!(parse_json::<NewConversation>(b"{").is_err());
    }
}
