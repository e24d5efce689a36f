//! The tools that the model could call in a response.

use std::sync::Arc;

use crate::context::TurnContext;
use crate::conversation_state::ConversationState;
use crate::plan::CommitPlan;
use turnwheel_conversation::entry::{Entry, EntryBody, MessageEntry};
use turnwheel_conversation::frame_entry::FrameEntry;
use turnwheel_record::error::TurnError;
use turnwheel_record::services::Services;
use turnwheel_tools::CallableTool;

/// The tools offered with the model call of a response.
pub(crate) enum OfferedTools {
    /// Those of the agent that are active.
    Own,
    /// Those of a recorded frame.
    Recorded(Arc<Entry>),
}

impl OfferedTools {
    /// The tools offered with the response whose calls are open.
    pub(crate) async fn load(
        services: &Services,
        state: &ConversationState,
        plan: &CommitPlan,
    ) -> Result<Self, TurnError> {
        let transition = plan.transition();
        let Some(EntryBody::Message(MessageEntry { frame: Some(seq), .. })) =
            transition.response.as_ref().map(|response| &response.body)
        else {
            return Ok(Self::Own);
        };
        let current = transition.head.frame.as_ref();
        if current.is_some_and(|frame| frame.seq == *seq && frame.is_own) {
            return Ok(Self::Own);
        }
        let new = transition.entries.iter().find(|entry| entry.base.seq == *seq).cloned();
        let entry = match new {
            Some(entry) => Some(entry),
            None => state.load_entry(services, *seq).await?,
        };
        Ok(entry.map_or(Self::Own, Self::Recorded))
    }

    /// The offered tool of this name, if the agent or one of its plugins has it.
    pub(crate) fn find<'c>(
        &self,
        context: &'c TurnContext,
        name: &str,
    ) -> Option<&'c Arc<dyn CallableTool>> {
        match self.frame() {
            None => context.tools().iter().find(|tool| tool.definition().name == name),
            Some(frame) if frame.tools.iter().any(|tool| tool.name == name) => {
                context.find_tool(name)
            }
            Some(_) => None,
        }
    }

    /// Names for the model, if it calls another tool.
    pub(crate) fn names<'a>(&'a self, context: &'a TurnContext) -> Vec<&'a str> {
        match self.frame() {
            None => {
                let own = context.agent.iter().flat_map(|agent| &agent.tools);
                own.chain(context.remote_tools())
                    .map(|tool| tool.definition().name.as_str())
                    .collect()
            }
            Some(frame) => frame.tools.iter().map(|tool| tool.name.as_str()).collect(),
        }
    }

    fn frame(&self) -> Option<&FrameEntry> {
        let Self::Recorded(entry) = self else { return None };
        let EntryBody::Frame(frame) = &entry.body else { return None };
        Some(frame)
    }
}
