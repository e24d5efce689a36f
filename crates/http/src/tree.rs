//! Routes of the session tree: its nodes, fork points, statistics and the last answer.

use http::StatusCode;

use crate::conversation_request::ConversationRead;
use crate::lists::{encode_continuation, page_response};
use crate::{HandlerResult, json};
use turnwheel_queries::tree::{
    LastAnswer, SessionStats, TreeSelection, TreeView, read_all_nodes, read_fork_points,
    read_last_answer, read_stats, read_tree,
};

/// Get the shape of the session tree, with the messages of users, labels and summaries.
/// With `all`: a page of all entries.
#[utoipa::path(
    get, path = "/conversations/{id}/tree", operation_id = "getTree", tag = "conversations",
    params(
        ("id" = String, Path),
        ("from" = Option<String>, Query, description = "An entry: only the part of the tree below it."),
        ("depth" = Option<u32>, Query, description = "Levels of nodes below the first ones."),
        ("all" = Option<bool>, Query, description = "True: a page of all entries, in the order of `seq`."),
        ("limit" = Option<u32>, Query, description = "With `all`: 1 to 100, by default 20."),
        ("continuation" = Option<String>, Query, description = "With `all`: `continuation` of the previous page."),
    ),
    responses((status = 200, body = TreeView))
)]
pub(crate) async fn tree(read: ConversationRead) -> HandlerResult {
    let ConversationRead { api, key, head, params, .. } = read;
    if params.flag("all")?.unwrap_or_default() {
        let binding = format!("tree {key} {}", head.incarnation);
        let (after, limit) = (params.position(&binding)? as u64, params.limit()?);
        let mut view = read_all_nodes(&api.services, &head, after, limit).await?;
        let next = view.continuation.map(|seq| encode_continuation(&seq, &binding));
        view.continuation = next;
        return Ok(json(StatusCode::OK, &view));
    }
    let selection = TreeSelection {
        from: params.get("from"),
        depth: params.number("depth", 0, u64::from(u32::MAX))?,
    };
    Ok(json(StatusCode::OK, &read_tree(&api.services, &head, &selection).await?))
}

/// List the messages of users, from which a fork can start, oldest first.
#[utoipa::path(
    get, path = "/conversations/{id}/fork-points", operation_id = "listForkPoints", tag = "conversations",
    params(("id" = String, Path), ("limit" = Option<u32>, Query), ("continuation" = Option<String>, Query)),
    responses((status = 200, body = crate::schema::ForkPoints))
)]
pub(crate) async fn fork_points(read: ConversationRead) -> HandlerResult {
    let ConversationRead { api, key, head, uri, params, .. } = read;
    let binding = format!("fork points {key} {}", head.incarnation);
    let (after, limit) = (params.position(&binding)? as u64, params.limit()?);
    let (items, next) = read_fork_points(&api.services, &head, after, limit).await?;
    Ok(page_response(&items, next.as_deref(), &uri, &binding))
}

/// Get numbers of messages, tokens and cost on the path of a conversation.
#[utoipa::path(
    get, path = "/conversations/{id}/stats", operation_id = "getStats", tag = "conversations",
    params(("id" = String, Path)),
    responses((status = 200, body = SessionStats))
)]
pub(crate) async fn stats(read: ConversationRead) -> HandlerResult {
    let ConversationRead { api, head, .. } = read;
    Ok(json(StatusCode::OK, &read_stats(&api.services, &head).await?))
}

/// Get the last text of the model.
#[utoipa::path(
    get, path = "/conversations/{id}/last-answer", operation_id = "getLastAnswer", tag = "conversations",
    params(("id" = String, Path)),
    responses((status = 200, body = LastAnswer))
)]
pub(crate) async fn last_answer(read: ConversationRead) -> HandlerResult {
    let ConversationRead { api, head, .. } = read;
    Ok(json(StatusCode::OK, &read_last_answer(&api.services, &head).await?))
}
