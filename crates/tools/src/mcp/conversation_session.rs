//! The session of a conversation with a server. Its id is state of the conversation, committed with
//! the result of a call, so that any worker continues the session.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures_util::future::BoxFuture;
use rmcp::model::{
    ClientJsonRpcMessage, ClientNotification, ClientRequest, InitializeResult, JsonRpcMessage,
    ProtocolVersion, ServerCapabilities, ServerJsonRpcMessage, ServerResult,
};
use rmcp::transport::streamable_http_client::StreamableHttpPostResponse;
use serde::{Deserialize, Serialize};
use tokio::time::{Instant, timeout_at};

use crate::mcp::failure::McpFailure;
use crate::mcp::message::ReceivedResult;
use crate::mcp::{McpServer, send};
use crate::plugin_state::CallPluginState;
use crate::{ToolContext, ToolResult};
use turnwheel_conversation::content::Block;
use turnwheel_conversation::plugin_state::{MCP_PREFIX, PluginState, PluginStateChange};
use turnwheel_json::raw::RawJson;

/// Bytes of the id of a session.
const SESSION_ID_BYTES_MAX: usize = 1024;
/// Version of [`StoredSession`].
const STATE_SCHEMA: u32 = 1;

/// A session that a handshake has opened.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ServerSession {
    /// Value of the header `Mcp-Session-Id`.
    session_id: String,
    protocol_version: ProtocolVersion,
}

impl fmt::Debug for ServerSession {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ServerSession(…)")
    }
}

/// The state of a conversation that continues a session.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct StoredSession {
    #[serde(flatten)]
    session: ServerSession,
    /// [`McpServer::identity`] of the server that opened it.
    server: String,
    /// Of the conversation that opened it. A copy of the conversation has another one, and never
    /// uses the session.
    incarnation: String,
}

/// The session of one client of the SDK, which is continued or opened. Clones share it.
#[derive(Clone, Debug, Default)]
pub(super) struct SessionSlot(Arc<Mutex<SlotState>>);

#[derive(Debug, Default)]
struct SlotState {
    /// Used instead of the first handshake.
    continued: Option<ServerSession>,
    /// True while the SDK's handshake is not that of the server.
    is_continuing: bool,
    opened: Option<ServerSession>,
}

impl SessionSlot {
    fn new(continued: Option<ServerSession>) -> Self {
        Self(Arc::new(Mutex::new(SlotState { continued, ..SlotState::default() })))
    }

    /// The response to a message of a handshake that a continued session does not need. `None`: the
    /// server must receive the message.
    pub(super) fn respond(
        &self,
        message: &ClientJsonRpcMessage,
    ) -> Option<StreamableHttpPostResponse> {
        let mut state = self.lock();
        match message {
            JsonRpcMessage::Request(request)
                if matches!(request.request, ClientRequest::InitializeRequest(_)) =>
            {
                // Another handshake of the SDK means that the server has lost the session.
                state.is_continuing = state.continued.is_some();
                let session = state.continued.take()?;
                let result = InitializeResult::new(ServerCapabilities::default())
                    .with_protocol_version(session.protocol_version);
                let result = ServerResult::InitializeResult(result);
                let response = ServerJsonRpcMessage::response(result, request.id.clone());
                Some(StreamableHttpPostResponse::Json(response, Some(session.session_id)))
            }
            JsonRpcMessage::Notification(it)
                if matches!(it.notification, ClientNotification::InitializedNotification(_)) =>
            {
                state.is_continuing.then_some(StreamableHttpPostResponse::Accepted)
            }
            JsonRpcMessage::Request(_)
            | JsonRpcMessage::Notification(_)
            | JsonRpcMessage::Response(_)
            | JsonRpcMessage::Error(_) => None,
        }
    }

    /// Records the session of a response to a handshake.
    pub(super) fn record(&self, message: &ServerJsonRpcMessage, session_id: Option<&str>) {
        if let (JsonRpcMessage::Response(response), Some(id)) = (message, session_id)
            && let ServerResult::InitializeResult(result) = &response.result
        {
            self.lock().opened = Some(ServerSession {
                session_id: id.to_owned(),
                protocol_version: result.protocol_version.clone(),
            });
        }
    }

