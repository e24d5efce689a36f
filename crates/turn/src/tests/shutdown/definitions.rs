//! Reads of the definitions of MCP tools while the process ends.

use std::net::TcpListener;

use serde_json::json;

use super::super::budgets::limit_everything;
use super::super::mcp::{calls_send, source};
use super::*;
use turnwheel_tools::mcp::test_server::{TestServer, tool};
use turnwheel_tools::mcp::{Connector, HttpConnector, McpServer};

/// A worker of a process that knows no definitions. Each call of the server needs an approval.
fn new_process(env: &mut TestEnv, connector: &HttpConnector) -> Services {
    env.change_agent(|agent| {
        let connector = Connector::Http(Box::new(connector.clone()));
        let server = McpServer::new("desk", "i".to_owned(), false, connector);
        agent.mcp = vec![source(Arc::new(server), true)];
    });
    env.new_worker(Arc::new(NoFailPoints))
}

/// A connector to a server that accepts connections and never responds, with its port.
fn hanging(server: &TestServer) -> (TcpListener, HttpConnector) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/mcp", listener.local_addr().unwrap());
    let connector = HttpConnector { url: url.parse().unwrap(), ..server.connector() };
    (listener, connector)
}

#[tokio::test(start_paused = true)]
async fn signal_ends_read_of_definitions() {
    let server = TestServer::start(json!([tool("send", "x")])).await;
    let (_port, connector) = hanging(&server);
    let mut env = TestEnv::with_script(41, calls_send);
    env.budget_limits = limit_everything();
    let worker = new_process(&mut env, &connector);
    env.send_prompt(&worker).await;
    assert_eq!(handle_while_process_ends(&worker, TIMES).await, TIMES.repeatable);
    assert_given_back(&env).await;
    assert_eq!(*env.model.calls.lock().unwrap(), 0, "no call begins");
    let head = env.head().await.unwrap();
    assert_eq!((head.metering.reservations_made, head.reservation), (1, None));
    assert!(head.metering.lost.is_nothing(), "the call was not sent");
    assert!(head.metering.settle_at.is_some(), "the accounts are settled");
}

/// The servers' responses need real time.
#[tokio::test]
async fn approved_call_waits_for_another_process() {
    let server = TestServer::start(json!([tool("send", "x")])).await;
    let mut env = TestEnv::with_script(41, calls_send);
    let first = new_process(&mut env, &server.connector());
    env.send_prompt(&first).await;
    handle(&first, &TestEnv::nudge()).await.unwrap();
    assert_eq!(only_request(&env).await.kind, RequestKind::Tool);
    env.decide_all("approve").await;

    let (_port, connector) = hanging(&server);
    let ending = new_process(&mut env, &connector);
    tokio::time::pause();
    assert_eq!(handle_while_process_ends(&ending, TIMES).await, Duration::ZERO);
    tokio::time::resume();
    assert_given_back(&env).await;
    assert!(env.head().await.unwrap().requests.is_empty(), "the decision is recorded");
    assert_eq!(server.count("tools/call"), 0);

    let next = new_process(&mut env, &server.connector());
    handle(&next, &TestEnv::nudge()).await.unwrap();
    assert_eq!(server.count("tools/call"), 1, "the approval stays");
}
