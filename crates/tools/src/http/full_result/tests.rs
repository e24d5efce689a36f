//! Tests of full results: the shapes that are one, and unusable parts.

use super::*;
use serde_json::json;

#[test]
fn only_documented_shape_is_a_full_result() {
    for full in [
        json!({"content": [{"type": "text", "text": "x"}]}),
        json!({"content": [], "details": {"a": 1}, "isError": true}),
        json!({"content": [{"type": "text", "text": "x"}], "terminate": true}),
        json!({"files": [{"path": "a.txt", "text": "x"}]}),
        json!({"widgets": [{"widget": "chart", "data": [1]}]}),
        json!({"content": [], "structuredContent": {"a": 1}, "_meta": {"b": 2}}),
        json!({"content": [{"type": "text", "text": "x"}], "isError": false, "id": 7}),
        json!({"isError": true}),
        json!({"isError": "true", "content": "declined", "id": 7}),
        json!({"content": [{"type": "text", "text": "x"}], "id": 7}),
        json!({"content": [5, {"type": "text", "text": "x"}], "terminate": "yes"}),
        json!({"content": [{"type": "text", "text": "x"}], "files": [{"name": "a"}]}),
        json!({"content": [{"type": "image", "data": ""}], "outputs": 5}),
        json!({"content": [], "details": 1, "files": [{"name": "r.csv", "text": "a"}]}),
        json!({"files": [{"path": "a", "text": "x"}, {"name": "b"}], "details": 1}),
        json!({"files": [{"name": "b", "base64": "aGk="}], "terminate": true}),
        json!({"widgets": [{"widget": "chart"}, 5]}),
        json!({"content": null, "files": [{"path": "a", "text": "x"}, 5]}),
        json!({"structuredContent": {"a": 1}, "files": {}, "details": 1}),
    ] {
        assert!(is_full_result(&full), "{full}");
    }
    for plain in [
        json!({"content": "text of a page"}),
        json!({"content": [{"type": "invoice", "id": 7}], "totalPages": 1}),
        json!({"content": [{"type": "text", "value": "x"}], "form": 7}),
        json!({"content": [], "pages": 0}),
        json!({"files": ["a.txt"]}),
        json!({"files": [{"name": "a.txt", "size": 7}], "usage": {"bytes": 7}}),
        json!({"files": [{"name": "a.txt", "text": "x"}]}),
        json!({"files": [{"path": "a", "text": "x"}, {"name": "b"}], "total": 2}),
        json!({"content": ["text of a page"], "details": 1}),
        json!({"terminate": true}),
        json!({"content": [], "terminate": "yes"}),
        json!({"details": 1}),
        json!({"isError": false, "balance": 7}),
        json!({"isError": null}),
        json!({"isError": null, "balance": 7}),
        json!({"isError": 0, "balance": 7}),
        json!({"isError": "False", "content": "fine"}),
        json!({"usage": {"input": 1}}),
        json!([]),
    ] {
        assert!(!is_full_result(&plain), "{plain}");
    }
}

