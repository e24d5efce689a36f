//! The tool `recall`: it finds messages of the same user in other conversations, and nothing else.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use serde_json::{Value, json};

use super::protocol::protocol_env;
use super::store_requests::{handle_next_nudge, queued_nudges};
use super::test_env::{RequestLogStore, TestEnv, call, idempotency, owner, text};
use crate::agent::action::UserMessageQueue;
use crate::agent::content::{Content, joined_text};
use crate::agent::entry::Source;
use crate::agent::message::Message;
use crate::agents::AgentMemory;
use crate::commands::contract::Owner;
use crate::commands::delete::delete_conversation;
use crate::commands::prompt::{
    FirstPromptRequest, Mode, PromptRequest, Sender, WhenBusy, accept_prompt, begin_conversation,
};
use crate::extensions::{ClosingTurn, Extension, FinishTurn, HookContext, HookError};
use crate::fail_points::NoFailPoints;
use crate::ids::{ConversationId, ConversationKey, UserId};
use crate::queue::{self, Queue as _};
use crate::services::Services;
use crate::store::SearchQuery;
use crate::tools::recall::recall_tool;
use crate::turn::delivery::handle;

const NOTHING: &str = "No past references found outside current conversation";

/// Calls `recall` with the words after "recall", and `look` for "look".
pub(super) fn recalls(results: usize, input: &str) -> Vec<Value> {
    match (results, input.strip_prefix("recall ")) {
        (0, Some(query)) => {
            let arguments = json!({"query": query});
            vec![json!({"type": "toolCall", "id": "c1", "name": "recall", "arguments": arguments})]
        }
        (0, None) if input == "look" => vec![call("c1", "look", 0)],
        _ => vec![text("done")],
    }
}

impl TestEnv {
    /// The agent of all workers has the tool `recall` from now on.
    pub(super) fn add_recall(&mut self, memory: Option<&AgentMemory>) {
        self.change_agent(|agent| {
            agent.tools.extend(recall_tool());
            agent.memory = memory.cloned();
        });
    }
}

struct RecallEnv {
    env: TestEnv,
    services: Services,
}

impl RecallEnv {
    fn new() -> Self {
        let mut env = TestEnv::with_script(1, recalls);
        env.add_recall(None);
        let services = env.new_worker(Arc::new(NoFailPoints));
        Self { env, services }
    }

    /// Sends a prompt and processes it.
    async fn run(&self, owner: &Owner, id: &str, request: FirstPromptRequest) {
        let request = FirstPromptRequest { conversation_id: Some(id.to_owned()), ..request };
        let key = idempotency(&format!("{id} {:?}", request.input));
        let sender = sender(Source::User);
        begin_conversation(&self.services, owner, request, &key, &sender).await.unwrap();
        self.work().await;
    }

    async fn say(&self, owner: &Owner, id: &str, text: &str) {
        let input = Some(Content::Text(text.to_owned()));
        self.run(owner, id, FirstPromptRequest { input, ..FirstPromptRequest::default() }).await;
    }

    async fn send(&self, text: &str, mode: Mode, source: Source) {
        let input = Some(Content::Text(text.to_owned()));
        let request = PromptRequest { input, mode: Some(mode), ..PromptRequest::default() };
        let (key, sender) = (idempotency(text), sender(source));
        accept_prompt(&self.services, &TestEnv::key(), request, &key, &sender).await.unwrap();
    }

    async fn work(&self) {
        while queued_nudges(&self.env).await > 0 {
            self.deliver().await;
        }
    }

    /// Processes one nudge.
    async fn deliver(&self) {
        let queue = &self.env.queue;
        let received = queue.receive(queue::TURNS, 1, Duration::from_mins(1)).await.unwrap();
        let message = received.into_iter().next().unwrap();
        handle(&self.services, &serde_json::from_str(&message.text).unwrap()).await.unwrap();
        queue.delete(queue::TURNS, &message.id, &message.pop_receipt).await.unwrap();
    }

    /// The result of the last tool call.
    async fn last_result(&self, owner: &Owner, id: &str) -> (String, Value) {
        let entries = self.env.entries_of(&owner.conversation_key(id)).await;
        let result = entries.iter().rev().find_map(|entry| match entry.body.message() {
            Some(Message::ToolResult(result)) => Some(result),
            _ => None,
        });
        let result = result.unwrap();
        let details = result.details.as_ref().map(crate::agent::raw::RawJson::to_value);
        (joined_text(&result.content), details.unwrap_or_default())
    }

