//! `turnwheel why` and `turnwheel ls`: asked of the running `dev`, of its data folder, or of Cosmos DB; and how they are shown.

use std::fmt::Write as _;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::app::ports;
use crate::app::service::{StartError, io};
use crate::app::upkeep::{RunningDev, running_dev};
use crate::azure::credential::Credentials;
use crate::clock::{Clock as _, SystemClock};
use crate::ids::{ConversationId, ConversationKey, TenantId, UserId, is_plain};
use crate::settings::Settings;
use crate::store::ConversationStore;
use crate::turn::admission::Owner;
use crate::turn::views::load;
use crate::turn::views::why::{Service, WhyView, why};
use crate::turn::views::work::{WORK_MAX, WorkQuery, WorkReport, work};

/// A running `dev` answers at once.
const PATIENCE: Duration = Duration::from_secs(30);
const LOOKING: &str = "look at the conversation";
const ASKING: &str = "ask the running service";

/// A conversation as a person names it.
#[derive(Debug)]
pub(super) struct Named {
    pub(super) id: String,
    pub(super) tenant: String,
    /// Absent: whosever it is, if only one has a conversation of that id.
    pub(super) user: Option<String>,
}

/// Who can be asked.
enum Source {
    Dev(String),
    Store(Arc<dyn ConversationStore>, Service<'static>),
}

/// Where `dev` is when nobody gives it another port.
const DEV: &str = "http://127.0.0.1:7071";

/// # Errors
/// There is nobody: it says what to do.
async fn source(settings: &Settings, data: &Path) -> Result<Source, StartError> {
    if let Some(cosmos) = &settings.cosmos {
        let store = ports::cosmos_store(cosmos, &Credentials::default()).await?;
        return Ok(Source::Store(Arc::new(store), Service::Elsewhere));
    }
    if !data.exists() {
        return if is_dev_at(DEV).await {
            Ok(Source::Dev(DEV.to_owned()))
        } else {
            Err(io("find the conversation's store")(format!(
                "there is no folder {} here, and no `turnwheel dev` at {DEV}: name the data folder with `--data`, or an Azure account in the settings",
                data.display()
            )))
        };
    }
    Ok(match running_dev(data)? {
        RunningDev::At(address) => Source::Dev(address),
        RunningDev::None(store) => Source::Store(store, Service::Stopped),
    })
}

async fn is_dev_at(address: &str) -> bool {
    let Ok(client) = reqwest::Client::builder().timeout(PATIENCE).no_proxy().build() else {
        return false;
    };
    let host = client.get(format!("{address}/admin/host/status")).send().await;
    host.is_ok_and(|response| response.status().is_success())
}

/// What a conversation waits for.
///
/// # Errors
/// Show it and exit: each says what to do.
pub(super) async fn ask_why(
    settings: &Settings,
    data: &Path,
    named: &Named,
) -> Result<WhyView, StartError> {
    let tenant = named.tenant.as_str();
    let given = [Some(named.id.as_str()), Some(tenant), named.user.as_deref()];
    if let Some(given) = given.into_iter().flatten().find(|given| !is_plain(given)) {
        let wrong = format!("`{given}` is no id: it is made of A-Z a-z 0-9 _ . -");
        return Err(StartError::Arguments(wrong));
    }
    let (store, service) = match source(settings, data).await? {
        Source::Store(store, service) => (store, service),
        Source::Dev(address) => {
            let of = named.user.as_ref().map(|user| format!("?userId={user}")).unwrap_or_default();
            let path = format!("/api/conversations/{}/why{of}", named.id);
            return ask_dev(&address, &path, tenant).await;
        }
    };
    let key = key(&*store, named, &TenantId::new(tenant)).await?;
    let now = SystemClock::default().now();
    why(&*store, &key, service, now).await.map_err(io(LOOKING))
}

async fn key(
    store: &dyn ConversationStore,
    named: &Named,
    tenant: &TenantId,
) -> Result<ConversationKey, StartError> {
    let id = ConversationId::new(&named.id);
    if let Some(user) = &named.user {
        let owner = Owner { tenant: tenant.clone(), user: UserId::new(user) };
        return Ok(owner.key(id.as_str()));
    }
    let found = load::of_id(store, tenant, &id).await.map_err(io(LOOKING))?;
    match found.as_slice() {
        [only] => Ok(only.clone()),
        [] => Err(io(LOOKING)(format!(
            "there is no conversation {id} of the tenant {tenant}: name another with `--tenant`, or its owner with `--user`"
        ))),
        several => {
            let users: Vec<&str> = several.iter().map(|key| key.user.as_str()).collect();
            Err(io(LOOKING)(format!(
                "several people have a conversation {id}: say whose with `--user`, one of {}",
                users.join(", ")
            )))
        }
    }
}

/// What is not at rest.
///
/// # Errors
/// Show it and exit: each says what to do.
pub(super) async fn ask_work(
    settings: &Settings,
    data: &Path,
    query: WorkQuery,
) -> Result<WorkReport, StartError> {
    let (store, service) = match source(settings, data).await? {
        Source::Store(store, service) => (store, service),
        Source::Dev(address) => {
            let mut path = format!("/api/work?waiting={}", query.is_waiting);
            if let Some(stuck) = query.stuck {
                let _ = write!(path, "&stuck={}", stuck.as_secs());
            }
            let tenant = query.tenant.unwrap_or_else(|| TenantId::new("default"));
            return ask_dev(&address, &path, tenant.as_str()).await;
        }
    };
    let now = SystemClock::default().now();
    work(&*store, &query, service, now).await.map_err(io("list what is owed"))
}

async fn ask_dev<T: DeserializeOwned>(
    address: &str,
    path: &str,
    tenant: &str,
) -> Result<T, StartError> {
    let client = reqwest::Client::builder().timeout(PATIENCE).no_proxy().build();
    let request = client.map_err(io(ASKING))?.get(format!("{address}{path}"));
    let request = request
        .header("turnwheel-tenant", tenant)
        .header("turnwheel-roles", crate::http::owner::OPERATOR);
    let answer = request.send().await.map_err(io(ASKING))?;
    let is_success = answer.status().is_success();
    let body = answer.bytes().await.map_err(io(ASKING))?;
    if is_success {
        return serde_json::from_slice(&body).map_err(io(ASKING));
    }
    let problem: Value = serde_json::from_slice(&body).unwrap_or_default();
    let detail = problem.get("detail").and_then(Value::as_str).unwrap_or("it did not say why");
    Err(io(ASKING)(detail.to_owned()))
}

/// For a person: the sentence, who has it, and what would let it go on.
pub(super) fn told(view: &WhyView) -> String {
    let mut text = view.why.clone();
    if let Some(claim) = &view.claim {
        let _ = write!(
            text,
            "\n  claim: {} until {}, epoch {}",
            claim.worker, claim.until, claim.epoch
        );
    }
    if let Some(due) = view.due {
        let _ = write!(text, "\n  due:   {due}");
    }
    for way in &view.unblock {
        let _ = write!(text, "\n  - {way}");
    }
    text
}

/// For a person: a paragraph for each, and what else is overdue.
pub(super) fn listed(report: &WorkReport, is_stuck: bool) -> String {
    let mut lines: Vec<String> = report.items.iter().map(line).collect();
    lines.extend(report.unreadable.iter().map(|key| {
        format!("{key}\n  Its record cannot be read: a person has to look at the store.")
    }));
    if lines.is_empty() {
        lines
            .push(if is_stuck { "Nothing is stuck." } else { "Everything is at rest." }.to_owned());
    }
    if report.notices + report.schedules > 0 {
        lines.push(format!(
            "Overdue too: {} notices, {} schedules. `turnwheel rebuild-queue` rings for them.",
            report.notices, report.schedules
        ));
    }
    if report.is_cut {
        lines.push(format!("There are more: {WORK_MAX} were looked at."));
    }
    lines.join("\n")
}

fn line(view: &WhyView) -> String {
    let WhyView { id, owner, agent, why, .. } = view;
    format!("{}/{}/{id} ({agent})\n  {why}", owner.tenant_id, owner.user_id)
}

/// `90s`, `10m`, `2h`, `1d`.
pub(super) fn span(text: &str) -> Result<Duration, String> {
    let wrong = || format!("`{text}` is no span of time: write 90s, 10m, 2h or 1d");
    let (number, unit) = text.split_at_checked(text.len().saturating_sub(1)).ok_or_else(wrong)?;
    let seconds = match unit {
        "s" => 1,
        "m" => 60,
        "h" => 3_600,
        "d" => 86_400,
        _ => return Err(wrong()),
    };
    let number: u32 = number.parse().map_err(|_| wrong())?;
    Ok(Duration::from_secs(u64::from(number) * seconds))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::head::State;
    use crate::clock::Timestamp;
    use crate::ids::WorkerId;
    use crate::turn::views::conversation::OwnerView;
    use crate::turn::views::why::{ClaimView, WaitsFor};

    fn view() -> WhyView {
        let at = Timestamp(1_795_292_349_669);
        WhyView {
            id: ConversationId::new("c1"),
            owner: OwnerView { tenant_id: TenantId::new("t"), user_id: UserId::new("ada") },
            agent: "clerk".to_owned(),
            state: State::Running,
            why: "A worker has been asking the model since 2026-11-21T20:19:09.669Z.".to_owned(),
            since: at,
            waits_for: WaitsFor::Model,
            due: Some(at),
            claim: Some(ClaimView { worker: WorkerId::new("w1"), until: at, epoch: 3 }),
            unblock: vec!["wait".to_owned()],
        }
    }

    #[test]
    fn a_person_reads_the_sentence_first() {
        insta::assert_snapshot!(told(&view()), @r"
        A worker has been asking the model since 2026-11-21T20:19:09.669Z.
          claim: w1 until 2026-11-21T20:19:09.669Z, epoch 3
          due:   2026-11-21T20:19:09.669Z
          - wait
        ");
        let mut report = WorkReport { items: vec![view()], notices: 2, ..WorkReport::default() };
        report.unreadable.push("t/bob/c2".to_owned());
        insta::assert_snapshot!(listed(&report, true), @r"
        t/ada/c1 (clerk)
          A worker has been asking the model since 2026-11-21T20:19:09.669Z.
        t/bob/c2
          Its record cannot be read: a person has to look at the store.
        Overdue too: 2 notices, 0 schedules. `turnwheel rebuild-queue` rings for them.
        ");
        assert_eq!(listed(&WorkReport::default(), true), "Nothing is stuck.");
        assert_eq!(listed(&WorkReport::default(), false), "Everything is at rest.");
    }

    #[test]
    fn a_span_is_a_number_and_its_unit() {
        assert_eq!(span("10m"), Ok(Duration::from_mins(10)));
        assert_eq!(span("1d"), Ok(Duration::from_hours(24)));
        for wrong in ["", "m", "10", "10min", "-1m", "1.5h", "ü"] {
            assert!(span(wrong).is_err(), "{wrong}");
        }
    }
}
