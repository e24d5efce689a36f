//! Frames of server-sent events.

use std::borrow::Cow;

use serde_json::{Value, json};

use turnwheel_platform::clock::Timestamp;
use turnwheel_queries::event_stream::StreamItem;
use turnwheel_queries::protocol_events::{self, ProtocolEvents};

/// The first frame: sets the reconnection delay.
pub(super) const RETRY: &str = "retry: 1000\n\n";
const PING: &str = "ping";

/// The form of the events.
#[derive(Debug)]
pub(super) enum EventFormat {
    Own,
    /// The streaming text protocol.
    Protocol(ProtocolEvents),
}

/// The form of the frames.
#[derive(Debug)]
pub(super) struct FrameFormat {
    pub(super) events: EventFormat,
    /// False: no line `event:`, so that browsers pass every frame to `onmessage`.
    pub(super) has_names: bool,
}

impl FrameFormat {
    /// The frame that is sent while there are no events. A comment would not do: parsers hide
    /// comments, so that clients could not know whether the connection still works.
    pub(super) fn ping(&self, now: Timestamp) -> String {
        let data = match &self.events {
            EventFormat::Own => json!({"type": PING}).to_string(),
            EventFormat::Protocol(_) => protocol_events::event(PING, now, json!({})).to_string(),
        };
        event_frame(None, self.name(PING), &data)
    }

    /// The frames of an item. The frame of a confirmation has only an id, which advances the client's
    /// event number.
    pub(super) fn render(&mut self, item: &StreamItem) -> String {
        let event = match item {
            StreamItem::Event(event) => event,
            StreamItem::Confirmed(id) => return id_frame(*id),
        };
        let events = match &mut self.events {
            EventFormat::Own => {
                let kind = event.kind();
                return event_frame(event.number, self.name(kind.name()), event.to_json().text());
            }
            EventFormat::Protocol(protocol) => protocol.convert(event),
        };
        self.protocol_frames(event.number, &events)
    }

    fn name<'a>(&self, name: &'a str) -> Option<&'a str> {
        self.has_names.then_some(name)
    }

    /// The frames of the protocol events of one event. The last one has its id; without any, only
    /// the id is sent.
    fn protocol_frames(&self, id: Option<u64>, events: &[Value]) -> String {
        let Some(last) = events.len().checked_sub(1) else {
            return id.map(id_frame).unwrap_or_default();
        };
        let frames = events.iter().enumerate().map(|(index, event)| {
            let name = event["type"].as_str().unwrap_or_default();
            event_frame(id.filter(|_| index == last), self.name(name), &event.to_string())
        });
        frames.collect()
    }
}

fn id_frame(id: u64) -> String {
    format!("id: {id}\n\n")
}

/// JSON has no line break outside of escapes, so one `data:` line is enough. Names are ours or
/// checked. `id` is the last line: some clients resume after an id as soon as they have read its
/// line, and would lose an event that is cut off after it.
fn event_frame(id: Option<u64>, name: Option<&str>, data: &str) -> String {
    let id = id.map(|id| format!("id: {id}\n")).unwrap_or_default();
    let plain = |name: &str| name.chars().filter(|letter| !letter.is_control()).collect::<String>();
    let name = name.map(|name| format!("event: {}\n", plain(name))).unwrap_or_default();
    format!("{name}data: {}\n{id}\n", escape_separators(data))
}

/// Escapes the characters of JSON strings at which some clients split lines, such as `iter_lines` of
/// Python's httpx.
fn escape_separators(data: &str) -> Cow<'_, str> {
    const SEPARATORS: [(char, &str); 3] =
        [('\u{85}', "\\u0085"), ('\u{2028}', "\\u2028"), ('\u{2029}', "\\u2029")];
    SEPARATORS.iter().fold(Cow::Borrowed(data), |data, (separator, escape)| {
        if data.contains(*separator) { Cow::Owned(data.replace(*separator, escape)) } else { data }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use turnwheel_queries::protocol_events::TextUnit;

    #[test]
    fn ping_is_a_live_event_of_each_format() {
        let now = Timestamp(1_700_000_000_500);
        let format = |events| FrameFormat { events, has_names: true };
        let own = format(EventFormat::Own).ping(now);
        assert_eq!(own, "event: ping\ndata: {\"type\":\"ping\"}\n\n");
        let protocol = EventFormat::Protocol(ProtocolEvents::new(TextUnit::Event, false));
        let protocol = format(protocol).ping(now);
        let data = "{\"type\":\"ping\",\"timestamp\":1700000000.5}";
        assert_eq!(protocol, format!("event: ping\ndata: {data}\n\n"));
        let unnamed = FrameFormat { events: EventFormat::Own, has_names: false }.ping(now);
        assert_eq!(unnamed, "data: {\"type\":\"ping\"}\n\n");
    }

    #[test]
    fn event_data_cannot_break_sse_frame() {
        let text = event_frame(
            Some(7),
            Some("a\nb"),
            &json!({"text": "one\ntwo\r\n\ndata: x"}).to_string(),
        );
        assert_eq!(text, "event: ab\ndata: {\"text\":\"one\\ntwo\\r\\n\\ndata: x\"}\nid: 7\n\n");
        assert_eq!(event_frame(None, Some("a"), "{}"), "event: a\ndata: {}\n\n");
        assert_eq!(event_frame(Some(9), None, "{}"), "data: {}\nid: 9\n\n");
        let mut own = FrameFormat { events: EventFormat::Own, has_names: true };
        assert_eq!(own.render(&StreamItem::Confirmed(8)), "id: 8\n\n");
    }

    #[test]
    fn event_data_has_no_line_separators() {
        let data = json!({"text": "a\u{85}b\u{2028}c\u{2029}d ä"});
        let frame = event_frame(None, None, &data.to_string());
        assert_eq!(frame, "data: {\"text\":\"a\\u0085b\\u2028c\\u2029d ä\"}\n\n");
        let sent = frame.trim().strip_prefix("data: ").unwrap();
        assert_eq!(serde_json::from_str::<Value>(sent).unwrap(), data);
    }

    #[test]
    fn last_protocol_frame_has_the_id() {
        let events = [json!({"type": "call"}), json!({"type": "execute"})];
        let call = "event: call\ndata: {\"type\":\"call\"}\n\n";
        let execute = "event: execute\ndata: {\"type\":\"execute\"}\n";
        let format = FrameFormat { events: EventFormat::Own, has_names: true };
        let protocol_frames =
            |id: Option<u64>, events: &[Value]| format.protocol_frames(id, events);
        assert_eq!(protocol_frames(Some(3), &events), format!("{call}{execute}id: 3\n\n"));
        assert_eq!(protocol_frames(None, &events), format!("{call}{execute}\n"));
        assert_eq!(protocol_frames(Some(3), &[]), "id: 3\n\n");
        assert_eq!(protocol_frames(None, &[]), "");
    }
}
