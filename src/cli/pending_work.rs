//! `turnwheel why` and `turnwheel ls`: query pending work from a running `dev`, its data folder or
//! Cosmos DB, and render it.

use std::fmt::Write as _;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crate::cli::banner::shell_quote;
use crate::cli::maintenance::{RunningDev, find_running_dev, query_dev, send_to_dev};
use crate::start::ports;
use crate::start::start_error::{StartError, io_error};
use turnwheel_azure::credential::Credentials;
use turnwheel_platform::clock::{Clock as _, SystemClock};
use turnwheel_platform::ids::{ConversationId, ConversationKey, TenantId, UserId, is_plain_text};
use turnwheel_platform::settings::ServiceSettings;
use turnwheel_queries::backlog::{BACKLOG_MAX, BacklogQuery, BacklogReport, report_backlog};
use turnwheel_queries::conversation::OwnerView;
use turnwheel_queries::why::{ServiceStatus, WhyView, explain_conversation};
use turnwheel_record::contract::Owner;
use turnwheel_record::load;
use turnwheel_storage::store::ConversationStore;
use turnwheel_terminal::ServiceArguments;

const READ_ACTION: &str = "read the conversation";

/// Conversation id with its tenant and, if known, its owner, as given on the command line.
#[derive(Debug)]
pub(crate) struct ConversationSelector {
    pub(crate) id: String,
    pub(crate) tenant: String,
    /// Owner. `None` selects the only conversation of the tenant with this id.
    pub(crate) user: Option<String>,
}

impl ConversationSelector {
    pub(crate) fn new(id: &str, arguments: &ServiceArguments) -> Self {
        let tenant = arguments.tenant.clone().unwrap_or_else(|| "default".to_owned());
        Self { id: id.to_owned(), tenant, user: arguments.user.clone() }
    }
}

