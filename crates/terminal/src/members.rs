//! JSON of the service, and its members. A later version may add some: absent and unknown ones are no errors.
//!
//! Numbers keep their text: an approver decides by each digit.

use std::collections::HashSet;

use turnwheel_json::exact::ExactJson;
use turnwheel_json::raw::RawJson;

/// Levels of a response around a stored entry.
const OUTER_LEVELS: usize = 7;

/// `None`: the text is no JSON, or nests deeper than an entry in a response.
pub(crate) fn parse_json(text: &[u8]) -> Option<ExactJson> {
    read_tree(&serde_json::from_slice(text).ok()?, OUTER_LEVELS)
}

/// Reads JSON that nests deeper than an entry by at most these levels.
fn read_tree(json: &RawJson, levels: usize) -> Option<ExactJson> {
    if let Some(tree) = ExactJson::parse(json.text()) {
        return Some(tree);
    }
    let levels = levels.checked_sub(1)?;
    let Some(mut members) = json.members() else {
        let items: Vec<RawJson> = json.read().ok()?;
        let items = items.iter().map(|item| read_tree(item, levels));
        return items.collect::<Option<Vec<_>>>().map(ExactJson::List);
    };
    // Of duplicate members the last counts.
    let mut names = HashSet::new();
    members.reverse();
    members.retain(|(name, _)| names.insert(name.clone()));
    members.reverse();
    let members = members.into_iter().map(|(name, it)| Some((name, read_tree(&it, levels)?)));
    members.collect::<Option<Vec<_>>>().map(ExactJson::Object)
}

/// The value as JSON in one line.
pub(crate) fn json_line(value: &ExactJson) -> String {
    serde_json::to_string(value).unwrap_or_default()
}

/// The value as indented JSON.
pub(crate) fn pretty_json(value: &ExactJson) -> String {
    serde_json::to_string_pretty(value).unwrap_or_default()
}

/// The member of that name. `None`: it is absent.
pub(crate) fn member<'a>(value: &'a ExactJson, name: &str) -> Option<&'a ExactJson> {
    let ExactJson::Object(members) = value else { return None };
    members.iter().find(|(known, _)| known == name).map(|(_, member)| member)
}

/// The member of that name; null if it is absent.
pub(crate) fn member_or_null<'a>(value: &'a ExactJson, name: &str) -> &'a ExactJson {
    member(value, name).unwrap_or(&ExactJson::Null)
}

/// The member of members. `None`: one of them is absent.
pub(crate) fn member_at<'a>(value: &'a ExactJson, names: &[&str]) -> Option<&'a ExactJson> {
    names.iter().try_fold(value, |value, name| member(value, name))
}

/// `None`: the value is no text.
pub(crate) fn as_text(value: &ExactJson) -> Option<&str> {
    let ExactJson::Text(text) = value else { return None };
    Some(text)
}

/// Text of a member; empty if it is absent.
pub(crate) fn text<'a>(value: &'a ExactJson, name: &str) -> &'a str {
    member(value, name).and_then(as_text).unwrap_or_default()
}

/// Text of a member of members. `None`: one of them is absent, or the last one is no text.
pub(crate) fn text_at<'a>(value: &'a ExactJson, names: &[&str]) -> Option<&'a str> {
    member_at(value, names).and_then(as_text)
}

/// Elements of a member; none if it is absent.
pub(crate) fn items<'a>(value: &'a ExactJson, name: &str) -> &'a [ExactJson] {
    member(value, name).map(elements).unwrap_or_default()
}

/// Texts of a member that is a list; none if it is absent.
pub(crate) fn texts<'a>(value: &'a ExactJson, name: &str) -> Vec<&'a str> {
    items(value, name).iter().filter_map(as_text).collect()
}

fn elements(value: &ExactJson) -> &[ExactJson] {
    let ExactJson::List(items) = value else { return &[] };
    items
}

/// Number of a member; 0 if it is absent.
pub(crate) fn number(value: &ExactJson, name: &str) -> u64 {
    let number = member(value, name).and_then(number_text);
    number.and_then(|number| number.parse().ok()).unwrap_or_default()
}

fn number_text(value: &ExactJson) -> Option<&str> {
    let ExactJson::Number(number) = value else { return None };
    Some(number)
}

pub(crate) fn flag(value: &ExactJson, name: &str) -> bool {
    member(value, name) == Some(&ExactJson::Bool(true))
}

/// The cost of a usage in USD.
pub(crate) fn cost(usage: &ExactJson) -> f64 {
    let total = member_at(usage, &["cost", "total"]).and_then(number_text);
    total.and_then(|total| total.parse().ok()).unwrap_or_default()
}

/// The text blocks of a content, which is a string or a list of blocks; one line for each.
pub(crate) fn content_text(content: &ExactJson) -> String {
    if let Some(text) = as_text(content) {
        return text.to_owned();
    }
    let blocks = elements(content).iter().filter(|block| text(block, "type") == "text");
    let texts: Vec<&str> = blocks.map(|block| text(block, "text")).collect();
    texts.join("\n")
}

/// The value as the service sends it.
#[cfg(test)]
pub(crate) fn exact(value: &serde_json::Value) -> ExactJson {
    parse_json(value.to_string().as_bytes()).unwrap()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn numbers_keep_their_text() {
        let written = r#"{"a":[25122920421210000012345,100.00000000000000000001,1.10,1e400,-0]}"#;
        let value = parse_json(written.as_bytes()).unwrap();
        assert_eq!(json_line(&value), written);
        assert!(pretty_json(&value).contains("\n    25122920421210000012345,\n"));
        for wrong in ["", "{", "{}{}", "01", "{\"a\":+1}", "\"\\ud800\""] {
            assert_eq!(parse_json(wrong.as_bytes()), None, "{wrong}");
        }
        assert_eq!(parse_json(b"\"\xff\""), None);
    }

    #[test]
    fn deep_entry_in_a_response_is_read() {
        let nested = |levels: usize| {
            let (open, close) = ("[".repeat(levels), "]".repeat(levels));
            format!(r#"{{"items":[{{"a":1,"a":{open}12345678901234567890.10{close}}}]}}"#)
        };
        for levels in [1, 117, 118, 124] {
            let value = parse_json(nested(levels).as_bytes()).unwrap();
            assert_eq!(json_line(&value), nested(levels).replace("\"a\":1,", ""), "{levels}");
        }
        assert_eq!(parse_json(nested(125).as_bytes()), None);
    }

    #[test]
    fn absent_members_are_empty() {
        let value = exact(&json!({
            "text": "a", "number": 7, "flag": true, "list": ["b", 1, "c"], "cost": {"total": 0.25},
        }));
        assert_eq!((text(&value, "text"), text(&value, "number")), ("a", ""));
        assert_eq!((number(&value, "number"), number(&value, "text")), (7, 0));
        assert_eq!((flag(&value, "flag"), flag(&value, "none")), (true, false));
        assert_eq!((texts(&value, "list"), items(&value, "text").len()), (vec!["b", "c"], 0));
        assert_eq!(member_at(&value, &["cost", "none"]), None);
        assert_eq!(*member_or_null(&value, "none"), ExactJson::Null);
        assert_eq!(json!(cost(&value)), json!(0.25));
    }
}
