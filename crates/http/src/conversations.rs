//! Conversation routes: create, list, read, change, delete; messages and entries.

use std::fmt::Write as _;

use axum::extract::{Path, State};
use axum::response::IntoResponse;
use http::header::ETAG;
use http::{HeaderMap, HeaderValue, StatusCode};

use crate::auth::Caller;
use crate::body::{JsonBody, MergePatch};
use crate::conversation_request::{ConversationCommand, ConversationRead};
use crate::idempotency::resolve_idempotency;
use crate::lists::{QueryParams, page_response};
use crate::problem::Problem;
use crate::prompts::parse_wait;
use crate::{
    HandlerResult, RequestParts, SharedApi, access, into_response, json, long_poll, precondition,
};
use turnwheel_commands::conversation::{NewConversation, create_conversation};
use turnwheel_commands::delete::delete_conversation;
use turnwheel_commands::fork::{ForkRequest, ForkResult, fork_conversation};
use turnwheel_commands::patch::patch_conversation;
use turnwheel_json::raw::RawJson;
use turnwheel_platform::ids::UserId;
use turnwheel_queries::conversation::{ConversationView, current_view, entry_view, read_messages};
use turnwheel_queries::conversation_etag;
use turnwheel_queries::conversation_list::{
    ConversationFilter, list_by_last_change, list_conversations,
};
use turnwheel_queries::protocol_events::read_history;
use turnwheel_record::idempotency::Idempotency;
use turnwheel_record::load;
use turnwheel_storage::store::HeadQuery;

/// Entries of one page.
const ENTRIES_MAX: usize = 500;

/// Create a conversation, empty or with initial messages.
#[utoipa::path(
    post, path = "/conversations", operation_id = "createConversation", tag = "conversations", request_body = NewConversation,
    params(("Idempotency-Key" = Option<String>, Header, description = "1 to 255 visible ASCII characters.")),
    responses(
        (status = 201, body = ConversationView, headers(("Location" = String), ("ETag" = String))),
    )
)]
pub(crate) async fn create(
    State(api): State<SharedApi>,
    caller: Caller,
    headers: HeaderMap,
    JsonBody { value, hash }: JsonBody<NewConversation>,
) -> HandlerResult {
    access::refuse_operator(&caller)?;
    let idempotency = resolve_idempotency(&api, &headers, "POST /conversations", hash)?;
    let result = create_conversation(&api.services, &caller.owner, value, &idempotency).await?;
    Ok(into_response(result))
}

/// List the caller's conversations, newest first.
/// For operators: the conversations of the tenant.
#[utoipa::path(
    get, path = "/conversations", operation_id = "listConversations", tag = "conversations",
    params(
        ("limit" = Option<u32>, Query, description = "1 to 100, by default 20."),
        ("continuation" = Option<String>, Query, description = "`continuation` of the previous page."),
        ("userId" = Option<String>, Query, description = "For operators: the owner of the conversations."),
        ("hasAnswer" = Option<bool>, Query, description = "`true`: only conversations with a model response; `false`: only those without."),
        ("state" = Option<String>, Query, description = "`idle`, `running`, `waiting_for_approval`, or `failed`: the last prompt failed."),
        ("agent" = Option<String>, Query, description = "Only conversations of that agent."),
        ("q" = Option<String>, Query, description = "A part of the id, the name or the preview."),
        ("order" = Option<String>, Query, description = "`createdAt`, by default, or `updatedAt`: the last changed of the newest 1,000 first."),
        ("updatedAfter" = Option<String>, Query, description = "Only conversations that changed after that time (ISO 8601)."),
        ("If-None-Match" = Option<String>, Header, description = "`ETag` of an earlier response: 304 if nothing has changed."),
    ),
    responses((status = 200, body = crate::schema::Conversations, headers(("ETag" = String))))
)]
pub(crate) async fn list(
    State(api): State<SharedApi>,
    caller: Caller,
    RequestParts { uri, headers }: RequestParts,
) -> HandlerResult {
    let params = QueryParams::from_uri(&uri);
    let own = (!caller.is_operator()).then(|| caller.owner.user.clone());
    let user = access::selected_user(&caller, &params)?.or(own);
    let user_id = user.as_ref().map(UserId::as_str).unwrap_or_default();
    let mut binding = format!("conversations {}/{user_id}", caller.owner.tenant);
    for name in ["hasAnswer", "state", "agent", "q", "order", "updatedAfter"] {
        if let Some(value) = params.get(name) {
            let _infallible = write!(binding, " {name}={value}");
        }
    }
    let state = params.choice("state", &["idle", "running", "waiting_for_approval", "failed"])?;
    let filter = ConversationFilter {
        has_answer: params.flag("hasAnswer")?,
        is_failed: state == Some("failed"),
        agent: params.get("agent").map(str::to_owned),
        text: params.get("q").map(str::to_owned),
        updated_after: params.time("updatedAfter")?,
    };
    let query = HeadQuery {
        tenant: caller.owner.tenant.clone(),
        limit: params.limit()?,
        continuation: params.continuation(&binding)?,
        state: state.filter(|state| *state != "failed").map(str::to_owned),
        user,
    };
    let is_by_change = params.choice("order", &["createdAt", "updatedAt"])? == Some("updatedAt");
    let (items, continuation) = if is_by_change {
        list_by_last_change(&api.services, query, &filter).await?
    } else {
        list_conversations(&api.services, query, &filter).await?
    };
    let response = page_response(&items, continuation.as_deref(), &uri, &binding);
    Ok(precondition::with_content_etag(&headers, RawJson::from_value(&items).text(), response))
}

