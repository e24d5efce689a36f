//! Profile routes: read and delete what agents learnt about the caller.

use axum::extract::{OriginalUri, State};
use axum::response::IntoResponse;
use http::header::ETAG;
use http::{HeaderMap, HeaderValue, StatusCode};

use crate::auth::Caller;
use crate::lists::QueryParams;
use crate::{HandlerResult, SharedApi, access, json, precondition};
use turnwheel_commands::profile::clear_profile;
use turnwheel_queries::profile::{ProfileView, profile_etag, read_profile};

/// Get the profile of the caller, and the messages that it has not learnt from.
#[utoipa::path(
    get, path = "/me/profile", operation_id = "getProfile", tag = "users",
    params((
        "userId" = Option<String>, Query, description = "For operators: the user with the profile."
    )),
    responses((status = 200, body = ProfileView, headers(("ETag" = String))))
)]
pub(crate) async fn read(
    State(api): State<SharedApi>,
    caller: Caller,
    headers: HeaderMap,
    OriginalUri(uri): OriginalUri,
) -> HandlerResult {
    let owner = access::selected_owner(&caller, &QueryParams::from_uri(&uri))?;
    let document = read_profile(&api.services, &owner).await?;
    let etag = profile_etag(&document);
    if precondition::is_unchanged(&headers, &etag) {
        return Ok(precondition::not_modified(&etag));
    }
    let mut response = json(StatusCode::OK, &ProfileView::new(&document));
    if let Ok(etag) = HeaderValue::from_str(&etag) {
        response.headers_mut().insert(ETAG, etag);
    }
    Ok(response)
}

/// Delete the profile of the caller, and the messages that it has not learnt from.
#[utoipa::path(
    delete, path = "/me/profile", operation_id = "deleteProfile", tag = "users",
    params((
        "If-Match" = Option<String>, Header, description = "`ETag` of the profile to delete."
    )),
    responses((status = 204), (status = 412))
)]
pub(crate) async fn clear(
    State(api): State<SharedApi>,
    caller: Caller,
    headers: HeaderMap,
) -> HandlerResult {
    access::refuse_operator(&caller)?;
    let is_wanted = |etag: &str| precondition::is_match_allowed(&headers, etag);
    clear_profile(&api.services, &caller.owner, &is_wanted).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}
