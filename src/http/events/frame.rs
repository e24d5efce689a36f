//! Frames of server-sent events.

use serde_json::Value;

use crate::queries::event_stream::StreamItem;
use crate::queries::protocol_events::ProtocolEvents;

/// The first frame: sets the reconnection delay.
pub(super) const RETRY: &str = "retry: 1000\n\n";
/// A comment that keeps the connection open. Clients ignore it.
pub(super) const COMMENT: &str = ": still here\n\n";

/// The form of the events.
#[derive(Debug)]
pub(super) enum FrameFormat {
    Own,
    /// The streaming text protocol.
    Protocol(ProtocolEvents),
}

impl FrameFormat {
    /// The frames of an item. The frame of a confirmation has only an id, which advances the client's
    /// event number.
    pub(super) fn render(&mut self, item: &StreamItem) -> String {
        let event = match item {
            StreamItem::Event(event) => event,
            StreamItem::Confirmed(id) => return id_frame(*id),
        };
        match self {
            Self::Own => event_frame(event.number, event.kind().name(), &event.to_json()),
            Self::Protocol(protocol) => protocol_frames(event.number, &protocol.convert(event)),
        }
    }
}

/// The frames of the protocol events of one event. The last one has its id; without any, only the id
/// is sent.
fn protocol_frames(id: Option<u64>, events: &[Value]) -> String {
    let Some(last) = events.len().checked_sub(1) else {
        return id.map(id_frame).unwrap_or_default();
    };
    let frames = events.iter().enumerate().map(|(index, event)| {
        let name = event["type"].as_str().unwrap_or_default();
        event_frame(id.filter(|_| index == last), name, event)
    });
    frames.collect()
}

fn id_frame(id: u64) -> String {
    format!("id: {id}\n\n")
}

/// JSON has no line break outside of escapes, so one `data:` line is enough. Names are ours or
/// checked.
fn event_frame(id: Option<u64>, name: &str, data: &Value) -> String {
    let id = id.map(|id| format!("id: {id}\n")).unwrap_or_default();
    let name: String = name.chars().filter(|letter| !letter.is_control()).collect();
    format!("{id}event: {name}\ndata: {data}\n\n")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn event_data_cannot_break_sse_frame() {
        let text = event_frame(Some(7), "a\nb", &json!({"text": "one\ntwo\r\n\ndata: x"}));
        assert_eq!(text, "id: 7\nevent: ab\ndata: {\"text\":\"one\\ntwo\\r\\n\\ndata: x\"}\n\n");
        assert_eq!(event_frame(None, "a", &json!({})), "event: a\ndata: {}\n\n");
        assert_eq!(FrameFormat::Own.render(&StreamItem::Confirmed(8)), "id: 8\n\n");
    }

    #[test]
    fn last_protocol_frame_has_the_id() {
        let events = [json!({"type": "call"}), json!({"type": "execute"})];
        let call = "event: call\ndata: {\"type\":\"call\"}\n\n";
        let execute = "event: execute\ndata: {\"type\":\"execute\"}\n\n";
        assert_eq!(protocol_frames(Some(3), &events), format!("{call}id: 3\n{execute}"));
        assert_eq!(protocol_frames(None, &events), format!("{call}{execute}"));
        assert_eq!(protocol_frames(Some(3), &[]), "id: 3\n\n");
        assert_eq!(protocol_frames(None, &[]), "");
    }
}
