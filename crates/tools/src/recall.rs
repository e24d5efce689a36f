//! The tool `recall`: finds what the user wrote in other conversations. The driver supplies the port
//! that searches.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;

use crate::approval_summary::ApprovalSummary;
use crate::code::{CallContext, Tool, ToolError, build_code_tool};
use crate::{CallableTool, CheckContext, ToolResult};
use turnwheel_conversation::request::Effect;
use turnwheel_json::raw::RawJson;
use turnwheel_platform::clock::Timestamp;
use turnwheel_platform::ids::ConversationKey;

pub const RECALL: &str = "recall";
/// Messages of one result.
const MESSAGES_MAX: usize = 3;
const QUERY_CHARS_MAX: usize = 200;
/// Characters of a message in the result.
const TEXT_CHARS_MAX: usize = 100;
const NOTHING_FOUND: &str = "No past references found outside current conversation";
const PARTIAL: &str = "[Only the newer messages were searched. Use other words for an older one.]";

/// A message of the user in another conversation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PastMessage {
    pub at: Timestamp,
    /// The beginning of the text; longer than 100 characters if the text is.
    pub text: String,
}

/// The newest messages that contain a text, newest first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundMessages {
    pub messages: Vec<PastMessage>,
    /// False if older messages were not searched.
    pub is_complete: bool,
}

/// Port of the messages of a conversation's user. Errors are texts for the model.
#[async_trait]
pub trait PastMessages: Send + Sync + fmt::Debug {
    /// Finds messages in other conversations of the same user, without regard to case. Copies of a
    /// message count once.
    async fn find(
        &self,
        conversation: &ConversationKey,
        text: &str,
        limit: usize,
    ) -> Result<FoundMessages, String>;
}

struct RecallTool;

/// The tool `recall`.
pub fn recall_tool() -> Option<Arc<dyn CallableTool>> {
    let tool = build_code_tool(RecallTool);
    debug_assert!(tool.is_ok(), "{tool:?}");
    tool.ok()
}

#[derive(Deserialize, JsonSchema)]
struct RecallArgs {
    /// Word or phrase to search for in past messages of the user
    query: String,
}

impl RecallArgs {
    fn trimmed_query(&self) -> Result<&str, String> {
        let query = self.query.trim();
        if query.is_empty() {
            return Err("Search query cannot be empty".to_owned());
        }
        if query.chars().count() > QUERY_CHARS_MAX {
            return Err(format!(
                "Invalid input: a search query has at most {QUERY_CHARS_MAX} characters"
            ));
        }
        Ok(query)
    }
}

impl Tool for RecallTool {
    type Args = RecallArgs;

    fn name(&self) -> &'static str {
        RECALL
    }

    fn description(&self) -> &'static str {
        "Search past conversations (excludes current). Use when user references prior context."
    }

    fn effect(&self) -> Effect {
        Effect::Read
    }

    fn approval_summary(&self) -> ApprovalSummary {
        ApprovalSummary::Never
    }

    async fn check(&self, args: &RecallArgs, _cx: &CheckContext<'_>) -> Result<(), String> {
        args.trimmed_query().map(drop)
    }

    async fn call(&self, args: RecallArgs, cx: CallContext) -> Result<ToolResult, ToolError> {
        let query = args.trimmed_query().map_err(ToolError::Failed)?;
        let messages = cx
            .past_messages()
            .ok_or_else(|| ToolError::failed("User ID required for memory recall"))?;
        let found = messages.find(cx.conversation_key(), query, MESSAGES_MAX).await;
        let found = found.map_err(ToolError::Failed)?;
        let count = found.messages.len();
        let now = cx.now();
        let mut lines: Vec<String> =
            found.messages.iter().map(|message| message_line(message, now)).collect();
        if lines.is_empty() {
            lines.push(NOTHING_FOUND.to_owned());
        }
        if !found.is_complete {
            lines.push(PARTIAL.to_owned());
        }
        let outcome = format!("Memory searched for '{query}' ({count} matches)");
        Ok(ToolResult {
            details: Some(RawJson::from_value(&json!({"outcome": outcome}))),
            ..ToolResult::text(lines.join("\n"))
        })
    }
}

