//! Budgets: what may be spent, what is spent, and in which words a person is asked when it is used up.

use serde::{Deserialize, Serialize};
use serde_json::json;
use utoipa::ToSchema;

use crate::agent::raw::RawJson;
use crate::agent::usage::{Tally, dollars, nanos};
use crate::clock::Timestamp;

/// Days of which a head remembers what they cost, as long as the tenant's books do not know it; an older one counts to the
/// next.
const DAYS_MAX: usize = 31;

/// A higher limit bounds nothing: it is a slip of the pen.
pub const USD_MAX: f64 = 1e9;
pub const TOKENS_MAX: u64 = 1_000_000_000_000_000;

/// What may be spent; what is absent is not bound.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Limit {
    /// Of input and output together, cached ones too.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokens: Option<u64>,
    /// US dollars, by the price table.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usd: Option<f64>,
}

/// Of a conversation: for each prompt, and for all of them together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Budget {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt: Option<Limit>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub conversation: Option<Limit>,
}

impl Limit {
    /// What it has to be, when it is not.
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

    /// The smaller of both, by unit.
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

    /// What is used up of it first, money before tokens; a limit that was raised counts as raised.
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
    /// The smaller of both limits wherever both have one.
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

    /// What it has to be, when it is not.
    pub fn mistake(&self) -> Option<&'static str> {
        if self.prompt.is_none() && self.conversation.is_none() {
            return Some("a budget has `prompt`, `conversation` or both");
        }
        [self.prompt, self.conversation].iter().flatten().find_map(Limit::mistake)
    }
}

/// The newest raise of this very limit; who sets another limit takes the raise away with the old one.
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
    /// As JSON has it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Tokens => "tokens",
            Self::Usd => "usd",
        }
    }

    /// Tokens, or billionths of a dollar.
    pub fn of(self, tally: &Tally) -> u64 {
        match self {
            Self::Tokens => tally.total_tokens,
            Self::Usd => tally.nanos,
        }
    }

    /// The highest limit that may be set, as people write it.
    #[expect(clippy::cast_precision_loss, reason = "10^15 is exact")]
    pub fn max(self) -> f64 {
        match self {
            Self::Tokens => TOKENS_MAX as f64,
            Self::Usd => USD_MAX,
        }
    }

    /// Tokens or dollars, as people write them.
    #[expect(clippy::cast_precision_loss, reason = "for people")]
    pub fn told(self, amount: u64) -> f64 {
        match self {
            Self::Tokens => amount as f64,
            Self::Usd => dollars(amount),
        }
    }

    /// The reverse of [`Self::told`].
    pub fn amount(self, told: f64) -> u64 {
        match self {
            Self::Tokens => nanos(told / 1e9),
            Self::Usd => nanos(told),
        }
    }
}

/// Whose budget it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Level {
    Prompt,
    Conversation,
    User,
    Agent,
    Tenant,
}

/// For which time an account's limit is; days and months are those of UTC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Period {
    Day,
    Month,
    Total,
}

/// A limit that is reached: in tokens, or in billionths of a dollar.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UsedUp {
    pub unit: Unit,
    /// As it is set.
    pub set: u64,
    /// As it is raised.
    pub limit: u64,
    pub used: u64,
}

/// What is used up, and of what: what a person is asked to extend.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Shortage {
    pub level: Level,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub period: Option<Period>,
    /// The day or month it is about: a raise is good for this one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub span: Option<String>,
    pub unit: Unit,
    /// The limit as it is set, in tokens or billionths of a dollar.
    pub set: u64,
    /// As it was raised before.
    pub limit: u64,
    pub used: u64,
}

impl Shortage {
    /// One sentence with the figures.
    pub fn reason(&self) -> String {
        let when = match self.period {
            Some(Period::Day) => " for today",
            Some(Period::Month) => " for this month",
            Some(Period::Total) | None => "",
        };
        let whose = match self.level {
            Level::Prompt => "this prompt",
            Level::Conversation => "this conversation",
            Level::User => "the user",
            Level::Agent => "the agent",
            Level::Tenant => "the tenant",
        };
        format!("The budget of {whose}{when} is used up: {}.", self.figures())
    }

    /// As clients see it.
    pub fn view(&self) -> RawJson {
        let told = |amount| match self.unit {
            Unit::Tokens => json!(amount),
            Unit::Usd => json!(dollars(amount)),
        };
        let mut view = json!({
            "level": self.level, "unit": self.unit, "limit": told(self.limit), "used": told(self.used),
        });
        if let (Some(period), Some(view)) = (self.period, view.as_object_mut()) {
            view.insert("period".to_owned(), json!(period));
        }
        RawJson::of(&view)
    }

    /// `$5.02 of $5.00`, `1200 of 1000 tokens`.
    fn figures(&self) -> String {
        match self.unit {
            Unit::Tokens => format!("{} of {} tokens", self.used, self.limit),
            Unit::Usd => format!("{} of {}", money(self.used), money(self.limit)),
        }
    }
}

/// At least cents, at most millionths of a dollar.
fn money(nanos: u64) -> String {
    let text = format!("{:.6}", dollars(nanos));
    let (whole, parts) = text.split_once('.').unwrap_or((&text, ""));
    let parts = parts.trim_end_matches('0');
    format!("${whole}.{parts:0<2}")
}

/// A limit that a person raised; it is good as long as the limit stays set as it was.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Raise {
    pub unit: Unit,
    pub from: u64,
    pub to: u64,
}

/// A raise of an account's limit: entered into the account before the next call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Agreed {
    pub level: Level,
    pub period: Period,
    /// The day or month it is good for.
    pub span: String,
    pub raise: Raise,
}

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

    #[test]
    fn a_raise_is_good_for_the_limit_it_raised() {
        let raised = [Raise { unit: Unit::Usd, from: nanos(5.0), to: nanos(9.0) }];
        let limit = |usd| Limit { usd: Some(usd), tokens: None };
        let used = cost(nanos(6.0));
        assert_eq!(limit(5.0).used_up(&raised, &used), None);
        assert!(limit(5.5).used_up(&raised, &used).is_some(), "another limit was set");
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
