//! Route of frame documents: the parts of model calls beside the messages.

use axum::extract::{OriginalUri, Path, State};
use http::StatusCode;
use http::header::{CACHE_CONTROL, HeaderValue};

use crate::auth::Caller;
use crate::problem::{self, Problem};
use crate::{HandlerResult, SharedApi, access, json};
use turnwheel_queries::frame_document::find_frame_document;

/// Another user of the browser may not have the role.
const CACHING: &str = "private, no-cache";

/// Get the frame document that a `frame` entry names, as it was stored.
/// For operators, and in `dev`: it has the instructions of the agent.
#[utoipa::path(
    get, path = "/conversations/{id}/frames/{sha256}", operation_id = "getFrame", tag = "conversations",
    params(
        ("id" = String, Path),
        ("sha256" = String, Path, description = "The member `document` of the entry."),
    ),
    responses((status = 200, body = serde_json::Value))
)]
pub(crate) async fn read(
    State(api): State<SharedApi>,
    caller: Caller,
    Path((id, sha256)): Path<(String, String)>,
    OriginalUri(uri): OriginalUri,
) -> HandlerResult {
    let (_, head) = access::authorize_read(&api, &caller, &id, &uri).await?;
    if !access::may_read_instructions(&api, &caller) {
        let detail =
            "A frame has the instructions of the agent: only the role Turnwheel.Operator reads it.";
        return Err(Problem::new(problem::FORBIDDEN, detail));
    }
    let Some(document) = find_frame_document(&api.services, &head, &sha256).await? else {
        let detail = "The artifact store has no frame document with this hash.";
        return Err(Problem::new(problem::NOT_FOUND, detail));
    };
    let mut response = json(StatusCode::OK, &document);
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static(CACHING));
    Ok(response)
}
