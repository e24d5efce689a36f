//! Parts of conversations that forks copy.

use super::*;
use crate::entry::{EntryBody, Label, MessageEntry};
use crate::fork::{
    ForkPosition, PromptSpans, Renumbering, find_fork_point, indeterminate_writes,
    labels_beside_path,
};
use crate::path::path_to_leaf;
use crate::phase::{CallStatus, Phase};
use turnwheel_platform::ids::EntryId;

fn point_before(transition: &Transition, index: usize) -> Vec<u64> {
    let is_user = |entry: &&Arc<Entry>| matches!(entry.body.message(), Some(Message::User(_)));
    let message = transition.entries.iter().filter(is_user).nth(index).unwrap();
    let point = find_fork_point(&transition.entries, &message.base.entry_id, ForkPosition::Before);
    point.unwrap().path.iter().map(|entry| entry.base.seq).collect()
}

#[test]
fn fork_before_prompt_leaves_its_start_out_and_before_steer_keeps_it() {
    let mut transition = transition();
    apply_inputs(&mut transition, &[prompt("go"), response(&["read {}"])]);
    let steer = r#"{"role":"user","content":"faster","timestamp":1}"#;
    let steer = MessageEntry::new(serde_json::from_str(steer).unwrap());
    transition.append(EntryBody::Message(steer));
    assert_eq!(point_before(&transition, 0), [0; 0]);
    let kept = point_before(&transition, 1);
    assert_eq!(kept, (1..=kept.len() as u64).collect::<Vec<_>>());
    assert!(kept.len() > 2, "{kept:?}");
}

#[test]
fn renumbered_entries_refer_to_each_other() {
    let mut transition = transition();
    apply_inputs(&mut transition, &[prompt("go"), response(&["pay {}"])]);
    apply_inputs(&mut transition, &[admitted_call(0, Effect::Write, None), returned_call(0, "x")]);
    let mut renumbering = Renumbering::default();
    let shifted = transition.entries.iter().skip(1);
    let copies: Vec<Entry> = shifted.map(|entry| renumbering.add(Entry::clone(entry))).collect();
    for (copy, number) in copies.iter().zip(1..) {
        let (seq, ids) = (
            copy.base.seq,
            &transition.entries[usize::try_from(copy.base.seq).unwrap()].base.entry_id,
        );
        assert_eq!((seq, &copy.base.entry_id), (number, ids));
    }
    let response = copies
        .iter()
        .find(|copy| copy.body.message().is_some_and(|it| it.as_assistant().is_some()));
    let started = copies.iter().find_map(|copy| {
        if let EntryBody::ToolStarted(it) = &copy.body { Some(it.call.response_seq) } else { None }
    });
    assert_eq!(started, response.map(|copy| copy.base.seq));
    let raw: Entry = serde_json::from_str(
        r#"{"entryId":"e","parentId":null,"seq":40,"timestamp":"2026-11-21T20:19:09.669Z","type":"later","n":1.50}"#,
    )
    .unwrap();
    let raw = renumbering.add(raw);
    assert_eq!(
        serde_json::to_string(&raw).unwrap(),
        format!(
            r#"{{"entryId":"e","parentId":null,"seq":{},"timestamp":"2026-11-21T20:19:09.669Z","type":"later","n":1.50}}"#,
            copies.len() + 1
        )
    );
    let mut spans = PromptSpans::default();
    transition.entries.iter().for_each(|entry| spans.add(entry));
    assert!(spans.open().is_some());
}

#[test]
fn running_and_unknown_writes_block_equal_calls_of_the_fork() {
    let mut transition = transition();
    apply_inputs(&mut transition, &[prompt("go"), response(&["pay {}"])]);
    let before = transition.entries.clone();
    apply_inputs(&mut transition, &[admitted_call(0, Effect::Write, None)]);
    let Phase::Calls { calls, response_seq, .. } = &transition.head.phase else { panic!() };
    let CallStatus::Started { fingerprint, effect_id, .. } = &calls[0].status else { panic!() };
    let expected = [(fingerprint.clone(), effect_id.to_string())].into();
    assert_eq!(indeterminate_writes(&transition.head, &before), expected);
    let earlier = &before[..usize::try_from(*response_seq).unwrap() - 1];
    assert!(indeterminate_writes(&transition.head, earlier).is_empty());
    let mut head = transition.head.clone();
    head.phase = Phase::Idle;
    head.indeterminate_writes.insert("own".to_owned(), effect_id.to_string());
    head.indeterminate_writes.insert("parents".to_owned(), "tw_other_1234_7_0".to_owned());
    head.indeterminate_writes.insert("unresolved".to_owned(), "any".to_owned());
    assert_eq!(indeterminate_writes(&head, &before), head.indeterminate_writes);
    let of_others: Vec<String> = indeterminate_writes(&head, earlier).into_keys().collect();
    assert_eq!(of_others, ["parents", "unresolved"]);
}

#[test]
fn labels_of_other_branches_are_set_again() {
    let mut transition = transition();
    apply_inputs(&mut transition, &[prompt("go"), response(&["done"])]);
    let target = transition.entries[1].base.entry_id.clone();
    let end = transition.head.leaf_id.clone();
    transition.append(EntryBody::Label(Label::new(target.clone(), Some("here".to_owned()))));
    transition.append(EntryBody::Label(Label::new(EntryId::new("gone"), Some("x".to_owned()))));
    let path = path_to_leaf(&transition.entries, end.as_ref());
    let labels = labels_beside_path(&transition.entries, &path);
    assert_eq!(labels, [Label::new(target, Some("here".to_owned()))]);
    let all = path_to_leaf(&transition.entries, transition.head.leaf_id.as_ref());
    assert!(labels_beside_path(&transition.entries, &all).is_empty());
}
