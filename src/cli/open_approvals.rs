//! The approval requests that an earlier process left open.

use std::collections::BTreeSet;
use std::time::Duration;

use turnwheel_platform::clock::Timestamp;
use turnwheel_platform::ids::TenantId;
use turnwheel_queries::approvals::list_open;
use turnwheel_record::services::Services;
use turnwheel_storage::store::{ConversationStore, Partition};

const PAGE_SIZE: usize = 200;
/// All pending work is due before it.
const HORIZON: Duration = Duration::from_hours(10 * 365 * 24);

/// Shows the requests that an earlier process left open: those of all tenants of a data folder. A database that other
/// processes use may have many tenants: only the requests of the tenant `default`.
pub(crate) async fn show_open_approvals(services: &Services) {
    let Some(sender) = &services.notification_sender else { return };
    let mut tenants = BTreeSet::from([TenantId::new("default")]);
    if services.store.is_of_one_process() {
        tenants.extend(find_tenants(&*services.store, services.clock.now()).await);
    }
    for tenant in &tenants {
        match list_open(services, tenant, None, |_, _| true).await {
            Ok(open) => {
                for approval in open {
                    let title = approval.request.display_text();
                    let view = serde_json::to_value(approval.view()).unwrap_or_default();
                    sender.show_open(&approval.key, &title, view);
                }
            }
            Err(error) => {
                tracing::warn!(%tenant, %error, "open approval requests not listed");
            }
        }
    }
}

/// Tenants with pending work. After an error of the store: those found so far.
async fn find_tenants(store: &dyn ConversationStore, now: Timestamp) -> BTreeSet<TenantId> {
    let mut tenants = BTreeSet::new();
    let mut continuation = None;
    loop {
        match store.list_due(now.plus(HORIZON), PAGE_SIZE, continuation.as_deref()).await {
            Ok(page) => {
                tenants.extend(page.items.into_iter().filter_map(|item| match item.partition {
                    Partition::Conversation(key) => Some(key.tenant),
                    Partition::Scope(_) | Partition::User { .. } => None,
                }));
                continuation = page.continuation;
            }
            Err(error) => {
                tracing::warn!(%error, "open approval requests of some tenants not listed");
                return tenants;
            }
        }
        if continuation.is_none() {
            return tenants;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use turnwheel_platform::ids::{ConversationId, ConversationKey, UserId};
    use turnwheel_storage::store::interceptor::{InterceptedStore, StoreInterceptor, StoreRequest};
    use turnwheel_storage::store::memory::MemoryStore;
    use turnwheel_storage::store::{Document, DocumentKind, StoreError, Write};

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
