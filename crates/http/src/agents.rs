//! Agent routes: the agents of the app, and one of them with its tools.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::extract::{Path, State};
use axum::response::{IntoResponse, Response};
use http::StatusCode;
use serde_json::json;

use crate::auth::Caller;
use crate::problem::Problem;
use crate::schema::{AgentDetail, AgentView, ExtensionView, ToolView};
use crate::{Api, HandlerResult, SharedApi, access};
use turnwheel_agent_files::{AgentDefinition, BrokenAgent, Catalog};
use turnwheel_conversation::settings::DEFAULT_MODEL;
use turnwheel_extensions::Extension;
use turnwheel_platform::clock::millis;
use turnwheel_tools::CallableTool;
use turnwheel_turn::remote_tools::load_unknown_definitions;

/// List the agents of the app, by name.
#[utoipa::path(
    get, path = "/agents", operation_id = "listAgents", tag = "service",
    responses((status = 200, body = crate::schema::Agents))
)]
pub(crate) async fn list(
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
    items.extend(unavailable.map(broken_view));
    items.sort_by(|one, other| one.name.cmp(&other.name));
    Ok(axum::Json(json!({"items": items})).into_response())
}

/// Get an agent with its tools and, for operators and in `dev`, its instructions.
#[utoipa::path(
    get, path = "/agents/{name}", operation_id = "getAgent", tag = "service",
    params(("name" = String, Path)),
    responses((status = 200, body = AgentDetail))
)]
pub(crate) async fn agent(
    State(api): State<SharedApi>,
    caller: Caller,
    Path(name): Path<String>,
) -> HandlerResult {
    let catalog = api.services.agents.current();
    let Some(agent) = catalog.agents.get(&name) else {
        let broken = catalog.broken.values().find(|broken| broken.name == name);
        let agent = broken.map(broken_view).ok_or_else(|| Problem::not_found("agent"))?;
        let (instructions, context_files, response_schema) = (None, Vec::new(), None);
        let tool_definitions = Vec::new();
        let detail =
            AgentDetail { agent, instructions, context_files, tool_definitions, response_schema };
        return Ok(crate::json(StatusCode::OK, &detail));
    };
    load_unknown_definitions(&api.services, &caller.owner.tenant, agent.mcp.iter()).await;
    let is_shown = access::may_read_instructions(&api, &caller);
    let files = agent.context_files.iter().map(|file| file.location.clone());
    let detail = AgentDetail {
        agent: agent_view(&api, &catalog, agent),
        instructions: is_shown.then(|| agent.instructions.to_string()),
        context_files: files.collect(),
        tool_definitions: agent.all_tools().iter().map(|tool| tool_view(&**tool)).collect(),
        response_schema: agent.response_schema.clone(),
    };
    Ok(crate::json(StatusCode::OK, &detail))
}

fn tool_view(tool: &dyn CallableTool) -> ToolView {
    let definition = tool.definition();
    ToolView {
        name: definition.name.clone(),
        description: definition.description.clone(),
        parameters: definition.parameters.clone(),
        effect: definition.effect,
        timeout_ms: millis(definition.timeout),
        destination: tool.destination().shown,
        approval: tool.approval_summary(),
    }
}

fn broken_view(broken: &BrokenAgent) -> AgentView {
    AgentView {
        name: broken.name.clone(),
        description: String::new(),
        examples: Vec::new(),
        model: None,
        tools: Vec::new(),
        tool_labels: BTreeMap::new(),
        extensions: Vec::new(),
        plugins: Vec::new(),
        revision: None,
        available: false,
        problem: Some(broken.problem.clone()),
    }
}

fn agent_view(api: &Api, catalog: &Catalog, agent: &AgentDefinition) -> AgentView {
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
        examples: agent.examples.clone(),
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
