//! Usage query: the daily usage in a tenant's ledger, summed by tenant, user, agent or day.

use std::collections::BTreeMap;

use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use turnwheel_conversation::usage::{Usage, UsageTotals};
use turnwheel_platform::clock::{Timestamp, days_between};
use turnwheel_platform::ids::{TenantId, UserId};
use turnwheel_record::contract::{CommandError, FieldError};
use turnwheel_record::documents;
use turnwheel_record::ledger::{UsageDay, usage_id};
use turnwheel_storage::store::{
    ConversationStore, DocumentKind, Freshness, Partition, Selection, StoreError,
};

/// Number of days of a report without a first day.
const DAYS_DEFAULT: u64 = 30;
const DAYS_MAX: usize = 92;
/// Number of concurrent reads.
const READS_CONCURRENT_MAX: usize = 8;

#[derive(
    Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, strum::EnumString, strum::IntoStaticStr,
)]
#[strum(serialize_all = "lowercase", const_into_str)]
pub enum UsageGrouping {
    Tenant,
    User,
    Agent,
    Day,
}

/// Scope of a report: a whole tenant, or one user.
#[derive(Clone, Debug)]
pub struct UsageScope {
    pub tenant: TenantId,
    pub user: Option<UserId>,
}

/// Range of UTC days, both ends included.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DayRange {
    pub from: String,
    pub to: String,
    all: Vec<String>,
}

impl DayRange {
    /// Parses a range. The default last day is today; the default length is 30 days.
    ///
    /// # Errors
    /// Returns [`CommandError::Invalid`] if an end is not a day, or the range is too long: correct
    /// it.
    pub fn parse(
        from: Option<&str>,
        to: Option<&str>,
        now: Timestamp,
    ) -> Result<Self, CommandError> {
        let to = to.map_or_else(|| now.utc_day(), ToOwned::to_owned);
        let from = match from {
            Some(from) => from.to_owned(),
            None => default_first_day(&to).ok_or_else(|| invalid_day("to"))?,
        };
        let all = days_between(&from, &to).ok_or_else(|| invalid_day("from"))?;
        if all.is_empty() || all.len() > DAYS_MAX {
            let detail = format!("the range from `from` to `to` must have 1 to {DAYS_MAX} days");
            return Err(CommandError::Invalid(vec![FieldError::new("?from", detail)]));
        }
        Ok(Self { from, to, all })
    }
}

/// First day of a range of the default length that ends with that day.
fn default_first_day(to: &str) -> Option<String> {
    let end = turnwheel_platform::clock::parse_iso(&format!("{to}T00:00:00Z"))?;
    let days = std::time::Duration::from_hours(24 * (DAYS_DEFAULT - 1));
    Some(end.minus(days).utc_day())
}

fn invalid_day(name: &str) -> CommandError {
    let detail = format!("`{name}` is a day such as 2026-11-22");
    CommandError::Invalid(vec![FieldError::new(format!("?{name}"), detail)])
}

/// Usage in a range of days.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct UsageReport {
    /// `tenant`, `user`, `agent` or `day`.
    pub by: String,
    /// UTC, as `2026-11-22`; both days are included.
    pub from: String,
    pub to: String,
    /// Sorted by name. Names without usage are left out.
    pub items: Vec<UsageItem>,
}

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct UsageItem {
    /// The tenant, user, agent or day.
    pub name: String,
    pub model_calls: u64,
    #[schema(value_type = Object)]
    pub usage: Usage,
}

/// Sums the usage in the ledger. Usage of the last minutes may be missing.
///
/// # Errors
/// Returns an error if the store does not respond: repeat the request.
pub async fn report_usage(
    store: &dyn ConversationStore,
    scope: &UsageScope,
    by: UsageGrouping,
    days: DayRange,
) -> Result<UsageReport, StoreError> {
    let mut sums: BTreeMap<String, UsageTotals> = BTreeMap::new();
    for usage_day in read_days(store, scope, &days).await? {
        for (agent, spent) in usage_day.agents {
            let name = match by {
                UsageGrouping::Tenant => scope.tenant.as_str().to_owned(),
                UsageGrouping::User => usage_day.user.as_str().to_owned(),
                UsageGrouping::Agent => agent,
                UsageGrouping::Day => usage_day.day.clone(),
            };
            let sum = sums.entry(name).or_default();
            *sum = sum.plus(spent);
        }
    }
    let items = sums.into_iter().map(|(name, spent)| UsageItem {
        name,
        model_calls: spent.calls,
        usage: spent.to_usage(),
    });
    Ok(UsageReport {
        by: by.into_str().to_owned(),
        items: items.collect(),
        from: days.from,
        to: days.to,
    })
}

async fn read_days(
    store: &dyn ConversationStore,
    scope: &UsageScope,
    days: &DayRange,
) -> Result<Vec<UsageDay>, StoreError> {
    let partition = Partition::Scope(scope.tenant.clone());
    let found = if let Some(user) = &scope.user {
        let ids: Vec<String> = days.all.iter().map(|day| usage_id(day, user.as_str())).collect();
        let reads = stream::iter(ids).map(|id| {
            let partition = &partition;
            async move { store.read(partition, &id, Freshness::Any).await }
        });
        let found: Vec<_> = reads.buffered(READS_CONCURRENT_MAX).try_collect().await?;
        found.into_iter().flatten().collect()
    } else {
        // A dot sorts after the hyphen that follows the day.
        let selection = Selection {
            from_id: Some(format!("usage-{}", days.from)),
            to_id: Some(format!("usage-{}.", days.to)),
            ..Selection::all(DocumentKind::Scope)
        };
        store.select(&partition, &selection, Freshness::Any).await?
    };
    found.iter().map(|stored| documents::read(&stored.document)).collect()
}

#[cfg(test)]
mod tests {
    use crate::usage::*;

    #[test]
    fn day_range_is_parsed_and_bounded() {
        let now = Timestamp(1_795_292_349_669);
        let days = DayRange::parse(None, None, now).unwrap();
        assert_eq!(
            (days.from.as_str(), days.to.as_str(), days.all.len()),
            ("2026-10-23", "2026-11-21", 30)
        );
        let one = DayRange::parse(Some("2026-02-28"), Some("2026-03-01"), now).unwrap();
        assert_eq!(one.all, ["2026-02-28", "2026-03-01"]);
        for (from, to) in [
            ("2026-13-01", None),
            ("yesterday", None),
            ("2026-11-22", None),
            ("2026-01-01", None),
            ("2026-11-01", Some("x")),
        ] {
            assert!(
                matches!(DayRange::parse(Some(from), to, now), Err(CommandError::Invalid(_))),
                "{from}"
            );
        }
        assert!(DayRange::parse(None, Some("x"), now).is_err());
    }
}
