//! Protocol text and its blocks, whole, broken and in any deltas.

use proptest::prelude::*;

use super::*;
use crate::protocol::calls::CALLS_MAX;

/// Parses the deltas. Returns the blocks, the live events and the details.
fn parse(deltas: &[&str]) -> (ParsedResponse, Vec<AssistantMessageEvent>) {
    let mut parser = ProtocolParser::new("call");
    let mut events = Vec::new();
    for delta in deltas {
        parser.push(delta, &mut events);
    }
    let parsed = parser.finish(true, &mut events);
    (parsed, events)
}

/// The blocks in short notation.
fn blocks(parsed: &ParsedResponse) -> Vec<String> {
    let line = |block: &Block| match block {
        Block::Text(text) => format!("text {}", text.text),
        Block::Thinking(thinking) => format!("think {}", thinking.thinking),
        Block::ToolCall(call) => format!("{} {}{}", call.id, call.name, call.arguments.text()),
        Block::Image(_) | Block::File(_) | Block::Other(_) => "other".to_owned(),
    };
    parsed.content.iter().map(line).collect()
}

fn blocks_of(text: &str) -> Vec<String> {
    blocks(&parse(&[text]).0)
}

/// The blocks that the live events describe.
fn blocks_of_events(events: &[AssistantMessageEvent]) -> Vec<String> {
    let mut blocks: Vec<String> = Vec::new();
    let mut delta_texts: Vec<String> = Vec::new();
    for event in events {
        match event {
            AssistantMessageEvent::TextStart { content_index }
            | AssistantMessageEvent::ThinkingStart { content_index }
            | AssistantMessageEvent::ToolcallStart { content_index, .. } => {
                assert_eq!(*content_index, blocks.len(), "indexes are consecutive");
                blocks.push(String::new());
                delta_texts.push(String::new());
            }
            AssistantMessageEvent::TextDelta { content_index, delta }
            | AssistantMessageEvent::ThinkingDelta { content_index, delta }
            | AssistantMessageEvent::ToolcallDelta { content_index, delta } => {
                assert!(!delta.is_empty() && blocks[*content_index].is_empty(), "block is open");
                delta_texts[*content_index].push_str(delta);
            }
            AssistantMessageEvent::TextEnd { content_index, content } => {
                assert_eq!(delta_texts[*content_index].trim_end(), content);
                blocks[*content_index] = format!("text {content}");
            }
            AssistantMessageEvent::ThinkingEnd { content_index, content } => {
                assert_eq!(delta_texts[*content_index].trim_end(), content);
                blocks[*content_index] = format!("think {content}");
            }
            AssistantMessageEvent::ToolcallEnd { content_index, tool_call } => {
                let call = &tool_call.call;
                assert_eq!(delta_texts[*content_index], call.arguments.text());
                blocks[*content_index] =
                    format!("{} {}{}", call.id, call.name, call.arguments.text());
            }
        }
    }
    blocks
}

#[test]
fn text_thinking_and_calls_become_blocks_in_order() {
    let text = "<think>look first</think>Let me check.\n<execute>\n[{\"name\":\"echo\",\"args\":{\"value\":\"a\"}}, {\"name\":\"nope\",\"args\":{}}]\n</execute>";
    assert_eq!(
        blocks_of(text),
        ["think look first", "text Let me check.", "call_1 echo{\"value\":\"a\"}", "call_2 nope{}"]
    );
    assert_eq!(
        blocks_of("<think>first</think><think>second</think>"),
        ["think first", "think second"]
    );
    assert_eq!(blocks_of("plain answer"), ["text plain answer"]);
    assert_eq!(blocks_of(" \n "), [""; 0]);
}

