//! Fail points: named steps where tests kill the process or inject faults.

use std::fmt;

/// Receives every fail point between two I/O operations, so that tests can kill the process there.
#[async_trait::async_trait]
pub trait FailPoints: Send + Sync + fmt::Debug {
    async fn hit(&self, name: &'static str);
}

/// All fail points, in the order in which a prompt with a tool and an approval first reaches them.
pub const FAIL_POINTS: [&str; 74] = [
    "admission.reserve-key",
    "admission.accept",
    "admission.accepted",
    "admission.nudge",
    "lease.before",
    "lease.after",
    "inbox.after",
    "pending-work.before",
    "pending-work.after",
    "reservation.before",
    "reservation.after",
    "model.before",
    "tool-definitions.before",
    "tool-definitions.after",
    "prepare.before",
    "prepare.after",
    "frame-document.before",
    "frame-document.after",
    "model.after",
    "response.before",
    "response.after",
    "release.before",
    "release.after",
    "nudge.before",
    "nudge.after",
    "inbox.reread",
    "notification.before",
    "notification.after",
    "admission.decide",
    "admission.decided",
    "tool.before",
    "tool-result.before",
    "tool-result.after",
    "tool.after",
    "result.before",
    "result.after",
    "compaction.before",
    "compaction.after",
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
    "admission.input-stored",
    "admission.artifact-stored",
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

/// Names of earlier versions with the current ones.
const EARLIER_NAMES: [(&str, &str); 18] = [
    ("admission.hold-key", "admission.reserve-key"),
    ("admission.input-kept", "admission.input-stored"),
    ("admission.artifact-kept", "admission.artifact-stored"),
    ("look.after", "inbox.reread"),
    ("claim.before", "lease.before"),
    ("claim.after", "lease.after"),
    ("take-in.before", "pending-work.before"),
    ("take-in.after", "pending-work.after"),
    ("hold.before", "reservation.before"),
    ("hold.after", "reservation.after"),
    ("answer.before", "response.before"),
    ("answer.after", "response.after"),
    ("notice.before", "notification.before"),
    ("notice.after", "notification.after"),
    ("summing.before", "compaction.before"),
    ("summing.after", "compaction.after"),
    ("definitions.before", "tool-definitions.before"),
    ("definitions.after", "tool-definitions.after"),
];

/// The current name of a fail point. Settings and arguments may have an earlier one.
pub fn current_name(name: &str) -> &str {
    let renamed = EARLIER_NAMES.iter().find(|(earlier, _)| *earlier == name);
    renamed.map_or(name, |(_, current)| current)
}

/// The earliest name of a fail point.
pub(crate) fn earlier_name(name: &str) -> &str {
    let renamed = EARLIER_NAMES.iter().find(|(_, current)| *current == name);
    renamed.map_or(name, |(earlier, _)| earlier)
}

/// Production implementation: does nothing.
#[derive(Debug, Default)]
pub struct NoFailPoints;

#[async_trait::async_trait]
impl FailPoints for NoFailPoints {
    async fn hit(&self, _name: &'static str) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn earlier_names_stand_for_fail_points() {
        for (earlier, current) in EARLIER_NAMES {
            assert!(!FAIL_POINTS.contains(&earlier) && FAIL_POINTS.contains(&current), "{earlier}");
            assert_eq!((current_name(earlier), current_name(current)), (current, current));
            assert_eq!(earlier_name(current), earlier);
        }
    }
}
