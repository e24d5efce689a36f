//! User routes: deletion of the caller's data.

use axum::extract::State;
use http::StatusCode;

use crate::auth::Caller;
use crate::{HandlerResult, SharedApi, access, json};
use turnwheel_commands::delete_user::{UserDeletion, delete_user_data};
use turnwheel_commands::schedules;

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
