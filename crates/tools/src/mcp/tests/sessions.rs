//! Tests of sessions of conversations with a server that needs them.

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::*;
use crate::ToolContext;
use crate::plugin_state::CallPluginState;
use turnwheel_conversation::plugin_state::{PluginState, PluginStates};

/// A process, with nothing of another one.
pub(super) fn new_process(server: &TestServer, effect: Option<Effect>) -> McpToolSource {
    McpToolSource::new(server.connect_conversations(), rules(effect))
}

pub(super) async fn start(effect: Option<Effect>) -> (TestServer, McpToolSource) {
    let server = TestServer::start(json!([tool("send", "x")])).await;
    let source = new_process(&server, effect);
    source.server.refresh(NOW).await.unwrap();
    (server, source)
}

pub(super) async fn call_in(
    source: &McpToolSource,
    states: &mut PluginStates,
    incarnation: &str,
) -> ToolResult {
    send_in(source, states, incarnation, ARGUMENTS).await
}

pub(super) async fn send_in(
    source: &McpToolSource,
    states: &mut PluginStates,
    incarnation: &str,
    arguments: &str,
) -> ToolResult {
    let context = context_in(states, incarnation);
    let state = context.plugin_state.clone().unwrap();
    let result = returned(send(source, context, arguments).await);
    if let Some(change) = state.change() {
        change.set(states);
    }
    result
}

fn context_in(states: &PluginStates, incarnation: &str) -> ToolContext {
    let plugin_state = Some(CallPluginState::new(states.clone()));
    let mut context = ToolContext { plugin_state, ..TestEnv::new().context() };
    context.artifact_scope.incarnation = incarnation.to_owned();
    context
}

async fn call_with(source: &McpToolSource, context: ToolContext) -> ToolOutcome {
    send(source, context, ARGUMENTS).await
}

async fn send(source: &McpToolSource, context: ToolContext, arguments: &str) -> ToolOutcome {
    let text = RawJson::from_text(arguments).unwrap();
    let arguments = Arguments { value: text.to_value(), text };
    source.tools().first().unwrap().call(arguments, context).await
}

pub(super) fn texts(result: &ToolResult) -> String {
    joined_text(&result.content)
}

const ARGUMENTS: &str = r#"{"n":1}"#;
pub(super) const LOST: &str =
    "The earlier session of this conversation with the MCP server `desk` has ended.";

#[tokio::test]
async fn conversations_have_sessions_of_their_own() {
    let (server, source) = start(None).await;
    let (mut first, mut second) = (PluginStates::new(), PluginStates::new());
    // The first session is that of the process, which reads the definitions.
    assert_eq!(texts(&call_in(&source, &mut first, "one").await), "call 1 of s2");
    assert_eq!(texts(&call_in(&source, &mut second, "two").await), "call 1 of s3");
    assert_eq!(texts(&call_in(&source, &mut first, "one").await), "call 2 of s2");
    assert_eq!(server.count("initialize"), 3);
}

#[tokio::test]
async fn session_is_continued_without_a_handshake() {
    let (server, source) = start(None).await;
    let mut states = PluginStates::new();
    call_in(&source, &mut states, "one").await;
    let other = new_process(&server, None);
    other.server.adopt(source.server.definitions().map(|it| (*it).clone()));
    let before = server.methods().len();
    assert_eq!(texts(&call_in(&other, &mut states, "one").await), "call 2 of s2");
    assert_eq!(server.methods()[before..], ["tools/call"]);
    let (headers, _) = server.last("tools/call");
    let (_, handshake) = server.last("initialize");
    assert_eq!(headers["mcp-session-id"], "s2");
    assert_eq!(
        headers["mcp-protocol-version"],
        handshake["params"]["protocolVersion"].as_str().unwrap()
    );
}

