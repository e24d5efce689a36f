//! Budgets: limits, their exceedance, and the texts of approval requests about them.

mod alert;
mod ledger;
mod shortage;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

pub use self::alert::{AccountAlert, AlertMark, BudgetAlert, Crossing};
pub use self::ledger::{Books, DayEnd, Held};
pub use self::shortage::{Shortage, UsedUp};

use crate::agent::usage::{Tally, dollars, nanos};

/// Largest accepted limit in dollars. A higher one is probably a typing error.
pub const USD_MAX: f64 = 1e9;
pub const TOKENS_MAX: u64 = 1_000_000_000_000_000;

/// A spending limit. An absent unit is unlimited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Limit {
    /// Input and output tokens together, cached ones included.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokens: Option<u64>,
    /// US dollars, by the price table.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usd: Option<f64>,
}

/// Limits of a conversation: one for each prompt, one for all prompts together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Budget {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt: Option<Limit>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub conversation: Option<Limit>,
}

impl Limit {
    /// Error text of an invalid limit.
    pub fn mistake(&self) -> Option<&'static str> {
        if self.tokens.is_none() && self.usd.is_none() {
            return Some("a limit has `tokens`, `usd` or both");
        }
        let is_too_low = self.tokens == Some(0)
            || self.usd.is_some_and(|usd| !usd.is_finite() || nanos(usd) == 0);
        if is_too_low {
            return Some("a limit is more than 0");
        }
        let is_too_high = self.tokens.is_some_and(|tokens| tokens > TOKENS_MAX)
            || self.usd.is_some_and(|usd| usd > USD_MAX);
        is_too_high.then_some("a limit is at most 1000000000 dollars, or 1000000000000000 tokens")
    }

    /// The smaller limit, per unit.
    fn within(self, ceiling: Self) -> Self {
        let usd = match (self.usd, ceiling.usd) {
            (Some(one), Some(other)) => Some(one.min(other)),
            (one, other) => one.or(other),
        };
        let tokens = [self.tokens, ceiling.tokens].into_iter().flatten().min();
        Self { tokens, usd }
    }

    fn bounds(&self) -> [(Unit, Option<u64>); 2] {
        [(Unit::Usd, self.usd.map(nanos)), (Unit::Tokens, self.tokens)]
    }

    /// The exceeded part of the limit, dollars before tokens, with the increases in force.
    pub fn used_up(&self, raised: &[Raise], used: &Tally) -> Option<UsedUp> {
        self.bounds().into_iter().find_map(|(unit, limit)| {
            let set = limit?;
            let limit = raised_to(raised, unit, set);
            let used = unit.of(used);
            (used >= limit).then_some(UsedUp { unit, set, limit, used })
        })
    }
}

impl Budget {
    /// The smaller of both limits wherever both are set.
    #[must_use]
    pub fn within(&self, ceiling: &Self) -> Self {
        let least = |own: Option<Limit>, most: Option<Limit>| match (own, most) {
            (Some(own), Some(most)) => Some(own.within(most)),
            (own, most) => own.or(most),
        };
        Self {
            prompt: least(self.prompt, ceiling.prompt),
            conversation: least(self.conversation, ceiling.conversation),
        }
    }

    /// Error text of an invalid budget.
    pub fn mistake(&self) -> Option<&'static str> {
        if self.prompt.is_none() && self.conversation.is_none() {
            return Some("a budget has `prompt`, `conversation` or both");
        }
        [self.prompt, self.conversation].iter().flatten().find_map(Limit::mistake)
    }
}

/// The limit with its newest increase. An increase applies only while the configured limit is
/// unchanged.
fn raised_to(raised: &[Raise], unit: Unit, limit: u64) -> u64 {
    let raise = raised.iter().rev().find(|raise| raise.unit == unit && raise.from == limit);
    raise.map_or(limit, |raise| raise.to)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Unit {
    Tokens,
    Usd,
}

impl Unit {
    /// The name in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Tokens => "tokens",
            Self::Usd => "usd",
        }
    }

    /// The amount in this unit: tokens, or billionths of a dollar.
    pub fn of(self, tally: &Tally) -> u64 {
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
    pub fn told(self, amount: u64) -> f64 {
        match self {
            Self::Tokens => amount as f64,
            Self::Usd => dollars(amount),
        }
    }

    /// `$5.02 of $5.00`, `1200 of 1000 tokens`.
    fn figures(self, used: u64, limit: u64) -> String {
        match self {
            Self::Tokens => format!("{used} of {limit} tokens"),
            Self::Usd => format!("{} of {}", money(used), money(limit)),
        }
    }

    /// An amount in JSON, in tokens or dollars.
    fn json(self, amount: u64) -> serde_json::Value {
        match self {
            Self::Tokens => amount.into(),
            Self::Usd => dollars(amount).into(),
        }
    }

    /// The reverse of [`Self::to_display`].
    pub fn amount(self, told: f64) -> u64 {
        match self {
            Self::Tokens => nanos(told / 1e9),
            Self::Usd => nanos(told),
        }
    }
}

