//! Session files: forms of other programs, round trips of random trees.

mod frame_documents;
mod unknown_members;

use proptest::prelude::*;
use serde_json::{Value, json};

use super::object::Object;
use super::*;
use turnwheel_conversation::entry::{Entry, EntryBase, EntryBody};
use turnwheel_conversation::message::Message;
use turnwheel_conversation::settings::Settings;
use turnwheel_json::raw::RawJson;
use turnwheel_platform::clock::Timestamp;
use turnwheel_platform::ids::{ConversationId, EntryId};

fn read_file(text: &str) -> (Vec<Entry>, Vec<(u64, String)>) {
    let mut reader = SessionReader::new("0a1b2c3d", Timestamp(5));
    let (mut entries, mut skipped) = (Vec::new(), Vec::new());
    for line in text.lines() {
        for parsed in reader.read(&Line::Bytes(line.as_bytes().to_vec())).unwrap() {
            match parsed {
                ParsedLine::Header | ParsedLine::FrameDocument { .. } => {}
                ParsedLine::Entry(imported) => entries.push(imported.entry),
                ParsedLine::Skipped(reason) => skipped.push((reader.line_number(), reason)),
            }
        }
    }
    (entries, skipped)
}

fn file(lines: &[Value]) -> String {
    lines.iter().flat_map(|line| [line.to_string(), "\n".to_owned()]).collect()
}

#[test]
fn forms_of_the_minimal_agent_are_read() {
    let lines = [
        json!({"type": "session", "version": 1, "id": "abc123", "timestamp": "2026-02-03T10:00:00Z"}),
        json!({"type": "message", "id": "m1", "parentId": null, "message": {"role": "user", "content": "Hello"}}),
        json!({"type": "message", "id": "m2", "parentId": "m1", "message": {"role": "assistant", "content": "Hi!"}}),
        json!({"type": "branch", "id": "b1", "parentId": "m2", "label": "Alternative approach"}),
        json!({"type": "message", "id": "m3", "parentId": "m2", "message": {"role": "user", "content": "Try again"}}),
        json!({"type": "compaction", "id": "c1", "parentId": "m3", "summary": "...", "firstKeptId": "m3"}),
    ];
    let (entries, skipped) = read_file(&file(&lines));
    assert_eq!((entries.len(), skipped), (5, vec![]));
    assert_eq!(entries[0].base.timestamp.to_string(), "2026-02-03T10:00:00.000Z");
    let response = entries[1].body.message().unwrap().as_assistant().unwrap();
    assert_eq!(response.content, [turnwheel_conversation::content::Block::text("Hi!")]);
    let EntryBody::Label(label) = &entries[2].body else { panic!("{:?}", entries[2]) };
    assert_eq!(
        (label.target_id.as_str(), label.label.as_deref()),
        ("m2", Some("Alternative approach"))
    );
    assert_eq!(entries[4].body.compaction().unwrap().first_kept_entry_id.as_str(), "m3");
    let exported: Vec<Value> =
        entries.iter().map(|entry| serde_json::from_str(&pi_line(entry)).unwrap()).collect();
    assert_eq!(exported[1]["message"], lines[2]["message"], "the message stays as it was");
    assert_eq!(exported[3]["timestamp"], "2026-02-03T10:00:00.000Z");
}

/// A message with odd members between two others, and the file's entries with their warnings.
fn read_between(odd: &Value) -> (Vec<Entry>, Vec<String>) {
    let message = |id: &str, parent: Option<&str>| {
        json!({"type": "message", "id": id, "parentId": parent, "timestamp": "2026-01-01T00:00:01.000Z",
            "message": {"role": "user", "content": id, "timestamp": 1_767_225_601_000_u64}})
    };
    let header = json!({"type": "session", "version": 3, "id": "s"});
    read_with_notes(&file(&[header, message("a", None), odd.clone(), message("c", Some("b"))]))
}

/// The entries of a file, and all notes about its lines.
fn read_with_notes(text: &str) -> (Vec<Entry>, Vec<String>) {
    let mut reader = SessionReader::new("0a1b2c3d", Timestamp(5));
    let (mut entries, mut notes) = (Vec::new(), Vec::new());
    for line in text.lines() {
        for parsed in reader.read(&Line::Bytes(line.as_bytes().to_vec())).unwrap() {
            match parsed {
                ParsedLine::Header | ParsedLine::FrameDocument { .. } => {}
                ParsedLine::Entry(imported) => {
                    entries.push(imported.entry);
                    notes.extend(imported.warnings);
                }
                ParsedLine::Skipped(reason) => notes.push(reason),
            }
        }
    }
    (entries, notes)
}

