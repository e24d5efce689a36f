//! Metering: the conversation's own spending, and the part that the tenant's usage ledger may not
//! have yet.

use serde::{Deserialize, Serialize};

use crate::budget::{AlertMark, ApprovedIncrease, LimitIncrease};
use crate::usage::UsageTotals;
use turnwheel_platform::clock::Timestamp;

/// Days whose cost the head keeps until the tenant's usage ledger has it. The cost of an older day
/// counts toward the next day.
const DAYS_MAX: usize = 31;

/// The conversation's metering: costs and limit increases beyond the usage of its responses.
#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Metering {
    /// Cost of all model calls, with lost responses at their estimate. Only grows.
    pub spent: UsageTotals,
    /// The part of `spent` whose responses were lost.
    #[serde(skip_serializing_if = "UsageTotals::is_nothing")]
    pub lost: UsageTotals,
    /// Cost that the tenant's usage ledger may not have yet: `spent` at the end of each day, oldest
    /// first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub days: Vec<DayEnd>,
    /// Number of reservations made; numbers the next one.
    #[serde(rename = "holds")]
    pub reservations_made: u64,
    /// Time of the next settlement with the tenant's usage ledger. Absent: nothing to settle.
    pub settle_at: Option<Timestamp>,
    /// Time at which a prompt that waits for a budget increase checks the limit again.
    #[serde(rename = "lookAt")]
    pub recheck_at: Option<Timestamp>,
    /// Increases of the conversation's own limit.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[serde(rename = "raised")]
    pub increases: Vec<LimitIncrease>,
    /// Increases of account limits that the accounts may not have yet.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[serde(rename = "agreed")]
    pub approved_increases: Vec<ApprovedIncrease>,
    /// The highest percentage of the conversation's own limit that an alert reported, by unit.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub alert_marks: Vec<AlertMark>,
    /// Number of alerts for limits of the conversation and its prompts; numbers the next
    /// notification.
    #[serde(skip_serializing_if = "is_zero")]
    pub own_alerts: u64,
    /// Number of the newest alert of an account that this conversation issued; see
    /// [`AccountAlert`](super::AccountAlert).
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
    pub spent: UsageTotals,
}

/// A reservation: the intent of a model call, written before the call is sent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Reservation {
    /// From 1 in a conversation.
    pub number: u64,
    /// Estimated maximum cost of the call.
    pub estimate: UsageTotals,
}

impl Metering {
    pub fn is_blank(&self) -> bool {
        *self == Self::default()
    }

    /// Adds the cost of a call. Settlement with the tenant's usage ledger follows later.
    pub fn add_cost(&mut self, cost: UsageTotals, now: Timestamp, settle_at: Timestamp) {
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
    pub fn unsettled_by_day(&self, settled: UsageTotals) -> Vec<(&str, UsageTotals)> {
        let mut settled = settled;
        let unsettled = self.days.iter().filter_map(|end| {
            let unsettled = end.spent.minus(settled);
            settled = settled.max_each(end.spent);
            (!unsettled.is_nothing()).then_some((end.day.as_str(), unsettled))
        });
        unsettled.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cost(nanos: u64) -> UsageTotals {
        UsageTotals { calls: 1, nanos, ..UsageTotals::default() }
    }

    #[test]
    fn metering_reports_unsettled_cost_of_each_day_once() {
        let mut metering = Metering::default();
        let hour = 3_600_000;
        let mut at = Timestamp(1_800_000_000_000);
        for _ in 0..3 {
            metering.add_cost(cost(5), at, at);
            at = Timestamp(at.0 + 24 * hour);
        }
        let unsettled: Vec<u64> =
            metering.unsettled_by_day(UsageTotals::default()).iter().map(|it| it.1.nanos).collect();
        assert_eq!(unsettled, [5, 5, 5]);
        let settled = cost(5).plus(cost(2));
        let unsettled: Vec<u64> =
            metering.unsettled_by_day(settled).iter().map(|it| it.1.nanos).collect();
        assert_eq!(unsettled, [3, 5]);
        assert!(metering.unsettled_by_day(metering.spent).is_empty());
        for _ in 0..40 {
            at = Timestamp(at.0 + 24 * hour);
            metering.add_cost(cost(1), at, at);
        }
        assert_eq!(metering.days.len(), DAYS_MAX);
        let unsettled: u64 =
            metering.unsettled_by_day(UsageTotals::default()).iter().map(|it| it.1.nanos).sum();
        assert_eq!(unsettled, 55, "the cost of dropped days counts toward the next day");
    }
}
