//! Tests of argument validation, with a table of results that AJV generated.

use std::time::Duration;

use serde::Deserialize;
use serde_json::json;

use super::*;
use turnwheel_conversation::phase::OnUnknown;
use turnwheel_conversation::request::Effect;
use turnwheel_test_support::numbers::ANY_NUMBER;

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

/// A schema of the argument `n`.
fn schema_of_n(keyword: &str, limit: &Value) -> Value {
    json!({"type": "object", "properties": {"n": {keyword: limit}}})
}

fn is_accepted(keyword: &str, limit: &Value, number: &str) -> bool {
    let text = format!("{{\"n\":{number}}}");
    let schema = schema_of_n(keyword, limit);
    let is_valid = check(&schema, &text).is_ok_and(|arguments| {
        assert_eq!(arguments.text.text(), text, "sent as it was written");
        true
    });
    let gate = BoundedSchema::new_strict(&schema).unwrap();
    let raw = RawJson::from_text(text).unwrap();
    let verdict = gate.check_written(&raw, &raw.to_value());
    assert_eq!(verdict == SchemaVerdict::Valid, is_valid, "the gate: {keyword} {limit} {number}");
    is_valid
}

#[test]
fn numbers_beyond_floats_are_compared_exactly() {
    for (keyword, limit, number, expected) in [
        ("maximum", json!(100), "100.00000000000000000001", false),
        ("maximum", json!(100), "99.99999999999999999999", true),
        ("exclusiveMaximum", json!(0.1), "0.09999999999999999999", true),
        ("minimum", json!(1), "0.99999999999999999999", false),
        ("exclusiveMinimum", json!(100), "100.00000000000000000001", true),
        ("exclusiveMinimum", json!(u64::MAX), "18446744073709551616", true),
        ("maximum", json!(u64::MAX), "18446744073709551616", false),
        ("const", json!(0.1), "0.1000000000000000055511151231257827", false),
        ("const", json!(0.1), "0.10000000000000000000", true),
        ("enum", json!([9_007_199_254_740_992_u64]), "9007199254740992.1", false),
        ("const", json!(0), "1e-400", false),
        ("multipleOf", json!(2), "100000000000000000000000000000000001", false),
        ("multipleOf", json!(2), "100000000000000000000000000000000002", true),
        ("multipleOf", json!(0.01), "123456789012345678901234.56", true),
        ("type", json!("integer"), "100000000000000000000.5", false),
        ("type", json!("integer"), "25122920421210000012345", true),
    ] {
        assert_eq!(is_accepted(keyword, &limit, number), expected, "{keyword} {limit} {number}");
    }
    let unique = json!({"type": "object", "properties": {"n": {"uniqueItems": true}}});
    assert!(check(&unique, r#"{"n":[9007199254740992.1,9007199254740992.2]}"#).is_ok());
    assert!(check(&unique, r#"{"n":[9007199254740992.10,9007199254740992.1]}"#).is_err());
}

#[test]
fn coerced_number_is_the_one_that_was_written() {
    let schema = json!({"type": "object", "properties": {"number": {"type": "number"}}});
    for (given, expected) in [
        (r#"{"number":"19.50"}"#, r#"{"number":19.50}"#),
        (r#"{"number":"18446744073709551615"}"#, r#"{"number":18446744073709551615}"#),
        (r#"{"number":" 1E+3 "}"#, r#"{"number":1E+3}"#),
        (r#"{"number":"25122920421210000012345"}"#, r#"{"number":25122920421210000012345}"#),
        (r#"{"number":"1e-400"}"#, r#"{"number":1e-400}"#),
        (r#"{"number":0.1000000000000000055}"#, r#"{"number":0.1000000000000000055}"#),
        (
            r#"{"number":"7","more":[0.1000000000000000055,1.10]}"#,
            r#"{"number":7,"more":[0.1000000000000000055,1.10]}"#,
        ),
    ] {
        assert_eq!(check(&schema, given).unwrap().text.text(), expected);
    }
    for refused in [
        r#"{"number":"007"}"#,
        r#"{"number":"+5"}"#,
        r#"{"number":".5"}"#,
        r#"{"number":"0x10"}"#,
        r#"{"number":"1e400"}"#,
        r#"{"number":"NaN"}"#,
    ] {
        assert!(check(&schema, refused).is_err(), "{refused}");
    }
    let doubled = check(&schema, r#"{"more":1,"more":12345678901234567890123}"#).unwrap();
    assert_eq!(doubled.text.text(), r#"{"more":12345678901234567890123}"#);
}

#[test]
fn coerced_text_has_the_digits_that_were_written() {
    for of in [json!({"type": "string"}), json!({"anyOf": [{"type": "string"}, {"type": "null"}]})]
    {
        let schema = json!({"type": "object", "properties": {"n": of}});
        for number in ["100000000000000000000000", "1.10", "1.0", "1E+5", "-0", "1e-400"] {
            let arguments = check(&schema, &format!("{{\"n\":{number}}}")).unwrap();
            assert_eq!(arguments.text.text(), format!("{{\"n\":\"{number}\"}}"));
            assert_eq!(arguments.value, json!({"n": number}), "code reads the same");
        }
    }
    let pattern = json!({"type": "object", "properties": {"n": {"type": "string", "pattern": "^[0-9]+\\.[0-9]{2}$"}}});
    assert!(check(&pattern, r#"{"n":1.10}"#).is_ok(), "the schema checks what is sent");
}

#[test]
fn received_arguments_are_repeated_as_written() {
    let schema = json!({"type": "object", "required": ["b"], "properties": {"n": {"type": "number", "maximum": 1}}});
    for number in ["25122920421210000012345", "100000000000000000000000", "1.10", "9E+3"] {
        let text = check(&schema, &format!("{{\"n\":{number}}}")).unwrap_err();
        assert!(
            text.ends_with(&format!("Received arguments:\n{{\n  \"n\": {number}\n}}")),
            "{text}"
        );
    }
}

/// Numbers that are often equal to a limit, or differ from it in a late digit.
const NEAR_A_LIMIT: &str = "-?(0|1|9|100)(\\.0{0,40}[0-9]{1,160})?(e-?[0-9]{1,3})?";

/// Digits of the number times ten to the 2,000th, as a whole number: another way to compare.
fn scaled(text: &str) -> (bool, String) {
    let (is_negative, text) = text.strip_prefix('-').map_or((false, text), |rest| (true, rest));
    let (mantissa, power) = text.split_once(['e', 'E']).unwrap_or((text, "0"));
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    // With 400 digits, numbers beyond this power are on the same side of each limit.
    let power = power.parse::<i64>().unwrap().clamp(-1_500, 1_500);
    let zeros = 2_000 + power - i64::try_from(fraction.len()).unwrap();
    let all = format!("{whole}{fraction}{}", "0".repeat(usize::try_from(zeros).unwrap()));
    let digits = all.trim_start_matches('0').to_owned();
    (is_negative && !digits.is_empty(), digits)
}

fn compare_scaled(one: &str, other: &str) -> std::cmp::Ordering {
    let ((is_negative, one), (is_other_negative, other)) = (scaled(one), scaled(other));
    let size = one.len().cmp(&other.len()).then_with(|| one.cmp(&other));
    match (is_negative, is_other_negative) {
        (false, false) => size,
        (true, true) => size.reverse(),
        (true, false) => std::cmp::Ordering::Less,
        (false, true) => std::cmp::Ordering::Greater,
    }
}

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig::with_cases(300))]

    /// Any JSON number that becomes a text, or is read from one, keeps its letters or is refused.
    #[test]
    fn any_number_is_coerced_as_written_or_refused(
        number in ANY_NUMBER,
    ) {
        let is_finite = number.parse::<f64>().unwrap().is_finite();
        for (name, given, expected) in [
            ("string", number.clone(), format!("\"{number}\"")),
            ("number", format!("\"{number}\""), number.clone()),
        ] {
            let schema = schema_of_n("type", &json!(name));
            let checked = check(&schema, &format!("{{\"n\":{given}}}"));
            proptest::prop_assert_eq!(checked.is_ok(), is_finite, "{}", &given);
            if let Ok(arguments) = checked {
                proptest::prop_assert_eq!(arguments.text.text(), format!("{{\"n\":{expected}}}"));
            }
        }
    }

    /// Any JSON number is compared exactly, or refused as out of range.
    #[test]
    fn any_number_is_compared_exactly_or_refused(
        number in proptest::prop_oneof![ANY_NUMBER, NEAR_A_LIMIT],
        limit in proptest::sample::select(vec!["0", "1", "0.1", "100", "-100", "99.5", "1e22", "9007199254740993"]),
    ) {
        use std::cmp::Ordering;
        let limit_value: Value = serde_json::from_str(limit).unwrap();
        let order = compare_scaled(&number, limit);
        let is_finite = number.parse::<f64>().unwrap().is_finite();
        for (keyword, expected) in [
            ("maximum", order != Ordering::Greater),
            ("minimum", order != Ordering::Less),
            ("exclusiveMaximum", order == Ordering::Less),
            ("exclusiveMinimum", order == Ordering::Greater),
            ("const", order == Ordering::Equal),
        ] {
            let schema = schema_of_n(keyword, &limit_value);
            let text = format!("{{\"n\":{number}}}");
            let raw = RawJson::from_text(text.clone()).unwrap();
            if is_finite {
                let gate = BoundedSchema::new_strict(&schema).unwrap();
                let verdict = gate.check_written(&raw, &raw.to_value());
                let is_valid = verdict == SchemaVerdict::Valid;
                proptest::prop_assert_eq!(is_valid, expected, "{} {} {}", keyword, limit, &number);
            }
            let checked = check(&schema, &text);
            proptest::prop_assert_eq!(checked.is_ok(), expected && is_finite, "{} {} {}", keyword, limit, &number);
            if let Ok(arguments) = checked {
                proptest::prop_assert_eq!(arguments.text.text(), &text);
            }
        }
    }
}
