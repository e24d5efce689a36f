//! Explanation routes: the state of one conversation, and for operators the backlog of the tenant.

use axum::extract::{OriginalUri, State};
use http::StatusCode;

use crate::auth::Caller;
use crate::conversation_request::ConversationRead;
use crate::lists::QueryParams;
use crate::problem::{self, Problem};
use crate::{HandlerResult, SharedApi, json};
use turnwheel_queries::backlog::{BacklogQuery, BacklogReport, report_backlog};
use turnwheel_queries::why::{ServiceStatus, WhyView, explain_conversation};

/// Maximum of `?stuck=`: ten years, longer than any delay.
const STUCK_SECONDS_MAX: u64 = 10 * 365 * 24 * 3_600;

/// Explain the state of a conversation in one sentence.
#[utoipa::path(
    get, path = "/conversations/{id}/why", operation_id = "explainConversation", tag = "conversations",
    params(("id" = String, Path)),
    responses((status = 200, body = WhyView))
)]
pub(crate) async fn read(read: ConversationRead) -> HandlerResult {
    let ConversationRead { api, key, .. } = read;
    let services = &api.services;
    let view = explain_conversation(
        &*services.store,
        &key,
        ServiceStatus::Local(services),
        services.clock.now(),
    )
    .await?;
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
    responses((status = 200, body = BacklogReport))
)]
pub(crate) async fn list(
    State(api): State<SharedApi>,
    caller: Caller,
    OriginalUri(uri): OriginalUri,
) -> HandlerResult {
    if !caller.is_operator() {
        return Err(operator_role_required());
    }
    let params = QueryParams::from_uri(&uri);
    let stuck = params.number("stuck", 0, STUCK_SECONDS_MAX)?;
    let query = BacklogQuery {
        tenant: Some(caller.owner.tenant),
        stuck: stuck.map(std::time::Duration::from_secs),
        is_waiting_for_approver: params.flag("waiting")?.unwrap_or(false),
    };
    let (services, now) = (&api.services, api.services.clock.now());
    let report =
        report_backlog(&*services.store, &query, ServiceStatus::Local(services), now).await?;
    Ok(json(StatusCode::OK, &report))
}

/// The problem of a caller without the role.
pub(crate) fn operator_role_required() -> Problem {
    Problem::new(
        problem::FORBIDDEN,
        "This route requires the role Turnwheel.Operator. `dev` takes it from the header `turnwheel-roles`.",
    )
}
