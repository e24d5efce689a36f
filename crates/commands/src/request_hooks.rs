//! Hooks of extensions on a request that is being accepted. No lease is held, and nothing is stored
//! yet: a request that is repeated after a crash runs them again. A worker runs those that asked a
//! question again, with the answers.

use std::sync::Arc;
use std::time::Duration;

use turnwheel_agent_files::{AgentDefinition, ResolvedAgent};
use turnwheel_conversation::action::StoredActions;
use turnwheel_conversation::content::{Block, Content, Image};
use turnwheel_conversation::entry::Source;
use turnwheel_conversation::head::Head;
use turnwheel_conversation::question::{Answers, QuestionSpec};
use turnwheel_conversation::step::has_room_for_question;
use turnwheel_extensions::command::{self, ExtensionCommand, OUTPUT_BYTES_MAX};
use turnwheel_extensions::context::{Anchor, HookEvent, HookFacts, HookSite, HookSubject};
use turnwheel_extensions::runner::{FailureCause, HookRunner};
use turnwheel_extensions::{
    BashResult, CommandCall, Extension, Hook, HookContext, HookError, HookSet, InputDecision,
    Observation, PendingFork, PendingLeafMove, PendingSwitch, PromptText, SessionDecision,
    SummaryOverride, UserBash,
};
use turnwheel_platform::ids::{ConversationId, InputId};
use turnwheel_record::contract::CommandError;
use turnwheel_record::services::Services;

#[cfg(test)]
mod tests;

/// The hooks of one request.
#[derive(Debug)]
pub(super) struct RequestHooks<'a> {
    pub(super) services: &'a Services,
    pub(super) head: &'a Head,
    pub(super) input_id: &'a InputId,
    pub(super) agent: Option<Arc<AgentDefinition>>,
    inputs: HookInputs,
}

/// Inputs of hooks that a worker runs again.
#[derive(Clone, Debug, Default)]
pub struct HookInputs {
    /// The answers to their questions.
    pub answers: Answers,
    /// Time for the hooks in this turn of a worker. `None`: no worker runs them.
    pub time_left: Option<Duration>,
}

/// Result of hooks that may ask.
#[derive(Debug)]
pub(super) enum HookResult<T> {
    Done(T),
    /// A question without an answer. The hooks run again with it.
    Asked(Box<QuestionSpec>),
    /// No time is left in this turn.
    Deferred,
}

impl<T> HookResult<T> {
    pub(super) fn map<U>(self, change: impl FnOnce(T) -> U) -> HookResult<U> {
        match self {
            Self::Done(result) => HookResult::Done(change(result)),
            Self::Asked(question) => HookResult::Asked(question),
            Self::Deferred => HookResult::Deferred,
        }
    }
}

/// Result of a command.
#[derive(Debug, Default)]
pub(super) struct CommandResult {
    pub(super) output: Option<String>,
    pub(super) error: Option<String>,
    pub(super) actions: Vec<StoredActions>,
}

impl CommandResult {
    pub(super) fn failed(error: String) -> Self {
        Self { error: Some(error), ..Self::default() }
    }
}

/// Outcome of the hooks on an input.
#[derive(Debug)]
pub(super) struct HookedInput {
    /// `None`: an extension has handled the input.
    pub(super) content: Option<Content>,
    /// The input as sent, if an extension changed it.
    pub(super) original: Option<Content>,
    pub(super) actions: Vec<StoredActions>,
}

impl<'a> RequestHooks<'a> {
    pub(super) fn new(services: &'a Services, head: &'a Head, input_id: &'a InputId) -> Self {
        // The hooks of the app run for a removed agent, too.
        let agent = services.agents.find(Some(&head.agent)).ok();
        Self { services, head, input_id, agent, inputs: HookInputs::default() }
    }

    /// The hooks as a worker runs them again.
    pub(super) fn with_inputs(self, inputs: HookInputs) -> Self {
        Self { inputs, ..self }
    }

    /// True if the head has room for the question beside the others.
    pub(super) fn has_room_for(&self, question: &QuestionSpec) -> bool {
        has_room_for_question(self.head, question)
    }

    fn site(&self, hook: Hook) -> Arc<HookSite> {
        let ResolvedAgent { agent, settings, tools } =
            ResolvedAgent::new(&self.services.agents, self.head);
        let agent = agent.as_deref().ok();
        let prompt = agent.map(|agent| agent.system_prompt(&tools)).unwrap_or_default();
        let facts = HookFacts::new(self.head, &settings, tools, prompt);
        let anchor = Anchor::Request(self.input_id.clone());
        let event = HookEvent { hook, anchor, subject: HookSubject::new(self.head) };
        self.services.hook_site(event, self.head, facts, agent)
    }

