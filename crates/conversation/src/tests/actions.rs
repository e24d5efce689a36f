//! Actions of extensions, and their changes to a run that starts.

use super::*;
use crate::action::{
    Action, ActionOrigin, HookActions, MessageSpec, StartChanges, StoredActions, UserMessageQueue,
};
use crate::content::Content;
use crate::entry::{CustomMessageEntry, EntryBody, ModelChange, PromptState};
use crate::event::Severity;
use crate::phase::Phase;
use crate::settings::ThinkingLevel;
use crate::step::{FinishTurn, Replan, finish_commit, is_supported};
use crate::unknown_members::Extra;
use turnwheel_json::raw::RawJson;
use turnwheel_platform::ids::{EntryId, PromptId};

fn hook(origin: ActionOrigin, actions: &[Action]) -> Input {
    let mut hook = HookActions::new("guard", "turn_end", origin);
    for action in actions {
        hook.add(action.clone()).unwrap();
    }
    Input::HookActions(Box::new(hook))
}

fn kept(actions: &[Action]) -> Input {
    hook(ActionOrigin::Kept, actions)
}

fn message(text: &str) -> CustomMessageEntry {
    CustomMessageEntry {
        custom_type: "note".to_owned(),
        content: Content::Text(text.to_owned()),
        display: true,
        details: None,
        extra: Extra::new(),
    }
}

fn send_message(text: &str, trigger_turn: bool) -> Action {
    Action::SendMessage(MessageSpec { message: message(text), deliver_as: None, trigger_turn })
}

fn user_message(text: &str, queue: UserMessageQueue) -> Action {
    Action::SendUserMessage { content: Content::Text(text.to_owned()), queue }
}

fn entry_kinds(transition: &Transition) -> Vec<String> {
    let kind = |entry: &Arc<Entry>| serde_json::to_value(&entry.body).unwrap()["type"].to_string();
    transition.entries.iter().map(kind).collect()
}

/// The conversation after its first response, without the entries and events of that commit.
fn after_calls() -> Transition {
    let mut transition = transition();
    apply_inputs(&mut transition, &[prompt("go"), response(&["look {}"])]);
    let response = transition.response.clone();
    Transition::new(transition.head, response, policy(), NOW)
}

#[test]
fn message_of_a_hook_is_created_and_applied_in_one_commit() {
    let mut transition = after_calls();
    let started = [admitted_call(0, Effect::Read, None), returned_call(0, "x")];
    let actions = [kept(&[send_message("remember", false)]), Input::DrainInbox];
    apply_inputs(&mut transition, &[&started[..], &actions[..]].concat());
    assert_eq!(transition.new_items.len(), 1);
    assert_eq!(transition.queued_new_items().count(), 0);
    let receipt = transition.receipts.last().unwrap();
    assert_eq!(receipt.input_id, transition.new_items[0]);
    assert_eq!(receipt.input_id.as_str(), "hook_0a1b2c3d_1");
    assert_eq!(entry_kinds(&transition).last().unwrap(), "\"custom_message\"");
    assert_eq!((transition.head.items_made, transition.head.waiting_items), (1, 0));
}

#[test]
fn left_over_message_is_queued_and_counted() {
    let mut transition = after_calls();
    transition.head.waiting_items = 2;
    let actions = [user_message("later", UserMessageQueue::FollowUp), send_message("x", false)];
    apply_inputs(&mut transition, &[kept(&actions)]);
    let queued: Vec<&InboxItem> = transition.queued_new_items().collect();
    assert_eq!(
        queued.iter().map(|item| item.has_effect_when_idle()).collect::<Vec<_>>(),
        [true; 2]
    );
    assert_eq!(queued[0].prompt().unwrap().prompt_id.as_str(), "pr_hook_0a1b2c3d_1");
    assert_eq!(transition.head.waiting_items, 4, "the unread items stay counted");
    assert!(!transition.is_empty());
    assert_eq!(transition.operation_count(), 4, "head, events and two items");
}

