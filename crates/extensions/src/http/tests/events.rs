//! Each event: the data that a server receives, and the result of its response.

use std::borrow::Cow;

use serde_json::{Value, json};

use super::server::{HookServer, Reply};
use super::*;
use crate::{
    BashResult, ClosingTurn, CommandCall, FinishTurn, FinishedRun, FinishedToolCall, ForkPosition,
    HTTP_EVENTS, HookError, Observation, PendingCompaction, PendingFork, PendingLeafMove,
    PromptText, ResultChanges, SessionStartReason, StartingRun, SummaryOverride, UserBash,
};
use turnwheel_conversation::content::{Block, Content, Image};
use turnwheel_conversation::entry::{Entry, ModelChange, Source};
use turnwheel_conversation::message::{AssistantMessage, Message, StopReason, ToolResultMessage};
use turnwheel_conversation::phase::CompactionReason;
use turnwheel_conversation::unknown_members::Extra;
use turnwheel_platform::ids::{ConversationId, EntryId};

fn result_message() -> ToolResultMessage {
    serde_json::from_value(json!({
        "toolCallId": "call_1", "toolName": "pay", "content": [{"type": "text", "text": "paid"}],
        "isError": false, "timestamp": 1
    }))
    .unwrap()
}

fn response_message() -> AssistantMessage {
    let block = serde_json::from_value(json!({
        "type": "thinking", "thinking": "hm", "thinkingSignature": "opaque"
    }));
    AssistantMessage::new_synthetic("model", vec![block.unwrap()], StopReason::Stop)
}

fn entry() -> Entry {
    serde_json::from_value(json!({
        "type": "compaction", "entryId": "e1", "parentId": null, "seq": 1, "timestamp": "2026-11-23T12:00:00.000Z",
        "summary": "All good.", "firstKeptEntryId": "e0", "tokensBefore": 9
    }))
    .unwrap()
}

fn observed_fact(event: Hook) -> Option<Observation> {
    let change = ModelChange::new("azure", "m");
    let facts = [
        Observation::SessionStart { reason: SessionStartReason::New },
        Observation::SessionShutdown,
        Observation::AgentStart,
        Observation::TurnStart { turn_index: 3 },
        Observation::ModelSelect(change),
        Observation::SessionTree {
            old_leaf_id: Some(EntryId::new("e1")),
            new_leaf_id: None,
            summary: Some("Left.".to_owned()),
        },
        Observation::SessionFork { previous: ConversationId::new("c0") },
    ];
    facts.into_iter().find(|fact| fact.hook() == event)
}

async fn run_tool_result(
    extension: &HttpExtension,
    cx: &HookContext,
    content: &[Block],
) -> Result<String, HookError> {
    let call = FinishedToolCall {
        tool_call_id: "call_1",
        tool_name: "pay",
        arguments: &pay(),
        content,
        details: None,
        is_error: false,
    };
    let changes: ResultChanges = extension.after_tool_call(cx, &call).await?;
    let content = serde_json::to_string(&changes.content).unwrap();
    let details = changes.details.map(|details| details.text().to_owned());
    Ok(format!("{content} {details:?} {:?}", changes.is_error))
}

async fn run_before_compaction(
    extension: &HttpExtension,
    cx: &HookContext,
) -> Result<String, HookError> {
    let message = Message::ToolResult(result_message());
    let compaction = PendingCompaction {
        reason: CompactionReason::Manual,
        instructions: Some("short"),
        tokens_before: 9,
        messages: &[Cow::Borrowed(&message)],
        previous_summary: None,
        first_kept_entry_id: &EntryId::new("e0"),
    };
    Ok(match extension.before_compaction(cx, &compaction).await? {
        Some(SummaryOverride::Summary { summary, details }) => {
            format!("{summary} {:?}", details.map(|details| details.text().to_owned()))
        }
        other => format!("{other:?}"),
    })
}

