//! Mapping of Cosmos responses and errors to the store port, with request costs.

use std::sync::Arc;
use std::time::Duration;

use azure_data_cosmos::diagnostics::DiagnosticsContext;
use azure_data_cosmos::models::{BatchResponse, TransactionalBatchOperationResult};
use azure_data_cosmos::{CosmosError, CosmosStatus};

use crate::store::{ETag, StoreError, Write};
use turnwheel_azure::cosmos::is_region_change;
use turnwheel_platform::telemetry::cost_meter;

/// Status of an operation that failed only because another operation of the batch failed.
const FAILED_DEPENDENCY: u16 = 424;

/// A failed request with unknown outcome.
#[derive(Debug, thiserror::Error)]
#[error("{text}")]
struct ResponseError {
    text: String,
    /// Only errors of the SDK itself, such as a failed connection: texts of the service may quote
    /// the request.
    source: Option<CosmosError>,
}

/// Records the cost of one SDK operation, including the SDK's own retries.
pub(super) fn record_cost(operation: &'static str, diagnostics: &DiagnosticsContext) {
    let requests = diagnostics.request_count();
    let request_units = diagnostics.total_request_charge().value();
    if requests > 0 {
        cost_meter::count_request(operation, request_units);
    }
    for _ in 1..requests {
        cost_meter::count_request(operation, 0.0);
    }
    let status = diagnostics.effective_status().map(|status| status.to_string());
    tracing::debug!(operation, requests, request_units, activity_id = %diagnostics.activity_id(), status, "{operation}");
}

/// Records the cost of an operation and returns its result.
pub(super) fn with_recorded_cost<T>(
    operation: &'static str,
    answer: Result<T, CosmosError>,
    diagnostics: impl FnOnce(&T) -> Arc<DiagnosticsContext>,
) -> Result<T, CosmosError> {
    match &answer {
        Ok(answer) => record_cost(operation, &diagnostics(answer)),
        Err(error) => {
            if let Some(diagnostics) = error.diagnostics() {
                record_cost(operation, &diagnostics);
            }
        }
    }
    answer
}

/// Why a batch was not applied.
#[derive(Debug)]
pub(super) enum BatchError {
    /// The condition of the operation at that position is not met.
    Conflict(usize),
    Other(StoreError),
}

impl BatchError {
    pub(super) fn into_store_error(self) -> StoreError {
        match self {
            Self::Conflict(_) => StoreError::Conflict,
            Self::Other(error) => error,
        }
    }
}

impl From<StoreError> for BatchError {
    fn from(error: StoreError) -> Self {
        Self::Other(error)
    }
}

/// Maps the response of a batch. Status 200 means applied; 207 means not applied, with the cause
/// among the operations.
pub(super) fn batch_result(
    answer: BatchResponse,
    writes: &[Write],
) -> Result<Vec<ETag>, BatchError> {
    let batch_status = answer.status();
    let activity = answer.diagnostics().activity_id().to_string();
    // After an unreadable response the outcome of the batch is unknown.
    let model = answer.into_model().map_err(|error| unreadable_response(error, &activity))?;
    let results = model.results();
    if u16::from(batch_status.status_code()) != 200 {
        let cause = results.iter().position(|result| result.status_code() != FAILED_DEPENDENCY);
        let error = operation_error(cause.and_then(|at| results.get(at)), batch_status, &activity);
        return Err(match (error, cause) {
            (StoreError::Conflict, Some(at)) => BatchError::Conflict(at),
            (error, _) => BatchError::Other(error),
        });
    }
    let etags: Vec<ETag> = writes
        .iter()
        .zip(results)
        .map(|(write, result)| match write {
            Write::Create(_) | Write::Replace(..) => result.etag().unwrap_or_default().to_owned(),
            Write::Delete(..) | Write::CountInboxChange { .. } => String::new(),
        })
        .map(ETag)
        .collect();
    if etags.len() == writes.len() {
        return Ok(etags);
    }
    Err(unavailable(format!("incomplete Cosmos response to a batch (activity {activity})"), None)
        .into())
}

fn operation_error(
    cause: Option<&TransactionalBatchOperationResult>,
    batch_status: CosmosStatus,
    activity: &str,
) -> StoreError {
    let Some(cause) = cause else {
        return unavailable(format!("Cosmos returned {batch_status} (activity {activity})"), None);
    };
    match cause.status_code() {
        404 | 409 | 412 => StoreError::Conflict,
        413 => StoreError::TooLarge("a document is larger than Cosmos allows".to_owned()),
        400 => StoreError::Invalid(format!(
            "Cosmos rejected an operation of the batch (activity {activity})"
        )),
        status => {
            let retry_hint = retry_hint(cause.retry_after());
            unavailable(
                format!(
                    "Cosmos returned {status} for an operation (activity {activity}){retry_hint}"
                ),
                None,
            )
        }
    }
}

/// Maps the error of a whole request.
pub(super) fn request_error(error: CosmosError) -> StoreError {
    let status = error.status();
    let retry_after = error.response().and_then(|response| response.headers().retry_after_ms);
    let activity = error
        .diagnostics()
        .map_or_else(String::new, |diagnostics| diagnostics.activity_id().to_string());
    match u16::from(status.status_code()) {
        409 | 412 => StoreError::Conflict,
        413 => StoreError::TooLarge("the request is larger than Cosmos allows".to_owned()),
        400 => StoreError::Invalid(format!("Cosmos returned {status} (activity {activity})")),
        401 | 403 if !is_region_change(status) => unavailable(
            format!(
                "Cosmos returned {status} (activity {activity}): an identity needs the role `Cosmos DB Built-in Data Contributor` on the account, a key must be one of the account's keys"
            ),
            None,
        ),
        404 => unavailable(
            format!(
                "Cosmos returned {status} (activity {activity}): the container does not exist; deploy `infra/`"
            ),
            None,
        ),
        _ => {
            let retry_after = retry_hint(retry_after.map(Duration::from_millis));
            let source = (!error.is_from_wire()).then_some(error);
            unavailable(
                format!("Cosmos returned {status} (activity {activity}){retry_after}"),
                source,
            )
        }
    }
}

fn unreadable_response(error: CosmosError, activity: &str) -> StoreError {
    unavailable(format!("the Cosmos response cannot be read (activity {activity})"), Some(error))
}

fn retry_hint(retry_after: Option<Duration>) -> String {
    retry_after.map_or_else(String::new, |after| format!("; retry in {} ms", after.as_millis()))
}

pub(super) fn unavailable(text: String, source: Option<CosmosError>) -> StoreError {
    StoreError::Unavailable(Box::new(ResponseError { text, source }))
}