/// Formats dollars with at least cents and at most millionths.
fn money(nanos: u64) -> String {
    let text = format!("{:.6}", dollars(nanos));
    let (whole, parts) = text.split_once('.').unwrap_or((&text, ""));
    let parts = parts.trim_end_matches('0');
    format!("${whole}.{parts:0<2}")
}

/// The subject of a budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Level {
    Prompt,
    Conversation,
    User,
    Agent,
    Tenant,
}

impl Level {
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
pub enum Period {
    Day,
    Month,
    Total,
}

impl Period {
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
pub struct Raise {
    pub unit: Unit,
    pub from: u64,
    pub to: u64,
}

/// An increase of an account's limit, entered into the account before the next call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Agreed {
    pub level: Level,
    pub period: Period,
    /// UTC day or month for which it is valid.
    pub span: String,
    pub raise: Raise,
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::agent::raw::RawJson;

    fn cost(nanos: u64) -> Tally {
        Tally { calls: 1, nanos, ..Tally::default() }
    }

    #[test]
    fn a_raise_is_good_for_the_limit_it_raised() {
        let raised = [Raise { unit: Unit::Usd, from: nanos(5.0), to: nanos(9.0) }];
        let limit = |usd| Limit { usd: Some(usd), tokens: None };
        let used = cost(nanos(6.0));
        assert_eq!(limit(5.0).used_up(&raised, &used), None);
        assert!(limit(5.5).used_up(&raised, &used).is_some(), "the configured limit differs");
        let up = limit(5.0).used_up(&[], &used).unwrap();
        assert_eq!((up.limit, up.used), (nanos(5.0), nanos(6.0)));
    }

    #[test]
    fn figures_are_for_people() {
        assert_eq!(money(nanos(5.0)), "$5.00");
        assert_eq!(money(nanos(5.0204)), "$5.0204");
        assert_eq!(money(1_000), "$0.000001");
        assert_eq!(Unit::Tokens.amount(Unit::Tokens.told(12_345)), 12_345);
    }

    #[test]
    fn budget_of_an_agent_file_is_a_ceiling_for_callers() {
        use crate::agent::settings::Settings;

        let settings = |budget: serde_json::Value| Settings {
            budget: Some(RawJson::of(&budget)),
            ..Settings::default()
        };
        let in_force = |own: serde_json::Value| {
            let agent = settings(json!({"prompt": {"usd": 1.0}, "conversation": {"tokens": 3000}}));
            settings(own).over(&agent).bounds().unwrap()
        };
        let tokens = |count| Limit { tokens: Some(count), usd: None };
        let usd = |usd| Limit { usd: Some(usd), tokens: None };
        let lifted = in_force(json!({"conversation": {"tokens": 1_000_000_000}}));
        assert_eq!(lifted.conversation, Some(tokens(3000)), "it cannot be lifted");
        assert_eq!(lifted.prompt, Some(usd(1.0)), "nor be left out");
        let lowered = in_force(json!({"conversation": {"tokens": 10}, "prompt": {"tokens": 5}}));
        assert_eq!(lowered.conversation, Some(tokens(10)));
        assert_eq!(lowered.prompt, Some(Limit { tokens: Some(5), usd: Some(1.0) }));
    }

    #[test]
    fn a_limit_of_nothing_is_a_mistake() {
        assert!(Limit::default().mistake().is_some());
        assert!(Limit { usd: Some(0.0), tokens: None }.mistake().is_some());
        assert!(Limit { usd: Some(0.01), tokens: None }.mistake().is_none());
        assert!(Budget::default().mistake().is_some());
    }
}