    /// The search texts that contain a text, newest first.
    async fn find(&self, text: &str) -> Vec<String> {
        let Owner { tenant, user } = owner();
        let excluded = ConversationId::new("none");
        let query = SearchQuery { tenant, user, text: text.to_owned(), excluded, limit: 99 };
        let found = self.services.store.search(&query).await.unwrap();
        found.hits.into_iter().map(|hit| hit.text).collect()
    }
}

fn sender(source: Source) -> Sender {
    Sender { source, traceparent: None, when_busy: WhenBusy::Queue }
}

#[tokio::test(start_paused = true)]
async fn conversation_recalls_messages_of_another_one() {
    let app = RecallEnv::new();
    let owner = owner();
    let long = format!("Green tea {}", "x".repeat(100));
    app.say(&owner, "first", &long).await;
    tokio::time::sleep(Duration::from_hours(72)).await;
    app.say(&owner, "second", "Grüne Äpfel and GREEN TEA").await;
    tokio::time::sleep(Duration::from_mins(5)).await;
    app.say(&owner, "now", "recall green tea").await;
    let (result, details) = app.last_result(&owner, "now").await;
    let cut: String = long.chars().take(100).collect();
    assert_eq!(result, format!("5min ago: Grüne Äpfel and GREEN TEA\n3d ago: {cut}..."));
    assert_eq!(details["outcome"], "Memory searched for 'green tea' (2 matches)");
    assert_eq!(details["matches"][0]["conversationId"], "second");
    app.say(&owner, "again", "recall ÄPFEL").await;
    let (result, _) = app.last_result(&owner, "again").await;
    assert_eq!(result, "5min ago: Grüne Äpfel and GREEN TEA", "not the own message");
    app.say(&owner, "coffee", "recall coffee").await;
    let (result, details) = app.last_result(&owner, "coffee").await;
    assert_eq!(result, NOTHING, "its own prompt is in the current conversation");
    assert_eq!(details["outcome"], "Memory searched for 'coffee' (0 matches)");
}

#[tokio::test(start_paused = true)]
async fn messages_of_other_users_are_never_recalled() {
    let app = RecallEnv::new();
    let eve = Owner { user: UserId::new("eve"), ..owner() };
    app.say(&owner(), "secret", "My PIN is 1234").await;
    app.say(&eve, "spy", "recall PIN").await;
    assert_eq!(app.last_result(&eve, "spy").await.0, NOTHING);
    app.say(&owner(), "mine", "recall pin").await;
    assert_eq!(app.last_result(&owner(), "mine").await.0, "<1min ago: My PIN is 1234");
}

#[tokio::test(start_paused = true)]
async fn messages_of_deleted_conversations_are_not_recalled() {
    let app = RecallEnv::new();
    app.say(&owner(), "old", "Green tea").await;
    let key = owner().conversation_key("old");
    delete_conversation(&app.services, &key).await.unwrap();
    app.say(&owner(), "now", "recall tea").await;
    assert_eq!(app.last_result(&owner(), "now").await.0, NOTHING);
}

/// Sends the texts of two user messages when the first turn ends.
#[derive(Debug)]
struct Speaks;

#[async_trait]
impl Extension for Speaks {
    fn name(&self) -> &'static str {
        "speaks"
    }

    async fn finish_turn(
        &self,
        cx: &HookContext,
        _turn: &ClosingTurn<'_>,
    ) -> Result<Option<FinishTurn>, HookError> {
        if cx.session_name().is_none() {
            cx.set_session_name("spoken")?;
            cx.send_user_message("tea of the extension", UserMessageQueue::Steer)?;
            cx.send_user_message("more tea of the extension", UserMessageQueue::FollowUp)?;
        }
        Ok(None)
    }
}

#[tokio::test(start_paused = true)]
async fn only_messages_of_persons_are_found() {
    let mut app = RecallEnv::new();
    app.say(&owner(), "c", "tea").await;
    app.send("look", Mode::Prompt, Source::User).await;
    app.deliver().await;
    app.send("steered tea", Mode::Steer, Source::User).await;
    app.send("followed tea", Mode::FollowUp, Source::User).await;
    app.work().await;
    app.send("queued tea", Mode::Prompt, Source::Queue).await;
    app.work().await;
    let expected = ["queued tea", "followed tea", "steered tea", "tea"];
    assert_eq!(app.find("tea").await, expected);
    app.send("scheduled tea", Mode::Prompt, Source::Schedule).await;
    app.work().await;
    let hidden = FirstPromptRequest {
        input: Some(Content::Text("hidden tea".to_owned())),
        visible: Some(false),
        ..FirstPromptRequest::default()
    };
    app.run(&owner(), "hidden", hidden).await;
    app.services.extensions = vec![Arc::new(Speaks)];
    app.say(&owner(), "spoken", "go").await;
    let spoken = app.env.entries_of(&owner().conversation_key("spoken")).await;
    let spoken = serde_json::to_string(&spoken).unwrap();
    assert!(spoken.contains("\"tea of the extension") && spoken.contains("more tea of the"));
    assert_eq!(app.find("tea").await, expected);
    assert_eq!(app.find("go").await, ["go"]);
}

