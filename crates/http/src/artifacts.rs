//! Artifact routes: list, add, download whole or in part.

use axum::body::Body;
use axum::extract::{OriginalUri, Path, State};
use axum::response::Response;
use http::header::{
    ACCEPT_RANGES, CACHE_CONTROL, CONTENT_DISPOSITION, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE,
    ETAG, LOCATION, REFERRER_POLICY,
};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};

use crate::auth::Caller;
use crate::conversation_request::ConversationRead;
use crate::idempotency::resolve_idempotency;
use crate::lists::{QueryParams, page_response};
use crate::precondition::{RequestedRange, is_unchanged, not_modified, requested_range};
use crate::problem::{self, Problem};
use crate::{HandlerResult, RequestParts, SharedApi, access, body, into_response, json};
use turnwheel_commands::artifact::{NewArtifact, add_artifact};
use turnwheel_json::raw::raw_object;
use turnwheel_platform::digest::sha256_hex;
use turnwheel_platform::ids::ArtifactId;
use turnwheel_queries::{ArtifactView, artifact_view};
use turnwheel_record::contract::CommandError;
use turnwheel_storage::artifacts::{ArtifactMetadata, ArtifactScope, ContentHeaders};

const NAME_BYTES_MAX: usize = 512;
const CACHE_IMMUTABLE: &str = "private, max-age=31536000, immutable";
const DEFAULT_MIME_TYPE: &str = "application/octet-stream";
/// Type of the JSON of a link: another one than that of an artifact that is JSON.
const LINK_TYPE: &str = "application/vnd.turnwheel.link+json";

/// List the artifacts of the conversation, oldest first.
#[utoipa::path(
    get, path = "/conversations/{id}/artifacts", operation_id = "listArtifacts", tag = "artifacts",
    params(("id" = String, Path), ("limit" = Option<u32>, Query), ("continuation" = Option<String>, Query)),
    responses((status = 200, body = crate::schema::Artifacts))
)]
pub(crate) async fn list(read: ConversationRead) -> HandlerResult {
    let ConversationRead { api, key, head, uri, params, .. } = read;
    let binding = format!("artifacts {key} {}", head.incarnation);
    let (from, limit) = (params.position(&binding)?, params.limit()?);
    let scope = ArtifactScope { key, incarnation: head.incarnation };
    let all = api.services.artifacts.list(&scope).await.map_err(CommandError::from)?;
    let items: Vec<ArtifactView> = all.iter().skip(from).take(limit).map(artifact_view).collect();
    let next = (from + limit < all.len()).then(|| (from + limit).to_string());
    Ok(page_response(&items, next.as_deref(), &uri, &binding))
}

/// Add an artifact. The body is its bytes, at most 10 MB.
#[utoipa::path(
    post, path = "/conversations/{id}/artifacts", operation_id = "addArtifact", tag = "artifacts",
    params(
        ("id" = String, Path), ("name" = Option<String>, Query, description = "File name for display."),
        ("Idempotency-Key" = Option<String>, Header),
    ),
    request_body(content = String, content_type = "application/octet-stream"),
    responses((status = 201, body = ArtifactView, headers(("Location" = String))))
)]
pub(crate) async fn add(
    State(api): State<SharedApi>,
    caller: Caller,
    Path(id): Path<String>,
    RequestParts { uri, headers }: RequestParts,
    body: Body,
) -> HandlerResult {
    let key = access::authorize_change(&caller, &id)?;
    let params = QueryParams::from_uri(&uri);
    let name = params.get("name").filter(|name| !name.is_empty());
    if name.is_some_and(|name| name.len() > NAME_BYTES_MAX || name.chars().any(char::is_control)) {
        return Err(Problem::bad_request(
            "`name` must have at most 512 bytes and no control characters.",
        ));
    }
    let given = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let mime_type = given.filter(|given| given.len() <= 255).unwrap_or(DEFAULT_MIME_TYPE);
    let bytes = body::read_body(&api.body_kib, &headers, body).await.map_err(too_large)?;
    let hash_input = format!("{}\n{mime_type}\n{}", name.unwrap_or_default(), sha256_hex(&bytes));
    let hash = sha256_hex(hash_input.as_bytes());
    let route = "POST /conversations/{id}/artifacts";
    let idempotency = resolve_idempotency(&api, &headers, route, hash)?;
    let artifact =
        NewArtifact { name: name.map(ToOwned::to_owned), mime_type: mime_type.to_owned(), bytes };
    Ok(into_response(add_artifact(&api.services, &key, artifact, &idempotency).await?))
}