#[test]
fn odd_members_cost_only_themselves() {
    let response = |name: &str, value: Value| {
        let mut message = json!({"role": "assistant", "content": [{"type": "text", "text": "MAIN"}], "api": "a", "provider": "p",
            "model": "m", "usage": {"input": 1}, "stopReason": "stop", "timestamp": 1_767_225_601_000_u64});
        message[name] = value;
        json!({"type": "message", "id": "b", "parentId": "a", "timestamp": "2026-01-01T00:00:01.000Z", "message": message})
    };
    let block = |odd: Value| response("content", json!([odd, {"type": "text", "text": "MAIN"}]));
    for odd in [
        response("content", json!("MAIN")),
        response("usage", Value::Null),
        response("usage", json!({"input": "12", "output": 3})),
        response("usage", json!({"input": 1, "cost": 0.5})),
        response("usage", json!({"input": -5, "output": 1.5})),
        response("stopReason", json!("pause_turn")),
        response("model", json!(5)),
        response("timestamp", json!("soon")),
        block(Value::Null),
        block(json!({"text": "x"})),
        block(json!({"type": "toolCall", "id": "k", "arguments": {}})),
        block(json!({"type": "thinking", "thinkingSignature": "{}"})),
        block(json!({"type": "text", "text": 7})),
    ] {
        let (entries, notes) = read_between(&odd);
        assert_eq!(entries.len(), 3, "{odd}: {notes:?}");
        let message = entries[1].body.message().unwrap().as_assistant().unwrap();
        assert!(
            turnwheel_conversation::content::joined_text(&message.content).ends_with("MAIN"),
            "{odd}"
        );
        let parents: Vec<_> = entries.iter().map(|entry| entry.base.parent_id.clone()).collect();
        assert_eq!(parents[2].as_ref(), Some(&entries[1].base.entry_id), "{odd}: {parents:?}");
        let line: Value = serde_json::from_str(&pi_line(&entries[1])).unwrap();
        assert_eq!(line, odd, "the export has the line as it was");
    }
}

/// JavaScript writes a text that it cut within a character so.
#[test]
fn half_characters_cost_only_themselves() {
    let whole = [
        json!({"type": "message", "message": {"role": "user", "content": "one HALF", "timestamp": 1}}),
        json!({"type": "message", "message": {"role": "assistant", "content": [{"type": "text", "text": "one HALF"}],
            "api": "a", "provider": "p", "model": "m", "stopReason": "stop", "timestamp": 1}}),
        json!({"type": "message", "message": {"role": "toolResult", "toolCallId": "c", "toolName": "t",
            "content": [{"type": "text", "text": "one HALF"}], "isError": false, "timestamp": 1}}),
        json!({"type": "compaction", "summary": "one HALF", "firstKeptEntryId": "a", "tokensBefore": 1}),
        json!({"type": "label", "targetId": "a", "label": "one HALF"}),
    ];
    let first = json!({"role": "user", "content": "a", "timestamp": 1});
    let time = "2026-01-01T00:00:01.000Z";
    for (header, id) in [
        (json!({"type": "session", "version": 3, "id": "s"}), "id"),
        (
            json!({"type": "turnwheel", "version": 1, "id": "s", "timestamp": time, "agent": "a"}),
            "entryId",
        ),
    ] {
        for entry in &whole {
            let mut first = json!({"type": "message", "parentId": null, "seq": 1, "timestamp": time, "message": first});
            first[id] = json!("a");
            let mut entry = entry.clone();
            entry[id] = json!("b");
            entry["parentId"] = json!("a");
            entry["seq"] = json!(2);
            entry["timestamp"] = json!(time);
            let expected = read_file(&file(&[header.clone(), first.clone(), entry.clone()])).0;
            let text = file(&[header.clone(), first, entry.clone()]);
            let (entries, notes) = read_with_notes(&text.replace("HALF", "HALF\\ud83d"));
            assert_eq!(notes, ["halves of characters are removed"], "{entry}");
            let lines = |entries: &[Entry]| entries.iter().map(turnwheel_line).collect::<String>();
            assert_eq!(lines(&entries), lines(&expected), "{entry}");
        }
    }
}

