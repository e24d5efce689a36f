//! Parser of server-sent events. A frame that is cut off is lost with its stream, and comes again after the reconnect.

use turnwheel_json::exact::ExactJson;
use turnwheel_platform::text_encoding::skip_byte_order_mark;

use crate::members::parse_json;

/// A complete frame: a stored event has an id; `event` is `None` if the frame only confirms one.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct SseFrame {
    pub(crate) id: Option<u64>,
    pub(crate) event: Option<ExactJson>,
}

/// Bytes of an incomplete frame.
#[derive(Debug, Default)]
pub(crate) struct FrameParser {
    buffer: Vec<u8>,
}

impl FrameParser {
    /// Adds bytes of the stream. Returns the frames that are complete.
    pub(crate) fn push(&mut self, bytes: &[u8]) -> Vec<SseFrame> {
        let mut frames = Vec::new();
        for byte in bytes {
            if *byte == b'\n' && self.buffer.ends_with(b"\n") {
                let frame = std::mem::take(&mut self.buffer);
                frames.extend(parse_frame(&String::from_utf8_lossy(&frame)));
            } else if *byte != b'\n' || !self.buffer.is_empty() {
                self.buffer.push(*byte);
            }
        }
        frames
    }
}

fn parse_frame(text: &str) -> Option<SseFrame> {
    let mut frame = SseFrame { id: None, event: None };
    // Only the first frame may have a mark.
    for line in skip_byte_order_mark(text).split('\n') {
        if let Some(id) = line.strip_prefix("id:") {
            frame.id = id.trim().parse().ok();
        } else if let Some(data) = line.strip_prefix("data:") {
            frame.event = parse_json(data.trim_start().as_bytes());
        }
    }
    (frame.id.is_some() || frame.event.is_some()).then_some(frame)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::members::{exact, json_line};

    const STREAM: &str = "retry: 1000\n\nevent: notify\ndata: {\"type\":\"notify\",\"text\":\"é\"}\nid: 7\n\ndata: {\"type\":\"ping\"}\n\nid: 8\n\ndata: {\"type\":\"cut";

    #[test]
    fn frames_are_the_same_for_any_pieces() {
        let expected = [
            SseFrame { id: Some(7), event: Some(exact(&json!({"type": "notify", "text": "é"}))) },
            SseFrame { id: None, event: Some(exact(&json!({"type": "ping"}))) },
            SseFrame { id: Some(8), event: None },
        ];
        for at in 0..STREAM.len() {
            let (first, second) = STREAM.as_bytes().split_at(at);
            let mut parser = FrameParser::default();
            let mut frames = parser.push(first);
            frames.extend(parser.push(second));
            assert_eq!(frames, expected, "cut at {at}");
        }
    }

    #[test]
    fn byte_order_mark_before_the_first_frame_is_skipped() {
        let frames = FrameParser::default().push("\u{feff}id: 7\n\nid: 8\n\n".as_bytes());
        let ids: Vec<_> = frames.iter().map(|frame| frame.id).collect();
        assert_eq!(ids, [Some(7), Some(8)]);
    }

    #[test]
    fn event_keeps_the_text_of_numbers() {
        let event = r#"{"args":{"amount":25122920421210000012345,"rate":1.10}}"#;
        let frames = FrameParser::default().push(format!("data: {event}\nid: 1\n\n").as_bytes());
        assert_eq!(frames[0].event.as_ref().map(json_line).as_deref(), Some(event));
    }
}
