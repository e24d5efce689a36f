//! Fuzz targets for the bytes of a model's server: a stream, a JSON response or an error.

use std::convert::Infallible;
use std::sync::LazyLock;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue};
use tokio::runtime::{Builder, Runtime};

use super::api_fold::read_json_response;
use super::event::ProviderEvent;
use super::fold::{FoldedResponse, ResponseFold};
use super::names::ToolNames;
use super::provider_error::{ProviderError, classify};
use super::stream::SseReader;
use crate::catalogue::{Catalogue, Tariff};
use crate::responses::body::build_request_body;
use crate::{Listener, ModelRequest, Prices};
use turnwheel_conversation::content::Block;
use turnwheel_conversation::event::AssistantMessageEvent;
use turnwheel_conversation::message::{Message, ToolResultMessage, UserMessage};
use turnwheel_conversation::unknown_members::Extra;
use turnwheel_platform::clock::Timestamp;
use turnwheel_test_support::fuzz::check;

static RUNTIME: LazyLock<Runtime> =
    LazyLock::new(|| Builder::new_current_thread().enable_time().build().unwrap());

pub type Frames = Vec<(Option<String>, String)>;

#[derive(Debug)]
struct NullListener;

impl Listener for NullListener {
    fn on_event(&self, _: AssistantMessageEvent) {}
}

fn new_fold() -> ResponseFold {
    let base = Prices { input: 1.0, output: 10.0, cache_read: 0.1, cache_write: 0.5 };
    ResponseFold::new("gpt-5-mini", Tariff { base, long_context: Some(base) }, ToolNames::default())
}

/// Returns the events of the input, read in chunks of `size` bytes. The flag is false if reading
/// failed before the end.
pub(crate) fn read_frames(input: &[u8], size: usize) -> (Frames, bool) {
    let chunks: Vec<Result<Bytes, Infallible>> =
        input.chunks(size.max(1)).map(|chunk| Ok(Bytes::copy_from_slice(chunk))).collect();
    let mut events = SseReader::new(futures_util::stream::iter(chunks), Duration::from_mins(1));
    let mut frames = Vec::new();
    RUNTIME.block_on(async {
        loop {
            match events.next_event().await {
                Ok(Some(frame)) => frames.push(frame),
                Ok(None) => return (frames, true),
                Err(_) => return (frames, false),
            }
        }
    })
}

/// Asserts that a response can be stored, metered and sent back to the model, and that its size is
/// bounded by the input.
pub(crate) fn assert_valid_response(folded: &FoldedResponse, input: &[u8]) {
    let message = &folded.message;
    assert_eq!(message.is_failed(), folded.error.is_some());
    let text = serde_json::to_string(message).unwrap();
    // An escaped byte takes six bytes, and seven times that in a string within a string.
    assert!(text.len() <= 44 * input.len() + 4_096, "{} of {}", text.len(), input.len());
    assert_eq!(
        serde_json::from_str::<Message>(&with_role(&text)).unwrap(),
        Message::Assistant(message.clone())
    );
    let mut twice = *message.usage;
    twice += *message.usage;
    assert!(twice.input >= message.usage.input && twice.total_tokens >= message.usage.total_tokens);
    if message.is_failed() {
        return;
    }
    let question = Message::User(UserMessage {
        content: "Look".into(),
        timestamp: Timestamp(0),
        extra: Extra::new(),
    });
    let answer = Message::Assistant(message.clone());
    let results: Vec<Message> = message
        .tool_calls()
        .map(|call| {
            Message::ToolResult(ToolResultMessage {
                tool_call_id: call.id.clone(),
                tool_name: call.name.clone(),
                content: vec![Block::text("done")],
                details: None,
                structured_content: None,
                usage: None,
                is_error: false,
                terminate: false,
                rejected: None,
                timestamp: Timestamp(0),
                workspace: std::collections::BTreeMap::new(),
                extra: Extra::new(),
            })
        })
        .collect();
    let record = Catalogue::default().record("gpt-5-mini", "gpt-5-mini");
    let messages: Vec<&Message> = [&question, &answer].into_iter().chain(&results).collect();
    let request = ModelRequest::new(&record, &messages);
    let names = ToolNames::default();
    let violation = build_request_body(&request, &names).find_violation();
    assert_eq!(violation, None, "the service would reject the next request");
}

fn with_role(text: &str) -> String {
    text.replacen('{', "{\"role\":\"assistant\",", 1)
}

fn fuzz_stream(input: &[u8]) {
    let (whole, ended) = read_frames(input, input.len());
    let (cut, cut_ended) = read_frames(input, 1 + input.len() % 61);
    assert_eq!(ended, cut_ended);
    if ended {
        assert_eq!(whole, cut, "chunk sizes do not change the events");
    }
    let size: usize =
        whole.iter().map(|(name, data)| name.as_ref().map_or(0, String::len) + data.len()).sum();
    assert!(size <= input.len(), "{size} of {}", input.len());
    let mut fold = new_fold();
    let mut events_count = 0;
    for (name, data) in &whole {
        events_count += fold.push_frame(name.as_deref(), data).len();
    }
    assert!(events_count <= input.len(), "{events_count} events of {} bytes", input.len());
    assert_valid_response(&fold.finish(), input);
}

fn fuzz_json_response(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    let mut fold = new_fold();
    if let Err(fault) = read_json_response(text, &mut fold, &NullListener) {
        fold.fail(*fault);
    }
    assert_valid_response(&fold.finish(), input);
}

/// The first line is the value of the retry headers, the rest is the body.
fn fuzz_error(input: &[u8]) {
    let text = String::from_utf8_lossy(input);
    let (wait, body) = text.split_once('\n').unwrap_or(("", &text));
    let mut headers = HeaderMap::new();
    for name in ["retry-after", "retry-after-ms", "x-ratelimit-reset", "date"] {
        if let Ok(value) = HeaderValue::from_str(wait) {
            headers.insert(name, value);
        }
    }
    for status in [400, 429, 500] {
        let fault = ProviderError::from_http(status, body);
        assert!(fault.text.len() < 20_000, "{} bytes", fault.text.len());
        if let crate::ModelFailure::Retryable { after: Some(after) } =
            classify(&fault, &headers, Timestamp(1))
        {
            assert!(Timestamp(1).plus(after) >= Timestamp(1));
        }
    }
    if let crate::responses::event::ParsedFrame::Event(event) = ProviderEvent::parse(None, body)
        && let Some(fault) = ProviderError::from_error_event(event.body())
    {
        assert!(fault.text.len() < 20_000, "{} bytes", fault.text.len());
    }
}

#[test]
fn fuzzed_stream_gives_valid_response() {
    check("model_stream", fuzz_stream);
}

#[test]
fn fuzzed_json_gives_valid_response() {
    check("model_answer", fuzz_json_response);
}

#[test]
fn fuzzed_error_is_bounded() {
    check("model_fault", fuzz_error);
}