#[test]
fn new_items_survive_a_later_inbox_read() {
    let mut transition = after_calls();
    step(&mut transition, &kept(&[user_message("more", UserMessageQueue::Steer)]));
    step(&mut transition, &inbox_read(&[]));
    assert_eq!((transition.pending.len(), transition.head.waiting_items), (1, 1));
}

#[test]
fn repeated_hook_never_makes_an_id_again() {
    let mut head = head();
    for number in 1..=3 {
        let mut transition = Transition::new(head, None, policy(), NOW);
        apply_inputs(&mut transition, &[kept(&[send_message("x", false)]), Input::DrainInbox]);
        assert_eq!(transition.new_items[0].as_str(), format!("hook_0a1b2c3d_{number}"));
        head = transition.head;
    }
}

#[test]
fn user_message_starts_a_prompt_when_idle() {
    let mut transition = transition();
    let start = kept(&[user_message("go", UserMessageQueue::Steer)]);
    let events = apply_inputs(&mut transition, &[start, Input::DrainInbox]);
    assert_eq!(events[..2], ["prompt.created", "agent_start"]);
    assert_eq!(transition.head.prompt.unwrap().id.as_str(), "pr_hook_0a1b2c3d_1");
}

#[test]
fn message_of_turn_end_continues_the_run() {
    let mut transition = transition();
    apply_inputs(&mut transition, &[prompt("go")]);
    let actions = kept(&[user_message("one more thing", UserMessageQueue::Steer)]);
    let events = apply_inputs(&mut transition, &[actions, response(&["done"])]);
    assert!(events.contains(&"message_end user:one more thing".to_owned()), "{events:?}");
    assert!(matches!(transition.head.phase, Phase::Model { .. }));
}

#[test]
fn abort_action_ends_the_prompt() {
    for has_drain in [true, false] {
        let mut transition = after_calls();
        step(&mut transition, &kept(&[Action::Abort]));
        let check = admitted_call(0, Effect::Write, None);
        apply_inputs(&mut transition, &[check]);
        assert_eq!(transition.calls()[0].attempts, 0, "an aborted prompt starts no call");
        if has_drain {
            step(&mut transition, &Input::DrainInbox);
        }
        finish_commit(&mut transition);
        assert_eq!(transition.head.prompts[0].state, PromptState::Aborted);
        assert_eq!(result_texts(&transition.entries), ["Operation aborted"]);
        assert!(transition.receipts.is_empty(), "no inbox item stands for it");
    }
}

#[test]
fn abort_before_a_response_keeps_the_response() {
    let mut transition = transition();
    apply_inputs(&mut transition, &[prompt("go")]);
    apply_inputs(&mut transition, &[kept(&[Action::Abort]), response(&["look {}"])]);
    finish_commit(&mut transition);
    assert_eq!(transition.head.usage.total_tokens, 15);
    assert_eq!(transition.head.prompts[0].state, PromptState::Aborted);
    // A prompt that ends by itself is complete, and the next one is not aborted.
    let mut transition = self::transition();
    let next = item(
        "next",
        json!({"followUp": {"promptId": "pr_2", "user": "default", "input": "x", "visible": true, "source": "user"}}),
    );
    apply_inputs(&mut transition, &[prompt("go")]);
    step(&mut transition, &inbox_read(&[next]));
    apply_inputs(&mut transition, &[kept(&[Action::Abort]), response(&["done"])]);
    finish_commit(&mut transition);
    let states: Vec<PromptState> = transition.head.prompts.iter().map(|span| span.state).collect();
    assert_eq!(states, [PromptState::Completed, PromptState::Running]);
}

fn hook_of(event: &'static str, actions: &[Action]) -> Input {
    let mut hook = HookActions::new("loop", event, ActionOrigin::Kept);
    for action in actions {
        hook.add(action.clone()).unwrap();
    }
    Input::HookActions(Box::new(hook))
}