async fn run_before_leaf_move(
    extension: &HttpExtension,
    cx: &HookContext,
) -> Result<String, HookError> {
    let (target_id, old_leaf_id) = (EntryId::new("e1"), EntryId::new("e9"));
    let message = serde_json::from_value(json!({
        "type": "message", "entryId": "e9", "parentId": null, "seq": 1, "timestamp": "2026-11-23T12:00:00.000Z",
        "message": Message::ToolResult(result_message())
    }));
    let pending = PendingLeafMove {
        target_id: Some(&target_id),
        old_leaf_id: Some(&old_leaf_id),
        new_leaf_id: None,
        common_ancestor_id: None,
        entries_left: &[Arc::new(entry()), Arc::new(message.unwrap())],
        wants_summary: true,
        label: None,
    };
    Ok(format!("{:?}", extension.before_leaf_move(cx, &pending).await?))
}

async fn run_command(extension: &HttpExtension, cx: &HookContext) -> Result<String, HookError> {
    let user = UserId::new("u");
    let call = CommandCall { name: "rules", args: "all", user: &user };
    Ok(format!("{:?}", extension.run_command(cx, &call).await?.output))
}

async fn run_user_bash(extension: &HttpExtension, cx: &HookContext) -> Result<String, HookError> {
    let result = BashResult { output: "a.txt".to_owned(), ..BashResult::default() };
    let command = "ls".to_owned();
    let bash = UserBash { command, result, is_excluded_from_context: false };
    Ok(format!("{:?}", extension.replace_bash_result(cx, &bash).await?))
}

/// Runs the hook of `event` on fixed data. Returns the result as text.
async fn run(extension: &HttpExtension, event: Hook) -> Result<String, HookError> {
    let (cx, arguments) = (context(event), pay());
    let image =
        Image { data: "aaaa".to_owned(), mime_type: "image/png".to_owned(), extra: Extra::new() };
    let content = [Block::text("paid"), Block::Image(image)];
    if let Some(fact) = observed_fact(event) {
        return Ok(format!("{:?}", extension.observe(&cx, &fact).await?));
    }
    Ok(match event {
        Hook::BeforeAgentStart => {
            let (prompt_id, input) = (PromptId::new("pr_1"), Content::Blocks(content.to_vec()));
            let run =
                StartingRun { prompt_id: &prompt_id, input: Some(&input), system_prompt: "Help." };
            let changes = extension.before_agent_start(&cx, &run).await?;
            let messages = serde_json::to_string(&changes.messages).unwrap();
            format!("{messages} {:?}", changes.system_prompt)
        }
        Hook::AgentEnd => {
            let message = Message::ToolResult(result_message());
            let run = FinishedRun { messages: &[&message], will_retry: true };
            format!("{:?}", extension.finish_run(&cx, &run).await?)
        }
        Hook::ToolCall => {
            format!("{:?}", extension.before_tool_call(&cx, &pending_call(&arguments)).await?)
        }
        Hook::ToolResult => run_tool_result(extension, &cx, &content).await?,
        Hook::TurnEnd => {
            let (response, result) = (response_message(), result_message());
            let results = [&result];
            let turn = ClosingTurn {
                response: &response,
                tool_results: &results,
                rounds: 2,
                turn_index: 1,
            };
            let decision: Option<FinishTurn> = extension.finish_turn(&cx, &turn).await?;
            format!("{decision:?}")
        }
        Hook::SessionBeforeCompact => run_before_compaction(extension, &cx).await?,
        Hook::SessionCompact => format!("{:?}", extension.after_compaction(&cx, &entry()).await?),
        Hook::Input => {
            let text = "pay Ada".to_owned();
            let input = PromptText { text, images: Vec::new(), source: Source::User };
            format!("{:?}", extension.transform_input(&cx, &input).await?)
        }
        Hook::SessionBeforeTree => run_before_leaf_move(extension, &cx).await?,
        Hook::SessionBeforeFork => {
            let (entry_id, position) = (EntryId::new("e1"), ForkPosition::At);
            let fork = PendingFork { entry_id: &entry_id, position };
            format!("{:?}", extension.before_session_fork(&cx, &fork).await?)
        }
        Hook::Command => run_command(extension, &cx).await?,
        Hook::UserBash => run_user_bash(extension, &cx).await?,
        Hook::Context
        | Hook::OnPayload
        | Hook::Prepare
        | Hook::ResourcesDiscover
        | Hook::SessionBeforeSwitch
        | Hook::SessionSwitch
        | Hook::SessionFork
        | Hook::SessionTree
        | Hook::SessionStart
        | Hook::SessionShutdown
        | Hook::AgentStart
        | Hook::TurnStart
        | Hook::ModelSelect => unreachable!("{event:?} is not sent"),
    })
}

