//! Spending limits from the settings: limits of tenants, users and agents, the approvers of
//! increases, and the request rates of owners.

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