/// Get a conversation.
/// With `wait`: as soon as it is not running.
#[utoipa::path(
    get, path = "/conversations/{id}", operation_id = "getConversation", tag = "conversations",
    params(
        ("id" = String, Path),
        ("wait" = Option<u32>, Query, description = "Seconds to wait until it leaves `running`, at most 60."),
    ),
    responses((status = 200, body = ConversationView, headers(("ETag" = String))))
)]
pub(crate) async fn read(
    State(api): State<SharedApi>,
    caller: Caller,
    Path(id): Path<String>,
    RequestParts { uri, headers }: RequestParts,
) -> HandlerResult {
    let wait = parse_wait(&uri)?;
    let (key, _) = access::authorize_read(&api, &caller, &id, &uri).await?;
    let (mut view, head) = match wait {
        Some(wait) => long_poll::wait_for_conversation(&api, &key, wait).await?,
        None => current_view(&api.services, &key).await?,
    };
    let etag = conversation_etag(&head);
    if precondition::is_unchanged(&headers, &etag) {
        return Ok(precondition::not_modified(&etag));
    }
    for approval in &mut view.pending_approvals {
        let request = head.requests.iter().find(|request| request.id == approval.id);
        approval.can_decide = request.map(|it| caller.decider().can_decide(&key, it));
    }
    let mut response = json(StatusCode::OK, &view);
    if let Ok(etag) = HeaderValue::from_str(&etag) {
        response.headers_mut().insert(ETAG, etag);
    }
    Ok(response)
}

/// Change settings, metadata or name with a merge patch.
#[utoipa::path(
    patch, path = "/conversations/{id}", operation_id = "updateConversation", tag = "conversations",
    params(
        ("id" = String, Path),
        ("If-Match" = Option<String>, Header, description = "`ETag` of the version to change."),
        ("Idempotency-Key" = Option<String>, Header),
    ),
    request_body = crate::schema::ConversationPatch,
    responses((status = 200, body = ConversationView, headers(("ETag" = String))))
)]
pub(crate) async fn change(command: ConversationCommand<MergePatch>) -> HandlerResult {
    let ConversationCommand { api, key, headers, idempotency, value: MergePatch(value), .. } =
        command;
    let is_wanted = |etag: &str| precondition::is_match_allowed(&headers, etag);
    let result = patch_conversation(&api.services, &key, &value, &idempotency, is_wanted).await?;
    Ok(into_response(result))
}

/// Delete a conversation and everything in it.
#[utoipa::path(
    delete, path = "/conversations/{id}", operation_id = "deleteConversation", tag = "conversations",
    params(("id" = String, Path)),
    responses((status = 204), (status = 409, description = "`effect-in-flight`: a write is in progress."))
)]
pub(crate) async fn delete(
    State(api): State<SharedApi>,
    caller: Caller,
    Path(id): Path<String>,
) -> HandlerResult {
    let key = access::authorize_change(&caller, &id)?;
    delete_conversation(&api.services, &key).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

/// Copy a conversation, up to an entry, into a new one.
/// With `before`, the response has the text of the user message that follows the copy.
#[utoipa::path(
    post, path = "/conversations/{id}/fork", operation_id = "forkConversation", tag = "conversations", request_body = ForkRequest,
    params(("id" = String, Path), ("Idempotency-Key" = Option<String>, Header)),
    responses(
        (status = 201, body = ForkResult, headers(("Location" = String), ("ETag" = String))),
        (status = 200, body = ForkResult, description = "An extension cancelled the fork."),
        (status = 202, body = ForkResult, description = "An extension asks a question first. The input has the `result` after the answer.", headers(("Location" = String))),
    )
)]
pub(crate) async fn fork(command: ConversationCommand<ForkRequest>) -> HandlerResult {
    let ConversationCommand { api, key, idempotency, value, .. } = command;
    // Without `conversationId` the key alone identifies the copy, so the source is part of the hash.
    let body_hash = format!("{} {}", key.conversation_id, idempotency.body_hash);
    let idempotency = Idempotency { body_hash, ..idempotency };
    Ok(into_response(fork_conversation(&api.services, &key, value, &idempotency).await?))
}

