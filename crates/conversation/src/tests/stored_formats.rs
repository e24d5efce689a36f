//! Compatibility of stored formats: documents of older versions load and round-trip unchanged.

use super::*;
use crate::action::StoredActions;
use crate::entry::Entry;
use crate::head::READER_VERSION;
use crate::inbox::Receipt;
use crate::memory::Memory;
use crate::notification::Notification;
use crate::profile::document::ProfileDocument;
use crate::run_prompt;
use crate::step::is_supported;
use crate::user_skills::{SkillList, UserSkill};
use crate::waiting_command::AskingRequest;
use turnwheel_json::raw::RawJson;

const ENTRIES: &str = include_str!("../../../../tests/fixtures/entries-v1.jsonl");
const HEADS: &str = include_str!("../../../../tests/fixtures/heads-v1.jsonl");
const INBOX: &str = include_str!("../../../../tests/fixtures/inbox-v1.jsonl");
const USER_DOCUMENTS: &str = include_str!("../../../../tests/fixtures/user-documents-v1.jsonl");
const EVENTS: &str = include_str!("../../../../tests/fixtures/events-v1.jsonl");

fn assert_round_trips<T: serde::Serialize + for<'a> serde::Deserialize<'a>>(lines: &str) -> usize {
    for line in lines.lines() {
        let read: T = serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
        let written = serde_json::to_string(&read).unwrap();
        assert_eq!(
            RawJson::from_text(written).unwrap().canonical_text(),
            RawJson::from_text(line).unwrap().canonical_text(),
            "{line}"
        );
    }
    lines.lines().count()
}

#[test]
fn entry_types_round_trip() {
    assert_eq!(assert_round_trips::<Entry>(ENTRIES), 50);
}

#[test]
fn unknown_entry_type_keeps_numbers_as_written() {
    let line = ENTRIES.lines().last().unwrap();
    let entry: Entry = serde_json::from_str(line).unwrap();
    assert!(matches!(entry.body, crate::entry::EntryBody::Other(_)));
    assert_eq!(serde_json::to_string(&entry).unwrap(), line);
}

#[test]
fn heads_with_unknown_fields_round_trip() {
    assert_eq!(assert_round_trips::<Head>(HEADS), 23);
}

#[test]
fn heads_of_newer_readers_require_them() {
    let heads = HEADS.lines().map(|line| serde_json::from_str::<Head>(line).unwrap());
    let newer: Vec<Head> = heads.filter(|head| head.min_reader >= 5).collect();
    let required = |version: u32| {
        let of_version = newer.iter().filter(move |head| head.min_reader == version);
        of_version.map(Head::required_reader).collect::<Vec<u32>>()
    };
    assert_eq!((required(5), required(6), required(7)), (vec![5; 4], vec![6; 3], vec![7]));
    assert_eq!((required(8), required(9)), (vec![8], vec![9]));
    let newest = newer.iter().map(|head| head.min_reader).max();
    assert_eq!(newest, Some(READER_VERSION), "a fixture of the newest version");
}

#[test]
fn waiting_commands_are_read_and_those_of_newer_versions_are_left() {
    let items = INBOX.lines().map(|line| serde_json::from_str::<InboxItem>(line).unwrap());
    let waiting: Vec<InboxItem> = items.filter(InboxItem::is_waiting_command).collect();
    assert_eq!(waiting.len(), 3);
    for item in waiting {
        let request = AskingRequest::from_item(&item).expect("it is readable");
        assert_eq!(request.to_inbox_body(), item.body);
        assert!(is_supported(&item.body));
    }
    let newer = r#"{"command":{"name":"asking","args":{"paint":{"wall":"red"}}}}"#;
    let newer: InboxBody = serde_json::from_str(newer).unwrap();
    assert!(!is_supported(&newer), "a newer worker applies it");
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
    assert_eq!(assert_round_trips::<InboxItem>(INBOX), 23);
}

#[test]
fn events_round_trip() {
    assert_eq!(assert_round_trips::<Event>(EVENTS), 41);
}

#[test]
fn documents_of_users_round_trip() {
    let bodies = |kind: &str| {
        let lines = USER_DOCUMENTS.lines().map(|line| RawJson::from_text(line.to_owned()).unwrap());
        let of_kind = lines.filter(|line| line.string_member("document").as_deref() == Some(kind));
        // The body as written, with the digits of its numbers.
        let prefix = format!("{{\"document\":\"{kind}\",\"body\":");
        let body = |line: RawJson| {
            line.text().strip_prefix(&prefix).unwrap().strip_suffix('}').unwrap().to_owned()
        };
        of_kind.map(body).collect::<Vec<_>>().join("\n")
    };
    assert_eq!(assert_round_trips::<Memory>(&bodies("memory")), 2);
    assert_eq!(assert_round_trips::<SkillList>(&bodies("skills")), 1);
    assert_eq!(assert_round_trips::<UserSkill>(&bodies("skill")), 2);
    assert_eq!(assert_round_trips::<ProfileDocument>(&bodies("profile")), 3);
    assert_eq!(USER_DOCUMENTS.lines().count(), 8);
}

#[test]
fn receipts_and_notifications_round_trip() {
    let receipt = r#"{"inputId":"in_1","acceptedAt":1,"admission":{"bodyHash":"h","status":202,"answer":{"promptId":"pr_1"}},"outcome":"landed","turn":1,"promptId":"pr_1","later":25122920421210000012345.10}"#;
    assert_eq!(assert_round_trips::<Receipt>(receipt), 1);
    let notice = r#"{"id":"nt_c_1_2","type":"prompt.completed","at":1,"data":{"promptId":"pr_1"},"text":"Done.","attempts":0,"gaveUp":false}"#;
    assert_eq!(assert_round_trips::<Notification>(notice), 1);
}

#[test]
fn tool_call_arguments_keep_numbers_as_written() {
    let block = r#"{"type":"toolCall","id":"c","name":"pay","arguments":{"amount":12345678901234567890123.4500}}"#;
    let read: crate::content::Block = serde_json::from_str(block).unwrap();
    assert_eq!(serde_json::to_string(&read).unwrap(), block);
}