#[test]
fn actions_of_extensions_start_nothing_after_abort() {
    let mut transition = transition();
    let abort = item("stop", json!({"abort": {"promptId": "pr_1"}}));
    // One message waits at the abort, others are sent because of it.
    let sent = kept(&[user_message("before", UserMessageQueue::FollowUp)]);
    apply_inputs(&mut transition, &[prompt("go"), sent, inbox_read(&[abort]), Input::DrainInbox]);
    let compact = Action::Compact { instructions: None };
    let after = [
        user_message("again", UserMessageQueue::Steer),
        send_message("go on", true),
        compact,
        send_message("noted", false),
    ];
    apply_inputs(&mut transition, &[hook_of("agent_end", &after), Input::DrainInbox]);
    finish_commit(&mut transition);
    let states: Vec<PromptState> = transition.head.prompts.iter().map(|span| span.state).collect();
    assert_eq!((states, &transition.head.phase), (vec![PromptState::Aborted], &Phase::Idle));
    assert_eq!(transition.queued_new_items().count(), 0);
    assert!(entry_kinds(&transition).contains(&"\"custom_message\"".to_owned()), "it is recorded");
    // Without an abort it starts the next prompt.
    let mut transition = self::transition();
    apply_inputs(&mut transition, &[prompt("go"), response(&["done"])]);
    apply_inputs(&mut transition, &[hook_of("agent_end", &after[..1]), Input::DrainInbox]);
    assert_eq!(transition.head.prompts.len(), 2);
}

#[test]
fn message_of_extension_starts_nothing_after_an_aborted_response() {
    let abort = item("stop", json!({"abort": {"promptId": "pr_1"}}));
    let sent = || kept(&[user_message("before", UserMessageQueue::FollowUp)]);
    let cut = || response_with(&[json!({"type": "text", "text": "par"})], "aborted");
    let mut whole = transition();
    let inputs =
        [prompt("go"), sent(), inbox_read(std::slice::from_ref(&abort)), cut(), Input::DrainInbox];
    apply_inputs(&mut whole, &inputs);
    assert_eq!(whole.head.prompts.len(), 1);
    assert_eq!(whole.queued_new_items().count(), 0);
    // The end of the prompt is committed without the inbox, and the next commit reads it.
    let mut first = transition();
    apply_inputs(&mut first, &[prompt("go"), sent(), cut()]);
    finish_commit(&mut first);
    let waiting: Vec<_> = first.queued_new_items().cloned().chain([abort]).collect();
    assert_eq!((waiting.len(), first.head.prompts.len()), (2, 1));
    let mut next = Transition::new(first.head, None, policy(), NOW);
    apply_inputs(&mut next, &[inbox_read(&waiting), Input::DrainInbox]);
    assert_eq!(next.head.prompts.len(), 1);
    assert_eq!(next.receipts.len(), 2);
}

#[test]
fn chain_of_prompts_of_extensions_is_bounded() {
    let again = [user_message("again", UserMessageQueue::FollowUp)];
    let mut transition = transition();
    apply_inputs(&mut transition, &[prompt("go"), response(&["done"])]);
    let mut errors = Vec::new();
    for _ in 0..12 {
        let mut next = Transition::new(transition.head, None, policy(), NOW);
        apply_inputs(&mut next, &[hook_of("agent_end", &again), Input::DrainInbox]);
        if next.head.prompt.is_some() {
            apply_inputs(&mut next, &[response(&["done"])]);
        }
        errors.extend(next.events.iter().filter_map(|event| match &event.body {
            EventBody::Notify(notice) => Some(notice.text.clone()),
            _ => None,
        }));
        assert_eq!(next.queued_new_items().count(), 0);
        transition = next;
    }
    assert_eq!(transition.head.prompts.len(), 1 + 8);
    assert_eq!(errors.len(), 4);
    assert!(errors[0].starts_with("The extension `loop` started 8 prompts in a row"), "{errors:?}");
    // A prompt of a person ends the row.
    let next = item(
        "next",
        json!({"prompt": {"promptId": "pr_2", "user": "default", "input": "x", "visible": true, "source": "user"}}),
    );
    apply_inputs(&mut transition, &[inbox_read_one(next), response(&["done"])]);
    apply_inputs(&mut transition, &[hook_of("agent_end", &again), Input::DrainInbox]);
    assert_eq!(transition.head.extension_chain.as_ref().map(|chain| chain.prompts), Some(1));
}

