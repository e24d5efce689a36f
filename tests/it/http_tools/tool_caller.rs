//! Calls a tool as a turn does: with a context, a deadline and an artifact store.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use tokio_util::sync::CancellationToken;
use turnwheel::ToolResult;
use turnwheel::messages::RawJson;
use turnwheel::testing::agent::content::joined_text;
use turnwheel::testing::agents::{AgentFileContext, McpServers, ToolSet, load_folder};
use turnwheel::testing::artifacts::{ArtifactError, ArtifactMetadata, ArtifactScope, Artifacts};
use turnwheel::testing::clock::{Clock, SystemClock};
use turnwheel::testing::ids::{
    ArtifactId, ConversationId, ConversationKey, EffectId, TenantId, UserId,
};
use turnwheel::testing::tools::http::address_rules::AddressRules;
use turnwheel::testing::tools::http::client::HttpClient;
use turnwheel::testing::tools::{Arguments, CallableTool, ToolContext, ToolOutcome};

use crate::http_tools::server::Server;

/// Loads a tool from an agent file with this specification; `${SERVER}` is the server's URL.
pub(crate) fn tool(spec: &str, server: &Server) -> Arc<dyn CallableTool> {
    tool_at_url(spec, &server.url, AddressRules::default().with_loopback())
}

pub(crate) fn tool_at_url(spec: &str, url: &str, rules: AddressRules) -> Arc<dyn CallableTool> {
    tool_with_client(spec, url, &HttpClient::new(rules).unwrap())
}

pub(crate) fn tool_with_client(
    spec: &str,
    url: &str,
    client: &HttpClient,
) -> Arc<dyn CallableTool> {
    let folder = tempfile::tempdir().unwrap();
    let indented = spec.replace('\n', "\n      ");
    let text = format!("---\ntools:\n  - http:\n      name: the_tool\n      {indented}\n---\nx");
    std::fs::write(folder.path().join("a.agent.md"), text).unwrap();
    let app_settings = |name: &str| match name {
        "SERVER" => Some(url.to_owned()),
        "KEY" => Some("kee-p-this-secret".to_owned()),
        _ => None,
    };
    let tools = ToolSet::new();
    let context = AgentFileContext {
        tools: &tools,
        plugins: &[],
        extensions: &[],
        skills: &[],
        context_files: &[],
        mcp: McpServers::none(),
        app_settings: &app_settings,
        client,
    };
    let loaded = load_folder(folder.path(), "agents", &context);
    assert_eq!(loaded.mistakes, []);
    Arc::clone(&loaded.catalog.find(None).unwrap().tools[0])
}

pub(crate) fn text(result: &ToolResult) -> String {
    joined_text(&result.content)
}

#[derive(Debug)]
pub(crate) struct ToolCaller {
    pub(crate) artifacts: Arc<RecordingArtifacts>,
    pub(crate) effect_id: String,
    /// Time from the start of the call to its deadline.
    pub(crate) time_limit: Duration,
    /// Progress that calls reported.
    pub(crate) progress: Arc<Mutex<Vec<ToolResult>>>,
}

impl ToolCaller {
    pub(crate) fn new() -> Self {
        Self {
            artifacts: Arc::default(),
            effect_id: "tw_c1_i1_7_0".to_owned(),
            time_limit: Duration::from_mins(2),
            progress: Arc::default(),
        }
    }

    #[expect(
        clippy::default_trait_access,
        reason = "the types of package files and stores are private"
    )]
    pub(crate) async fn call(&self, tool: &Arc<dyn CallableTool>, arguments: &str) -> ToolOutcome {
        let progress = Arc::clone(&self.progress);
        let text = RawJson::from_text(arguments).unwrap();
        let clock = SystemClock::default();
        let key = ConversationKey {
            tenant: TenantId::new("default"),
            user: UserId::new("default"),
            conversation_id: ConversationId::new("c1"),
        };
        let context = ToolContext {
            effect_id: EffectId::new(self.effect_id.as_str()),
            attempt: 1,
            tool_call_id: "call_1|fc_\r\n1".to_owned(),
            artifact_scope: ArtifactScope { key, incarnation: "i1".to_owned() },
            artifacts: Arc::clone(&self.artifacts) as _,
            deadline: clock.now().plus(self.time_limit),
            abort: CancellationToken::new(),
            clock: Arc::new(clock),
            workspace: Arc::new(BTreeMap::new()),
            package_files: Default::default(),
            on_progress: Arc::new(move |partial| progress.lock().unwrap().push(partial.clone())),
            traceparent: Some("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01".to_owned()),
            knowledge: Default::default(),
            plugin_state: None,
        };
        let arguments = Arguments { value: text.to_value(), text };
        // As in a turn: at the deadline the call is dropped.
        tokio::time::timeout(self.time_limit, tool.call(arguments, context)).await.unwrap()
    }

    pub(crate) async fn expect_result(
        &self,
        tool: &Arc<dyn CallableTool>,
        arguments: &str,
    ) -> ToolResult {
        match self.call(tool, arguments).await {
            ToolOutcome::Returned(result) => result,
            ToolOutcome::Failed(text) => ToolResult::error(text),
            ToolOutcome::Unknown { reason } => panic!("the outcome is unknown: {reason}"),
        }
    }

    pub(crate) async fn expect_unknown(
        &self,
        tool: &Arc<dyn CallableTool>,
        arguments: &str,
    ) -> String {
        match self.call(tool, arguments).await {
            ToolOutcome::Unknown { reason } => reason,
            ToolOutcome::Failed(text) => panic!("the call failed: {text}"),
            ToolOutcome::Returned(result) => panic!("the call returned: {}", text(&result)),
        }
    }
}

/// In-memory artifacts that tools have written.
#[derive(Debug, Default)]
pub(crate) struct RecordingArtifacts(Mutex<Vec<(ArtifactMetadata, Bytes)>>);

impl RecordingArtifacts {
    pub(crate) fn all(&self) -> Vec<(ArtifactMetadata, Bytes)> {
        self.0.lock().unwrap().clone()
    }
}

#[async_trait]
impl Artifacts for RecordingArtifacts {
    async fn put(
        &self,
        _: &ArtifactScope,
        facts: &ArtifactMetadata,
        bytes: Bytes,
    ) -> Result<(), ArtifactError> {
        self.0.lock().unwrap().push((facts.clone(), bytes));
        Ok(())
    }

    async fn metadata(
        &self,
        _: &ArtifactScope,
        _: &ArtifactId,
    ) -> Result<ArtifactMetadata, ArtifactError> {
        Err(ArtifactError::NotFound)
    }

    async fn get(
        &self,
        _: &ArtifactScope,
        _: &ArtifactId,
        _: Option<Range<u64>>,
    ) -> Result<Bytes, ArtifactError> {
        Err(ArtifactError::NotFound)
    }

    async fn list(&self, _: &ArtifactScope) -> Result<Vec<ArtifactMetadata>, ArtifactError> {
        Ok(self.all().into_iter().map(|(facts, _)| facts).collect())
    }

    async fn delete_all(&self, _: &ArtifactScope) -> Result<(), ArtifactError> {
        Ok(())
    }
}
