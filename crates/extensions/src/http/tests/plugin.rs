//! HTTP plugins: their requests, state, texts and tools.

use std::borrow::Cow;

use serde_json::{Value, json};

use super::server::{HookServer, Reply};
use super::*;
use crate::plugin::{PluginError, RegisteredPlugin};
use crate::prepare::{CurrentPrompt, PrepareInput, PrepareOutput};
use turnwheel_conversation::message::Message;
use turnwheel_conversation::plugin_state::{PluginState, PluginStates};
use turnwheel_platform::clock::Timestamp;
use turnwheel_tools::workspace::builtins;

/// Prepares a call with the state `{"rounds":1}` of schema 3 and the tool `ls`.
async fn prepare(reply: Reply) -> (Result<PrepareOutput, PluginError>, Option<Value>) {
    let server = HookServer::start(vec![reply]).await;
    let endpoint = endpoint(&server.url, Duration::from_secs(5));
    let tools = builtins().into_iter().filter(|tool| tool.definition().name == "ls").collect();
    let plugin = HttpPlugin { name: "counter".to_owned(), endpoint };
    let plugin = RegisteredPlugin::from_http(plugin, tools, false).unwrap();
    let value = RawJson::from_text(r#"{"rounds":1}"#).unwrap();
    let states: PluginStates = [("counter".to_owned(), PluginState { schema: 3, value })].into();
    let message: Message =
        serde_json::from_value(json!({"role": "user", "content": "Hello", "timestamp": 1}))
            .unwrap();
    let cx = context(Hook::Prepare);
    let output = plugin
        .prepare(PrepareInput {
            cx: &cx,
            plugin: &plugin,
            plugins: &[],
            states: &states,
            history: &[Cow::Borrowed(&message)],
            prompt: &CurrentPrompt {
                id: &PromptId::new("pr_1"),
                started_at: Timestamp(0),
                rounds: 4,
                messages: Vec::new(),
            },
            user: &UserId::new("ann"),
            user_documents: None,
            active_tools: &[],
            workspace_context: None,
            items_bytes: 0,
        })
        .await;
    (output, server.received().first().map(|request| request.body.clone()))
}

#[tokio::test]
async fn prepare_sends_state_and_messages_and_reads_the_result() {
    let response = json!({
        "state": {"rounds": 2}, "schema": 4, "tools": ["ls"],
        "context": ["Be brief.", {"text": "Round 2.", "volatile": true}, {"text": "Be kind."}]
    });
    assert!(fits_schema("prepare.response", &response));
    let (output, request) = prepare(Reply::json(&response)).await;
    let output = output.unwrap();
    let state = output.change.unwrap().state.unwrap();
    assert_eq!((state.schema, state.value.text()), (4, r#"{"rounds":2}"#));
    assert_eq!(output.tools, ["ls"]);
    let items: Vec<_> = output.items.iter().map(|it| (it.text.as_str(), it.is_volatile)).collect();
    assert_eq!(items, [("Be brief.", false), ("Round 2.", true), ("Be kind.", false)]);
    let request = request.unwrap();
    assert!(fits_schema("prepare.request", &request), "{request}");
    assert_eq!(
        request,
        json!({
            "event": "prepare", "hookId": request["hookId"], "conversationId": "c", "tenantId": "t",
            "userId": "ann", "agent": "clerk", "promptId": "pr_1", "rounds": 4, "state": {"rounds": 1}, "schema": 3,
            "lastMessages": [{"role": "user", "content": "Hello", "timestamp": 1}], "messagesOmitted": 0
        })
    );
}

#[tokio::test]
async fn absent_state_stays_and_null_removes_it() {
    let (output, _) = prepare(Reply::json(&json!({}))).await;
    assert!(output.unwrap().change.is_none());
    let (output, _) = prepare(Reply::json(&json!({"state": null}))).await;
    assert!(output.unwrap().change.unwrap().state.is_none());
    let (output, _) = prepare(Reply::json(&json!({"state": {}}))).await;
    assert_eq!(output.unwrap().change.unwrap().state.unwrap().schema, 1);
}

#[tokio::test]
async fn unusable_results_are_permanent_failures() {
    let large = "a".repeat(9_000);
    for (response, reason) in [
        (json!({"state": 7}), "its response is not valid: state is an object or null"),
        (json!({"schema": 2}), "its response is not valid: schema needs state"),
        (
            json!({"tools": ["ls", "rm"]}),
            "its response is not valid: /tools/1 is not among the tools of the agent file",
        ),
        (
            json!({"state": {"a": large}}),
            "The state of plugin \"counter\" is 9008 bytes; the maximum is 8192",
        ),
        (
            json!({"context": ["a".repeat(40_000)]}),
            "its context items are 40000 bytes; the maximum is 32768",
        ),
        (
            json!({"contexts": []}),
            "its response is not valid: a member is unknown at line 1 column 11",
        ),
    ] {
        let (output, _) = prepare(Reply::json(&response)).await;
        let error = output.err().unwrap();
        assert_eq!((error.to_string().as_str(), error.is_retryable()), (reason, false));
    }
}

#[tokio::test]
async fn transient_failures_are_retryable() {
    for (status, is_retryable) in [(500, true), (429, true), (503, true), (404, false)] {
        let (output, _) = prepare(Reply::Status(status, None)).await;
        assert_eq!(output.err().unwrap().is_retryable(), is_retryable, "{status}");
    }
}
