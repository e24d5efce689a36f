//! Memory routes: read, replace and delete the notes that agents keep about the caller.

use axum::extract::{OriginalUri, Path, State};
use axum::response::{IntoResponse, Response};
use http::header::{ACCEPT, CONTENT_TYPE, ETAG, VARY};
use http::{HeaderMap, HeaderValue, StatusCode, Uri};

use crate::auth::Caller;
use crate::body::JsonBody;
use crate::lists::QueryParams;
use crate::problem::Problem;
use crate::{HandlerResult, SharedApi, access, json, precondition};
use turnwheel_agent_files::is_project_name;
use turnwheel_commands::memory::{
    MemoryChange, MemoryTarget, clear_memory, delete_note, replace_memory,
};
use turnwheel_conversation::memory::Memory;
use turnwheel_queries::memory::{MemoryView, memory_etag, read_memory};

pub(super) const MARKDOWN: &str = "text/markdown";

/// Get the notes of the caller: those for all projects, or those of a project.
/// With `Accept: text/markdown`, the notes as a list.
#[utoipa::path(
    get, path = "/memory", operation_id = "getMemory", tag = "memory",
    params(
        ("project" = Option<String>, Query, description = "By default the notes for all projects."),
        ("userId" = Option<String>, Query, description = "For operators: the owner of the notes."),
    ),
    responses((
        status = 200, headers(("ETag" = String)),
        content((MemoryView = "application/json"), (String = "text/markdown"))
    ))
)]
pub(crate) async fn read(
    State(api): State<SharedApi>,
    caller: Caller,
    headers: HeaderMap,
    OriginalUri(uri): OriginalUri,
) -> HandlerResult {
    let (project, params) = (selected_project(&uri)?, QueryParams::from_uri(&uri));
    let owner = access::selected_owner(&caller, &params)?;
    let (memory, projects) = read_memory(&api.services, &owner, &project).await?;
    let etag = memory_etag(&memory);
    if precondition::is_unchanged(&headers, &etag) {
        return Ok(precondition::not_modified(&etag));
    }
    let mut response = if accepts_markdown(&headers) {
        ([(CONTENT_TYPE, "text/markdown; charset=utf-8")], memory.to_markdown()).into_response()
    } else {
        let view = MemoryView::new(&project, &memory).with_projects(projects);
        json(StatusCode::OK, &view)
    };
    response.headers_mut().insert(VARY, HeaderValue::from_static("accept"));
    Ok(with_etag(response, &memory))
}

/// Replace the notes of the caller: those for all projects, or those of a project.
/// Notes with a known `id` and the same text stay as they are.
#[utoipa::path(
    put, path = "/memory", operation_id = "putMemory", tag = "memory", request_body = MemoryChange,
    params(
        ("project" = Option<String>, Query, description = "By default the notes for all projects."),
        ("If-Match" = Option<String>, Header, description = "`ETag` of the notes to replace."),
    ),
    responses((status = 200, body = MemoryView, headers(("ETag" = String))), (status = 412))
)]
pub(crate) async fn replace(
    State(api): State<SharedApi>,
    caller: Caller,
    headers: HeaderMap,
    OriginalUri(uri): OriginalUri,
    JsonBody { value, .. }: JsonBody<MemoryChange>,
) -> HandlerResult {
    access::refuse_operator(&caller)?;
    let project = selected_project(&uri)?;
    let is_wanted = |etag: &str| precondition::is_match_allowed(&headers, etag);
    let target = MemoryTarget { owner: &caller.owner, project: &project, is_wanted: &is_wanted };
    let memory = replace_memory(&api.services, &target, value).await?;
    Ok(with_etag(json(StatusCode::OK, &MemoryView::new(&project, &memory)), &memory))
}

/// Delete the notes of the caller: those for all projects, or those of a project.
#[utoipa::path(
    delete, path = "/memory", operation_id = "deleteMemory", tag = "memory",
    params(
        ("project" = Option<String>, Query, description = "By default the notes for all projects."),
        ("If-Match" = Option<String>, Header, description = "`ETag` of the notes to delete."),
    ),
    responses((status = 204), (status = 412))
)]
pub(crate) async fn clear(
    State(api): State<SharedApi>,
    caller: Caller,
    headers: HeaderMap,
    OriginalUri(uri): OriginalUri,
) -> HandlerResult {
    access::refuse_operator(&caller)?;
    let project = selected_project(&uri)?;
    let is_wanted = |etag: &str| precondition::is_match_allowed(&headers, etag);
    let target = MemoryTarget { owner: &caller.owner, project: &project, is_wanted: &is_wanted };
    clear_memory(&api.services, &target).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

/// Delete one note of the caller.
#[utoipa::path(
    delete, path = "/memory/{id}", operation_id = "deleteNote", tag = "memory",
    params(("id" = String, Path)),
    responses((status = 204))
)]
pub(crate) async fn forget(
    State(api): State<SharedApi>,
    caller: Caller,
    Path(id): Path<String>,
) -> HandlerResult {
    access::refuse_operator(&caller)?;
    delete_note(&api.services, &caller.owner, &id).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

/// The project of a request. Empty: the notes for all projects.
fn selected_project(uri: &Uri) -> Result<String, Problem> {
    let params = QueryParams::from_uri(uri);
    let Some(name) = params.get("project") else { return Ok(String::new()) };
    if is_project_name(name) {
        return Ok(name.to_owned());
    }
    Err(Problem::bad_request("`project` must be 1 to 64 of A-Z a-z 0-9 _ . -"))
}

pub(super) fn accepts_markdown(headers: &HeaderMap) -> bool {
    let accept = headers.get(ACCEPT).and_then(|value| value.to_str().ok()).unwrap_or_default();
    accept.split(',').any(|kind| kind.split(';').next().is_some_and(|it| it.trim() == MARKDOWN))
}

fn with_etag(mut response: Response, memory: &Memory) -> Response {
    if let Ok(etag) = HeaderValue::from_str(&memory_etag(memory)) {
        response.headers_mut().insert(ETAG, etag);
    }
    response
}