fn too_large(problem: Problem) -> Problem {
    if problem.kind != problem::PAYLOAD_TOO_LARGE {
        return problem;
    }
    let detail = "The artifact is longer than 10 MB. Split it into several artifacts.";
    Problem::new(problem::PAYLOAD_TOO_LARGE, detail)
}

/// Download an artifact, or get a redirect to its storage link.
#[utoipa::path(
    get, path = "/conversations/{id}/artifacts/{artifactId}", operation_id = "getArtifact", tag = "artifacts",
    params(
        ("id" = String, Path), ("artifactId" = String, Path),
        ("Range" = Option<String>, Header, description = "One range of bytes."),
        ("redirect" = Option<bool>, Query, description = "`false`: in place of a redirect a 200 with the storage link, `{url}` of the type `application/vnd.turnwheel.link+json`. Clients that repeat their headers at a redirect would send their key to the storage account."),
    ),
    responses(
        (status = 200, body = String, content_type = "application/octet-stream", description = "The bytes. With storage links: 302 to a link that is valid for a few minutes."),
        (status = 206), (status = 416),
    )
)]
pub(crate) async fn read(
    State(api): State<SharedApi>,
    caller: Caller,
    Path((id, artifact_id)): Path<(String, String)>,
    OriginalUri(uri): OriginalUri,
    headers: HeaderMap,
) -> HandlerResult {
    let has_redirect = QueryParams::from_uri(&uri).flag("redirect")? != Some(false);
    let (key, head) = access::authorize_read(&api, &caller, &id, &uri).await?;
    let artifact_id = ArtifactId::new(artifact_id);
    let Some((_, sha256)) = artifact_id.parts() else {
        return Err(Problem::not_found("artifact"));
    };
    let etag = format!("\"{sha256}\"");
    let scope = ArtifactScope { key, incarnation: head.incarnation };
    let metadata =
        api.services.artifacts.metadata(&scope, &artifact_id).await.map_err(CommandError::from)?;
    let link_headers = ContentHeaders {
        content_type: metadata.mime_type.clone(),
        content_disposition: content_disposition(metadata.name.as_deref()),
    };
    let link = api.services.artifacts.link(&scope, &artifact_id, &link_headers).await;
    if let Some(link) = link.map_err(CommandError::from)? {
        return Ok(respond_with_link(link.as_str(), has_redirect));
    }
    if is_unchanged(&headers, &etag) {
        let mut response = not_modified(&etag);
        set_header(&mut response, CACHE_CONTROL, CACHE_IMMUTABLE);
        return Ok(response);
    }
    let (status, range) = match requested_range(&headers, &etag, metadata.size) {
        RequestedRange::Whole => (StatusCode::OK, None),
        RequestedRange::Part(range) => (StatusCode::PARTIAL_CONTENT, Some(range)),
        RequestedRange::Unsatisfiable => {
            let whole_range = format!("bytes */{}", metadata.size);
            return Err(Problem::new(
                problem::RANGE_NOT_SATISFIABLE,
                format!(
                    "The artifact has {} bytes, and none of them are in this range.",
                    metadata.size
                ),
            )
            .with_header(CONTENT_RANGE, &whole_range));
        }
    };
    let bytes = api
        .services
        .artifacts
        .get(&scope, &artifact_id, range.clone())
        .await
        .map_err(CommandError::from)?;
    let content_range = range.map(|range| {
        format!("bytes {}-{}/{}", range.start, range.end.saturating_sub(1), metadata.size)
    });
    let length = bytes.len().to_string();
    let mut response = Response::new(Body::from(bytes));
    *response.status_mut() = status;
    set_header(&mut response, CONTENT_LENGTH, &length);
    set_header(&mut response, ETAG, &etag);
    set_artifact_headers(&mut response, &metadata);
    if let Some(content_range) = content_range {
        set_header(&mut response, CONTENT_RANGE, &content_range);
    }
    Ok(response)
}

