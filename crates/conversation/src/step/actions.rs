//! Applying what extensions ask for: actions, and changes to an agent run that starts.

use crate::action::{
    Action, HookActions, MessageSpec, StartChanges, StoredActions, UserMessageQueue,
};
use crate::content::Content;
use crate::entry::{
    Custom, EntryBody, Label, ModelChange, PromptState, Source, ThinkingLevelChange,
};
use crate::event::{EventBody, ExtensionNotification, Severity};
use crate::inbox::{
    CustomInput, DeliverAs, EXTENSION_ITEM_PREFIX, IdempotencyRecord, InboxBody, InboxItem,
    InputOutcome, NEXT_TURN_MESSAGES_MAX, PromptInput, WhenIdle,
};
use crate::path_settings::active_tools_entry;
use crate::run_prompt;
use crate::settings::ThinkingLevel;
use crate::step::compaction::CompactInput;
use crate::step::navigate::NavigateInput;
use crate::step::queue;
use crate::transition::Transition;
use turnwheel_platform::ids::{InputId, PromptId, UserId};

/// The hook whose actions belong to a prompt that starts.
const BEFORE_AGENT_START: &str = "before_agent_start";

/// Applies the actions of one hook in order.
pub(super) fn apply(transition: &mut Transition, hook: &HookActions) {
    let is_after_abort = hook.event != BEFORE_AGENT_START && has_aborted(transition);
    for action in hook.actions() {
        if is_after_abort && action.can_start_work() {
            continue;
        }
        apply_action(transition, &hook.by, action);
    }
}

/// True if this commit aborts a prompt: a hook on it starts nothing.
pub(super) fn has_aborted(transition: &Transition) -> bool {
    transition.entries.iter().any(|entry| {
        matches!(&entry.body, EntryBody::PromptEnd(end) if end.state == PromptState::Aborted)
    })
}

/// Removes what extensions have asked to start. After an abort nothing of it starts.
pub(super) fn drop_waiting_starts(transition: &mut Transition) {
    let is_start = |item: &InboxItem| {
        let is_command = matches!(item.body, InboxBody::Command(_));
        item.is_made_by_extension() && (item.can_start_prompt() || is_command)
    };
    while let Some(item) = queue::pop_unbounded(transition, is_start) {
        ignore(transition, &item);
    }
}

/// Removes the messages of extensions that would start one more prompt than they may.
pub(super) fn enforce_chain_bound(transition: &mut Transition) {
    let max = transition.policy.extension_prompts_max;
    let Some(chain) = transition.head.extension_chain.clone().filter(|it| it.prompts >= max) else {
        return;
    };
    let is_start = |item: &InboxItem| item.is_made_by_extension() && item.can_start_prompt();
    while let Some(item) = queue::pop_unbounded(transition, is_start) {
        ignore(transition, &item);
        let text = format!(
            "The extension `{}` started {} prompts in a row without an input of a person, and may start no more: its message was not sent. The setting TURNWHEEL_EXTENSION_PROMPTS_MAX is the bound.",
            chain.by, chain.prompts
        );
        let (extension, severity) = (chain.by.clone(), Severity::Error);
        transition.emit(EventBody::Notify(ExtensionNotification { extension, text, severity }));
    }
}

/// Counts a prompt that starts with the item.
pub(super) fn count_started_prompt(transition: &mut Transition, item: &InboxItem) {
    let chain = &mut transition.head.extension_chain;
    if item.is_made_by_extension() {
        let chain = chain.get_or_insert_default();
        chain.prompts = chain.prompts.saturating_add(1);
    } else {
        *chain = None;
    }
}

fn ignore(transition: &mut Transition, item: &InboxItem) {
    let mut receipt = queue::new_receipt(transition, item);
    receipt.outcome = InputOutcome::Ignored;
    transition.receipts.push(receipt);
}

/// The actions that the inbox item carries.
fn stored_actions(item: &InboxItem) -> Option<Vec<StoredActions>> {
    let InboxBody::Command(command) = &item.body else { return None };
    StoredActions::from_command(command)
}

/// Applies the actions of waiting inbox items, oldest first.
pub(super) fn apply_waiting(transition: &mut Transition) {
    while let Some(item) = queue::pop(transition, |item| stored_actions(item).is_some()) {
        let mut receipt = queue::new_receipt(transition, &item);
        receipt.prompt_id = transition.prompt_id();
        for stored in stored_actions(&item).unwrap_or_default() {
            apply_stored(transition, &stored);
        }
        transition.receipts.push(receipt);
    }
}

/// Applies the actions of one extension on a request in order.
pub(super) fn apply_stored(transition: &mut Transition, stored: &StoredActions) {
    // A person sent the request.
    transition.head.extension_chain = None;
    for action in &stored.actions {
        apply_action(transition, &stored.by, action);
    }
}

/// Requests a move of the leaf with a summary. It starts when no prompt runs.
pub(super) fn add_navigation(transition: &mut Transition, input: &NavigateInput) {
    add_item(transition, |_, _| input.to_inbox_body());
}

