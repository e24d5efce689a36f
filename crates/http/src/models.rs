//! Model route: the models that prompts can use.

use axum::extract::State;
use axum::response::Response;
use http::StatusCode;

use crate::auth::Caller;
use crate::{SharedApi, json};
use turnwheel_queries::models::{Models, list_models};

/// List the configured models with their abilities and prices.
#[utoipa::path(
    get, path = "/models", operation_id = "listModels", tag = "service",
    responses((status = 200, body = Models))
)]
pub(crate) async fn list(State(api): State<SharedApi>, _: Caller) -> Response {
    json(StatusCode::OK, &list_models(&api.services))
}
