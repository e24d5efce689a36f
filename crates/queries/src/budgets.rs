//! Budgets query: the limits of accounts with their usage.

use std::time::Duration;

use serde::Serialize;
use serde_json::Value;
use utoipa::ToSchema;

use turnwheel_conversation::budget::BudgetPeriod;
use turnwheel_platform::clock::{Timestamp, iso_option, parse_iso};
use turnwheel_record::contract::Owner;
use turnwheel_record::ledger::account::LimitState;
use turnwheel_record::ledger::{AccountLimits, read_limits};
use turnwheel_record::services::Services;
use turnwheel_storage::store::StoreError;

#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct BudgetList {
    /// Those of the caller first, then of agents, then of the tenant.
    pub items: Vec<BudgetView>,
}

/// A limit of `TURNWHEEL_BUDGETS` in one period and unit.
#[serde_with::skip_serializing_none]
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct BudgetView {
    /// `user`, `agent` or `tenant`.
    pub level: &'static str,
    /// Id of the user or tenant, or name of the agent.
    pub name: String,
    /// `day`, `month` or `total`.
    pub period: &'static str,
    /// The UTC day or month, such as `2026-11-22`. Absent in total.
    #[schema(nullable = false)]
    pub date: Option<String>,
    /// `tokens` or `usd`.
    pub unit: &'static str,
    /// In tokens or dollars, with the increases that approvers granted.
    #[schema(value_type = f64)]
    pub limit: Value,
    /// In tokens or dollars. May exceed the limit by one call.
    #[schema(value_type = f64)]
    pub used: Value,
    /// Upper bound of the cost of running calls, in tokens or dollars.
    #[schema(value_type = f64)]
    pub reserved: Value,
    /// Time when `used` begins at 0 again. Absent in total.
    #[serde(with = "iso_option")]
    #[schema(value_type = String, format = DateTime, nullable = false)]
    pub resets_at: Option<Timestamp>,
}

/// Lists the limits of a user, and with `is_whole_tenant` those of the agents and of the tenant.
///
/// # Errors
/// The store is unavailable: repeat the request.
pub async fn list_budgets(
    services: &Services,
    owner: &Owner,
    is_whole_tenant: bool,
) -> Result<BudgetList, StoreError> {
    let accounts = read_limits(services, owner, is_whole_tenant).await?;
    let views = |AccountLimits { level, name, limits }| {
        limits.into_iter().map(move |limit| view(level.name(), &name, limit)).collect::<Vec<_>>()
    };
    Ok(BudgetList { items: accounts.into_iter().flat_map(views).collect() })
}

fn view(level: &'static str, name: &str, state: LimitState) -> BudgetView {
    let LimitState { period, date, unit, limit, used, reserved } = state;
    BudgetView {
        level,
        name: name.to_owned(),
        period: period.name(),
        resets_at: period_end(period, &date),
        date: (period != BudgetPeriod::Total).then_some(date),
        unit: unit.name(),
        limit: unit.to_json(limit),
        used: unit.to_json(used),
        reserved: unit.to_json(reserved),
    }
}

/// The end of the UTC day or month. `None`: the period is all time.
fn period_end(period: BudgetPeriod, date: &str) -> Option<Timestamp> {
    const DAY: Duration = Duration::from_hours(24);
    match period {
        BudgetPeriod::Day => parse_iso(&format!("{date}T00:00:00Z")).map(|start| start.plus(DAY)),
        BudgetPeriod::Month => {
            // The 32nd day after the first is in the next month.
            let later = parse_iso(&format!("{date}-01T00:00:00Z"))?.plus(31 * DAY).utc_day();
            parse_iso(&format!("{}-01T00:00:00Z", later.get(..7)?))
        }
        BudgetPeriod::Total => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn period_ends_at_the_next_day_or_month() {
        let end = |period, date: &str| period_end(period, date).map(|at| at.to_string());
        for (period, date, expected) in [
            (BudgetPeriod::Day, "2026-12-31", "2027-01-01T00:00:00.000Z"),
            (BudgetPeriod::Month, "2026-12", "2027-01-01T00:00:00.000Z"),
            (BudgetPeriod::Month, "2028-02", "2028-03-01T00:00:00.000Z"),
            (BudgetPeriod::Month, "2026-11", "2026-12-01T00:00:00.000Z"),
        ] {
            assert_eq!(end(period, date).as_deref(), Some(expected), "{date}");
        }
        assert_eq!(end(BudgetPeriod::Total, ""), None);
    }
}
