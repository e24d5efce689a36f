//! Preparation of a model call by the plugins of the agent.

use std::borrow::Cow;
use std::sync::Arc;

use crate::context::TurnContext;
use crate::conversation_state::ConversationState;
use crate::frame::Frame;
use crate::leased_conversation::LeasedConversation;
use crate::workspace_context::load_workspace_context;
use turnwheel_conversation::memory::UserDocuments;
use turnwheel_conversation::message::Message;
use turnwheel_conversation::path::path_to_leaf;
use turnwheel_conversation::plugin_state::PluginStateChange;
use turnwheel_extensions::prepare::{CurrentPrompt, PrepareInput};
use turnwheel_extensions::runner::{FailureCause, HookFailure};
use turnwheel_extensions::{Hook, HookContext, HookError};
use turnwheel_record::error::TurnError;
use turnwheel_record::services::Services;
use turnwheel_record::user_documents::DocumentsVersion;
use turnwheel_tools::memory::{FORGET, REMEMBER};
use turnwheel_tools::user_skills::CREATE_SKILL;

/// A prepared model call.
pub(crate) struct PreparedCall<'c> {
    pub frame: Frame<'c>,
    pub changes: Vec<PluginStateChange>,
}

/// Why a model call was not sent.
pub(crate) enum UnsentCall {
    /// The delivery stops.
    Stopped(TurnError),
    Plugin(PluginFailure),
    Extension(HookFailure),
}

impl From<TurnError> for UnsentCall {
    fn from(error: TurnError) -> Self {
        Self::Stopped(error)
    }
}

/// A plugin that is not optional failed.
pub(crate) struct PluginFailure {
    pub failure: HookFailure,
    pub is_retryable: bool,
}

/// The frame of the next model call. Runs `prepare` of each plugin, in order. `history` are the
/// projected messages of the path.
pub(crate) async fn prepare_call<'c>(
    conversation: &mut LeasedConversation<'_>,
    context: &'c TurnContext,
    history: &[Cow<'_, Message>],
) -> Result<PreparedCall<'c>, UnsentCall> {
    let mut call = PreparedCall { frame: context.own_frame(), changes: Vec::new() };
    let plugins = context.plugins();
    let run = conversation.state.head.prompt.clone().filter(|_| !plugins.is_empty());
    let Some(run) = run else { return Ok(call) };
    let services = conversation.services;
    services.fail_points.hit("prepare.before").await;
    let site = conversation.hook_site(Hook::Prepare, context, conversation.response_anchor());
    // A compaction within the prompt replaces messages of it, which plugins still receive.
    let newest = conversation.state.head.seq;
    let entries = conversation.state.load_range(services, run.from_seq, newest).await?;
    let path = path_to_leaf(&entries, conversation.state.head.leaf_id.as_ref());
    let of_prompt = || path.iter().filter(|entry| entry.base.seq >= run.from_seq);
    let started_at = of_prompt().next().map(|entry| entry.base.timestamp);
    let prompt = CurrentPrompt {
        id: &run.id,
        started_at: started_at.unwrap_or_else(|| services.clock.now()),
        rounds: run.rounds,
        messages: of_prompt().filter_map(|entry| entry.body.message()).collect(),
    };
    let documents = load_user_documents(services, &conversation.state, context, &prompt).await?;
    let workspace_context =
        load_workspace_context(services, &conversation.state, context, run.from_seq).await?;
    let (mut states, mut items_bytes) = (conversation.state.head.plugin_state.clone(), 0);
    for plugin in plugins {
        let cx = HookContext::new(Arc::clone(&site), plugin.hook());
        let input = PrepareInput {
            cx: &cx,
            plugin,
            plugins,
            states: &states,
            history,
            prompt: &prompt,
            user: &run.user,
            active_tools: context.tools(),
            workspace_context: workspace_context.as_deref(),
            user_documents: documents.as_deref(),
            items_bytes,
        };
        // A time-out may not repeat.
        let mut is_retryable = true;
        let work = async {
            plugin.prepare(input).await.map_err(|error| {
                is_retryable = error.is_retryable();
                HookError::new(error.to_string())
            })
        };
        match conversation.run_hook(&cx, work).await? {
            Ok(mut output) => {
                if let Some(change) = output.change.take() {
                    change.set(&mut states);
                    call.changes.push(change);
                }
                items_bytes += output.items.iter().map(|item| item.text.len()).sum::<usize>();
                call.frame.add(plugin, output);
            }
            Err(_reported) if plugin.is_optional() => {}
            Err(failure) => {
                let is_retryable = is_retryable && failure.cause != FailureCause::Panic;
                return Err(UnsentCall::Plugin(PluginFailure { failure, is_retryable }));
            }
        }
    }
    services.fail_points.hit("prepare.after").await;
    Ok(call)
}

/// The documents of the user, read once per prompt and again after each of its own changes.
/// `None`: the agent reads none.
async fn load_user_documents(
    services: &Services,
    state: &ConversationState,
    context: &TurnContext,
    prompt: &CurrentPrompt<'_>,
) -> Result<Option<Arc<UserDocuments>>, TurnError> {
    let is_shared = services.limits.has_shared_user;
    let agent = context.agent.as_ref();
    if !agent.is_ok_and(|agent| agent.reads_user_documents(is_shared)) {
        return Ok(None);
    }
    let is_change = |message: &&&Message| {
        let Message::ToolResult(result) = message else { return false };
        [REMEMBER, FORGET, CREATE_SKILL].contains(&result.tool_name.as_str())
    };
    let own_changes = prompt.messages.iter().filter(is_change).count();
    let version = DocumentsVersion { prompt: prompt.id.clone(), own_changes, is_shared };
    let cache = &services.user_documents;
    let loaded = cache.load(&*services.store, &state.key, version).await;
    loaded.map(Some).map_err(|source| state.error("read the documents of the user of", source))
}
