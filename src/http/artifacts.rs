//! Artifact routes: list, add, download whole or in part.

use axum::body::Body;
use axum::extract::{OriginalUri, Path, State};
use axum::response::Response;
use http::header::{
    ACCEPT_RANGES, CACHE_CONTROL, CONTENT_DISPOSITION, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE,
    ETAG, LOCATION, REFERRER_POLICY,
};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};

use crate::artifacts::{ArtifactFacts, Shelf, Shown};
use crate::http::idempotency::idempotency;
use crate::http::lists::{Params, page};
use crate::http::owner::Caller;
use crate::http::precondition::{Wanted, is_unchanged, not_modified, wanted};
use crate::http::problem::{self, Problem};
use crate::http::{Asked, Shared, answered, body, reach};
use crate::ids::ArtifactId;
use crate::tools::sha256_hex;
use crate::turn::admission::Refusal;
use crate::turn::admission::artifact::{NewArtifact, add_artifact};
use crate::turn::views::{ArtifactView, artifact_view};

type Answered = Result<Response, Problem>;

const NAME_BYTES_MAX: usize = 512;
const CACHED: &str = "private, max-age=31536000, immutable";
const UNTYPED: &str = "application/octet-stream";

/// List the artifacts of the conversation, oldest first.
#[utoipa::path(
    get, path = "/conversations/{id}/artifacts", operation_id = "listArtifacts", tag = "artifacts",
    params(("id" = String, Path), ("limit" = Option<u32>, Query), ("continuation" = Option<String>, Query)),
    responses((status = 200, body = crate::http::openapi::Artifacts))
)]
pub(crate) async fn list(
    State(api): State<Shared>,
    caller: Caller,
    Path(id): Path<String>,
    OriginalUri(uri): OriginalUri,
) -> Answered {
    let (key, head) = reach::to_read(&api, &caller, (&id, &uri)).await?;
    let params = Params::of(&uri);
    let binding = format!("artifacts {key} {}", head.incarnation);
    let (from, limit) = (params.position(&binding)?, params.limit()?);
    let shelf = Shelf { key, incarnation: head.incarnation };
    let all = api.world.artifacts.list(&shelf).await.map_err(Refusal::from)?;
    let items: Vec<ArtifactView> = all.iter().skip(from).take(limit).map(artifact_view).collect();
    let next = (from + limit < all.len()).then(|| (from + limit).to_string());
    Ok(page(&items, next.as_deref(), (&uri, &binding)))
}

