//! MCP tools in turns: definitions from the store, changed definitions of approved calls, and
//! servers that cannot be reached.

mod changes;
mod sessions;

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use super::store_requests::handle_next_nudge;
use super::test_env::{LoggedRequests as _, RequestLogStore, Script, TestEnv, call, text};
use crate::delivery::handle;
use crate::remote_tools::load_unknown_definitions;
use turnwheel_agent_files::AgentDefinition;
use turnwheel_conversation::phase::OnUnknown;
use turnwheel_platform::fail_points::NoFailPoints;
use turnwheel_record::services::Services;
use turnwheel_storage::queue::{self, Queue as _};
use turnwheel_tools::http::ApprovalRule;
use turnwheel_tools::http::template::{Piece, Template};
use turnwheel_tools::mcp::McpServer;
use turnwheel_tools::mcp::test_server::{TestServer, tool};
use turnwheel_tools::mcp::tool::{McpContent, McpRules, McpToolSource};

pub(super) fn calls_send(results: usize, _input: &str) -> Vec<Value> {
    if results == 0 { vec![call("c1", "mcp__desk__send", 0)] } else { vec![text("done")] }
}

pub(super) fn source(server: Arc<McpServer>, has_approval: bool) -> McpToolSource {
    let approval = has_approval.then(|| ApprovalRule {
        condition: None,
        reason: Template(vec![Piece::Text("x".to_owned())]),
        approvers: vec!["owner".to_owned()],
        is_requester_excluded: false,
        expires_after: Duration::from_hours(24),
    });
    let rules = McpRules {
        selection: None,
        effect: None,
        on_unknown: OnUnknown::Ask,
        approval,
        has_reason: false,
        timeout: Duration::from_mins(1),
        content: McpContent::Native,
        revision: String::new(),
    };
    McpToolSource::new(server, rules)
}

/// An agent with the tools of the server, and a worker of it.
fn env_with(
    script: Script,
    server: &TestServer,
    has_approval: bool,
) -> (TestEnv, Services, Arc<RequestLogStore>) {
    let mut env = TestEnv::with_script(3, script);
    let counting = RequestLogStore::wrap(env.store.clone());
    env.worker_store = counting.clone();
    let worker = new_process(&mut env, server.connect(false), has_approval);
    (env, worker, counting)
}

/// A worker in another process: nothing of the server is known.
fn new_process(env: &mut TestEnv, server: Arc<McpServer>, has_approval: bool) -> Services {
    let source = std::sync::Mutex::new(Some(source(server, has_approval)));
    env.change_agent(|agent: &mut AgentDefinition| {
        agent.mcp = source.lock().unwrap().take().into_iter().collect();
    });
    env.new_worker(Arc::new(NoFailPoints))
}

/// Handles the nudges that are due.
async fn run(env: &TestEnv, worker: &Services) {
    loop {
        let received = env.queue.receive(queue::TURNS, 1, Duration::from_mins(1)).await.unwrap();
        let Some(message) = received.into_iter().next() else { return };
        let nudge = serde_json::from_str(&message.text).unwrap();
        handle(worker, &nudge).await.unwrap();
        env.queue.delete(queue::TURNS, &message.id, &message.pop_receipt).await.unwrap();
    }
}