#[tokio::test]
async fn flag_of_each_form_means_one_thing() {
    let context = crate::test_env::TestEnv::new().context();
    for (flag, is_error, note) in [
        ("true", true, ""),
        ("false", false, ""),
        ("null", false, ""),
        ("0", false, "does not count"),
        ("0.0", false, "does not count"),
        ("-0", false, "does not count"),
        ("\"\"", false, "does not count"),
        ("\"false\"", false, "does not count"),
        ("\"FALSE\"", false, "does not count"),
        ("1", true, "counts"),
        ("-1", true, "counts"),
        ("0.5", true, "counts"),
        ("1e400", true, "counts"),
        ("\"true\"", true, "counts"),
        ("\"no\"", true, "counts"),
        ("\"0\"", true, "counts"),
        ("\" \"", true, "counts"),
        ("[]", true, "counts"),
        ("{}", true, "counts"),
    ] {
        let text =
            format!(r#"{{"content":[{{"type":"text","text":"booked"}}],"id":7,"isError":{flag}}}"#);
        let value = RawJson::from_text(text.as_str()).unwrap().to_value();
        assert!(is_full_result(&value), "{flag}");
        assert_eq!(means_error(value.get("isError").unwrap()), is_error, "{flag}");
        let result = convert_full_result(&text, &context).await;
        let read = turnwheel_conversation::content::joined_text(&result.content);
        assert_eq!(result.is_error, is_error, "{flag}");
        assert!(read.starts_with("booked\n"), "{flag}: {read}");
        let noted = format!("must be true or false: this result {note} as an error");
        assert_eq!(read.contains(&noted), !note.is_empty(), "{flag}: {read}");
        assert_eq!(read.contains("`isError`"), !note.is_empty(), "{flag}: {read}");
    }
}

#[tokio::test]
async fn file_in_any_form_of_base64_is_saved() {
    let context = crate::test_env::TestEnv::new().context();
    for data in ["aGk=", r"aG\nk=\n", "aGk", "data:text/plain;base64,aGk="] {
        let text = format!(r#"{{"files":[{{"path":"a.txt","base64":"{data}"}}]}}"#);
        let result = convert_full_result(&text, &context).await;
        let [Output::File(file)] = &result.outputs[..] else { panic!("{data}: {result:?}") };
        assert_eq!(file.size, 2, "{data}");
    }
}

/// Other members of a full result cost only themselves (TY-14).
#[tokio::test]
async fn odd_member_of_full_result_costs_only_itself() {
    let context = crate::test_env::TestEnv::new().context();
    for odd in [
        r#""files":[{"name":"r.csv","text":"a"}]"#,
        r#""files":{}"#,
        r#""widgets":[{"data":1}]"#,
        r#""outputs":[5]"#,
        r#""terminate":"yes""#,
        r#""usage":"much""#,
        r#""later":{"secret":"S3CRET"}"#,
        r#""isError":"no""#,
    ] {
        let text = format!(
            r#"{{"content":[{{"type":"text","text":"T"}},{{"type":"later"}},7],"details":{{"d":"S3CRET"}},{odd}}}"#
        );
        assert!(is_full_result(&serde_json::from_str(&text).unwrap()), "{odd}");
        let result = convert_full_result(&text, &context).await;
        let read = turnwheel_conversation::content::joined_text(&result.content);
        assert!(read.starts_with("T\n[") && !read.contains("S3CRET"), "{odd}: {read}");
        assert_eq!(result.details.unwrap().text(), r#"{"d":"S3CRET"}"#);
        assert_eq!(result.is_error, odd.contains("isError"), "{odd}");
    }
    let later = r#"{"content":[{"type":"text","text":"T"}],"a":1,"outputs":[{"type":"x","n":12345678901234567890.10}]}"#;
    let result = convert_full_result(later, &context).await;
    let read = turnwheel_conversation::content::joined_text(&result.content);
    assert_eq!(read, "T\n[`a`: no member of a result, left out]");
    let Some(Output::Other(output)) = result.outputs.first() else { panic!("{result:?}") };
    assert!(output.text().contains("12345678901234567890.10"), "{}", output.text());
    let refused = r#"{"isError":true,"content":"no","reason":"late"}"#;
    let read = convert_full_result(refused, &context).await.content;
    assert_eq!(turnwheel_conversation::content::joined_text(&read), "no\n{\"reason\":\"late\"}");
}

/// Without a usable text, `details` still stay hidden from the model and usage counts (TY-14).
#[tokio::test]
async fn unusable_item_costs_no_other_part() {
    let context = crate::test_env::TestEnv::new().context();
    let text = r#"{"content":[],"details":{"d":"S3CRET"},"usage":{"input":7},"files":[{"name":"b","text":"x"},{"path":"a","text":"x"}]}"#;
    assert!(is_full_result(&serde_json::from_str(text).unwrap()));
    let result = convert_full_result(text, &context).await;
    let read = turnwheel_conversation::content::joined_text(&result.content);
    assert!(read.contains("a file was left out") && !read.contains("S3CRET"), "{read}");
    assert_eq!(result.usage.map(|usage| usage.input), Some(7));
    let [Output::File(file)] = &result.outputs[..] else { panic!("{result:?}") };
    assert_eq!(file.path, "a");
}
