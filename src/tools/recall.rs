//! The tool `recall`: finds earlier messages of the user in their other conversations. The driver
//! supplies the port that searches them.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;

use crate::agent::raw::RawJson;
use crate::agent::request::Effect;
use crate::clock::Timestamp;
use crate::ids::{ConversationId, ConversationKey};
use crate::tools::code::{CallContext, Tool, ToolError, build_code_tool};
use crate::tools::{CallableTool, ToolResult};

pub(crate) const RECALL: &str = "recall";
/// Messages of one result.
pub(crate) const MATCHES_MAX: usize = 3;
const QUERY_CHARS_MAX: usize = 200;
/// Characters of a message in the result.
const TEXT_CHARS_MAX: usize = 100;
const MINUTE: u64 = 60;
const HOUR: u64 = 60 * MINUTE;
const DAY: u64 = 24 * HOUR;

/// A message that was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PastMessage {
    pub conversation: ConversationId,
    pub at: Timestamp,
    pub age: Duration,
    pub text: String,
}

/// The result of a search, newest first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recollection {
    pub messages: Vec<PastMessage>,
    /// False if older messages were not searched.
    pub is_complete: bool,
}

/// Port of the messages of a conversation's user. Errors are texts for the model.
#[async_trait]
pub trait MessageSearch: Send + Sync + fmt::Debug {
    /// Finds the newest messages, at most [`MATCHES_MAX`], in the user's other conversations.
    async fn recall(
        &self,
        conversation: &ConversationKey,
        query: &str,
    ) -> Result<Recollection, String>;
}

struct RecallTool;

#[derive(Deserialize, JsonSchema)]
struct RecallArgs {
    /// Text to find, without regard to case
    query: String,
}

/// The built-in tool `recall`.
pub fn recall_tool() -> Option<Arc<dyn CallableTool>> {
    let tool = build_code_tool(RecallTool);
    debug_assert!(tool.is_ok(), "{tool:?}");
    tool.ok()
}

impl Tool for RecallTool {
    type Args = RecallArgs;

    fn name(&self) -> &'static str {
        RECALL
    }

    fn description(&self) -> &'static str {
        "Search the user's messages in their other conversations. Returns the beginning of the 3 newest messages that contain \
         the query."
    }

    fn effect(&self) -> Effect {
        Effect::Read
    }

    async fn call(&self, args: RecallArgs, cx: CallContext) -> Result<ToolResult, ToolError> {
        let query = args.query.trim();
        if query.is_empty() {
            return Err(ToolError::failed("Search query cannot be empty"));
        }
        if query.chars().count() > QUERY_CHARS_MAX {
            return Err(ToolError::failed(format!(
                "Invalid input: the search query has more than {QUERY_CHARS_MAX} characters."
            )));
        }
        let search = cx
            .message_search()
            .ok_or_else(|| ToolError::failed("User ID required for memory recall"))?;
        let found = search.recall(cx.conversation_key(), query).await;
        Ok(to_result(query, &found.map_err(ToolError::Failed)?))
    }
}

fn to_result(query: &str, found: &Recollection) -> ToolResult {
    let Recollection { messages, is_complete } = found;
    let lines: Vec<String> = messages.iter().map(message_line).collect();
    let mut text = if lines.is_empty() {
        "No past references found outside current conversation".to_owned()
    } else {
        lines.join("\n")
    };
    if !is_complete {
        text.push_str("\n[The search stopped at its limit: older messages were not searched.]");
    }
    let matches = messages.iter().map(
        |message| json!({"conversationId": message.conversation, "at": message.at.to_string()}),
    );
    let details = json!({
        "outcome": format!("Memory searched for '{query}' ({} matches)", messages.len()),
        "matches": matches.collect::<Vec<_>>(),
        "isComplete": is_complete,
    });
    ToolResult { details: Some(RawJson::from_value(&details)), ..ToolResult::text(text) }
}

fn message_line(message: &PastMessage) -> String {
    let mut line = format!("{} ago: ", format_age(message.age));
    let mut characters = message.text.chars();
    line.extend(characters.by_ref().take(TEXT_CHARS_MAX));
    if characters.next().is_some() {
        line.push_str("...");
    }
    line
}

