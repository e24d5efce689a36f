//! Backlog query for operators: conversations with pending work, in the order in which it became
//! due.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::why::{ServiceStatus, WaitsFor, WhyView, explain_conversation};
use turnwheel_platform::clock::Timestamp;
use turnwheel_platform::ids::{ConversationKey, TenantId};
use turnwheel_record::contract::CommandError;
use turnwheel_record::documents;
use turnwheel_storage::store::{ConversationStore, DocumentKind, DueItem, Partition, StoreError};

/// Maximum number of conversations in a report.
pub const BACKLOG_MAX: usize = 1_000;
const PAGE_SIZE: usize = 200;
/// Number of conversations that are read concurrently.
const CONCURRENCY_MAX: usize = 16;
/// Horizon of the query. All pending work is due before it.
const HORIZON: Duration = Duration::from_hours(10 * 365 * 24);

/// Selection of conversations.
#[derive(Clone, Debug, Default)]
pub struct BacklogQuery {
    /// Absent: all tenants.
    pub tenant: Option<TenantId>,
    /// Only work that was due this long ago and is not paused. A worker should have processed it.
    pub stuck: Option<Duration>,
    /// Only conversations that wait for an approver.
    pub is_waiting_for_approver: bool,
}

/// Conversations with pending work.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct BacklogReport {
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
struct DueWork {
    conversations: HashMap<ConversationKey, Timestamp>,
    notices: usize,
    schedules: usize,
    is_cut: bool,
}

/// Lists conversations with pending work.
///
/// # Errors
/// Returns [`CommandError::Unavailable`] if the store does not respond: repeat the request.
pub async fn report_backlog(
    store: &dyn ConversationStore,
    query: &BacklogQuery,
    service: ServiceStatus<'_>,
    now: Timestamp,
) -> Result<BacklogReport, CommandError> {
    let found = find_due_work(store, query, now).await?;
    let mut due_conversations: Vec<(ConversationKey, Timestamp)> =
        found.conversations.into_iter().collect();
    due_conversations.sort_by(|(one, since), (other, later)| (since, one).cmp(&(later, other)));
    let explanations = stream::iter(due_conversations).map(|(key, _)| async move {
        match explain_conversation(store, &key, service, now).await {
            Ok(view) => Ok(ExplainResult::Explained(Box::new(view))),
            // An unreadable conversation must not hide the others.
            Err(CommandError::Corrupt(_)) => Ok(ExplainResult::Unreadable(key.to_string())),
            Err(CommandError::NotFound(_)) => Ok(ExplainResult::Deleted),
            Err(error) => Err(error),
        }
    });
    let mut explanations = explanations.buffered(CONCURRENCY_MAX);
    let mut report = BacklogReport {
        is_cut: found.is_cut,
        notices: found.notices,
        schedules: found.schedules,
        ..BacklogReport::default()
    };
    while let Some(result) = explanations.try_next().await? {
        match result {
            ExplainResult::Explained(view) if is_selected(query, &view) => report.items.push(*view),
            ExplainResult::Unreadable(key) if !query.is_waiting_for_approver => {
                report.unreadable.push(key);
            }
            ExplainResult::Explained(_) | ExplainResult::Unreadable(_) | ExplainResult::Deleted => {
            }
        }
    }
    Ok(report)
}

/// Tenants with pending work in conversations. After an error of the store: those found so far.
pub async fn find_tenants(store: &dyn ConversationStore, now: Timestamp) -> BTreeSet<TenantId> {
    let mut tenants = BTreeSet::new();
    let read = read_due_pages(store, now.plus(HORIZON), |items| {
        tenants.extend(items.into_iter().filter_map(|item| match item.partition {
            Partition::Conversation(key) => Some(key.tenant),
            Partition::Scope(_) | Partition::User { .. } => None,
        }));
        true
    });
    if let Err(error) = read.await {
        tracing::warn!(%error, "open approval requests of some tenants not listed");
    }
    tenants
}

enum ExplainResult {
    Explained(Box<WhyView>),
    Unreadable(String),
    /// The conversation was deleted after the query.
    Deleted,
}

