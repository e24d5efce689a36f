//! Tests of argument validation, with a table of results that AJV generated.

use std::time::Duration;

use serde::Deserialize;
use serde_json::json;

use super::*;
use crate::agent::phase::OnUnknown;
use crate::agent::request::Effect;

fn check(schema: &Value, text: &str) -> Result<Arguments, String> {
    Checker::new(schema).unwrap().validate("add", &RawJson::from_text(text).unwrap())
}

fn problems(schema: &Value, args: &Value) -> Vec<String> {
    let text = check(schema, &args.to_string()).unwrap_err();
    let (list, _) = text.split_once("\n\nReceived arguments:").unwrap();
    list.lines().skip(1).map(|line| line.strip_prefix("  - ").unwrap().to_owned()).collect()
}

/// A case with its result by AJV 8.20 with ajv-formats 3 (`allErrors`, `coerceTypes`, `strict:
/// false`, Pi's path rule). `ours` and `why` are the result and the reason of an intended
/// difference.
#[derive(Deserialize)]
struct Case {
    schema: Value,
    args: Value,
    ok: Option<Value>,
    problems: Option<Vec<String>>,
    ours: Option<Value>,
    why: Option<String>,
}

#[test]
fn results_match_ajv() {
    let cases: Vec<Case> = serde_json::from_str(include_str!("ajv.json")).unwrap();
    let mut differences = Vec::new();
    for case in cases {
        let expected = match (&case.ours, &case.ok, &case.problems) {
            (Some(ours), _, _) => {
                assert!(case.why.is_some(), "a difference needs a reason: {}", case.args);
                ours.clone()
            }
            (None, Some(ok), _) => ok.clone(),
            (None, None, problems) => json!(problems),
        };
        let got = match check(&case.schema, &case.args.to_string()) {
            Ok(arguments) => arguments.value,
            Err(_) => json!(problems(&case.schema, &case.args)),
        };
        if got != expected {
            differences.push(format!(
                "{} with {}\n  AJV  {expected}\n  ours {got}",
                case.schema, case.args
            ));
        }
    }
    assert!(differences.is_empty(), "{}", differences.join("\n"));
}

#[test]
fn error_lists_all_problems_and_received_arguments() {
    let schema = json!({
        "type": "object",
        "properties": {"a": {"type": "number"}, "b": {"type": "number"}},
        "required": ["a", "b"],
    });
    assert_eq!(
        check(&schema, r#"{"a":"x"}"#).unwrap_err(),
        "Validation failed for tool \"add\":\n  - b: must have required property 'b'\n  - a: must be number\n\nReceived arguments:\n{\n  \"a\": \"x\"\n}"
    );
}

#[test]
fn numbers_keep_their_written_digits() {
    let schema = json!({"type": "object", "properties": {"amount": {"type": "number"}}});
    let text = r#"{"amount": 12345678901234567890.10}"#;
    assert_eq!(check(&schema, text).unwrap().text.text(), text);
    let coerced = check(&schema, r#"{"amount":"9007199254740993"}"#).unwrap();
    assert_eq!(coerced.text.text(), r#"{"amount":9007199254740993}"#);
}

#[test]
fn duplicate_member_is_sent_once() {
    let schema = json!({"type": "object", "properties": {"amount": {"type": "number"}}});
    let arguments = check(&schema, r#"{"amount":1,"note":"a:\"b","amount":1000000}"#).unwrap();
    assert_eq!(arguments.text.text(), r#"{"amount":1000000,"note":"a:\"b"}"#);
}

#[test]
fn invalid_json_arguments_are_reported() {
    let schema = json!({"type": "object"});
    let broken = RawJson::from_value(&r#"{"a": 1, "#).text().to_owned();
    let text = check(&schema, &broken).unwrap_err();
    assert!(text.starts_with("Invalid JSON in arguments for tool \"add\": EOF"), "{text}");
    let quoted = RawJson::from_value(&r#"{"a":1}"#).text().to_owned();
    let text = check(&schema, &quoted).unwrap_err();
    assert!(text.contains("are a string, not an object"), "{text}");
    let text = check(&schema, r#"{"a":1e999}"#).unwrap_err();
    assert!(text.contains("number out of range"), "{text}");
}

#[test]
fn arguments_must_be_object_without_schema_type() {
    for text in ["[]", "5", "null", "true"] {
        let problem = check(&json!({}), text).unwrap_err();
        assert!(problem.contains("  - root: must be object\n"), "{problem}");
    }
}

#[test]
fn recursive_schema_is_coerced() {
    let schema = json!({
        "type": "object",
        "properties": {"tree": {"$ref": "#/$defs/node"}},
        "$defs": {
            "node": {"type": "object", "properties": {
                "size": {"type": "integer"},
                "parts": {"type": "array", "items": {"$ref": "#/$defs/node"}},
            }},
        },
    });
    let arguments = check(&schema, r#"{"tree":{"size":"1","parts":[{"size":"2"}]}}"#).unwrap();
    assert_eq!(arguments.value["tree"]["parts"][0]["size"], json!(2));
}

#[test]
fn remote_schema_is_rejected_without_fetching() {
    let problem = Checker::new(&json!({"$ref": "https://schemas.example/a.json"})).unwrap_err();
    assert!(problem.starts_with("its parameters are not a usable JSON Schema"), "{problem}");
}

#[test]
fn invalid_schema_error_contains_its_place() {
    let problem = Checker::new(&json!({"properties": {"a": {"type": "nmber"}}})).unwrap_err();
    assert!(problem.contains("/properties/a/type"), "{problem}");
}

#[test]
fn many_problems_are_truncated_and_counted() {
    let schema = json!({"type": "object", "properties": {"list": {"items": {"type": "object"}}}});
    let args = json!({"list": vec![1; 20_000]});
    let text = check(&schema, &args.to_string()).unwrap_err();
    assert!(text.contains("  - and 19950 more problems\n"), "{}", text.len());
    assert!(text.ends_with(" more bytes]") && text.len() < 60_000, "{}", text.len());
}

#[test]
fn huge_arguments_report_only_first_problem() {
    let schema = json!({"type": "object", "properties": {"list": {"items": {"type": "object"}}}});
    let args = json!({"list": vec![1; 600_000]});
    let text = check(&schema, &args.to_string()).unwrap_err();
    assert_eq!(text.matches("  - ").count(), 1);
}

#[test]
fn regex_bomb_pattern_terminates() {
    let schema = json!({"type": "object", "properties": {"a": {"type": "string", "pattern": "^(?=(a+)+$)(a|aa)+$"}}});
    let args = json!({"a": format!("{}b", "a".repeat(40))});
    assert!(check(&schema, &args.to_string()).is_err());
}

#[test]
fn changed_parameters_get_a_new_checker() {
    let mut definition = ToolDefinition {
        is_strict: false,
        name: "add".to_owned(),
        label: "add".to_owned(),
        description: String::new(),
        parameters: json!({"type": "object", "required": ["only_here"]}),
        effect: Effect::Read,
        on_unknown: OnUnknown::Ask,
        timeout: Duration::from_secs(1),
        revision: "1".to_owned(),
    };
    let empty = RawJson::from_text("{}").unwrap();
    assert!(validate(&definition, &empty).is_err());
    definition.parameters = json!({"type": "object"});
    assert!(validate(&definition, &empty).is_ok());
    definition.parameters = json!({"type": "objekt"});
    let text = validate(&definition, &empty).unwrap_err();
    assert!(text.starts_with("Tool \"add\" cannot be called: its parameters"), "{text}");
}
