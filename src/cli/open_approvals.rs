//! The approval requests that an earlier process left open.

use std::collections::BTreeSet;

use turnwheel_platform::ids::TenantId;
use turnwheel_queries::approvals::list_open;
use turnwheel_queries::backlog::find_tenants;
use turnwheel_record::services::Services;

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