/// G03: the origin ends the block at the tag within the string.
#[test]
fn closing_tag_within_a_string_is_content() {
    let text = r#"<execute>[{"name":"write","args":{"content":"a </execute> \" </execute> b"}}]</execute>"#;
    assert_eq!(blocks_of(text), [r#"call_1 write{"content":"a </execute> \" </execute> b"}"#]);
}

/// G06: `<` and each longer prefix of a tag is held, and nothing else.
#[test]
fn parser_holds_back_only_a_possible_tag() {
    let mut parser = ProtocolParser::new("call");
    let mut deltas = |text: &str| {
        let mut events = Vec::new();
        parser.push(text, &mut events);
        let deltas = events.into_iter().filter_map(|event| match event {
            AssistantMessageEvent::TextDelta { delta, .. }
            | AssistantMessageEvent::ThinkingDelta { delta, .. } => Some(delta),
            AssistantMessageEvent::TextStart { .. }
            | AssistantMessageEvent::TextEnd { .. }
            | AssistantMessageEvent::ThinkingStart { .. }
            | AssistantMessageEvent::ThinkingEnd { .. }
            | AssistantMessageEvent::ToolcallStart { .. }
            | AssistantMessageEvent::ToolcallDelta { .. }
            | AssistantMessageEvent::ToolcallEnd { .. } => None,
        });
        deltas.collect::<Vec<_>>()
    };
    assert_eq!(deltas("Hello "), ["Hello "]);
    assert_eq!(deltas("a <"), ["a "]);
    assert_eq!(deltas(" b <exe"), ["< b "]);
    assert_eq!(deltas("c <Think>"), ["<exec <Think>"]);
    assert_eq!(deltas(" <think"), [" "]);
    assert_eq!(deltas(">x</thin"), ["x"]);
    assert_eq!(deltas("g y"), ["</thing y"]);
}

#[test]
fn malformed_block_becomes_part_of_the_text() {
    let malformed = "Error: Malformed tool call syntax. Expected JSON array in <execute> block";
    let (parsed, events) = parse(&[
        "Let me.\n<execute>{}</execute> then ",
        "<execute>[{\"name\":\"a\",\"args\":{}}]</execute>more",
    ]);
    assert_eq!(blocks(&parsed), [format!("text Let me.\n{malformed} then more")]);
    assert_eq!(blocks_of_events(&events), blocks(&parsed));
    assert!(parsed.details.has_malformed_calls && !parsed.details.has_end);
    assert_eq!(parsed.details.dropped_characters, 24, "the second block");
}

#[test]
fn unclosed_blocks_have_an_answer() {
    let start = "text Error: Malformed tool call syntax. ";
    let cases = [
        ("<execute>[{\"name\":\"a\",\"args\":{}}]", "The closing </execute> is missing"),
        ("<execute>", "The closing </execute> is missing"),
        ("<execute>[]</execut", "The closing </execute> is missing"),
        (
            "<execute>[{\"name\":\"a}]</execute>ok",
            "Invalid JSON in <execute> block: Unterminated string starting at: line 1 column 10 (char 9)",
        ),
    ];
    for (text, reason) in cases {
        assert_eq!(blocks_of(text), [format!("{start}{reason}")], "{text}");
    }
    let (parsed, _) = parse(&["<think>not closed </thin"]);
    assert_eq!(blocks(&parsed), ["think not closed </thin"]);
    assert_eq!(parsed.details.unclosed_tag.as_deref(), Some("think"));
    assert_eq!(blocks_of("a <results>[1]"), ["text a"]);
    let mut parser = ProtocolParser::new("call");
    let mut events = Vec::new();
    parser.push("text <execute>[", &mut events);
    assert_eq!(blocks(&parser.finish(false, &mut events)), ["text text"], "of a failed response");
}

#[test]
fn text_after_calls_and_written_results_are_dropped() {
    let call = "<execute>[{\"name\":\"a\",\"args\":{}}]</execute>";
    let (parsed, _) = parse(&[&format!("{call}\n<results>[]</results> ok {call}")]);
    assert_eq!(blocks(&parsed), ["call_1 a{}"]);
    assert_eq!(parsed.details.dropped_characters, 66);
    assert_eq!(blocks_of("a <results>[{}]</results> b"), ["text a", "text b"]);
    let (parsed, _) = parse(&["done<end>", call]);
    assert_eq!(blocks(&parsed), ["text done"]);
    assert!(parsed.details.has_end);
}

#[test]
fn tags_are_case_sensitive_and_do_not_nest() {
    assert_eq!(blocks_of("<THINK>a</THINK>"), ["text <THINK>a</THINK>"]);
    assert_eq!(
        blocks_of("<think>a <execute>[]</execute> <think> b</think> c</think>"),
        ["think a <execute>[]</execute> <think> b", "text c</think>"]
    );
    assert_eq!(blocks_of("<<think>>a</think>"), ["text <", "think >a"]);
    assert_eq!(blocks_of("1 < 2 </execute>"), ["text 1 < 2 </execute>"]);
}

#[test]
fn large_and_endless_input_is_bounded() {
    let many =
        format!("<execute>[{}]</execute>", vec![r#"{"name":"a","args":{}}"#; 1_000_000].join(","));
    let too_large =
        "text Error: Malformed tool call syntax. The <execute> block is larger than 1048576 bytes";
    assert_eq!(blocks_of(&many), [too_large]);
    let some = format!(
        "<execute>[{}]</execute>",
        vec![r#"{"name":"a","args":{}}"#; CALLS_MAX + 1].join(",")
    );
    assert_eq!(
        blocks_of(&some),
        [
            "text Error: Malformed tool call syntax. The <execute> block has 65 calls; the maximum is 64"
        ]
    );
    let tags = "<think>".repeat(300_000);
    assert_eq!(blocks_of(&tags)[0].len(), "think ".len() + 299_999 * 7);
    let mut parser = ProtocolParser::new("call");
    let mut events = Vec::new();
    for _ in 0..300 {
        parser.push("<execute>[[[[\"<<<", &mut events);
        parser.push(&"<".repeat(10_000), &mut events);
        assert!(parser.held.len() < 10);
    }
    assert_eq!(blocks(&parser.finish(true, &mut events)), [too_large]);
}

/// Pieces of protocol text, whole and broken.
fn protocol_text() -> impl Strategy<Value = String> {
    const PIECES: &[&str] = &[
        "<think>",
        "</think>",
        "<execute>",
        "</execute>",
        "<results>",
        "</results>",
        "<end>",
        "<",
        ">",
        "<e",
        "text",
        " ",
        "\n",
        "[",
        "]",
        "{",
        "}",
        "\"",
        "\\",
        "ü😀",
        r#"[{"name":"a","args":{"x":"</execute>"}}]"#,
        r#"<execute>[{"name":"a","args":{}}]</execute>"#,
        "<execute>[1]</execute>",
    ];
    proptest::collection::vec(proptest::sample::select(PIECES), 0..24)
        .prop_map(|pieces| pieces.concat())
}

proptest! {
    #[test]
    fn blocks_do_not_depend_on_the_deltas(text in protocol_text(), seed in any::<u64>()) {
        let (whole, events) = parse(&[&text]);
        prop_assert_eq!(blocks_of_events(&events), blocks(&whole));
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut deltas = Vec::new();
        let mut rest = text.as_str();
        while !rest.is_empty() {
            let (delta, after) = rest.split_at(rest.ceil_char_boundary(rng.usize(0..=rest.len().min(12))));
            deltas.push(delta);
            rest = after;
        }
        let (split, events) = parse(&deltas);
        prop_assert_eq!(&split, &whole);
        prop_assert_eq!(blocks_of_events(&events), blocks(&whole));
    }
}