#[test]
fn abort_without_a_prompt_has_no_effect() {
    let mut transition = transition();
    apply_inputs(&mut transition, &[kept(&[Action::Abort]), prompt("go")]);
    finish_commit(&mut transition);
    assert!(matches!(transition.head.phase, Phase::Model { .. }));
}

#[test]
fn settings_name_label_and_entry() {
    let mut transition = transition();
    let change = ModelChange::new("azure", "gpt-5.1");
    let set_model = Action::SetModel { model: "high".to_owned(), change };
    let entry_id = EntryId::from_seq("0a1b2c3d", 1);
    let data = Some(RawJson::from_value(&json!({"n": 1})));
    let actions = [
        set_model.clone(),
        Action::SetThinkingLevel(ThinkingLevel::Low),
        Action::SetActiveTools(vec!["look".to_owned()]),
        Action::SetName(Some("A name".to_owned())),
        Action::SetLabel { entry_id, label: None },
        Action::AppendEntry { custom_type: "guard/note".to_owned(), data },
        Action::Notify { text: "Careful.".to_owned(), severity: Severity::Warning },
        // Unchanged.
        set_model,
        Action::SetThinkingLevel(ThinkingLevel::Low),
        Action::SetName(Some("A name".to_owned())),
    ];
    let events = apply_inputs(&mut transition, &[kept(&actions)]);
    let kinds =
        ["model_change", "thinking_level_change", "custom", "session_info", "label", "custom"];
    assert_eq!(entry_kinds(&transition), kinds.map(|kind| format!("\"{kind}\"")));
    assert_eq!(events, ["session_info_changed", "notify"]);
    let head = &transition.head;
    assert_eq!(head.settings.model.as_deref(), Some("high"));
    assert_eq!(head.settings.thinking_level, Some(ThinkingLevel::Low));
    assert_eq!(head.settings.active_tools.as_deref(), Some(&["look".to_owned()][..]));
    assert_eq!(head.name.as_deref(), Some("A name"));
}

#[test]
fn compaction_waits_for_the_end_of_the_prompt() {
    let mut transition = transition();
    apply_inputs(&mut transition, &[prompt("go")]);
    let compact = kept(&[Action::Compact { instructions: None }]);
    apply_inputs(&mut transition, &[compact, response(&["look {}"]), Input::DrainInbox]);
    assert!(matches!(transition.head.phase, Phase::Calls { .. }));
    let call = [admitted_call(0, Effect::Read, None), returned_call(0, "x")];
    apply_inputs(&mut transition, &call);
    apply_inputs(&mut transition, &[response(&["done"]), Input::DrainInbox]);
    assert!(matches!(transition.head.phase, Phase::Summary { .. }));
}

#[test]
fn actions_of_one_hook_are_limited() {
    let mut hook = HookActions::new("guard", "turn_end", ActionOrigin::Kept);
    let entry = |custom_type: &str, bytes: usize| Action::AppendEntry {
        custom_type: custom_type.to_owned(),
        data: Some(RawJson::from_value(&"x".repeat(bytes))),
    };
    hook.add(entry("turnwheel/state", 1)).unwrap_err();
    hook.add(entry("note", 65_000)).unwrap();
    let error = hook.add(entry("note", 600)).unwrap_err();
    assert_eq!(error, "the actions of one hook have 65612 bytes: at most 65536 are allowed");
    for _ in 1..16 {
        hook.add(Action::Abort).unwrap();
    }
    assert_eq!(hook.add(Action::Abort).unwrap_err(), "one hook may have at most 16 actions");
}

