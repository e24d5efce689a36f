//! Numbers, Booleans, objects and lists in the place of texts and arguments.

use super::malformed_chunk_tests::fold_frames;
use super::tests::{call, calls_of, finish, new_fold, own};
use super::*;
use turnwheel_conversation::content::{Block, joined_text};

/// A chunk whose choice has this member, as written.
fn chunk(member: &str, value: &str) -> String {
    format!(r#"{{"choices":[{{"index":0,"{member}":{value}}}]}}"#)
}

/// A last chunk with the whole message.
fn last_chunk(message: &str) -> String {
    format!(r#"{{"choices":[{{"index":0,"message":{message},"finish_reason":"stop"}}]}}"#)
}

fn delta_of(members: &str) -> String {
    chunk("delta", &format!("{{{members}}}"))
}

/// The arguments of the only call, in each form of a call with these members of its function.
fn arguments_of_each_form(members: &str) -> Vec<String> {
    let function = format!(r#"{{"name":"close_orders",{members}}}"#);
    let call = |member: &str| format!(r#"{{"tool_calls":[{{"id":"a","{member}":{function}}}]}}"#);
    let forms = [
        chunk("delta", &call("function")),
        chunk("message", &call("function")),
        chunk("delta", &call("custom")),
        chunk("delta", &format!(r#"{{"function_call":{function}}}"#)),
    ];
    let arguments = forms.map(|form| {
        let folded = fold_frames(&[form.clone(), finish("tool_calls").to_string()]);
        let calls = calls_of(&folded);
        let [(_, name, arguments)] = &calls[..] else { panic!("{form}") };
        assert_eq!(
            (name.as_str(), folded.message.stop_reason),
            ("close_orders", StopReason::ToolUse)
        );
        arguments.clone()
    });
    arguments.to_vec()
}

#[test]
fn arguments_of_another_type_are_kept_for_validation() {
    for value in [
        r#"[{"id":7}]"#,
        r#"[{"amount": 12345678901234567890.50}]"#,
        "[[]]",
        "5",
        "12.50",
        "true",
        "false",
    ] {
        let found = arguments_of_each_form(&format!(r#""arguments":{value}"#));
        assert!(found.iter().all(|arguments| arguments == value), "{value}: {found:?}");
    }
    for (members, expected) in [
        (r#""arguments":"null""#, "null"),
        (r#""arguments":"5""#, "5"),
        (r#""arguments":"[{\"id\":7}]""#, r#"[{"id":7}]"#),
        (r#""arguments":"soon""#, r#""soon""#),
        (r#""input":"soon""#, r#""soon""#),
        (r#""arguments":{"id":7}"#, r#"{"id":7}"#),
        (r#""arguments":null,"input":"{\"id\":7}""#, r#"{"id":7}"#),
        (r#""arguments":"","input":{"id":7}"#, r#"{"id":7}"#),
        (r#""arguments":[],"input":[{"id":7}]"#, r#"[{"id":7}]"#),
        (r#""arguments":{"id":7},"input":{"id":8}"#, r#"{"id":7}"#),
        (r#""arguments":[]"#, "{}"),
        (r#""arguments":[ ]"#, "{}"),
        ("\"arguments\":[\n]", "{}"),
        (r#""arguments":null"#, "{}"),
        (r#""arguments":"""#, "{}"),
        (r#""arguments":null,"input":null"#, "{}"),
        (r#""description":"none""#, "{}"),
    ] {
        let found = arguments_of_each_form(members);
        assert!(found.iter().all(|arguments| arguments == expected), "{members}: {found:?}");
    }
    let call = |arguments: &str| {
        let function = format!(r#"{{"name":"pay","arguments":{arguments}}}"#);
        format!(r#"{{"tool_calls":[{{"id":"a","function":{function}}}]}}"#)
    };
    for (delta, whole, expected) in
        [("false", "{}", "{}"), ("false", "5", "5"), (r#""{\"n\"""#, "{}", r#""{\"n\"""#)]
    {
        let frames = [chunk("delta", &call(delta)), last_chunk(&call(whole))];
        assert_eq!(calls_of(&fold_frames(&frames)), [own("a", "pay", expected)], "{delta} {whole}");
    }
}

#[test]
fn empty_function_hides_no_custom_call() {
    let custom = r#"{"id":"a","function":{},"custom":{"name":"pay","input":"{}"}}"#;
    let frame = delta_of(&format!(r#""tool_calls":[{custom}]"#));
    let folded = fold_frames(&[frame, finish("tool_calls").to_string()]);
    assert_eq!(calls_of(&folded), [own("a", "pay", "{}")]);
}

#[test]
fn pieces_of_arguments_of_another_type_are_joined_as_written() {
    for (pieces, expected) in [
        (vec![r#""{\"n\":""#, "12.50", r#""}""#], r#"{"n":12.50}"#),
        (vec![r#""{\"ok\":""#, "true", r#""}""#], r#"{"ok":true}"#),
        (
            vec![r#""{\"o\":""#, r#"{"n":12345678901234567890.50}"#, r#""}""#],
            r#"{"o":{"n":12345678901234567890.50}}"#,
        ),
        (vec!["[]", r#""{\"id\":7}""#], r#"{"id":7}"#),
        (vec!["false", r#""{\"id\"""#, r#"":7}""#], r#"{"id":7}"#),
        (vec!["false", "5"], r#""false5""#),
        (vec!["null", r#""{\"id\":7}""#, "null"], r#"{"id":7}"#),
        // Validation refuses all that is no object.
        (vec![r#"{"id":7}"#, r#"{"id":8}"#], r#""{\"id\":7}{\"id\":8}""#),
        (vec!["5", "7"], "57"),
        (vec!["5", r#"{"id":7}"#], r#""5{\"id\":7}""#),
        (vec![r#""{\"list\":""#, "[]", r#""}""#], r#""{\"list\":}""#),
        (vec![r#""{\"n\":""#, "null", r#""}""#], r#""{\"n\":}""#),
    ] {
        let piece = |piece: &&str| {
            let function = format!(r#"{{"arguments":{piece}}}"#);
            delta_of(&format!(r#""tool_calls":[{{"index":0,"function":{function}}}]"#))
        };
        let mut frames = vec![call(0, "a", "pay", "").to_string()];
        frames.extend(pieces.iter().map(piece));
        frames.push(finish("tool_calls").to_string());
        assert_eq!(calls_of(&fold_frames(&frames)), [own("a", "pay", expected)], "{pieces:?}");
    }
}

#[test]
fn content_of_another_type_becomes_its_text() {
    let order = r#"{"total": 12.50, "lines": [12345678901234567890.10]}"#;
    for (content, expected) in [
        ("42", "42"),
        ("12.50", "12.50"),
        ("-12345678901234567890.10", "-12345678901234567890.10"),
        ("true", "true"),
        (r#"{"total":"12.50"}"#, r#"{"total":"12.50"}"#),
        (order, order),
        (r#"{"type":"invoice","total":"12.50"}"#, r#"{"type":"invoice","total":"12.50"}"#),
        ("[12, 5]", "[12, 5]"),
        (r#"[{"total":1},{"total":2}]"#, r#"[{"total":1},{"total":2}]"#),
        (r#"["one",3," two"]"#, "one3 two"),
        (r#"[{"type":"text","text":"one"},{"total":1.50},null,{},false]"#, r#"one{"total":1.50}"#),
        (r#"[{"type":"text","text":42}]"#, "42"),
        (r#"[{"type":"invoice","n":1},{"total":2}]"#, r#"{"type":"invoice","n":1}{"total":2}"#),
        (
            r#"[{"text":"a"},{"type":"output_text","value":"b"}]"#,
            r#"a{"type":"output_text","value":"b"}"#,
        ),
        (r#"{"type":"text","text":{"value":"hi","annotations":[]}}"#, "hi"),
        (r#"[{"type":"refusal","refusal":"No."}]"#, "No."),
        (r#"[{"type":"output_text","text":["a","b"]}]"#, "ab"),
    ] {
        let message = format!(r#"{{"content":{content}}}"#);
        let whole = last_chunk(&message);
        let mut fold = new_fold();
        assert!(fold.push_whole(&[&whole]).0, "{content}");
        let end = finish("stop").to_string();
        let last = chunk("message", &message);
        let streamed = [vec![chunk("delta", &message), end.clone()], vec![last, end.clone()]];
        let texts = streamed.map(|frames| fold_frames(&frames)).into_iter().chain([fold.finish()]);
        for folded in texts {
            assert_eq!(joined_text(&folded.message.content), expected, "{content}");
            assert_eq!((folded.error, folded.message.stop_reason), (None, StopReason::Stop));
        }
        let bare = fold_frames(&[chunk("text", content), end]);
        assert_eq!(joined_text(&bare.message.content), expected, "{content}");
    }
    let text = |content: &str| delta_of(&format!(r#""content":{content}"#));
    let pieces =
        [r#""It costs ""#, "42", r#"" or ""#, "12.50", r#""; is that ""#, "true", r#""?""#];
    let mut frames = pieces.map(text).to_vec();
    frames.push(finish("stop").to_string());
    let folded = fold_frames(&frames);
    assert_eq!(joined_text(&folded.message.content), "It costs 42 or 12.50; is that true?");
    assert_eq!(folded.message.content.len(), 1);
}

#[test]
fn placeholders_between_texts_are_no_text() {
    let end = finish("stop").to_string();
    let text = |content: &str| delta_of(&format!(r#""content":{content}"#));
    for placeholder in [
        "{}",
        "false",
        "null",
        "[]",
        r#""""#,
        "[{}]",
        "[null,false]",
        r#"{"type":"text"}"#,
        r#"{"type":"text","text":null}"#,
        r#"{"text":""}"#,
        r#"{"type":"text","text":{"value":""}}"#,
        r#"{"annotations":[]}"#,
        "[{ }]",
        r#"{"type":"x","a":[ ]}"#,
        r#"[{"type":"reference","reference_ids":[3]}]"#,
        r#"{"type":"tool_use","id":"a","name":"pay","input":{"id":7}}"#,
        r#"[{"type":"tool_reference","tool":"web_search","title":"x"}]"#,
        r#"{"type":"redacted_thinking","data":"x"}"#,
    ] {
        let others = format!(
            r#""content":"id.","refusal":{placeholder},"reasoning":{placeholder},"reasoning_content":{placeholder}"#
        );
        let frames = [text(r#""Pa""#), text(placeholder), delta_of(&others), end.clone()];
        let folded = fold_frames(&frames);
        assert_eq!(joined_text(&folded.message.content), "Paid.", "{placeholder}");
        assert_eq!(folded.message.content.len(), 1, "{placeholder}");
    }
}

#[test]
fn deep_value_in_place_of_a_text_is_its_json() {
    let nested = |open: &str, close: &str, levels: usize| {
        format!("{}1{}", open.repeat(levels), close.repeat(levels))
    };
    let object = nested(r#"{"text":"#, "}", 50_000);
    let list = |levels| nested(r#"["a","#, "]", levels);
    let rest = format!("a{}", list(49_999));
    for (deep, expected) in [(object.clone(), object), (list(50_000), rest)] {
        let content = delta_of(&format!(r#""content":{deep}"#));
        let folded = fold_frames(&[content, finish("stop").to_string()]);
        assert!(joined_text(&folded.message.content) == expected);
    }
}

#[test]
fn large_part_of_an_unknown_type_is_named() {
    let image =
        format!(r#"{{"type":"image_url","image_url":{{"url":"data:{}"}}}}"#, "A".repeat(5_000));
    let text = r#"{"type":"text","text":"Here: "}"#;
    let content = |parts: &str| delta_of(&format!(r#""content":[{parts}]"#));
    let end = finish("stop").to_string();
    let folded = fold_frames(&[content(&image), end.clone()]);
    let note = "(output of the type `image_url` omitted: this runtime cannot show it)";
    assert_eq!(joined_text(&folded.message.content), note);
    assert!(folded.message.extra.is_empty());
    let folded = fold_frames(&[content(&image), content(&image), end.clone()]);
    assert_eq!(joined_text(&folded.message.content), note.repeat(2));
    let whole = last_chunk(&format!(r#"{{"content":[{image},{text}]}}"#));
    let folded = fold_frames(&[content(&image), end.clone(), whole]);
    assert_eq!(joined_text(&folded.message.content), format!("{note}Here: "));
    // A reader of the text would take the note for content.
    for frames in [
        vec![content(&format!("{text},{image}")), end.clone()],
        vec![content(&image), content(text), end.clone()],
        vec![delta_of(&format!(r#""content":{image}"#)), content(text), end.clone()],
        vec![content(text), content(&image), content(&image), end],
    ] {
        let folded = fold_frames(&frames);
        assert_eq!(joined_text(&folded.message.content), "Here: ");
        assert_eq!(folded.message.extra["omittedOutput"], serde_json::json!(["image_url"]));
    }
}

#[test]
fn reasoning_and_refusal_of_another_type_are_read() {
    for (value, expected) in [
        ("42", "42"),
        (r#"{"text":"Hm"}"#, "Hm"),
        (r#"[{"type":"summary_text","text":"H"},"m"]"#, "Hm"),
        (r#"{"plan":[1.50]}"#, r#"{"plan":[1.50]}"#),
    ] {
        let members = format!(r#""refusal":{value},"reasoning":{value}"#);
        let folded = fold_frames(&[delta_of(&members), finish("stop").to_string()]);
        let [Block::Thinking(thinking), Block::Text(text)] = &folded.message.content[..] else {
            panic!("{value}")
        };
        assert_eq!((thinking.thinking.as_str(), text.text.as_str()), (expected, expected));
    }
}

#[test]
fn usage_is_that_of_the_last_report_with_counts() {
    let report = |usage: &str| format!(r#"{{"choices":[],"usage":{usage}}}"#);
    let in_choice = |usage: &str| {
        format!(r#"{{"choices":[{{"index":0,"delta":{{"content":"a"}},"usage":{usage}}}]}}"#)
    };
    for last in
        ["{}", "null", r#"{"input_tokens":0,"output_tokens":0}"#, r#"{"output_tokens":7.0}"#]
    {
        let frames = [
            in_choice(r#"{"input_tokens":10,"output_tokens":1}"#),
            in_choice(r#"{"input_tokens":10,"output_tokens":7}"#),
            finish("stop").to_string(),
            report(last),
        ];
        let folded = fold_frames(&frames);
        let usage = *folded.message.usage;
        assert_eq!((usage.input, usage.output, usage.total_tokens), (10, 7, 17), "{last}");
    }
}