/// The request and the results of an event.
struct EventCase {
    event: Hook,
    data: Value,
    /// Responses and results.
    results: Vec<(Value, &'static str)>,
}

fn tool_cases() -> Vec<EventCase> {
    let call = json!({"toolCallId": "call_1", "toolName": "pay", "arguments": {"amount": 5}});
    let with = |more: Value| {
        let mut data = call.clone();
        data.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        data
    };
    vec![
        EventCase {
            event: Hook::ToolCall,
            data: with(json!({"callsCount": 1})),
            results: vec![
                (json!({"decision": "allow", "reason": "fine"}), "Allow"),
                (
                    json!({"decision": "block", "reason": "no", "terminate": true}),
                    r#"Block(CallBlock { reason: Some("no"), terminate: true })"#,
                ),
                (
                    json!({"decision": "change", "arguments": {"amount": 4}}),
                    "ChangeText(RawJson(12 bytes))",
                ),
                (
                    json!({"decision": "requireApproval", "reason": "Pay 5?", "approvers": ["link"], "notRequester": true, "expiresAfter": "2h", "refusal": "Not paid"}),
                    r#"RequireApproval(ApprovalRequest { reason: "Pay 5?", approvers: ["link"], is_requester_excluded: true, expires_after: 7200s, refusal: Some("Not paid") })"#,
                ),
            ],
        },
        EventCase {
            event: Hook::ToolResult,
            data: with(json!({
                "content": [{"type": "text", "text": "paid"}, {"type": "image", "mimeType": "image/png"}],
                "isError": false
            })),
            results: vec![
                (json!({}), "null None None"),
                (json!({"content": "new"}), r#"[{"type":"text","text":"new"}] None None"#),
                (
                    json!({"content": [{"type": "image", "data": "aaaa", "mimeType": "image/png"}], "details": {"a": 1}, "isError": true}),
                    r#"[{"type":"image","data":"aaaa","mimeType":"image/png"}] Some("{\"a\":1}") Some(true)"#,
                ),
            ],
        },
    ]
}

fn observed(event: Hook, data: Value) -> EventCase {
    EventCase { event, data, results: vec![(json!({}), "()")] }
}

fn request_cases() -> Vec<EventCase> {
    let input = EventCase {
        event: Hook::Input,
        data: json!({"text": "pay Ada", "imagesCount": 0, "source": "user"}),
        results: vec![
            (json!({"action": "continue"}), "Continue"),
            (
                json!({"action": "transform", "text": "pay Bob"}),
                r#"Transform { text: "pay Bob", images: None }"#,
            ),
            (json!({"action": "handled"}), "Handled"),
        ],
    };
    let start = observed(Hook::SessionStart, json!({"reason": "new"}));
    vec![start, observed(Hook::SessionShutdown, json!({})), input]
}

fn run_cases() -> Vec<EventCase> {
    let result = serde_json::to_value(Message::ToolResult(result_message())).unwrap();
    vec![
        EventCase {
            event: Hook::BeforeAgentStart,
            data: json!({
                "input": [{"type": "text", "text": "paid"}, {"type": "image", "mimeType": "image/png"}],
                "systemPrompt": "Help."
            }),
            results: vec![
                (json!({}), "[] None"),
                (
                    json!({"messages": [{"customType": "note", "content": "Hi", "display": false}], "systemPrompt": "Be kind."}),
                    r#"[{"customType":"note","content":"Hi","display":false}] Some("Be kind.")"#,
                ),
                (
                    json!({"messages": [{"customType": "n", "content": [{"type": "text", "text": "Hi"}]}]}),
                    r#"[{"customType":"n","content":[{"type":"text","text":"Hi"}],"display":true}] None"#,
                ),
            ],
        },
        observed(Hook::AgentStart, json!({})),
        observed(Hook::TurnStart, json!({"turnIndex": 3})),
        observed(Hook::ModelSelect, json!({"provider": "azure", "modelId": "m"})),
        observed(
            Hook::AgentEnd,
            json!({"messages": [result], "messagesOmitted": 0, "willRetry": true}),
        ),
    ]
}

fn session_cases() -> Vec<EventCase> {
    let result = serde_json::to_value(Message::ToolResult(result_message())).unwrap();
    let mut response = serde_json::to_value(Message::Assistant(response_message())).unwrap();
    response["content"][0].as_object_mut().unwrap().remove("thinkingSignature").unwrap();
    vec![
        EventCase {
            event: Hook::TurnEnd,
            data: json!({"response": response, "toolResults": [result], "rounds": 2, "turnIndex": 1}),
            results: vec![
                (json!({}), "None"),
                (json!({"decision": "end"}), "Some(End)"),
                (json!({"decision": "continue"}), "Some(Continue)"),
            ],
        },
        EventCase {
            event: Hook::SessionBeforeCompact,
            data: json!({
                "reason": "manual", "instructions": "short", "tokensBefore": 9, "previousSummary": null,
                "firstKeptEntryId": "e0", "messages": [result], "messagesOmitted": 0, "canAsk": true
            }),
            results: vec![
                (json!({}), "None"),
                (json!({"cancel": true}), "Some(Cancel)"),
                (json!({"summary": "All good.", "details": 7}), r#"All good. Some("7")"#),
            ],
        },
        EventCase {
            event: Hook::SessionCompact,
            data: json!({"entry": serde_json::to_value(entry()).unwrap()}),
            results: vec![(json!({}), "()")],
        },
    ]
}

fn tree_and_command_cases() -> Vec<EventCase> {
    let result = serde_json::to_value(Message::ToolResult(result_message())).unwrap();
    vec![
        EventCase {
            event: Hook::SessionBeforeTree,
            data: json!({
                "targetId": "e1", "oldLeafId": "e9", "newLeafId": null, "commonAncestorId": null,
                "messagesLeft": [result], "messagesOmitted": 0, "wantsSummary": true, "label": null
            }),
            results: vec![
                (json!({}), "None"),
                (json!({"cancel": true}), "Some(Cancel)"),
                (
                    json!({"summary": "Left."}),
                    r#"Some(Summary { summary: "Left.", details: None })"#,
                ),
            ],
        },
        observed(
            Hook::SessionTree,
            json!({"oldLeafId": "e1", "newLeafId": null, "summary": "Left."}),
        ),
        EventCase {
            event: Hook::SessionBeforeFork,
            data: json!({"entryId": "e1", "position": "at"}),
            results: vec![(json!({}), "Continue"), (json!({"cancel": true}), "Cancel")],
        },
        observed(Hook::SessionFork, json!({"previous": "c0"})),
        EventCase {
            event: Hook::Command,
            data: json!({"name": "rules", "args": "all"}),
            results: vec![(json!({}), "None"), (json!({"output": "none"}), r#"Some("none")"#)],
        },
        EventCase {
            event: Hook::UserBash,
            data: json!({
                "command": "ls", "output": "a.txt", "exitCode": null, "cancelled": false,
                "truncated": false, "excludeFromContext": false
            }),
            results: vec![
                (json!({}), "None"),
                (
                    json!({"result": {"output": "***", "exitCode": 1, "truncated": true}}),
                    r#"Some(BashResult { output: "***", exit_code: Some(1), is_cancelled: false, is_truncated: true })"#,
                ),
            ],
        },
    ]
}

#[tokio::test]
async fn every_event_sends_its_data_and_reads_its_result() {
    let groups =
        [request_cases(), run_cases(), tool_cases(), session_cases(), tree_and_command_cases()];
    let cases: Vec<EventCase> = groups.into_iter().flatten().collect();
    assert_eq!(cases.iter().map(|case| case.event).collect::<Vec<_>>(), HTTP_EVENTS);
    for EventCase { event, data, results } in cases {
        let replies = results.iter().map(|(response, _)| Reply::json(response)).collect();
        let server = HookServer::start(replies).await;
        let extension = extension(&server.url, Duration::from_secs(5));
        for (response, expected) in &results {
            let result = run(&extension, event).await.unwrap_or_else(|error| panic!("{error}"));
            assert_eq!(result, *expected, "{event:?} {response}");
            assert!(fits_schema(&format!("{}.response", event.name()), response), "{response}");
        }
        let received = server.received();
        assert_eq!(received.len(), results.len());
        for request in received {
            let schema = format!("{}.request", event.name());
            assert!(fits_schema(&schema, &request.body), "{}", request.body);
            assert_eq!(
                request.body,
                json!({
                    "event": event.name(), "hookId": request.id, "conversationId": "c", "tenantId": "t",
                    "userId": "u", "agent": "clerk", "promptId": "pr_1", "data": data
                })
            );
        }
    }
}

#[tokio::test]
async fn unknown_members_of_every_event_are_failures() {
    for &event in HTTP_EVENTS {
        let schema = format!("{}.response", event.name());
        assert!(!fits_schema(&schema, &json!({"unheardOf": 1})), "{schema}");
        let server = HookServer::start(vec![Reply::json(&json!({"unheardOf": 1}))]).await;
        let extension = extension(&server.url, Duration::from_secs(5));
        let error = run(&extension, event).await.unwrap_err().to_string();
        assert_eq!(error, "its response is not valid: a member is unknown at line 1 column 12");
    }
}

#[tokio::test]
async fn events_that_may_ask_read_the_question() {
    let ask = json!({"ask": {"kind": "confirm", "key": "sure", "text": "Sure?"}});
    for event in [
        Hook::ToolCall,
        Hook::SessionBeforeCompact,
        Hook::SessionBeforeTree,
        Hook::SessionBeforeFork,
        Hook::Command,
    ] {
        assert!(fits_schema(&format!("{}.response", event.name()), &ask), "{event:?}");
        let server = HookServer::start(vec![Reply::json(&ask)]).await;
        let extension = extension(&server.url, Duration::from_secs(5));
        let error = run(&extension, event).await.unwrap_err().to_string();
        assert_eq!(error, "the question `sure` has no answer yet", "{event:?}");
    }
}

#[test]
fn newest_messages_are_kept_within_the_limit() {
    let text = |text: &str| {
        let message = json!({"role": "user", "content": text, "timestamp": 1});
        serde_json::from_value::<Message>(message).unwrap()
    };
    let messages = [text("first"), text(&"a".repeat(500)), text("third"), text("last")];
    let texts = |bytes_max: usize| {
        let (kept, omitted) = messages::newest(messages.iter(), bytes_max);
        let texts: Vec<String> = kept
            .iter()
            .map(|message| message.to_value()["content"].as_str().unwrap().to_owned())
            .collect();
        (texts, omitted)
    };
    assert_eq!(texts(300), (vec!["third".to_owned(), "last".to_owned()], 2));
    assert_eq!(texts(10), (Vec::new(), 4));
    assert_eq!(texts(2_000).1, 0);
}