/// Redirects to a signed storage link, or returns it. The link is a credential: it must not be
/// cached or sent as a referrer.
fn respond_with_link(link: &str, has_redirect: bool) -> Response {
    let mut response = if has_redirect {
        let mut response = Response::new(Body::empty());
        *response.status_mut() = StatusCode::FOUND;
        set_header(&mut response, LOCATION, link);
        response
    } else {
        let mut response = json(StatusCode::OK, &raw_object!({"url": link}));
        set_header(&mut response, CONTENT_TYPE, LINK_TYPE);
        response
    };
    set_header(&mut response, CACHE_CONTROL, "no-store");
    set_header(&mut response, REFERRER_POLICY, "no-referrer");
    response
}

/// Sets type, caching and disposition. Browsers save the bytes and never display them, because
/// untrusted content would run on this origin.
fn set_artifact_headers(response: &mut Response, metadata: &ArtifactMetadata) {
    set_header(response, CONTENT_TYPE, DEFAULT_MIME_TYPE);
    set_header(response, CONTENT_TYPE, &metadata.mime_type);
    set_header(response, ACCEPT_RANGES, "bytes");
    set_header(response, CACHE_CONTROL, CACHE_IMMUTABLE);
    set_header(response, CONTENT_DISPOSITION, &content_disposition(metadata.name.as_deref()));
}

/// Sets a header. An invalid value leaves the previous one, and so does one that is not ASCII: the Functions host would
/// respond with 500.
fn set_header(response: &mut Response, name: HeaderName, value: &str) {
    if value.is_ascii()
        && let Ok(value) = HeaderValue::from_str(value)
    {
        response.headers_mut().insert(name, value);
    }
}

/// `Content-Disposition` of RFC 6266. The name is encoded by RFC 8187, which makes any name safe.
fn content_disposition(name: Option<&str>) -> String {
    let last = name.and_then(|name| name.rsplit(['/', '\\']).next());
    let Some(last) = last.filter(|last| !["", ".", ".."].contains(last)) else {
        return "attachment".to_owned();
    };
    let encoded = percent_encoding::utf8_percent_encode(last, percent_encoding::NON_ALPHANUMERIC);
    format!("attachment; filename*=UTF-8''{encoded}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn artifact_name_cannot_forge_headers() {
        assert_eq!(content_disposition(None), "attachment");
        assert_eq!(
            content_disposition(Some("a/b/ré\"port\r\n.csv")),
            "attachment; filename*=UTF-8''r%C3%A9%22port%0D%0A%2Ecsv"
        );
        for folder in ["dir/", ".", "..", "a/.."] {
            assert_eq!(content_disposition(Some(folder)), "attachment", "{folder}");
        }
    }

    proptest::proptest! {
        /// The Functions host responds with an empty 500 to a header that is not ASCII.
        #[test]
        fn artifact_headers_are_ascii(name in ".*", mime_type in ".{0,40}") {
            let mut response = Response::new(Body::empty());
            let metadata = ArtifactMetadata {
                id: ArtifactId::new("a1"),
                name: Some(name),
                mime_type,
                size: 0,
                created_at: turnwheel_platform::clock::Timestamp(0),
            };
            set_artifact_headers(&mut response, &metadata);
            for (name, value) in response.headers() {
                proptest::prop_assert!(value.to_str().is_ok(), "{name}: {value:?}");
            }
            proptest::prop_assert!(response.headers().contains_key(CONTENT_TYPE));
        }
    }
}
