//! Schedule routes: create, list, read and cancel schedules.

use axum::extract::{OriginalUri, Path, State};
use axum::response::{IntoResponse, Response};
use http::{HeaderMap, StatusCode};

use crate::agent::schedule::Schedule;
use crate::http::body::Json;
use crate::http::idempotency::idempotency;
use crate::http::lists::{Params, page};
use crate::http::owner::Caller;
use crate::http::problem::Problem;
use crate::http::{Shared, answered, json, reach};
use crate::turn::admission::Owner;
use crate::turn::schedules::create::NewSchedule;
use crate::turn::schedules::{self, of_tenant, of_user};
use crate::turn::views::schedules::ScheduleView;

type Answered = Result<Response, Problem>;

/// Create a schedule: a prompt at a later time, once or repeatedly.
#[utoipa::path(
    post, path = "/schedules", operation_id = "createSchedule", tag = "schedules", request_body = NewSchedule,
    params(("Idempotency-Key" = Option<String>, Header, description = "Valid for the lifetime of the schedule.")),
    responses(
        (status = 201, body = ScheduleView, headers(("Location" = String))),
        (status = 400, body = crate::http::openapi::Problem, content_type = "application/problem+json"),
        (status = 409, body = crate::http::openapi::Problem, content_type = "application/problem+json", description = "The id is taken, or the user has 100 schedules."),
    )
)]
pub(crate) async fn create(
    State(api): State<Shared>,
    caller: Caller,
    headers: HeaderMap,
    Json { value, hash }: Json<NewSchedule>,
) -> Answered {
    reach::refuse_operator(&caller)?;
    let idempotency = idempotency(&api, &headers, "POST /schedules", hash)?;
    let made =
        schedules::create::create(&api.world, &caller.owner, value, &idempotency, None).await?;
    Ok(answered(made))
}

/// List the caller's schedules, newest first.
/// For operators: the schedules of the tenant, user by user.
#[utoipa::path(
    get, path = "/schedules", operation_id = "listSchedules", tag = "schedules",
    params(
        ("limit" = Option<u32>, Query), ("continuation" = Option<String>, Query),
        ("userId" = Option<String>, Query, description = "For operators: the owner of the schedules."),
    ),
    responses((status = 200, body = crate::http::openapi::Schedules))
)]
pub(crate) async fn list(
    State(api): State<Shared>,
    caller: Caller,
    OriginalUri(uri): OriginalUri,
) -> Answered {
    let params = Params::of(&uri);
    let Some(owner) = whose(&caller, &params)? else {
        let tenant = &caller.owner.tenant;
        let binding = format!("schedules {tenant}");
        let from = params.continuation(&binding)?;
        let found = of_tenant(&api.world, tenant, params.limit()?, from).await?;
        let items: Vec<ScheduleView> = found.items.iter().map(ScheduleView::of).collect();
        return Ok(page(&items, found.continuation.as_deref(), (&uri, &binding)));
    };
    let binding = format!("schedules {}/{}", owner.tenant, owner.user);
    let (from, limit) = (params.position(&binding)?, params.limit()?);
    let all: Vec<Schedule> = of_user(&api.world, &owner).await?;
    let items: Vec<ScheduleView> =
        all.iter().skip(from).take(limit).map(ScheduleView::of).collect();
    let next = (from + limit < all.len()).then(|| (from + limit).to_string());
    Ok(page(&items, next.as_deref(), (&uri, &binding)))
}

/// Returns the owner whose schedules are requested. `None` for an operator: all of the tenant.
fn whose(caller: &Caller, params: &Params) -> Result<Option<Owner>, Problem> {
    let selected = reach::selected_user(caller, params)?;
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
    State(api): State<Shared>,
    caller: Caller,
    Path(id): Path<String>,
    OriginalUri(uri): OriginalUri,
) -> Answered {
    let owner = whose(&caller, &Params::of(&uri))?.unwrap_or_else(|| caller.owner.clone());
    let schedule = schedules::read(&api.world, &owner, &id).await?;
    Ok(json(StatusCode::OK, &ScheduleView::of(&schedule)))
}

/// Cancel a schedule. It never fires again.
#[utoipa::path(
    delete, path = "/schedules/{id}", operation_id = "deleteSchedule", tag = "schedules",
    params(("id" = String, Path)),
    responses((status = 204))
)]
pub(crate) async fn cancel(
    State(api): State<Shared>,
    caller: Caller,
    Path(id): Path<String>,
) -> Answered {
    reach::refuse_operator(&caller)?;
    schedules::cancel(&api.world, &caller.owner, &id).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}