fn apply_action(transition: &mut Transition, by: &str, action: &Action) {
    match action {
        Action::AppendEntry { custom_type, data } => {
            let custom = Custom::new(custom_type.clone(), data.clone());
            transition.append(EntryBody::Custom(custom));
        }
        Action::SendMessage(spec) => send_message(transition, by, spec),
        Action::SendUserMessage { content, queue } => {
            note_sender(transition, by);
            add_item(transition, |prompt_id, user| user_message(content, *queue, prompt_id, user));
        }
        Action::SetModel { model, change } => set_model(transition, model, change),
        Action::SetThinkingLevel(level) => set_thinking_level(transition, *level),
        Action::SetActiveTools(names) => set_active_tools(transition, names),
        Action::SetName(name) => {
            if transition.head.name != *name {
                transition.set_name(name.clone());
            }
        }
        Action::SetLabel { entry_id, label } => {
            match transition.head.set_label(entry_id, label.as_deref()) {
                Ok(label) => {
                    transition.append(EntryBody::Label(Label::new(entry_id.clone(), label)));
                }
                Err(text) => {
                    let (extension, severity) = (by.to_owned(), Severity::Warning);
                    let refusal = ExtensionNotification { extension, text, severity };
                    transition.emit(EventBody::Notify(refusal));
                }
            }
        }
        Action::Abort => transition.is_abort_requested = transition.head.prompt.is_some(),
        Action::Compact { instructions } => {
            let input = CompactInput { instructions: instructions.clone() };
            add_item(transition, |_, _| input.to_inbox_body());
        }
        Action::Notify { text, severity } => {
            let (extension, text, severity) = (by.to_owned(), text.clone(), *severity);
            transition.emit(EventBody::Notify(ExtensionNotification { extension, text, severity }));
        }
    }
}

/// Adds the message to the inbox. A `nextTurn` message above the bound is not sent: such messages wait
/// until a user sends a prompt.
fn send_message(transition: &mut Transition, by: &str, spec: &MessageSpec) {
    if spec.deliver_as == Some(DeliverAs::NextTurn) && !queue::has_next_turn_room(transition) {
        let text = format!(
            "{NEXT_TURN_MESSAGES_MAX} messages already wait for the next prompt of a user, which is the limit; a `nextTurn` message of the extension `{by}` was not sent."
        );
        let (extension, severity) = (by.to_owned(), Severity::Error);
        transition.emit(EventBody::Notify(ExtensionNotification { extension, text, severity }));
        return;
    }
    note_sender(transition, by);
    add_item(transition, |prompt_id, user| custom_message(spec, prompt_id, user));
}

/// Names the extension of the newest input, for the error at the bound.
fn note_sender(transition: &mut Transition, by: &str) {
    by.clone_into(&mut transition.head.extension_chain.get_or_insert_default().by);
}

fn set_active_tools(transition: &mut Transition, names: &[String]) {
    transition.head.record_base_settings();
    let before = transition.head.settings.active_tools.replace(names.to_vec());
    if before.as_deref() != Some(names) {
        transition.append(active_tools_entry(Some(names)));
    }
}

fn set_model(transition: &mut Transition, model: &str, change: &ModelChange) {
    transition.head.record_base_settings();
    if transition.policy.model != model {
        model.clone_into(&mut transition.policy.model);
        transition.append(EntryBody::ModelChange(change.clone()));
    }
    transition.head.settings.model = Some(model.to_owned());
}

fn set_thinking_level(transition: &mut Transition, level: ThinkingLevel) {
    transition.head.record_base_settings();
    if transition.head.settings.thinking_level.replace(level) != Some(level) {
        transition.append(EntryBody::ThinkingLevelChange(ThinkingLevelChange::new(level)));
    }
}

fn custom_message(spec: &MessageSpec, prompt_id: PromptId, user: UserId) -> InboxBody {
    InboxBody::Custom(CustomInput {
        prompt_id,
        user,
        message: spec.message.clone(),
        deliver_as: spec.deliver_as,
        trigger_turn: spec.trigger_turn,
    })
}

fn user_message(
    content: &Content,
    queue: UserMessageQueue,
    prompt_id: PromptId,
    user: UserId,
) -> InboxBody {
    let prompt = PromptInput {
        prompt_id,
        user,
        when_idle: WhenIdle::Start,
        input: Some(content.clone()),
        visible: true,
        model: None,
        source: Source::Plugin,
        traceparent: None,
        original: None,
        idempotency_key: None,
    };
    match queue {
        UserMessageQueue::Steer => InboxBody::Steer(prompt),
        UserMessageQueue::FollowUp => InboxBody::FollowUp(prompt),
    }
}

/// Adds an inbox item that this commit creates. Its id counts up, so that a repeated hook never
/// makes an id again.
fn add_item(transition: &mut Transition, body: impl FnOnce(PromptId, UserId) -> InboxBody) {
    let head = &mut transition.head;
    head.items_made += 1;
    let input_id =
        InputId::new(format!("{EXTENSION_ITEM_PREFIX}{}_{}", head.incarnation, head.items_made));
    let run = head.prompt.as_ref();
    let user = run.map_or(&head.user, |run| &run.user).clone();
    let item = InboxItem {
        accepted_at: transition.now,
        idempotency: IdempotencyRecord::default(),
        traceparent: run.and_then(|run| run.traceparent.clone()),
        body: body(PromptId::from_input(&input_id), user),
        input_id,
    };
    queue::add_new_item(transition, item);
}

/// Applies the changes of extensions to the agent run that the prompt has just started.
pub(super) fn apply_start_changes(transition: &mut Transition) {
    let prompt_id = transition.prompt_id();
    let is_for_prompt = |it: &StartChanges| Some(&it.prompt_id) == prompt_id.as_ref();
    let Some(position) = transition.start_changes.iter().position(is_for_prompt) else { return };
    let changes = transition.start_changes.remove(position);
    for message in changes.messages {
        let entry = transition.append(EntryBody::CustomMessage(message));
        transition.emit_message(&entry);
    }
    let Some(text) = changes.system_prompt else { return };
    let entry = transition.append(run_prompt::to_entry(&text));
    if let Some(run) = &mut transition.head.prompt {
        run.system_prompt_seq = Some(entry.base.seq);
    }
}
