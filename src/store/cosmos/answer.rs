//! What Cosmos answers, in the words of the port; and what it cost.

use std::sync::Arc;
use std::time::Duration;

use azure_data_cosmos::diagnostics::DiagnosticsContext;
use azure_data_cosmos::models::{BatchResponse, TransactionalBatchOperationResult};
use azure_data_cosmos::{CosmosError, CosmosStatus};

use crate::store::{ETag, StoreError, Write};
use crate::telemetry::meter;

/// An operation of a batch that failed only because another one did.
const FAILED_DEPENDENCY: u16 = 424;

/// Why there was no answer, or none that decides anything.
#[derive(Debug, thiserror::Error)]
#[error("{text}")]
struct Fault {
    text: String,
    /// Only what the SDK itself says, such as a connection that failed: a service's text may quote the request.
    source: Option<CosmosError>,
}

/// Counts every request of one operation of the SDK, its own repetitions too.
pub(super) fn note(operation: &'static str, diagnostics: &DiagnosticsContext) {
    let requests = diagnostics.request_count();
    let request_units = diagnostics.total_request_charge().value();
    if requests > 0 {
        meter::count(operation, request_units);
    }
    for _ in 1..requests {
        meter::count(operation, 0.0);
    }
    let status = diagnostics.effective_status().map(|status| status.to_string());
    tracing::debug!(operation, requests, request_units, activity_id = %diagnostics.activity_id(), status, "{operation}");
}

/// The answer of an operation, counted.
pub(super) fn noted<T>(
    operation: &'static str,
    answer: Result<T, CosmosError>,
    diagnostics: impl FnOnce(&T) -> Arc<DiagnosticsContext>,
) -> Result<T, CosmosError> {
    match &answer {
        Ok(answer) => note(operation, &diagnostics(answer)),
        Err(error) => {
            if let Some(diagnostics) = error.diagnostics() {
                note(operation, &diagnostics);
            }
        }
    }
    answer
}

/// Exactly 200 is a batch that was applied; 207 is one that was not, with its cause among the operations.
pub(super) fn of_batch(answer: BatchResponse, writes: &[Write]) -> Result<Vec<ETag>, StoreError> {
    let whole = answer.status();
    let activity = answer.diagnostics().activity_id().to_string();
    // An answer that cannot be read says nothing about the batch.
    let model = answer.into_model().map_err(|error| of_transport(error, &activity))?;
    let results = model.results();
    if u16::from(whole.status_code()) != 200 {
        let cause = results.iter().find(|result| result.status_code() != FAILED_DEPENDENCY);
        return Err(of_operation(cause, whole, &activity));
    }
    let etags: Vec<ETag> = writes
        .iter()
        .zip(results)
        .map(|(write, result)| match write {
            Write::Create(_) | Write::Replace(..) => result.etag().unwrap_or_default().to_owned(),
            Write::Delete(..) => String::new(),
        })
        .map(ETag)
        .collect();
    if etags.len() == writes.len() {
        return Ok(etags);
    }
    Err(unavailable(format!("Cosmos answered a batch in part (activity {activity})"), None))
}

fn of_operation(
    cause: Option<&TransactionalBatchOperationResult>,
    whole: CosmosStatus,
    activity: &str,
) -> StoreError {
    let Some(cause) = cause else {
        return unavailable(format!("Cosmos answered {whole} (activity {activity})"), None);
    };
    match cause.status_code() {
        404 | 409 | 412 => StoreError::Conflict,
        413 => StoreError::TooLarge("a document is larger than Cosmos takes".to_owned()),
        400 => StoreError::Invalid(format!(
            "Cosmos refuses an operation of the batch (activity {activity})"
        )),
        status => {
            let again = wait(cause.retry_after());
            unavailable(
                format!("Cosmos answered {status} to an operation (activity {activity}){again}"),
                None,
            )
        }
    }
}

/// A request that failed as a whole.
pub(super) fn of_request(error: CosmosError) -> StoreError {
    let status = error.status();
    let again = error.response().and_then(|response| response.headers().retry_after_ms);
    let activity = error
        .diagnostics()
        .map_or_else(String::new, |diagnostics| diagnostics.activity_id().to_string());
    let is_elsewhere = status.is_write_forbidden() || status.is_database_account_not_found();
    match u16::from(status.status_code()) {
        409 | 412 => StoreError::Conflict,
        413 => StoreError::TooLarge("the request is larger than Cosmos takes".to_owned()),
        400 => StoreError::Invalid(format!("Cosmos answered {status} (activity {activity})")),
        401 | 403 if !is_elsewhere => unavailable(
            format!(
                "Cosmos answered {status} (activity {activity}): an identity needs the role `Cosmos DB Built-in Data Contributor` on the account, a key must be one of the account's keys"
            ),
            None,
        ),
        404 => unavailable(
            format!(
                "Cosmos answered {status} (activity {activity}): the container is not there; deploy `infra/`"
            ),
            None,
        ),
        _ => {
            let again = wait(again.map(Duration::from_millis));
            let source = (!error.is_from_wire()).then_some(error);
            unavailable(format!("Cosmos answered {status} (activity {activity}){again}"), source)
        }
    }
}

fn of_transport(error: CosmosError, activity: &str) -> StoreError {
    unavailable(format!("what Cosmos answered cannot be read (activity {activity})"), Some(error))
}

fn wait(retry_after: Option<Duration>) -> String {
    retry_after.map_or_else(String::new, |after| format!("; again in {} ms", after.as_millis()))
}

pub(super) fn unavailable(text: String, source: Option<CosmosError>) -> StoreError {
    StoreError::Unavailable(Box::new(Fault { text, source }))
}