#[test]
fn recomputed_actions_are_dropped_on_rebase() {
    let recomputed = || hook(ActionOrigin::Recomputed, &[Action::Abort]);
    let decision = || Input::FinishTurn(FinishTurn::End);
    let with_decision = hook(ActionOrigin::WithTurnDecision, &[Action::Abort]);
    let inputs = [decision(), with_decision, Input::DrainInbox, recomputed(), lost_result(0)];
    let without_decision = Input::retain(&inputs, Replan::ChangedInbox);
    assert!(
        matches!(without_decision[..], [Input::DrainInbox, Input::ToolOutcomeUnknown { .. }]),
        "{without_decision:?}"
    );
    let with_decision = Input::retain(&inputs, Replan::WithoutInbox);
    assert!(
        matches!(
            with_decision[..],
            [Input::FinishTurn(_), Input::HookActions(_), Input::ToolOutcomeUnknown { .. }]
        ),
        "{with_decision:?}"
    );
}

#[test]
fn kept_actions_survive_rebase() {
    let inputs = [returned_call(0, "x"), kept(&[Action::Abort]), Input::DrainInbox];
    for replan in [Replan::WithoutInbox, Replan::SmallerCommit] {
        let retained = Input::retain(&inputs, replan);
        assert!(
            matches!(retained[..], [Input::ToolCallReturned { .. }, Input::HookActions(_)]),
            "{retained:?}"
        );
    }
}

fn start_changes(prompt_id: &str) -> Input {
    Input::StartChanges(Box::new(StartChanges {
        prompt_id: PromptId::new(prompt_id),
        messages: vec![message("today is Monday")],
        system_prompt: Some("Be brief.".to_owned()),
    }))
}

#[test]
fn start_changes_apply_only_to_their_prompt() {
    let mut transition = transition();
    apply_inputs(&mut transition, &[start_changes("pr_other"), prompt("go")]);
    assert_eq!(entry_kinds(&transition), ["\"prompt\"", "\"message\""]);
    assert_eq!(transition.head.prompt.unwrap().system_prompt_seq, None);
}

