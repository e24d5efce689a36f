//! `turnwheel usage`: queries model usage from a running `dev`, its data folder or Cosmos DB.

use std::fmt::Write as _;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crate::app::ports;
use crate::app::service::{StartError, io};
use crate::app::upkeep::{RunningDev, running_dev};
use crate::azure::credential::Credentials;
use crate::clock::{Clock as _, SystemClock};
use crate::ids::TenantId;
use crate::settings::Settings;
use crate::store::ConversationStore;
use crate::turn::admission::{Fault, Refusal};
use crate::turn::views::usage::{By, Days, UsageItem, UsageReport, Whose, usage};

/// Time limit of a request to a running `dev`, which normally responds at once.
const PATIENCE: Duration = Duration::from_secs(30);

/// Query of the command line.
#[derive(Debug)]
pub(super) struct Question {
    pub(super) by: By,
    pub(super) from: Option<String>,
    pub(super) to: Option<String>,
    pub(super) tenant: String,
}

/// Reads the usage ledger from Cosmos DB, a running `dev` or the data folder.
///
/// # Errors
/// Print the error and exit; each names the fix.
pub(super) async fn ask(
    settings: &Settings,
    data: &Path,
    question: Question,
) -> Result<UsageReport, StartError> {
    let now = SystemClock::default().now();
    let days = Days::read(question.from.as_deref(), question.to.as_deref(), now)
        .map_err(|refusal| StartError::Arguments(faults(&refusal)))?;
    let store: Arc<dyn ConversationStore> = if let Some(cosmos) = &settings.cosmos {
        Arc::new(ports::cosmos_store(cosmos, &Credentials::default()).await?)
    } else {
        match running_dev(data)? {
            RunningDev::At(address) => return ask_dev(&address, &question, &days).await,
            RunningDev::None(store) => store,
        }
    };
    let whose = Whose { tenant: TenantId::new(question.tenant), user: None };
    usage(&*store, &whose, question.by, days).await.map_err(io("read the usage ledger"))
}

/// Converts an error to command-line terms: the member `from` becomes the flag `--from`.
fn faults(refusal: &Refusal) -> String {
    let Refusal::Invalid(faults) = refusal else { return refusal.to_string() };
    let line = |fault: &Fault| fault.detail.replacen('`', "`--", 1);
    faults.iter().map(line).collect::<Vec<_>>().join("; ")
}

async fn ask_dev(
    address: &str,
    question: &Question,
    days: &Days,
) -> Result<UsageReport, StartError> {
    let asking = "query the running service";
    let client = reqwest::Client::builder().timeout(PATIENCE).no_proxy().build();
    let url =
        format!("{address}/api/usage?by={}&from={}&to={}", question.by.name(), days.from, days.to);
    let request = client.map_err(io(asking))?.get(url);
    let request = request
        .header("turnwheel-tenant", &question.tenant)
        .header("turnwheel-roles", crate::http::owner::OPERATOR);
    let answer = request.send().await.map_err(io(asking))?;
    let answer = answer.error_for_status().map_err(io(asking))?;
    let body = answer.bytes().await.map_err(io(asking))?;
    serde_json::from_slice(&body).map_err(io(asking))
}

/// Renders a table with one line for each item.
pub(super) fn table(report: &UsageReport) -> String {
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
    use crate::agent::usage::{Cost, Usage};

    #[test]
    fn a_person_is_shown_a_line_for_each() {
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
        insta::assert_snapshot!(table(&report), @r"
        day           calls        input       cached       output        tokens           USD
        2026-11-22        2         1200            0          300          1500        0.0123
        ");
        report.items.clear();
        assert_eq!(table(&report), "No usage from 2026-11-01 to 2026-11-22.");
    }
}