/// Source of the data: a running `dev` or a store.
enum QuerySource {
    Dev(String),
    Store(Arc<dyn ConversationStore>, ServiceStatus<'static>),
}

/// Default data folder.
pub(crate) const DATA_DIR: &str = ".turnwheel";
/// Default address of `dev`.
pub(crate) const DEFAULT_DEV_ADDRESS: &str = "http://127.0.0.1:7071";

/// Selects Cosmos DB, a running `dev` or the data folder.
///
/// # Errors
/// No source is available: print the error, which names the fix.
async fn find_source(settings: &ServiceSettings, data: &Path) -> Result<QuerySource, StartError> {
    if let Some(cosmos) = &settings.cosmos {
        let store = ports::open_cosmos_store(cosmos, &Credentials::default()).await?;
        return Ok(QuerySource::Store(Arc::new(store), ServiceStatus::Remote));
    }
    if !data.exists() {
        return if is_dev_at(DEFAULT_DEV_ADDRESS).await {
            Ok(QuerySource::Dev(DEFAULT_DEV_ADDRESS.to_owned()))
        } else {
            Err(io_error("find the conversation's store")(format!(
                "there is no folder {}, and no `turnwheel dev` runs at {DEFAULT_DEV_ADDRESS}: set the data folder with `--data`, or Cosmos DB in the settings",
                data.display()
            )))
        };
    }
    Ok(match find_running_dev(data)? {
        RunningDev::Running(address) => QuerySource::Dev(address),
        RunningDev::NotRunning(store) => QuerySource::Store(store, ServiceStatus::Stopped),
    })
}

async fn is_dev_at(address: &str) -> bool {
    let host = send_to_dev(|client| client.get(format!("{address}/admin/host/status"))).await;
    host.is_ok_and(|response| response.status().is_success())
}

/// Returns the reason why a conversation waits, and the address to which its owner sends requests. The
/// address of an app in Azure, whose requests need credentials, is not known.
///
/// # Errors
/// Print the error and exit; each names the fix.
pub(crate) async fn query_why(
    settings: &ServiceSettings,
    data: &Path,
    selector: &ConversationSelector,
) -> Result<(WhyView, Option<String>), StartError> {
    let tenant = selector.tenant.as_str();
    let value = [Some(selector.id.as_str()), Some(tenant), selector.user.as_deref()];
    if let Some(value) = value.into_iter().flatten().find(|value| !is_plain_text(value)) {
        let message = format!("`{value}` is no id: ids consist of A-Z a-z 0-9 _ . -");
        return Err(StartError::Arguments(message));
    }
    let (store, service) = match find_source(settings, data).await? {
        QuerySource::Store(store, service) => (store, service),
        QuerySource::Dev(address) => {
            let user_query =
                selector.user.as_ref().map(|user| format!("?userId={user}")).unwrap_or_default();
            let url = format!("{address}/api/conversations/{}/why{user_query}", selector.id);
            return query_dev(&url, tenant).await.map(|view| (view, Some(address)));
        }
    };
    let address = match service {
        ServiceStatus::Stopped => Some(DEFAULT_DEV_ADDRESS.to_owned()),
        ServiceStatus::Remote | ServiceStatus::Local(_) => None,
    };
    let key = find_conversation(&*store, selector, &TenantId::new(tenant)).await?;
    let now = SystemClock::default().now();
    let explained = explain_conversation(&*store, &key, service, now).await;
    explained.map(|view| (view, address)).map_err(io_error(READ_ACTION))
}

async fn find_conversation(
    store: &dyn ConversationStore,
    selector: &ConversationSelector,
    tenant: &TenantId,
) -> Result<ConversationKey, StartError> {
    let id = ConversationId::new(&selector.id);
    if let Some(user) = &selector.user {
        let owner = Owner { tenant: tenant.clone(), user: UserId::new(user) };
        return Ok(owner.conversation_key(id.as_str()));
    }
    let found =
        load::find_conversations_by_id(store, tenant, &id).await.map_err(io_error(READ_ACTION))?;
    match found.as_slice() {
        [only] => Ok(only.clone()),
        [] => Err(io_error(READ_ACTION)(format!(
            "there is no conversation {id} of the tenant {tenant}: set another tenant with `--tenant`, or the owner with `--user`"
        ))),
        several => {
            let users: Vec<&str> = several.iter().map(|key| key.user.as_str()).collect();
            Err(io_error(READ_ACTION)(format!(
                "several users have a conversation {id}: select one with `--user`: {}",
                users.join(", ")
            )))
        }
    }
}

/// Returns the conversations that are not idle.
///
/// # Errors
/// Print the error and exit; each names the fix.
pub(crate) async fn query_backlog(
    settings: &ServiceSettings,
    data: &Path,
    query: BacklogQuery,
) -> Result<BacklogReport, StartError> {
    let (store, service) = match find_source(settings, data).await? {
        QuerySource::Store(store, service) => (store, service),
        QuerySource::Dev(address) => {
            let mut url = format!("{address}/api/work?waiting={}", query.is_waiting_for_approver);
            if let Some(stuck) = query.stuck {
                let _ = write!(url, "&stuck={}", stuck.as_secs());
            }
            let tenant = query.tenant.unwrap_or_else(|| TenantId::new("default"));
            return query_dev(&url, tenant.as_str()).await;
        }
    };
    let now = SystemClock::default().now();
    report_backlog(&*store, &query, service, now).await.map_err(io_error("list pending work"))
}

/// Renders the reason, the lease, the due time, the ways to continue, and the commands that send the requests among them.
/// `service`: the options that select the service, each after a blank. `None`: no service is known to these commands.
pub(crate) fn render_why(view: &WhyView, service: Option<&str>) -> String {
    let mut text = view.why.clone();
    if let Some(claim) = &view.lease {
        let _ = write!(
            text,
            "\n  lease: held until {} by worker {}, epoch {}",
            claim.until, claim.worker, claim.epoch
        );
    }
    if let Some(due) = view.due {
        let _ = write!(text, "\n  due:   {due}");
    }
    for action in &view.unblock {
        let _ = write!(text, "\n  - {action}");
    }
    let requests = view.requests.iter().filter(|_| service.is_some());
    for request in requests {
        let command = request.command.as_deref().unwrap_or_default();
        let options = service.unwrap_or_default();
        let _ = write!(text, "\n\n  {}:\n    {command}{options}", request.effect);
    }
    text
}

/// The options of the commands for a conversation of a local service.
pub(crate) fn service_options(owner: &OwnerView, data: &Path) -> String {
    let mut options = String::new();
    let OwnerView { tenant_id, user_id } = owner;
    for (name, value) in [("tenant", tenant_id.as_str()), ("user", user_id.as_str())] {
        if value != "default" {
            let _ = write!(options, " --{name} {value}");
        }
    }
    if data != Path::new(DATA_DIR) {
        let _ = write!(options, " --data {}", shell_quote(&data.to_string_lossy()));
    }
    options
}

/// Renders a paragraph for each conversation, then the numbers of other overdue items.
pub(crate) fn render_backlog(report: &BacklogReport, is_stuck: bool) -> String {
    let mut lines: Vec<String> = report.items.iter().map(render_item).collect();
    lines.extend(report.unreadable.iter().map(|key| {
        format!("{key}\n  Its record cannot be read: inspect its document in the store.")
    }));
    if lines.is_empty() {
        lines.push(
            if is_stuck { "Nothing is stuck." } else { "All conversations are idle." }.to_owned(),
        );
    }
    if report.notices + report.schedules > 0 {
        lines.push(format!(
            "Also overdue: {} notifications, {} schedules. `turnwheel rebuild-queue` enqueues them.",
            report.notices, report.schedules
        ));
    }
    if report.is_cut {
        lines.push(format!(
            "The list is incomplete: it covers the first {BACKLOG_MAX} conversations."
        ));
    }
    lines.join("\n")
}

fn render_item(view: &WhyView) -> String {
    let WhyView { id, owner, agent, why, .. } = view;
    format!("{}/{}/{id} ({agent})\n  {why}", owner.tenant_id, owner.user_id)
}

/// Parses a duration such as `90s`, `10m`, `2h` or `1d`.
pub(crate) fn parse_duration(text: &str) -> Result<Duration, String> {
    let error = || format!("`{text}` is no duration: expected a form such as 90s, 10m, 2h or 1d");
    let (number, unit) = text.split_at_checked(text.len().saturating_sub(1)).ok_or_else(error)?;
    let seconds = match unit {
        "s" => 1,
        "m" => 60,
        "h" => 3_600,
        "d" => 86_400,
        _ => return Err(error()),
    };
    let number: u32 = number.parse().map_err(|_| error())?;
    Ok(Duration::from_secs(u64::from(number) * seconds))
}

#[cfg(test)]
mod tests {
    use super::*;
    use turnwheel_conversation::head::State;
    use turnwheel_platform::clock::Timestamp;
    use turnwheel_platform::ids::WorkerId;
    use turnwheel_queries::why::{LeaseView, UnblockRequest, WaitsFor};

