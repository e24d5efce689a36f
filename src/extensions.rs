//! Extensions: code of the app that is asked at fixed places of a turn. Answers are recorded inputs of the core.

use std::borrow::Cow;
use std::fmt;

use async_trait::async_trait;

use crate::agent::compaction::Reason;
use crate::agent::entry::Entry;
use crate::agent::message::Message;
use crate::agent::raw::RawJson;
use crate::ids::{ConversationKey, EntryId};
use crate::tools::Arguments;

/// A call that is about to run.
#[derive(Debug)]
pub struct CallAhead<'a> {
    pub conversation: &'a ConversationKey,
    pub tool_call_id: &'a str,
    pub tool_name: &'a str,
    pub arguments: &'a Arguments,
}

/// A call that must not run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Block {
    /// What the model reads; absent: "Tool execution was blocked".
    pub reason: Option<String>,
    /// Asks for an end of the prompt without another answer, which comes when all results of the batch ask.
    pub terminate: bool,
}

/// A conversation that is about to be summed up.
#[derive(Debug)]
pub struct CompactionAhead<'a> {
    pub conversation: &'a ConversationKey,
    pub reason: Reason,
    /// What the summary should dwell on, when somebody asked for it.
    pub instructions: Option<&'a str>,
    /// What the model was sent last.
    pub tokens_before: u64,
    /// What the summary will stand for; the one before it is not among them.
    pub messages: &'a [Cow<'a, Message>],
    pub previous_summary: Option<&'a str>,
    /// From here on everything stays as it is.
    pub first_kept_entry_id: &'a EntryId,
}

/// What an extension wants instead of the model's summary.
#[derive(Clone, Debug, PartialEq)]
pub enum Instead {
    /// No summary.
    Cancel,
    /// This one.
    Summary { summary: String, details: Option<RawJson> },
}

#[async_trait]
pub trait Extension: Send + Sync + fmt::Debug {
    /// For messages about it.
    fn name(&self) -> &str;

    /// Changes what the model is sent, before every call. The record stays as it is.
    async fn transform_context<'a>(
        &self,
        messages: Vec<Cow<'a, Message>>,
    ) -> Vec<Cow<'a, Message>> {
        messages
    }

    /// Asked in order of registration; the first block wins and the others are not asked.
    async fn before_tool_call(&self, _call: &CallAhead<'_>) -> Option<Block> {
        None
    }

    /// Asked before a conversation is summed up, in order of registration; the first that wants something else has it. Each
    /// try asks anew.
    async fn before_compaction(&self, _ahead: &CompactionAhead<'_>) -> Option<Instead> {
        None
    }

    /// Told of the `compaction` entry once it is in the record. A worker that dies in between tells nobody: what must not
    /// be missed is read from the record.
    async fn after_compaction(&self, _conversation: &ConversationKey, _entry: &Entry) {}
}
