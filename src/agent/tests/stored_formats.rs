//! Compatibility of stored formats: documents of older versions load and round-trip unchanged.

use super::*;
use crate::agent::action::StoredActions;
use crate::agent::entry::Entry;
use crate::agent::inbox::Receipt;
use crate::agent::notification::Notification;
use crate::agent::raw::RawJson;
use crate::agent::run_prompt;

const ENTRIES: &str = include_str!("../../../tests/fixtures/entries-v1.jsonl");
const HEADS: &str = include_str!("../../../tests/fixtures/heads-v1.jsonl");
const INBOX: &str = include_str!("../../../tests/fixtures/inbox-v1.jsonl");
const EVENTS: &str = include_str!("../../../tests/fixtures/events-v1.jsonl");

fn assert_round_trips<T: serde::Serialize + for<'a> serde::Deserialize<'a>>(lines: &str) -> usize {
    for line in lines.lines() {
        let read: T = serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
        let written = serde_json::to_string(&read).unwrap();
        assert_eq!(
            RawJson::from_text(written).unwrap().to_value(),
            RawJson::from_text(line).unwrap().to_value(),
            "{line}"
        );
    }
    lines.lines().count()
}

#[test]
fn entry_types_round_trip() {
    assert_eq!(assert_round_trips::<Entry>(ENTRIES), 46);
}

#[test]
fn unknown_entry_type_keeps_numbers_as_written() {
    let line = ENTRIES.lines().last().unwrap();
    let entry: Entry = serde_json::from_str(line).unwrap();
    assert!(matches!(entry.body, crate::agent::entry::EntryBody::Other(_)));
    assert_eq!(serde_json::to_string(&entry).unwrap(), line);
}

#[test]
fn heads_with_unknown_fields_round_trip() {
    assert_eq!(assert_round_trips::<Head>(HEADS), 15);
}

#[test]
fn heads_of_reader_5_require_it() {
    let heads = HEADS.lines().map(|line| serde_json::from_str::<Head>(line).unwrap());
    let of_five = heads.filter(|head| head.min_reader == 5);
    let required: Vec<u32> = of_five.map(|head| head.required_reader()).collect();
    assert_eq!(required, [5; 3]);
}

/// Unknown actions would be dropped with their item.
#[test]
fn actions_of_inbox_items_round_trip() {
    let mut kinds = 0;
    for line in INBOX.lines() {
        let item: InboxItem = serde_json::from_str(line).unwrap();
        let InboxBody::Command(command) = &item.body else { continue };
        if command.name == "actions" {
            let actions = StoredActions::from_command(command).expect(line);
            kinds += actions.iter().map(|stored| stored.actions.len()).sum::<usize>();
            assert_eq!(StoredActions::to_inbox_body(&actions), item.body);
        }
    }
    assert_eq!(kinds, 17);
}

#[test]
fn system_prompt_of_a_run_is_read_from_its_entry() {
    let entries = ENTRIES.lines().map(|line| serde_json::from_str::<Entry>(line).unwrap());
    let prompts = entries.filter_map(|entry| run_prompt::from_entry(&entry.body));
    assert_eq!(prompts.collect::<Vec<_>>(), ["Be good. Be brief."]);
}

#[test]
fn inbox_item_kinds_round_trip() {
    assert_eq!(assert_round_trips::<InboxItem>(INBOX), 19);
}

#[test]
fn events_round_trip() {
    assert_eq!(assert_round_trips::<Event>(EVENTS), 34);
}

#[test]
fn receipts_and_notifications_round_trip() {
    let receipt = r#"{"inputId":"in_1","acceptedAt":1,"admission":{"bodyHash":"h","status":202,"answer":{"promptId":"pr_1"}},"outcome":"landed","turn":1,"promptId":"pr_1","later":true}"#;
    assert_eq!(assert_round_trips::<Receipt>(receipt), 1);
    let notice = r#"{"id":"nt_c_1_2","type":"prompt.completed","at":1,"data":{"promptId":"pr_1"},"text":"Done.","attempts":0,"gaveUp":false}"#;
    assert_eq!(assert_round_trips::<Notification>(notice), 1);
}

#[test]
fn tool_call_arguments_keep_numbers_as_written() {
    let block = r#"{"type":"toolCall","id":"c","name":"pay","arguments":{"amount":12345678901234567890123.4500}}"#;
    let read: crate::agent::content::Block = serde_json::from_str(block).unwrap();
    assert_eq!(serde_json::to_string(&read).unwrap(), block);
}
