//! `turnwheel agents`: each agent as the model receives it. A prompt runs in memory up to its model
//! call.

use std::fmt::Write as _;
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use serde::Serialize;

use crate::app::App;
use crate::start::start_error::{StartError, io_error};
use turnwheel_agent_files::{AgentDefinition, Catalog};
use turnwheel_commands::prompt::{FirstPromptRequest, Sender, WhenBusy, begin_conversation};
use turnwheel_conversation::content::Content;
use turnwheel_conversation::entry::Source;
use turnwheel_conversation::settings::DEFAULT_MODEL;
use turnwheel_json::raw::RawJson;
use turnwheel_model::scripted::ScriptedModel;
use turnwheel_model::{Listener, Model, ModelRecord, ModelRequest, ModelResponse};
use turnwheel_platform::clock::{Clock, SystemClock};
use turnwheel_platform::ids::{Ids, SystemIds, TenantId, UserId, WorkerId};
use turnwheel_record::contract::Owner;
use turnwheel_record::idempotency::Idempotency;
use turnwheel_record::nudge::Nudge;
use turnwheel_record::services::{ServicePorts, Services};
use turnwheel_storage::artifacts::MemoryArtifacts;
use turnwheel_storage::live::EmbeddedLive;
use turnwheel_storage::queue::{MemoryQueue, QueueFaults};
use turnwheel_storage::store::memory::MemoryStore;
use turnwheel_tools::approval_summary::ApprovalSummary;
use turnwheel_turn::delivery::handle;

/// Prompt of the request. No tool is called for it.
const INPUT: &str = "Hello";
const CONVERSATION: &str = "preview";

/// An agent as the model receives it in the first request of a conversation.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct AgentPreview {
    name: String,
    /// Model id or tier.
    model: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    budget: Option<RawJson>,
    tools: Vec<ToolPreview>,
    system_prompt: String,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct ToolPreview {
    name: String,
    description: String,
    parameters: serde_json::Value,
    /// Absent: the tool exists only in the request.
    #[serde(skip_serializing_if = "Option::is_none")]
    approval: Option<ApprovalSummary>,
}

/// Records its first request, and replies without a tool call.
#[derive(Debug, Default)]
struct RecordingModel(Mutex<Option<(String, Vec<ToolPreview>)>>);

#[async_trait]
impl Model for RecordingModel {
    async fn respond(&self, request: ModelRequest<'_>, listener: &dyn Listener) -> ModelResponse {
        let tools = request.tools.iter().map(|tool| ToolPreview {
            name: tool.name.to_owned(),
            description: tool.description.to_owned(),
            parameters: tool.parameters.clone(),
            approval: None,
        });
        let sent = (request.system.unwrap_or_default().to_owned(), tools.collect());
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(sent);
        ScriptedModel.respond(ModelRequest { tools: &[], ..request }, listener).await
    }

    fn record(&self, model: &str) -> Result<ModelRecord, String> {
        ScriptedModel.record(model)
    }
}

/// The agents of this name, or all.
///
/// # Errors
/// There is no such agent, or a prompt could not run: print the error.
pub(crate) async fn preview_agents(
    app: &App,
    catalog: &Catalog,
    name: Option<&str>,
) -> Result<Vec<AgentPreview>, StartError> {
    if let Some(name) = name.filter(|name| !catalog.agents.contains_key(*name)) {
        let names: Vec<&str> = catalog.agents.keys().map(String::as_str).collect();
        return Err(StartError::Arguments(format!(
            "there is no agent `{name}`; there are: {}",
            names.join(", ")
        )));
    }
    let mut previews = Vec::new();
    for agent in catalog.agents.values().filter(|agent| name.is_none_or(|it| agent.name == it)) {
        previews.push(preview(app, catalog, agent).await?);
    }
    Ok(previews)
}

