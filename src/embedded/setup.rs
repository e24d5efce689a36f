//! Start of an agent: services over a data folder, and its conversation.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex};

use serde_json::json;
use tokio::sync::watch;
use tokio_util::task::AbortOnDropHandle;

use crate::embedded::state::ObservedState;
use crate::embedded::{
    Agent, AgentBuilder, AgentConfig, AgentError, AgentInner, CurrentConversation, RunState,
    driver, lock,
};
use crate::registrations::Registrations;
use crate::start::model::create_model;
use crate::start::ports::open_embedded_queue;
use crate::start::start_error::{StartError, io_error};
use turnwheel_agent_files as agents;
use turnwheel_agent_files::{
    Catalog, SharedCatalog, Skill, declared_permissions, list_skill_plugin,
};
use turnwheel_azure::credential::Credentials;
use turnwheel_commands::conversation::validate_settings;
use turnwheel_commands::prompt::{Sender, WhenBusy};
use turnwheel_conversation::entry::{Entry, Source};
use turnwheel_conversation::path::path_to_leaf;
use turnwheel_conversation::projection::synthetic_message;
use turnwheel_conversation::settings::{LoopKind, Settings as Wanted};
use turnwheel_extensions::Extension;
use turnwheel_extensions::permissions::find_setting_mistakes;
use turnwheel_extensions::plugin::RegisteredPlugin;
use turnwheel_extensions::runner::ErrorListeners;
use turnwheel_json::raw::RawJson;
use turnwheel_model::Model;
use turnwheel_platform::clock::{Clock, SystemClock};
use turnwheel_platform::ids::{ConversationKey, Ids, SystemIds, TenantId, UserId, WorkerId};
use turnwheel_platform::settings::ServiceSettings;
use turnwheel_record::contract::Owner;
use turnwheel_record::services::{ServicePorts, Services};
use turnwheel_record::{documents, load};
use turnwheel_storage::artifacts::EmbeddedArtifacts;
use turnwheel_storage::live::EmbeddedLive;
use turnwheel_storage::store::HeadQuery;
use turnwheel_storage::store::embedded::EmbeddedStore;
use turnwheel_tools::{CallableTool, find_name_conflicts, sha256_hex};
use turnwheel_turn::crash_count;

/// Name of the only agent in the catalog.
pub(super) const AGENT_NAME: &str = "agent";

/// Builds the catalog with the one agent from its current configuration.
pub(super) fn build_catalog(config: &AgentConfig) -> Catalog {
    let tool_revisions: Vec<&str> =
        config.tools.iter().map(|tool| tool.definition().revision.as_str()).collect();
    let settings = RawJson::from_value(&config.settings);
    let instructions = config.prompt_parts.append_to(&config.system_prompt);
    let mut plugins = config.plugins.clone();
    // Conflicts were reported when the agent started, or when its tools were set.
    plugins.extend(skill_plugin(config, &config.tools).unwrap_or_default());
    plugins.extend(config.prompt_parts.plugin.clone());
    let names: Vec<&str> = plugins.iter().map(|plugin| plugin.name()).collect();
    let skills: Vec<&Skill> = config.skills.iter().map(Arc::as_ref).collect();
    let parts = json!([instructions, tool_revisions, settings.text(), names, skills]);
    let agent = agents::AgentDefinition {
        name: AGENT_NAME.to_owned(),
        settings: config.settings.clone(),
        has_default_prompt: config.has_default_prompt && config.system_prompt.is_empty(),
        instructions: instructions.into(),
        skills: config.skills.clone(),
        context_files: config.prompt_parts.context_files.clone(),
        mcp: Vec::new(),
        tools: config.tools.clone(),
        extension_settings: Arc::clone(&config.extension_settings),
        has_automatic_title: config.has_automatic_title,
        plugins,
        session_id: config.session_id.clone(),
        revision: sha256_hex(parts.to_string().as_bytes()),
        ..agents::AgentDefinition::default()
    };
    Catalog {
        agents: BTreeMap::from([(AGENT_NAME.to_owned(), Arc::new(agent))]),
        ..Catalog::default()
    }
}

pub(super) fn user_sender() -> Sender {
    Sender { source: Source::User, traceparent: None, when_busy: WhenBusy::Reject, clients: None }
}

/// Selects the agent loop by default, which has no limit of rounds.
fn with_agent_loop(settings: Wanted) -> Wanted {
    let loop_kind = settings.loop_kind.or(Some(LoopKind::Agent));
    Wanted { loop_kind, ..settings }
}

