//! Tools of an agent whose definitions come from MCP servers: loaded from the store once per process, and
//! read from the server at the first model call of a prompt and before an approved call. The other
//! files of the driver know them as remote tools.

use std::sync::Arc;

use futures_util::future::{BoxFuture, join_all};

use crate::context::TurnContext;
use crate::conversation_state::ConversationState;
use turnwheel_conversation::entry::EntryBody;
use turnwheel_conversation::frame_entry::{Contribution, FrameInput};
use turnwheel_platform::ids::TenantId;
use turnwheel_record::error::TurnError;
use turnwheel_record::services::Services;
use turnwheel_storage::store::{Document, DocumentKind, Freshness, Partition, StoreError, Write};
use turnwheel_tools::CallableTool;
use turnwheel_tools::mcp::McpServer;
use turnwheel_tools::mcp::definitions::Definitions;
use turnwheel_tools::mcp::tool::McpToolSource;

/// Names in one event.
const CHANGED_TOOLS_MAX: usize = 32;

impl TurnContext {
    fn mcp_sources(&self) -> &[McpToolSource] {
        self.agent.as_ref().map_or(&[], |agent| &agent.mcp)
    }

    /// True if definitions of the agent's tools may change during a turn.
    pub(crate) fn has_remote_tools(&self) -> bool {
        !self.mcp_sources().is_empty()
    }

    /// The active tools whose definitions may change.
    pub(crate) fn remote_tools(&self) -> impl Iterator<Item = &Arc<dyn CallableTool>> {
        self.tools().iter().filter(|tool| tool.mcp_server().is_some())
    }

    /// The texts for the model about tools whose definitions are not known.
    pub(crate) fn missing_tools(&self) -> Vec<Contribution> {
        let texts = self.mcp_sources().iter().filter_map(McpToolSource::missing_text);
        texts.map(|text| Contribution { by: "mcp".to_owned(), text, is_volatile: true }).collect()
    }

    /// Why the definition of this tool is not known. `None`: it is, or it is no remote tool.
    pub(crate) fn missing_tool_text(&self, name: &str) -> Option<String> {
        self.agent.as_ref().ok()?.find_mcp_source(name)?.missing_text()
    }
}

impl ConversationState {
    /// Loads the stored definitions of the agent's remote tools. Costs nothing once this process
    /// knows them. Ends at the deadline of a stop: no call begins any more.
    pub(crate) async fn load_remote_tools(&self, services: &Services) {
        let (scope, servers) = (self.scope(), self.mcp_servers(services));
        tokio::select! {
            biased;
            () = load_definitions(services, &scope, &servers) => {}
            () = services.shutdown.wait_for_deadline(false) => {}
        }
    }

    /// Reads from their servers the old definitions before the first model call of a prompt, and
    /// the missing ones before each.
    pub(crate) async fn refresh_remote_tools(&self, services: &Services) {
        let is_first = self.head.prompt.as_ref().is_some_and(|run| run.rounds == 0);
        let now = services.clock.now();
        let servers = self.mcp_servers(services);
        let due = servers.iter().filter(|server| {
            (is_first || server.definitions().is_none()) && server.should_refresh(now)
        });
        let scope = &self.scope();
        join_all(due.map(|server| refresh_server(services, scope, server))).await;
    }

    /// Reads the definition of an approved call again: an approver has approved one definition.
    /// Reads missing definitions, too.
    ///
    /// # Errors
    /// The server of an approved call cannot be read, so the call must not start. The text is for
    /// the model.
    pub(crate) async fn confirm_remote_tool(
        &self,
        services: &Services,
        context: &TurnContext,
        tool: &str,
        is_approved: bool,
    ) -> Result<(), String> {
        let found = context.find_tool(tool);
        let source = context.agent.as_ref().ok().and_then(|agent| agent.find_mcp_source(tool));
        let server = match (found, source) {
            (Some(found), _) if is_approved => found.mcp_server(),
            (None, Some(source)) => {
                let server = &source.server;
                let is_due = server.definitions().is_none()
                    && (is_approved || server.should_refresh(services.clock.now()));
                Some(server).filter(|_| is_due)
            }
            (Some(_), _) | (None, None) => None,
        };
        let Some(server) = server else { return Ok(()) };
        let refreshed = Box::pin(refresh_server(services, &self.scope(), server)).await;
        refreshed.or_else(|reason| if is_approved { Err(reason) } else { Ok(()) }).map_err(|reason| {
            format!(
                "The MCP server `{}` did not confirm the approved definition of the tool: {reason}. Nothing was sent.",
                server.name
            )
        })
    }

