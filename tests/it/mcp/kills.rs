//! Kills of the process around calls of tools that a server of the official SDK runs: no write is
//! sent twice, and a session of a conversation outlives the process.

use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::node_server::{NodeServer, install_servers};
use crate::support::dev_process::DevProcess;
use crate::support::openapi_check::SendValidated as _;
use crate::support::restarting_client::RestartingClient;

const TIMEOUT: Duration = Duration::from_mins(2);

/// Fail points around the call, and around the write of the definitions that its approval confirms.
const FAIL_POINTS: [&str; 10] = [
    "tool-definitions.before",
    "tool-definitions.after",
    "model.after",
    "response.after",
    "pending-work.before",
    "pending-work.after",
    "tool.before",
    "tool.after",
    "result.before",
    "result.after",
];

/// A client of an agent with the tools of one server.
fn new_client(entry: &Value, agent: &str, halt_at: Option<String>) -> RestartingClient {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("agents")).unwrap();
    std::fs::write(folder.path().join("agents/desk.agent.md"), agent).unwrap();
    let file = json!({ "servers": { "desk": entry } }).to_string();
    std::fs::write(folder.path().join("mcp.json"), file).unwrap();
    let start = move |data: &Path, settings: &[(&str, String)]| {
        DevProcess::start_in(folder.path(), data, settings)
    };
    RestartingClient::new(start, halt_at)
}

/// Number of calls with the text that the server ran.
async fn sent(server: &NodeServer, text: &str) -> u32 {
    let response = reqwest::Client::new()
        .get(server.url(&format!("/sent/{text}")))
        .send_validated()
        .await
        .unwrap();
    response.text().await.unwrap().parse().unwrap()
}

/// Observations of a client.
struct SentCall {
    sent: u32,
    has_outcome_request: bool,
    /// Content of its result.
    result: String,
    hits: Vec<String>,
}