#[tokio::test]
async fn warm_tool_round_costs_six_requests() {
    let script: Script = |results, _| {
        if results < 2 { vec![call("c1", "mcp__desk__send", results)] } else { vec![text("done")] }
    };
    let server = TestServer::start(json!([tool("send", "x")])).await;
    let (mut env, worker, counting) = env_with(script, &server, false);
    env.send_prompt(&worker).await;
    // Cold: the definitions are read from the store and the server, and stored.
    let cold = handle_next_nudge(&env, &worker, &counting).await;
    assert!(cold.contains("read item\n") && cold.contains("write scope\n"), "{cold}");
    let listed = server.count("tools/list");
    assert_eq!((listed, server.count("tools/call")), (1, 1));
    insta::assert_snapshot!(handle_next_nudge(&env, &worker, &counting).await, @r"
    write head
    write head, commit
    write head, commit
    ");
    assert_eq!((server.count("tools/list"), server.count("tools/call")), (1, 2));
}

#[tokio::test]
async fn warm_prompt_reads_no_definitions() {
    let server = TestServer::start(json!([tool("send", "x")])).await;
    let (mut env, worker, counting) = env_with(calls_send, &server, false);
    env.send_prompt(&worker).await;
    run(&env, &worker).await;
    env.queue_prompt(&worker, &TestEnv::key(), "again").await.unwrap();
    let second = handle_next_nudge(&env, &worker, &counting).await;
    assert!(!second.contains("scope") && !second.contains("read"), "{second}");
    run(&env, &worker).await;
    assert_eq!((server.count("tools/list"), server.count("tools/call")), (1, 2));
}

#[tokio::test]
async fn other_process_uses_stored_definitions() {
    let server = TestServer::start(json!([tool("send", "x")])).await;
    let (mut env, worker, _) = env_with(calls_send, &server, false);
    env.send_prompt(&worker).await;
    run(&env, &worker).await;
    let other = new_process(&mut env, server.connect(false), false);
    env.queue_prompt(&other, &TestEnv::key(), "again").await.unwrap();
    run(&env, &other).await;
    assert_eq!((server.count("tools/list"), server.count("tools/call")), (1, 2));
}

/// Names of all tools of the agent, as `GET /api/agents` lists them.
async fn listed_tools(services: &Services) -> Vec<String> {
    let agent = services.agents.find(Some("a")).or_else(|_| services.agents.find(None)).unwrap();
    load_unknown_definitions(services, &TestEnv::key().tenant, agent.mcp.iter()).await;
    let tools = agent.all_tools();
    let names = tools.iter().map(|tool| tool.definition().name.clone());
    names.filter(|name| name.starts_with("mcp__")).collect()
}

#[tokio::test]
async fn list_of_agents_has_tools_of_servers_before_the_first_prompt() {
    let server = TestServer::start(json!([tool("send", "x"), tool("read", "y")])).await;
    let (mut env, worker, _) = env_with(calls_send, &server, false);
    let all = ["mcp__desk__send", "mcp__desk__read"];
    assert_eq!(listed_tools(&worker).await, all);
    assert_eq!(listed_tools(&worker).await, all);
    assert_eq!(server.count("tools/list"), 1, "a list reads known definitions no more");
    server.set_down(true);
    let other = new_process(&mut env, server.connect(false), false);
    assert_eq!(listed_tools(&other).await, all, "from the store");
}

#[tokio::test]
async fn approved_call_of_unreachable_server_is_not_sent() {
    let server = TestServer::start(json!([tool("send", "x")])).await;
    let (mut env, worker, _) = env_with(calls_send, &server, true);
    env.send_prompt(&worker).await;
    run(&env, &worker).await;
    server.set_down(true);
    env.decide_all("approve").await;
    run(&env, &worker).await;
    assert_eq!(server.count("tools/call"), 0);
    let head = env.head().await.unwrap();
    assert!(head.requests.is_empty() && head.prompt.is_none(), "the prompt goes on");
}

#[tokio::test]
async fn agent_names_missing_tools_and_stays_usable() {
    let server = TestServer::start(json!([tool("send", "x")])).await;
    server.set_down(true);
    let (mut env, worker, _) = env_with(|_, _| vec![text("hello")], &server, false);
    env.send_prompt(&worker).await;
    run(&env, &worker).await;
    let entries = env.entries().await;
    let stored = serde_json::to_string(&entries).unwrap();
    assert!(stored.contains("The tools of the MCP server `desk` are missing now"), "{stored}");
    assert!(env.head().await.unwrap().prompt.is_none());
}

#[tokio::test]
async fn call_of_unreachable_server_fails_with_its_name() {
    let server = TestServer::start(json!([tool("send", "x")])).await;
    server.set_down(true);
    let (mut env, worker, _) = env_with(calls_send, &server, false);
    env.send_prompt(&worker).await;
    run(&env, &worker).await;
    let stored = serde_json::to_string(&env.entries().await).unwrap();
    assert!(stored.contains("The tools of the MCP server `desk` are missing now: it"), "{stored}");
    assert_eq!(server.count("initialize"), 1, "a failure is not repeated at once");
    assert!(env.head().await.unwrap().prompt.is_none(), "the agent goes on");
}
