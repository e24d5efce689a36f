//! Spending limits from the settings: limits of tenants, users and agents, the approvers of
//! increases, and the request rates of owners.

use crate::agent::budget::{Level, Limit, Period};
use crate::agent::head::Head;
use crate::settings::budgets::{Bound, Bounds, Budgets};
use crate::settings::rates::RateLimits;
use crate::turn::books::account;
use crate::turn::rates::Rates;

/// Limits of accounts, and request rates.
#[derive(Debug, Default)]
pub struct Money {
    tenant: Limits,
    user: Limits,
    /// By name; each agent has its own.
    agents: Vec<(String, Limits)>,
    /// Approvers of increases of an account's limit.
    pub(super) approvers: Vec<String>,
    pub rates: Rates,
}

/// Limits of an account in a day, in a month, and in total.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Limits {
    pub(super) day: Option<Limit>,
    pub(super) month: Option<Limit>,
    pub(super) total: Option<Limit>,
}

impl Limits {
    fn of(bounds: &Bounds) -> Self {
        let limit = |bound: Option<Bound>| {
            bound.map(|bound| Limit { tokens: bound.tokens, usd: bound.usd })
        };
        Self { day: limit(bounds.day), month: limit(bounds.month), total: limit(bounds.total) }
    }

    pub(super) fn by_period(&self) -> impl Iterator<Item = (Period, &Limit)> {
        let periods =
            [(Period::Day, &self.day), (Period::Month, &self.month), (Period::Total, &self.total)];
        periods.into_iter().filter_map(|(period, limit)| Some((period, limit.as_ref()?)))
    }

    fn is_none(&self) -> bool {
        self.by_period().next().is_none()
    }
}

impl Money {
    pub fn new(budgets: &Budgets, rates: &RateLimits) -> Self {
        Self {
            tenant: Limits::of(&budgets.tenant),
            user: Limits::of(&budgets.user),
            agents: budgets
                .agents
                .iter()
                .map(|(name, bounds)| (name.clone(), Limits::of(bounds)))
                .collect(),
            approvers: budgets.approvers.clone(),
            rates: Rates::new(rates),
        }
    }

    /// The accounts that limit a conversation with their owners' names, the narrowest first.
    pub(super) fn accounts_of<'a>(&'a self, head: &'a Head) -> Vec<(Level, &'a str, &'a Limits)> {
        let agent = self.agents.iter().find(|(name, _)| name == &head.agent);
        let bounded = [
            (Level::User, Some(&self.user)),
            (Level::Agent, agent.map(|(_, limits)| limits)),
            (Level::Tenant, Some(&self.tenant)),
        ];
        let bounded = bounded.into_iter().filter_map(|(level, limits)| {
            let limits = limits.filter(|limits| !limits.is_none())?;
            Some((level, account::name_in(level, head), limits))
        });
        bounded.collect()
    }
}
