//! Numbers that a float would round: they are errors.

use serde::de::{Deserialize, Deserializer, Error};
use serde_json::value::RawValue;

use crate::decimal::is_exact_as;
use crate::text::sanitize_line;

/// Characters of a number in an error.
const NUMBER_CHARS_MAX: usize = 100;

/// The text of a value. If it is a number, it satisfies the condition.
pub(super) fn read_number_text<'de, D: Deserializer<'de>>(
    source: D,
    is_exact: fn(&str) -> bool,
) -> Result<&'de str, D::Error> {
    let text = <&'de RawValue>::deserialize(source)?.get();
    let is_number = text.starts_with(|first: char| first == '-' || first.is_ascii_digit());
    if is_number && !is_exact(text) {
        let number = sanitize_line(text, NUMBER_CHARS_MAX);
        return Err(D::Error::custom(format!(
            "a float would round {number}: send at most 15 digits if that is the value meant; otherwise the type must be a string or an integer"
        )));
    }
    Ok(text)
}

/// True if a type that accepts any number gets an integer or a float of this value.
pub(super) fn is_exact(text: &str) -> bool {
    text.parse::<i64>().is_ok() || text.parse::<u64>().is_ok() || is_exact_as::<f64>(text)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::fmt::Debug;

    use serde::Deserialize;
    use serde::de::DeserializeOwned;
    use serde_json::{Value, json};

    use crate::strict::{JsonError, from_exact_str};

    use super::*;

    /// Numbers whose nearest double is another number.
    const LONG: [&str; 5] = [
        "100.00000000000000000001",
        "-0.1000000000000000055511151231257827",
        "123456789012345678901234567890",
        "1e-400",
        "1E+400",
    ];

    #[derive(Debug, Deserialize, PartialEq)]
    struct Payment<T> {
        amount: T,
    }

    /// Reads no amount.
    #[derive(Debug, Deserialize, PartialEq)]
    struct Kind {
        kind: String,
    }

    #[derive(Debug, Deserialize, PartialEq)]
    struct Flattened<T> {
        #[serde(flatten)]
        payment: Payment<T>,
    }

    #[derive(Debug, Deserialize, PartialEq)]
    #[serde(untagged)]
    enum Untagged<T> {
        Payment(Payment<T>),
        Amount(T),
    }

    #[derive(Debug, Deserialize, PartialEq)]
    #[serde(tag = "kind")]
    enum Tagged<T> {
        Payment(Payment<T>),
    }

    fn read<T: DeserializeOwned>(amount: &str) -> Result<T, JsonError> {
        from_exact_str(&format!(r#"{{"kind": "Payment", "amount": {amount}}}"#))
    }

    fn amount<T: DeserializeOwned>(text: &str) -> Result<T, JsonError> {
        read::<Payment<T>>(text).map(|payment| payment.amount)
    }

    #[track_caller]
    fn assert_refused<T: Debug>(read: Result<T, JsonError>, number: &str) {
        let JsonError { pointer, detail } = read.unwrap_err();
        let expected = format!("a float would round {number}: send at most 15 digits if ");
        assert!(pointer.starts_with("/amount") && detail.starts_with(&expected), "{detail}");
    }

    #[test]
    fn number_that_a_float_would_round_is_an_error() {
        for number in LONG {
            assert_refused(amount::<f64>(number), number);
            assert_refused(amount::<Option<f64>>(number), number);
            assert_refused(amount::<Value>(number), number);
            assert_refused(amount::<serde_json::Number>(number), number);
            assert_refused(amount::<Vec<f64>>(&format!("[1, {number}]")), number);
            assert_refused(amount::<Value>(&format!(r#"[{{"a": {number}}}]"#)), number);
            assert_refused(amount::<Payment<f64>>(&format!(r#"{{"amount": {number}}}"#)), number);
            assert_refused(read::<BTreeMap<String, Value>>(number), number);
            assert_refused(read::<Flattened<f64>>(number), number);
            let buffered = [
                read::<Untagged<f64>>(number).map(drop),
                read::<Tagged<f64>>(number).map(drop),
                amount::<Untagged<f64>>(number).map(drop),
            ];
            for error in buffered.map(Result::unwrap_err) {
                assert!(error.detail.contains(number), "{error}");
            }
        }
        assert_refused(amount::<f64>("9007199254740993"), "9007199254740993");
        assert_refused(amount::<f32>("16777217"), "16777217");
        let digits = "1".repeat(10_000);
        let error = amount::<f64>(&digits).unwrap_err();
        assert!(error.detail.contains("…: send at most 15 digits if "), "{error}");
    }

    #[test]
    fn exact_types_get_each_digit() {
        for number in LONG {
            assert_eq!(amount::<Box<RawValue>>(number).unwrap().get(), number);
            assert_eq!(amount::<String>(&format!("\"{number}\"")).unwrap(), number);
            assert_eq!(read::<Kind>(number).unwrap().kind, "Payment");
        }
        assert_eq!(amount::<u64>("18446744073709551615"), Ok(u64::MAX));
        assert_eq!(amount::<i64>("-9223372036854775808"), Ok(i64::MIN));
        let wide = i128::MAX.to_string();
        assert_eq!(amount::<i128>(&wide), Ok(i128::MAX));
        assert_eq!(amount::<Value>("9007199254740993"), Ok(json!(9_007_199_254_740_993_u64)));
        let payment = Payment { amount: 9_007_199_254_740_993_u64 };
        assert_eq!(read::<Tagged<u64>>("9007199254740993"), Ok(Tagged::Payment(payment)));
        let keys = r#"{"18446744073709551615": [true, null, "1.0", {"a": 1.5}]}"#;
        let by_number: BTreeMap<u64, Value> = from_exact_str(keys).unwrap();
        assert_eq!(by_number[&u64::MAX], json!([true, null, "1.0", {"a": 1.5}]));
        for number in ["100.10", "1e21", "-0.0", "0.30000000000000004", "1E3", "5e-324", "1e308"] {
            assert_eq!(amount::<f64>(number), Ok(number.parse().unwrap()));
            assert_eq!(amount::<Value>(number), Ok(serde_json::from_str(number).unwrap()));
        }
        assert_eq!(amount::<f32>("0.1"), Ok(0.1));
        assert!(amount::<u64>("18446744073709551616").is_err() && amount::<u8>("1.5").is_err());
    }
}