/// Sends a text with one call that an approver approves. `halt_at`: where the process is killed.
async fn send_text(
    server: &NodeServer,
    text: &str,
    halt_at: Option<String>,
    is_killed_while_held: bool,
) -> SentCall {
    let agent = "---\ntools:\n  - mcp: { server: desk, approval: always }\n---\nWork.";
    let mut client = new_client(&json!({ "url": server.url("/mcp") }), agent, halt_at);
    let input = format!(r#"use mcp__desk__send with {{"text": "{text}"}} then say done"#);
    let body = json!({ "conversationId": "c", "input": input });
    let (accepted, _) = client.post("/api/prompts", "send", &body).await;
    let path = format!("/api/conversations/c/prompts/{}", accepted["promptId"].as_str().unwrap());
    let (mut has_outcome_request, mut must_kill) = (false, is_killed_while_held);
    let deadline = Instant::now() + TIMEOUT;
    loop {
        let prompt = client.get(&path).await;
        assert!(Instant::now() < deadline, "{prompt}\n{}", client.dev.log());
        if must_kill && sent(server, text).await == 1 {
            client.restart();
            must_kill = false;
        }
        match prompt["state"].as_str().unwrap() {
            "completed" => break,
            "waiting_for_approval" => {
                let view = client.get("/api/conversations/c").await;
                for approval in view["pendingApprovals"].as_array().unwrap() {
                    let is_outcome = approval["kind"] == "outcome";
                    has_outcome_request |= is_outcome;
                    let decision = match (is_outcome, sent(server, text).await) {
                        (false, _) => "approve",
                        (true, 0) => "did_not_happen",
                        (true, _) => "happened",
                    };
                    let id = approval["id"].as_str().unwrap();
                    let path = format!("/api/conversations/c/approvals/{id}");
                    client.post(&path, id, &json!({ "decision": decision })).await;
                }
            }
            state => assert_eq!(state, "running", "{prompt}"),
        }
    }
    let messages = client.get("/api/conversations/c/messages?limit=100").await;
    let messages = messages["items"].as_array().unwrap();
    let results: Vec<&Value> =
        messages.iter().filter(|message| message["role"] == "toolResult").collect();
    let [result] = results.as_slice() else { panic!("{messages:#?}") };
    let result = result["content"].to_string();
    SentCall { sent: sent(server, text).await, has_outcome_request, result, hits: client.hits }
}

/// Kills at each hit of the fail point, until a run has fewer hits. Returns the number of kills, and
/// of those after which the outcome was unknown.
async fn kill_at_each_hit(server: &NodeServer, fail_point: &str) -> (u32, u32) {
    let (mut kills, mut unknown) = (0, 0);
    loop {
        let at = format!("{fail_point}#{}", kills + 1);
        let text = format!("{fail_point}-{}", kills + 1);
        let call = send_text(server, &text, Some(at.clone()), false).await;
        assert!(call.sent <= 1, "{at}: sent {} times", call.sent);
        if call.has_outcome_request {
            unknown += 1;
        } else {
            assert_eq!(call.sent, 1, "{at}: {}, {:?}", call.result, call.hits);
            assert!(call.result.contains(&format!("sent {text}")), "{at}: {}", call.result);
        }
        if call.hits.is_empty() {
            return (kills, unknown);
        }
        kills += 1;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kill_around_a_write_sends_it_once() {
    let servers = install_servers();
    let server = NodeServer::start(&servers.join("changing.mjs"), &[]);
    let all = FAIL_POINTS.map(|fail_point| kill_at_each_hit(&server, fail_point));
    let kills = futures_util::future::join_all(all).await;
    for (fail_point, (kills, unknown)) in FAIL_POINTS.iter().zip(&kills) {
        assert!(*kills >= 1, "{fail_point} is not reached");
        // The intent is stored before the call, and the result after it.
        let is_around_call = matches!(*fail_point, "tool.before" | "tool.after" | "result.before");
        assert!(*unknown == 0 || !fail_point.starts_with("tool-definitions"), "{fail_point}");
        assert!(*unknown >= 1 || !is_around_call, "{fail_point}: {unknown} of {kills}");
    }
}

#[tokio::test]
async fn kill_while_the_server_works_leaves_the_outcome_to_an_approver() {
    let servers = install_servers();
    let server = NodeServer::start(&servers.join("changing.mjs"), &[]);
    let call = send_text(&server, "hold-1", None, true).await;
    assert!(call.has_outcome_request, "{}", call.result);
    assert_eq!(call.sent, 1);
    assert!(!call.result.contains("sent hold-1"), "no process has read it: {}", call.result);
}

#[tokio::test]
async fn session_of_a_conversation_outlives_its_process() {
    let servers = install_servers();
    let server = NodeServer::start(&servers.join("stateful.mjs"), &[]);
    let entry = json!({ "url": server.url("/mcp"), "session": "conversation" });
    let agent = "---\ntools:\n  - mcp: desk\n---\nWork.";
    let mut client = new_client(&entry, agent, None);
    let add = async |client: &mut RestartingClient, conversation: &str, item: &str| {
        let input = format!(r#"use mcp__desk__add with {{"item": "{item}"}} then say done"#);
        let path = format!("/api/conversations/{conversation}/prompts");
        let (path, body) = match item {
            "a" | "x" => {
                ("/api/prompts", json!({ "conversationId": conversation, "input": input }))
            }
            _ => (path.as_str(), json!({ "input": input })),
        };
        let (accepted, _) = client.post(path, item, &body).await;
        client.wait_for(&accepted, "completed").await;
        let path = format!("/api/conversations/{conversation}/messages?limit=100");
        let messages = client.get(&path).await["items"].as_array().unwrap().clone();
        let last = messages.into_iter().rev().find(|message| message["role"] == "toolResult");
        last.unwrap()["content"].clone()
    };
    assert_eq!(add(&mut client, "c", "a").await[0]["text"], "a");
    assert_eq!(add(&mut client, "d", "x").await[0]["text"], "x");
    assert_eq!(add(&mut client, "c", "b").await[0]["text"], "a, b");
    client.restart();
    assert_eq!(add(&mut client, "c", "e").await[0]["text"], "a, b, e");
    reqwest::Client::new().get(server.url("/forget")).send_validated().await.unwrap();
    let content = add(&mut client, "c", "f").await;
    assert_eq!(content[0]["text"], "f");
    assert!(content[1]["text"].as_str().unwrap().contains("earlier session"), "{content}");
}
