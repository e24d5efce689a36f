//! Budgets: limits, their exceedance, and the texts of approval requests about them.

mod alert;
mod exceeded;
mod metering;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

pub use self::alert::{AccountAlert, AlertMark, BudgetAlert, Crossing};
pub use self::exceeded::BudgetExceeded;
pub(crate) use self::exceeded::ExceededLimit;
pub use self::metering::{Metering, Reservation};

use crate::usage::{UsageTotals, dollars_to_nanos, nanos_to_dollars};

/// Smallest accepted limit in dollars: amounts are counted in billionths.
const USD_MIN: f64 = 1e-9;
/// Largest accepted limit in dollars. A higher one is probably a typing error.
pub const USD_MAX: f64 = 1e9;
pub const TOKENS_MAX: u64 = 1_000_000_000_000_000;

/// A spending limit. An absent unit is unlimited.
#[serde_with::skip_serializing_none]
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Limit {
    /// Input and output tokens together, cached ones included.
    pub tokens: Option<u64>,
    /// US dollars, by the price table.
    pub usd: Option<f64>,
}

/// Limits of a conversation: one for each prompt, one for all prompts together.
#[serde_with::skip_serializing_none]
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Budget {
    pub prompt: Option<Limit>,
    pub conversation: Option<Limit>,
}

impl Limit {
    /// Error text of an invalid limit.
    pub fn validation_error(&self) -> Option<&'static str> {
        if self.tokens.is_none() && self.usd.is_none() {
            return Some("a limit has `tokens`, `usd` or both");
        }
        let is_too_low =
            self.tokens == Some(0) || self.usd.is_some_and(|usd| !usd.is_finite() || usd < USD_MIN);
        if is_too_low {
            return Some("a limit is at least 0.000000001 dollars, or 1 token");
        }
        let is_too_high = self.tokens.is_some_and(|tokens| tokens > TOKENS_MAX)
            || self.usd.is_some_and(|usd| usd > USD_MAX);
        is_too_high.then_some("a limit is at most 1000000000 dollars, or 1000000000000000 tokens")
    }

    /// The smaller limit, per unit.
    fn capped_by(self, ceiling: Self) -> Self {
        let usd = match (self.usd, ceiling.usd) {
            (Some(one), Some(other)) => Some(one.min(other)),
            (one, other) => one.or(other),
        };
        let tokens = [self.tokens, ceiling.tokens].into_iter().flatten().min();
        Self { tokens, usd }
    }

    fn bounds(&self) -> [(BudgetUnit, Option<u64>); 2] {
        [(BudgetUnit::Usd, self.usd.map(dollars_to_nanos)), (BudgetUnit::Tokens, self.tokens)]
    }

    /// The limit in each unit that it has, with the increases in force.
    pub fn in_force(&self, increases: &[LimitIncrease]) -> impl Iterator<Item = UnitLimit> {
        self.bounds().into_iter().filter_map(|(unit, limit)| {
            Some(UnitLimit { unit, amount: increased_limit(increases, unit, limit?) })
        })
    }

    /// The exceeded part of the limit, dollars before tokens, with the increases in force.
    pub fn find_exceeded(
        &self,
        increases: &[LimitIncrease],
        used: &UsageTotals,
    ) -> Option<ExceededLimit> {
        self.bounds().into_iter().find_map(|(unit, limit)| {
            let configured_limit = limit?;
            let limit = increased_limit(increases, unit, configured_limit);
            let used = unit.amount_in(used);
            (used >= limit).then_some(ExceededLimit { unit, configured_limit, limit, used })
        })
    }
}

