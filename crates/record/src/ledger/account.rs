//! A budget account of a tenant: usage and reservations of a user, an agent or the whole tenant,
//! checked against limits.

use serde::{Deserialize, Serialize};

use turnwheel_conversation::budget::{
    AlertMark, ApprovedIncrease, BudgetAlert, BudgetExceeded, BudgetLevel, BudgetPeriod,
    BudgetUnit, Crossing, Limit, LimitIncrease, UnitLimit,
};
use turnwheel_conversation::head::Head;
use turnwheel_conversation::usage::UsageTotals;
use turnwheel_platform::ids::is_plain_text;
use turnwheel_platform::settings::budgets::{ConfiguredLimit, ConfiguredLimits};
use turnwheel_tools::sha256_hex;

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Account {
    /// Upper bound of the running calls' cost.
    #[serde(rename = "held")]
    pub reserved: UsageTotals,
    /// Since the account was opened, which the first call after setting a limit does.
    pub total: UsageTotals,
    day: PeriodUsage,
    month: PeriodUsage,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[serde(rename = "raised")]
    limit_increases: Vec<ApprovedIncrease>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    alert_marks: Vec<PeriodMark>,
}

/// The highest percentage of a period's limit that an alert reported.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct PeriodMark {
    period: BudgetPeriod,
    /// The day or month.
    span: String,
    mark: AlertMark,
}

/// A threshold of an account that spending reached.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct PeriodCrossing {
    period: BudgetPeriod,
    span: String,
    crossing: Crossing,
}

impl PeriodCrossing {
    pub(crate) fn alert(self, level: BudgetLevel, name: &str) -> BudgetAlert {
        BudgetAlert {
            period: Some(self.period),
            date: Some(self.span).filter(|span| !span.is_empty()),
            ..self.crossing.alert(level, name)
        }
    }
}

/// The newest day or month, and its usage.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct PeriodUsage {
    name: String,
    used: UsageTotals,
}

impl PeriodUsage {
    fn count(&mut self, name: &str, cost: UsageTotals) {
        if self.name.as_str() < name {
            *self = Self { name: name.to_owned(), used: UsageTotals::default() };
        }
        // Late usage of an earlier period no longer counts against a limit.
        if self.name == name {
            self.used = self.used.plus(cost);
        }
    }

    fn used_in(&self, name: &str) -> UsageTotals {
        if self.name == name { self.used } else { UsageTotals::default() }
    }
}

/// Budget left for another call.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Availability {
    Available,
    /// Not enough if the running calls cost as much as reserved.
    Uncertain,
    Exhausted(BudgetExceeded),
}

pub fn id(level: BudgetLevel, name: &str) -> String {
    match level {
        BudgetLevel::User => format!("account-user-{}", safe_name(name)),
        BudgetLevel::Agent => format!("account-agent-{}", safe_name(name)),
        // Prompts and conversations have no accounts.
        BudgetLevel::Tenant | BudgetLevel::Prompt | BudgetLevel::Conversation => {
            "account-tenant".to_owned()
        }
    }
}

/// Name of the account's owner.
pub(crate) fn owner_name(level: BudgetLevel, head: &Head) -> &str {
    match level {
        BudgetLevel::User => head.user.as_str(),
        BudgetLevel::Agent => &head.agent,
        BudgetLevel::Tenant | BudgetLevel::Prompt | BudgetLevel::Conversation => {
            head.tenant.as_str()
        }
    }
}

/// The month of a day.
fn month(day: &str) -> &str {
    day.get(..7).unwrap_or(day)
}

/// The name of the period that contains the day.
fn period_key(period: BudgetPeriod, day: &str) -> &str {
    match period {
        BudgetPeriod::Day => day,
        BudgetPeriod::Month => month(day),
        BudgetPeriod::Total => "",
    }
}

impl Account {
    pub fn count(&mut self, day: &str, cost: UsageTotals) {
        self.total = self.total.plus(cost);
        self.day.count(day, cost);
        self.month.count(month(day), cost);
    }