    fn view() -> WhyView {
        let at = Timestamp(1_795_292_349_669);
        WhyView {
            id: ConversationId::new("c1"),
            owner: OwnerView { tenant_id: TenantId::new("t"), user_id: UserId::new("ada") },
            agent: "clerk".to_owned(),
            state: State::Running,
            why: "A worker has been calling the model since 2026-11-21T20:19:09.669Z.".to_owned(),
            since: at,
            waits_for: WaitsFor::Model,
            due: Some(at),
            lease: Some(LeaseView { worker: WorkerId::new("w1"), until: at, epoch: 3 }),
            unblock: vec!["wait".to_owned()],
            requests: vec![UnblockRequest {
                method: "POST".to_owned(),
                path: "/api/conversations/c1/abort".to_owned(),
                body: serde_json::json!({"reason": "it's late"}),
                effect: "ends the prompt".to_owned(),
                command: Some("turnwheel abort c1".to_owned()),
            }],
        }
    }

    #[test]
    fn reports_render_reason_first() {
        let options = service_options(&view().owner, Path::new("my data"));
        insta::assert_snapshot!(render_why(&view(), Some(&options)), @r"
        A worker has been calling the model since 2026-11-21T20:19:09.669Z.
          lease: held until 2026-11-21T20:19:09.669Z by worker w1, epoch 3
          due:   2026-11-21T20:19:09.669Z
          - wait

          ends the prompt:
            turnwheel abort c1 --tenant t --user ada --data 'my data'
        ");
        assert!(!render_why(&view(), None).contains("turnwheel abort"));
        assert_eq!(service_options(&view().owner, Path::new(DATA_DIR)), " --tenant t --user ada");
        let mut report =
            BacklogReport { items: vec![view()], notices: 2, ..BacklogReport::default() };
        report.unreadable.push("t/bob/c2".to_owned());
        insta::assert_snapshot!(render_backlog(&report, true), @r"
        t/ada/c1 (clerk)
          A worker has been calling the model since 2026-11-21T20:19:09.669Z.
        t/bob/c2
          Its record cannot be read: inspect its document in the store.
        Also overdue: 2 notifications, 0 schedules. `turnwheel rebuild-queue` enqueues them.
        ");
        assert_eq!(render_backlog(&BacklogReport::default(), true), "Nothing is stuck.");
        assert_eq!(render_backlog(&BacklogReport::default(), false), "All conversations are idle.");
    }

    #[test]
    fn duration_parses_number_with_unit() {
        assert_eq!(parse_duration("10m"), Ok(Duration::from_mins(10)));
        assert_eq!(parse_duration("1d"), Ok(Duration::from_hours(24)));
        for wrong in ["", "m", "10", "10min", "-1m", "1.5h", "ü"] {
            assert!(parse_duration(wrong).is_err(), "{wrong}");
        }
    }
}
