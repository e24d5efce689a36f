//! Test environment for tools: one conversation, artifacts in memory and a manual clock.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use crate::call_attempt::attempt_call;
use crate::knowledge::KnowledgePorts;
use crate::result_limits::ReadAccess;
use crate::validate::validate;
use crate::workspace::{PackageFiles, find_builtin};
use crate::{CallableTool, ToolContext, ToolOutcome, ToolResult};
use turnwheel_conversation::content::joined_text;
use turnwheel_conversation::message::WorkspaceFile;
use turnwheel_json::raw::RawJson;
use turnwheel_platform::clock::{Clock, ManualClock, Timestamp};
use turnwheel_platform::ids::{
    ArtifactId, ConversationId, ConversationKey, EffectId, TenantId, UserId,
};
use turnwheel_storage::artifacts::{ArtifactError, ArtifactMetadata, ArtifactScope, Artifacts};

#[derive(Debug, Default)]
pub(super) struct TestArtifacts {
    saved: Mutex<BTreeMap<String, (ArtifactMetadata, Bytes)>>,
    pub(super) is_down: AtomicBool,
}

impl TestArtifacts {
    fn find_artifact(
        &self,
        at: &ArtifactScope,
        id: &ArtifactId,
    ) -> Result<(ArtifactMetadata, Bytes), ArtifactError> {
        if self.is_down.load(Ordering::SeqCst) {
            return Err(ArtifactError::Unavailable("down".into()));
        }
        let path = at.path(id).ok_or(ArtifactError::NotFound)?;
        self.saved.lock().unwrap().get(&path).cloned().ok_or(ArtifactError::NotFound)
    }

    pub(super) fn count(&self) -> usize {
        self.saved.lock().unwrap().len()
    }
}

#[async_trait]
impl Artifacts for TestArtifacts {
    async fn put(
        &self,
        at: &ArtifactScope,
        facts: &ArtifactMetadata,
        bytes: Bytes,
    ) -> Result<(), ArtifactError> {
        if self.is_down.load(Ordering::SeqCst) {
            return Err(ArtifactError::Unavailable("down".into()));
        }
        let path = at.path(&facts.id).ok_or(ArtifactError::NotFound)?;
        self.saved.lock().unwrap().entry(path).or_insert((facts.clone(), bytes));
        Ok(())
    }

    async fn metadata(
        &self,
        at: &ArtifactScope,
        id: &ArtifactId,
    ) -> Result<ArtifactMetadata, ArtifactError> {
        self.find_artifact(at, id).map(|(facts, _)| facts)
    }

    async fn get(
        &self,
        at: &ArtifactScope,
        id: &ArtifactId,
        range: Option<Range<u64>>,
    ) -> Result<Bytes, ArtifactError> {
        assert!(range.is_none(), "tools read whole artifacts");
        self.find_artifact(at, id).map(|(_, bytes)| bytes)
    }

    async fn list(&self, _at: &ArtifactScope) -> Result<Vec<ArtifactMetadata>, ArtifactError> {
        Ok(Vec::new())
    }

    async fn delete_all(&self, _at: &ArtifactScope) -> Result<(), ArtifactError> {
        Ok(())
    }
}

/// One conversation. Its calls run sequentially, each with its own effect id.
pub(super) struct TestEnv {
    pub(super) artifacts: Arc<TestArtifacts>,
    pub(super) files: BTreeMap<String, WorkspaceFile>,
    pub(super) package_files: PackageFiles,
    pub(super) progress_reports: Arc<Mutex<Vec<ToolResult>>>,
    clock: Arc<ManualClock>,
    calls: AtomicU32,
}

impl TestEnv {
    pub(super) fn new() -> Self {
        Self {
            artifacts: Arc::default(),
            files: BTreeMap::new(),
            package_files: PackageFiles::default(),
            progress_reports: Arc::default(),
            clock: Arc::new(ManualClock::new(Timestamp(1_000_000))),
            calls: AtomicU32::new(0),
        }
    }

    /// A fresh call with a minute of time.
    pub(super) fn context(&self) -> ToolContext {
        let number = self.calls.fetch_add(1, Ordering::SeqCst);
        let progress_reports = Arc::clone(&self.progress_reports);
        ToolContext {
            effect_id: EffectId::new(format!("tw_c_0a1b2c3d_{number}_0")),
            attempt: 1,
            tool_call_id: format!("call_{number}"),
            artifact_scope: ArtifactScope {
                key: ConversationKey {
                    tenant: TenantId::new("t"),
                    user: UserId::new("u"),
                    conversation_id: ConversationId::new("c"),
                },
                incarnation: "0a1b2c3d".to_owned(),
            },
            artifacts: Arc::clone(&self.artifacts) as Arc<dyn Artifacts>,
            clock: Arc::clone(&self.clock) as Arc<dyn Clock>,
            workspace: Arc::new(self.files.clone()),
            package_files: self.package_files.clone(),
            deadline: self.clock.now().plus(Duration::from_mins(1)),
            abort: CancellationToken::new(),
            on_progress: Arc::new(move |partial| {
                progress_reports.lock().unwrap().push(partial.clone());
            }),
            traceparent: None,
            knowledge: KnowledgePorts::default(),
            plugin_state: None,
        }
    }

    /// Validates and runs a call as the driver does, and applies its file changes.
    pub(super) async fn call_tool(&mut self, tool: &dyn CallableTool, args: &Value) -> ToolOutcome {
        let context = self.context();
        let arguments = match validate(tool.definition(), &RawJson::from_value(args)) {
            Ok(arguments) => arguments,
            Err(problem) => return ToolOutcome::Returned(ToolResult::error(problem)),
        };
        let outcome = attempt_call(tool, arguments, context, ReadAccess::Available).await;
        if let ToolOutcome::Returned(result) = &outcome {
            for (path, change) in result.workspace.clone() {
                match change {
                    Some(file) => self.files.insert(path, file),
                    None => self.files.remove(&path),
                };
            }
        }
        outcome
    }

    pub(super) async fn call_builtin(&mut self, name: &str, args: &Value) -> ToolResult {
        match self.call_tool(&*find_builtin(name).unwrap(), args).await {
            ToolOutcome::Returned(result) => result,
            ToolOutcome::Failed(text) => ToolResult::error(text),
            ToolOutcome::Unknown { reason } => {
                panic!("a built-in tool has a known outcome: {reason}")
            }
        }
    }

    /// Text for the model. Errors begin with `ERROR `.
    pub(super) async fn call_builtin_text(&mut self, name: &str, args: &Value) -> String {
        let result = self.call_builtin(name, args).await;
        let prefix = if result.is_error { "ERROR " } else { "" };
        format!("{prefix}{}", joined_text(&result.content))
    }

    /// Adds a file with any bytes, like an upload.
    pub(super) async fn upload(&mut self, path: &str, bytes: impl Into<Bytes>) {
        let saved = self.context().save_artifact(path, "x", bytes.into()).await.unwrap();
        self.files
            .insert(path.to_owned(), WorkspaceFile { artifact_id: saved.id, size: saved.size });
    }

    pub(super) async fn read_file(&self, path: &str) -> Bytes {
        let context = self.context();
        context
            .artifacts
            .get(&context.artifact_scope, &self.files[path].artifact_id, None)
            .await
            .unwrap()
    }
}
