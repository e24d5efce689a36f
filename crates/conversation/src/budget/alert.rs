//! Budget alerts: the percentages of a limit that spending reaches, each reported once.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::budget::{BudgetLevel, BudgetPeriod, BudgetUnit, Limit, LimitIncrease, increased_limit};
use crate::head::Head;
use crate::notification::Notification;
use crate::usage::UsageTotals;
use turnwheel_json::raw::RawJson;
use turnwheel_platform::clock::Timestamp;

/// Percentages of a limit at which an alert is issued, highest first.
const THRESHOLDS: [u8; 3] = [100, 80, 50];

/// The newest alert of one unit of a limit: no percentage up to it is reported again of this limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AlertMark {
    pub unit: BudgetUnit,
    /// Tokens or billionths of a dollar, with the limit increase that was in force.
    pub limit: u64,
    pub percent: u8,
}

/// A threshold that spending reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Crossing {
    pub unit: BudgetUnit,
    pub percent: u8,
    pub used: u64,
    /// With the limit increase in force.
    pub limit: u64,
}

/// An alert as it is logged, counted and sent.
#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct BudgetAlert {
    pub level: BudgetLevel,
    /// The id of the prompt, conversation, user, agent or tenant.
    pub subject: String,
    /// Absent at the levels of prompt and conversation.
    pub period: Option<BudgetPeriod>,
    /// UTC day (`2026-11-22`) or month (`2026-11`); absent where no period ends.
    pub date: Option<String>,
    pub unit: BudgetUnit,
    pub percent: u8,
    /// Tokens or billionths of a dollar.
    pub used: u64,
    pub limit: u64,
}

/// An alert of an account. The usage ledger keeps it until the conversation that crossed the
/// threshold issues it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AccountAlert {
    /// From 1 in a conversation; its head keeps the newest number that it issued.
    pub number: u64,
    pub alert: BudgetAlert,
}

impl Limit {
    /// Thresholds that spending reached and no alert reported: the highest per unit. `used`
    /// includes `cost`, the newest spending. After a limit increase a percentage counts as reported
    /// if the earlier spending reaches it.
    pub fn crossings(
        &self,
        increases: &[LimitIncrease],
        marks: &[AlertMark],
        used: &UsageTotals,
        cost: &UsageTotals,
    ) -> Vec<Crossing> {
        let crossings = self.bounds().into_iter().filter_map(|(unit, limit)| {
            let limit = increased_limit(increases, unit, limit?);
            let used = unit.amount_in(used);
            let reported = marks.iter().find(|mark| mark.unit == unit).map_or(0, |mark| {
                if limit > mark.limit {
                    let before = used.saturating_sub(unit.amount_in(cost));
                    mark.percent.min(threshold(before, limit))
                } else {
                    mark.percent
                }
            });
            let percent = threshold(used, limit);
            (percent > reported).then_some(Crossing { unit, percent, used, limit })
        });
        crossings.collect()
    }
}

/// The highest percentage that is reached; 0: none is.
fn threshold(used: u64, limit: u64) -> u8 {
    let (used, limit) = (u128::from(used) * 100, u128::from(limit));
    let is_reached = |percent: &u8| limit > 0 && used >= limit * u128::from(*percent);
    THRESHOLDS.into_iter().find(is_reached).unwrap_or(0)
}

impl Crossing {
    pub fn mark(&self) -> AlertMark {
        AlertMark { unit: self.unit, limit: self.limit, percent: self.percent }
    }

    /// The alert of a limit without a period; an account adds it.
    pub fn alert(&self, level: BudgetLevel, subject: &str) -> BudgetAlert {
        BudgetAlert {
            level,
            subject: subject.to_owned(),
            period: None,
            date: None,
            unit: self.unit,
            percent: self.percent,
            used: self.used,
            limit: self.limit,
        }
    }
}

impl BudgetAlert {
    /// True if both are of the same limit, unit and period.
    pub fn is_of_same_limit(&self, other: &Self) -> bool {
        let limit = |it: &Self| (it.level, it.period, it.unit);
        limit(self) == limit(other) && self.subject == other.subject && self.date == other.date
    }

