//! Usage route: usage of the caller; for operators of the whole tenant.

use axum::extract::{OriginalUri, State};
use axum::response::Response;
use http::StatusCode;

use crate::http::lists::Params;
use crate::http::owner::Caller;
use crate::http::problem::Problem;
use crate::http::reach::store_problem;
use crate::http::{Shared, json};
use crate::turn::admission::Fault;
use crate::turn::views::usage::{By, Days, UsageReport, Whose, usage};

/// Get model calls, tokens and cost, by day, user, agent or tenant.
#[utoipa::path(
    get, path = "/usage", operation_id = "getUsage", tag = "usage",
    params(
        ("by" = Option<String>, Query, description = "`tenant`, `user`, `agent` or `day` (default)."),
        ("from" = Option<String>, Query, description = "First day in UTC, such as 2026-11-22. Default: 30 days."),
        ("to" = Option<String>, Query, description = "Last day. Default: today."),
    ),
    responses((status = 200, body = UsageReport, description = "Usage of the caller; for operators of the whole tenant."))
)]
pub(crate) async fn read(
    State(api): State<Shared>,
    caller: Caller,
    OriginalUri(uri): OriginalUri,
) -> Result<Response, Problem> {
    let params = Params::of(&uri);
    let by = params.get("by").unwrap_or("day");
    let by = By::named(by).ok_or_else(|| {
        let detail = "`by` must be `tenant`, `user`, `agent` or `day`.";
        Problem::bad_request(detail).with_faults(vec![Fault::at("?by", detail)])
    })?;
    let days = Days::read(params.get("from"), params.get("to"), api.world.clock.now())?;
    let is_whole = caller.is_operator();
    let whose =
        Whose { tenant: caller.owner.tenant, user: (!is_whole).then_some(caller.owner.user) };
    let report = usage(&*api.world.store, &whose, by, days).await.map_err(store_problem)?;
    Ok(json(StatusCode::OK, &report))
}
