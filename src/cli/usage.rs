//! `turnwheel usage`: queries model usage from a running `dev`, its data folder or Cosmos DB.

use std::fmt::Write as _;
use std::path::Path;
use std::sync::Arc;

use crate::cli::maintenance::{RunningDev, find_running_dev, query_dev};
use crate::start::ports;
use crate::start::start_error::{StartError, io_error};
use turnwheel_azure::credential::Credentials;
use turnwheel_platform::clock::{Clock as _, SystemClock};
use turnwheel_platform::ids::TenantId;
use turnwheel_platform::settings::ServiceSettings;
use turnwheel_queries::usage::{
    DayRange, UsageGrouping, UsageItem, UsageReport, UsageScope, report_usage,
};
use turnwheel_record::contract::{CommandError, FieldError};
use turnwheel_storage::store::ConversationStore;

/// Query of the command line.
#[derive(Debug)]
pub(crate) struct UsageQuery {
    pub(crate) by: UsageGrouping,
    pub(crate) from: Option<String>,
    pub(crate) to: Option<String>,
    pub(crate) tenant: String,
}

/// Reads the usage ledger from Cosmos DB, a running `dev` or the data folder.
///
/// # Errors
/// Print the error and exit; each names the fix.
pub(crate) async fn query_usage(
    settings: &ServiceSettings,
    data: &Path,
    query: UsageQuery,
) -> Result<UsageReport, StartError> {
    let now = SystemClock::default().now();
    let days = DayRange::parse(query.from.as_deref(), query.to.as_deref(), now)
        .map_err(|error| StartError::Arguments(format_argument_errors(&error)))?;
    let store: Arc<dyn ConversationStore> = if let Some(cosmos) = &settings.cosmos {
        Arc::new(ports::open_cosmos_store(cosmos, &Credentials::default()).await?)
    } else {
        match find_running_dev(data)? {
            RunningDev::Running(address) => {
                let (by, from, to) = (query.by.into_str(), &days.from, &days.to);
                let url = format!("{address}/api/usage?by={by}&from={from}&to={to}");
                return query_dev(&url, &query.tenant).await;
            }
            RunningDev::NotRunning(store) => store,
        }
    };
    let filter = UsageScope { tenant: TenantId::new(query.tenant), user: None };
    report_usage(&*store, &filter, query.by, days).await.map_err(io_error("read the usage ledger"))
}

/// Converts an error to command-line terms: the member `from` becomes the flag `--from`.
fn format_argument_errors(error: &CommandError) -> String {
    let CommandError::Invalid(errors) = error else { return error.to_string() };
    let line = |fault: &FieldError| fault.detail.replacen('`', "`--", 1);
    errors.iter().map(line).collect::<Vec<_>>().join("; ")
}

/// Renders a table with one line for each item.
pub(crate) fn render_table(report: &UsageReport) -> String {
    if report.items.is_empty() {
        return format!("No usage from {} to {}.", report.from, report.to);
    }
    let wide = report.items.iter().map(|item| item.name.chars().count()).max().unwrap_or_default();
    let wide = wide.max(report.by.len());
    let mut text = format!(
        "{:<wide$}  {:>7}  {:>11}  {:>11}  {:>11}  {:>12}  {:>12}",
        report.by, "calls", "input", "cached", "output", "tokens", "USD"
    );
    for item in &report.items {
        let UsageItem { name, model_calls, usage } = item;
        let _ = write!(
            text,
            "\n{name:<wide$}  {model_calls:>7}  {:>11}  {:>11}  {:>11}  {:>12}  {:>12.4}",
            usage.input, usage.cache_read, usage.output, usage.total_tokens, usage.cost.total
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use turnwheel_conversation::usage::{Cost, Usage};

    #[test]
    fn usage_table_has_line_per_item() {
        let usage = Usage {
            input: 1_200,
            output: 300,
            total_tokens: 1_500,
            cost: Cost { total: 0.0123, ..Cost::default() },
            ..Usage::default()
        };
        let mut report = UsageReport {
            by: "day".to_owned(),
            from: "2026-11-01".to_owned(),
            to: "2026-11-22".to_owned(),
            items: vec![UsageItem { name: "2026-11-22".to_owned(), model_calls: 2, usage }],
        };
        insta::assert_snapshot!(render_table(&report), @r"
        day           calls        input       cached       output        tokens           USD
        2026-11-22        2         1200            0          300          1500        0.0123
        ");
        report.items.clear();
        assert_eq!(render_table(&report), "No usage from 2026-11-01 to 2026-11-22.");
    }
}