/// Returns one sentence for each tool that has the name of an earlier one.
fn find_tool_conflicts(
    tools: &[Arc<dyn CallableTool>],
    plugins: &[Arc<RegisteredPlugin>],
) -> Vec<String> {
    let of_plugins = plugins.iter().flat_map(|plugin| plugin.tools());
    find_name_conflicts(&tools.iter().chain(of_plugins).cloned().collect::<Vec<_>>())
}

/// The plugin of the skills beside these tools. `None`: there are no skills.
///
/// # Errors
/// One sentence for each conflict.
pub(super) fn skill_plugin(
    config: &AgentConfig,
    tools: &[Arc<dyn CallableTool>],
) -> Result<Option<Arc<RegisteredPlugin>>, Vec<String>> {
    if config.skills.is_empty() {
        return Ok(None);
    }
    list_skill_plugin(&config.skills, tools, &config.plugins).map(Some)
}

/// One sentence for each conflict of the tools with each other, with plugins and with skills.
pub(super) fn find_conflicts(config: &AgentConfig, tools: &[Arc<dyn CallableTool>]) -> Vec<String> {
    let mut conflicts = find_tool_conflicts(tools, &config.plugins);
    conflicts.extend(skill_plugin(config, tools).err().into_iter().flatten());
    conflicts
}

/// Returns one sentence for each mistake in the tools and settings.
fn find_mistakes(services: &Services, config: &AgentConfig) -> Vec<String> {
    let mut mistakes = find_conflicts(config, &config.tools);
    if let Some(date) = &config.prompt_parts.plugin
        && config.plugins.iter().any(|plugin| plugin.name() == date.name())
    {
        mistakes.push(format!("The date is a plugin `{}`: rename the other one.", date.name()));
    }
    let Ok(agent) = services.agents.find(None) else { return mistakes };
    let errors = validate_settings(services, &agent, &config.settings);
    mistakes.extend(errors.into_iter().map(|error| error.detail));
    mistakes
}

fn model_from_environment() -> Result<Arc<dyn Model>, AgentError> {
    let settings = ServiceSettings::from_environment().map_err(StartError::from)?;
    create_model(&settings, &Credentials::default()).map_err(AgentError::Mistakes)
}

/// Opens the services of the engine over a data folder.
pub(super) async fn open_services(
    data: &Path,
    model: Arc<dyn Model>,
    agents: SharedCatalog,
    extensions: Vec<Arc<dyn Extension>>,
    extension_error_listeners: ErrorListeners,
) -> Result<Services, AgentError> {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::default());
    let ids: Arc<dyn Ids> = Arc::new(SystemIds);
    let store = EmbeddedStore::open(data).map_err(StartError::from)?;
    let queue = open_embedded_queue(data, &clock, &ids).await?;
    let artifacts = EmbeddedArtifacts::open(&data.join("artifacts"))
        .await
        .map_err(io_error("open the artifacts"))?;
    let worker = WorkerId::new(ids.new_id());
    let ports = ServicePorts {
        store: Arc::new(store),
        queue: Arc::new(queue),
        artifacts: Arc::new(artifacts),
        live: Arc::new(EmbeddedLive::default()),
        model,
        clock,
        ids,
    };
    Ok(Services { agents, extensions, extension_error_listeners, ..Services::new(worker, ports) })
}

