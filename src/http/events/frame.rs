//! Frames of server-sent events, as text.

use serde_json::Value;

/// The first: how soon to connect again.
pub(super) fn retry() -> String {
    "retry: 1000\n\n".to_owned()
}

/// Keeps the line open; readers pass it over.
pub(super) fn comment() -> String {
    ": still here\n\n".to_owned()
}

/// JSON holds no line break outside of escapes, so one `data:` line is enough. A name is ours or was checked.
pub(super) fn event(id: Option<u64>, name: &str, data: &Value) -> String {
    let id = id.map(|id| format!("id: {id}\n")).unwrap_or_default();
    let name: String = name.chars().filter(|letter| !letter.is_control()).collect();
    format!("{id}event: {name}\ndata: {data}\n\n")
}

/// Moves the reader's number on and tells nothing: what it stands for was told live.
pub(super) fn id_only(id: u64) -> String {
    format!("id: {id}\n\n")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_frame_cannot_be_broken_by_what_it_carries() {
        let told = event(Some(7), "a\nb", &json!({"text": "one\ntwo\r\n\ndata: x"}));
        assert_eq!(told, "id: 7\nevent: ab\ndata: {\"text\":\"one\\ntwo\\r\\n\\ndata: x\"}\n\n");
        assert_eq!(event(None, "a", &json!({})), "event: a\ndata: {}\n\n");
        assert_eq!(id_only(8), "id: 8\n\n");
    }
}
