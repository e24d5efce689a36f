//! Tests of the MCP client against a hostile server.

mod approvals;
mod authorization;
mod hostile;
mod lists;
mod lost_sessions;
mod odd_responses;
#[cfg(unix)]
mod programs;
mod sessions;

use std::time::Duration;

use rmcp::model::{CallToolRequest, CallToolRequestParams, ClientJsonRpcMessage, RequestId};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::definitions::Definitions;
use super::test_server::{Reply, TestServer, new_server, tool};
use super::tool::{McpContent, McpRules, McpToolSource};
use super::transport::{McpExchange, written_message};
use super::*;
use crate::test_env::TestEnv;
use crate::{Arguments, ToolOutcome, ToolResult};
use turnwheel_conversation::content::{Block, joined_text};
use turnwheel_conversation::phase::OnUnknown;
use turnwheel_conversation::request::Effect;
use turnwheel_json::raw::RawJson;
use turnwheel_test_support::time_bound::check_time;

const NOW: Timestamp = Timestamp(1_000_000);

fn rules(effect: Option<Effect>) -> McpRules {
    McpRules {
        selection: None,
        effect,
        on_unknown: OnUnknown::Ask,
        approval: None,
        has_reason: false,
        timeout: Duration::from_mins(1),
        content: McpContent::Native,
        revision: String::new(),
    }
}

async fn connected(
    tools: Value,
    effect: Option<Effect>,
    is_trusted: bool,
) -> (TestServer, McpToolSource) {
    let server = TestServer::start(tools).await;
    let source = McpToolSource::new(server.connect(is_trusted), rules(effect));
    source.server.refresh(NOW).await.unwrap();
    (server, source)
}

