//! Routes of usage and budgets: those of the caller; for operators of the whole tenant.

use axum::extract::{OriginalUri, State};
use axum::response::Response;
use http::StatusCode;

use crate::access::store_problem;
use crate::auth::Caller;
use crate::lists::QueryParams;
use crate::problem::Problem;
use crate::{SharedApi, json};
use turnwheel_queries::budgets::{BudgetList, list_budgets};
use turnwheel_queries::usage::{DayRange, UsageGrouping, UsageReport, UsageScope, report_usage};
use turnwheel_record::contract::FieldError;

/// Get model calls, tokens and cost, by day, user, agent or tenant.
/// A model call appears about 10 to 15 minutes later. A prompt and a conversation have their own
/// usage at once.
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
    State(api): State<SharedApi>,
    caller: Caller,
    OriginalUri(uri): OriginalUri,
) -> Result<Response, Problem> {
    let params = QueryParams::from_uri(&uri);
    let by = params.get("by").unwrap_or("day");
    let by: UsageGrouping = by.parse().map_err(|_| {
        let detail = "`by` must be `tenant`, `user`, `agent` or `day`.";
        Problem::bad_request(detail).with_errors(vec![FieldError::new("?by", detail)])
    })?;
    let days = DayRange::parse(params.get("from"), params.get("to"), api.services.clock.now())?;
    let is_whole_tenant = caller.is_operator();
    let whose = UsageScope {
        tenant: caller.owner.tenant,
        user: (!is_whole_tenant).then_some(caller.owner.user),
    };
    let report =
        report_usage(&*api.services.store, &whose, by, days).await.map_err(store_problem)?;
    Ok(json(StatusCode::OK, &report))
}

/// List the limits of `TURNWHEEL_BUDGETS` with their usage and the reservations of running calls.
/// Limits of prompts and conversations are not among them.
#[utoipa::path(
    get, path = "/budgets", operation_id = "listBudgets", tag = "usage",
    responses((status = 200, body = BudgetList, description = "Limits of the caller; for operators also those of agents and of the tenant."))
)]
pub(crate) async fn list_limits(
    State(api): State<SharedApi>,
    caller: Caller,
) -> Result<Response, Problem> {
    let is_whole_tenant = caller.is_operator();
    let budgets = list_budgets(&api.services, &caller.owner, is_whole_tenant).await;
    Ok(json(StatusCode::OK, &budgets.map_err(store_problem)?))
}
