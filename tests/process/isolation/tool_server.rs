//! Test server with slow tools, write tools, and a tool that kills its caller's process; a client
//! that retries each request.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::extract::{ConnectInfo, State};
use axum::routing;
use axum::{Json, Router};
use futures_util::future::join_all;
use http::HeaderMap;
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use crate::support::dev_process::DevProcess;
use crate::support::openapi_check;

const AGENT: &str = "---
description: Works.
tools:
  - http:
      name: look
      description: Takes its time.
      parameters: { properties: { id: {} } }
      url: ${TOWN}/look
      effect: read
  - http:
      name: book
      description: Happens once.
      method: POST
      parameters: { properties: { id: {} } }
      url: ${TOWN}/book
      effect: write
  - http:
      name: crash
      description: Kills the process that calls it.
      parameters: { properties: { id: {} } }
      url: ${TOWN}/crash
      effect: read
---
Work.
";

/// Duration of a read.
const READ_TIME: Duration = Duration::from_millis(400);

#[derive(Debug, Default)]
struct ServerRecord {
    /// Requests by the `Idempotency-Key` of each write.
    writes: BTreeMap<String, u32>,
    /// Ids that were written.
    written_ids: Vec<String>,
    /// Ids of killed processes.
    killed_processes: Vec<u32>,
}

#[derive(Debug)]
pub(super) struct ToolServer {
    pub(super) url: String,
    record: Arc<Mutex<ServerRecord>>,
    server: JoinHandle<()>,
}

impl ToolServer {
    pub(super) async fn start() -> Self {
        let record = Arc::<Mutex<ServerRecord>>::default();
        let router = Router::new()
            .route("/look", routing::get(look))
            .route("/book", routing::post(book))
            .route("/crash", routing::get(crash))
            .with_state(Arc::clone(&record));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let service = router.into_make_service_with_connect_info::<SocketAddr>();
        #[expect(clippy::disallowed_methods, reason = "a server beside the test, ended with it")]
        let server = tokio::spawn(async move { axum::serve(listener, service).await.unwrap() });
        Self { url, record, server }
    }

    /// Writes the agent into the folder and starts a `dev` with it.
    pub(super) fn start_dev(&self, folder: &Path) -> DevProcess {
        std::fs::create_dir_all(folder.join("agents")).unwrap();
        std::fs::write(folder.join("agents/worker.agent.md"), AGENT).unwrap();
        DevProcess::start_in(folder, &folder.join("data"), &[("TOWN", self.url.clone())])
    }

    /// Number of requests of the most repeated write.
    pub(super) fn requests_per_write_max(&self) -> u32 {
        self.record.lock().unwrap().writes.values().copied().max().unwrap_or(0)
    }

    pub(super) fn write_count(&self) -> usize {
        self.record.lock().unwrap().writes.len()
    }

    pub(super) fn killed_processes(&self) -> Vec<u32> {
        self.record.lock().unwrap().killed_processes.clone()
    }

    fn is_written(&self, id: &str) -> bool {
        self.record.lock().unwrap().written_ids.iter().any(|booked| booked == id)
    }
}

impl Drop for ToolServer {
    fn drop(&mut self) {
        self.server.abort();
    }
}

async fn look() -> &'static str {
    tokio::time::sleep(READ_TIME).await;
    "seen"
}

async fn book(
    State(record): State<Arc<Mutex<ServerRecord>>>,
    headers: HeaderMap,
    Json(body): Json<Value>,
) -> &'static str {
    let key = headers["idempotency-key"].to_str().unwrap().to_owned();
    {
        let mut record = record.lock().unwrap();
        *record.writes.entry(key).or_default() += 1;
        record.written_ids.push(body["id"].as_str().unwrap().to_owned());
    }
    tokio::time::sleep(READ_TIME / 8).await;
    "booked"
}

async fn crash(
    State(record): State<Arc<Mutex<ServerRecord>>>,
    ConnectInfo(peer): ConnectInfo<SocketAddr>,
) -> &'static str {
    // A caller that is gone needs no kill.
    if let Some(process) = process_of_peer(peer) {
        record.lock().unwrap().killed_processes.push(process);
        kill(process);
    }
    std::future::pending().await
}

pub(super) fn kill(process: u32) {
    let killed = Command::new("kill").args(["-9", &process.to_string()]).status().unwrap();
    assert!(killed.success());
}