    /// The notification of the conversation that crossed the threshold. `number` is unique among
    /// the conversation's alerts.
    pub fn notification(&self, head: &Head, number: &str, now: Timestamp) -> Notification {
        // The epoch keeps ids unique even if an older version dropped the numbers of earlier
        // alerts.
        let (conversation, incarnation) = (&head.conversation_id, &head.incarnation);
        Notification {
            id: format!("nt_{conversation}_{incarnation}_{}_{number}", head.epoch),
            kind: "budget.alert".to_owned(),
            at: now,
            data: RawJson::from_value(&head.notification_data(&self.data())),
            text: self.text(head),
            attempts: 0,
            settled_at: None,
            is_given_up: false,
        }
    }

    fn data(&self) -> Value {
        let mut data = json!({
            "level": self.level, "unit": self.unit, "percent": self.percent,
            "used": self.unit.to_json(self.used), "limit": self.unit.to_json(self.limit),
        });
        let prompt = (self.level == BudgetLevel::Prompt).then(|| json!(self.subject));
        let period = self.period.map(|period| json!(period));
        let date = self.date.as_ref().map(|date| json!(date));
        if let Some(data) = data.as_object_mut() {
            let members = [("promptId", prompt), ("period", period), ("date", date)];
            let known = members.into_iter().filter_map(|(name, value)| Some((name, value?)));
            data.extend(known.map(|(name, value)| (name.to_owned(), value)));
        }
        data
    }

    /// One sentence with the figures.
    fn text(&self, head: &Head) -> String {
        let budget = match self.level {
            BudgetLevel::Prompt => format!("of a prompt of {}", head.agent),
            BudgetLevel::Conversation => format!("of a conversation with {}", head.agent),
            BudgetLevel::User | BudgetLevel::Agent | BudgetLevel::Tenant => {
                format!("of {} {}", self.level.name(), self.subject)
            }
        };
        let date = self.date.as_ref().map_or_else(String::new, |date| format!(" for {date}"));
        let figures = self.unit.format_amounts(self.used, self.limit);
        format!("{} % of the budget {budget}{date} is used: {figures}.", self.percent)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tokens(total_tokens: u64) -> UsageTotals {
        UsageTotals { total_tokens, ..UsageTotals::default() }
    }

    /// Percentages reported as 10 tokens are spent at a time, with the limits in force.
    fn percentages(limits: impl IntoIterator<Item = u64>) -> Vec<(u64, u8)> {
        let mut marks = Vec::new();
        let mut reported = Vec::new();
        let mut used = 0;
        for to in limits {
            used += 10;
            let limit = Limit { tokens: Some(100), usd: None };
            let increases = [LimitIncrease { unit: BudgetUnit::Tokens, from: 100, to }];
            for crossing in limit.crossings(&increases, &marks, &tokens(used), &tokens(10)) {
                reported.push((crossing.used, crossing.percent));
                marks = vec![crossing.mark()];
            }
        }
        reported
    }

    #[test]
    fn each_threshold_is_reported_once() {
        assert_eq!(percentages([100; 14]), [(50, 50), (80, 80), (100, 100)]);
    }

    #[test]
    fn highest_of_several_thresholds_is_reported() {
        let limit = Limit { tokens: Some(100), usd: Some(1.0) };
        let cost = UsageTotals { total_tokens: 85, nanos: 2_000_000_000, ..UsageTotals::default() };
        let crossed = limit.crossings(&[], &[], &cost, &cost);
        let percents: Vec<_> = crossed.iter().map(|it| (it.unit, it.percent)).collect();
        assert_eq!(percents, [(BudgetUnit::Usd, 100), (BudgetUnit::Tokens, 80)]);
    }

    #[test]
    fn increased_limit_reports_only_percentages_reached_later() {
        // At 100 tokens the limit becomes 160: 50 % is reached already, 80 and 100 % are reached
        // again.
        let limits = [100; 10].into_iter().chain([160; 8]);
        assert_eq!(percentages(limits), [(50, 50), (80, 80), (100, 100), (130, 80), (160, 100)]);
    }

    #[test]
    fn lowered_limit_reports_with_the_next_spending() {
        let limits = [200; 6].into_iter().chain([70; 3]);
        assert_eq!(percentages(limits), [(70, 100)]);
        let limits = [100; 6].into_iter().chain([80; 2]);
        assert_eq!(percentages(limits), [(50, 50), (70, 80), (80, 100)]);
    }

    #[test]
    fn threshold_handles_extreme_values() {
        assert_eq!((threshold(u64::MAX, u64::MAX), threshold(0, 0)), (100, 0));
        assert_eq!((threshold(49, 100), threshold(50, 100), threshold(1, 1)), (0, 50, 100));
    }
}
