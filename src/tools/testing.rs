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

use crate::agent::content::joined_text;
use crate::agent::message::WorkspaceFile;
use crate::agent::raw::RawJson;
use crate::artifacts::{ArtifactError, ArtifactFacts, Artifacts, Shelf};
use crate::clock::{Clock, ManualClock, Timestamp};
use crate::ids::{ArtifactId, ConversationId, ConversationKey, EffectId, TenantId, UserId};
use crate::tools::cap::ReadOn;
use crate::tools::run::run;
use crate::tools::validate::validate;
use crate::tools::workspace::builtin;
use crate::tools::{RunTool, ToolContext, ToolOutcome, ToolResult};

#[derive(Debug, Default)]
pub(super) struct Shelves {
    kept: Mutex<BTreeMap<String, (ArtifactFacts, Bytes)>>,
    pub(super) is_down: AtomicBool,
}

impl Shelves {
    fn look(&self, at: &Shelf, id: &ArtifactId) -> Result<(ArtifactFacts, Bytes), ArtifactError> {
        if self.is_down.load(Ordering::SeqCst) {
            return Err(ArtifactError::Unavailable("down".into()));
        }
        let path = at.path(id).ok_or(ArtifactError::NotFound)?;
        self.kept.lock().unwrap().get(&path).cloned().ok_or(ArtifactError::NotFound)
    }

    pub(super) fn count(&self) -> usize {
        self.kept.lock().unwrap().len()
    }
}

#[async_trait]
impl Artifacts for Shelves {
    async fn put(
        &self,
        at: &Shelf,
        facts: &ArtifactFacts,
        bytes: Bytes,
    ) -> Result<(), ArtifactError> {
        if self.is_down.load(Ordering::SeqCst) {
            return Err(ArtifactError::Unavailable("down".into()));
        }
        let path = at.path(&facts.id).ok_or(ArtifactError::NotFound)?;
        self.kept.lock().unwrap().entry(path).or_insert((facts.clone(), bytes));
        Ok(())
    }

    async fn facts(&self, at: &Shelf, id: &ArtifactId) -> Result<ArtifactFacts, ArtifactError> {
        self.look(at, id).map(|(facts, _)| facts)
    }

    async fn get(
        &self,
        at: &Shelf,
        id: &ArtifactId,
        range: Option<Range<u64>>,
    ) -> Result<Bytes, ArtifactError> {
        assert!(range.is_none(), "tools read whole artifacts");
        self.look(at, id).map(|(_, bytes)| bytes)
    }

    async fn list(&self, _at: &Shelf) -> Result<Vec<ArtifactFacts>, ArtifactError> {
        Ok(Vec::new())
    }

    async fn delete_all(&self, _at: &Shelf) -> Result<(), ArtifactError> {
        Ok(())
    }
}

/// One conversation. Its calls run sequentially, each with its own effect id.
pub(super) struct Desk {
    pub(super) shelves: Arc<Shelves>,
    pub(super) files: BTreeMap<String, WorkspaceFile>,
    pub(super) told: Arc<Mutex<Vec<ToolResult>>>,
    clock: Arc<ManualClock>,
    calls: AtomicU32,
}

impl Desk {
    pub(super) fn new() -> Self {
        Self {
            shelves: Arc::default(),
            files: BTreeMap::new(),
            told: Arc::default(),
            clock: Arc::new(ManualClock::new(Timestamp(1_000_000))),
            calls: AtomicU32::new(0),
        }
    }

    /// A fresh call with a minute of time.
    pub(super) fn context(&self) -> ToolContext {
        let number = self.calls.fetch_add(1, Ordering::SeqCst);
        let told = Arc::clone(&self.told);
        ToolContext {
            effect_id: EffectId::new(format!("tw_c_0a1b2c3d_{number}_0")),
            attempt: 1,
            tool_call_id: format!("call_{number}"),
            shelf: Shelf {
                key: ConversationKey {
                    tenant: TenantId::new("t"),
                    user: UserId::new("u"),
                    conversation_id: ConversationId::new("c"),
                },
                incarnation: "0a1b2c3d".to_owned(),
            },
            artifacts: Arc::clone(&self.shelves) as Arc<dyn Artifacts>,
            clock: Arc::clone(&self.clock) as Arc<dyn Clock>,
            workspace: Arc::new(self.files.clone()),
            deadline: self.clock.now().plus(Duration::from_mins(1)),
            stop: CancellationToken::new(),
            progress: Arc::new(move |partial| told.lock().unwrap().push(partial.clone())),
            traceparent: None,
            schedules: None,
        }
    }

    /// Validates and runs a call as the driver does, and applies its file changes.
    pub(super) async fn run(&mut self, tool: &dyn RunTool, args: &Value) -> ToolOutcome {
        let context = self.context();
        let arguments = match validate(tool.definition(), &RawJson::of(args)) {
            Ok(arguments) => arguments,
            Err(problem) => return ToolOutcome::Returned(ToolResult::error(problem)),
        };
        let outcome = run(tool, arguments, context, ReadOn::WithRead).await;
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

    pub(super) async fn result(&mut self, name: &str, args: &Value) -> ToolResult {
        match self.run(&*builtin(name).unwrap(), args).await {
            ToolOutcome::Returned(result) => result,
            ToolOutcome::Failed(text) => ToolResult::error(text),
            ToolOutcome::Unknown { reason } => {
                panic!("a built-in tool has a known outcome: {reason}")
            }
        }
    }

    /// Text for the model. Errors begin with `ERROR `.
    pub(super) async fn text(&mut self, name: &str, args: &Value) -> String {
        let result = self.result(name, args).await;
        let sign = if result.is_error { "ERROR " } else { "" };
        format!("{sign}{}", joined_text(&result.content))
    }

    /// Adds a file with any bytes, like an upload.
    pub(super) async fn upload(&mut self, path: &str, bytes: impl Into<Bytes>) {
        let kept = self.context().keep(path, "x", bytes.into()).await.unwrap();
        self.files.insert(path.to_owned(), WorkspaceFile { artifact_id: kept.id, size: kept.size });
    }

    pub(super) async fn bytes(&self, path: &str) -> Bytes {
        let context = self.context();
        context.artifacts.get(&context.shelf, &self.files[path].artifact_id, None).await.unwrap()
    }
}
