//! The turn context: agent, effective settings and tools, resolved once per commit plan and once
//! per model or tool call.

use std::sync::Arc;

use turnwheel_agent_files::{AgentDefinition, AgentLookupError, ResolvedAgent};
use turnwheel_conversation::compaction::ContextBudget;
use turnwheel_conversation::head::Head;
use turnwheel_conversation::message::AssistantMessage;
use turnwheel_conversation::settings::{DEFAULT_MODEL, LoopKind, ProtocolMode, Settings};
use turnwheel_conversation::transition::Policy;
use turnwheel_extensions::Hook;
use turnwheel_extensions::plugin::RegisteredPlugin;
use turnwheel_model::{Model, ModelRecord};
use turnwheel_record::services::Services;
use turnwheel_storage::store::{BATCH_BYTES_MAX, BATCH_OPERATIONS_MAX};
use turnwheel_tools::CallableTool;
use turnwheel_tools::result_limits::ReadAccess;
use turnwheel_tools::validate::response::find_message_mismatch;

/// Operations that draining the inbox may use, so that a checked call still fits.
const DRAIN_OPERATIONS_MAX: usize = BATCH_OPERATIONS_MAX - 20;
/// Bytes that draining may use: an item is written as entry and as receipt.
const DRAIN_BYTES_MAX: usize = BATCH_BYTES_MAX / 3;

/// The agent, settings and tools of a conversation's next step.
#[derive(Debug)]
pub struct TurnContext {
    /// Without an agent the model is not called, and no tool is found.
    pub agent: Result<Arc<AgentDefinition>, AgentLookupError>,
    /// Effective settings: the conversation's settings override the agent's.
    pub settings: Settings,
    /// The system prompt of the agent run: the agent's, if no extension changed it.
    pub system_prompt: Arc<str>,
    /// The agent's active tools.
    tools: Arc<[Arc<dyn CallableTool>]>,
}

impl TurnContext {
    /// `run_prompt`: the system prompt of the agent run, if an extension changed it.
    pub fn resolve(services: &Services, head: &Head, run_prompt: Option<Arc<str>>) -> Self {
        let ResolvedAgent { agent, settings, tools } = ResolvedAgent::new(&services.agents, head);
        let mut context = Self { agent, settings, system_prompt: Arc::default(), tools };
        context.set_run_prompt(run_prompt);
        context
    }

    pub fn loop_kind(&self) -> LoopKind {
        self.settings.loop_kind.unwrap_or_default()
    }

    /// The tools that are active, in the agent's order.
    pub fn tools(&self) -> &Arc<[Arc<dyn CallableTool>]> {
        &self.tools
    }

    pub fn plugins(&self) -> &[Arc<RegisteredPlugin>] {
        self.agent.as_ref().map_or(&[], |agent| &agent.plugins)
    }

    /// An active tool of the agent, or any tool of its plugins.
    pub fn find_tool(&self, name: &str) -> Option<&Arc<dyn CallableTool>> {
        let of_plugins = self.plugins().iter().flat_map(|plugin| plugin.tools());
        self.tools.iter().chain(of_plugins).find(|tool| tool.definition().name == name)
    }

    /// Returns whether the model can read the rest of a truncated result.
    pub fn read_access(&self) -> ReadAccess {
        if self.tools.iter().any(|tool| tool.definition().name == "read") {
            ReadAccess::Available
        } else {
            ReadAccess::Unavailable
        }
    }

    /// Why a final response does not fit the agent's response schema.
    pub(crate) fn find_response_mismatch(&self, message: &AssistantMessage) -> Option<String> {
        find_message_mismatch(self.agent.as_ref().ok()?.response_schema.as_ref()?, message)
    }

    /// Groups calls for the provider's prompt cache.
    pub fn session_id(&self, head: &Head) -> String {
        let of_agent = self.agent.as_ref().ok().and_then(|agent| agent.session_id.clone());
        of_agent.unwrap_or_else(|| format!("{}-{}", head.conversation_id, head.incarnation))
    }

    /// Id or tier of the model of the next call.
    pub fn model_name<'a>(&'a self, head: &'a Head) -> &'a str {
        head.model_name(&self.settings)
    }

    /// The model of the next call: the prompt's, the settings', or the default.
    pub(crate) fn model_record(
        &self,
        model: &dyn Model,
        head: &Head,
    ) -> Result<ModelRecord, String> {
        model.record(self.model_name(head))
    }

    pub fn context_budget(&self, context_window: u64) -> ContextBudget {
        ContextBudget::new(context_window, &self.settings.compaction.clone().unwrap_or_default())
    }

    /// The state machine's rules for steps from this head.
    pub fn policy(&self, services: &Services, head: &Head) -> Policy {
        let settings = &self.settings;
        // Without a model the call fails with the reason.
        let record = self.model_record(&*services.model, head);
        let context_window = record.map_or(0, |record| record.context_window);
        Policy {
            rounds_max: settings.rounds_max(),
            hard_rounds_max: settings.hard_rounds_limit(),
            budget: settings.parse_budget(),
            concurrency: settings.concurrency(),
            context_budget: self.context_budget(context_window),
            retry: settings.retry.clone().unwrap_or_default(),
            model: settings.model.clone().unwrap_or_else(|| DEFAULT_MODEL.to_owned()),
            steering_mode: settings.steering_mode.unwrap_or_default(),
            follow_up_mode: settings.follow_up_mode.unwrap_or_default(),
            should_steer_skip_tools: settings.steering_skips_tools.unwrap_or(true),
            drained_operations_max: DRAIN_OPERATIONS_MAX,
            drained_bytes_max: DRAIN_BYTES_MAX,
            has_start_hook: services
                .extensions_of(self.agent.as_deref().ok())
                .any(|extension| extension.events().contains(Hook::BeforeAgentStart)),
            is_protocol: self.loop_kind() == LoopKind::Protocol,
            is_resume: settings.effective_protocol_mode() == ProtocolMode::Resume,
            should_notify_results: self.agent.as_ref().is_ok_and(|agent| agent.audit.is_notified),
            learns_profile: self
                .agent
                .as_ref()
                .is_ok_and(|agent| agent.learns_profile(services.limits.has_shared_user)),
            has_notification_receiver: services.notification_sender.is_some(),
            settle_after: services.limits.settle_after,
            extension_prompts_max: services.limits.extension_prompts_max,
        }
    }
}
