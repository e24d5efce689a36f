//! Compaction: measured tokens, the cut, the transcript, and the model input afterwards.

use std::borrow::Cow;

use proptest::prelude::*;
use serde_json::Value;

use super::*;
use crate::compaction::transcript::{OmittedContent, render_transcript};
use crate::compaction::{
    ContextBudget, CutError, SummaryCounts, SummaryParts, file_lists, plan_compaction, tokens,
};
use crate::entry::{Compaction, Entry};
use crate::message::Message;
use crate::path::path_from_leaf;
use crate::projection::{entry_messages, project_messages, to_model_messages};
use crate::settings::CompactionSettings;
use crate::usage::Usage;

/// Counts one token per letter.
fn count_letters(text: &str) -> u64 {
    text.chars().count() as u64
}

fn entry(seq: usize, body: &Value) -> Arc<Entry> {
    let parent = (seq > 1).then(|| format!("{:08x}", seq - 1));
    let mut whole = json!({"entryId": format!("{seq:08x}"), "parentId": parent, "seq": seq, "timestamp": "2026-11-21T20:19:09.669Z"});
    whole.as_object_mut().unwrap().extend(body.as_object().unwrap().clone());
    Arc::new(serde_json::from_str(&whole.to_string()).unwrap())
}

/// A path of entries from short forms: `u:text`, `a:text`, `call:name {json}`, `r:text`, `err`,
/// `custom`, `say:text`, `branch:text`, `sum:first kept:text`.
fn entries_of(parts: &[&str]) -> Vec<Arc<Entry>> {
    let response = |content: Value, stop: &str| json!({"type": "message", "message": {"role": "assistant", "content": content, "api": "a", "provider": "p", "model": "m", "stopReason": stop, "timestamp": 0}});
    let body = |part: &str| {
        let (kind, rest) = part.split_once(':').unwrap_or((part, ""));
        match kind {
            "u" => {
                json!({"type": "message", "message": {"role": "user", "content": rest, "timestamp": 0}})
            }
            "a" => response(json!([{"type": "text", "text": rest}]), "stop"),
            "err" => response(json!([{"type": "text", "text": "half"}]), "error"),
            "call" => {
                let (name, arguments) = rest.split_once(' ').unwrap();
                let arguments: Value = serde_json::from_str(arguments).unwrap();
                response(
                    json!([{"type": "toolCall", "id": "c1", "name": name, "arguments": arguments}]),
                    "toolUse",
                )
            }
            "r" => {
                json!({"type": "message", "message": {"role": "toolResult", "toolCallId": "c1", "toolName": "t", "content": [{"type": "text", "text": rest}], "isError": false, "timestamp": 0}})
            }
            "custom" => json!({"type": "custom", "customType": "x"}),
            "say" => {
                json!({"type": "custom_message", "customType": "x", "content": rest, "display": false})
            }
            "branch" => json!({"type": "branch_summary", "fromId": "0000000a", "summary": rest}),
            "sum" => {
                let (first, text) = rest.split_once(':').unwrap();
                json!({"type": "compaction", "summary": text, "firstKeptEntryId": format!("{:08x}", first.parse::<u32>().unwrap()), "tokensBefore": 9})
            }
            other => panic!("{other}"),
        }
    };
    parts.iter().enumerate().map(|(at, part)| entry(at + 1, &body(part))).collect()
}

fn with_usage(entry: &Arc<Entry>, usage: &Value) -> Arc<Entry> {
    let mut value = serde_json::to_value(&**entry).unwrap();
    value["message"]["usage"] = usage.clone();
    Arc::new(serde_json::from_str(&value.to_string()).unwrap())
}

