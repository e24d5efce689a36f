//! Comparisons of actual results with the expectations of a case.

use serde_json::Value;

/// Asserts that both lists are equal; the panic shows both, one item a line.
pub(super) fn assert_same(label: &str, actual: &[Value], expected: &[Value]) {
    if actual == expected {
        return;
    }
    let at = actual.iter().zip(expected).take_while(|(one, other)| one == other).count();
    panic!(
        "{label}: differs from item {at} on\nactual:\n{}\nexpected:\n{}",
        one_per_line(actual),
        one_per_line(expected)
    );
}

fn one_per_line(items: &[Value]) -> String {
    items.iter().fold(String::new(), |text, item| format!("{text}  {item}\n"))
}

/// Asserts that `actual` has everything expected; it may have more members.
pub(super) fn assert_covers(label: &str, actual: &Value, expected: &Value) {
    assert!(covers(actual, expected), "{label}:\nactual:   {actual}\nexpected: {expected}");
}

fn covers(actual: &Value, expected: &Value) -> bool {
    match (actual, expected) {
        (Value::Object(actual), Value::Object(expected)) => expected
            .iter()
            .all(|(name, value)| actual.get(name).is_some_and(|actual| covers(actual, value))),
        (Value::Array(actual), Value::Array(expected)) => {
            actual.len() == expected.len()
                && actual.iter().zip(expected).all(|(actual, expected)| covers(actual, expected))
        }
        (Value::Number(actual), Value::Number(expected)) => {
            let (actual, expected) = (actual.as_f64().unwrap(), expected.as_f64().unwrap());
            (actual - expected).abs() <= 1e-12 * expected.abs()
        }
        (actual, expected) => actual == expected,
    }
}

#[test]
fn covers_detects_differences() {
    use serde_json::json;
    let whole = json!({"a": [1, {"b": "x", "c": 2}], "d": null});
    assert!(covers(&whole, &json!({"a": [1, {"b": "x"}]})));
    for other in [json!({"a": [1]}), json!({"a": [1, {"b": "y"}]}), json!({"e": null}), json!([])] {
        assert!(!covers(&whole, &other), "{other}");
    }
    assert!(covers(&json!(6e-5), &json!(5.999_999_999_999_999_5e-5)));
    assert!(!covers(&json!(6e-5), &json!(6.1e-5)));
}
