//! Paths and parts of the document that several steps of its preparation use.

use serde_json::{Map, Value, json};

pub(super) const LINK_PATH: &str = "/api/approvals/{token}";
pub(super) const APPROVAL_PATHS: [&str; 2] =
    [LINK_PATH, "/api/conversations/{id}/approvals/{approvalId}"];
pub(super) const CONVERSATION_PATH: &str = "/api/conversations/{id}";

pub(super) fn object_mut<'a>(
    value: &'a mut Value,
    pointer: &str,
) -> Option<&'a mut Map<String, Value>> {
    value.pointer_mut(pointer)?.as_object_mut()
}

pub(super) fn binary_schema() -> Value {
    json!({"type": "string", "format": "binary"})
}
