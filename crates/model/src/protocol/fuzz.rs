//! Fuzz target for the protocol text of a model.

use super::messages::encode_response;
use super::parser::{ParsedResponse, ProtocolParser};
use turnwheel_conversation::content::Block;
use turnwheel_conversation::event::AssistantMessageEvent;
use turnwheel_conversation::message::{AssistantMessage, StopReason};
use turnwheel_test_support::fuzz::check;

fn parse(text: &str, size: usize) -> (ParsedResponse, Vec<AssistantMessageEvent>) {
    let (mut parser, mut events) = (ProtocolParser::new("call"), Vec::new());
    let mut rest = text;
    while !rest.is_empty() {
        let (delta, after) = rest.split_at(rest.ceil_char_boundary(size.min(rest.len())));
        parser.push(delta, &mut events);
        rest = after;
    }
    (parser.finish(true, &mut events), events)
}

/// Any deltas give the same blocks. Blocks are not empty and bounded by the text. Calls round-trip
/// through the text that the model receives.
fn check_protocol_text(input: &[u8]) {
    let text = String::from_utf8_lossy(input);
    let (parsed, events) = parse(&text, usize::MAX);
    for size in [1, 3, 16] {
        assert_eq!(parse(&text, size).0, parsed, "deltas of {size} bytes");
    }
    let message = AssistantMessage::new_synthetic("a", parsed.content, StopReason::Stop);
    let sent = encode_response(&message);
    // An escaped character takes six bytes.
    assert!(sent.len() <= 6 * text.len() + 1_024, "{} of {}", sent.len(), text.len());
    assert!(events.len() <= 4 * text.len() + 8);
    let calls: Vec<_> = message.tool_calls().cloned().collect();
    if !calls.is_empty() {
        let is_call = |block: &&Block| matches!(block, Block::ToolCall(_));
        let only_calls = message.content.iter().filter(is_call).cloned().collect();
        let only_calls = AssistantMessage::new_synthetic("a", only_calls, StopReason::Stop);
        let again = parse(&encode_response(&only_calls), 7).0;
        let again: Vec<_> = again.content.iter().filter(is_call).cloned().collect();
        let calls: Vec<_> = calls.into_iter().map(Block::ToolCall).collect();
        assert_eq!(again, calls);
    }
}

#[test]
fn protocol_text_becomes_the_same_blocks_in_any_deltas() {
    check("protocol_text", check_protocol_text);
}
