//! Tests of guardrails: patterns and questions.

use std::time::Duration;

use serde_json::{Value, json};

use super::{DEFAULT_PATTERNS, Guardrails, compile_pattern};
use crate::PendingToolCall;
use turnwheel_json::raw::RawJson;
use turnwheel_tools::Arguments;

fn guardrails(tools: Option<&[&str]>) -> Guardrails {
    Guardrails {
        tools: tools.map(|names| names.iter().map(|name| (*name).to_owned()).collect()),
        patterns: DEFAULT_PATTERNS.map(|text| compile_pattern(text).unwrap()).to_vec(),
        approvers: Vec::new(),
        expires_after: Duration::from_hours(1),
    }
}

fn question_among(
    guardrails: &Guardrails,
    tool_name: &str,
    value: Value,
    calls_count: usize,
) -> Option<String> {
    let arguments = Arguments { text: RawJson::from_value(&value), value };
    guardrails.question(&PendingToolCall {
        tool_call_id: "c1",
        tool_name,
        arguments: &arguments,
        calls_count,
    })
}

fn question(tool_name: &str, value: Value) -> Option<String> {
    question_among(&guardrails(None), tool_name, value, 1)
}

#[test]
fn patterns_match_the_json_of_the_arguments() {
    for (text, is_match) in [
        ("rm -rf /", true),
        ("rm   -rf\u{a0} /home", true),
        ("RM -RF /", false),
        ("rm -rf home", false),
        ("rm -fr /", false),
        ("DROP DATABASE x", true),
        ("drop  Database", true),
        ("DROP TABLE x", false),
        ("delete from users;", true),
        ("DELETE FROM users ;", true),
        ("DELETE FROM users WHERE id = 1;", false),
        ("DELETE FROM users", false),
        // JSON escapes a line break and a tab, and both patterns read JSON.
        ("rm\n-rf /", false),
        ("DROP\tDATABASE", false),
    ] {
        let asked = question("sql", json!({"nested": [{"text": text}]}));
        assert_eq!(asked.is_some(), is_match, "{text:?}: {asked:?}");
    }
    assert!(question("sql", json!({"rm -rf /": 1})).is_some(), "names of members count");
}

#[test]
fn escapes_of_the_model_hide_no_match() {
    let text = r#"{ "text" : "rm \u002drf \/" }"#;
    let raw: RawJson = serde_json::from_str(text).unwrap();
    let arguments = Arguments { value: raw.to_value(), text: raw };
    let call = PendingToolCall {
        tool_call_id: "c1",
        tool_name: "sql",
        arguments: &arguments,
        calls_count: 1,
    };
    assert!(guardrails(None).question(&call).is_some());
}

#[test]
fn question_holds_the_arguments_as_json() {
    assert_eq!(
        question("sql", json!({"text": "drop database \"x\"", "b": 1})).unwrap(),
        "⚠️ Potentially dangerous operation detected:\n{\"text\":\"drop database \\\"x\\\"\",\"b\":1}\n\nProceed?"
    );
}

#[test]
fn question_of_execute_holds_the_command() {
    assert_eq!(
        question("execute", json!({"command": "rm -rf /\n"})).unwrap(),
        "Allow potentially dangerous command?\nrm -rf /\n"
    );
    for (tool, value) in
        [("execute", json!({"command": ["rm -rf /"]})), ("run", json!({"command": "rm -rf /"}))]
    {
        assert!(question(tool, value).unwrap().starts_with("⚠️"), "{tool}");
    }
}

#[test]
fn tools_select_by_name_and_prefix() {
    let guardrails = guardrails(Some(&["execute", "sql.*"]));
    for (tool, is_guarded) in
        [("execute", true), ("execute2", false), ("sql.run", true), ("sql", false), ("*", false)]
    {
        let asked = question_among(&guardrails, tool, json!({"command": "rm -rf /"}), 1);
        assert_eq!(asked.is_some(), is_guarded, "{tool}");
    }
}

#[test]
fn long_arguments_are_shortened() {
    let value = json!({"text": format!("rm -rf /{}", "é".repeat(9_000))});
    for (calls_count, bytes_max) in [(1, 2_048), (6, 2_048), (12, 1_024), (100_000, 0)] {
        let asked = question_among(&guardrails(None), "sql", value.clone(), calls_count).unwrap();
        let (quote, rest) =
            asked.split_once('\n').unwrap().1.split_once('…').unwrap_or_else(|| panic!("{asked}"));
        assert!(quote.len() <= bytes_max && quote.len() + 1 >= bytes_max, "{}", quote.len());
        let left = value.to_string().len() - quote.len();
        assert_eq!(rest, format!(" ({left} more bytes in the call's arguments)\n\nProceed?"));
    }
}

#[test]
fn patterns_and_questions_have_the_digits_that_are_sent() {
    let guardrails = Guardrails {
        patterns: vec![compile_pattern("5555555555554444001").unwrap()],
        ..guardrails(None)
    };
    let text = RawJson::from_text(r#"{"card": 55555555555544440015555.10}"#).unwrap();
    let arguments = Arguments { value: text.to_value(), text };
    let question = guardrails.question(&PendingToolCall {
        tool_call_id: "c1",
        tool_name: "charge",
        arguments: &arguments,
        calls_count: 1,
    });
    assert!(question.is_some_and(|it| it.contains(r#"{"card":55555555555544440015555.10}"#)));
}
