//! Spending limits from the settings: limits of tenants, users and agents, the approvers of
//! increases, and the request rates of owners.

use crate::contract::Owner;
use crate::ledger::account;
use crate::ledger::account::PeriodLimits;
use crate::ledger::rate_limit::RateLimiter;
use turnwheel_conversation::budget::BudgetLevel;
use turnwheel_conversation::head::Head;
use turnwheel_platform::settings::budgets::Budgets;
use turnwheel_platform::settings::rate_limits::RateLimits;

/// Limits of accounts, and request rates.
#[derive(Debug, Default)]
pub struct SpendingLimits {
    tenant: PeriodLimits,
    user: PeriodLimits,
    /// By name; each agent has its own.
    agents: Vec<(String, PeriodLimits)>,
    /// Approvers of increases of an account's limit.
    pub approvers: Vec<String>,
    pub rate_limiter: RateLimiter,
}

impl SpendingLimits {
    pub fn new(budgets: &Budgets, rates: &RateLimits) -> Self {
        Self {
            tenant: PeriodLimits::from_bounds(&budgets.tenant),
            user: PeriodLimits::from_bounds(&budgets.user),
            agents: budgets
                .agents
                .iter()
                .map(|(name, bounds)| (name.clone(), PeriodLimits::from_bounds(bounds)))
                .collect(),
            approvers: budgets.approvers.clone(),
            rate_limiter: RateLimiter::new(rates),
        }
    }

    /// The account of a user with limits, and with `is_whole_tenant` those of the agents and of the
    /// tenant: their owners' names and limits.
    pub(crate) fn accounts<'a>(
        &'a self,
        owner: &'a Owner,
        is_whole_tenant: bool,
    ) -> Vec<(BudgetLevel, &'a str, &'a PeriodLimits)> {
        let user = [(BudgetLevel::User, owner.user.as_str(), &self.user)];
        let agents = self.agents.iter().map(|(name, it)| (BudgetLevel::Agent, name.as_str(), it));
        let tenant = [(BudgetLevel::Tenant, owner.tenant.as_str(), &self.tenant)];
        let shared = agents.chain(tenant).filter(|_| is_whole_tenant);
        user.into_iter().chain(shared).filter(|(_, _, limits)| !limits.is_unlimited()).collect()
    }

    /// The accounts that limit a conversation with their owners' names, the narrowest first.
    pub fn limiting_accounts<'a>(
        &'a self,
        head: &'a Head,
    ) -> Vec<(BudgetLevel, &'a str, &'a PeriodLimits)> {
        let agent = self.agents.iter().find(|(name, _)| name == &head.agent);
        let bounded = [
            (BudgetLevel::User, Some(&self.user)),
            (BudgetLevel::Agent, agent.map(|(_, limits)| limits)),
            (BudgetLevel::Tenant, Some(&self.tenant)),
        ];
        let bounded = bounded.into_iter().filter_map(|(level, limits)| {
            let limits = limits.filter(|limits| !limits.is_unlimited())?;
            Some((level, account::owner_name(level, head), limits))
        });
        bounded.collect()
    }
}