impl Budget {
    /// The smaller of both limits wherever both are set.
    #[must_use]
    pub(crate) fn capped_by(&self, ceiling: &Self) -> Self {
        let smaller = |own: Option<Limit>, ceiling_limit: Option<Limit>| match (own, ceiling_limit)
        {
            (Some(own), Some(ceiling_limit)) => Some(own.capped_by(ceiling_limit)),
            (own, ceiling_limit) => own.or(ceiling_limit),
        };
        Self {
            prompt: smaller(self.prompt, ceiling.prompt),
            conversation: smaller(self.conversation, ceiling.conversation),
        }
    }

    /// Error text of an invalid budget.
    pub fn validation_error(&self) -> Option<&'static str> {
        if self.prompt.is_none() && self.conversation.is_none() {
            return Some("a budget has `prompt`, `conversation` or both");
        }
        [self.prompt, self.conversation].iter().flatten().find_map(Limit::validation_error)
    }
}

/// The limit with its newest increase. An increase applies only while the configured limit is
/// unchanged.
fn increased_limit(increases: &[LimitIncrease], unit: BudgetUnit, limit: u64) -> u64 {
    let increase =
        increases.iter().rev().find(|increase| increase.unit == unit && increase.from == limit);
    increase.map_or(limit, |increase| increase.to)
}

/// A limit in one unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnitLimit {
    pub unit: BudgetUnit,
    /// Tokens, or billionths of a dollar.
    pub amount: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BudgetUnit {
    Tokens,
    Usd,
}

impl BudgetUnit {
    /// The name in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Tokens => "tokens",
            Self::Usd => "usd",
        }
    }

    /// The amount in this unit: tokens, or billionths of a dollar.
    pub fn amount_in(self, tally: &UsageTotals) -> u64 {
        match self {
            Self::Tokens => tally.total_tokens,
            Self::Usd => tally.nanos,
        }
    }

    /// The largest accepted limit, in tokens or dollars.
    #[expect(clippy::cast_precision_loss, reason = "10^15 is exact")]
    pub fn max(self) -> f64 {
        match self {
            Self::Tokens => TOKENS_MAX as f64,
            Self::Usd => USD_MAX,
        }
    }

    /// An amount for display, in tokens or dollars.
    #[expect(clippy::cast_precision_loss, reason = "display only")]
    pub fn to_display(self, amount: u64) -> f64 {
        match self {
            Self::Tokens => amount as f64,
            Self::Usd => nanos_to_dollars(amount),
        }
    }

    /// `$5.02 of $5.00`, `1200 of 1000 tokens`.
    fn format_amounts(self, used: u64, limit: u64) -> String {
        match self {
            Self::Tokens => format!("{used} of {limit} tokens"),
            Self::Usd => format!("{} of {}", format_money(used), format_money(limit)),
        }
    }

    /// An amount in JSON, in tokens or dollars.
    pub fn to_json(self, amount: u64) -> serde_json::Value {
        match self {
            Self::Tokens => amount.into(),
            Self::Usd => nanos_to_dollars(amount).into(),
        }
    }

    /// The reverse of [`Self::to_display`].
    pub(crate) fn parse_display(self, displayed: f64) -> u64 {
        match self {
            Self::Tokens => dollars_to_nanos(displayed / 1e9),
            Self::Usd => dollars_to_nanos(displayed),
        }
    }
}

/// Formats dollars with at least cents and at most millionths.
fn format_money(nanos: u64) -> String {
    let text = format!("{:.6}", nanos_to_dollars(nanos));
    let (whole, parts) = text.split_once('.').unwrap_or((&text, ""));
    let parts = parts.trim_end_matches('0');
    format!("${whole}.{parts:0<2}")
}

/// The subject of a budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BudgetLevel {
    Prompt,
    Conversation,
    User,
    Agent,
    Tenant,
}

impl BudgetLevel {
    /// The name in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Prompt => "prompt",
            Self::Conversation => "conversation",
            Self::User => "user",
            Self::Agent => "agent",
            Self::Tenant => "tenant",
        }
    }
}

/// Period of an account's limit; days and months are in UTC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BudgetPeriod {
    Day,
    Month,
    Total,
}