/// List the messages on the path to the leaf, oldest first.
#[utoipa::path(
    get, path = "/conversations/{id}/messages", operation_id = "listMessages", tag = "conversations",
    params(("id" = String, Path), ("limit" = Option<u32>, Query), ("continuation" = Option<String>, Query)),
    responses((status = 200, body = crate::schema::Messages))
)]
pub(crate) async fn list_messages(read: ConversationRead) -> HandlerResult {
    let ConversationRead { api, key, head, uri, params, .. } = read;
    let binding = format!("messages {key} {}", head.incarnation);
    let (after, limit) = (params.continuation(&binding)?, params.limit()?);
    let (items, next) = read_messages(&api.services, &head, after.as_deref(), limit).await?;
    Ok(page_response(&items, next.as_deref(), &uri, &binding))
}

/// List the history on the path to the leaf, as events of the streaming text protocol.
#[utoipa::path(
    get, path = "/conversations/{id}/history", operation_id = "listHistory", tag = "conversations",
    params(
        ("id" = String, Path), ("format" = String, Query, description = "`protocol`"),
        ("limit" = Option<u32>, Query), ("continuation" = Option<String>, Query),
    ),
    responses((status = 200, body = crate::schema::History))
)]
pub(crate) async fn list_history(read: ConversationRead) -> HandlerResult {
    let ConversationRead { api, key, head, uri, params, .. } = read;
    if params.get("format") != Some("protocol") {
        return Err(Problem::bad_request("`format` must be `protocol`."));
    }
    let binding = format!("history {key} {}", head.incarnation);
    let (after, limit) = (params.continuation(&binding)?, params.limit()?);
    let (items, next) = read_history(&api.services, &head, after.as_deref(), limit).await?;
    Ok(page_response(&items, next.as_deref(), &uri, &binding))
}

/// List the entries of all branches, in the order of `seq`.
#[utoipa::path(
    get, path = "/conversations/{id}/entries", operation_id = "listEntries", tag = "conversations",
    params(
        ("id" = String, Path),
        ("afterSeq" = Option<u64>, Query, description = "Only entries with a larger `seq`."),
        ("beforeSeq" = Option<u64>, Query, description = "Only entries with a smaller `seq`."),
        ("order" = Option<String>, Query, description = "`asc`, by default, or `desc`: the newest first."),
        ("limit" = Option<u32>, Query, description = "1 to 500, by default 20."),
        ("continuation" = Option<String>, Query),
    ),
    responses((status = 200, body = crate::schema::Entries))
)]
pub(crate) async fn list_entries(read: ConversationRead) -> HandlerResult {
    let ConversationRead { api, key, head, uri, params, .. } = read;
    let is_newest_first = params.choice("order", &["asc", "desc"])? == Some("desc");
    let order = if is_newest_first { "newest entries" } else { "entries" };
    let binding = format!("{order} {key} {}", head.incarnation);
    let limit = params.limit_up_to(ENTRIES_MAX)? as u64;
    let last = params.number("beforeSeq", 1, u64::MAX)?.map_or(head.seq, |before| before - 1);
    let mut from = params.number("afterSeq", 0, u64::MAX)?.unwrap_or(0).saturating_add(1);
    let mut to = head.seq.min(last);
    let position = params.continuation(&binding)?.and_then(|text| text.parse::<u64>().ok());
    let next = if is_newest_first {
        to = position.map_or(to, |position| position.min(to));
        let first = from.max((to + 1).saturating_sub(limit));
        let next = (first > from).then(|| first - 1);
        from = first;
        next
    } else {
        from = position.map_or(from, |position| position.saturating_add(1));
        let end = to.min(from.saturating_add(limit - 1));
        let next = (end < to).then_some(end);
        to = end;
        next
    };
    let mut entries = load::entries(&api.services, &key, from, to).await?;
    if is_newest_first {
        entries.reverse();
    }
    let items: Vec<RawJson> = entries.iter().map(|entry| entry_view(entry)).collect();
    let next = next.map(|seq| seq.to_string());
    Ok(page_response(&items, next.as_deref(), &uri, &binding))
}