/// Id of the process at the other end of a connection on this machine. The kernel's table of
/// connections is not read atomically: one read can miss a row while other connections change. A
/// port of a caller that is gone may belong to this process meanwhile, which is never the caller.
pub(super) fn process_of_peer(peer: SocketAddr) -> Option<u32> {
    (0..200).find_map(|_| find_process_of_peer(peer))
}

fn find_process_of_peer(peer: SocketAddr) -> Option<u32> {
    let table = std::fs::read_to_string("/proc/net/tcp").ok()?;
    let local = format!("0100007F:{:04X}", peer.port());
    let line = table.lines().find(|line| line.split_whitespace().nth(1) == Some(&local))?;
    let socket = format!("socket:[{}]", line.split_whitespace().nth(9)?);
    let processes = std::fs::read_dir("/proc").ok()?.flatten();
    let mut ids = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    ids.find(|id| {
        if *id == std::process::id() {
            return false;
        }
        let files = std::fs::read_dir(format!("/proc/{id}/fd")).into_iter().flatten().flatten();
        let mut targets = files.filter_map(|file| std::fs::read_link(file.path()).ok());
        targets.any(|target| target.to_str() == Some(&socket))
    })
}

/// One prompt in its own conversation, with a client that follows it to its end.
#[derive(Debug)]
pub(super) struct ClientRun {
    pub(super) id: String,
    input: String,
    prompt: Option<String>,
    /// True if a kill met the write before it reached the server, and the client settled that.
    pub(super) is_write_lost: bool,
    pub(super) end: Option<Value>,
}

impl ClientRun {
    pub(super) fn with_write(id: &str) -> Self {
        let named = json!({"id": id});
        Self::new(id, format!("use look with {named} then use book with {named} then say done"))
    }

    pub(super) fn with_crash(id: &str) -> Self {
        Self::new(id, format!("use crash with {} then say done", json!({"id": id})))
    }

    fn new(id: &str, input: String) -> Self {
        Self { id: id.to_owned(), input, prompt: None, is_write_lost: false, end: None }
    }

    /// One round of the client; `None` if the service did not respond.
    async fn run_round(
        &mut self,
        client: &reqwest::Client,
        dev: &DevProcess,
        server: &ToolServer,
    ) -> Option<()> {
        if self.end.is_some() {
            return Some(());
        }
        if self.prompt.is_none() {
            let body = json!({"agent": "worker", "conversationId": self.id, "input": self.input});
            let accepted = try_post(client, &dev.url("/api/prompts"), &self.id, &body).await?;
            self.prompt = Some(accepted["promptId"].as_str().unwrap().to_owned());
        }
        let prompt = self.prompt.clone()?;
        let path = format!("/api/conversations/{}", self.id);
        let view = try_get(client, &dev.url(&format!("{path}/prompts/{prompt}?wait=1"))).await?;
        match view["state"].as_str().unwrap() {
            "running" => {}
            "waiting_for_approval" => {
                let conversation = try_get(client, &dev.url(&path)).await?;
                for approval in conversation["pendingApprovals"].as_array().unwrap() {
                    let id = approval["id"].as_str().unwrap();
                    self.is_write_lost = !server.is_written(&self.id);
                    let decision = if self.is_write_lost { "did_not_happen" } else { "happened" };
                    let url = dev.url(&format!("{path}/approvals/{id}"));
                    try_post(client, &url, &format!("decide-{id}"), &json!({"decision": decision}))
                        .await?;
                }
            }
            _ => self.end = Some(view),
        }
        Some(())
    }
}

/// Runs one round of each.
pub(super) async fn run_rounds(
    client_runs: &mut [ClientRun],
    client: &reqwest::Client,
    (dev, server): (&DevProcess, &ToolServer),
) {
    join_all(client_runs.iter_mut().map(|client_run| client_run.run_round(client, dev, server)))
        .await;
}

async fn try_get(client: &reqwest::Client, url: &str) -> Option<Value> {
    let request = client.get(url).timeout(Duration::from_secs(5));
    let response = openapi_check::send(request).await.ok()?;
    response.status.is_success().then(|| response.json())
}

async fn try_post(client: &reqwest::Client, url: &str, key: &str, body: &Value) -> Option<Value> {
    let request = client.post(url).header("Idempotency-Key", key).json(body);
    let response = openapi_check::send(request.timeout(Duration::from_secs(5))).await.ok()?;
    response.status.is_success().then(|| response.json())
}
