//! Route of the plugins of a conversation.

use axum::extract::{Path, State};
use http::StatusCode;

use crate::agent::raw::raw_object;
use crate::http::auth::Caller;
use crate::http::{HandlerResult, SharedApi, access, json};
use crate::queries::load;
use crate::queries::plugins::list_plugins;

/// List the stored states of the plugins of a conversation.
/// For the owner only.
#[utoipa::path(
    get, path = "/conversations/{id}/plugins", operation_id = "listPlugins", tag = "conversations",
    params(("id" = String, Path)),
    responses((status = 200, body = crate::http::schema::Plugins))
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
