//! User routes: identity of the caller, deletion of its data.

use axum::extract::State;
use http::StatusCode;
use serde::Serialize;
use utoipa::ToSchema;

use crate::api::ProcessIdentity;
use crate::auth::Caller;
use crate::{Api, HandlerResult, SharedApi, access, json};
use turnwheel_commands::delete_user::{UserDeletion, delete_user_data};
use turnwheel_commands::schedules;

/// The caller as the API knows it, and the service.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Identity {
    tenant_id: String,
    user_id: String,
    roles: Vec<String>,
    /// True with the role that reads its tenant and changes nothing.
    is_operator: bool,
    /// `keys`, `easyauth` or `header`. With `keys` all callers are one user.
    auth: &'static str,
    /// True in `turnwheel dev`.
    is_dev: bool,
    /// Version of Turnwheel.
    version: &'static str,
    /// Parts that some services have for this caller: `kill`, the demonstration of `dev`, and `doctor`.
    features: Vec<&'static str>,
    /// Only in `turnwheel dev`, for `POST /admin/process/kill`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    process: Option<ProcessIdentity>,
}

/// Get the identity of the caller.
#[utoipa::path(
    get, path = "/me", operation_id = "getIdentity", tag = "users",
    responses((status = 200, body = Identity))
)]
pub(crate) async fn read_identity(State(api): State<SharedApi>, caller: Caller) -> HandlerResult {
    let identity = Identity {
        tenant_id: caller.owner.tenant.to_string(),
        user_id: caller.owner.user.to_string(),
        is_operator: caller.is_operator(),
        auth: api.access.auth.into_str(),
        is_dev: api.access.is_dev,
        version: env!("CARGO_PKG_VERSION"),
        features: features_of(&api, &caller),
        process: api.process.clone(),
        roles: caller.roles,
    };
    Ok(json(StatusCode::OK, &identity))
}

fn features_of(api: &Api, caller: &Caller) -> Vec<&'static str> {
    let has_doctor = api.doctor.is_some() && (caller.is_operator() || api.access.is_dev);
    let features = [("kill", api.process.is_some()), ("doctor", has_doctor)];
    features.into_iter().filter(|(_, is_there)| *is_there).map(|(name, _)| name).collect()
}

/// Delete the data of the caller: schedules, conversations, memory, profile, skills.
/// Repeat the request until the response has `isComplete`.
#[utoipa::path(
    delete, path = "/me", operation_id = "deleteUserData", tag = "users",
    responses(
        (status = 200, body = UserDeletion),
        (status = 409, description = "`effect-in-flight`: a write is in progress. Everything else is deleted."),
    )
)]
pub(crate) async fn delete_own_data(State(api): State<SharedApi>, caller: Caller) -> HandlerResult {
    access::refuse_operator(&caller)?;
    let (services, owner) = (&api.services, &caller.owner);
    let schedules = schedules::cancel_all_of_user(services, owner).await?;
    let deletion = Box::pin(delete_user_data(services, owner)).await?;
    Ok(json(StatusCode::OK, &UserDeletion { schedules, ..deletion }))
}
