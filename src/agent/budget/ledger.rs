//! Metering: the conversation's own spending, and the part that the tenant's usage ledger may not
//! have yet.

use serde::{Deserialize, Serialize};

use crate::agent::budget::{Agreed, AlertMark, Raise};
use crate::agent::usage::Tally;
use crate::clock::Timestamp;

/// Days whose cost the head keeps until the tenant's usage ledger has it. The cost of an older day
/// counts toward the next day.
const DAYS_MAX: usize = 31;

/// The conversation's metering: costs and limit increases beyond the usage of its responses.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Books {
    /// Cost of all model calls, with lost responses at their estimate. Only grows.
    pub spent: Tally,
    /// The part of `spent` whose responses were lost.
    #[serde(skip_serializing_if = "Tally::is_nothing")]
    pub lost: Tally,
    /// Cost that the tenant's usage ledger may not have yet: `spent` at the end of each day, oldest
    /// first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub days: Vec<DayEnd>,
    /// Number of reservations made; numbers the next one.
    pub holds: u64,
    /// Time of the next settlement with the tenant's usage ledger. Absent: nothing to settle.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub settle_at: Option<Timestamp>,
    /// Time at which a prompt that waits for a budget increase checks the limit again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub look_at: Option<Timestamp>,
    /// Increases of the conversation's own limit.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub raised: Vec<Raise>,
    /// Increases of account limits that the accounts may not have yet.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub agreed: Vec<Agreed>,
    /// The highest percentage of the conversation's own limit that an alert reported, by unit.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub alert_marks: Vec<AlertMark>,
    /// Number of alerts for limits of the conversation and its prompts; numbers the next
    /// notification.
    #[serde(skip_serializing_if = "is_zero")]
    pub own_alerts: u64,
    /// Number of the newest alert of an account that this conversation issued; see
    /// [`AccountAlert`].
    #[serde(skip_serializing_if = "is_zero")]
    pub account_alerts: u64,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the signature is serde's")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DayEnd {
    /// UTC, `2026-11-22`.
    pub day: String,
    pub spent: Tally,
}

/// A reservation: the intent of a model call, written before the call is sent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Held {
    /// From 1 in a conversation.
    pub number: u64,
    /// Estimated maximum cost of the call.
    pub estimate: Tally,
}

impl Books {
    pub fn is_blank(&self) -> bool {
        *self == Self::default()
    }

    /// Adds the cost of a call. Settlement with the tenant's usage ledger follows later.
    pub fn add(&mut self, cost: Tally, (now, settle_at): (Timestamp, Timestamp)) {
        self.spent = self.spent.plus(cost);
        let day = now.utc_day();
        match self.days.last_mut() {
            // A clock that runs behind does not reopen an earlier day.
            Some(last) if last.day >= day => last.spent = self.spent,
            _ => self.days.push(DayEnd { day, spent: self.spent }),
        }
        let surplus = self.days.len().saturating_sub(DAYS_MAX);
        self.days.drain(..surplus);
        self.settle_at.get_or_insert(settle_at);
    }

    /// Cost per day that exceeds the settled total.
    pub fn owed_by_day(&self, known: Tally) -> Vec<(&str, Tally)> {
        let mut known = known;
        let owed = self.days.iter().filter_map(|end| {
            let owed = end.spent.minus(known);
            known = known.or_more(end.spent);
            (!owed.is_nothing()).then_some((end.day.as_str(), owed))
        });
        owed.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cost(nanos: u64) -> Tally {
        Tally { calls: 1, nanos, ..Tally::default() }
    }

    #[test]
    fn days_are_told_once_whatever_is_known_already() {
        let mut books = Books::default();
        let hour = 3_600_000;
        let mut at = Timestamp(1_800_000_000_000);
        for _ in 0..3 {
            books.add(cost(5), (at, at));
            at = Timestamp(at.0 + 24 * hour);
        }
        let owed: Vec<u64> =
            books.owed_by_day(Tally::default()).iter().map(|it| it.1.nanos).collect();
        assert_eq!(owed, [5, 5, 5]);
        let known = cost(5).plus(cost(2));
        let owed: Vec<u64> = books.owed_by_day(known).iter().map(|it| it.1.nanos).collect();
        assert_eq!(owed, [3, 5]);
        assert!(books.owed_by_day(books.spent).is_empty());
        for _ in 0..40 {
            at = Timestamp(at.0 + 24 * hour);
            books.add(cost(1), (at, at));
        }
        assert_eq!(books.days.len(), DAYS_MAX);
        let owed: u64 = books.owed_by_day(Tally::default()).iter().map(|it| it.1.nanos).sum();
        assert_eq!(owed, 55, "the cost of dropped days counts toward the next day");
    }
}