    fn lock(&self) -> MutexGuard<'_, SlotState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The session of a conversation during one call.
pub(super) struct ConversationSession<'c> {
    server: &'c McpServer,
    state: &'c CallPluginState,
    incarnation: &'c str,
    current: Option<ServerSession>,
    /// True if an earlier session of the conversation is not continued.
    is_replaced: bool,
}

impl<'c> ConversationSession<'c> {
    /// `None`: conversations have no sessions of their own with this server.
    pub(super) fn load(server: &'c McpServer, context: &'c ToolContext) -> Option<Self> {
        let state = context.plugin_state.as_ref()?;
        if !server.has_conversation_sessions() {
            return None;
        }
        let incarnation = context.artifact_scope.incarnation.as_str();
        let stored = state.find(&state_name(server));
        let session = stored.as_ref().and_then(|it| it.value.read::<StoredSession>().ok());
        let is_own =
            |it: &StoredSession| it.server == server.identity && it.incarnation == incarnation;
        let current = session.filter(is_own).map(|it| it.session);
        let is_replaced = stored.is_some() && current.is_none();
        Some(Self { server, state, incarnation, current, is_replaced })
    }

    /// Sends a request in the session. Opens one first if there is none, and once more if the server
    /// has lost it.
    pub(super) async fn request(
        &mut self,
        request: ClientRequest,
        until: Instant,
    ) -> Result<ReceivedResult, McpFailure> {
        let slot = SessionSlot::new(self.current.clone());
        // A trait object: the compiler would not check the SDK's whole future for `Send`.
        let opening: BoxFuture<'_, _> = Box::pin(self.server.open(until, slot.clone()));
        let client = timeout_at(until, opening)
            .await
            .unwrap_or_else(|_| Err(McpFailure::slow_handshake()))?;
        self.store(&slot).map_err(McpFailure::NotSent)?;
        let response = send(&client, request, until).await;
        let is_lost = response.as_ref().is_err_and(McpFailure::needs_new_session);
        let stored = if is_lost { self.forget() } else { self.store(&slot) };
        if let Err(reason) = stored {
            // The call may have run. The next one opens another session.
            tracing::warn!(server = %self.server.name, cause = %reason, "MCP session not stored");
        }
        response
    }

    /// Makes the session that was opened the state of the conversation.
    fn store(&mut self, slot: &SessionSlot) -> Result<(), String> {
        let Some(session) = slot.lock().opened.take() else { return Ok(()) };
        self.is_replaced |= self.current.is_some();
        if session.session_id.len() > SESSION_ID_BYTES_MAX {
            return Err(format!("the id of its session has over {SESSION_ID_BYTES_MAX} bytes"));
        }
        let value = StoredSession {
            session: session.clone(),
            server: self.server.identity.clone(),
            incarnation: self.incarnation.to_owned(),
        };
        self.set_state(RawJson::from_value(&value))?;
        self.current = Some(session);
        Ok(())
    }

    /// Replaces the session by a state without one, so that the next call opens another session and
    /// reports the loss.
    fn forget(&mut self) -> Result<(), String> {
        self.current = None;
        self.is_replaced = true;
        self.set_state(RawJson::from_members(Vec::new()))
    }

    fn set_state(&self, value: RawJson) -> Result<(), String> {
        let state = PluginState { schema: STATE_SCHEMA, value };
        let plugin = state_name(self.server);
        self.state.set(PluginStateChange { plugin, state: Some(state) })
    }

    /// Adds to the result of a call that an earlier session is lost.
    pub(super) fn report_loss(&self, result: &mut ToolResult) {
        if self.is_replaced {
            result.content.push(Block::text(format!(
                "The earlier session of this conversation with the MCP server `{}` has ended. This call ran in a new one: the server may have lost the state of earlier calls.",
                self.server.name
            )));
        }
    }
}

fn state_name(server: &McpServer) -> String {
    format!("{MCP_PREFIX}{}", server.name)
}
