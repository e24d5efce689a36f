//! Frames of server-sent events and their text format.

use std::fmt;

use serde_json::Value;

/// One frame. Its `Display` text is the wire format.
#[derive(Clone, Debug, PartialEq)]
pub enum SseFrame {
    /// The first frame: sets the reconnection delay.
    Retry,
    /// A comment that keeps the connection open. Clients ignore it.
    Comment,
    /// An event. Live events have no number.
    Event { id: Option<u64>, name: String, data: Value },
    /// Advances the client's event number. Confirms an event that was sent live.
    IdOnly(u64),
}

impl fmt::Display for SseFrame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Retry => f.write_str("retry: 1000\n\n"),
            Self::Comment => f.write_str(": still here\n\n"),
            Self::IdOnly(id) => write!(f, "id: {id}\n\n"),
            // JSON has no line break outside of escapes, so one `data:` line is enough. Names are
            // ours or checked.
            Self::Event { id, name, data } => {
                let id = id.map(|id| format!("id: {id}\n")).unwrap_or_default();
                let name: String = name.chars().filter(|letter| !letter.is_control()).collect();
                write!(f, "{id}event: {name}\ndata: {data}\n\n")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn event_data_cannot_break_sse_frame() {
        let event =
            |id, name: &str, data| SseFrame::Event { id, name: name.to_owned(), data }.to_string();
        let text = event(Some(7), "a\nb", json!({"text": "one\ntwo\r\n\ndata: x"}));
        assert_eq!(text, "id: 7\nevent: ab\ndata: {\"text\":\"one\\ntwo\\r\\n\\ndata: x\"}\n\n");
        assert_eq!(event(None, "a", json!({})), "event: a\ndata: {}\n\n");
        assert_eq!(SseFrame::IdOnly(8).to_string(), "id: 8\n\n");
    }
}