impl BudgetPeriod {
    /// The name in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Day => "day",
            Self::Month => "month",
            Self::Total => "total",
        }
    }
}

/// An approved increase of a limit, valid while the configured limit is unchanged.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LimitIncrease {
    pub unit: BudgetUnit,
    pub from: u64,
    pub to: u64,
}

/// An increase of an account's limit, entered into the account before the next call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ApprovedIncrease {
    pub level: BudgetLevel,
    pub period: BudgetPeriod,
    /// UTC day or month for which it is valid.
    #[serde(rename = "span")]
    pub date: String,
    #[serde(rename = "raise")]
    pub increase: LimitIncrease,
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use turnwheel_json::raw::RawJson;

    fn cost(nanos: u64) -> UsageTotals {
        UsageTotals { calls: 1, nanos, ..UsageTotals::default() }
    }

    #[test]
    fn limit_increase_applies_only_to_its_limit() {
        let increases = [LimitIncrease {
            unit: BudgetUnit::Usd,
            from: dollars_to_nanos(5.0),
            to: dollars_to_nanos(9.0),
        }];
        let limit = |usd| Limit { usd: Some(usd), tokens: None };
        let used = cost(dollars_to_nanos(6.0));
        assert_eq!(limit(5.0).find_exceeded(&increases, &used), None);
        assert!(
            limit(5.5).find_exceeded(&increases, &used).is_some(),
            "the configured limit differs"
        );
        let exceeded = limit(5.0).find_exceeded(&[], &used).unwrap();
        assert_eq!((exceeded.limit, exceeded.used), (dollars_to_nanos(5.0), dollars_to_nanos(6.0)));
    }

    #[test]
    fn amounts_are_formatted_for_display() {
        assert_eq!(format_money(dollars_to_nanos(5.0)), "$5.00");
        assert_eq!(format_money(dollars_to_nanos(5.0204)), "$5.0204");
        assert_eq!(format_money(1_000), "$0.000001");
        assert_eq!(BudgetUnit::Tokens.parse_display(BudgetUnit::Tokens.to_display(12_345)), 12_345);
    }

    #[test]
    fn agent_file_budget_is_ceiling_for_callers() {
        use crate::settings::Settings;

        let settings = |budget: serde_json::Value| Settings {
            budget: Some(RawJson::from_value(&budget)),
            ..Settings::default()
        };
        let in_force = |own: serde_json::Value| {
            let agent = settings(json!({"prompt": {"usd": 1.0}, "conversation": {"tokens": 3000}}));
            settings(own).with_fallback(&agent).parse_budget().unwrap()
        };
        let tokens = |count| Limit { tokens: Some(count), usd: None };
        let usd = |usd| Limit { usd: Some(usd), tokens: None };
        let increased = in_force(json!({"conversation": {"tokens": 1_000_000_000}}));
        assert_eq!(increased.conversation, Some(tokens(3000)), "it cannot be lifted");
        assert_eq!(increased.prompt, Some(usd(1.0)), "nor be left out");
        let lowered = in_force(json!({"conversation": {"tokens": 10}, "prompt": {"tokens": 5}}));
        assert_eq!(lowered.conversation, Some(tokens(10)));
        assert_eq!(lowered.prompt, Some(Limit { tokens: Some(5), usd: Some(1.0) }));
    }

    #[test]
    fn empty_or_zero_limit_is_invalid() {
        assert!(Limit::default().validation_error().is_some());
        assert!(Limit { usd: Some(0.0), tokens: None }.validation_error().is_some());
        assert!(Limit { usd: Some(9.99e-10), tokens: None }.validation_error().is_some());
        assert!(Limit { usd: Some(1e-9), tokens: None }.validation_error().is_none());
        assert!(Limit { usd: Some(0.01), tokens: None }.validation_error().is_none());
        assert!(Budget::default().validation_error().is_some());
    }
}
