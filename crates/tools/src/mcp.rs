//! MCP servers: their tools are tools of agents. Definitions are cached, and sessions are pooled and
//! opened at the first request.

use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use axum::http::{HeaderName, HeaderValue};
use futures_util::future::BoxFuture;
use rmcp::model::{
    ClientCapabilities, ClientConfig, ClientRequest, Implementation, ListToolsRequest,
    PaginatedRequestParams,
};
use rmcp::service::{RunningService, ServiceError, serve_client};
use rmcp::transport::streamable_http_client::{
    StreamableHttpClientTransport, StreamableHttpClientTransportConfig,
};
use rmcp::{ErrorData, RoleClient};
use tokio::time::{Instant, timeout_at};
use url::Url;

use crate::destination::BoundDestination;
use crate::http::client::HttpClient;
use crate::http::redactor::Redactor;
use crate::mcp::authorization::Authorization;
use crate::mcp::conversation_session::SessionSlot;
use crate::mcp::definitions::Definitions;
use crate::mcp::failure::McpFailure;
use crate::mcp::message::{ReceivedResult, received_result};
use crate::mcp::pages::{PageProblem, ToolPages};
pub use crate::mcp::stdio::ServerCommand;
use crate::mcp::transport::{GuardedTransport, McpExchange};
use turnwheel_platform::clock::Timestamp;

mod approval;
pub mod authorization;
mod conversation_session;
pub mod definitions;
mod failure;
#[cfg(test)]
mod fuzz;
mod message;
mod pages;
mod progress;
mod result;
mod stdio;
#[cfg(any(test, feature = "testing"))]
pub mod test_server;
#[cfg(test)]
mod tests;
pub mod tool;
mod transport;
mod unmatched_output;

/// Age at which the first model call of a prompt reads the definitions again.
pub(crate) const REFRESH_AFTER: Duration = Duration::from_mins(10);
/// Age up to which definitions serve while the server cannot be read.
const STALE_MAX: Duration = Duration::from_hours(24);
/// Wait after a failed read of definitions.
const RETRY_AFTER: Duration = Duration::from_mins(1);
/// Time limit of a read of definitions, with the handshake.
const LIST_TIMEOUT: Duration = Duration::from_secs(10);

/// How a server is reached.
#[derive(Debug)]
pub enum Connector {
    Http(Box<HttpConnector>),
    /// A child process. Only for a developer's machine.
    Stdio(ServerCommand),
}

/// A server that speaks streamable HTTP.
#[derive(Clone)]
pub struct HttpConnector {
    pub url: Url,
    /// Their values may be secrets.
    pub headers: Vec<(HeaderName, HeaderValue)>,
    pub auth: Option<Authorization>,
    pub client: HttpClient,
    pub redactor: Redactor,
    /// True if each conversation has a session of its own.
    pub has_conversation_sessions: bool,
}

impl fmt::Debug for HttpConnector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HttpConnector").finish_non_exhaustive()
    }
}

/// A server of `mcp.json`.
pub struct McpServer {
    pub name: String,
    /// Hash of its entry in the file. It covers the names of app settings and not their values.
    pub identity: String,
    /// True if its hints about the effects of tools count.
    pub is_trusted: bool,
    connector: Connector,
    /// The texts of its entry with the values of app settings that are no secrets.
    address: String,
    session: tokio::sync::Mutex<Option<Arc<Session>>>,
    known: RwLock<Known>,
}

type Session = RunningService<RoleClient, ClientConfig>;

/// State of a server's definitions in this process.
#[derive(Default)]
struct Known {
    /// True once the stored definitions were looked up.
    is_loaded: bool,
    definitions: Option<Arc<Definitions>>,
    /// The last failed read since the last successful one.
    failure: Option<(Timestamp, String)>,
}

impl fmt::Debug for McpServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "McpServer({})", self.name)
    }
}

impl McpServer {
    pub fn new(name: &str, identity: String, is_trusted: bool, connector: Connector) -> Self {
        Self {
            name: name.to_owned(),
            identity,
            is_trusted,
            connector,
            address: String::new(),
            session: tokio::sync::Mutex::default(),
            known: RwLock::default(),
        }
    }

    #[must_use]
    pub fn with_address(self, address: String) -> Self {
        Self { address, ..self }
    }

    /// True if its entry and the settings that are no secrets are the same.
    pub fn has_same_source(&self, other: &Self) -> bool {
        (&self.name, &self.identity, &self.address)
            == (&other.name, &other.identity, &other.address)
    }