    fn hook_set(&self, hook: Hook) -> HookSet<'a> {
        let services = self.services;
        let contexts = services.hook_contexts(hook, self.agent.as_deref(), || self.site(hook));
        HookSet { runner: self.runner(), contexts }
    }

    fn runner(&self) -> HookRunner<'a> {
        self.services.hook_runner(self.inputs.time_left)
    }

    fn extensions(&self) -> impl Iterator<Item = &Arc<dyn Extension>> {
        self.services.extensions_of(self.agent.as_deref())
    }

    pub(super) fn find_command(&self, name: &str) -> Option<ExtensionCommand> {
        command::find_command(self.extensions(), name)
    }

    /// The command that the input names, with its arguments. Images and files are no arguments.
    pub(super) fn find_command_in(&self, input: &Content) -> Option<(ExtensionCommand, String)> {
        // Without extensions the text is not copied.
        self.extensions().next()?;
        let text = input.joined_text();
        let (command, args) = command::find_in_text(self.extensions(), &text)?;
        Some((command, args.to_owned()))
    }

    /// Runs a command. Its failure is part of the result.
    pub(super) async fn run_command(
        &self,
        command: ExtensionCommand,
        args: &str,
    ) -> HookResult<CommandResult> {
        let cx = HookContext::new(self.site(Hook::Command), command.extension);
        let cx = cx.with_questions(&self.inputs.answers);
        let call = CommandCall { name: &command.spec.name, args, user: &self.head.user };
        let work = async {
            let output = cx.extension().run_command(&cx, &call).await?.output;
            match &output {
                Some(text) if text.len() > OUTPUT_BYTES_MAX => Err(HookError::new(format!(
                    "the output has {} bytes: at most {OUTPUT_BYTES_MAX} are allowed",
                    text.len()
                ))),
                Some(_) | None => Ok(output),
            }
        };
        let outcome = self.runner().run(&cx, work).await;
        if let Some(question) = cx.take_question() {
            return HookResult::Asked(Box::new(question));
        }
        HookResult::Done(match outcome {
            Ok(output) => {
                let actions = cx.take_stored_actions().into_iter().collect();
                CommandResult { output, error: None, actions }
            }
            Err(failure) if failure.cause == FailureCause::CommitTimeout => {
                return HookResult::Deferred;
            }
            Err(failure) => CommandResult::failed(failure.cause.to_string()),
        })
    }

    /// Runs the observers of a fact that the request has caused.
    pub(super) async fn observe(&self, fact: &Observation) {
        self.hook_set(fact.hook()).observe(fact).await;
    }

    /// True unless an extension cancels the switch.
    async fn allows_switch(&self, switch: &PendingSwitch<'_>) -> bool {
        let hooks = self.hook_set(Hook::SessionBeforeSwitch);
        for cx in &hooks.contexts {
            let work = async { cx.extension().before_session_switch(cx, switch).await };
            if hooks.run(cx, work).await == Ok(SessionDecision::Cancel) {
                return false;
            }
        }
        true
    }

    /// True unless an extension cancels the fork.
    pub(super) async fn allows_fork(&self, fork: &PendingFork<'_>) -> HookResult<bool> {
        for cx in self.asking_contexts(Hook::SessionBeforeFork) {
            let work = async { cx.extension().before_session_fork(&cx, fork).await };
            match self.run_asking(&cx, work).await {
                HookResult::Done(Some(SessionDecision::Cancel)) => return HookResult::Done(false),
                HookResult::Done(Some(SessionDecision::Continue) | None) => {}
                HookResult::Asked(question) => return HookResult::Asked(question),
                HookResult::Deferred => return HookResult::Deferred,
            }
        }
        HookResult::Done(true)
    }

    /// The first cancellation, or else the last summary. Failed hooks are skipped.
    pub(super) async fn decide_move(
        &self,
        pending: &PendingLeafMove<'_>,
    ) -> HookResult<Option<SummaryOverride>> {
        let mut decided = None;
        for cx in self.asking_contexts(Hook::SessionBeforeTree) {
            let work = async { cx.extension().before_leaf_move(&cx, pending).await };
            match self.run_asking(&cx, work).await {
                HookResult::Done(decision) => decided = decision.flatten().or(decided),
                HookResult::Asked(question) => return HookResult::Asked(question),
                HookResult::Deferred => return HookResult::Deferred,
            }
            if decided == Some(SummaryOverride::Cancel) {
                break;
            }
        }
        HookResult::Done(decided)
    }

    fn asking_contexts(&self, hook: Hook) -> impl Iterator<Item = HookContext> {
        let contexts = self.hook_set(hook).contexts;
        contexts.into_iter().map(|cx| cx.with_questions(&self.inputs.answers))
    }

    /// Runs a hook that may ask. `None`: it failed.
    async fn run_asking<T>(
        &self,
        cx: &HookContext,
        work: impl Future<Output = Result<T, HookError>> + Send,
    ) -> HookResult<Option<T>> {
        let outcome = self.runner().run(cx, work).await;
        if let Some(question) = cx.take_question() {
            return HookResult::Asked(Box::new(question));
        }
        match outcome {
            Err(failure) if failure.cause == FailureCause::CommitTimeout => HookResult::Deferred,
            outcome => HookResult::Done(outcome.ok()),
        }
    }

    /// Runs `transform_input` of all extensions in order.
    ///
    /// # Errors
    /// A required hook failed: store nothing.
    pub(super) async fn transform_input(
        &self,
        content: Content,
        source: Source,
    ) -> Result<HookedInput, CommandError> {
        let mut hooked =
            HookedInput { content: Some(content), original: None, actions: Vec::new() };
        let hooks = self.hook_set(Hook::Input);
        for cx in &hooks.contexts {
            let Some(content) = &hooked.content else { break };
            let input = to_prompt_text(content, source);
            let work = async { cx.extension().transform_input(cx, &input).await };
            let decision = match hooks.run(cx, work).await {
                Ok(decision) => decision,
                Err(failure) if cx.extension().is_input_required() => {
                    return Err(CommandError::ExtensionFailed(failure.to_string()));
                }
                // The failure is reported, and the input stays.
                Err(_) => continue,
            };
            hooked.actions.extend(cx.take_stored_actions());
            match decision {
                InputDecision::Continue => {}
                InputDecision::Handled => hooked.content = None,
                InputDecision::Transform { text, images } => {
                    let changed = replace_content(content.clone(), text, images);
                    let before = hooked.content.replace(changed);
                    hooked.original = hooked.original.or(before);
                }
            }
        }
        Ok(hooked)
    }

    /// The result that an extension sets for a shell command of a client, of which the first one
    /// counts; and the actions.
    pub(super) async fn replace_bash_result(
        &self,
        bash: &UserBash,
    ) -> (Option<BashResult>, Vec<StoredActions>) {
        let mut actions = Vec::new();
        let hooks = self.hook_set(Hook::UserBash);
        for cx in &hooks.contexts {
            let work = async { cx.extension().replace_bash_result(cx, bash).await };
            let Ok(result) = hooks.run(cx, work).await else { continue };
            actions.extend(cx.take_stored_actions());
            if result.is_some() {
                return (result, actions);
            }
        }
        (None, actions)
    }
}

