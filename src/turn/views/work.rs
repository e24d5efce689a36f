//! Backlog query for operators: conversations with pending work, in the order in which it became
//! due.

use std::collections::HashMap;
use std::time::Duration;

use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::clock::Timestamp;
use crate::ids::{ConversationKey, TenantId};
use crate::store::{ConversationStore, Kind, Owed, Partition, StoreError};
use crate::turn::admission::Refusal;
use crate::turn::schedules;
use crate::turn::views::why::{Service, WaitsFor, WhyView, why};

/// Maximum number of conversations in a report.
pub const WORK_MAX: usize = 1_000;
const PAGE: usize = 200;
/// Number of conversations that are read concurrently.
const AT_ONCE: usize = 16;
/// Horizon of the query. All pending work is due before it.
const EVER: Duration = Duration::from_hours(10 * 365 * 24);

/// Selection of conversations.
#[derive(Clone, Debug, Default)]
pub struct WorkQuery {
    /// Absent: all tenants.
    pub tenant: Option<TenantId>,
    /// Only work that was due this long ago and is not paused. A worker should have processed it.
    pub stuck: Option<Duration>,
    /// Only conversations that wait for an approver.
    pub is_waiting: bool,
}

/// Conversations with pending work.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct WorkReport {
    /// The longest pending conversation first.
    pub items: Vec<WhyView>,
    /// `tenant/user/id` of conversations whose record cannot be read.
    pub unreadable: Vec<String>,
    /// True if there are more conversations than the report covers.
    pub is_cut: bool,
    /// Number of overdue notifications; counted only with `stuck`.
    pub notices: usize,
    /// Number of overdue schedules; counted only with `stuck`.
    pub schedules: usize,
}

/// Pending work that the store reports: each conversation once, with its earliest due time.
struct Found {
    conversations: HashMap<ConversationKey, Timestamp>,
    notices: usize,
    schedules: usize,
    is_cut: bool,
}

/// Lists conversations with pending work.
///
/// # Errors
/// Returns [`CommandError::Unavailable`] if the store does not respond: repeat the request.
pub async fn work(
    store: &dyn ConversationStore,
    query: &WorkQuery,
    service: Service<'_>,
    now: Timestamp,
) -> Result<WorkReport, Refusal> {
    let found = found(store, query, now).await?;
    let mut owed: Vec<(ConversationKey, Timestamp)> = found.conversations.into_iter().collect();
    owed.sort_by(|(one, since), (other, later)| (since, one).cmp(&(later, other)));
    let looks = stream::iter(owed).map(|(key, _)| async move {
        match why(store, &key, service, now).await {
            Ok(view) => Ok(Seen::Told(Box::new(view))),
            // An unreadable conversation must not hide the others.
            Err(Refusal::Corrupt(_)) => Ok(Seen::Unreadable(key.to_string())),
            Err(Refusal::NotFound(_)) => Ok(Seen::Gone),
            Err(error) => Err(error),
        }
    });
    let mut looks = looks.buffered(AT_ONCE);
    let mut report = WorkReport {
        is_cut: found.is_cut,
        notices: found.notices,
        schedules: found.schedules,
        ..WorkReport::default()
    };
    while let Some(seen) = looks.try_next().await? {
        match seen {
            Seen::Told(view) if is_meant(query, &view) => report.items.push(*view),
            Seen::Unreadable(key) if !query.is_waiting => report.unreadable.push(key),
            Seen::Told(_) | Seen::Unreadable(_) | Seen::Gone => {}
        }
    }
    Ok(report)
}

enum Seen {
    Told(Box<WhyView>),
    Unreadable(String),
    /// The conversation was deleted after the query.
    Gone,
}

fn is_meant(query: &WorkQuery, view: &WhyView) -> bool {
    let is_at_rest = matches!(view.waits_for, WaitsFor::Nothing | WaitsFor::NextPrompt);
    // Paused work is kept on purpose, so it is not stuck.
    let is_kept = query.stuck.is_some() && view.waits_for == WaitsFor::Paused;
    !is_at_rest && !is_kept && (!query.is_waiting || view.waits_for.is_person())
}

async fn found(
    store: &dyn ConversationStore,
    query: &WorkQuery,
    now: Timestamp,
) -> Result<Found, StoreError> {
    let at = query.stuck.map_or_else(|| now.plus(EVER), |stuck| now.minus(stuck));
    let mut found =
        Found { conversations: HashMap::new(), notices: 0, schedules: 0, is_cut: false };
    let mut continuation = None;
    loop {
        let page = store.due(at, PAGE, continuation.as_deref()).await?;
        for owed in page.items {
            note(&mut found, query, owed);
        }
        continuation = page.continuation;
        let is_full = found.conversations.len() >= WORK_MAX;
        found.is_cut = is_full && continuation.is_some();
        if is_full || continuation.is_none() {
            return Ok(found);
        }
    }
}

fn note(found: &mut Found, query: &WorkQuery, owed: Owed) {
    let tenant = match &owed.partition {
        Partition::Conversation(key) => &key.tenant,
        Partition::Scope(tenant) => tenant,
    };
    if query.tenant.as_ref().is_some_and(|meant| meant != tenant) {
        return;
    }
    match owed.partition {
        Partition::Scope(_) if schedules::is_schedule(&owed.id) => {
            found.schedules += usize::from(query.stuck.is_some());
        }
        Partition::Scope(_) => {}
        Partition::Conversation(_) if owed.kind == Kind::Notice => {
            found.notices += usize::from(query.stuck.is_some());
        }
        Partition::Conversation(key) => {
            let since = found.conversations.entry(key).or_insert(owed.due);
            *since = (*since).min(owed.due);
        }
    }
}
