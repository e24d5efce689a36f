//! A budget account of a tenant: usage and reservations of a user, an agent or the whole tenant,
//! checked against limits.

use serde::{Deserialize, Serialize};

use crate::agent::budget::{
    Agreed, AlertMark, BudgetAlert, Crossing, Level, Limit, Period, Raise, Shortage,
};
use crate::agent::head::Head;
use crate::agent::usage::Tally;
use crate::turn::books::safe;
use crate::turn::money::Limits;

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(in crate::turn) struct Account {
    /// Upper bound of the running calls' cost.
    pub(in crate::turn) held: Tally,
    /// Since the account was opened, which the first call after setting a limit does.
    pub(in crate::turn) total: Tally,
    day: Span,
    month: Span,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    raised: Vec<Agreed>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    alert_marks: Vec<PeriodMark>,
}

/// The highest percentage of a period's limit that an alert reported.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct PeriodMark {
    period: Period,
    /// The day or month.
    span: String,
    mark: AlertMark,
}

/// A threshold of an account that spending reached.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct PeriodCrossing {
    period: Period,
    span: String,
    crossing: Crossing,
}

impl PeriodCrossing {
    pub(super) fn alert(self, level: Level, name: &str) -> BudgetAlert {
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
struct Span {
    name: String,
    used: Tally,
}

impl Span {
    fn count(&mut self, name: &str, cost: Tally) {
        if self.name.as_str() < name {
            *self = Self { name: name.to_owned(), used: Tally::default() };
        }
        // Late usage of an earlier period no longer counts against a limit.
        if self.name == name {
            self.used = self.used.plus(cost);
        }
    }

    fn used_in(&self, name: &str) -> Tally {
        if self.name == name { self.used } else { Tally::default() }
    }
}

/// Budget left for another call.
#[derive(Clone, Debug, PartialEq)]
pub(in crate::turn) enum Room {
    Enough,
    /// Not enough if the running calls cost as much as reserved.
    Perhaps,
    None(Shortage),
}

pub(in crate::turn) fn id(level: Level, name: &str) -> String {
    match level {
        Level::User => format!("account-user-{}", safe(name)),
        Level::Agent => format!("account-agent-{}", safe(name)),
        // Prompts and conversations have no accounts.
        Level::Tenant | Level::Prompt | Level::Conversation => "account-tenant".to_owned(),
    }
}

/// Name of the account's owner.
pub(in crate::turn) fn name_in(level: Level, head: &Head) -> &str {
    match level {
        Level::User => head.user.as_str(),
        Level::Agent => &head.agent,
        Level::Tenant | Level::Prompt | Level::Conversation => head.tenant.as_str(),
    }
}

/// The month of a day.
fn month(day: &str) -> &str {
    day.get(..7).unwrap_or(day)
}

/// The name of the period that contains the day.
fn span(period: Period, day: &str) -> &str {
    match period {
        Period::Day => day,
        Period::Month => month(day),
        Period::Total => "",
    }
}

impl Account {
    pub(super) fn count(&mut self, day: &str, cost: Tally) {
        self.total = self.total.plus(cost);
        self.day.count(day, cost);
        self.month.count(month(day), cost);
    }

    /// Returns the thresholds that a day's spending reached. Count the spending first; the same
    /// write keeps the marks.
    pub(super) fn cross(&mut self, limits: &Limits, day: &str, cost: Tally) -> Vec<PeriodCrossing> {
        let mut crossings = Vec::new();
        for (period, limit) in limits.by_period() {
            let span = span(period, day);
            let is_current = |it: &&PeriodMark| it.period == period && it.span == span;
            let marks: Vec<AlertMark> =
                self.alert_marks.iter().filter(is_current).map(|it| it.mark).collect();
            let raises = self.raises(period, day);
            for crossing in limit.crossings(&raises, &marks, &self.used(period, day), &cost) {
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
    pub(in crate::turn) fn used(&self, period: Period, today: &str) -> Tally {
        match period {
            Period::Day => self.day.used_in(today),
            Period::Month => self.month.used_in(month(today)),
            Period::Total => self.total,
        }
    }

    /// A call may start if anything is left beyond the reservations, so at most one call overspends
    /// an account.
    pub(in crate::turn) fn room(&self, level: Level, limits: &Limits, today: &str) -> Room {
        let mut room = Room::Enough;
        for (period, limit) in limits.by_period() {
            let raises = self.raises(period, today);
            let used = self.used(period, today);
            if let Some(up) = limit.used_up(&raises, &used) {
                return Room::None(Shortage {
                    level,
                    period: Some(period),
                    span: Some(span(period, today).to_owned()),
                    unit: up.unit,
                    set: up.set,
                    limit: up.limit,
                    used: up.used,
                });
            }
            if !self.held.is_nothing() && is_used_up(limit, &raises, used.plus(self.held)) {
                room = Room::Perhaps;
            }
        }
        room
    }

    fn raises(&self, period: Period, today: &str) -> Vec<Raise> {
        let now = span(period, today);
        let raised = self.raised.iter().filter(|it| it.period == period && it.span == now);
        raised.map(|agreed| agreed.raise.clone()).collect()
    }

    pub(super) fn lacks(&self, agreed: &Agreed) -> bool {
        !self
            .raised
            .iter()
            .any(|known| is_same_limit(known, agreed) && known.raise.to >= agreed.raise.to)
    }

    /// The higher of two increases of one limit wins. Expired increases are dropped.
    pub(super) fn raise(&mut self, agreed: &Agreed, today: &str) {
        self.raised.retain(|known| {
            known.span == span(known.period, today) && !is_same_limit(known, agreed)
        });
        self.raised.push(agreed.clone());
    }
}

fn is_used_up(limit: &Limit, raises: &[Raise], used: Tally) -> bool {
    limit.used_up(raises, &used).is_some()
}

fn is_same_limit(one: &Agreed, other: &Agreed) -> bool {
    (one.period, &one.span, one.raise.unit, one.raise.from)
        == (other.period, &other.span, other.raise.unit, other.raise.from)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::budget::Unit;
    use crate::agent::usage::nanos;

    fn cost(usd: f64) -> Tally {
        Tally { calls: 1, nanos: nanos(usd), ..Tally::default() }
    }

    fn limits(day: f64, month: f64) -> Limits {
        let usd = |usd| Some(Limit { usd: Some(usd), tokens: None });
        Limits { day: usd(day), month: usd(month), total: None }
    }

    #[test]
    fn a_new_day_is_a_new_budget_and_the_month_goes_on() {
        let mut account = Account::default();
        let limits = limits(1.0, 1.5);
        account.count("2026-11-21", cost(1.0));
        let Room::None(short) = account.room(Level::User, &limits, "2026-11-21") else { panic!() };
        assert_eq!((short.period, short.span.as_deref()), (Some(Period::Day), Some("2026-11-21")));
        assert_eq!(account.room(Level::User, &limits, "2026-11-22"), Room::Enough);
        account.count("2026-11-22", cost(0.6));
        // Late usage no longer counts for this day.
        account.count("2026-11-21", cost(0.1));
        let Room::None(short) = account.room(Level::User, &limits, "2026-11-22") else { panic!() };
        assert_eq!((short.period, short.used), (Some(Period::Month), nanos(1.7)));
        assert_eq!(account.room(Level::User, &limits, "2026-12-01"), Room::Enough);
    }

    #[test]
    fn what_others_hold_may_be_all_that_is_left() {
        let mut account = Account::default();
        account.count("2026-11-21", cost(0.5));
        account.held = cost(0.4);
        assert_eq!(account.room(Level::User, &limits(1.0, 9.0), "2026-11-21"), Room::Enough);
        account.held = cost(0.5);
        assert_eq!(account.room(Level::User, &limits(1.0, 9.0), "2026-11-21"), Room::Perhaps);
    }

    #[test]
    fn a_raise_is_good_for_its_day_and_the_higher_one_counts() {
        let mut account = Account::default();
        account.count("2026-11-21", cost(1.0));
        let agreed = |to: f64| Agreed {
            level: Level::User,
            period: Period::Day,
            span: "2026-11-21".to_owned(),
            raise: Raise { unit: Unit::Usd, from: nanos(1.0), to: nanos(to) },
        };
        account.raise(&agreed(3.0), "2026-11-21");
        assert!(!account.lacks(&agreed(2.0)) && account.lacks(&agreed(4.0)));
        assert_eq!(account.room(Level::User, &limits(1.0, 9.0), "2026-11-21"), Room::Enough);
        account.count("2026-11-22", cost(1.0));
        assert!(matches!(
            account.room(Level::User, &limits(1.0, 9.0), "2026-11-22"),
            Room::None(_)
        ));
    }
}
