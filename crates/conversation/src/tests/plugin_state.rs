//! Frames and plugin state that come with model responses.

use super::*;
use crate::entry::EntryBody;
use crate::frame_entry::{FrameEntry, FrameInput};
use crate::path::path_to_leaf;
use crate::plugin_state::{PluginState, PluginStateChange, plugin_state_at};
use crate::unknown_members::Extra;
use turnwheel_json::raw::RawJson;
use turnwheel_platform::ids::EntryId;

fn change(plugin: &str, value: Option<serde_json::Value>) -> PluginStateChange {
    let state = value.map(|value| PluginState { schema: 1, value: RawJson::from_value(&value) });
    PluginStateChange { plugin: plugin.to_owned(), state }
}

/// The response with changes of plugins, and the frame with this hash.
fn prepared(mut input: Input, hash: &str, changes: &[PluginStateChange]) -> Input {
    let Input::ResponseReceived(response) = &mut input else { panic!("{input:?}") };
    let entry = FrameEntry {
        hash: hash.to_owned(),
        document: Some("d".to_owned()),
        revision: "r1".to_owned(),
        system_prompt_seq: None,
        tools: Vec::new(),
        contributions: Vec::new(),
        leaves_out_response_schema: false,
        extra: Extra::new(),
    };
    response.frame =
        Some(FrameInput { entry, tokens: 7, is_own: false, changed_tools: Vec::new() });
    response.plugin_state = changes.to_vec();
    input
}

fn state_entries(transition: &Transition) -> usize {
    let is_state = |entry: &&Arc<Entry>| matches!(&entry.body, EntryBody::Custom(custom) if custom.custom_type == "turnwheel/state");
    transition.entries.iter().filter(is_state).count()
}

fn states_at(transition: &Transition, leaf: Option<&EntryId>) -> Vec<(String, String)> {
    let states = plugin_state_at(&path_to_leaf(&transition.entries, leaf));
    states.iter().map(|(plugin, state)| (plugin.clone(), state.value.text().to_owned())).collect()
}

#[test]
fn state_as_of_the_leaf() {
    let mut transition = transition();
    let skills = change("skills", Some(json!({"rounds": 1})));
    let first = prepared(response(&["look {}"]), "h", std::slice::from_ref(&skills));
    apply_inputs(&mut transition, &[prompt("go"), first]);
    let leaf = transition.head.leaf_id.clone();
    apply_inputs(&mut transition, &[admitted_call(0, Effect::Read, None), returned_call(0, "x")]);
    let later = [change("skills", None), change("crm", Some(json!(null)))];
    apply_inputs(&mut transition, &[prepared(response(&["done"]), "h", &later)]);
    let one = |plugin: &str, value: &str| vec![(plugin.to_owned(), value.to_owned())];
    assert_eq!(states_at(&transition, leaf.as_ref()), one("skills", r#"{"rounds":1}"#));
    let newest = transition.head.leaf_id.clone();
    assert_eq!(states_at(&transition, newest.as_ref()), one("crm", "null"));
    let path = path_to_leaf(&transition.entries, newest.as_ref());
    assert_eq!(transition.head.plugin_state, plugin_state_at(&path));
}

#[test]
fn state_of_failed_response_is_not_kept() {
    let mut transition = transition();
    let changes = [change("skills", Some(json!(1)))];
    let failed = prepared(response_with(&[], "error"), "h", &changes);
    apply_inputs(&mut transition, &[prompt("go"), failed]);
    assert!(transition.head.plugin_state.is_empty());
    assert_eq!((transition.head.frame.as_ref(), state_entries(&transition)), (None, 0));
}

#[test]
fn unchanged_state_writes_no_entry() {
    let mut transition = transition();
    let changes = [change("skills", Some(json!(1))), change("crm", None)];
    let looks = prepared(response(&["look {}"]), "h", &changes);
    apply_inputs(&mut transition, &[prompt("go"), looks]);
    let call = [admitted_call(0, Effect::Read, None), returned_call(0, "x")];
    apply_inputs(&mut transition, &call);
    apply_inputs(&mut transition, &[prepared(response(&["done"]), "h", &changes)]);
    assert_eq!(state_entries(&transition), 1);
}

#[test]
fn frame_entry_only_on_change() {
    let mut transition = transition();
    let looks = || prepared(response(&["look {}"]), "h1", &[]);
    let call = [admitted_call(0, Effect::Read, None), returned_call(0, "x")];
    apply_inputs(&mut transition, &[prompt("go"), looks()]);
    apply_inputs(&mut transition, &call);
    apply_inputs(&mut transition, &[looks()]);
    apply_inputs(&mut transition, &call);
    apply_inputs(&mut transition, &[prepared(response(&["done"]), "h2", &[])]);
    let seqs: Vec<u64> = transition
        .entries
        .iter()
        .filter(|entry| matches!(entry.body, EntryBody::Frame(_)))
        .map(|entry| entry.base.seq)
        .collect();
    let named: Vec<u64> = transition
        .entries
        .iter()
        .filter_map(|entry| match &entry.body {
            EntryBody::Message(message) => message.frame,
            _ => None,
        })
        .collect();
    assert_eq!(named, [seqs[0], seqs[0], seqs[1]], "each response names its frame");
    let current = transition.head.frame.as_ref().unwrap();
    assert_eq!((current.hash.as_str(), current.seq, current.tokens), ("h2", seqs[1], 7));
    assert_eq!(view(&transition)["output"].as_array().unwrap().len(), 3, "two calls and a text");
}

#[test]
fn large_state_is_an_error() {
    let text = |bytes: usize| Some(json!("x".repeat(bytes - 2)));
    let mut states = crate::plugin_state::PluginStates::new();
    let error = change("skills", text(8193)).size_error(&states).unwrap();
    assert_eq!(error, "The state of plugin \"skills\" is 8193 bytes; the maximum is 8192");
    for plugin in ["a", "b", "skills"] {
        let change = change(plugin, text(8192));
        assert_eq!(change.size_error(&states), None, "{plugin}");
        change.apply(&mut states).unwrap();
    }
    assert_eq!(change("skills", text(8000)).size_error(&states), None, "it replaces its own value");
    let error = change("c", text(3)).size_error(&states).unwrap();
    assert_eq!(
        error,
        "The state of plugin \"c\" brings the state of all plugins to 24579 bytes; the maximum is 24576"
    );
}
