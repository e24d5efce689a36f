//! Details of a prompt for its events, collected from entries.

use std::collections::HashMap;
use std::sync::Arc;

use crate::event_stream::event::with_optional;
use turnwheel_conversation::entry::{Entry, EntryBody, PromptEnd, PromptEntry};
use turnwheel_json::raw::{RawJson, raw_object};
use turnwheel_platform::ids::PromptId;

/// The details that the entries have. Some are absent if only a part of the prompt was read.
#[derive(Clone, Debug, Default)]
pub(super) struct PromptDetails {
    start: Option<PromptEntry>,
    end: Option<PromptEnd>,
    /// Model of the last model response.
    resolved_model: Option<String>,
}

impl PromptDetails {
    /// Collects the details of the ended prompts among all entries.
    pub(super) fn collect_ended(entries: &[Arc<Entry>]) -> HashMap<PromptId, Self> {
        let mut prompts: HashMap<PromptId, Self> = HashMap::new();
        for entry in entries {
            if let Some(id) = &entry.base.prompt_id {
                prompts.entry(id.clone()).or_default().add(&entry.body);
            }
        }
        prompts.retain(|_, details| details.end.is_some());
        prompts
    }

    /// Adds the details of an entry, which follows the entries added before.
    pub(super) fn add(&mut self, body: &EntryBody) {
        if let EntryBody::Prompt(prompt) = body {
            self.start = Some(prompt.clone());
        } else if let EntryBody::PromptEnd(end) = body {
            self.end = Some(end.clone());
        } else if let Some(response) = body.message().and_then(|message| message.as_assistant())
            && response.is_from_model()
        {
            self.resolved_model = Some(response.model.clone());
        }
    }

    /// Members of `prompt.created`.
    pub(super) fn created_members(&self) -> RawJson {
        self.start.as_ref().map_or_else(
            || raw_object!({}),
            |prompt| raw_object!({"source": prompt.source, "model": prompt.model}),
        )
    }

    /// Members of `prompt.completed` and `prompt.error`.
    pub(super) fn end_members(&self) -> RawJson {
        let Some(end) = &self.end else { return raw_object!({}) };
        let members = raw_object!({"state": end.state, "stopReason": end.stop_reason});
        let members = with_optional(members, "resolvedModel", self.resolved_model.as_ref());
        let members = with_optional(members, "error", end.error.as_deref());
        with_optional(members, "incomplete", end.incomplete.as_deref())
    }
}