#[test]
fn start_changes_follow_the_messages_of_the_user() {
    let mut transition = transition();
    let next_turn = item(
        "n",
        json!({"custom": {"promptId": "pr_n", "user": "default", "deliverAs": "nextTurn",
        "message": {"customType": "note", "content": "first", "display": true}}}),
    );
    let Input::InboxRead(mut pending) = prompt("go") else { unreachable!() };
    pending.push(PendingItem { item: Arc::new(next_turn), bytes: 10, is_new: false });
    apply_inputs(&mut transition, &[start_changes("pr_1"), Input::InboxRead(pending)]);
    let kinds = ["prompt", "message", "custom_message", "custom_message", "custom"];
    assert_eq!(entry_kinds(&transition), kinds.map(|kind| format!("\"{kind}\"")));
    let EntryBody::Custom(custom) = &transition.entries[4].body else { unreachable!() };
    assert_eq!(custom.custom_type, "turnwheel/system_prompt");
    assert_eq!(custom.data.as_ref().unwrap().text(), r#"{"text":"Be brief."}"#);
    let run = transition.head.prompt.as_ref().unwrap();
    assert_eq!(run.system_prompt_seq, Some(transition.entries[4].base.seq));
    assert_eq!(transition.head.required_reader(), 5);
}

#[test]
fn system_prompt_ends_with_the_run() {
    let mut transition = transition();
    apply_inputs(&mut transition, &[start_changes("pr_1"), prompt("go")]);
    let seq = transition.head.prompt.as_ref().unwrap().system_prompt_seq;
    let queued = |kind: &str, id: &str| {
        let prompt = json!({"promptId": format!("pr_{id}"), "user": "default", "input": id, "visible": true, "source": "user"});
        item(id, json!({ kind: prompt }))
    };
    step(&mut transition, &inbox_read(&[queued("followUp", "next")]));
    apply_inputs(&mut transition, &[response(&["done"])]);
    let run = transition.head.prompt.as_ref().unwrap();
    assert_eq!((run.id.as_str(), run.system_prompt_seq), ("pr_next", seq), "the run goes on");
    apply_inputs(&mut transition, &[response(&["done"])]);
    apply_inputs(&mut transition, &[inbox_read(&[queued("prompt", "last")])]);
    let run = transition.head.prompt.as_ref().unwrap();
    assert_eq!((run.id.as_str(), run.system_prompt_seq), ("pr_last", None));
}

/// An inbox item with actions of a command.
fn stored_actions(id: &str, actions: &[Action]) -> InboxItem {
    let stored = StoredActions { by: "guard".to_owned(), actions: actions.to_vec() };
    let body = StoredActions::to_inbox_body(&[stored]);
    item(id, serde_json::to_value(&body).unwrap())
}

#[test]
fn stored_actions_are_applied_with_their_receipt() {
    let actions = [
        Action::AppendEntry { custom_type: "note".to_owned(), data: None },
        Action::SetName(Some("Bills".to_owned())),
        user_message("go", UserMessageQueue::FollowUp),
    ];
    let stored = stored_actions("in_a", &actions);
    assert!(is_supported(&stored.body));
    let mut transition = transition();
    let events = apply_inputs(&mut transition, &[inbox_read(&[stored])]);
    let started = ["session_info_changed", "prompt.created", "agent_start"];
    assert_eq!(events[..3], started, "the message starts a prompt");
    assert_eq!(transition.head.name.as_deref(), Some("Bills"));
    let receipts: Vec<&str> =
        transition.receipts.iter().map(|receipt| receipt.input_id.as_str()).collect();
    assert_eq!(receipts, ["in_a", "hook_0a1b2c3d_1"]);
}

#[test]
fn stored_actions_are_applied_while_a_prompt_runs() {
    let mut transition = after_calls();
    let actions = [Action::SetThinkingLevel(ThinkingLevel::High)];
    let event = Action::Notify { text: "done".to_owned(), severity: Severity::Info };
    let items = [stored_actions("in_a", &actions), stored_actions("in_b", &[event])];
    let events = apply_inputs(&mut transition, &[inbox_read(&items)]);
    assert_eq!(events, ["notify"]);
    assert_eq!(transition.receipts.len(), 2);
    assert_eq!(transition.head.waiting_items, 0);
    assert!(matches!(transition.head.phase, Phase::Calls { .. }));
}

#[test]
fn stored_message_continues_a_run_that_would_end() {
    let mut transition = transition();
    apply_inputs(&mut transition, &[prompt("go")]);
    let stored = stored_actions("in_a", &[user_message("more", UserMessageQueue::Steer)]);
    step(&mut transition, &inbox_read(&[stored]));
    apply_inputs(&mut transition, &[response(&["done"]), Input::DrainInbox]);
    assert_eq!(transition.head.prompt.as_ref().unwrap().id.as_str(), "pr_1");
    assert_eq!(transition.head.phase, Phase::MODEL_CALL);
}

#[test]
fn unknown_stored_action_waits_for_a_newer_version() {
    let args = json!([{"by": "guard", "actions": [{"fly": {}}]}]);
    let unknown = item("in_a", json!({"command": {"name": "actions", "args": args}}));
    assert!(!is_supported(&unknown.body));
}

#[test]
fn every_action_is_stored_without_loss() {
    let spec = MessageSpec { deliver_as: None, ..message_spec() };
    let actions = vec![
        Action::AppendEntry { custom_type: "a".to_owned(), data: Some(RawJson::from_value(&1.50)) },
        Action::SendMessage(spec),
        user_message("u", UserMessageQueue::Steer),
        Action::SetModel { model: "m".to_owned(), change: ModelChange::new("p", "m") },
        Action::SetThinkingLevel(ThinkingLevel::Low),
        Action::SetActiveTools(vec!["t".to_owned()]),
        Action::SetName(None),
        Action::SetLabel { entry_id: EntryId::new("e"), label: None },
        Action::Abort,
        Action::Compact { instructions: None },
        Action::Notify { text: "n".to_owned(), severity: Severity::Error },
    ];
    let stored = vec![StoredActions { by: "x".to_owned(), actions }];
    let InboxBody::Command(command) = StoredActions::to_inbox_body(&stored) else { panic!() };
    assert_eq!(StoredActions::from_command(&command), Some(stored));
}

fn message_spec() -> MessageSpec {
    MessageSpec { message: message("m"), deliver_as: None, trigger_turn: true }
}
