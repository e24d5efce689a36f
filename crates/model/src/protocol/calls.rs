//! The calls of an execute block.

use super::python_json;
use turnwheel_json::exact::ExactJson;
use turnwheel_json::raw::RawJson;

/// Maximum number of calls in a block: that of a model response.
pub(crate) const CALLS_MAX: usize = turnwheel_conversation::step::CALLS_MAX;
/// Characters of the model's JSON that an error text quotes.
const QUOTE_CHARS_MAX: usize = 200;

/// One item of an execute block.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ProtocolCall {
    pub name: String,
    /// An object, as the model wrote it.
    pub arguments: RawJson,
    /// True if the model wrote members that are no part of a call.
    pub has_other_members: bool,
}

/// Parses the content of an execute block. `Err` holds the reason in the words of the source.
pub(super) fn parse_calls(content: &str) -> Result<Vec<ProtocolCall>, String> {
    let content = content.trim();
    let Ok(json) = serde_json::from_str::<RawJson>(content) else {
        let reason = python_json::syntax_error(content);
        return Err(format!("Invalid JSON in <execute> block: {reason}"));
    };
    let Ok(items) = json.read::<Vec<RawJson>>() else {
        return Err("Expected JSON array in <execute> block".to_owned());
    };
    if items.len() > CALLS_MAX {
        let count = items.len();
        return Err(format!("The <execute> block has {count} calls; the maximum is {CALLS_MAX}"));
    }
    items.iter().enumerate().map(|(index, item)| parse_call(index, item)).collect()
}

fn parse_call(index: usize, item: &RawJson) -> Result<ProtocolCall, String> {
    let Some(members) = item.members() else {
        let item = quote(&python_json::display(&tree_of(item)));
        return Err(format!("Call {index} is not an object: {item}"));
    };
    // Of duplicate members the last one applies.
    let find = |name: &str| members.iter().rev().find(|(member, _)| member == name);
    let (Some((_, name)), Some((_, arguments))) = (find("name"), find("args")) else {
        let item = quote(&python_json::repr(&tree_of(item)));
        return Err(format!("Call {index} missing 'name' or 'args': {item}"));
    };
    let type_name = |value: &RawJson| python_json::type_name(&tree_of(value));
    let Ok(name) = name.read::<String>() else {
        return Err(format!("Call {index} name must be string, got {}", type_name(name)));
    };
    if !arguments.text().starts_with('{') {
        let kind = type_name(arguments);
        return Err(format!("Call {index} args must be object, got {kind}"));
    }
    let has_other_members = members.len() > 2;
    Ok(ProtocolCall { name, arguments: arguments.clone(), has_other_members })
}

/// The value with its numbers as written. One that nests too deep is a text.
fn tree_of(value: &RawJson) -> ExactJson {
    ExactJson::parse(value.text()).unwrap_or_else(|| ExactJson::Text(value.text().to_owned()))
}

/// At most [`QUOTE_CHARS_MAX`] characters of a text.
fn quote(text: &str) -> String {
    match text.char_indices().nth(QUOTE_CHARS_MAX) {
        Some((end, _)) => format!("{}…", text.get(..end).unwrap_or_default()),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn malformed_blocks_have_the_reasons_of_the_source() {
        let cases = [
            (r#"{"name":"a","args":{}}"#, "Expected JSON array in <execute> block"),
            (r#"["not an object"]"#, "Call 0 is not an object: not an object"),
            (r#"[{"name":"a","args":{}}, null]"#, "Call 1 is not an object: None"),
            (r#"[{"name":"echo"}]"#, "Call 0 missing 'name' or 'args': {'name': 'echo'}"),
            (r#"[{"name":"echo","args":"x"}]"#, "Call 0 args must be object, got str"),
            (r#"[{"name":"echo","args":[1]}]"#, "Call 0 args must be object, got list"),
            (
                r#"[{"name":"pay","arguments":{"to":25122920421210000012345,"sum":1.10}}]"#,
                "Call 0 missing 'name' or 'args': {'name': 'pay', 'arguments': {'to': 25122920421210000012345, 'sum': 1.10}}",
            ),
            (r#"[{"name":7,"args":{}}]"#, "Call 0 name must be string, got int"),
            ("", "Invalid JSON in <execute> block: Expecting value: line 1 column 1 (char 0)"),
        ];
        for (content, reason) in cases {
            assert_eq!(parse_calls(content).unwrap_err(), reason, "{content}");
        }
        let long = format!(r#"[{{"name":"{}"}}]"#, "x".repeat(100_000));
        assert!(parse_calls(&long).unwrap_err().len() < 300);
    }

    #[test]
    fn arguments_keep_their_text() {
        let calls = parse_calls(r#" [{"args": {"n": 1.50e2},"name":"a","more":1}] "#).unwrap();
        assert_eq!(calls.len(), 1);
        assert_eq!((calls[0].name.as_str(), calls[0].arguments.text()), ("a", r#"{"n": 1.50e2}"#));
        assert!(parse_calls("[]").unwrap().is_empty());
    }

    proptest::proptest! {
        #![proptest_config(proptest::prelude::ProptestConfig::with_cases(100))]

        /// Any number reaches the tool, or the model in an error, as it was written. An error has its
        /// first digits.
        #[test]
        fn any_number_stays_as_written(
            number in turnwheel_test_support::numbers::ANY_NUMBER,
        ) {
            let block = format!(r#"[{{"name":"pay","args":{{"n":{number}}}}}]"#);
            let calls = parse_calls(&block).unwrap();
            let arguments = format!(r#"{{"n":{number}}}"#);
            proptest::prop_assert_eq!(calls[0].arguments.text(), arguments);
            let reason = parse_calls(&format!(r#"[{{"name":"pay","n":{number}}}]"#)).unwrap_err();
            let quoted = quote(&format!("{{'name': 'pay', 'n': {number}}}"));
            let expected = format!("Call 0 missing 'name' or 'args': {quoted}");
            proptest::prop_assert_eq!(reason, expected);
        }
    }

    #[test]
    fn block_with_too_many_calls_is_malformed() {
        let block =
            |count: usize| format!("[{}]", vec![r#"{"name":"a","args":{}}"#; count].join(","));
        assert_eq!(parse_calls(&block(CALLS_MAX)).unwrap().len(), CALLS_MAX);
        let reason = parse_calls(&block(40_000)).unwrap_err();
        assert_eq!(reason, "The <execute> block has 40000 calls; the maximum is 64");
        let deep = format!("{}{}", "[".repeat(300_000), "]".repeat(300_000));
        let reason = parse_calls(&deep).unwrap_err();
        assert!(
            reason.starts_with("Call 0 is not an object: [[") && reason.len() < 400,
            "{reason}"
        );
    }
}
