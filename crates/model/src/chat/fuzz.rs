//! Fuzz targets for Chat Completions: a stream, or a response without a stream.

use super::fold::ChatFold;
use crate::catalogue::Tariff;
use crate::responses::fuzz::{assert_valid_response, read_frames};
use crate::responses::names::ToolNames;
use turnwheel_test_support::fuzz::check;

fn new_fold() -> ChatFold {
    ChatFold::new("deepseek-v4-pro", Tariff::default(), ToolNames::default())
}

/// Any split of the bytes gives the same events and the same message.
fn fuzz_stream(input: &[u8]) {
    let folds = [input.len(), 1 + input.len() % 61].map(|size| {
        let (frames, ended) = read_frames(input, size);
        let mut fold = new_fold();
        let mut events = Vec::new();
        for (name, data) in &frames {
            events.extend(fold.push_frame(name.as_deref(), data));
        }
        // Each block has a start and an end.
        assert!(events.len() <= 3 * input.len(), "{} events", events.len());
        (ended, events, fold.finish())
    });
    let [(ended, events, folded), (_, split_events, split)] = folds;
    assert_valid_response(&folded, input);
    if ended {
        assert_eq!((events, &folded.message), (split_events, &split.message));
    }
}

fn fuzz_json_response(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    let mut fold = new_fold();
    fold.push_whole(&[text]);
    assert_valid_response(&fold.finish(), input);
}

#[test]
fn fuzzed_chat_stream_gives_valid_response() {
    check("chat_stream", fuzz_stream);
}

#[test]
fn fuzzed_chat_json_gives_valid_response() {
    check("chat_answer", fuzz_json_response);
}