fn format_age(age: Duration) -> String {
    match age.as_secs() {
        ..MINUTE => "<1min".to_owned(),
        seconds @ MINUTE..HOUR => format!("{}min", seconds / MINUTE),
        seconds @ HOUR..DAY => format!("{}h", seconds / HOUR),
        seconds => format!("{}d", seconds / DAY),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;
    use crate::agent::content::joined_text;
    use crate::tools::ToolContext;
    use crate::tools::test_env::TestEnv;

    /// Returns what it was given, and records the queries.
    #[derive(Debug)]
    struct FixedSearch(Recollection, Mutex<Vec<String>>);

    #[async_trait]
    impl MessageSearch for FixedSearch {
        async fn recall(
            &self,
            _conversation: &ConversationKey,
            query: &str,
        ) -> Result<Recollection, String> {
            self.1.lock().unwrap().push(query.to_owned());
            Ok(self.0.clone())
        }
    }

    fn message(seconds: u64, text: &str) -> PastMessage {
        let conversation = ConversationId::new("old");
        let age = Duration::from_secs(seconds);
        PastMessage { conversation, at: Timestamp(86_400_000), age, text: text.to_owned() }
    }

    async fn call(
        query: &str,
        search: Option<Arc<dyn MessageSearch>>,
    ) -> Result<ToolResult, String> {
        let tool = recall_tool().unwrap();
        let context = ToolContext { message_search: search, ..TestEnv::new().context() };
        let arguments = json!({"query": query});
        let arguments =
            crate::tools::Arguments { text: RawJson::from_value(&arguments), value: arguments };
        match tool.call(arguments, context).await {
            crate::tools::ToolOutcome::Returned(result) => Ok(result),
            crate::tools::ToolOutcome::Failed(text) => Err(text),
            crate::tools::ToolOutcome::Unknown { reason } => panic!("{reason}"),
        }
    }

    #[test]
    fn ages_are_rounded_down() {
        for (seconds, expected) in [
            (0, "<1min"),
            (59, "<1min"),
            (60, "1min"),
            (5 * 60 + 59, "5min"),
            (3_599, "59min"),
            (3_600, "1h"),
            (2 * 3_600 + 3_599, "2h"),
            (86_399, "23h"),
            (86_400, "1d"),
            (3 * 86_400, "3d"),
            (400 * 86_400, "400d"),
        ] {
            assert_eq!(format_age(Duration::from_secs(seconds)), expected, "{seconds}");
        }
    }

    #[tokio::test]
    async fn result_shows_age_and_beginning_of_each_message() {
        let exact = "ä".repeat(100);
        let messages = vec![
            message(300, "Green tea, please"),
            message(7_200, &exact),
            message(259_200, &format!("{exact}!")),
        ];
        let found = Recollection { messages, is_complete: true };
        let search = Arc::new(FixedSearch(found, Mutex::default()));
        let result = call("  tea ", Some(Arc::clone(&search) as _)).await.unwrap();
        let expected = format!("5min ago: Green tea, please\n2h ago: {exact}\n3d ago: {exact}...");
        assert_eq!(joined_text(&result.content), expected);
        assert_eq!(*search.1.lock().unwrap(), ["tea"], "the query is trimmed");
        let details = result.details.unwrap().to_value();
        assert_eq!(details["outcome"], "Memory searched for 'tea' (3 matches)");
        let first = json!({"conversationId": "old", "at": "1970-01-02T00:00:00.000Z"});
        assert_eq!(details["matches"][0], first);
        assert_eq!(details["isComplete"], true);
    }

    #[tokio::test]
    async fn result_without_matches_has_the_text_of_the_source() {
        for (is_complete, note) in [
            (true, ""),
            (false, "\n[The search stopped at its limit: older messages were not searched.]"),
        ] {
            let found = Recollection { messages: Vec::new(), is_complete };
            let search = Arc::new(FixedSearch(found, Mutex::default()));
            let result = call("tea", Some(search)).await.unwrap();
            let expected = format!("No past references found outside current conversation{note}");
            assert_eq!(joined_text(&result.content), expected);
            assert!(!result.is_error);
            let details = result.details.unwrap().to_value();
            assert_eq!(details["outcome"], "Memory searched for 'tea' (0 matches)");
        }
    }

    #[tokio::test]
    async fn invalid_calls_have_the_texts_of_the_source() {
        let found = Recollection { messages: Vec::new(), is_complete: true };
        let search = || Some(Arc::new(FixedSearch(found.clone(), Mutex::default())) as _);
        for query in ["", " \n "] {
            let error = call(query, search()).await.unwrap_err();
            assert_eq!(error, "Search query cannot be empty");
        }
        let error = call("tea", None).await.unwrap_err();
        assert_eq!(error, "User ID required for memory recall");
        assert!(call(&"ä".repeat(200), search()).await.is_ok());
        let error = call(&"ä".repeat(201), search()).await.unwrap_err();
        assert_eq!(error, "Invalid input: the search query has more than 200 characters.");
    }
}