fn message_lines(messages: &[Cow<'_, Message>]) -> Vec<String> {
    let text = |message: &Message| {
        let value = serde_json::to_value(message).unwrap();
        let content = &value["content"];
        let text = content.as_str().or_else(|| content[0]["text"].as_str());
        format!("{}:{}", message.role(), text.or_else(|| content[0]["name"].as_str()).unwrap_or(""))
    };
    messages.iter().map(|message| text(message)).collect()
}

fn context_tokens(path: &[Arc<Entry>]) -> u64 {
    let leaf = path.last().map(|entry| &entry.base.entry_id);
    tokens::count_context(path_from_leaf(path.iter(), leaf), &|| 1_000, &count_letters)
}

#[test]
fn context_budget_is_full_above_response_reserve() {
    let settings = |reserve, keep| CompactionSettings {
        enabled: true,
        reserve_tokens: reserve,
        keep_recent_tokens: keep,
    };
    let room = ContextBudget::new(100_000, &settings(10_000, 20_000));
    assert!(!room.is_exceeded(89_000) && !room.is_exceeded(90_000) && room.is_exceeded(90_001));
    let off = CompactionSettings { enabled: false, ..settings(10_000, 1) };
    assert!(!ContextBudget::new(100_000, &off).is_exceeded(99_000));
    assert!(
        !ContextBudget::new(0, &settings(10_000, 1)).is_exceeded(u64::MAX),
        "the window is unknown"
    );
    let small = ContextBudget::new(8_000, &CompactionSettings::default());
    assert!(
        !small.is_exceeded(6_000) && small.is_exceeded(6_001),
        "the reserve exceeds the window"
    );
    assert_eq!(small.keep_recent, 3_000);
    assert_eq!(
        ContextBudget::new(1 << 20, &CompactionSettings::default()).summary_tokens_max(),
        13_107
    );
}

#[test]
fn context_tokens_extend_last_reported_usage() {
    let mut path = entries_of(&["u:hello", "a:four", "r:12345", "u:12", "err"]);
    assert_eq!(context_tokens(&path), 1_000 + 5 + 4 + 5 + 2, "no entry has a usage");
    path[1] =
        with_usage(&path[1], &json!({"input": 100, "output": 20, "cacheRead": 3, "cacheWrite": 4}));
    assert_eq!(context_tokens(&path), 127 + 5 + 2);
    path[1] = with_usage(&path[1], &json!({"input": 100, "totalTokens": 300}));
    assert_eq!(context_tokens(&path), 300 + 5 + 2);
    path[4] = with_usage(&path[4], &json!({"totalTokens": 9_000}));
    assert_eq!(context_tokens(&path), 307, "the usage of a failed response does not count");
}

#[test]
fn context_tokens_ignore_usage_before_compaction() {
    let mut path = entries_of(&["u:old", "a:old", "u:kept", "a:kept too", "sum:3:S", "u:new"]);
    path[3] = with_usage(&path[3], &json!({"totalTokens": 9_000}));
    let summary = count_letters(
        "The conversation history before this point was compacted into the following summary:\n\n<summary>\nS\n</summary>",
    );
    assert_eq!(context_tokens(&path), 1_000 + summary + 4 + 8 + 3);
    let nothing = entries_of(&["u:old", "sum:2:S", "u:new"]);
    assert_eq!(
        context_tokens(&nothing),
        1_000 + summary + 3,
        "a compaction may name itself: no entry is kept"
    );
}

fn image_message() -> Value {
    json!({"type": "message", "message": {"role": "user", "content": [{"type": "image", "data": "AAAA", "mimeType": "image/png"}], "timestamp": 0}})
}

#[test]
fn image_counts_as_fixed_tokens() {
    assert_eq!(context_tokens(&[entry(1, &image_message())]), 1_000 + 1_200);
}

/// The summarised history, the summarised first part of a divided turn, and the kept entries.
fn planned_cut(parts: &[&str], keep: u64) -> Result<[Vec<String>; 3], CutError> {
    let path = entries_of(parts);
    let plan = plan_compaction(&path, keep, &count_letters)?;
    let first = path.iter().position(|entry| &entry.base.entry_id == plan.first_kept).unwrap();
    let kept = path[first..].iter().filter(|entry| entry.body.compaction().is_none());
    Ok([
        message_lines(&entry_messages(plan.history)),
        message_lines(&entry_messages(plan.prefix)),
        message_lines(&entry_messages(kept)),
    ])
}

#[test]
fn cut_keeps_results_with_their_calls() {
    let turn = ["u:1111111111", "a:2222222222", "u:3333333333", "a:4444444444"];
    let [history, prefix, kept] = planned_cut(&turn, 15).unwrap();
    assert_eq!((history.len(), prefix.len(), kept.len()), (2, 0, 2));
    assert_eq!(planned_cut(&turn, 41).unwrap_err(), CutError::TooSmall, "all entries are kept");
    let tools = ["u:111", "a:2", "u:333", "call:t {}", "r:5555555555", "a:6"];
    let [history, prefix, kept] = planned_cut(&tools, 5).unwrap();
    assert_eq!(history, ["user:111", "assistant:2"]);
    assert_eq!(prefix, ["user:333", "assistant:t", "toolResult:5555555555"]);
    assert_eq!(kept, ["assistant:6"], "the first valid cut that keeps enough");
    let last = ["u:111", "a:2", "u:333", "call:t {}", "r:5555555555"];
    let [_, _, kept] = planned_cut(&last, 5).unwrap();
    assert_eq!(kept, ["assistant:t", "toolResult:5555555555"], "results are kept with their calls");
}

#[test]
fn cut_keeps_preceding_settings_entries() {
    let path = entries_of(&["u:1111", "a:2222", "custom", "custom", "u:3333", "a:4444"]);
    let plan = plan_compaction(&path, 8, &count_letters).unwrap();
    assert_eq!(plan.first_kept.as_str(), "00000003");
    assert_eq!(plan.history.len(), 2);
}

#[test]
fn cut_divides_turn_longer_than_kept_tokens() {
    let parts = ["u:go", "a:1111", "u:more", "call:t {}", "r:1", "call:t {}", "r:2222", "a:3"];
    let [history, prefix, kept] = planned_cut(&parts, 6).unwrap();
    assert_eq!(history, ["user:go", "assistant:1111"]);
    assert_eq!(prefix, ["user:more", "assistant:t", "toolResult:1"]);
    assert_eq!(kept, ["assistant:t", "toolResult:2222", "assistant:3"]);
    let [history, prefix, _] = planned_cut(&["u:go", "call:t {}", "r:1", "a:4444"], 2).unwrap();
    assert_eq!((history.len(), prefix.len()), (0, 3));
}

#[test]
fn next_compaction_summarises_entries_kept_by_last() {
    let parts = ["u:old", "a:old", "u:kept", "a:kept", "sum:3:S", "u:new1", "a:new2", "u:new3"];
    let path = entries_of(&parts);
    let plan = plan_compaction(&path, 4, &count_letters).unwrap();
    assert_eq!(
        message_lines(&entry_messages(plan.history)),
        ["user:kept", "assistant:kept", "user:new1", "assistant:new2"]
    );
    assert_eq!(plan.previous.unwrap().summary, "S");
    assert_eq!(plan.first_kept.as_str(), "00000008");
    assert_eq!(
        planned_cut(&["u:1", "a:2", "sum:2:S", "custom"], 0).unwrap_err(),
        CutError::AlreadyCompacted
    );
    assert_eq!(CutError::AlreadyCompacted.message(), "Already compacted");
    assert_eq!(
        planned_cut(&[], 0).unwrap_err().message(),
        "Nothing to compact (session too small)"
    );
}

#[test]
fn transcript_renders_conversation_as_one_text() {
    let thinking = json!({"type": "message", "message": {"role": "assistant", "content": [
        {"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "one"}, {"type": "text", "text": "two"},
        {"type": "toolCall", "id": "c1", "name": "read", "arguments": {"path": "a.txt", "limit": 3}},
        {"type": "toolCall", "id": "c2", "name": "ls", "arguments": {}}],
        "api": "a", "provider": "p", "model": "m", "stopReason": "toolUse", "timestamp": 0}});
    let path = [
        entries_of(&["u:hello"]).remove(0),
        entry(2, &thinking),
        entries_of(&["r:found"]).remove(0),
    ];
    let (text, shortened) = render_transcript(&entry_messages(&path), u64::MAX, &count_letters);
    insta::assert_snapshot!(text, @r#"
    [User]: hello

    [Assistant thinking]: hm

    [Assistant]: one
    two

    [Assistant tool calls]: read(path="a.txt", limit=3); ls()

    [Tool result]: found
    "#);
    assert_eq!(shortened, OmittedContent::default());
}

#[test]
fn transcript_reports_shortened_messages() {
    let long = "x".repeat(10_000);
    let parts = [
        "u:first",
        "call:t {}",
        &format!("r:{long}"),
        "a:mid",
        "call:t {}",
        &format!("r:{long}"),
        "u:last",
    ];
    let path = entries_of(&parts);
    let transcript = |room| render_transcript(&entry_messages(&path), room, &count_letters);
    let (text, shortened) = transcript(15_000);
    assert_eq!((shortened.tool_results, shortened.other_parts, shortened.dropped), (1, 0, 0));
    assert!(
        text.contains("[… 8015 characters are left out …]") && text.len() < 15_000,
        "{}",
        text.len()
    );
    let (text, shortened) = transcript(2_500);
    assert_eq!(
        (shortened.tool_results, shortened.dropped),
        (2, 3),
        "the oldest parts are left out next"
    );
    assert!(
        text.starts_with("[3 earlier messages are left out]") && text.ends_with("[User]: last")
    );
    assert!(transcript(0).1.dropped == 7, "without any room, all is left out");
}

#[test]
fn summary_keeps_file_lists_of_previous_summary() {
    let first = entries_of(&[
        r#"call:read {"path":"b"}"#,
        r#"call:read {"path":"a"}"#,
        r#"call:edit {"path":"a"}"#,
        r#"call:bash {"path":"z"}"#,
        "u:end",
    ]);
    let plan_1 = plan_compaction(&first, 1, &count_letters).unwrap();
    let files = plan_1.collect_files();
    assert_eq!(
        files.render(),
        "\n\n<read-files>\nb\n</read-files>\n\n<modified-files>\na\n</modified-files>"
    );
    let parts = SummaryParts {
        history: "H".to_owned(),
        prefix: Some("P".to_owned()),
        files,
        omitted: OmittedContent::default(),
    };
    let counts =
        SummaryCounts { tokens_before: 90, tokens_after: 30, usage: Usage::default(), calls: 1 };
    let compaction = parts.to_entry(plan_1.first_kept, counts);
    assert_eq!(
        compaction.summary,
        "H\n\n---\n\n**Turn Context (split turn):**\n\nP\n\n<read-files>\nb\n</read-files>\n\n<modified-files>\na\n</modified-files>"
    );
    assert_eq!(
        file_lists::strip_file_lists(&compaction.summary),
        "H\n\n---\n\n**Turn Context (split turn):**\n\nP"
    );
    let details = compaction.details.as_ref().unwrap().to_value();
    assert_eq!(details, json!({"readFiles": ["b"], "modifiedFiles": ["a"], "tokensAfter": 30}));
    assert_eq!(file_lists::FileLists::from_compaction(&compaction).read_only(), ["b"]);
    let of_hook = Compaction { from_hook: Some(true), ..compaction };
    assert_eq!(file_lists::FileLists::from_compaction(&of_hook), file_lists::FileLists::default());
}

#[test]
fn model_input_after_compaction_starts_with_summary() {
    let path = entries_of(&[
        "u:a",
        "a:b",
        "u:k",
        "a:k",
        "say:aside",
        "sum:3:S",
        "branch:",
        "branch:B",
        "u:c",
    ]);
    assert_eq!(
        message_lines(&to_model_messages(project_messages(&path))),
        [
            "user:The conversation history before this point was compacted into the following summary:\n\n<summary>\nS\n</summary>",
            "user:k",
            "assistant:k",
            "user:aside",
            "user:The following is a summary of a branch that this conversation came back from:\n\n<summary>\nB</summary>",
            "user:c",
        ]
    );
}

#[test]
fn projection_sends_shell_output_unless_excluded() {
    let bash = |members: Value| {
        let mut whole = json!({"role": "bashExecution", "command": "ls", "output": "a\nb", "cancelled": false, "truncated": false, "timestamp": 0});
        whole.as_object_mut().unwrap().extend(members.as_object().unwrap().clone());
        serde_json::from_str::<Message>(&whole.to_string()).unwrap()
    };
    let messages = [
        bash(json!({"exitCode": 0})),
        bash(json!({"command": "false", "output": "", "exitCode": 1})),
        bash(json!({"output": "x", "cancelled": true})),
        bash(json!({"output": "..", "truncated": true, "fullOutputPath": "/logs/o.txt"})),
        bash(json!({"excludeFromContext": true})),
    ];
    assert_eq!(
        message_lines(&to_model_messages(messages.iter().map(Cow::Borrowed).collect())),
        [
            "user:Ran `ls`\n```\na\nb\n```",
            "user:Ran `false`\n(no output)\n\nCommand exited with code 1",
            "user:Ran `ls`\n```\nx\n```\n\n(command cancelled)",
            "user:Ran `ls`\n```\n..\n```\n\n[Output truncated. Full output: /logs/o.txt]",
        ]
    );
}

fn entry_form() -> impl Strategy<Value = &'static str> {
    prop_oneof![
        Just("u:hello there"),
        Just("a:some answer"),
        Just("call:t {}"),
        Just("r:what it gave"),
        Just("err"),
        Just("custom"),
        Just("say:aside"),
        Just("branch:left"),
    ]
}

proptest! {
    /// For every cut: the model input has each call with its result, no entry is lost between the
    /// summary and the kept entries, and the last message stays the last.
    #[test]
    fn model_input_is_well_formed_after_any_cut(parts in prop::collection::vec(entry_form(), 1..40), keep in 0..200_u64) {
        // A result before its call belongs to it only until the cut.
        let first_call = parts.iter().position(|part| part.starts_with("call:"));
        let is_early = |at: usize, part: &str| part.starts_with("r:") && first_call.is_none_or(|first| at < first);
        let parts: Vec<&str> = parts.iter().enumerate().filter(|(at, part)| !is_early(*at, part)).map(|(_, part)| *part).collect();
        let mut path = entries_of(&parts);
        for round in 0..3 {
            let Ok(plan) = plan_compaction(&path, keep, &count_letters) else { break };
            let first = path.iter().position(|entry| &entry.base.entry_id == plan.first_kept).unwrap();
            let summed = plan.history.len() + plan.prefix.len();
            prop_assert!(summed > 0);
            let start = first - summed;
            prop_assert!(path[start..first].iter().zip(plan.history.iter().chain(plan.prefix)).all(|(a, b)| Arc::ptr_eq(a, b)));
            prop_assert!(!matches!(path[first].body.message(), Some(Message::ToolResult(_))));
            let before = to_model_messages(project_messages(&path)).into_iter().last().map(Cow::into_owned);
            let number = path.len() + 1;
            path.push(entry(number, &json!({"type": "compaction", "summary": format!("S{round}"), "firstKeptEntryId": plan.first_kept, "tokensBefore": 1})));
            let sent = to_model_messages(project_messages(&path));
            let summary = format!("S{round}");
            prop_assert!(message_lines(&sent)[0].contains(&summary));
            let mut open = 0;
            for message in &sent {
                match message.as_ref() {
                    Message::ToolResult(_) => { prop_assert_eq!(open, 1); open = 0; }
                    Message::Assistant(answer) => { prop_assert_eq!(open, 0); open = answer.tool_calls().count(); }
                    Message::User(_) => prop_assert_eq!(open, 0),
                    other => prop_assert!(false, "role {} was sent", other.role()),
                }
            }
            prop_assert_eq!(open, 0);
            if sent.len() > 1 {
                prop_assert_eq!(sent.last().map(AsRef::as_ref), before.as_ref());
            }
            // The conversation continues.
            for part in ["u:more and more of it", "a:still more"] {
                let mut new = entries_of(&[part]).remove(0).as_ref().clone();
                let number = path.len() + 1;
                new.base.parent_id = Some(path.last().unwrap().base.entry_id.clone());
                new.base.entry_id = turnwheel_platform::ids::EntryId::new(format!("{number:08x}"));
                new.base.seq = number as u64;
                path.push(Arc::new(new));
            }
        }
    }
}
