//! The measured worker: the same program in a separate process, so that its resources are counted
//! separately.
//!
//! It prints its address in its first line, and its store's counters for each line on standard
//! input. It exits when standard input closes: when its starter ends, for any reason.

use std::io::Write as _;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::sync::mpsc::{Receiver, channel};
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;

use crate::bench::case::Case;
use crate::bench::fake_model::TOOL;
use crate::bench::{BenchError, io_error};
use turnwheel_platform::settings::table::ROWS;

/// The hidden command.
pub(crate) const COMMAND: &str = "bench-worker";
/// The agent that receives the prompts.
pub(crate) const AGENT: &str = "bench";

const WORKER_TIMEOUT: Duration = Duration::from_secs(30);

/// The first line.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct ReadyLine {
    pub address: String,
}

/// Each further line.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(crate) struct StoreCounters {
    /// Writing transactions: one fsync each.
    pub commits: u64,
    /// Checkpoints of the log into the database: three fsyncs each.
    pub checkpoints: u64,
}

impl StoreCounters {
    pub(crate) fn fsyncs(self) -> u64 {
        self.commits + 3 * self.checkpoints
    }
}

/// Killed when dropped.
#[derive(Debug)]
pub(super) struct Worker {
    child: Child,
    stdin: ChildStdin,
    output: WorkerOutput,
    pub(super) pid: u32,
    pub(super) base_url: String,
    pub(super) data: std::path::PathBuf,
    /// From the start of the process to the first response.
    pub(super) cold_start: Duration,
}

impl Worker {
    pub(super) async fn start(
        program: &Path,
        folder: &Path,
        case: &Case,
        model_url: &str,
    ) -> Result<Self, BenchError> {
        let (data, agents) = (folder.join("data"), folder.join("agents"));
        std::fs::create_dir_all(&agents).map_err(io_error("make the agents' folder"))?;
        let file = agents.join(format!("{AGENT}.agent.md"));
        std::fs::write(file, agent_file(case)).map_err(io_error("write the agent"))?;
        let mut command = Command::new(program);
        for row in ROWS.iter().filter(|row| row.name != "RUST_LOG") {
            command.env_remove(row.name);
        }
        if std::env::var_os("RUST_LOG").is_none() {
            command.env("RUST_LOG", "warn");
        }
        command
            .arg(COMMAND)
            .arg("--data")
            .arg(&data)
            .arg("--agents")
            .arg(&agents)
            .current_dir(folder)
            .env("AZURE_OPENAI_BASE_URL", model_url)
            .env("AZURE_OPENAI_API_KEY", "none-is-needed")
            // The context window of this model holds a thousand rounds.
            .env("TURNWHEEL_MODEL", "gpt-4.1")
            .env("NO_PROXY", "127.0.0.1")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true);
        let client = reqwest::Client::builder().no_proxy().timeout(WORKER_TIMEOUT).build();
        let client = client.map_err(io_error("make an HTTP client"))?;
        let started = Instant::now();
        let mut child = command.spawn().map_err(io_error("start the worker process"))?;
        let missing_stream = || BenchError::Worker("it has no standard streams".to_owned());
        let (stdin, stdout) = (
            child.stdin.take().ok_or_else(missing_stream)?,
            child.stdout.take().ok_or_else(missing_stream)?,
        );
        let mut output = WorkerOutput::new(stdout);
        let ready: ReadyLine = output.next_message().await?;
        let base_url = format!("http://{}", ready.address);
        wait_for_first_response(&client, &base_url).await?;
        let cold_start = started.elapsed();
        let pid = child.id().ok_or_else(missing_stream)?;
        Ok(Self { child, stdin, output, pid, base_url, data, cold_start })
    }

    pub(super) async fn read_counters(&mut self) -> Result<StoreCounters, BenchError> {
        self.stdin.write_all(b"\n").await.map_err(io_error("write to the worker"))?;
        self.output.next_message().await
    }

    pub(super) async fn stop(self) -> Result<(), BenchError> {
        let Self { mut child, stdin, .. } = self;
        drop(stdin);
        match tokio::time::timeout(WORKER_TIMEOUT, child.wait()).await {
            Ok(Ok(status)) if status.success() => Ok(()),
            Ok(Ok(status)) => Err(BenchError::Worker(status.to_string())),
            Ok(Err(error)) => Err(io_error("wait for the worker")(error)),
            Err(_) => Err(BenchError::Worker("it does not stop".to_owned())),
        }
    }
}

/// The worker's output. Log lines are forwarded at once: an unread pipe fills up and blocks its
/// writer.
#[derive(Debug)]
struct WorkerOutput {
    messages: Receiver<serde_json::Value>,
    _reader: AbortOnDropHandle<()>,
}

impl WorkerOutput {
    fn new(worker: ChildStdout) -> Self {
        let (sender, messages) = channel(1);
        let mut lines = BufReader::new(worker).lines();
        #[expect(clippy::disallowed_methods, reason = "it ends with its handle")]
        let reader = tokio::spawn(async move {
            while let Ok(Some(line)) = lines.next_line().await {
                match serde_json::from_str(&line) {
                    Ok(answer) => {
                        if sender.send(answer).await.is_err() {
                            return;
                        }
                    }
                    Err(_) => {
                        let _ = std::io::stderr().write_all(format!("{line}\n").as_bytes());
                    }
                }
            }
        });
        Self { messages, _reader: AbortOnDropHandle::new(reader) }
    }

    async fn next_message<T: serde::de::DeserializeOwned>(&mut self) -> Result<T, BenchError> {
        match tokio::time::timeout(WORKER_TIMEOUT, self.messages.recv()).await {
            Err(_) => Err(BenchError::Worker("it sends no output".to_owned())),
            Ok(None) => Err(BenchError::Worker("see above".to_owned())),
            Ok(Some(answer)) => serde_json::from_value(answer).map_err(|error| {
                BenchError::Worker(format!("it sends unexpected output: {error}"))
            }),
        }
    }
}

/// Waits for any response of the API: handler and host are ready then.
async fn wait_for_first_response(
    client: &reqwest::Client,
    base_url: &str,
) -> Result<(), BenchError> {
    let response = client.get(format!("{base_url}/api/conversations")).send().await;
    response
        .and_then(reqwest::Response::error_for_status)
        .map_err(io_error("get a first response"))?;
    Ok(())
}

/// The agent's file. Compaction is off, so that each turn does the same.
fn agent_file(case: &Case) -> String {
    format!(
        "---\ndescription: Calls a tool in each round.\nmaxRounds: 200\ncontinuation: {}\ncompaction: {{ enabled: false }}\n\
         tools: [{TOOL}]\n---\nYou are being measured.\n",
        case.continuation.into_str()
    )
}