fn message_line(message: &PastMessage, now: Timestamp) -> String {
    let age = age_text(message.at.until(now));
    match message.text.char_indices().nth(TEXT_CHARS_MAX) {
        Some((end, _)) => format!("{age} ago: {}...", message.text.get(..end).unwrap_or_default()),
        None => format!("{age} ago: {}", message.text),
    }
}

fn age_text(age: Duration) -> String {
    let minutes = age.as_secs() / 60;
    match minutes {
        0 => "<1min".to_owned(),
        1..60 => format!("{minutes}min"),
        60..1_440 => format!("{}h", minutes / 60),
        _ => format!("{}d", minutes / 1_440),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::knowledge::KnowledgePorts;
    use crate::test_env::TestEnv;
    use crate::validate::validate;
    use crate::{ToolContext, ToolOutcome};
    use turnwheel_platform::clock::ManualClock;

    #[derive(Debug)]
    struct Found(FoundMessages);

    #[async_trait]
    impl PastMessages for Found {
        async fn find(
            &self,
            _conversation: &ConversationKey,
            text: &str,
            limit: usize,
        ) -> Result<FoundMessages, String> {
            assert_eq!((text, limit), ("oslo", 3));
            Ok(self.0.clone())
        }
    }

    const NOW: u64 = 1_000_000_000;

    async fn recall(found: Option<FoundMessages>, query: &str) -> ToolOutcome {
        let tool = recall_tool().unwrap();
        let arguments = RawJson::from_value(&json!({"query": query}));
        let arguments = validate(tool.definition(), &arguments).unwrap();
        let context = ToolContext {
            clock: Arc::new(ManualClock::new(Timestamp(NOW))),
            knowledge: KnowledgePorts {
                past_messages: found.map(|found| Arc::new(Found(found)) as Arc<dyn PastMessages>),
                ..KnowledgePorts::default()
            },
            ..TestEnv::new().context()
        };
        tool.call(arguments, context).await
    }

    fn found(messages: Vec<PastMessage>, is_complete: bool) -> FoundMessages {
        FoundMessages { messages, is_complete }
    }

    fn message(seconds: u64, text: &str) -> PastMessage {
        PastMessage { at: Timestamp(NOW - seconds * 1_000), text: text.to_owned() }
    }

    fn returned(outcome: &str, text: &str) -> ToolOutcome {
        ToolOutcome::Returned(ToolResult {
            details: Some(RawJson::from_value(&json!({"outcome": outcome}))),
            ..ToolResult::text(text)
        })
    }

    #[tokio::test]
    async fn messages_have_their_age_and_first_hundred_characters() {
        let cut = "ä".repeat(100);
        let newest = vec![message(59, "a"), message(60, &"ä".repeat(101)), message(3_599, &cut)];
        assert_eq!(
            recall(Some(found(newest, true)), " oslo ").await,
            returned(
                "Memory searched for 'oslo' (3 matches)",
                &format!("<1min ago: a\n1min ago: {cut}...\n59min ago: {cut}")
            )
        );
        let older = vec![message(3_600, "a"), message(86_399, "b"), message(172_800, "c")];
        assert_eq!(
            recall(Some(found(older, false)), "oslo").await,
            returned(
                "Memory searched for 'oslo' (3 matches)",
                &format!("1h ago: a\n23h ago: b\n2d ago: c\n{PARTIAL}")
            )
        );
    }

    #[tokio::test]
    async fn search_without_messages_says_so() {
        assert_eq!(
            recall(Some(found(Vec::new(), true)), "oslo").await,
            returned("Memory searched for 'oslo' (0 matches)", NOTHING_FOUND)
        );
    }

    #[tokio::test]
    async fn invalid_searches_are_rejected() {
        for (port, query, text) in [
            (Some(found(Vec::new(), true)), " \n", "Search query cannot be empty"),
            (None, "oslo", "User ID required for memory recall"),
            (
                Some(found(Vec::new(), true)),
                &"x".repeat(201),
                "Invalid input: a search query has at most 200 characters",
            ),
        ] {
            assert_eq!(recall(port, query).await, ToolOutcome::Failed(text.to_owned()));
        }
    }
}
