//! The part of the usage ledger that a conversation keeps: its spending, and the part that the tenant may not know yet.

use serde::{Deserialize, Serialize};

use crate::agent::budget::{Agreed, AlertMark, Raise};
use crate::agent::usage::Tally;
use crate::clock::Timestamp;

/// Days of which a head remembers what they cost, as long as the tenant's books do not know it; an older one counts to the
/// next.
const DAYS_MAX: usize = 31;

/// What a conversation knows of its costs beside what its answers say.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Books {
    /// All that its model calls cost: those whose answer was lost at their estimate. Only grows.
    pub spent: Tally,
    /// The part of it whose answers were lost.
    #[serde(skip_serializing_if = "Tally::is_nothing")]
    pub lost: Tally,
    /// What the tenant's books may not know yet: `spent` at the end of each day, oldest first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub days: Vec<DayEnd>,
    /// Calls that were ever held; names the next.
    pub holds: u64,
    /// When the tenant's books have to be told; absent: they know everything.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub settle_at: Option<Timestamp>,
    /// When a prompt that asks for more looks whether there is room by now.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub look_at: Option<Timestamp>,
    /// Of the conversation's own limit.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub raised: Vec<Raise>,
    /// Raises that the accounts may not know yet.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub agreed: Vec<Agreed>,
    /// The highest percentage of the conversation's own limit that an alert reported, by unit.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub alert_marks: Vec<AlertMark>,
    /// Alerts of the limits of the conversation and its prompts so far; names the next notification.
    #[serde(skip_serializing_if = "is_zero")]
    pub own_alerts: u64,
    /// The number of the newest alert of an account that this conversation issued; see [`AccountAlert`].
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

/// The intent of a model call whose cost is held: written before the call is sent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Held {
    /// From 1 in a conversation.
    pub number: u64,
    /// What the call may cost at most, as far as one can know.
    pub estimate: Tally,
}

impl Books {
    pub fn is_blank(&self) -> bool {
        *self == Self::default()
    }

    /// Adds what a call cost; the tenant's books are told later.
    pub fn add(&mut self, cost: Tally, (now, settle_at): (Timestamp, Timestamp)) {
        self.spent = self.spent.plus(cost);
        let day = now.utc_day();
        match self.days.last_mut() {
            // A clock that is behind does not open a day again.
            Some(last) if last.day >= day => last.spent = self.spent,
            _ => self.days.push(DayEnd { day, spent: self.spent }),
        }
        let surplus = self.days.len().saturating_sub(DAYS_MAX);
        self.days.drain(..surplus);
        self.settle_at.get_or_insert(settle_at);
    }

    /// What each day cost beyond what is known already.
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
        assert_eq!(owed, 55, "what is old counts to the next day");
    }
}