fn is_selected(query: &BacklogQuery, view: &WhyView) -> bool {
    let is_idle = matches!(view.waits_for, WaitsFor::Nothing | WaitsFor::NextPrompt);
    // Paused work is kept on purpose, so it is not stuck.
    let is_paused = query.stuck.is_some() && view.waits_for == WaitsFor::Paused;
    !is_idle && !is_paused && (!query.is_waiting_for_approver || view.waits_for.is_decision())
}

async fn find_due_work(
    store: &dyn ConversationStore,
    query: &BacklogQuery,
    now: Timestamp,
) -> Result<DueWork, StoreError> {
    let at = query.stuck.map_or_else(|| now.plus(HORIZON), |stuck| now.minus(stuck));
    let mut found =
        DueWork { conversations: HashMap::new(), notices: 0, schedules: 0, is_cut: false };
    found.is_cut = read_due_pages(store, at, |items| {
        for item in items {
            add_due_item(&mut found, query, item);
        }
        found.conversations.len() < BACKLOG_MAX
    })
    .await?;
    Ok(found)
}

/// Reads due work in pages while `add` returns true. Returns true if there are more pages.
async fn read_due_pages(
    store: &dyn ConversationStore,
    at: Timestamp,
    mut add: impl FnMut(Vec<DueItem>) -> bool,
) -> Result<bool, StoreError> {
    let mut continuation = None;
    loop {
        let page = store.list_due(at, PAGE_SIZE, continuation.as_deref()).await?;
        let is_next_wanted = add(page.items);
        continuation = page.continuation;
        if !is_next_wanted || continuation.is_none() {
            return Ok(continuation.is_some());
        }
    }
}

fn add_due_item(found: &mut DueWork, query: &BacklogQuery, item: DueItem) {
    let tenant = match &item.partition {
        Partition::Conversation(key) => &key.tenant,
        Partition::Scope(tenant) | Partition::User { tenant, .. } => tenant,
    };
    if query.tenant.as_ref().is_some_and(|wanted| wanted != tenant) {
        return;
    }
    match item.partition {
        Partition::Scope(_) if documents::is_schedule_id(&item.id) => {
            found.schedules += usize::from(query.stuck.is_some());
        }
        Partition::Scope(_) | Partition::User { .. } => {}
        Partition::Conversation(_) if item.kind == DocumentKind::Notification => {
            found.notices += usize::from(query.stuck.is_some());
        }
        Partition::Conversation(key) => {
            let since = found.conversations.entry(key).or_insert(item.due);
            *since = (*since).min(item.due);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use turnwheel_platform::ids::{ConversationId, UserId};
    use turnwheel_storage::store::interceptor::{InterceptedStore, StoreInterceptor, StoreRequest};
    use turnwheel_storage::store::memory::MemoryStore;
    use turnwheel_storage::store::{Document, Write};

    /// Permits so many pages of due work.
    #[derive(Debug)]
    struct PageLimit(AtomicUsize);

    impl StoreInterceptor for PageLimit {
        fn before_request(&self, request: &StoreRequest<'_>) -> Result<(), StoreError> {
            let is_list = matches!(request, StoreRequest::ListDue);
            if is_list && self.0.fetch_sub(1, Ordering::Relaxed) == 0 {
                return Err(StoreError::Corrupt("the list".to_owned()));
            }
            Ok(())
        }
    }

    #[tokio::test]
    async fn tenant_is_found_behind_much_pending_work() {
        let store = Arc::new(MemoryStore::new());
        for number in 0..=1_000 {
            let tenant = if number < 1_000 { "busy" } else { "last" };
            let partition = Partition::Conversation(ConversationKey {
                tenant: TenantId::new(tenant),
                user: UserId::new("ada"),
                conversation_id: ConversationId::new(format!("c{number}")),
            });
            let due = Some(Timestamp(number));
            let document = Document::new("n", DocumentKind::Notification, &"x", due);
            store.write(&partition, vec![Write::Create(document)]).await.unwrap();
        }
        let tenants = find_tenants(&*store, Timestamp(1)).await;
        assert_eq!(tenants, BTreeSet::from(["busy", "last"].map(TenantId::new)));
        let limited = InterceptedStore::new(store, PageLimit(AtomicUsize::new(1)));
        let tenants = find_tenants(&limited, Timestamp(1)).await;
        assert_eq!(tenants, BTreeSet::from([TenantId::new("busy")]));
    }
}