    /// Returns the thresholds that a day's spending reached. Count the spending first; the same
    /// write keeps the marks.
    pub(crate) fn record_crossings(
        &mut self,
        limits: &PeriodLimits,
        day: &str,
        cost: UsageTotals,
    ) -> Vec<PeriodCrossing> {
        let mut crossings = Vec::new();
        for (period, limit) in limits.by_period() {
            let span = period_key(period, day);
            let is_current = |it: &&PeriodMark| it.period == period && it.span == span;
            let marks: Vec<AlertMark> =
                self.alert_marks.iter().filter(is_current).map(|it| it.mark).collect();
            let increases = self.increases(period, day);
            for crossing in limit.crossings(&increases, &marks, &self.used(period, day), &cost) {
                let mark = crossing.mark();
                // The marks of earlier periods are obsolete.
                self.alert_marks.retain(|it| {
                    it.period != period || (it.span == span && it.mark.unit != mark.unit)
                });
                self.alert_marks.push(PeriodMark { period, span: span.to_owned(), mark });
                crossings.push(PeriodCrossing { period, span: span.to_owned(), crossing });
            }
        }
        crossings
    }

    /// Usage in the period that contains `today`.
    pub fn used(&self, period: BudgetPeriod, today: &str) -> UsageTotals {
        match period {
            BudgetPeriod::Day => self.day.used_in(today),
            BudgetPeriod::Month => self.month.used_in(month(today)),
            BudgetPeriod::Total => self.total,
        }
    }

    /// A call may start if anything is left beyond the reservations, so at most one call overspends
    /// an account.
    pub(crate) fn availability(
        &self,
        level: BudgetLevel,
        limits: &PeriodLimits,
        today: &str,
    ) -> Availability {
        let mut availability = Availability::Available;
        for (period, limit) in limits.by_period() {
            let increases = self.increases(period, today);
            let used = self.used(period, today);
            if let Some(up) = limit.find_exceeded(&increases, &used) {
                return Availability::Exhausted(BudgetExceeded {
                    level,
                    period: Some(period),
                    date: Some(period_key(period, today).to_owned()),
                    unit: up.unit,
                    configured_limit: up.configured_limit,
                    limit: up.limit,
                    used: up.used,
                });
            }
            if !self.reserved.is_nothing()
                && is_exhausted(limit, &increases, used.plus(self.reserved))
            {
                availability = Availability::Uncertain;
            }
        }
        availability
    }

    /// The state of each limit of the account on that day.
    pub(crate) fn limit_states(&self, limits: &PeriodLimits, today: &str) -> Vec<LimitState> {
        let states = limits.by_period().flat_map(|(period, limit)| {
            let (increases, used) = (self.increases(period, today), self.used(period, today));
            let units: Vec<_> = limit.in_force(&increases).collect();
            units.into_iter().map(move |UnitLimit { unit, amount }| LimitState {
                period,
                date: period_key(period, today).to_owned(),
                unit,
                limit: amount,
                used: unit.amount_in(&used),
                reserved: unit.amount_in(&self.reserved),
            })
        });
        states.collect()
    }

    fn increases(&self, period: BudgetPeriod, today: &str) -> Vec<LimitIncrease> {
        let now = period_key(period, today);
        let raised = self.limit_increases.iter().filter(|it| it.period == period && it.date == now);
        raised.map(|agreed| agreed.increase.clone()).collect()
    }

    pub(crate) fn needs_increase(&self, agreed: &ApprovedIncrease) -> bool {
        !self
            .limit_increases
            .iter()
            .any(|known| is_same_limit(known, agreed) && known.increase.to >= agreed.increase.to)
    }

    /// The higher of two increases of one limit wins. Expired increases are dropped.
    pub(crate) fn apply_increase(&mut self, agreed: &ApprovedIncrease, today: &str) {
        self.limit_increases.retain(|known| {
            known.date == period_key(known.period, today) && !is_same_limit(known, agreed)
        });
        self.limit_increases.push(agreed.clone());
    }
}

/// A limit of an account in one unit. Amounts are tokens, or billionths of a dollar.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LimitState {
    pub period: BudgetPeriod,
    /// The UTC day or month. Empty in total.
    pub date: String,
    pub unit: BudgetUnit,
    /// With the increases that approvers granted.
    pub limit: u64,
    pub used: u64,
    /// Upper bound of the cost of running calls.
    pub reserved: u64,
}

fn is_exhausted(limit: &Limit, increases: &[LimitIncrease], used: UsageTotals) -> bool {
    limit.find_exceeded(increases, &used).is_some()
}

fn is_same_limit(one: &ApprovedIncrease, other: &ApprovedIncrease) -> bool {
    (one.period, &one.date, one.increase.unit, one.increase.from)
        == (other.period, &other.date, other.increase.unit, other.increase.from)
}

/// Limits of an account in a day, in a month, and in total.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct PeriodLimits {
    pub day: Option<Limit>,
    pub month: Option<Limit>,
    pub total: Option<Limit>,
}

