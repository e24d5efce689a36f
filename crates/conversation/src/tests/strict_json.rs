//! Errors have a pointer and a plain message. Valid JSON is read unchanged.

use std::fmt;

use serde::Deserialize;

use crate::content::Content;
use crate::settings::Settings;
use turnwheel_json::raw::RawJson;
use turnwheel_json::strict::*;

fn error_of<'de, T: Deserialize<'de> + fmt::Debug>(text: &'de str) -> (String, String) {
    let JsonError { pointer, detail } = from_str::<T>(text).unwrap_err();
    (pointer, detail)
}

#[test]
fn list_is_rejected_as_object_at_any_depth() {
    for (text, pointer) in [
        (r#"["agent","gpt-evil"]"#, ""),
        ("[]", ""),
        (r#"{"retry":[false,7]}"#, "/retry"),
        (r#"{"compaction":[false]}"#, "/compaction"),
    ] {
        let expected = (pointer.to_owned(), "this must be an object, not a list".to_owned());
        assert_eq!(error_of::<Settings>(text), expected, "{text}");
    }
    let nested = error_of::<Vec<Option<Settings>>>(r#"[null,{"retry":[1]}]"#);
    assert_eq!(nested.0, "/1/retry");
}

#[test]
fn json_errors_have_plain_messages() {
    for (text, pointer, detail) in [
        ("5", "", "this must be an object, not 5"),
        (
            r#"{"maxRounds":-1}"#,
            "/maxRounds",
            "this must be a whole number from 0 to 4294967295, not -1",
        ),
        (
            r#"{"maxRounds":"x"}"#,
            "/maxRounds",
            "this must be a whole number from 0 to 4294967295, not a text",
        ),
        (r#"{"model":{}}"#, "/model", "this must be a text, not an object"),
        (r#"{"MaxRounds":1}"#, "/MaxRounds", "unknown field `MaxRounds`: write `maxRounds`"),
        (r#"{"max_rounds":1}"#, "/max_rounds", "unknown field `max_rounds`: write `maxRounds`"),
        (r#"{"activeTools":"x"}"#, "/activeTools", "this must be a list, not a text"),
        (r#"{"retry":{"enabled":null}}"#, "/retry/enabled", "this must be true or false, not null"),
    ] {
        assert_eq!(error_of::<Settings>(text), (pointer.to_owned(), detail.to_owned()), "{text}");
    }
    let (pointer, detail) = error_of::<Settings>(r#"{"loop":"x"}"#);
    assert_eq!(pointer, "/loop");
    assert!(detail.starts_with("unknown value `x`, expected one of `prompt`"), "{detail}");
}

#[test]
fn block_errors_have_their_index() {
    for (text, pointer) in [
        (r#"[{"type":"text","text":"a"},{"type":"text"}]"#, "/1/text"),
        (r#"[{"type":"text","text":5}]"#, "/0/text"),
        (r#"[{"type":"image","data":"x"}]"#, "/0/mimeType"),
    ] {
        assert_eq!(error_of::<Content>(text).0, pointer, "{text}");
    }
    let expected = (String::new(), "this must be a text or a list of blocks".to_owned());
    assert_eq!(error_of::<Content>("5"), expected);
}

#[test]
fn raw_json_keeps_its_text() {
    let raw: RawJson = from_str(r#"{"n": 12345678901234567890123.4500}"#).unwrap();
    assert_eq!(raw.text(), r#"{"n": 12345678901234567890123.4500}"#);
    let settings: Settings = from_str(r#"{"budget": {"prompt": {"usd": 1.50}}}"#).unwrap();
    assert_eq!(settings.budget.unwrap().text(), r#"{"prompt": {"usd": 1.50}}"#);
}

#[test]
fn null_members_of_structs_are_absent_in_requests() {
    let nulls = r#"{"retry": {"enabled": null, "maxRetries": 7}, "budget": null, "maxRounds":null,
        "compaction": { "enabled" : null }, "activeTools": null}"#;
    let settings: Settings = from_request(nulls).unwrap();
    let same: Settings = from_request(r#"{"retry": {"maxRetries": 7}, "compaction": {}}"#).unwrap();
    assert_eq!(settings, same);
    assert_eq!(error_of::<Settings>(nulls).0, "/retry/enabled", "files keep the mistake");
    let failed = |text| {
        let JsonError { pointer, detail } = from_request::<Settings>(text).unwrap_err();
        (pointer, detail)
    };
    for (text, pointer) in [
        (r#"{"retyr": null}"#, "/retyr"),
        (r#"{"retry": {"enabeld": null}}"#, "/retry/enabeld"),
        (r#"{"retry": {"maxRetries": "x", "jitter": null}}"#, "/retry/maxRetries"),
        (r#"{"retry": [null]}"#, "/retry"),
        (r#"{"activeTools": [null]}"#, "/activeTools/0"),
    ] {
        let (at, detail) = failed(text);
        assert_eq!(at, pointer, "{detail}");
        assert!(!detail.contains("at line"), "{detail}");
    }
}

#[test]
fn requests_keep_nulls_and_digits_of_free_values() {
    #[derive(Debug, serde::Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Body {
        data: Option<RawJson>,
        labels: Option<std::collections::BTreeMap<String, Option<String>>>,
    }
    let body: Body =
        from_request(r#"{"data": {"a":null,"b":1.10e99}, "labels": {"a": null}}"#).unwrap();
    assert_eq!(body.data.unwrap().text(), r#"{"a":null,"b":1.10e99}"#);
    assert_eq!(body.labels.unwrap().len(), 1);
}