#[test]
fn odd_error_flag_is_an_error() {
    let header = json!({"type": "session", "version": 3, "id": "s"});
    for (flag, expected) in [
        (json!("true"), true),
        (json!(1), true),
        (json!(null), true),
        (json!("false"), false),
        (json!(false), false),
    ] {
        let line = json!({"type": "message", "id": "a", "parentId": null, "message": {
            "role": "toolResult", "toolCallId": "c", "toolName": "t", "timestamp": 1,
            "content": [{"type": "text", "text": "declined"}], "isError": flag}});
        let (entries, _) = read_with_notes(&file(&[header.clone(), line]));
        let EntryBody::Message(entry) = &entries[0].body else { panic!("{entries:?}") };
        let Message::ToolResult(result) = &entry.message else { panic!("{entries:?}") };
        assert_eq!(result.is_error, expected, "{flag}");
    }
}

#[test]
fn windows_1252_line_keeps_its_letters() {
    let header = json!({"type": "session", "version": 3, "id": "s"});
    let line = json!({"type": "message", "id": "a", "parentId": null, "message": {"role": "user", "content": "Grüße"}});
    let line = line.to_string();
    let (bytes, ..) = encoding_rs::WINDOWS_1252.encode(&line);
    let mut reader = SessionReader::new("0a1b2c3d", Timestamp(5));
    reader.read(&Line::Bytes(header.to_string().into_bytes())).unwrap();
    let parsed = reader.read(&Line::Bytes(bytes.into_owned())).unwrap();
    let [ParsedLine::Entry(imported)] = &parsed[..] else { panic!("{parsed:?}") };
    assert!(pi_line(&imported.entry).contains("Grüße"), "{imported:?}");
    assert!(imported.warnings[0].contains("Windows-1252"), "{:?}", imported.warnings);
    let wide: Vec<u8> = header.to_string().bytes().flat_map(|byte| [byte, 0, 0, 0]).collect();
    let error = SessionReader::new("0a1b2c3d", Timestamp(5)).read(&Line::Bytes(wide)).unwrap_err();
    assert!(error.reason.contains("UTF-32"), "{error}");
}

#[test]
fn stored_form_takes_texts_as_content_and_time() {
    let header = json!({"type": "turnwheel", "version": 1, "id": "c", "timestamp": "2026-01-01T00:00:00.000Z", "agent": "a"});
    let entry = json!({
        "entryId": "e", "parentId": null, "seq": 1, "timestamp": "2026-01-01T00:00:00.000Z", "type": "message",
        "message": {"role": "assistant", "content": "MAIN", "api": "a", "provider": "p", "model": "m",
            "stopReason": "stop", "timestamp": "2026-01-01T00:00:01.000Z"},
    });
    let (entries, notes) = read_with_notes(&file(&[header, entry]));
    let response = entries[0].body.message().unwrap().as_assistant().unwrap();
    assert_eq!(
        response.content,
        [turnwheel_conversation::content::Block::text("MAIN")],
        "{notes:?}"
    );
    assert_eq!(response.timestamp.to_string(), "2026-01-01T00:00:01.000Z");
}

#[test]
fn unusable_entry_keeps_its_place() {
    let at = "2026-01-01T00:00:01.000Z";
    let deep = (0..130).fold(json!(1), |inner, _| json!([inner]));
    for odd in [
        json!({"type": "message", "id": "b", "parentId": "a", "timestamp": at, "message": null}),
        json!({"type": "message", "id": "b", "parentId": "a", "timestamp": at, "message": {"role": 5}}),
        json!({"type": "message", "id": "b", "parentId": "a", "timestamp": at}),
        json!({"type": "label", "id": "b", "parentId": "a", "timestamp": at, "label": "x"}),
        json!({"type": "model_change", "id": "b", "parentId": "a", "timestamp": at}),
        json!({"type": "compaction", "id": "b", "parentId": "a", "timestamp": at, "summary": " ", "firstKeptEntryId": "a", "tokensBefore": 1}),
        json!({"id": "b", "parentId": "a", "text": "no type"}),
        json!({"type": "custom", "id": "b", "parentId": "a", "timestamp": at, "customType": "x", "data": deep}),
    ] {
        let (entries, notes) = read_between(&odd);
        assert_eq!((entries.len(), notes.len()), (3, 1), "{odd}: {notes:?}");
        assert_eq!(entries[2].base.parent_id, Some(entries[1].base.entry_id.clone()), "{odd}");
        assert!(entries[1].body.message().is_none() && entries[1].body.compaction().is_none());
    }
}