impl PeriodLimits {
    pub(crate) fn from_bounds(bounds: &ConfiguredLimits) -> Self {
        let limit = |bound: Option<ConfiguredLimit>| {
            bound.map(|bound| Limit { tokens: bound.tokens, usd: bound.usd })
        };
        Self { day: limit(bounds.day), month: limit(bounds.month), total: limit(bounds.total) }
    }

    pub(crate) fn by_period(&self) -> impl Iterator<Item = (BudgetPeriod, &Limit)> {
        let periods = [
            (BudgetPeriod::Day, &self.day),
            (BudgetPeriod::Month, &self.month),
            (BudgetPeriod::Total, &self.total),
        ];
        periods.into_iter().filter_map(|(period, limit)| Some((period, limit.as_ref()?)))
    }

    pub(crate) fn is_unlimited(&self) -> bool {
        self.by_period().next().is_none()
    }
}

/// Longer names are hashed in document ids.
const NAME_BYTES_MAX: usize = 200;

pub(crate) fn safe_name(name: &str) -> String {
    let is_short = name.len() <= NAME_BYTES_MAX && is_plain_text(name);
    if is_short { name.to_owned() } else { sha256_hex(name.as_bytes()) }
}

#[cfg(test)]
mod tests {
    use crate::ledger::account::*;
    use turnwheel_conversation::usage::dollars_to_nanos;

    fn cost(usd: f64) -> UsageTotals {
        UsageTotals { calls: 1, nanos: dollars_to_nanos(usd), ..UsageTotals::default() }
    }

    fn limits(day: f64, month: f64) -> PeriodLimits {
        let usd = |usd| Some(Limit { usd: Some(usd), tokens: None });
        PeriodLimits { day: usd(day), month: usd(month), total: None }
    }

    #[test]
    fn new_day_resets_daily_budget_but_not_monthly() {
        let mut account = Account::default();
        let limits = limits(1.0, 1.5);
        account.count("2026-11-21", cost(1.0));
        let Availability::Exhausted(short) =
            account.availability(BudgetLevel::User, &limits, "2026-11-21")
        else {
            panic!()
        };
        assert_eq!(
            (short.period, short.date.as_deref()),
            (Some(BudgetPeriod::Day), Some("2026-11-21"))
        );
        assert_eq!(
            account.availability(BudgetLevel::User, &limits, "2026-11-22"),
            Availability::Available
        );
        account.count("2026-11-22", cost(0.6));
        // Late usage no longer counts for this day.
        account.count("2026-11-21", cost(0.1));
        let Availability::Exhausted(short) =
            account.availability(BudgetLevel::User, &limits, "2026-11-22")
        else {
            panic!()
        };
        assert_eq!((short.period, short.used), (Some(BudgetPeriod::Month), dollars_to_nanos(1.7)));
        assert_eq!(
            account.availability(BudgetLevel::User, &limits, "2026-12-01"),
            Availability::Available
        );
    }

    #[test]
    fn reservations_make_remaining_budget_uncertain() {
        let mut account = Account::default();
        account.count("2026-11-21", cost(0.5));
        account.reserved = cost(0.4);
        assert_eq!(
            account.availability(BudgetLevel::User, &limits(1.0, 9.0), "2026-11-21"),
            Availability::Available
        );
        account.reserved = cost(0.5);
        assert_eq!(
            account.availability(BudgetLevel::User, &limits(1.0, 9.0), "2026-11-21"),
            Availability::Uncertain
        );
    }

    #[test]
    fn limit_increase_lasts_one_day_and_highest_wins() {
        let mut account = Account::default();
        account.count("2026-11-21", cost(1.0));
        let agreed = |to: f64| ApprovedIncrease {
            level: BudgetLevel::User,
            period: BudgetPeriod::Day,
            date: "2026-11-21".to_owned(),
            increase: LimitIncrease {
                unit: BudgetUnit::Usd,
                from: dollars_to_nanos(1.0),
                to: dollars_to_nanos(to),
            },
        };
        account.apply_increase(&agreed(3.0), "2026-11-21");
        assert!(!account.needs_increase(&agreed(2.0)) && account.needs_increase(&agreed(4.0)));
        assert_eq!(
            account.availability(BudgetLevel::User, &limits(1.0, 9.0), "2026-11-21"),
            Availability::Available
        );
        account.count("2026-11-22", cost(1.0));
        assert!(matches!(
            account.availability(BudgetLevel::User, &limits(1.0, 9.0), "2026-11-22"),
            Availability::Exhausted(_)
        ));
    }
}