#[tokio::test(start_paused = true)]
async fn recall_is_off_when_all_callers_are_one_user() {
    for (allows_shared_user, expected) in [
        (None, "Error in tool \"recall\": User ID required for memory recall"),
        (Some(false), "Error in tool \"recall\": User ID required for memory recall"),
        (Some(true), "<1min ago: Green tea"),
    ] {
        let mut app = RecallEnv::new();
        let memory =
            allows_shared_user.map(|allows_shared_user| AgentMemory { allows_shared_user });
        app.env.add_recall(memory.as_ref());
        app.services.limits.has_shared_user = true;
        app.say(&owner(), "old", "Green tea").await;
        app.say(&owner(), "now", "recall tea").await;
        assert_eq!(app.last_result(&owner(), "now").await.0, expected, "{allows_shared_user:?}");
    }
}

/// In protocol mode the model reads the content of a success, and the text of a failure.
#[tokio::test(start_paused = true)]
async fn protocol_mode_has_the_texts_of_the_source() {
    let (mut env, model) = protocol_env(1);
    *env.model.script.lock().unwrap() = recalls;
    env.add_recall(None);
    let settings = Some(env.settings.clone());
    let services = env.new_worker(Arc::new(NoFailPoints));
    let mut app = RecallEnv { env, services };
    let say = async |app: &RecallEnv, id: &str, text: &str| {
        let (input, settings) = (Some(Content::Text(text.to_owned())), settings.clone());
        let request = FirstPromptRequest { settings, input, ..FirstPromptRequest::default() };
        app.run(&owner(), id, request).await;
        let body = model.bodies().pop().unwrap();
        let last = body["input"].as_array().unwrap().last().unwrap();
        last["content"][0]["text"].as_str().unwrap_or_default().to_owned()
    };
    say(&app, "old", "Green tea").await;
    let results = |status: &str, content: &str| {
        let result = format!(r#""tool": "recall", "status": "{status}", "content": "{content}""#);
        format!("<results>\n[{{{result}}}]\n</results>")
    };
    assert_eq!(say(&app, "now", "recall tea").await, results("success", "<1min ago: Green tea"));
    assert_eq!(say(&app, "coffee", "recall coffee").await, results("success", NOTHING));
    assert_eq!(
        say(&app, "empty", "recall  ").await,
        results("failure", "Search query cannot be empty")
    );
    app.services.limits.has_shared_user = true;
    assert_eq!(
        say(&app, "shared", "recall tea").await,
        results("failure", "User ID required for memory recall")
    );
}

/// Returns an environment with three earlier conversations, and an accepted prompt that recalls them.
pub(super) async fn new_recall_env() -> (TestEnv, Services, Arc<RequestLogStore>) {
    let mut env = TestEnv::with_script(1, recalls);
    env.add_recall(None);
    let log = RequestLogStore::wrap(env.store.clone());
    env.worker_store = log.clone();
    let services = env.new_worker(Arc::new(NoFailPoints));
    for id in ["one", "two", "three"] {
        env.send_prompt_to(&services, id, &format!("tea {id}")).await;
        while queued_nudges(&env).await > 0 {
            handle_next_nudge(&env, &services, &log).await;
        }
    }
    env.send_prompt_to(&services, "c", "recall tea").await;
    (env, services, log)
}

#[tokio::test(start_paused = true)]
async fn recall_costs_a_search_and_a_read_for_each_match() {
    let (env, services, log) = new_recall_env().await;
    insta::assert_snapshot!(handle_next_nudge(&env, &services, &log).await, @r"
    lease (head and inbox)
    write head, 2 entry, events, receipt
    select inbox
    write head, 2 entry, events
    search
    read item
    read item
    read item
    select inbox
    write head, entry, events
    ");
    let key = ConversationKey { conversation_id: ConversationId::new("c"), ..TestEnv::key() };
    let entries = env.entries_of(&key).await;
    let kinds = entries.iter().map(|entry| serde_json::to_value(&entry.body).unwrap());
    let kinds: Vec<Value> = kinds.map(|body| body["type"].clone()).collect();
    assert!(kinds.contains(&json!("tool_started")), "as each call of a tool: {kinds:?}");
}
