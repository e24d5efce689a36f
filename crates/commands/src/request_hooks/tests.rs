//! Tests of replaced inputs.

use serde_json::json;

use super::*;

fn content(value: &serde_json::Value) -> Content {
    serde_json::from_str(&value.to_string()).unwrap()
}

fn image(data: &str) -> Image {
    serde_json::from_value(json!({"data": data, "mimeType": "image/png"})).unwrap()
}

#[test]
fn replaced_text_keeps_images_and_files() {
    let picture = json!({"type": "image", "data": "a", "mimeType": "image/png"});
    let file = json!({"type": "file", "artifactId": "f"});
    let text = |text: &str| json!({"type": "text", "text": text});
    let new_picture = json!({"type": "image", "data": "b", "mimeType": "image/png"});
    for (before, new_text, images, after) in [
        (json!("x"), "y", None, json!("y")),
        (json!("x"), "y", Some(vec![]), json!("y")),
        (json!("x"), "y", Some(vec![image("b")]), json!([text("y"), new_picture])),
        (
            json!([picture, text("x"), file, text("z")]),
            "y",
            None,
            json!([picture, text("y"), file]),
        ),
        (
            json!([picture, text("x"), file]),
            "y",
            Some(vec![image("b")]),
            json!([text("y"), file, new_picture]),
        ),
        (json!([picture]), "y", None, json!([text("y"), picture])),
        (json!([text("x"), file]), "", None, json!([file])),
        (json!([text("x")]), "", None, json!("")),
    ] {
        let replaced = replace_content(content(&before), new_text.to_owned(), images);
        assert_eq!(serde_json::to_value(&replaced).unwrap(), after, "{before}");
    }
}

#[test]
fn prompt_text_joins_text_blocks() {
    let blocks = json!([
        {"type": "text", "text": "a"},
        {"type": "image", "data": "p", "mimeType": "image/png"},
        {"type": "text", "text": "b"},
    ]);
    let input = to_prompt_text(&content(&blocks), Source::Queue);
    assert_eq!((input.text.as_str(), input.images.len(), input.source), ("a\nb", 1, Source::Queue));
}
