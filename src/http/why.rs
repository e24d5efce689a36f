//! Explanation routes: the state of one conversation, and for operators the backlog of the tenant.

use axum::extract::{OriginalUri, Path, State};
use axum::response::Response;
use http::StatusCode;

use crate::http::lists::Params;
use crate::http::owner::Caller;
use crate::http::problem::{self, Problem};
use crate::http::{Shared, json, reach};
use crate::turn::views::why::{Service, WhyView, why};
use crate::turn::views::work::{WorkQuery, WorkReport, work};

type Answered = Result<Response, Problem>;

/// Maximum of `?stuck=`: ten years, longer than any delay.
const STUCK_MAX: u64 = 10 * 365 * 24 * 3_600;

/// Explain the state of a conversation in one sentence.
#[utoipa::path(
    get, path = "/conversations/{id}/why", operation_id = "explainConversation", tag = "conversations",
    params(("id" = String, Path)),
    responses((status = 200, body = WhyView))
)]
pub(crate) async fn read(
    State(api): State<Shared>,
    caller: Caller,
    Path(id): Path<String>,
    OriginalUri(uri): OriginalUri,
) -> Answered {
    let (key, _) = reach::to_read(&api, &caller, (&id, &uri)).await?;
    let world = &api.world;
    let view = why(&*world.store, &key, Service::Here(&world.agents), world.clock.now()).await?;
    Ok(json(StatusCode::OK, &view))
}

/// List the conversations of the tenant with pending work, each with an explanation.
/// For operators only.
#[utoipa::path(
    get, path = "/work", operation_id = "listWork", tag = "service",
    params(
        ("stuck" = Option<u64>, Query, description = "Seconds. Only work that is overdue by that time and not paused."),
        ("waiting" = Option<bool>, Query, description = "`true`: only conversations that wait for a decision."),
    ),
    responses((status = 200, body = WorkReport))
)]
pub(crate) async fn list(
    State(api): State<Shared>,
    caller: Caller,
    OriginalUri(uri): OriginalUri,
) -> Answered {
    if !caller.is_operator() {
        return Err(Problem::new(
            problem::FORBIDDEN,
            "This route requires the role Turnwheel.Operator. `dev` takes it from the header `turnwheel-roles`.",
        ));
    }
    let params = Params::of(&uri);
    let stuck = params.number("stuck", 0, STUCK_MAX)?;
    let query = WorkQuery {
        tenant: Some(caller.owner.tenant),
        stuck: stuck.map(std::time::Duration::from_secs),
        is_waiting: params.flag("waiting")?.unwrap_or(false),
    };
    let (world, now) = (&api.world, api.world.clock.now());
    let report = work(&*world.store, &query, Service::Here(&world.agents), now).await?;
    Ok(json(StatusCode::OK, &report))
}
