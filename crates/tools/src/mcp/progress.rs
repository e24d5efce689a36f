//! Progress notifications of a server, as updates of the call.

use std::sync::Arc;

use crate::ToolResult;
use crate::mcp::message::{SHOWN_BYTES_MAX, plain_text, shown};
use turnwheel_json::raw::RawJson;

pub(super) type ProgressListener = Arc<dyn Fn(&ToolResult) + Send + Sync>;

/// Method of the notification.
pub(super) const METHOD: &str = "notifications/progress";

/// Reports the text of a notification, or its numbers.
pub(super) fn report(params: &RawJson, listener: &ProgressListener) {
    let find =
        |name: &str| find_member(params, name).map(|it| shown(&plain_text(&it), SHOWN_BYTES_MAX));
    let text = find("message").or_else(|| {
        let of = find("total").map(|total| format!("/{total}")).unwrap_or_default();
        find("progress").map(|progress| format!("{progress}{of}"))
    });
    if let Some(text) = text {
        listener(&ToolResult::text(text));
    }
}

/// Token of the notifications about a request, as it is written.
pub(super) fn requested_token(request: &RawJson) -> Option<String> {
    let meta = find_member(&find_member(request, "params")?, "_meta")?;
    find_member(&meta, "progressToken").map(|it| it.text().to_owned())
}

/// Token of a notification, as it is written.
pub(super) fn token(params: &RawJson) -> Option<String> {
    find_member(params, "progressToken").map(|it| it.text().to_owned())
}

/// A member that is not null.
fn find_member(json: &RawJson, name: &str) -> Option<RawJson> {
    let members = json.members().unwrap_or_default();
    let found = members.into_iter().find(|(other, value)| other == name && value.text() != "null");
    found.map(|(_, value)| value)
}