#[test]
fn children_of_a_lost_line_follow_its_parent() {
    let whole =
        r#"{"type":"message","id":"b","parentId":"a","message":{"role":"user","content":"lost"}}"#;
    let a = r#"{"type":"message","id":"a","parentId":null,"message":{"role":"user","content":"first"}}"#;
    let c =
        r#"{"type":"message","id":"c","parentId":"b","message":{"role":"user","content":"last"}}"#;
    for lost in [
        whole.get(..60).unwrap(),
        whole.get(10..).unwrap(),
        "\u{1}\u{2} binary",
        &whole.replace("lost", "two\nlines"),
        "[1]",
        "\0\0\0\0\0\0\0\0",
        "          ",
    ] {
        let (entries, skipped) =
            read_file(&format!("{{\"type\":\"session\",\"id\":\"s\"}}\n{a}\n{lost}\n{c}\n"));
        assert_eq!(entries.len(), 2, "{lost}");
        assert_eq!(entries[1].base.parent_id, Some(EntryId::new("a")), "{lost}: {skipped:?}");
        assert!(!skipped.is_empty());
    }
    let (entries, skipped) = read_file(&format!(
        "{{\"type\":\"session\",\"id\":\"s\"}}{a}\n{}{whole}{c}\n",
        whole.get(..50).unwrap()
    ));
    assert_eq!((entries.len(), skipped.len()), (3, 1), "glued records are read: {skipped:?}");
}

#[test]
fn entry_with_an_odd_id_gets_a_new_one() {
    let odd = json!({"type": "message", "id": "b/1:x", "parentId": "a", "message": {"role": "user", "content": "x"}});
    let child = json!({"type": "label", "id": "d", "parentId": "b/1:x", "targetId": "b/1:x", "label": "here"});
    let a = json!({"type": "message", "id": "a", "parentId": null, "message": {"role": "user", "content": "x"}});
    let (entries, skipped) =
        read_file(&file(&[json!({"type": "session", "id": "s"}), a, odd, child]));
    assert_eq!((entries.len(), skipped), (3, vec![]));
    assert_eq!(entries[2].base.parent_id, Some(entries[1].base.entry_id.clone()));
    let EntryBody::Label(label) = &entries[2].body else { panic!("{:?}", entries[2]) };
    assert_eq!(label.target_id, entries[1].base.entry_id);
}

#[test]
fn images_that_no_model_accepts_become_notes() {
    let png = json!({"type": "image", "data": "iVBORw0KGgo=", "mimeType": "image/png"});
    let bad = [
        json!({"type": "image", "data": "!!!", "mimeType": "image/png"}),
        json!({"type": "image", "data": "aGVsbG8=", "mimeType": "image/png"}),
        json!({"type": "image", "data": "iVBORw0KGgo=", "mimeType": "image/tiff"}),
        json!({"type": "image", "source": {"type": "url", "url": "https://example.com/x.png"}}),
    ];
    for image in bad {
        let content = json!([png, image]);
        for message in [
            json!({"role": "user", "content": content}),
            json!({"role": "toolResult", "toolCallId": "c", "toolName": "t", "content": content, "isError": false}),
            json!({"role": "custom", "customType": "x", "content": content, "display": true}),
        ] {
            let odd = json!({"type": "message", "id": "b", "parentId": "a", "message": message});
            let (entries, notes) = read_between(&odd);
            let stored = serde_json::to_value(&entries[1]).unwrap();
            let kinds: Vec<&str> = stored["message"]["content"]
                .as_array()
                .unwrap()
                .iter()
                .map(|block| block["type"].as_str().unwrap())
                .collect();
            assert_eq!(kinds, ["image", "text"], "{odd}");
            assert!(notes.iter().any(|note| note.contains("picture")), "{notes:?}");
        }
    }
}

#[test]
fn index_of_first_kept_entry_counts_the_header() {
    let message = |text: &str| json!({"type": "message", "message": {"role": "user", "content": text, "timestamp": 1}});
    let compaction = |index: u64| json!({"type": "compaction", "summary": "S", "firstKeptEntryIndex": index, "tokensBefore": 1});
    let lines = [
        json!({"type": "session", "id": "s"}),
        message("a"),
        message("b"),
        compaction(2),
        compaction(77),
    ];
    let (entries, skipped) = read_file(&file(&lines));
    assert_eq!(skipped, []);
    let kept = |index: usize| entries[index].body.compaction().unwrap().first_kept_entry_id.clone();
    assert_eq!(kept(2), entries[1].base.entry_id);
    assert_eq!(kept(3), entries[3].base.entry_id, "nothing is kept");
    assert_eq!(entries[2].base.parent_id, Some(entries[1].base.entry_id.clone()));
}

