//! Arguments after a lost event, and output of unknown types.

use serde_json::json;

use super::merge_tests::{blocks, response_with};
use super::odd_value_tests::{arguments_event, assert_lost, call_with, fold_frames, piece};
use super::tests::{fold_events, item_added, item_done, message_item, response_completed};
use super::*;
use turnwheel_conversation::content::joined_text;

/// Events that may have had arguments, and cannot be read.
const LOST_PIECES: [&str; 7] = [
    r#"{"type":"response.function_call_arguments.delta","output_index":0,"del"#,
    r#"{"type":"response.custom_tool_call_input.delta","output_index":0,"del"#,
    r#"{"type":"response.function_c"#,
    r#"{"item_id":"fc_1","del"#,
    r#"{"delta":"{\"message\":\"hi\"}","item_id":"fc_1","ty"#,
    r#"{"type":"response.output_item.done","item":{"type":"function_call","na"#,
    r#"{"type":"response.function_call_arguments.delta","output_index":0,"arguments":"{\"n\":1}"}"#,
];

fn added() -> String {
    item_added(0, call_with(json!(""))).to_string()
}

fn done(arguments: &str) -> String {
    item_done(0, call_with(json!(arguments))).to_string()
}

#[test]
fn empty_arguments_after_a_lost_piece_fail_the_call() {
    let end = response_completed().to_string();
    let whole = r#"{"n":1}"#;
    for lost in LOST_PIECES.map(ToOwned::to_owned) {
        // The default name of an event is that of no text.
        let mut fold = ResponseFold::new("m", Tariff::default(), ToolNames::default());
        for frame in [&lost, &done("{}"), &end] {
            fold.push_frame(Some("message"), frame);
        }
        assert_eq!(fold.finish().error.unwrap().text, LOST_EVENT, "{lost}");
        let around = vec![added(), piece("0", r#""{\"n\":""#), lost.clone(), piece("0", r#""1}""#)];
        for start in [vec![added(), lost.clone()], vec![lost.clone()], around.clone()] {
            for last in ["{}", "{ }", ""] {
                let end_of_arguments =
                    arguments_event("done", "arguments", json!(last)).to_string();
                assert_lost(&[&start[..], &[done(last), end.clone()]].concat());
                assert_lost(&[&start[..], &[end_of_arguments, done(last), end.clone()]].concat());
            }
        }
        for start in [vec![added(), lost.clone()], vec![lost.clone()], around] {
            let found = fold_frames(&[&start[..], &[done(whole), end.clone()]].concat());
            assert_eq!(found, (String::new(), vec![format!("pay {whole}")], None), "{start:?}");
        }
    }
}

#[test]
fn empty_arguments_of_a_whole_call_are_read() {
    let end = response_completed().to_string();
    let lost_text = r#"{"type":"response.output_text.delta","output_index":1,"del"#.to_owned();
    let lost_piece = LOST_PIECES[0].to_owned();
    let empty = piece("0", r#""{}""#);
    for frames in [
        vec![done("{}")],
        vec![added(), done("{}")],
        vec![added(), done("")],
        vec![added(), empty.clone(), done("{}")],
        vec![added(), empty.clone(), done("")],
        vec![added(), piece("0", r#""{""#), piece("0", r#""}""#), done("{}")],
        vec![lost_text.clone(), added(), done("{}")],
        vec![lost_text, added(), empty.clone(), done("{}")],
        vec![added(), arguments_event("delta", "arguments", json!("{}")).to_string(), done("{}")],
        vec![added(), empty.clone(), done("{}"), lost_piece.clone()],
        vec![lost_piece, added(), empty, done("{}")],
    ] {
        let found = fold_frames(&[&frames[..], std::slice::from_ref(&end)].concat());
        assert_eq!(found, (String::new(), vec!["pay {}".to_owned()], None), "{frames:?}");
    }
}

#[test]
fn unknown_output_beside_other_output_is_a_member() {
    let image = json!({ "type": "output_image", "data": "aGk=" });
    let text = json!({ "type": "output_text", "text": "{\"n\":1}" });
    let message = |content: &[&Value]| json!({ "type": "message", "id": "m", "content": content });
    let part_done =
        json!({ "type": "response.content_part.done", "output_index": 0, "part": image });
    let delta = json!({ "type": "response.output_text.delta", "output_index": 0, "delta": image });
    let other = message_item("n", "{\"n\":1}");
    let item = json!({ "type": "output_image", "result": "aGk=" });
    for events in [
        vec![response_with(&[message(&[&text, &image])])],
        vec![response_with(&[message(&[&image, &text])])],
        vec![response_with(&[message(&[&image]), other.clone()])],
        vec![response_with(&[item, other.clone()])],
        vec![item_done(0, message(&[&text, &image])), response_completed()],
        vec![item_added(0, message(&[&text])), part_done.clone(), response_completed()],
        vec![part_done.clone(), item_done(1, other.clone()), response_completed()],
        vec![response_with(&[
            json!({ "type": "message", "id": "m", "content": image }),
            other.clone(),
        ])],
        vec![delta.clone(), item_done(1, other), response_completed()],
    ] {
        let (_, folded) = fold_events(&events);
        assert_eq!(joined_text(&folded.message.content).trim(), "{\"n\":1}", "{events:?}");
        assert_eq!(folded.message.extra["omittedOutput"], json!(["output_image"]), "{events:?}");
    }
    let call = call_with(json!("{}"));
    let (_, folded) = fold_events(&[response_with(&[message(&[&image]), call])]);
    assert_eq!(folded.message.extra["omittedOutput"], json!(["output_image"]));
    let whole = vec![response_with(&[message(&[&image])])];
    let streamed = vec![item_added(0, message(&[])), part_done.clone(), response_completed()];
    let signed = json!({ "type": "output_image", "data": "aGk=", "status": "in_progress" });
    let repeated = vec![
        item_added(0, message(&[&signed])),
        part_done,
        item_done(0, message(&[&signed])),
        response_with(&[message(&[&image])]),
    ];
    for events in [whole, streamed, repeated, vec![delta, response_completed()]] {
        assert_eq!(blocks(&events).0, [image.to_string()], "alone it is the content");
        assert!(fold_events(&events).1.message.extra.is_empty());
    }
    let twice = image.to_string().repeat(2);
    assert_eq!(blocks(&[response_with(&[message(&[&image, &image])])]).0, [twice]);
}
