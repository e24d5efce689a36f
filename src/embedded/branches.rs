//! Moves of an agent to other branches of its conversation.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::Value;

use crate::embedded::run_state::RunState;
use crate::embedded::{Agent, AgentError, AgentEvent, lock};
use turnwheel_commands::leaf::{LeafMoved, LeafRequest, move_leaf};
use turnwheel_conversation::branch::WriteLeft;
use turnwheel_platform::ids::EntryId;
use turnwheel_queries::tree::{TreeSelection, TreeView, read_tree};
use turnwheel_record::contract::CommandError;
use turnwheel_record::load;

/// Interval between checks for the end of a summary that follows a reply.
const SUMMARY_POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Options of [`Agent::navigate`].
#[derive(Clone, Debug, Default)]
pub struct NavigateOptions {
    /// Label of the entry, or of the summary if there is one.
    pub label: Option<String>,
    /// Text for the model about the branch that the agent leaves.
    pub summary: Option<String>,
    /// True if the model writes the summary.
    pub summarize: bool,
    /// Topics that the model's summary should emphasise.
    pub instructions: Option<String>,
}

/// Outcome of [`Agent::navigate`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Navigation {
    /// False if the agent was there already, or if an extension cancelled the move.
    pub is_moved: bool,
    pub is_cancelled: bool,
    /// Text of the message before which the agent continues: for the user to edit.
    pub text: Option<String>,
    /// The writes on the branch left behind, which are not undone: at most the newest 100.
    pub writes_left: Vec<WriteLeft>,
}

impl Agent {
    /// Continues the current conversation from another entry. The id of a user's message stands for
    /// the position before it, and `None` for the position before the first entry. First aborts a
    /// running prompt. Nothing that tools did is undone.
    ///
    /// # Errors
    /// Returns [`AgentError::Refused`] for an unknown entry and invalid options, and
    /// [`AgentError::Compaction`] with the reason if the model wrote no summary. The agent then
    /// stays where it was.
    pub async fn navigate(
        &self,
        entry_id: Option<&EntryId>,
        options: NavigateOptions,
    ) -> Result<Navigation, AgentError> {
        let inner = &self.inner;
        let permit = self.abort_and_acquire().await?;
        let end: Arc<Mutex<Option<Value>>> = Arc::default();
        let observed = Arc::clone(&end);
        let _subscription = self.subscribe(move |event| {
            if let AgentEvent::Other { name, data } = event
                && name == "branch_summary_end"
            {
                *lock(&observed) = Some(data.clone());
            }
        });
        let key = {
            let mut switch = inner.switch.lock().await;
            inner.switch_if_changed(&mut switch).await?;
            inner.key()
        };
        let request = LeafRequest {
            entry_id: entry_id.map(ToString::to_string),
            label: options.label,
            summary: options.summary,
            summarize: Some(options.summarize),
            instructions: options.instructions,
            abort: None,
        };
        let idempotency = inner.new_idempotency();
        let response = move_leaf(&inner.services, &key, &request, &idempotency).await?;
        let moved = response.body.and_then(|body| body.read::<LeafMoved>().ok());
        let mut moved = moved.ok_or_else(CommandError::contended)?;
        if moved.waiting {
            // Prompts may run meanwhile.
            drop(permit);
            let input_id = idempotency.input_id(&key);
            moved = self.wait_for_result(&key, &input_id).await?;
            if let Some(error) = moved.error {
                return Err(AgentError::Command(error));
            }
            while moved.input_id.is_some() && lock(&end).is_none() {
                tokio::time::sleep(SUMMARY_POLL_INTERVAL).await;
            }
        } else if moved.input_id.is_some() {
            permit.commit();
            let _ = inner.run_state.subscribe().wait_for(RunState::is_idle).await;
        }
        if moved.input_id.is_some() {
            let end = lock(&end).take().unwrap_or_default();
            if let Some(reason) = end.get("errorMessage").and_then(Value::as_str) {
                return Err(AgentError::Compaction(reason.to_owned()));
            }
            moved.moved = true;
        }
        if moved.moved {
            let mut switch = inner.switch.lock().await;
            let path = inner.enter_conversation(key).await?;
            switch.messages_version = lock(&inner.observed).messages_version;
            self.follow_settings(&path);
        }
        Ok(Navigation {
            is_moved: moved.moved,
            is_cancelled: moved.cancelled,
            text: moved.text,
            writes_left: moved.writes_left,
        })
    }

    /// [`Agent::navigate`] without a summary. Returns the text to edit if the entry is a message of a
    /// user.
    ///
    /// # Errors
    /// As [`Agent::navigate`].
    pub async fn branch(&self, entry_id: Option<&EntryId>) -> Result<Option<String>, AgentError> {
        Ok(self.navigate(entry_id, NavigateOptions::default()).await?.text)
    }

    /// The shape of the tree of the current conversation: where branches begin, fork and end, the
    /// messages of users, labels and summaries.
    ///
    /// # Errors
    /// The store is unavailable: try again.
    pub async fn tree(&self) -> Result<TreeView, AgentError> {
        let services = &self.inner.services;
        let (head, _) = load::head(services, &self.inner.key()).await?;
        Ok(read_tree(services, &head, &TreeSelection::default()).await?)
    }
}
