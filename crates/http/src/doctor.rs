//! Doctor route: the checks of `turnwheel doctor`, for operators and in `dev`.

use async_trait::async_trait;
use axum::extract::State;
use http::StatusCode;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::auth::Caller;
use crate::problem::{self, Problem};
use crate::why::operator_role_required;
use crate::{HandlerResult, SharedApi, json};

/// Runs the checks of `turnwheel doctor` that send no request.
#[async_trait]
pub trait Doctor: Send + Sync {
    /// # Errors
    /// The checks did not run: log the text.
    async fn run_checks(&self) -> Result<ServiceChecks, String>;
}

/// Checks of the files and settings of a service.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct ServiceChecks {
    /// True if nothing is to fix.
    pub ok: bool,
    pub checks: Vec<DoctorCheck>,
}

/// A check. No text has a secret.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct DoctorCheck {
    /// `configuration`, `identity`, `storage`, `store`, `model` or `agents`.
    pub area: String,
    pub name: String,
    /// `ok`, `fix` or `skipped`.
    pub outcome: String,
    /// The result, the problem with its fix, or the reason why the check did not run.
    pub detail: String,
    /// The file with the problem.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub file: Option<String>,
    /// From 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub line: Option<u32>,
}

/// Check the files and settings of the service.
/// For operators and in `dev`; the checks are those of `turnwheel doctor --offline`.
#[utoipa::path(
    get, path = "/doctor", operation_id = "checkService", tag = "service",
    responses((status = 200, body = ServiceChecks))
)]
pub(crate) async fn check(State(api): State<SharedApi>, caller: Caller) -> HandlerResult {
    if !caller.is_operator() && !api.access.is_dev {
        return Err(operator_role_required());
    }
    let doctor = api.doctor.as_ref().ok_or_else(|| {
        Problem::new(
            problem::UNAVAILABLE,
            "This service cannot check itself: run `turnwheel doctor` in its folder.",
        )
    })?;
    let report = doctor.run_checks().await.map_err(|error| {
        tracing::error!(%error, "checks of the service failed");
        Problem::new(problem::UNAVAILABLE, "The checks did not run: the log has the reason.")
    })?;
    Ok(json(StatusCode::OK, &report))
}