async fn preview(
    app: &App,
    catalog: &Catalog,
    agent: &AgentDefinition,
) -> Result<AgentPreview, StartError> {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::default());
    let ids: Arc<dyn Ids> = Arc::new(SystemIds);
    let model = Arc::new(RecordingModel::default());
    let queue = MemoryQueue::new(Arc::clone(&clock), 0, QueueFaults::default());
    let ports = ServicePorts {
        store: Arc::new(MemoryStore::new()),
        queue: Arc::new(queue),
        artifacts: Arc::new(MemoryArtifacts::new(0, 0)),
        live: Arc::new(EmbeddedLive::default()),
        model: Arc::clone(&model) as _,
        clock,
        ids: Arc::clone(&ids),
    };
    let services = Services {
        agents: Catalog { agents: catalog.agents.clone(), ..Catalog::default() }.into(),
        extensions: app.registrations.extensions.clone(),
        ..Services::new(WorkerId::new(ids.new_id()), ports)
    };
    let owner = Owner { tenant: TenantId::new("default"), user: UserId::new("default") };
    let request = FirstPromptRequest {
        agent: Some(agent.name.clone()),
        conversation_id: Some(CONVERSATION.to_owned()),
        input: Some(Content::Text(INPUT.to_owned())),
        ..FirstPromptRequest::default()
    };
    let idempotency = Idempotency {
        key: CONVERSATION.to_owned(),
        is_repeatable: true,
        route: "POST /prompts".to_owned(),
        body_hash: CONVERSATION.to_owned(),
    };
    let sender = Sender {
        source: Source::User,
        traceparent: None,
        when_busy: WhenBusy::Queue,
        clients: None,
    };
    Box::pin(begin_conversation(&services, &owner, request, &idempotency, &sender))
        .await
        .map_err(io_error("start a prompt"))?;
    let nudge = Nudge::for_conversation(owner.conversation_key(CONVERSATION), None);
    Box::pin(handle(&services, &nudge)).await.map_err(io_error("run a prompt"))?;
    let sent = model.0.lock().unwrap_or_else(PoisonError::into_inner).take();
    let (system_prompt, mut tools) = sent.unwrap_or_default();
    let own_tools = agent.all_tools();
    let plugin_tools = agent.plugins.iter().flat_map(|plugin| plugin.tools());
    let known_tools: Vec<_> = own_tools.iter().chain(plugin_tools).collect();
    for tool in &mut tools {
        let known = known_tools.iter().find(|known| known.definition().name == tool.name);
        tool.approval = known.map(|known| known.approval_summary());
    }
    Ok(AgentPreview {
        name: agent.name.clone(),
        model: agent.settings.model.clone().unwrap_or_else(|| DEFAULT_MODEL.to_owned()),
        budget: agent.settings.budget.clone(),
        tools,
        system_prompt,
    })
}

/// Renders a paragraph for each agent.
pub(crate) fn render_agents(previews: &[AgentPreview]) -> String {
    let mut text = String::new();
    for AgentPreview { name, model, budget, tools, system_prompt } in previews {
        let _ = writeln!(text, "{name}\n  model:  {model}");
        if let Some(budget) = budget {
            let _ = writeln!(text, "  budget: {}", budget.text());
        }
        let _ = writeln!(text, "  tools:  {}", if tools.is_empty() { "none" } else { "" });
        for tool in tools {
            let ToolPreview { name, description, parameters, approval } = tool;
            let _ = writeln!(text, "    {name}: {description}\n      {parameters}");
            if let Some(approval) = approval {
                let _ = writeln!(text, "      approval: {approval}");
            }
        }
        let count = system_prompt.chars().count();
        let _ = writeln!(text, "  system prompt, {count} characters:");
        for line in system_prompt.lines() {
            let _ = writeln!(text, "    {line}");
        }
        text.push('\n');
    }
    text.trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::commands::load_agents;
    use turnwheel_platform::settings::ServiceSettings;

    #[tokio::test]
    async fn agents_are_shown_as_the_model_receives_them() {
        let folder = tempfile::tempdir().unwrap();
        let agents = folder.path().join("agents");
        std::fs::create_dir_all(folder.path().join("context")).unwrap();
        std::fs::create_dir(&agents).unwrap();
        std::fs::write(folder.path().join("context/company.md"), "Rules.").unwrap();
        let file = "---\ntools:\n  - read\n  - http: { name: pay, url: \"https://pay.example\", parameters: { properties: { amount: { type: number } } }, approval: { when: { properties: { amount: { exclusiveMinimum: 100 } } }, approvers: [role:boss] } }\nmemory: { write: ask }\nbudget: { prompt: { usd: 0.5 } }\nsystemPrompt: { contextFiles: [company.md] }\n---\nYou help.";
        std::fs::write(agents.join("clerk.agent.md"), file).unwrap();
        let (app, settings) = (App::new(), ServiceSettings::read(|_| None).unwrap());
        let loaded = load_agents(&app, &settings, Some(agents), true).unwrap();
        let previews = preview_agents(&app, &loaded.catalog, None).await.unwrap();
        let text = render_agents(&previews);
        for expected in [
            "clerk\n  model:  normal",
            r#""prompt":{"#,
            "    read: Read the contents",
            "approval: never",
            "approval: always, by owner",
            r#"approval: when {"properties":{"amount":{"exclusiveMinimum":100}}}, by role:boss"#,
            "    remember: ",
            "    You help.",
            "    ## context/company.md",
        ] {
            assert!(text.contains(expected), "{expected}: {text}");
        }
        let unknown = preview_agents(&app, &loaded.catalog, Some("clark")).await.unwrap_err();
        assert_eq!(unknown.to_string(), "there is no agent `clark`; there are: clerk");
    }
}
