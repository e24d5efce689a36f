//! Fuzz tests of the Functions host's envelopes and of those that the local host writes.

use std::sync::LazyLock;

use http::HeaderMap;

use super::envelope::{EnvelopeContext, message_envelope};
use super::function::Function;
use super::{JsonReader, ScriptRoot};
use turnwheel_http::functions::Invocation;
use turnwheel_platform::clock::Timestamp;
use turnwheel_platform::ids::SeededIds;
use turnwheel_storage::queue::QueueMessage;
use turnwheel_test_support::fuzz::{SECRET, check};

static TURN_FUNCTION: LazyLock<Function> = LazyLock::new(|| {
    let text = ScriptRoot::embedded().functions.remove("turn").unwrap();
    Function::read("turn", "turn", &text).unwrap()
});

fn decode_envelope(input: &[u8]) {
    let error = match Invocation::decode("turn".to_owned(), &HeaderMap::new(), input) {
        Err(error) => error,
        Ok(invocation) => {
            invocation.timer();
            match invocation.message() {
                Err(error) => error,
                Ok((text, _)) => {
                    assert!(text.len() <= input.len());
                    return;
                }
            }
        }
    };
    assert!(!error.to_string().contains(SECRET), "{error}");
}

/// Any message leaves its envelope unchanged, and cannot pass its own id off as the queue's.
fn round_trip_message(input: &[u8]) {
    let text = String::from_utf8_lossy(input).into_owned();
    let message = QueueMessage {
        id: "the-queues".to_owned(),
        pop_receipt: "r".to_owned(),
        dequeue_count: 1,
        text: text.clone(),
        inserted_at: Timestamp(1_000),
        expires_at: Timestamp(2_000),
        next_visible_at: Timestamp(1_500),
    };
    let ids = SeededIds::new(7);
    let context = EnvelopeContext { now: Timestamp(1_500), ids: &ids, json: JsonReader::default() };
    let envelope = message_envelope(&TURN_FUNCTION, &message, context).to_string();
    let invocation = Invocation::decode("turn".to_owned(), &HeaderMap::new(), envelope.as_bytes());
    let (read, meta) = invocation.unwrap().message().unwrap();
    assert_eq!(read, text);
    assert!(meta.message_id.is_none_or(|id| id == "the-queues"));
}

#[test]
fn envelope_decoder_survives_any_input() {
    check("envelope", decode_envelope);
}

#[test]
fn message_survives_envelope_round_trip() {
    check("message_text", round_trip_message);
}