    /// Lists in a new frame the tools whose definitions differ from those in the previous frame.
    ///
    /// # Errors
    /// The previous frame cannot be read: do not call the model.
    pub(crate) async fn list_changed_tools(
        &self,
        services: &Services,
        context: &TurnContext,
        frame: Option<&mut FrameInput>,
    ) -> Result<(), TurnError> {
        let (Some(frame), Some(current)) = (frame, &self.head.frame) else { return Ok(()) };
        if frame.entry.hash == current.hash || context.remote_tools().next().is_none() {
            return Ok(());
        }
        let previous = self.load_entry(services, current.seq).await?;
        let Some(EntryBody::Frame(previous)) = previous.as_ref().map(|entry| &entry.body) else {
            return Ok(());
        };
        let changed = context.remote_tools().map(|tool| tool.definition()).filter(|tool| {
            previous.tools.iter().any(|old| old.name == tool.name && old.revision != tool.revision)
        });
        frame.changed_tools =
            changed.take(CHANGED_TOOLS_MAX).map(|tool| tool.name.clone()).collect();
        Ok(())
    }

    fn scope(&self) -> Partition {
        Partition::Scope(self.key.tenant.clone())
    }

    fn mcp_servers(&self, services: &Services) -> Vec<Arc<McpServer>> {
        let agent = services.agents.find(Some(&self.head.agent));
        distinct_servers(agent.iter().flat_map(|agent| &agent.mcp))
    }
}

/// Loads the stored definitions of a tenant, and reads those that nobody has read. For lists of tools
/// outside a turn. A server that cannot be read has none.
pub async fn load_unknown_definitions<'a>(
    services: &Services,
    tenant: &TenantId,
    sources: impl Iterator<Item = &'a McpToolSource>,
) {
    let (servers, scope) = (distinct_servers(sources), Partition::Scope(tenant.clone()));
    load_definitions(services, &scope, &servers).await;
    let now = services.clock.now();
    let unknown = servers.iter().filter(|it| it.definitions().is_none() && it.should_refresh(now));
    join_all(unknown.map(|server| refresh_server(services, &scope, server))).await;
}

fn distinct_servers<'a>(sources: impl Iterator<Item = &'a McpToolSource>) -> Vec<Arc<McpServer>> {
    let mut servers: Vec<Arc<McpServer>> = Vec::new();
    for source in sources {
        if !servers.iter().any(|server| Arc::ptr_eq(server, &source.server)) {
            servers.push(Arc::clone(&source.server));
        }
    }
    servers
}

async fn load_definitions(services: &Services, scope: &Partition, servers: &[Arc<McpServer>]) {
    for server in servers.iter().filter(|server| !server.is_loaded()) {
        match services.store.read(scope, &server.document_id(), Freshness::Any).await {
            Ok(stored) => {
                let body = stored.map(|it| it.document.body);
                server.adopt(body.and_then(|body| body.read::<Definitions>().ok()));
            }
            // The next delivery reads them again.
            Err(error) => {
                tracing::warn!(server = %server.name, %error, "MCP definitions not loaded");
            }
        }
    }
}

async fn refresh_server(
    services: &Services,
    scope: &Partition,
    server: &Arc<McpServer>,
) -> Result<(), String> {
    // A trait object: the compiler would not check the SDK's whole future for `Send`.
    let refreshed: BoxFuture<'_, _> = Box::pin(server.refresh(services.clock.now()));
    let definitions = refreshed.await?;
    services.fail_points.hit("tool-definitions.before").await;
    let stored = store_definitions(services, scope, server, &definitions).await;
    services.fail_points.hit("tool-definitions.after").await;
    if let Err(error) = stored {
        // Another process reads the server itself.
        tracing::warn!(server = %server.name, %error, "MCP definitions not stored");
    }
    Ok(())
}

async fn store_definitions(
    services: &Services,
    scope: &Partition,
    server: &McpServer,
    definitions: &Definitions,
) -> Result<(), StoreError> {
    let document = Document::new(server.document_id(), DocumentKind::Scope, definitions, None);
    match services.store.write(scope, vec![Write::Replace(document.clone(), None)]).await {
        Err(StoreError::Conflict) => {
            services.store.write(scope, vec![Write::Create(document)]).await.map(drop)
        }
        written => written.map(drop),
    }
}
