//! Health route, which checks store and queues at most every 30 s.

use std::time::Duration;

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use http::StatusCode;
use http::header::{CACHE_CONTROL, RETRY_AFTER};
use serde_json::json;
use tokio::sync::Mutex;

use crate::SharedApi;
use turnwheel_platform::error_chain::error_chain;
use turnwheel_platform::ids::TenantId;
use turnwheel_record::services::Services;
use turnwheel_storage::queue::TURNS;
use turnwheel_storage::store::{Document, DocumentKind, Freshness, Partition, StoreError, Write};

/// Maximum age of a check result that is reused.
const CHECK_AGE_MAX: Duration = Duration::from_secs(30);
/// Tenant and id of the document that a check writes.
const HEALTH_ID: &str = "health";
const CHECK_TIMEOUT: Duration = Duration::from_secs(5);

/// Time and result of the last check. The lock makes concurrent requests share one check.
#[derive(Debug, Default)]
pub struct HealthCache(Mutex<Option<(Duration, bool)>>);

impl HealthCache {
    async fn is_healthy(&self, services: &Services) -> bool {
        let mut last = self.0.lock().await;
        let now = services.clock.monotonic();
        if let Some((at, is_healthy)) = *last
            && now.saturating_sub(at) < CHECK_AGE_MAX
        {
            return is_healthy;
        }
        let is_healthy = check_dependencies(services).await;
        *last = Some((now, is_healthy));
        is_healthy
    }
}

/// Writes one small document: with a full disk or a read-only account, reads still succeed.
async fn write_health_document(services: &Services) -> Result<(), StoreError> {
    let partition = Partition::Scope(TenantId::new(HEALTH_ID));
    let now = services.clock.now();
    let body = json!({"checkedAt": now.to_string()});
    let document = Document::new(HEALTH_ID, DocumentKind::Scope, &body, None);
    let found = services.store.read(&partition, HEALTH_ID, Freshness::Any).await?;
    let write = match found {
        Some(_) => Write::Replace(document, None),
        None => Write::Create(document),
    };
    match services.store.write(&partition, vec![write]).await {
        // Another instance is running its check.
        Ok(_) | Err(StoreError::Conflict) => Ok(()),
        Err(error) => Err(error),
    }
}

async fn check_dependencies(services: &Services) -> bool {
    let store = tokio::time::timeout(CHECK_TIMEOUT, write_health_document(services));
    let queue = tokio::time::timeout(CHECK_TIMEOUT, services.queue.length(TURNS));
    let (store, queue) = tokio::join!(store, queue);
    let store = match store {
        Ok(Ok(())) => None,
        Ok(Err(error)) => Some(error_chain(&error)),
        Err(_) => Some("timed out".to_owned()),
    };
    let queue = match queue {
        Ok(Ok(_)) => None,
        Ok(Err(error)) => Some(error_chain(&error)),
        Err(_) => Some("timed out".to_owned()),
    };
    for (dependency, error) in [("store", &store), ("queue", &queue)] {
        if let Some(error) = error {
            tracing::error!(dependency = dependency, error = %error, "health check failed");
        }
    }
    store.is_none() && queue.is_none()
}

/// Get the health of the service.
/// For load balancers: the response has no details.
#[utoipa::path(
    get, path = "/health", operation_id = "getHealth", tag = "service",
    responses((status = 200, body = crate::schema::Health), (status = 503, content((crate::schema::Health = "application/json"), (crate::schema::Problem = "application/problem+json")), headers(("Retry-After" = String))))
)]
pub(crate) async fn health(State(api): State<SharedApi>) -> Response {
    let is_healthy = api.health.is_healthy(&api.services).await;
    let (status, word) = if is_healthy {
        (StatusCode::OK, "ok")
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, "unavailable")
    };
    let mut response = (status, axum::Json(json!({"status": word}))).into_response();
    response.headers_mut().insert(CACHE_CONTROL, http::HeaderValue::from_static("no-store"));
    if !is_healthy {
        response.headers_mut().insert(RETRY_AFTER, http::HeaderValue::from_static("30"));
    }
    response
}