#[test]
fn file_has_at_most_100_000_entries() {
    let label = |number: usize| {
        let target = if number == 0 { "none".to_owned() } else { format!("l{}", number - 1) };
        json!({
            "type": "label", "id": format!("l{number}"), "parentId": (number > 0).then_some(&target),
            "timestamp": "2026-01-01T00:00:00.000Z", "targetId": target, "label": "x",
        })
    };
    let mut reader = SessionReader::new("0a1b2c3d", Timestamp(0));
    let header = json!({"type": "session", "version": 3, "id": "s", "cwd": "/"});
    let mut read = |line: &Value| reader.read(&Line::Bytes(line.to_string().into_bytes()));
    read(&header).unwrap();
    for number in 0..100_000 {
        assert!(matches!(read(&label(number)).as_deref(), Ok([ParsedLine::Entry(_)])), "{number}");
    }
    let refused = read(&label(100_000)).unwrap_err();
    assert_eq!(refused.to_string(), "line 100002: a file may have 100000 entries: split it");
}

#[test]
fn imported_line_of_another_entry_is_not_exported() {
    let header = json!({"type": "turnwheel", "version": 1, "id": "c", "timestamp": "2026-01-01T00:00:00.000Z", "agent": "a"});
    let line = |as_imported: &str| {
        let entry = json!({
            "entryId": "e", "parentId": null, "seq": 1, "timestamp": "2026-01-01T00:00:00.000Z",
            "type": "custom", "customType": "x", "asImported": as_imported
        });
        let (entries, _) = read_file(&file(&[header.clone(), entry]));
        pi_line(&entries[0])
    };
    for hostile in ["{\"id\":\"other\"}", "no json", "[]", "{\"id\":\"e\"}\n{\"id\":\"f\"}"] {
        assert_eq!(
            serde_json::from_str::<Value>(&line(hostile)).unwrap()["customType"],
            "x",
            "{hostile}"
        );
    }
    assert_eq!(line("{\"id\":\n\"e\"}"), "{\"id\": \"e\"}\n", "one entry is one line");
}

const FIXTURES: &str = include_str!("../../../../tests/fixtures/entries-v1.jsonl");

/// A tree of entries of all kinds, each after its parent.
fn tree(picks: &[(usize, usize)]) -> Vec<Entry> {
    // An import keeps only pictures.
    let fixtures = FIXTURES.replace("\"AAAA\"", "\"iVBORw0KGgo=\"");
    let kinds: Vec<Entry> =
        fixtures.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let mut entries: Vec<Entry> = Vec::new();
    for (seq, (kind, parent)) in (1_u64..).zip(picks) {
        let kind = &kinds[kind % kinds.len()];
        let parent_id = parent.checked_rem(entries.len() + 1).filter(|index| *index > 0);
        let base = EntryBase {
            entry_id: EntryId::from_seq("ffff0000", seq),
            parent_id: parent_id.map(|index| entries[index - 1].base.entry_id.clone()),
            seq,
            ..kind.base.clone()
        };
        entries.push(kind.clone().with_base(base));
    }
    entries
}

fn header() -> ConversationHeader {
    ConversationHeader {
        id: ConversationId::new("c"),
        timestamp: Timestamp(7),
        agent: "clerk".to_owned(),
        settings: Settings::default(),
        metadata: std::collections::BTreeMap::new(),
        base_settings: None,
        leaf_id: None,
        parent: None,
        pi: None,
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn export_and_import_keep_every_tree(picks in prop::collection::vec((0_usize..100, 0_usize..1_000), 0..40)) {
        let entries = tree(&picks);
        let own: String = entries.iter().map(turnwheel_line).collect();
        let (read, skipped) = read_file(&(turnwheel_header(&header()) + &own));
        prop_assert_eq!(skipped, vec![]);
        prop_assert_eq!(read.iter().map(turnwheel_line).collect::<String>(), own);
        let pi: String = entries.iter().map(pi_line).collect();
        let (read, skipped) = read_file(&(pi_header(&header()) + &pi));
        prop_assert_eq!(skipped, vec![]);
        prop_assert_eq!(read.len(), entries.len());
        let lines = |text: &str| -> Vec<Value> {
            text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
        };
        prop_assert_eq!(lines(&read.iter().map(pi_line).collect::<String>()), lines(&pi));
    }

    #[test]
    fn any_line_is_read_or_skipped(text in "\\PC*", members in "[a-z\":,{}\\[\\]0-9]{0,60}") {
        let header = json!({"type": "session", "version": 3, "id": "s"});
        for line in [text, format!("{{\"type\":\"message\",{members}}}")] {
            let mut reader = SessionReader::new("0a1b2c3d", Timestamp(5));
            reader.read(&Line::Bytes(header.to_string().into_bytes())).unwrap();
            prop_assert!(reader.read(&Line::Bytes(line.into_bytes())).is_ok());
        }
    }
}
