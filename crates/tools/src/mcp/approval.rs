//! The approval that the definition of a tool demands.

use serde_json::Value;

use crate::code::EXPIRY_DEFAULT;
use crate::http::ApprovalRule;
use crate::http::template::{Piece, Template};
use crate::validate::bounded_schema::BoundedSchema;

/// A rule, and whether it has a reason of its own.
pub(super) struct OwnApproval {
    pub(super) rule: ApprovalRule,
    pub(super) has_reason: bool,
}

/// The schema of the calls that need an approval.
pub(super) fn condition_of(approval: &Value) -> Option<&Value> {
    approval.get("when")
}

impl OwnApproval {
    /// Reads `{ "when": SCHEMA, "reason": TEXT }`. Any other value, and a schema that cannot be checked, demands
    /// an approval of each call.
    pub(super) fn read(value: &Value) -> Self {
        let reason = value.get("reason").and_then(Value::as_str);
        let condition = condition_of(value).and_then(|when| BoundedSchema::new_strict(when).ok());
        let rule = ApprovalRule {
            condition,
            reason: Template(vec![Piece::Text(reason.unwrap_or_default().to_owned())]),
            approvers: vec!["owner".to_owned()],
            is_requester_excluded: false,
            expires_after: EXPIRY_DEFAULT,
        };
        Self { rule, has_reason: reason.is_some() }
    }
}