/// True unless an extension cancels the switch from the conversation of `head` to `target`, or to a
/// new one. `request` identifies the switch.
pub async fn allows_switch(
    services: &Services,
    head: &Head,
    target: Option<&ConversationId>,
    request: &InputId,
) -> bool {
    RequestHooks::new(services, head, request).allows_switch(&PendingSwitch { target }).await
}

/// Runs the observers of a switch to the conversation of `head`.
pub async fn observe_switch(
    services: &Services,
    head: &Head,
    previous: ConversationId,
    request: &InputId,
) {
    let fact = Observation::SessionSwitch { previous };
    RequestHooks::new(services, head, request).observe(&fact).await;
}

fn to_prompt_text(content: &Content, source: Source) -> PromptText {
    let blocks = if let Content::Blocks(blocks) = content { blocks.as_slice() } else { &[] };
    let image =
        |block: &Block| if let Block::Image(image) = block { Some(image.clone()) } else { None };
    let images = blocks.iter().filter_map(image).collect();
    PromptText { text: content.joined_text(), images, source }
}

/// Replaces all text by one block in the place of the first, and the images if there are new ones.
pub(super) fn replace_content(
    content: Content,
    text: String,
    images: Option<Vec<Image>>,
) -> Content {
    let mut blocks = match content {
        Content::Text(_) => Vec::new(),
        Content::Blocks(blocks) => blocks,
    };
    if images.is_some() {
        blocks.retain(|block| !matches!(block, Block::Image(_)));
    }
    let is_text = |block: &Block| matches!(block, Block::Text(_));
    let position = blocks.iter().position(is_text).unwrap_or_default();
    blocks.retain(|block| !is_text(block));
    blocks.extend(images.unwrap_or_default().into_iter().map(Block::Image));
    if blocks.is_empty() {
        return Content::Text(text);
    }
    if !text.is_empty() {
        blocks.insert(position, Block::text(text));
    }
    Content::Blocks(blocks)
}
