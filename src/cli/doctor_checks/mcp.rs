//! Check of `doctor` that reads the tools of each MCP server, and compares them with the stored
//! definitions.

use std::path::Path;

use crate::doctor::{Area, Check};
use crate::start::ports;
use turnwheel_agent_files::McpServers;
use turnwheel_azure::credential::Credentials;
use turnwheel_platform::clock::{Clock as _, SystemClock};
use turnwheel_platform::ids::TenantId;
use turnwheel_platform::settings::ServiceSettings;
use turnwheel_storage::store::embedded::EmbeddedStore;
use turnwheel_storage::store::{ConversationStore, Freshness, Partition};
use turnwheel_tools::mcp::McpServer;
use turnwheel_tools::mcp::definitions::Definitions;

/// Where the stored definitions are.
pub(crate) struct StoreLocation<'s> {
    pub(crate) settings: &'s ServiceSettings,
    pub(crate) credentials: &'s Credentials,
    /// Data folder of `dev`.
    pub(crate) data: &'s Path,
}

impl StoreLocation<'_> {
    /// `None`: there is no store, or it cannot be opened, which another check reports.
    async fn open(&self) -> Option<Box<dyn ConversationStore>> {
        if let Some(account) = &self.settings.cosmos {
            let store = ports::open_cosmos_store(account, self.credentials).await.ok()?;
            return Some(Box::new(store));
        }
        let store = self.data.exists().then(|| EmbeddedStore::open(self.data))?;
        Some(Box::new(store.ok()?))
    }
}

pub(crate) async fn mcp_checks(
    servers: &McpServers,
    is_offline: bool,
    location: &StoreLocation<'_>,
) -> Vec<Check> {
    let mut checks = Vec::new();
    let mut store = None;
    for server in servers.iter() {
        let name = format!("MCP server {}", server.name);
        if is_offline {
            checks.push(Check::skipped(Area::Agents, name, "not checked (--offline)"));
            continue;
        }
        let definitions = match server.refresh(SystemClock::default().now()).await {
            Ok(definitions) => definitions,
            Err(reason) => {
                checks.push(Check::fix(Area::Agents, name, reason));
                continue;
            }
        };
        let tools = format!("lists {} usable tools", definitions.tools.len());
        checks.push(Check::ok(Area::Agents, &*name, tools));
        checks.extend(definitions.rejected.iter().map(|tool| {
            let reason = format!("the tool `{}` is left out: {}", tool.name, tool.reason);
            Check::fix(Area::Agents, &*name, reason)
        }));
        if store.is_none() {
            store = location.open().await;
        }
        let Some(store) = &store else { continue };
        if let Some(stored) = read_stored(&**store, server).await {
            checks.extend(changed_check(&name, &definitions, &stored));
        }
    }
    checks
}

async fn read_stored(store: &dyn ConversationStore, server: &McpServer) -> Option<Definitions> {
    let scope = Partition::Scope(TenantId::new("default"));
    let stored = store.read(&scope, &server.document_id(), Freshness::Any).await.ok()??;
    stored.document.body.read().ok()
}

/// Names the tools whose definitions differ from those that agents have used last.
fn changed_check(name: &str, current: &Definitions, stored: &Definitions) -> Option<Check> {
    let changed = current.changed_since(stored);
    if changed.is_empty() {
        return None;
    }
    let found = format!(
        "changed since {}: {}. Read the new definitions: the model follows their texts",
        stored.fetched_at,
        changed.join(", ")
    );
    Some(Check::ok(Area::Agents, name, found))
}
