//! Tests of messages: their schema, and the reasons of rejections.

use serde_json::{Value, json};

use super::{describe_other_json, describe_rejection, parse_message};
use turnwheel_record::contract::{CommandError, FieldError};

/// The published schema accepts a message exactly if the parser does.
#[test]
fn published_schema_agrees_with_parser() {
    let schema: Value =
        serde_json::from_str(include_str!("../../../../docs/agent-prompts.schema.json")).unwrap();
    let schema = jsonschema::validator_for(&schema).unwrap();
    let valid = [
        json!({"input": "x"}),
        json!({"input": [{"type": "text", "text": "x"}], "agent": "clerk", "mode": "followUp"}),
        json!({
            "input": "x", "tenantId": "t", "userId": "u.1", "conversationId": "c-1", "agent": null,
            "idempotencyKey": "k", "metadata": {"order": "4711"}, "mode": null,
            "settings": {"model": "normal", "retry": {"maxRetries": 1}},
            "model": "high", "visible": false,
        }),
        json!({"input": "x", "settings": {"retry": {"enabled": null}, "compaction": {"enabled": null}}}),
    ];
    let invalid = [
        json!({"input": "x", "colour": "red"}),
        json!({"input": "x", "Agent": "clerk"}),
        json!({"input": 7}),
        json!({"input": "x", "mode": "later"}),
        json!({"input": "x", "metadata": {"order": 4711}}),
        json!({"input": "x", "settings": {"retry": {"maxRetry": 1}}}),
        json!(["x"]),
    ];
    for (messages, is_expected) in [(&valid[..], true), (&invalid[..], false)] {
        for message in messages {
            assert_eq!(schema.is_valid(message), is_expected, "schema: {message}");
            assert_eq!(parse_message(&message.to_string()).is_ok(), is_expected, "{message}");
        }
    }
    // What the parser leaves to later steps.
    for message in [
        json!({}),
        json!({"input": ""}),
        json!({"input": "x", "userId": "a/b"}),
        json!({"input": "x", "conversationId": ".."}),
        json!({"input": "x", "idempotencyKey": ""}),
    ] {
        assert!(!schema.is_valid(&message), "{message}");
    }
}

#[test]
fn schema_has_each_member_of_a_message() {
    let schema: Value =
        serde_json::from_str(include_str!("../../../../docs/agent-prompts.schema.json")).unwrap();
    let mut members: Vec<&String> = schema["properties"].as_object().unwrap().keys().collect();
    let mut expected = super::MESSAGE_MEMBERS.to_vec();
    members.sort();
    expected.sort_unstable();
    assert_eq!(members, expected);
}

#[test]
fn rejection_names_the_place_of_each_error() {
    let reason = |text: &str| describe_rejection(&parse_message(text).unwrap_err());
    let unknown = reason(r#"{"input":"x","settings":{"retry":{"maxRetry":1}}}"#);
    assert!(unknown.starts_with("the message is invalid: unknown field `maxRetry`"), "{unknown}");
    assert!(unknown.ends_with(" (at /settings/retry/maxRetry)"), "{unknown}");
    assert_eq!(
        reason(r#"{"input":"x","metadata":{"a/b":1}}"#),
        "the message is invalid: this must be a text, not 1 (at /metadata/a~1b)"
    );
    let reused = describe_rejection(&CommandError::KeyReused);
    assert!(reused.ends_with("a new message has a new key (at /idempotencyKey)"), "{reused}");
    let errors = vec![
        FieldError::new("/input/0", "the artifact does not exist"),
        FieldError::new("", "the whole is wrong"),
    ];
    assert_eq!(
        describe_rejection(&CommandError::Invalid(errors)),
        "the artifact does not exist (at /input/0); the whole is wrong"
    );
    let many = vec![FieldError::new("/input/0/é", "é".repeat(300)); 100];
    assert!(describe_rejection(&CommandError::Invalid(many)).len() < super::REASON_BYTES_MAX + 4);
}

#[test]
fn json_without_object_is_named() {
    let other = |text: &str| describe_other_json(text).unwrap_or_default();
    assert_eq!(
        other(r#""{\"input\":\"x\"}""#),
        "the message is a JSON text that contains a JSON object: it was serialised twice"
    );
    for (text, kind) in
        [("[]", "list"), (r#""x""#, "text"), ("-1.5", "number"), ("false", "boolean")]
    {
        assert_eq!(other(text), format!("the message is a JSON {kind}, not an object"));
    }
    for text in ["{}", "{", "%%%", "eyJpbnB1dCI6IngifQ==", ""] {
        assert_eq!(other(text), "", "{text}");
    }
}
