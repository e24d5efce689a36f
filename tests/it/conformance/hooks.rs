//! The cases' hooks as extensions.

use std::borrow::Cow;

use async_trait::async_trait;
use turnwheel::extensions::{
    CallBlock, Extension, HookContext, HookError, PendingToolCall, ToolCallDecision,
};
use turnwheel::messages::Message;
use turnwheel::{AgentBuilder, App};

use super::case::Case;

/// A builder that registers extensions.
pub(super) trait ExtensionRegistry {
    fn extension(self, extension: impl Extension + 'static) -> Self;
}

impl ExtensionRegistry for App {
    fn extension(self, extension: impl Extension + 'static) -> Self {
        Self::extension(self, extension)
    }
}

impl ExtensionRegistry for AgentBuilder {
    fn extension(self, extension: impl Extension + 'static) -> Self {
        Self::extension(self, extension)
    }
}

pub(super) fn register_hooks<A: ExtensionRegistry>(app: A, case: &Case) -> A {
    let hooks = case.given("hooks");
    let app = match hooks["context"].as_str() {
        None => app,
        Some("keep the last two messages") => app.extension(KeepLastTwo),
        Some(other) => panic!("an unknown hook: {other}"),
    };
    match hooks["tool_call"].as_str() {
        None => app,
        Some(text) => {
            let blocks = text.split(';').map(parse_block);
            let blocks = blocks.map(|(id, reason)| (case.call_id(&id), reason));
            app.extension(BlockCalls(blocks.collect()))
        }
    }
}

#[derive(Debug)]
struct KeepLastTwo;

#[async_trait]
impl Extension for KeepLastTwo {
    fn name(&self) -> &'static str {
        "keeps-two"
    }

    async fn transform_context<'a>(
        &self,
        _cx: &HookContext,
        mut messages: Vec<Cow<'a, Message>>,
    ) -> Result<Vec<Cow<'a, Message>>, HookError> {
        Ok(messages.split_off(messages.len().saturating_sub(2)))
    }
}

/// Ids of blocked calls, each with its reason.
#[derive(Debug)]
struct BlockCalls(Vec<(String, Option<String>)>);

/// Parses `c1 -> block, reason 'not allowed here'`.
fn parse_block(text: &str) -> (String, Option<String>) {
    let (id, outcome) = text.split_once(" -> block, ").unwrap();
    let reason =
        outcome.strip_prefix("reason '").map(|reason| reason.trim_end_matches('\'').to_owned());
    assert!(reason.is_some() || outcome == "no reason", "{outcome}");
    (id.trim().to_owned(), reason)
}

#[async_trait]
impl Extension for BlockCalls {
    fn name(&self) -> &'static str {
        "blocks"
    }

    async fn before_tool_call(
        &self,
        _cx: &HookContext,
        call: &PendingToolCall<'_>,
    ) -> Result<ToolCallDecision, HookError> {
        let id = call.tool_call_id.split('|').next();
        let found = self.0.iter().find(|(blocked, _)| Some(blocked.as_str()) == id);
        Ok(found.map_or(ToolCallDecision::Allow, |(_, reason)| {
            ToolCallDecision::Block(CallBlock { reason: reason.clone(), terminate: false })
        }))
    }
}
