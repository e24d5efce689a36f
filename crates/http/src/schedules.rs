//! Schedule routes: create, list, read and cancel schedules.

use axum::extract::{OriginalUri, Path, State};
use axum::response::IntoResponse;
use http::{HeaderMap, StatusCode};

use crate::auth::Caller;
use crate::body::JsonBody;
use crate::idempotency::resolve_idempotency;
use crate::lists::{QueryParams, page_response};
use crate::problem::Problem;
use crate::{HandlerResult, SharedApi, access, into_response, json};
use turnwheel_commands::schedules;
use turnwheel_commands::schedules::create::NewSchedule;
use turnwheel_commands::schedules::{list_tenant_schedules, list_user_schedules};
use turnwheel_conversation::schedule::Schedule;
use turnwheel_queries::schedules::ScheduleView;
use turnwheel_record::contract::Owner;

/// Create a schedule: a prompt at a later time, once or repeatedly.
#[utoipa::path(
    post, path = "/schedules", operation_id = "createSchedule", tag = "schedules", request_body = NewSchedule,
    params(("Idempotency-Key" = Option<String>, Header, description = "Valid for the lifetime of the schedule.")),
    responses(
        (status = 201, body = ScheduleView, headers(("Location" = String))),
        (status = 400, body = crate::schema::Problem, content_type = "application/problem+json"),
        (status = 409, body = crate::schema::Problem, content_type = "application/problem+json", description = "The id is taken, or the user has 100 schedules."),
    )
)]
pub(crate) async fn create(
    State(api): State<SharedApi>,
    caller: Caller,
    headers: HeaderMap,
    JsonBody { value, hash }: JsonBody<NewSchedule>,
) -> HandlerResult {
    access::refuse_operator(&caller)?;
    let idempotency = resolve_idempotency(&api, &headers, "POST /schedules", hash)?;
    let result =
        schedules::create::accept_schedule(&api.services, &caller.owner, value, &idempotency, None)
            .await?;
    Ok(into_response(result))
}

/// List the caller's schedules, newest first.
/// For operators: the schedules of the tenant, user by user.
#[utoipa::path(
    get, path = "/schedules", operation_id = "listSchedules", tag = "schedules",
    params(
        ("limit" = Option<u32>, Query), ("continuation" = Option<String>, Query),
        ("userId" = Option<String>, Query, description = "For operators: the owner of the schedules."),
    ),
    responses((status = 200, body = crate::schema::Schedules))
)]
pub(crate) async fn list(
    State(api): State<SharedApi>,
    caller: Caller,
    OriginalUri(uri): OriginalUri,
) -> HandlerResult {
    let params = QueryParams::from_uri(&uri);
    let Some(owner) = selected_owner(&caller, &params)? else {
        let tenant = &caller.owner.tenant;
        let binding = format!("schedules {tenant}");
        let from = params.continuation(&binding)?;
        let found = list_tenant_schedules(&api.services, tenant, params.limit()?, from).await?;
        let items: Vec<ScheduleView> =
            found.items.iter().map(ScheduleView::from_schedule).collect();
        return Ok(page_response(&items, found.continuation.as_deref(), &uri, &binding));
    };
    let binding = format!("schedules {}/{}", owner.tenant, owner.user);
    let (from, limit) = (params.position(&binding)?, params.limit()?);
    let all: Vec<Schedule> = list_user_schedules(&api.services, &owner).await?;
    let items: Vec<ScheduleView> =
        all.iter().skip(from).take(limit).map(ScheduleView::from_schedule).collect();
    let next = (from + limit < all.len()).then(|| (from + limit).to_string());
    Ok(page_response(&items, next.as_deref(), &uri, &binding))
}

/// Returns the owner whose schedules are requested. `None` for an operator: all of the tenant.
fn selected_owner(caller: &Caller, params: &QueryParams) -> Result<Option<Owner>, Problem> {
    let selected = access::selected_user(caller, params)?;
    if !caller.is_operator() {
        return Ok(Some(caller.owner.clone()));
    }
    Ok(selected.map(|user| Owner { tenant: caller.owner.tenant.clone(), user }))
}

/// Get a schedule.
#[utoipa::path(
    get, path = "/schedules/{id}", operation_id = "getSchedule", tag = "schedules",
    params(
        ("id" = String, Path),
        ("userId" = Option<String>, Query, description = "For operators: the owner of the schedules."),
    ),
    responses((status = 200, body = ScheduleView))
)]
pub(crate) async fn read(
    State(api): State<SharedApi>,
    caller: Caller,
    Path(id): Path<String>,
    OriginalUri(uri): OriginalUri,
) -> HandlerResult {
    let owner = selected_owner(&caller, &QueryParams::from_uri(&uri))?
        .unwrap_or_else(|| caller.owner.clone());
    let schedule = schedules::load_schedule(&api.services, &owner, &id).await?;
    Ok(json(StatusCode::OK, &ScheduleView::from_schedule(&schedule)))
}

/// Cancel a schedule. It never fires again.
#[utoipa::path(
    delete, path = "/schedules/{id}", operation_id = "deleteSchedule", tag = "schedules",
    params(("id" = String, Path)),
    responses((status = 204))
)]
pub(crate) async fn cancel(
    State(api): State<SharedApi>,
    caller: Caller,
    Path(id): Path<String>,
) -> HandlerResult {
    access::refuse_operator(&caller)?;
    schedules::cancel_schedule(&api.services, &caller.owner, &id).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}
