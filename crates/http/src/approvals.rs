//! Approval routes: list open approvals and decide one.

use axum::extract::{OriginalUri, Path, State};

use crate::auth::Caller;
use crate::body::JsonBody;
use crate::lists::{QueryParams, page_response};
use crate::{HandlerResult, SharedApi, access, into_response};
use turnwheel_commands::decide::{DecisionRequest, DecisionSender, decide};
use turnwheel_queries::approvals::{ApprovalRecord, ApprovalView, SettledView, list_decidable};

/// List the approval requests that the caller may decide, oldest first.
#[utoipa::path(
    get, path = "/approvals", operation_id = "listApprovals", tag = "approvals",
    params(("limit" = Option<u32>, Query), ("continuation" = Option<String>, Query)),
    responses((status = 200, body = crate::schema::Approvals))
)]
pub(crate) async fn list(
    State(api): State<SharedApi>,
    caller: Caller,
    OriginalUri(uri): OriginalUri,
) -> HandlerResult {
    let params = QueryParams::from_uri(&uri);
    let owner = &caller.owner;
    let binding = format!("approvals {}/{}", owner.tenant, owner.user);
    let (from, limit) = (params.position(&binding)?, params.limit()?);
    let all = if caller.is_operator() && caller.roles.len() == 1 {
        Vec::new()
    } else {
        list_decidable(&api.services, &owner.tenant, &owner.user, &caller.roles).await?
    };
    let view =
        |approval: &ApprovalRecord| ApprovalView { can_decide: Some(true), ..approval.view() };
    let items: Vec<ApprovalView> = all.iter().skip(from).take(limit).map(view).collect();
    let next = (from + limit < all.len()).then(|| (from + limit).to_string());
    Ok(page_response(&items, next.as_deref(), &uri, &binding))
}

/// Decide an approval request.
/// Repeating the same decision returns the same response.
#[utoipa::path(
    post, path = "/conversations/{id}/approvals/{approvalId}", operation_id = "decideApproval", tag = "approvals", request_body = DecisionRequest,
    params(
        ("id" = String, Path),
        ("approvalId" = String, Path, description = "Id of the approval, its tool call id, or the part of that id before `|`."),
        ("userId" = Option<String>, Query, description = "Owner of the conversation, if it is another user."),
    ),
    responses(
        (status = 200, body = SettledView),
        (status = 409, body = crate::schema::Problem, content_type = "application/problem+json", description = "`already-decided`: with the decision, its author and its time."),
        (status = 410, body = crate::schema::Problem, content_type = "application/problem+json", description = "`approval-expired`"),
    )
)]
pub(crate) async fn decide_approval(
    State(api): State<SharedApi>,
    caller: Caller,
    Path((id, approval_id)): Path<(String, String)>,
    OriginalUri(uri): OriginalUri,
    JsonBody { value, .. }: JsonBody<DecisionRequest>,
) -> HandlerResult {
    if caller.is_operator() && caller.roles.len() == 1 {
        access::refuse_operator(&caller)?;
    }
    let key = access::authorize_decision(&api, &caller, &id, &uri).await?;
    let (decider, clients) = (&caller.decider(), api.waiting_clients.as_deref());
    let sender = DecisionSender { decider, clients };
    let result = decide(&api.services, &key, &approval_id, value, sender).await?;
    Ok(into_response(result))
}