/// Add an artifact. The body is its bytes, at most 10 MB.
#[utoipa::path(
    post, path = "/conversations/{id}/artifacts", operation_id = "addArtifact", tag = "artifacts",
    params(
        ("id" = String, Path), ("name" = Option<String>, Query, description = "File name for display."),
        ("Idempotency-Key" = Option<String>, Header),
    ),
    request_body(content = Vec<u8>, content_type = "application/octet-stream"),
    responses((status = 201, body = ArtifactView, headers(("Location" = String))))
)]
pub(crate) async fn add(
    State(api): State<Shared>,
    caller: Caller,
    Path(id): Path<String>,
    Asked { uri, headers }: Asked,
    body: Body,
) -> Answered {
    let key = reach::to_change(&caller, &id)?;
    let params = Params::of(&uri);
    let name = params.get("name").filter(|name| !name.is_empty());
    if name.is_some_and(|name| name.len() > NAME_BYTES_MAX || name.chars().any(char::is_control)) {
        return Err(Problem::bad_request(
            "`name` must have at most 512 bytes and no control characters.",
        ));
    }
    let given = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let mime_type = given.filter(|given| given.len() <= 255).unwrap_or(UNTYPED);
    let bytes = body::read(&api.bodies, &headers, body).await.map_err(too_large)?;
    let said = format!("{}\n{mime_type}\n{}", name.unwrap_or_default(), sha256_hex(&bytes));
    let hash = sha256_hex(said.as_bytes());
    let route = "POST /conversations/{id}/artifacts";
    let idempotency = idempotency(&api, &headers, route, hash)?;
    let artifact =
        NewArtifact { name: name.map(ToOwned::to_owned), mime_type: mime_type.to_owned(), bytes };
    Ok(answered(add_artifact(&api.world, &key, artifact, &idempotency).await?))
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
    ),
    responses(
        (status = 200, body = Vec<u8>, content_type = "application/octet-stream"), (status = 206), (status = 416),
        (status = 302, description = "Redirect to a storage link that is valid for a few minutes."),
    )
)]
pub(crate) async fn read(
    State(api): State<Shared>,
    caller: Caller,
    Path((id, artifact_id)): Path<(String, String)>,
    OriginalUri(uri): OriginalUri,
    headers: HeaderMap,
) -> Answered {
    let (key, head) = reach::to_read(&api, &caller, (&id, &uri)).await?;
    let artifact_id = ArtifactId::new(artifact_id);
    let Some((_, sha256)) = artifact_id.parts() else {
        return Err(Problem::not_found("artifact"));
    };
    let etag = format!("\"{sha256}\"");
    let shelf = Shelf { key, incarnation: head.incarnation };
    let facts = api.world.artifacts.facts(&shelf, &artifact_id).await.map_err(Refusal::from)?;
    let shown = Shown {
        content_type: facts.mime_type.clone(),
        content_disposition: disposition(facts.name.as_deref()),
    };
    let link = api.world.artifacts.link(&shelf, &artifact_id, &shown).await;
    if let Some(link) = link.map_err(Refusal::from)? {
        return Ok(elsewhere(link.as_str()));
    }
    if is_unchanged(&headers, &etag) {
        let mut response = not_modified(&etag);
        set(&mut response, CACHE_CONTROL, CACHED);
        return Ok(response);
    }
    let (status, range) = match wanted(&headers, &etag, facts.size) {
        Wanted::Whole => (StatusCode::OK, None),
        Wanted::Part(range) => (StatusCode::PARTIAL_CONTENT, Some(range)),
        Wanted::Nothing => {
            let there_is = format!("bytes */{}", facts.size);
            return Err(Problem::new(
                problem::RANGE_NOT_SATISFIABLE,
                format!(
                    "The artifact has {} bytes, and none of them are in this range.",
                    facts.size
                ),
            )
            .with_header(CONTENT_RANGE, &there_is));
        }
    };
    let bytes = api
        .world
        .artifacts
        .get(&shelf, &artifact_id, range.clone())
        .await
        .map_err(Refusal::from)?;
    let content_range = range.map(|range| {
        format!("bytes {}-{}/{}", range.start, range.end.saturating_sub(1), facts.size)
    });
    let length = bytes.len().to_string();
    let mut response = Response::new(Body::from(bytes));
    *response.status_mut() = status;
    set(&mut response, CONTENT_LENGTH, &length);
    set(&mut response, ETAG, &etag);
    describe(&mut response, &facts);
    if let Some(content_range) = content_range {
        set(&mut response, CONTENT_RANGE, &content_range);
    }
    Ok(response)
}

/// Redirects to a signed storage link. The link is a credential: it must not be cached or sent as a
/// referrer.
fn elsewhere(link: &str) -> Response {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::FOUND;
    set(&mut response, LOCATION, link);
    set(&mut response, CACHE_CONTROL, "no-store");
    set(&mut response, REFERRER_POLICY, "no-referrer");
    response
}

/// Sets type, caching and disposition. Browsers save the bytes and never display them, because
/// untrusted content would run on this origin.
fn describe(response: &mut Response, facts: &ArtifactFacts) {
    set(response, CONTENT_TYPE, UNTYPED);
    set(response, CONTENT_TYPE, &facts.mime_type);
    set(response, ACCEPT_RANGES, "bytes");
    set(response, CACHE_CONTROL, CACHED);
    set(response, CONTENT_DISPOSITION, &disposition(facts.name.as_deref()));
}

/// Sets a header. An invalid value leaves the previous one.
fn set(response: &mut Response, name: HeaderName, value: &str) {
    if let Ok(value) = HeaderValue::from_str(value) {
        response.headers_mut().insert(name, value);
    }
}

/// `Content-Disposition` of RFC 6266. The name is encoded by RFC 8187, which makes any name safe.
fn disposition(name: Option<&str>) -> String {
    let Some(last) =
        name.and_then(|name| name.rsplit(['/', '\\']).next()).filter(|last| !last.is_empty())
    else {
        return "attachment".to_owned();
    };
    let encoded = percent_encoding::utf8_percent_encode(last, percent_encoding::NON_ALPHANUMERIC);
    format!("attachment; filename*=UTF-8''{encoded}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_name_breaks_out_of_its_header() {
        assert_eq!(disposition(None), "attachment");
        assert_eq!(
            disposition(Some("a/b/ré\"port\r\n.csv")),
            "attachment; filename*=UTF-8''r%C3%A9%22port%0D%0A%2Ecsv"
        );
        assert_eq!(disposition(Some("dir/")), "attachment");
    }
}
