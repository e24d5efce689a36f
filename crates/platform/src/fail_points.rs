//! Fail points: named boundaries where tests kill the process or inject faults.

use std::fmt;

/// Receives every named boundary between two I/O operations, so that tests can kill the process
/// there.
#[async_trait::async_trait]
pub trait FailPoints: Send + Sync + fmt::Debug {
    async fn hit(&self, name: &'static str);
}

/// All fail points, in the order in which a prompt with a tool and an approval first reaches them.
pub const FAIL_POINTS: [&str; 72] = [
    "admission.hold-key",
    "admission.accept",
    "admission.accepted",
    "admission.nudge",
    "claim.before",
    "claim.after",
    "inbox.after",
    "take-in.before",
    "take-in.after",
    "hold.before",
    "hold.after",
    "model.before",
    "definitions.before",
    "definitions.after",
    "prepare.before",
    "prepare.after",
    "model.after",
    "answer.before",
    "answer.after",
    "release.before",
    "release.after",
    "nudge.before",
    "nudge.after",
    "look.after",
    "notice.before",
    "notice.after",
    "admission.decide",
    "admission.decided",
    "tool.before",
    "tool-result.before",
    "tool-result.after",
    "tool.after",
    "result.before",
    "result.after",
    "summing.before",
    "summing.after",
    "navigate.before",
    "navigate.after",
    "summary.before",
    "summary.after",
    "renew.before",
    "renew.after",
    "expiry.before",
    "expiry.after",
    "settle.before",
    "settle.after",
    "title.before",
    "title.after",
    "profile.before",
    "profile.posted",
    "profile.responded",
    "profile.recorded",
    "profile.after",
    "admission.import",
    "fork.begun",
    "fork.artifact",
    "fork.commit",
    "admission.input-kept",
    "admission.artifact-kept",
    "admission.patch",
    "admission.edit",
    "admission.clear",
    "admission.delete",
    "admission.purged",
    "schedule.create",
    "schedule.fired",
    "schedule.moved",
    "schedule.cancel",
    "user.write",
    "user.written",
    "user.conversation",
    "user.documents",
];

/// Production implementation: does nothing.
#[derive(Debug, Default)]
pub struct NoFailPoints;

#[async_trait::async_trait]
impl FailPoints for NoFailPoints {
    async fn hit(&self, _name: &'static str) {}
}
