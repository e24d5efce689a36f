//! Definitions of MCP tools in a turn: loaded from the store once per process, and read from the
//! server at the first model call of a prompt and before an approved call.

use std::sync::Arc;

use futures_util::future::{BoxFuture, join_all};

use crate::store::{Document, DocumentKind, Freshness, Partition, StoreError, Write};
use crate::tools::mcp::McpServer;
use crate::tools::mcp::definitions::Definitions;
use crate::turn::context::TurnContext;
use crate::turn::leased_conversation::LeasedConversation;

impl LeasedConversation<'_> {
    /// Loads the stored definitions of the agent's servers. Costs nothing once this process knows
    /// them.
    pub(crate) async fn load_mcp_definitions(&self) {
        for server in self.mcp_servers().iter().filter(|server| !server.is_loaded()) {
            let id = server.document_id();
            let read = self.services.store.read(&self.scope(), &id, Freshness::Any).await;
            let stored = read.inspect_err(|error| {
                tracing::warn!(server = %server.name, %error, "MCP definitions not loaded");
            });
            let stored = stored.ok().flatten();
            server.adopt(stored.and_then(|it| it.document.body.read::<Definitions>().ok()));
        }
    }

    /// Reads old definitions from their servers, before the first model call of a prompt.
    pub(crate) async fn refresh_mcp_definitions(&self) {
        if self.state.head.prompt.as_ref().is_none_or(|run| run.rounds > 0) {
            return;
        }
        let now = self.services.clock.now();
        let servers = self.mcp_servers();
        let old = servers.iter().filter(|server| server.should_refresh(now));
        join_all(old.map(|server| self.refresh_mcp_server(server))).await;
    }

    /// Reads the definition of an approved call again: an approver has approved one definition.
    ///
    /// # Errors
    /// The server cannot be read, so the call must not start. The text is for the model.
    pub(crate) async fn confirm_mcp_definition(
        &self,
        context: &TurnContext,
        tool: &str,
    ) -> Result<(), String> {
        let Some(server) = context.find_tool(tool).and_then(|tool| tool.mcp_server()) else {
            return Ok(());
        };
        Box::pin(self.refresh_mcp_server(server)).await.map_err(|reason| {
            format!(
                "The MCP server `{}` did not confirm the approved definition of the tool: {reason}. Nothing was sent.",
                server.name
            )
        })
    }

    async fn refresh_mcp_server(&self, server: &Arc<McpServer>) -> Result<(), String> {
        // A trait object: the compiler would not check the SDK's whole future for `Send`.
        let refreshed: BoxFuture<'_, _> = Box::pin(server.refresh(self.services.clock.now()));
        let definitions = refreshed.await?;
        let stored = self.store_mcp_definitions(server, &definitions).await;
        if let Err(error) = stored {
            // Another process reads the server itself.
            tracing::warn!(server = %server.name, %error, "MCP definitions not stored");
        }
        Ok(())
    }

    async fn store_mcp_definitions(
        &self,
        server: &McpServer,
        definitions: &Definitions,
    ) -> Result<(), StoreError> {
        let document = Document::new(server.document_id(), DocumentKind::Scope, definitions, None);
        let (store, scope) = (&self.services.store, self.scope());
        match store.write(&scope, vec![Write::Replace(document.clone(), None)]).await {
            Err(StoreError::Conflict) => {
                store.write(&scope, vec![Write::Create(document)]).await.map(drop)
            }
            written => written.map(drop),
        }
    }

    fn scope(&self) -> Partition {
        Partition::Scope(self.state.key.tenant.clone())
    }

    fn mcp_servers(&self) -> Vec<Arc<McpServer>> {
        let agent = self.services.agents.find(Some(&self.state.head.agent));
        let mut servers: Vec<Arc<McpServer>> = Vec::new();
        for source in agent.iter().flat_map(|agent| &agent.mcp) {
            if !servers.iter().any(|server| Arc::ptr_eq(server, &source.server)) {
                servers.push(Arc::clone(&source.server));
            }
        }
        servers
    }
}
