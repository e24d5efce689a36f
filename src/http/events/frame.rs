//! Frames of server-sent events.

use serde_json::Value;

use crate::queries::event_stream::StreamItem;

/// The first frame: sets the reconnection delay.
pub(super) const RETRY: &str = "retry: 1000\n\n";
/// A comment that keeps the connection open. Clients ignore it.
pub(super) const COMMENT: &str = ": still here\n\n";

/// The frame of an item. The frame of a confirmation has only an id, which advances the client's
/// event number.
pub(super) fn render(item: &StreamItem) -> String {
    match item {
        StreamItem::Event(event) => {
            event_frame(event.number, event.kind().name(), &event.to_json())
        }
        StreamItem::Confirmed(id) => format!("id: {id}\n\n"),
    }
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
        assert_eq!(render(&StreamItem::Confirmed(8)), "id: 8\n\n");
    }
}
