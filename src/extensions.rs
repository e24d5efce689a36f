//! Extensions: code of the app that is asked at fixed places of a turn. Answers are recorded inputs of the core.

use std::borrow::Cow;
use std::fmt;

use async_trait::async_trait;

use crate::agent::message::Message;
use crate::ids::ConversationKey;
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
}
