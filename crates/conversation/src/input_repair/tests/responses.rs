//! Refused texts of responses and summaries: notes replace them, and the conversation continues.

use super::*;

const FILTERED: Refusal<'_> = Refusal {
    code: "content_filter",
    param: "prompt",
    text: "The response was filtered due to the prompt triggering the content management policy.",
};

/// A response that the content filter cut.
fn cut_response(words: &str) -> Value {
    let mut cut = response(json!([text(words)]));
    cut["message"]["stopReason"] = json!("length");
    cut["message"]["errorMessage"] =
        json!("The content filter of the service cut off this response.");
    cut
}

/// Records the repair of one refusal. True: the prompt may make one more call.
fn repair_prompt(bodies: &mut Vec<Value>, refusal: Refusal<'_>) -> bool {
    let found = find_in_request(&path(bodies.clone()), true, refusal).unwrap();
    bodies.push(repair(&found.repair));
    found.is_repeatable
}

#[test]
fn refused_response_is_replaced_after_lost_input() {
    let call = json!({"type": "toolCall", "id": "c", "name": "t", "arguments": {}});
    let mut bodies = vec![
        user(json!("q")),
        response(json!([signed(), text("bad"), call])),
        result(json!([text("r")])),
        response(json!([signed(), text("bad")])),
        user(json!("one")),
    ];
    assert!(!repair_prompt(&mut bodies, FILTERED), "nothing is left to respond to");
    bodies.push(user(json!("two")));
    assert!(repair_prompt(&mut bodies, FILTERED), "the prompt goes on without the response");
    let input = input_of(&path(bodies));
    let expected = [
        "q",
        "signed true",
        "bad",
        "other",
        "r",
        "signed false",
        RESPONSE_NOTE,
        MESSAGE_NOTE,
        "two",
    ];
    assert_eq!(input, expected, "older responses were accepted, and results stay");
}

#[test]
fn response_that_filter_cut_precedes_own_input() {
    let mut bodies = vec![user(json!("q")), cut_response("bad"), user(json!("one"))];
    assert!(repair_prompt(&mut bodies, FILTERED));
    assert_eq!(input_of(&path(bodies.clone())), ["q", RESPONSE_NOTE, "one"]);
    assert!(!repair_prompt(&mut bodies, FILTERED), "the own input is next");
}

#[test]
fn each_refusal_of_a_conversation_ends() {
    let mut bodies = vec![
        user(json!("q")),
        response(json!([text("a")])),
        user(json!("one")),
        user(json!("two")),
    ];
    for number in 0..20 {
        let is_repeated = repair_prompt(&mut bodies, FILTERED);
        if is_repeated {
            assert!(!repair_prompt(&mut bodies, FILTERED), "one more call for each prompt");
        }
        bodies.push(user(json!(format!("next {number}"))));
        let input = input_of(&path(bodies.clone()));
        let kept = input.iter().filter(|text| text.starts_with("next")).count();
        assert_eq!(kept, 1, "each prompt that failed loses its own input: {input:?}");
    }
}

#[test]
fn path_before_newest_input_names_its_message() {
    let bodies = vec![
        user(json!("q")),
        response(json!([signed(), text("a")])),
        result(json!([text("r")])),
        response(json!([text("b")])),
        user(json!("next")),
    ];
    let path = path(bodies);
    for (param, part, seq) in [
        ("messages[1].content", RefusedPart::Messages, 1),
        ("messages[2].content", RefusedPart::Responses, 2),
        ("messages[4].content", RefusedPart::Responses, 4),
        ("input[3].content[0].text", RefusedPart::Responses, 2),
        ("input[4].output", RefusedPart::ToolResults, 3),
    ] {
        let refusal = Refusal { code: "", param, text: "Invalid value" };
        let found = find_in_request(&path, true, refusal).unwrap();
        let InputRepair { part: found_part, from_seq, to_seq, .. } = found.repair;
        assert_eq!((found_part, from_seq, to_seq), (part, seq, seq), "{param}");
        assert!(found.is_repeatable);
    }
    let own = Refusal { code: "", param: "messages[5].content", text: "Invalid value" };
    let found = find_in_request(&path, true, own).unwrap();
    assert_eq!((found.repair.part, found.is_repeatable), (RefusedPart::Messages, false));
}

#[test]
fn refused_summary_is_replaced() {
    let kept = EntryId::from_seq("0a1b2c3d", 2);
    let mut bodies = vec![
        user(json!("q")),
        response(json!([text("a")])),
        json!({"type": "compaction", "summary": "bad", "firstKeptEntryId": kept, "tokensBefore": 9}),
        user(json!("one")),
    ];
    assert!(!repair_prompt(&mut bodies, FILTERED));
    bodies.push(user(json!("two")));
    assert!(repair_prompt(&mut bodies, FILTERED));
    let input = input_of(&path(bodies));
    assert_eq!(input, [SUMMARY_NOTE, RESPONSE_NOTE, MESSAGE_NOTE, "two"]);
}

#[test]
fn parts_before_a_compaction_are_not_found() {
    let kept = EntryId::from_seq("0a1b2c3d", 3);
    let bodies = vec![
        user(json!([image()])),
        response(json!([text("a")])),
        user(json!("kept")),
        json!({"type": "compaction", "summary": "s", "firstKeptEntryId": kept, "tokensBefore": 9}),
        user(json!("one")),
    ];
    assert_eq!(find(&path(bodies), "invalid_image", "", ""), None, "the request has no image");
}