async fn call(source: &McpToolSource, env: &TestEnv) -> ToolOutcome {
    let text = RawJson::from_text(r#"{"n":1}"#).unwrap();
    let arguments = Arguments { value: text.to_value(), text };
    source.tools().first().unwrap().call(arguments, env.context()).await
}

fn returned(outcome: ToolOutcome) -> ToolResult {
    let ToolOutcome::Returned(result) = outcome else { panic!("{outcome:?}") };
    result
}

fn reason_of_unknown(outcome: ToolOutcome) -> String {
    let ToolOutcome::Unknown { reason } = outcome else { panic!("{outcome:?}") };
    reason
}

#[tokio::test]
async fn call_carries_effect_id_and_reuses_its_session() {
    let (server, source) = connected(json!([tool("send", "x")]), None, false).await;
    let env = TestEnv::new();
    for _ in 0..2 {
        assert_eq!(joined_text(&returned(call(&source, &env).await).content), "ran \"send\"");
    }
    let expected =
        ["initialize", "notifications/initialized", "tools/list", "tools/call", "tools/call"];
    assert_eq!(server.methods(), expected);
    let (headers, message) = server.last("tools/call");
    assert_eq!(headers["idempotency-key"], "tw_c_0a1b2c3d_1_0");
    assert_eq!(headers["mcp-session-id"], "s1");
    assert_eq!(message["params"]["_meta"]["turnwheel/effectId"], "tw_c_0a1b2c3d_1_0");
    assert_eq!(message["params"]["arguments"], json!({ "n": 1 }));
    // Servers report progress only to a request with a token.
    assert!(!message["params"]["_meta"]["progressToken"].is_null(), "{message}");
    let (_, handshake) = server.last("initialize");
    assert_eq!(handshake["params"]["capabilities"], json!({}));
}

#[tokio::test]
async fn arguments_are_sent_as_they_are_written() {
    let arguments = r#"{"id":25122920421210000012345,"sum":1.10,"text":"é\n"}"#;
    let written = written_call(arguments);
    let sent: ClientJsonRpcMessage = written.read().unwrap();
    assert!(matches!(sent, ClientJsonRpcMessage::Request(_)));
}

/// The message of a call with these arguments, which it contains as they are.
fn written_call(arguments: &str) -> RawJson {
    let exchange = Arc::new(McpExchange {
        arguments: Some(RawJson::from_text(arguments).unwrap()),
        ..McpExchange::read(Instant::now())
    });
    let mut request = CallToolRequest::new(CallToolRequestParams::new("pay"));
    request.extensions.insert(exchange);
    let message = ClientJsonRpcMessage::request(request.into(), RequestId::Number(7));
    let written = written_message(&message).unwrap();
    assert!(written.text().contains(&format!(r#""arguments":{arguments}"#)), "{}", written.text());
    written
}

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig::with_cases(100))]

    #[test]
    fn any_number_in_arguments_is_sent_as_written(
        number in turnwheel_test_support::numbers::ANY_NUMBER,
    ) {
        written_call(&format!(r#"{{"n":[{number}],"m":{{"k":{number}}}}}"#));
    }
}

#[tokio::test]
async fn hints_count_only_for_trusted_servers() {
    let mut reader = tool("get", "x");
    reader["annotations"] = json!({ "readOnlyHint": true });
    let mut putter = tool("put", "x");
    putter["annotations"] = json!({ "idempotentHint": true });
    let tools = json!([reader, putter, tool("post", "x")]);
    let effects = |source: &McpToolSource| -> Vec<Effect> {
        source.tools().iter().map(|it| it.definition().effect).collect()
    };
    let (_server, source) = connected(tools.clone(), None, false).await;
    assert_eq!(effects(&source), [Effect::Write; 3]);
    let (_server, source) = connected(tools.clone(), None, true).await;
    assert_eq!(effects(&source), [Effect::Read, Effect::Idempotent, Effect::Write]);
    let (_server, source) = connected(tools, Some(Effect::Read), false).await;
    assert_eq!(effects(&source), [Effect::Read; 3]);
}

#[tokio::test]
async fn lost_response_of_write_is_unknown() {
    let (server, source) = connected(json!([tool("send", "x")]), None, false).await;
    let env = TestEnv::new();
    for reply in [Reply::Status(500), Reply::Status(302), Reply::Stream(vec![]), Reply::Bytes(10)] {
        server.reply(reply.clone());
        let reason = reason_of_unknown(call(&source, &env).await);
        assert!(reason.contains("the MCP server `desk`"), "{reply:?}: {reason}");
        assert!(!reason.contains("s3cret"), "{reason}");
    }
    assert_eq!(server.count("tools/call"), 4, "no write is sent twice");
    for reply in [Reply::Status(400), Reply::Status(429), Reply::Error(-32_602)] {
        server.reply(reply.clone());
        assert!(returned(call(&source, &env).await).is_error, "{reply:?}");
    }
    server.reply(Reply::Bytes(10 * 1024 * 1024));
    let result = returned(call(&source, &env).await);
    assert!(joined_text(&result.content).contains("larger than 5 MB"), "{result:?}");
    assert!(!result.is_error);
}

#[tokio::test]
async fn endless_stream_ends_at_the_time_out() {
    let server = TestServer::start(json!([tool("send", "x")])).await;
    let rules = McpRules { timeout: Duration::from_millis(300), ..rules(None) };
    let source = McpToolSource::new(server.connect(false), rules);
    source.server.refresh(NOW).await.unwrap();
    server.reply(Reply::Hang);
    let reason = reason_of_unknown(call(&source, &TestEnv::new()).await);
    assert!(reason.contains("in time"), "{reason}");
}

#[tokio::test]
async fn repeatable_call_is_retried_and_session_is_opened_again() {
    let (server, source) = connected(json!([tool("get", "x")]), Some(Effect::Read), false).await;
    let env = TestEnv::new();
    server.reply(Reply::Status(503));
    assert!(!returned(call(&source, &env).await).is_error);
    server.reply(Reply::SessionLost);
    assert!(!returned(call(&source, &env).await).is_error);
    assert_eq!(server.count("initialize"), 3);
    assert_eq!(server.count("tools/call"), 4);
}

#[tokio::test]
async fn write_is_sent_again_in_a_new_session() {
    let (server, source) = connected(json!([tool("send", "x")]), None, false).await;
    server.reply(Reply::SessionLost);
    assert!(!returned(call(&source, &TestEnv::new()).await).is_error);
    assert_eq!((server.count("initialize"), server.count("tools/call")), (2, 2));
}

#[tokio::test]
async fn stream_has_progress_and_declined_requests() {
    let (server, source) = connected(json!([tool("send", "x")]), None, false).await;
    let env = TestEnv::new();
    let progress = json!({ "jsonrpc": "2.0", "method": "notifications/progress",
        "params": { "progressToken": 1, "progress": 1, "message": "half" } });
    let sampling = json!({ "jsonrpc": "2.0", "id": 90, "method": "sampling/createMessage",
        "params": { "messages": [], "maxTokens": 5 } });
    let roots = json!({ "jsonrpc": "2.0", "id": 91, "method": "roots/list" });
    let result = json!({ "jsonrpc": "2.0", "id": "ID",
        "result": { "content": [{ "type": "text", "text": "done" }] } });
    server.reply(Reply::Stream(vec![progress, sampling, roots, result]));
    assert_eq!(joined_text(&returned(call(&source, &env).await).content), "done");
    let reports = env.progress_reports.lock().unwrap().clone();
    assert_eq!(reports, [ToolResult::text("half")]);
    assert_eq!(server.count("reply"), 2);
    let (_, reply) = server.last("reply");
    assert!(reply["error"]["message"].as_str().unwrap().contains("no such capability"), "{reply}");
}

#[tokio::test]
async fn results_are_native_blocks_or_json() {
    let (server, source) = connected(json!([tool("send", "x")]), None, false).await;
    let env = TestEnv::new();
    let result = json!({
        "content": [
            { "type": "text", "text": "seen: s3cret-value" },
            { "type": "image", "data": "aGk=", "mimeType": "image/png" },
            { "type": "resource_link", "uri": "file:///a", "name": "a" },
        ],
        "structuredContent": { "total": 7 },
        "isError": true,
    });
    server.reply(Reply::Result(result.clone()));
    let native = returned(call(&source, &env).await);
    assert!(native.is_error);
    assert!(matches!(native.content.get(1), Some(Block::Image(_))), "{native:?}");
    let text = joined_text(&native.content);
    assert!(text.starts_with("seen: [KEY]") && text.contains("file:///a"), "{text}");
    assert_eq!(native.structured.unwrap().text(), r#"{"total":7}"#);
    let rules = McpRules { content: McpContent::Json, ..rules(None) };
    let source = McpToolSource::new(Arc::clone(&source.server), rules);
    server.reply(Reply::Result(result));
    let json_form = returned(call(&source, &env).await);
    let text = joined_text(&json_form.content);
    assert_eq!(serde_json::from_str::<Value>(&text).unwrap()["structuredContent"]["total"], 7);
    let details = json_form.details.unwrap().to_value();
    assert_eq!(details["mcpResult"]["structuredContent"]["total"], 7);
}

fn nested(levels: usize) -> Value {
    (0..levels)
        .fold(json!({ "type": "object" }), |inner, _| json!({ "properties": { "a": inner } }))
}

#[tokio::test]
async fn hostile_definitions_are_left_out() {
    let with_schema = |name: &str, schema: Value| json!({ "name": name, "inputSchema": schema });
    let tools = json!([
        tool("good", "x"),
        tool("good", "again"),
        tool("bad name", "x"),
        with_schema("remote", json!({ "$ref": "http://127.0.0.1:1/schema.json" })),
        with_schema("deep", nested(40)),
        with_schema("large", json!({ "type": "object", "description": "x".repeat(40_000) })),
        with_schema("list", json!({ "type": "array" })),
    ]);
    let (_server, source) = connected(tools, None, false).await;
    let names: Vec<String> = source.tools().iter().map(|it| it.definition().name.clone()).collect();
    assert_eq!(names, ["mcp__desk__good"]);
    let rejected = source.server.definitions().unwrap().rejected.clone();
    let reasons: Vec<String> =
        rejected.iter().map(|it| format!("{}: {}", it.name, it.reason)).collect();
    insta::assert_snapshot!(reasons.join("\n"), @r"
    good: its server lists another tool of this name
    bad name: its name is not 1 to 128 plain characters
    remote: its parameters are not a usable JSON Schema: Resource 'http://127.0.0.1:1/schema.json' is not present in a registry and retrieving it failed: `resolve-http` feature or a custom resolver is required to resolve external schemas via HTTP
    deep: its schema is nested over 32 levels
    large: its schema has over 32768 bytes
    list: its schema is not of an object
    ");
}

#[tokio::test]
async fn huge_list_is_shortened_or_refused() {
    let tools: Vec<Value> = (0..300).map(|n| tool(&format!("t{n}"), "x")).collect();
    let server = TestServer::start(json!(tools)).await;
    let mcp = server.connect(false);
    assert_eq!(mcp.refresh(NOW).await.unwrap().tools.len(), 256);
    server.set_tools(json!(vec![
        json!({ "name": "a", "inputSchema": { "type": "object" },
        "description": "x".repeat(30_000) });
        250
    ]));
    assert!(mcp.refresh(NOW).await.unwrap_err().contains("larger than 5 MB"));
}

#[tokio::test]
async fn old_definitions_serve_for_a_day() {
    let (server, source) = connected(json!([tool("send", "x")]), None, false).await;
    let mcp = &source.server;
    let after = |time: Duration| NOW.plus(time);
    assert!(!mcp.should_refresh(after(Duration::from_mins(9))));
    assert!(mcp.should_refresh(after(Duration::from_mins(10))));
    server.set_down(true);
    assert!(mcp.refresh(after(Duration::from_hours(23))).await.is_err());
    assert_eq!(source.tools().len(), 1);
    assert!(
        !mcp.should_refresh(after(Duration::from_hours(23))),
        "a failure is not repeated at once"
    );
    assert!(mcp.refresh(after(Duration::from_hours(24))).await.is_err());
    assert_eq!(source.tools().len(), 0);
    let text = source.missing_text().unwrap();
    assert!(text.contains("`desk` are missing now: it responded 503"), "{text}");
}

#[tokio::test]
async fn changed_definition_changes_the_revision() {
    let (server, source) =
        connected(json!([tool("send", "x"), tool("get", "x")]), None, false).await;
    let revisions = |source: &McpToolSource| -> Vec<String> {
        source.tools().iter().map(|it| it.definition().revision.clone()).collect()
    };
    let before = (revisions(&source), source.server.definitions().unwrap());
    server.set_tools(json!([tool("send", "x and the password"), tool("get", "x")]));
    let after = source.server.refresh(NOW).await.unwrap();
    assert_eq!(after.changed_since(&before.1), ["send"]);
    assert_ne!(revisions(&source)[0], before.0[0]);
    assert_eq!(revisions(&source)[1], before.0[1]);
}

/// Fixtures of the documents of all versions.
#[test]
fn stored_definitions_round_trip() {
    let lines = include_str!("../../../../tests/fixtures/mcp-definitions-v1.jsonl").lines();
    for line in lines.clone() {
        let definitions: Definitions = serde_json::from_str(line).unwrap();
        assert_eq!(json!(definitions), serde_json::from_str::<Value>(line).unwrap());
    }
    assert_eq!(lines.count(), 2);
}

#[test]
fn stored_definitions_of_other_versions_load() {
    let stored = r#"{"fetchedAt":5,"tools":[{"name":"a","title":null,"description":"d","parameters":{"type":"object"},"later":1}]}"#;
    let definitions: Definitions = serde_json::from_str(stored).unwrap();
    assert_eq!(definitions.tools[0].name, "a");
}

/// Processor time that this thread has used.
fn processor_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap())
}

/// Processor time of this thread, which runs client and server: more than that of the client.
#[tokio::test]
async fn call_of_debug_build_costs_little_processor_time() {
    let (_server, source) = connected(json!([tool("get", "x")]), Some(Effect::Read), false).await;
    let env = TestEnv::new();
    let mut cheapest = Duration::MAX;
    for _ in 0..40 {
        let before = processor_time();
        call(&source, &env).await;
        cheapest = cheapest.min(processor_time().saturating_sub(before));
    }
    // Five times the bound of a call: debug builds beside other tests took up to 3 ms.
    check_time("processor time of an MCP call", cheapest, Duration::from_millis(10));
}