impl Agent {
    pub(super) async fn start(mut builder: AgentBuilder) -> Result<Self, AgentError> {
        let registered = &mut builder.registrations;
        registered.check_extensions();
        let declared = declared_permissions(&registered.extensions, &registered.plugins);
        registered.mistakes.extend(find_setting_mistakes(&builder.extension_settings, &declared));
        let skills = builder.load_skills();
        let Registrations { tools, extensions, plugins, error_listeners, mistakes, .. } =
            builder.registrations;
        if !mistakes.is_empty() {
            return Err(AgentError::Mistakes(mistakes));
        }
        let models = match builder.models {
            Some(models) => models,
            None => model_from_environment()?,
        };
        let folder = match builder.data {
            Some(_) => None,
            None => Some(tempfile::tempdir().map_err(io_error("create a temporary folder"))?),
        };
        let temp_dir = folder.as_ref().map(|folder| folder.path().to_owned());
        let data = builder.data.or(temp_dir).unwrap_or_default();
        let config = AgentConfig {
            system_prompt: builder.system_prompt,
            settings: with_agent_loop(builder.settings),
            tools,
            plugins,
            prompt_parts: builder.prompt_parts,
            has_default_prompt: builder.has_default_prompt,
            skills,
            session_id: builder.session_id,
            has_automatic_title: builder.has_automatic_title,
            extension_settings: Arc::new(builder.extension_settings),
        };
        let agents = SharedCatalog::from(build_catalog(&config));
        let services = open_services(&data, models, agents, extensions, error_listeners).await?;
        let mistakes = find_mistakes(&services, &config);
        if !mistakes.is_empty() {
            return Err(AgentError::Mistakes(mistakes));
        }
        let owner = Owner { tenant: TenantId::new("default"), user: UserId::new("default") };
        let existing = find_newest_conversation(&services, &owner).await?;
        let is_new = existing.is_none() || !builder.messages.is_empty();
        let key = existing.unwrap_or_else(|| owner.conversation_key(""));
        let inner = Arc::new(AgentInner {
            owner,
            config: Mutex::new(config),
            conversation: watch::Sender::new(CurrentConversation { key, last_event: 0 }),
            observed: Mutex::new(ObservedState::default()),
            switch: tokio::sync::Mutex::default(),
            run_state: watch::Sender::new(RunState::default()),
            listeners: Mutex::default(),
            _temp_dir: folder,
            services,
        });
        if is_new {
            lock(&inner.observed).messages = builder.messages;
            inner.create_conversation(None).await?;
        } else {
            inner.restore().await?;
        }
        crash_count::recover_at_start_up(&inner.services)
            .await
            .map_err(io_error("read pending work"))?;
        let nudge_task = spawn_task(driver::process_nudges(Arc::clone(&inner)));
        let event_task = spawn_task(driver::publish_events(Arc::clone(&inner)));
        Ok(Self { inner, _tasks: Arc::new([nudge_task, event_task]) })
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "ends with the agent; its work is stored in the folder and recovered later"
)]
fn spawn_task(task: impl Future<Output = ()> + Send + 'static) -> AbortOnDropHandle<()> {
    AbortOnDropHandle::new(tokio::spawn(task))
}

/// Returns the newest conversation of the folder.
async fn find_newest_conversation(
    services: &Services,
    owner: &Owner,
) -> Result<Option<ConversationKey>, AgentError> {
    let query = HeadQuery {
        tenant: owner.tenant.clone(),
        user: Some(owner.user.clone()),
        state: None,
        limit: 1,
        continuation: None,
    };
    let page = services
        .store
        .list_heads(&query)
        .await
        .map_err(turnwheel_record::contract::CommandError::from)?;
    let Some(stored) = page.items.first() else { return Ok(None) };
    let head =
        documents::read_head(stored).map_err(turnwheel_record::contract::CommandError::from)?;
    Ok(Some(head.key()))
}

impl AgentInner {
    /// Makes the newest conversation the current one, and completes a switch of conversations that
    /// a crash interrupted.
    async fn restore(&self) -> Result<(), AgentError> {
        let key = self.key();
        let (head, _) = load::head(&self.services, &key).await?;
        let mut switch = self.find_pending_switch(&head.metadata);
        self.move_queued_inputs(&mut switch).await?;
        *self.switch.lock().await = switch;
        self.enter_conversation(key).await?;
        Ok(())
    }

    /// Makes a stored conversation the current one: loads its messages and run state, and follows
    /// its new events. Returns the path to its leaf.
    pub(super) async fn enter_conversation(
        &self,
        key: ConversationKey,
    ) -> Result<Vec<Arc<Entry>>, AgentError> {
        let (inbox, head) = load::inbox_then_head(&self.services, &key).await?;
        let entries = load::all_entries(&self.services, &head).await?;
        let path = path_to_leaf(&entries, head.leaf_id.as_ref());
        let message =
            |entry: &Arc<Entry>| entry.body.message().cloned().or_else(|| synthetic_message(entry));
        let messages = path.iter().filter_map(message).collect();
        lock(&self.observed).restart_with(messages);
        let has_queued_prompt = load::queued_prompts(&head, &inbox).next().is_some();
        self.run_state.send_replace(RunState::from_head(&head, has_queued_prompt));
        let last_event = head.event_seq;
        self.conversation.send_replace(CurrentConversation { key, last_event });
        Ok(path)
    }
}
