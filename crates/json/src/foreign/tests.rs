//! Tests of repaired documents.

use super::*;

fn read(text: &str) -> Option<String> {
    read_foreign_json(text).map(|it| it.json.text().to_owned())
}

fn nested(levels: usize) -> String {
    format!("{}1{}", "[".repeat(levels), "]".repeat(levels))
}

#[test]
fn valid_json_keeps_its_text() {
    for text in [
        r#"{ "a" : [1, 2.50, 12345678901234567890123.4500, -0, 1E5], "b\n" : null }"#,
        r#""\ud83d\ude00 \u0000 \/""#,
        "[]",
        "0",
        &nested(FOREIGN_DEPTH_MAX),
    ] {
        let foreign = read_foreign_json(text).unwrap();
        assert_eq!((foreign.json.text(), foreign.notes.len()), (text, 0));
    }
}

#[test]
fn plain_mistakes_are_repaired() {
    let cases = [
        ("\u{feff}{\"a\":1}\n\0", r#"{"a":1}"#),
        (
            r#"{"a": NaN, "b": [-Infinity, 1e400, 007]}"#,
            r#"{"a":"NaN","b":["-Infinity","1e400","007"]}"#,
        ),
        (r#"{"a\ud83d":"x\ude00"}"#, r#"{"a":"x"}"#),
        (r#"{"a":1,"b":2,"\u0061":1.50}"#, r#"{"b":2,"\u0061":1.50}"#),
        (r#"{"a":{"b":1,"b":2},"a":{"b":3,"b":4}}"#, r#"{"a":{"b":4}}"#),
        ("[\"a\nb\\x\\'\\u12\", 1,]", r#"["a\nb\\x\\'\\u12",1]"#),
        (r#"{"a":1,}"#, r#"{"a":1}"#),
    ];
    for (text, expected) in cases {
        assert_eq!(read(text).as_deref(), Some(expected), "{text}");
    }
    let notes = read_foreign_json(r#"[NaN,{"a":1,"a":2},NaN]"#).unwrap().notes;
    assert_eq!(notes, [NOTE_NUMBERS, NOTE_DUPLICATES]);
}

#[test]
fn duplicate_error_flag_keeps_the_error() {
    for no_error in ["0", "0.0", "-0", "0e0", "false", "null", "\"\"", "\"False\""] {
        for flags in [[no_error, "true"], ["true", no_error]] {
            let text = format!(r#"{{"isError":{},"isError":{}}}"#, flags[0], flags[1]);
            assert_eq!(read(&text).as_deref(), Some(r#"{"isError":true}"#), "{text}");
        }
    }
}

#[test]
fn other_text_is_not_json() {
    for text in [
        "",
        "hello",
        "{",
        "[1 2]",
        "{\"a\"}",
        "{a:1}",
        "{\"a\":1} {\"b\":2}",
        "[INFO] {not json}",
        "[INFO]",
        "2026-01-01",
        "\"open",
        "[1",
        "]",
        "[,]",
        "{,}",
        "nulls",
        "\0",
    ] {
        assert_eq!(read(text), None, "{text}");
    }
}

#[test]
fn deep_values_become_text() {
    let foreign = read_foreign_json(&nested(50_000)).unwrap();
    assert_eq!(foreign.json.depth(), FOREIGN_DEPTH_MAX);
    assert_eq!(foreign.notes, [NOTE_DEPTH]);
    assert_eq!(read(&"[".repeat(50_000)), None);
}

#[test]
fn strings_and_numbers_are_mapped() {
    let secrets = |text: &str| {
        let new = text.replace("s\"cret", "[KEY]").replace("12345678", "[PIN]");
        (new != text).then_some(new)
    };
    let json = RawJson::from_text(
        r#"{"a":"x s\"cret","s\u0022cret":[12345678, 1.50, "123456789"],"b":true}"#,
    );
    assert_eq!(
        map_strings(json.unwrap(), &secrets).text(),
        r#"{"a":"x [KEY]","[KEY]":["[PIN]", 1.50, "[PIN]9"],"b":true}"#
    );
}

proptest::proptest! {
    #[test]
    fn repaired_json_is_read_again(text in r#"([\[\]{}:,]|"a"|"\\\\u[dD]83d"|NaN|1e999|[ \x00]|null|-?[0-9]{1,3}){0,16}"#) {
        if let Some(foreign) = read_foreign_json(&text) {
            proptest::prop_assert!(foreign.json.read::<Value>().is_ok());
            let again = read_foreign_json(foreign.json.text()).unwrap();
            proptest::prop_assert_eq!(again.json.text(), foreign.json.text());
            proptest::prop_assert!(again.notes.is_empty());
        }
    }
}
