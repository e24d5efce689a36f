//! Skill routes: list, read, write and delete the skills of the caller.

use axum::body::Body;
use axum::extract::{OriginalUri, Path, State};
use axum::response::{IntoResponse, Response};
use http::header::{CONTENT_TYPE, ETAG, VARY};
use http::{HeaderMap, HeaderValue, StatusCode};

use crate::auth::Caller;
use crate::body::{check_content_type, decode_text, parse_json, read_body};
use crate::lists::QueryParams;
use crate::memory::{MARKDOWN, accepts_markdown};
use crate::{HandlerResult, SharedApi, access, json, precondition};
use turnwheel_agent_files::{Skill, parse_skill_text};
use turnwheel_commands::user_skills::{SkillChange, SkillTarget, delete_skill, put_skill};
use turnwheel_conversation::user_skills::UserSkill;
use turnwheel_queries::user_skills::{
    UserSkillView, UserSkills, list_skills, read_skill, skill_etag, skill_file,
};
use turnwheel_record::contract::{CommandError, FieldError};

/// List the skills of the caller.
#[utoipa::path(
    get, path = "/skills", operation_id = "listSkills", tag = "memory",
    params(("userId" = Option<String>, Query, description = "For operators: the owner of the skills.")),
    responses((status = 200, body = UserSkills))
)]
pub(crate) async fn list(
    State(api): State<SharedApi>,
    caller: Caller,
    OriginalUri(uri): OriginalUri,
) -> HandlerResult {
    let owner = access::selected_owner(&caller, &QueryParams::from_uri(&uri))?;
    Ok(json(StatusCode::OK, &list_skills(&api.services, &owner).await?))
}

/// Get a skill of the caller.
/// With `Accept: text/markdown`, the text of a skill file.
#[utoipa::path(
    get, path = "/skills/{name}", operation_id = "getSkill", tag = "memory",
    params(
        ("name" = String, Path),
        ("userId" = Option<String>, Query, description = "For operators: the owner of the skill."),
    ),
    responses((
        status = 200, headers(("ETag" = String)),
        content((UserSkillView = "application/json"), (String = "text/markdown"))
    ))
)]
pub(crate) async fn read(
    State(api): State<SharedApi>,
    caller: Caller,
    headers: HeaderMap,
    Path(name): Path<String>,
    OriginalUri(uri): OriginalUri,
) -> HandlerResult {
    let owner = access::selected_owner(&caller, &QueryParams::from_uri(&uri))?;
    let skill = read_skill(&api.services, &owner, &name).await?;
    let etag = skill_etag(Some(&skill));
    if precondition::is_unchanged(&headers, &etag) {
        return Ok(precondition::not_modified(&etag));
    }
    let mut response = if accepts_markdown(&headers) {
        ([(CONTENT_TYPE, "text/markdown; charset=utf-8")], skill_file(&skill)).into_response()
    } else {
        json(StatusCode::OK, &UserSkillView::new(&skill))
    };
    response.headers_mut().insert(VARY, HeaderValue::from_static("accept"));
    Ok(with_etag(response, &skill))
}

/// Create or replace a skill of the caller.
/// The body is JSON, or with `Content-Type: text/markdown` the text of a skill file.
#[utoipa::path(
    put, path = "/skills/{name}", operation_id = "putSkill", tag = "memory", 
    request_body(content((SkillChange = "application/json"), (String = "text/markdown"))),
    params(
        ("name" = String, Path),
        ("If-Match" = Option<String>, Header, description = "`ETag` of the skill to replace."),
    ),
    responses((status = 200, body = UserSkillView, headers(("ETag" = String))), (status = 412))
)]
pub(crate) async fn replace(
    State(api): State<SharedApi>,
    caller: Caller,
    headers: HeaderMap,
    Path(name): Path<String>,
    body: Body,
) -> HandlerResult {
    access::refuse_operator(&caller)?;
    let bytes = read_body(&api.body_kib, &headers, body).await?;
    let change = if is_markdown(&headers) {
        parse_file(&name, decode_text(&bytes)?)?
    } else {
        check_content_type(&headers)?;
        parse_json::<SkillChange>(&bytes)?.value
    };
    let is_wanted = |etag: &str| precondition::is_match_allowed(&headers, etag);
    let target = SkillTarget { owner: &caller.owner, name: &name, is_wanted: &is_wanted };
    let skill = put_skill(&api.services, &target, change).await?;
    Ok(with_etag(json(StatusCode::OK, &UserSkillView::new(&skill)), &skill))
}

/// Delete a skill of the caller.
#[utoipa::path(
    delete, path = "/skills/{name}", operation_id = "deleteSkill", tag = "memory",
    params(
        ("name" = String, Path),
        ("If-Match" = Option<String>, Header, description = "`ETag` of the skill to delete."),
    ),
    responses((status = 204), (status = 412))
)]
pub(crate) async fn remove(
    State(api): State<SharedApi>,
    caller: Caller,
    headers: HeaderMap,
    Path(name): Path<String>,
) -> HandlerResult {
    access::refuse_operator(&caller)?;
    let is_wanted = |etag: &str| precondition::is_match_allowed(&headers, etag);
    let target = SkillTarget { owner: &caller.owner, name: &name, is_wanted: &is_wanted };
    delete_skill(&api.services, &target).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

fn is_markdown(headers: &HeaderMap) -> bool {
    let given = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    given.split(';').next().unwrap_or_default().trim().eq_ignore_ascii_case(MARKDOWN)
}

/// Reads a skill file, whose name must be the one of the path or absent.
fn parse_file(name: &str, text: &str) -> Result<SkillChange, CommandError> {
    let mistakes = match parse_skill_text(name, text) {
        Ok(Skill { name: given, description, tools, body, .. }) if given == name => {
            return Ok(SkillChange { description, instructions: body, tools });
        }
        Ok(Skill { name: given, .. }) => {
            vec![format!("the name `{given}` differs from `{name}` in the path")]
        }
        Err(mistakes) => mistakes,
    };
    let errors = mistakes.into_iter().map(|reason| FieldError::new("", reason));
    Err(CommandError::Invalid(errors.collect()))
}

fn with_etag(mut response: Response, skill: &UserSkill) -> Response {
    if let Ok(etag) = HeaderValue::from_str(&skill_etag(Some(skill))) {
        response.headers_mut().insert(ETAG, etag);
    }
    response
}