#[tokio::test]
async fn lost_session_is_replaced_once_and_reported() {
    let (server, source) = start(None).await;
    let mut states = PluginStates::new();
    call_in(&source, &mut states, "one").await;
    server.forget_sessions();
    let replaced = texts(&call_in(&source, &mut states, "one").await);
    assert!(replaced.starts_with("call 1 of s3") && replaced.contains(LOST), "{replaced}");
    assert_eq!(texts(&call_in(&source, &mut states, "one").await), "call 2 of s3");
    assert_eq!((server.count("initialize"), server.count("tools/call")), (3, 4));
}

#[tokio::test]
async fn session_that_is_lost_again_and_again_ends_the_call() {
    let (server, source) = start(None).await;
    for _ in 0..4 {
        server.reply(Reply::SessionLost);
    }
    let result = call_in(&source, &mut PluginStates::new(), "one").await;
    assert!(result.is_error && texts(&result).contains("its session ended"), "{result:?}");
    assert!(server.count("tools/call") <= 2, "{:?}", server.methods());
}

#[tokio::test]
async fn response_that_mentions_a_session_is_no_lost_session() {
    let result =
        r#"{"id":"ID","result":{"content":[{"type":"text","text":"ordered; session not found"}]}}"#;
    let error = r#"{"id":"ID","error":{"code":-32602,"message":"training session 12 is full"}}"#;
    let closed = r#"{"id":"ID","error":{"code":-32602,"message":"training session 12 not found"}}"#;
    let timeout = r#"{"id":"ID","error":{"code":-32001,"message":"Request timed out"}}"#;
    let of_tool =
        r#"{"id":"ID","error":{"code":-32000,"message":"training session 12 not found"}}"#;
    let of_pool = r#"{"id":"ID","error":{"code":-32002,"message":"Database not initialized"}}"#;
    for (status, body, expected) in [
        (404, result, "ordered; session not found"),
        (400, result, "ordered; session not found"),
        (400, error, "training session 12 is full"),
        (404, error, "training session 12 is full"),
        (404, closed, "training session 12 not found"),
        (410, closed, "training session 12 not found"),
        (200, closed, "training session 12 not found"),
        (200, of_tool, "training session 12 not found"),
        (200, of_pool, "Database not initialized"),
        (400, of_pool, "Database not initialized"),
        (200, timeout, "Request timed out"),
        (504, timeout, "Request timed out"),
        (400, timeout, "Request timed out"),
    ] {
        let (server, source) = start(None).await;
        server.reply(Reply::Raw(status, "application/json", body.as_bytes().to_vec()));
        let result = call_in(&source, &mut PluginStates::new(), "one").await;
        assert!(texts(&result).contains(expected), "{status} {result:?}");
        assert_eq!(result.is_error, body.contains("\"error\""));
        assert_eq!(server.count("tools/call"), 1, "{status} {body}");
        assert_eq!(server.count("initialize"), 2, "{status} {body}");
    }
}

/// A fork or an imported conversation has the state of another one.
#[tokio::test]
async fn copied_conversation_uses_no_session_of_the_original() {
    let (_server, source) = start(None).await;
    let mut states = PluginStates::new();
    call_in(&source, &mut states, "one").await;
    let mut copy = states.clone();
    let result = texts(&call_in(&source, &mut copy, "two").await);
    assert!(result.starts_with("call 1 of s3") && result.contains(LOST), "{result}");
    assert_eq!(texts(&call_in(&source, &mut states, "one").await), "call 2 of s2");
}