    /// Where calls of a tool of this server are sent.
    pub fn destination(&self, tool: &str) -> BoundDestination {
        let url = match &self.connector {
            Connector::Http(http) => Some(&http.url),
            Connector::Stdio(_) => None,
        };
        let origin = url.map(|url| url.origin().ascii_serialization()).unwrap_or_default();
        let details = format!("{origin}\n{}\n{}", self.identity, self.address);
        BoundDestination::mcp(&self.name, tool, url, &details)
    }

    /// Id of the document with its definitions, in the partition of each tenant.
    pub fn document_id(&self) -> String {
        format!("mcp-{}-{}", self.name, self.identity)
    }

    /// True for a server that is a child process.
    pub fn is_program(&self) -> bool {
        matches!(self.connector, Connector::Stdio(_))
    }

    /// Removes the secrets from the output of a server that is a child process.
    fn program_redactor(&self) -> Option<&Redactor> {
        match &self.connector {
            Connector::Http(_) => None,
            Connector::Stdio(command) => Some(&command.redactor),
        }
    }

    /// The files that its program's arguments name: a change of their code needs another start.
    pub fn program_files(&self) -> Vec<PathBuf> {
        match &self.connector {
            Connector::Http(_) => Vec::new(),
            Connector::Stdio(command) => command.files(),
        }
    }

    /// True while a session of this process is open: that of a program ends with it.
    pub async fn has_session(&self) -> bool {
        self.session.lock().await.as_ref().is_some_and(|it| !it.is_transport_closed())
    }

    /// Reads the definitions in another session, from another start of a program. Calls under way keep theirs.
    ///
    /// # Errors
    /// As [`Self::refresh`].
    pub async fn restart(&self, now: Timestamp) -> Result<Arc<Definitions>, String> {
        self.session.lock().await.take();
        Box::pin(self.refresh(now)).await
    }

    /// True if the session of a call belongs to its conversation, and not to this process.
    pub fn has_conversation_sessions(&self) -> bool {
        matches!(&self.connector, Connector::Http(http) if http.has_conversation_sessions)
    }

    /// True once the stored definitions were looked up in this process.
    pub fn is_loaded(&self) -> bool {
        self.known(|known| known.is_loaded)
    }

    pub fn definitions(&self) -> Option<Arc<Definitions>> {
        self.known(|known| known.definitions.clone())
    }

    /// Why the last read of the definitions failed.
    pub fn failure(&self) -> Option<String> {
        self.known(|known| known.failure.as_ref().map(|(_, reason)| reason.clone()))
    }

    /// Takes the stored definitions over, if this process has none.
    pub fn adopt(&self, stored: Option<Definitions>) {
        self.change(|known| {
            known.is_loaded = true;
            if known.definitions.is_none() {
                known.definitions = stored.map(Arc::new);
            }
        });
    }

    /// True if the first model call of a prompt reads the definitions.
    pub fn should_refresh(&self, now: Timestamp) -> bool {
        self.known(|known| {
            let is_fresh = known
                .definitions
                .as_ref()
                .is_some_and(|it| it.fetched_at.until(now) < REFRESH_AFTER);
            let has_failed =
                known.failure.as_ref().is_some_and(|(at, _)| at.until(now) < RETRY_AFTER);
            !is_fresh && !has_failed
        })
    }

    /// Reads the definitions from the server.
    ///
    /// # Errors
    /// The server cannot be read. Definitions of the last 24 h stay in force. The text is a reason
    /// for users, without secrets.
    pub async fn refresh(&self, now: Timestamp) -> Result<Arc<Definitions>, String> {
        let until = Instant::now() + LIST_TIMEOUT;
        match Box::pin(self.list_tools(now, until)).await {
            Ok(definitions) => {
                let definitions = Arc::new(definitions);
                let before = self.definitions();
                self.change(|known| {
                    *known = Known {
                        is_loaded: true,
                        definitions: Some(Arc::clone(&definitions)),
                        failure: None,
                    };
                });
                definitions.log_changes(&self.name, before.as_deref());
                Ok(definitions)
            }
            Err(failure) => {
                let reason = failure.to_string();
                let cause = failure.log_text();
                tracing::warn!(server = %self.name, cause, "MCP server not read");
                self.change(|known| {
                    known.is_loaded = true;
                    known.failure = Some((now, reason.clone()));
                    known.definitions.take_if(|it| it.fetched_at.until(now) >= STALE_MAX);
                });
                Err(reason)
            }
        }
    }

