//! Health route, which checks store and queues at most every 30 s; and the list of agents.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use http::StatusCode;
use http::header::{CACHE_CONTROL, RETRY_AFTER};
use serde_json::json;
use tokio::sync::Mutex;

use crate::auth::Caller;
use crate::problem::Problem;
use crate::schema::{AgentView, ExtensionView};
use crate::{Api, SharedApi};
use turnwheel_agent_files::{Agent, Catalog};
use turnwheel_conversation::settings::DEFAULT_MODEL;
use turnwheel_extensions::Extension;
use turnwheel_platform::error_chain::error_chain;
use turnwheel_platform::ids::TenantId;
use turnwheel_record::services::Services;
use turnwheel_storage::queue::TURNS;
use turnwheel_storage::store::{Document, DocumentKind, Freshness, Partition, StoreError, Write};
use turnwheel_tools::CallableTool;
use turnwheel_turn::remote_tools::load_unknown_definitions;

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

/// List the agents of the app, by name.
#[utoipa::path(
    get, path = "/agents", operation_id = "listAgents", tag = "service",
    responses((status = 200, body = crate::schema::Agents))
)]
pub(crate) async fn agents(
    State(api): State<SharedApi>,
    caller: Caller,
) -> Result<Response, Problem> {
    let catalog = api.services.agents.current();
    let sources = catalog.agents.values().flat_map(|agent| &agent.mcp);
    load_unknown_definitions(&api.services, &caller.owner.tenant, sources).await;
    let mut items: Vec<AgentView> =
        catalog.agents.values().map(|agent| agent_view(&api, &catalog, agent)).collect();
    let unavailable =
        catalog.broken.values().filter(|broken| !catalog.agents.contains_key(&broken.name));
    items.extend(unavailable.map(|broken| AgentView {
        name: broken.name.clone(),
        description: String::new(),
        model: None,
        tools: Vec::new(),
        tool_labels: BTreeMap::new(),
        extensions: Vec::new(),
        plugins: Vec::new(),
        revision: None,
        available: false,
        problem: Some(broken.problem.clone()),
    }));
    items.sort_by(|one, other| one.name.cmp(&other.name));
    Ok(axum::Json(json!({"items": items})).into_response())
}

fn agent_view(api: &Api, catalog: &Catalog, agent: &Agent) -> AgentView {
    let model = agent.settings.model.as_deref().unwrap_or(DEFAULT_MODEL);
    let pause = api.services.pauses.find_for_agent(&agent.name);
    let paused = pause
        .map(|on| format!("Paused by TURNWHEEL_PAUSED (`{on}`): prompts are accepted and wait."));
    let unavailable = api.services.model.record(model).err().or(paused);
    let available = unavailable.is_none();
    let broken = catalog.broken.get(&agent.name).map(|broken| broken.problem.clone());
    let extensions = api.services.extensions_of(Some(agent)).map(|it| extension_view(&**it, &[]));
    let plugins = agent.plugins.iter().map(|it| extension_view(&*it.hook(), it.tools()));
    let tools = agent.all_tools();
    AgentView {
        name: agent.name.clone(),
        description: agent.description.clone(),
        model: Some(model.to_owned()),
        tool_labels: tool_labels(&tools),
        tools: tool_names(&tools),
        extensions: extensions.collect(),
        plugins: plugins.collect(),
        revision: Some(agent.revision.clone()),
        available,
        problem: unavailable.or(broken),
    }
}

fn extension_view(extension: &dyn Extension, tools: &[Arc<dyn CallableTool>]) -> ExtensionView {
    ExtensionView {
        name: extension.name().to_owned(),
        remote: extension.is_remote(),
        permissions: extension.permissions(),
        tools: tool_names(tools),
    }
}

fn tool_names(tools: &[Arc<dyn CallableTool>]) -> Vec<String> {
    tools.iter().map(|tool| tool.definition().name.clone()).collect()
}

fn tool_labels(tools: &[Arc<dyn CallableTool>]) -> BTreeMap<String, String> {
    let definitions = tools.iter().map(|tool| tool.definition());
    definitions.filter_map(|it| Some((it.name.clone(), it.display_name()?))).collect()
}