#[tokio::test]
async fn unreadable_stored_session_is_replaced() {
    let (_server, source) = start(None).await;
    let value = RawJson::from_text(r#"{"later":1}"#).unwrap();
    let state = PluginState { schema: 9, value };
    let mut states = PluginStates::from([("mcp:desk".to_owned(), state)]);
    let result = texts(&call_in(&source, &mut states, "one").await);
    assert!(result.starts_with("call 1 of s2") && result.contains(LOST), "{result}");
}

#[tokio::test]
async fn retried_read_stays_in_its_session() {
    let (server, source) = start(Some(Effect::Read)).await;
    server.reply(Reply::Status(503));
    let result = call_in(&source, &mut PluginStates::new(), "one").await;
    assert_eq!(texts(&result), "call 2 of s2");
}

#[tokio::test]
async fn call_is_not_sent_when_its_session_cannot_be_stored() {
    let (server, source) = start(None).await;
    server.set_session_prefix(&"x".repeat(1100));
    let result = call_in(&source, &mut PluginStates::new(), "one").await;
    let text = texts(&result);
    assert!(
        result.is_error && text.contains("the id of its session has over 1024 bytes"),
        "{text}"
    );
    assert_eq!(server.count("tools/call"), 0);
}

#[test]
fn stored_session_loads() {
    let value = RawJson::from_text(
        r#"{"sessionId":"s2","protocolVersion":"2025-06-18","server":"i","incarnation":"one","later":1}"#,
    )
    .unwrap();
    let states = PluginStates::from([("mcp:desk".to_owned(), PluginState { schema: 1, value })]);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let (server, source) = start(None).await;
        server.forget_sessions();
        call_with(&source, context_in(&states, "one")).await;
        let sent = server.requests_of("tools/call");
        assert_eq!(sent[0]["mcp-session-id"], "s2", "the server decides that it is unknown");
    });
}

/// Processor time of this thread, which runs client and server: more than that of the client.
#[tokio::test]
async fn continued_session_of_debug_build_costs_little_processor_time() {
    let (_server, source) = start(Some(Effect::Read)).await;
    let mut states = PluginStates::new();
    let mut cheapest = Duration::MAX;
    for _ in 0..40 {
        let before = processor_time();
        call_in(&source, &mut states, "one").await;
        cheapest = cheapest.min(processor_time().saturating_sub(before));
    }
    // Five times the bound of a call: debug builds beside other tests took up to 3 ms.
    check_time("processor time of a continued MCP session", cheapest, Duration::from_millis(10));
}

/// A way to the server on which each connection serves one request: the next one finds it closed,
/// as when the server closes an idle connection at that moment. Returns its address.
async fn closing_connections(server: &TestServer) -> String {
    let upstream: Url = server.url.parse().unwrap();
    let upstream = format!("127.0.0.1:{}", upstream.port().unwrap());
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/mcp", listener.local_addr().unwrap());
    let serve = async move {
        let mut connections = tokio::task::JoinSet::new();
        while let Ok((client, _)) = listener.accept().await {
            let server = tokio::net::TcpStream::connect(&upstream).await.unwrap();
            connections.spawn(serve_one_request(client, server));
        }
    };
    #[expect(clippy::disallowed_methods, reason = "it ends with the runtime of its test")]
    tokio::spawn(serve);
    url
}

async fn serve_one_request(mut client: tokio::net::TcpStream, mut server: tokio::net::TcpStream) {
    let (mut from_client, mut to_client) = client.split();
    let (mut from_server, mut to_server) = server.split();
    let (mut sent, mut received) = (vec![0; 64 * 1024], vec![0; 64 * 1024]);
    let mut has_response = false;
    loop {
        tokio::select! {
            read = from_client.read(&mut sent) => match read {
                Ok(1..) if has_response => return,
                Ok(count @ 1..) => to_server.write_all(&sent[..count]).await.unwrap(),
                Ok(0) | Err(_) => return,
            },
            read = from_server.read(&mut received) => match read {
                Ok(count @ 1..) => {
                    has_response = true;
                    to_client.write_all(&received[..count]).await.unwrap();
                }
                Ok(0) | Err(_) => return,
            },
        }
    }
}

#[tokio::test]
async fn handshake_and_lists_are_sent_again_on_a_new_connection() {
    let server = TestServer::start(json!([tool("send", "x")])).await;
    let url = closing_connections(&server).await.parse().unwrap();
    let connector = HttpConnector { url, ..server.connector() };
    let source = McpToolSource::new(new_server(false, connector), rules(None));
    source.server.refresh(NOW).await.unwrap();
    assert!(!returned(call(&source, &TestEnv::new()).await).is_error);
    assert_eq!((server.count("tools/list"), server.count("tools/call")), (1, 1));
}
