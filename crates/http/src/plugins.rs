//! Route of the plugins of a conversation.

use axum::extract::{Path, State};
use http::StatusCode;

use crate::auth::Caller;
use crate::{HandlerResult, SharedApi, access, json};
use turnwheel_json::raw::raw_object;
use turnwheel_queries::plugins::list_plugins;
use turnwheel_record::load;

/// List the stored states of the plugins of a conversation.
/// For the owner only.
#[utoipa::path(
    get, path = "/conversations/{id}/plugins", operation_id = "listPlugins", tag = "conversations",
    params(("id" = String, Path)),
    responses((status = 200, body = crate::schema::Plugins))
)]
pub(crate) async fn list(
    State(api): State<SharedApi>,
    caller: Caller,
    Path(id): Path<String>,
) -> HandlerResult {
    let key = access::own_conversation(&caller, &id)?;
    let (head, _) = load::head(&api.services, &key).await?;
    Ok(json(StatusCode::OK, &raw_object!({ "items": list_plugins(&head) })))
}