    fn known<T>(&self, read: impl FnOnce(&Known) -> T) -> T {
        read(&self.known.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn change(&self, change: impl FnOnce(&mut Known)) {
        change(&mut self.known.write().unwrap_or_else(PoisonError::into_inner));
    }

    async fn list_tools(&self, now: Timestamp, until: Instant) -> Result<Definitions, McpFailure> {
        let mut pages = ToolPages::default();
        loop {
            let params = PaginatedRequestParams::default().with_cursor(pages.cursor());
            // Not `list_tools`, which may return a page that the SDK has cached.
            let mut request = ListToolsRequest::with_param(params);
            request.extensions.insert(Arc::new(McpExchange::read(until)));
            let page = match self.request(request.into(), until).await {
                Ok(page) => page,
                // A page that cannot be had does not cost the others.
                Err(failure) if !pages.is_first() && failure.is_json_rpc() => {
                    self.log_end_of_pages(&failure.log_text());
                    break;
                }
                Err(failure) => return Err(failure),
            };
            match pages.add(&page.json) {
                Ok(true) => {}
                Ok(false) => break,
                Err(PageProblem::Unusable(reason)) => {
                    return Err(McpFailure::Unreadable(reason.as_str().into()));
                }
                Err(PageProblem::End(reason)) => {
                    self.log_end_of_pages(&reason);
                    break;
                }
            }
        }
        let definitions = Definitions::new(now, &pages.into_tools());
        definitions.map_err(|reason| McpFailure::Unreadable(reason.as_str().into()))
    }

    fn log_end_of_pages(&self, reason: &str) {
        tracing::warn!(server = %self.name, cause = %reason, "MCP tool list truncated");
    }

    /// Sends a request in the pooled session, and opens one first if there is none.
    async fn request(
        &self,
        request: ClientRequest,
        until: Instant,
    ) -> Result<ReceivedResult, McpFailure> {
        let session = self.session(until).await?;
        let response = send(&session, request, until).await;
        if response.as_ref().is_err_and(McpFailure::ends_session) {
            self.drop_session(&session).await;
        }
        response
    }

    async fn session(&self, until: Instant) -> Result<Arc<Session>, McpFailure> {
        let opening = async {
            let mut pooled = self.session.lock().await;
            if let Some(session) = pooled.as_ref().filter(|it| !it.is_transport_closed()) {
                return Ok(Arc::clone(session));
            }
            // A trait object: the compiler would not check the SDK's whole future for `Send`.
            let opened: BoxFuture<'_, _> = Box::pin(self.open(until, SessionSlot::default()));
            let session = Arc::new(opened.await?);
            *pooled = Some(Arc::clone(&session));
            Ok(session)
        };
        timeout_at(until, opening).await.unwrap_or_else(|_| Err(McpFailure::slow_handshake()))
    }

    async fn open(&self, until: Instant, slot: SessionSlot) -> Result<Session, McpFailure> {
        let implementation = Implementation::new("turnwheel", env!("CARGO_PKG_VERSION"));
        // Without capabilities: sampling, elicitation and roots are declined.
        let client = ClientConfig::new(ClientCapabilities::default(), implementation);
        let opened = match &self.connector {
            Connector::Http(connector) => {
                let config = StreamableHttpClientTransportConfig::with_uri(connector.url.as_str())
                    .reinit_on_expired_session(true);
                let guarded = GuardedTransport::new((**connector).clone(), until, slot);
                let transport = StreamableHttpClientTransport::with_client(guarded, config);
                serve_client(client, transport).await
            }
            Connector::Stdio(command) => {
                let (transport, end) = command.start()?;
                let opened = serve_client(client, transport).await;
                return opened.map_err(|error| {
                    end.failure().unwrap_or_else(|| McpFailure::from_handshake(&error))
                });
            }
        };
        opened.map_err(|error| McpFailure::from_handshake(&error))
    }

    /// The next request opens another session.
    async fn drop_session(&self, session: &Arc<Session>) {
        let mut pooled = self.session.lock().await;
        if pooled.as_ref().is_some_and(|it| Arc::ptr_eq(it, session)) {
            *pooled = None;
        }
    }
}

/// Sends a request in this session.
async fn send(
    session: &Session,
    request: ClientRequest,
    until: Instant,
) -> Result<ReceivedResult, McpFailure> {
    match timeout_at(until, session.send_request(request)).await {
        Ok(response) => response.map_err(McpFailure::from_service).and_then(received_result),
        Err(_) => Err(McpFailure::Lost("there was no response in time".into())),
    }
}
