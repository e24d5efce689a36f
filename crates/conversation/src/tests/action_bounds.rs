//! Bounds of what extensions and plugins add: nesting, and messages that wait for the next turn.

use super::*;
use crate::action::{Action, ActionOrigin, HookActions, MessageSpec, StoredActions};
use crate::inbox::{DeliverAs, NEXT_TURN_MESSAGES_MAX};
use crate::plugin_state::{PluginState, PluginStateChange, PluginStates};
use turnwheel_json::raw::{BODY_DEPTH_MAX, ENTRY_DEPTH_MAX, RawJson};

fn new_hook() -> HookActions {
    HookActions::new("guard", "turn_end", ActionOrigin::Kept)
}

fn append_entry(data: RawJson) -> Action {
    Action::AppendEntry { custom_type: "note".to_owned(), data: Some(data) }
}

fn send_details(details: RawJson) -> Action {
    let mut spec = MessageSpec::new("note", "hi");
    spec.message.details = Some(details);
    Action::SendMessage(spec)
}

fn nested(levels: usize) -> RawJson {
    RawJson::from_text("[".repeat(levels) + &"]".repeat(levels)).unwrap()
}

#[test]
fn action_that_nests_too_deeply_is_refused() {
    for action in [append_entry, send_details] {
        let mut hook = new_hook();
        let error = hook.add(action(nested(BODY_DEPTH_MAX))).unwrap_err();
        assert_eq!(error, "an action may nest at most 110 levels");
        hook.add(action(nested(BODY_DEPTH_MAX - 3))).unwrap();
        let stored = StoredActions { by: "guard".to_owned(), actions: hook.actions().to_vec() };
        let body = StoredActions::to_inbox_body(&[stored]);
        let item = InboxItem { body, ..item("in_1", json!({"abort": {}})) };
        let depth = RawJson::from_value(&item).depth();
        assert!(depth <= ENTRY_DEPTH_MAX, "{depth}");
    }
}

#[test]
fn plugin_state_that_nests_too_deeply_is_refused() {
    let change = |levels| {
        let state = Some(PluginState { schema: 1, value: nested(levels) });
        PluginStateChange { plugin: "clock".to_owned(), state }
    };
    let states = PluginStates::new();
    assert_eq!(change(BODY_DEPTH_MAX).size_error(&states), None);
    let error = change(BODY_DEPTH_MAX + 1).size_error(&states).unwrap();
    assert_eq!(error, "The state of plugin \"clock\" nests over 110 levels");
}

#[test]
fn next_turn_messages_of_extensions_are_bounded() {
    let next_turn = |number: u32| {
        let message = json!({"customType": "note", "content": "x", "display": true});
        let custom = json!({"promptId": format!("pr_{number}"), "user": "default", "message": message, "deliverAs": "nextTurn"});
        item(&format!("in_{number}"), json!({ "custom": custom }))
    };
    let mut hook = new_hook();
    for _ in 0..2 {
        let spec = MessageSpec::new("note", "hi");
        hook.add(Action::SendMessage(MessageSpec {
            deliver_as: Some(DeliverAs::NextTurn),
            ..spec
        }))
        .unwrap();
    }
    let waiting: Vec<InboxItem> = (1..NEXT_TURN_MESSAGES_MAX).map(next_turn).collect();
    let mut transition = transition();
    let actions = Input::HookActions(Box::new(hook));
    apply_inputs(&mut transition, &[inbox_read(&waiting), actions, Input::DrainInbox]);
    assert_eq!(transition.queued_new_items().count(), 1);
    let errors: Vec<&str> = transition
        .events
        .iter()
        .filter_map(|event| match &event.body {
            EventBody::Notify(notification) => Some(notification.text.as_str()),
            _ => None,
        })
        .collect();
    assert_eq!(
        errors,
        [
            "64 messages already wait for the next prompt of a user, which is the limit; a `nextTurn` message of the extension `guard` was not sent."
        ]
    );
}
