//! Speed of the session tree on the embedded store: import, export, tree, pages and forks of a
//! conversation of 10,000 entries, and the first turn of a worker that does not know a conversation.
//!
//! `cargo bench --bench session_tree` prints one line for each figure. Requests go to the router in this
//! process. `-- PARENT` names the parent of the data folder, on the disk to measure.

#[path = "support/clerk.rs"]
mod clerk;

use std::error::Error;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::{Body, Bytes};
use http::{Method, Request, StatusCode};
use http_body_util::BodyExt as _;
use serde_json::{Value, json};
use tower::ServiceExt as _;
use turnwheel::models::ScriptedModel;
use turnwheel::testing::artifacts::MemoryArtifacts;
use turnwheel::testing::clock::SystemClock;
use turnwheel::testing::http::api::Api;
use turnwheel::testing::http::approval_token::SigningKeys;
use turnwheel::testing::http::auth::Access;
use turnwheel::testing::ids::SystemIds;
use turnwheel::testing::live::EmbeddedLive;
use turnwheel::testing::queue::{self, MemoryQueue, Queue as _, QueueFaults};
use turnwheel::testing::services::{ServicePorts, Services};
use turnwheel::testing::store::embedded::EmbeddedStore;
use turnwheel::testing::turn::delivery;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

type Outcome<T> = Result<T, Box<dyn Error>>;

const ENTRIES: usize = 10_000;
const BRANCHES: usize = 500;
/// Bytes of the text of an entry.
const TEXT_BYTES: usize = 800;
/// Times that a fast request is measured.
const REPEAT: usize = 20;

/// One worker of a store: its caches are empty at first.
struct Worker {
    services: Services,
    queue: Arc<MemoryQueue>,
    router: Router,
}

impl Worker {
    fn new(store: &Arc<EmbeddedStore>) -> Outcome<Self> {
        let clock = Arc::new(SystemClock::default());
        let queue = MemoryQueue::new(Arc::clone(&clock) as _, 0, QueueFaults::default());
        Self::with_queue(store, Arc::new(queue))
    }

    fn with_queue(store: &Arc<EmbeddedStore>, queue: Arc<MemoryQueue>) -> Outcome<Self> {
        let clock = Arc::new(SystemClock::default());
        let ports = ServicePorts {
            store: Arc::clone(store) as _,
            queue: Arc::clone(&queue) as _,
            artifacts: Arc::new(MemoryArtifacts::new(0, 0)),
            live: Arc::new(EmbeddedLive::default()),
            model: Arc::new(ScriptedModel),
            clock,
            ids: Arc::new(SystemIds),
        };
        let services = clerk::services(ports);
        let keys = SigningKeys::new(vec![vec![7; 32]])?;
        let api = Api::new(services.clone(), Access::dev(), keys);
        let router = turnwheel::testing::http::router(Arc::new(api));
        Ok(Self { services, queue, router })
    }

    /// Sends a request and returns the bytes of the response's body, which is read in parts.
    async fn send(&self, method: Method, path: &str, body: Body, is_json: bool) -> Outcome<usize> {
        let kind = if is_json { "application/json" } else { "application/x-ndjson" };
        let request =
            Request::builder().method(method).uri(path).header("content-type", kind).body(body)?;
        let response = self.router.clone().oneshot(request).await?;
        let status = response.status();
        let (mut body, mut bytes) = (response.into_body(), 0);
        while let Some(frame) = body.frame().await {
            let frame = frame?;
            let Some(data) = frame.data_ref() else { continue };
            if status.is_client_error() || status.is_server_error() {
                return Err(format!("{path}: {status} {}", String::from_utf8_lossy(data)).into());
            }
            bytes += data.len();
        }
        assert!(status < StatusCode::BAD_REQUEST, "{path}: {status}");
        Ok(bytes)
    }

    async fn get(&self, path: &str) -> Outcome<usize> {
        self.send(Method::GET, path, Body::empty(), true).await
    }

    async fn post(&self, path: &str, body: &Value) -> Outcome<usize> {
        self.send(Method::POST, path, Body::from(body.to_string()), true).await
    }

    async fn import(&self, id: &str, file: &Bytes) -> Outcome<()> {
        let parts: Vec<Bytes> = (0..file.len())
            .step_by(64 * 1024)
            .map(|from| file.slice(from..file.len().min(from + 64 * 1024)))
            .collect();
        let parts = parts.into_iter().map(Ok::<_, std::io::Error>);
        let body = Body::from_stream(futures_util::stream::iter(parts));
        let path = format!("/api/conversations/import?conversationId={id}");
        self.send(Method::POST, &path, body, false).await.map(drop)
    }

    /// Runs all turns that are due. Returns the time of the first.
    async fn run_turns(&self) -> Outcome<Duration> {
        let mut first = None;
        loop {
            let received = self.queue.receive(queue::TURNS, 1, Duration::from_mins(1)).await?;
            let Some(message) = received.into_iter().next() else { break };
            let nudge = serde_json::from_str(&message.text)?;
            let started = Instant::now();
            Box::pin(delivery::handle(&self.services, &nudge)).await?;
            first = first.or(Some(started.elapsed()));
            self.queue.delete(queue::TURNS, &message.id, &message.pop_receipt).await?;
        }
        first.ok_or_else(|| "no turn was due".into())
    }
}

/// A file of Pi's with that number of entries. All branches but the last are abandoned: each begins at
/// one of the first ten entries.
fn session_file(entries: usize, branches: usize) -> Bytes {
    let mut lines = vec![
        json!({"type": "session", "version": 3, "id": "s", "cwd": "/", "timestamp": "2026-11-21T20:19:09.669Z"}),
    ];
    let text = "word ".repeat(TEXT_BYTES / 5);
    let branch_length = entries.div_ceil(branches.max(1));
    for number in 0..entries {
        let parent = match number {
            0 => None,
            _ if number > 10 && number % branch_length == 0 => {
                Some(number / branch_length % 5 * 2 + 1)
            }
            _ => Some(number - 1),
        };
        let message = if number % 2 == 0 {
            json!({"role": "user", "content": text, "timestamp": 0})
        } else {
            json!({"role": "assistant", "content": [{"type": "text", "text": text}], "api": "a", "provider": "p",
                "model": "m", "stopReason": "stop", "timestamp": 0})
        };
        lines.push(json!({
            "type": "message", "id": format!("{number:08x}"),
            "parentId": parent.map(|number| format!("{number:08x}")),
            "timestamp": "2026-11-21T20:19:09.669Z", "message": message,
        }));
    }
    let mut file = String::new();
    for line in lines {
        file.push_str(&line.to_string());
        file.push('\n');
    }
    file.into()
}

fn print(name: &str, figure: &str) -> Outcome<()> {
    writeln!(std::io::stdout(), "{name:<52} {figure}")?;
    Ok(())
}

fn millis(time: Duration) -> String {
    format!("{:.1} ms", time.as_secs_f64() * 1e3)
}

/// Sets the peak of this process's memory to its current memory, in MB, which it returns.
fn reset_peak() -> Outcome<f64> {
    std::fs::write("/proc/self/clear_refs", "5")?;
    memory("VmRSS:")
}

fn memory(member: &str) -> Outcome<f64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix(member));
    let kilobytes = line.and_then(|line| line.trim().strip_suffix(" kB"));
    Ok(kilobytes.ok_or("the kernel reports no memory")?.parse::<f64>()? / 1024.0)
}

/// Measures a transfer of that many bytes, and the memory that it takes at its peak.
async fn measure_transfer(name: &str, work: impl Future<Output = Outcome<usize>>) -> Outcome<()> {
    let before = reset_peak()?;
    let started = Instant::now();
    let bytes = work.await?;
    let time = started.elapsed();
    let megabytes = f64::from(u32::try_from(bytes)?) / 1e6;
    let (rate, peak) = (megabytes / time.as_secs_f64(), memory("VmHWM:")? - before);
    print(name, &format!("{megabytes:.1} MB, {}, {rate:.0} MB/s, {peak:.0} MB", millis(time)))
}

/// Measures a request by a worker with empty caches, and the median of later ones.
async fn measure_read(store: &Arc<EmbeddedStore>, name: &str, path: &str) -> Outcome<()> {
    let worker = Worker::new(store)?;
    let mut times = Vec::new();
    let mut bytes = 0;
    for _ in 0..=REPEAT {
        let started = Instant::now();
        bytes = worker.get(path).await?;
        times.push(started.elapsed());
    }
    let cold = times.remove(0);
    times.sort();
    let warm = times.get(REPEAT / 2).copied().unwrap_or_default();
    let figure = format!("cold {}, warm {}, {} KB", millis(cold), millis(warm), bytes / 1000);
    print(name, &figure)
}

/// Measures the first turn of a worker that does not know the conversation.
async fn measure_cold_turns(store: &Arc<EmbeddedStore>, name: &str, id: &str) -> Outcome<()> {
    let mut times = Vec::new();
    for _ in 0..REPEAT {
        let worker = Worker::new(store)?;
        let prompt = json!({"input": "use ls with {} then say done"});
        worker.post(&format!("/api/conversations/{id}/prompts"), &prompt).await?;
        // The turn runs in a worker that has not accepted the prompt.
        let cold = Worker::with_queue(store, Arc::clone(&worker.queue))?;
        times.push(cold.run_turns().await?);
    }
    times.sort();
    print(name, &millis(times.get(REPEAT / 2).copied().unwrap_or_default()))
}

async fn compact(worker: &Worker, id: &str) -> Outcome<()> {
    worker.post(&format!("/api/conversations/{id}/compact"), &json!({})).await?;
    worker.run_turns().await.map(drop)
}

async fn run(folder: &Path) -> Outcome<()> {
    let store = Arc::new(EmbeddedStore::open(folder)?);
    let worker = Worker::new(&store)?;
    let tree = session_file(ENTRIES, BRANCHES);
    let chain = session_file(ENTRIES, 1);
    let import = async {
        worker.import("tree", &tree).await?;
        Ok(tree.len())
    };
    measure_transfer("import, 10,000 entries", import).await?;
    worker.import("chain", &chain).await?;
    for format in ["pi", "turnwheel", "html"] {
        let reader = Worker::new(&store)?;
        let path = format!("/api/conversations/chain/export?format={format}");
        measure_transfer(&format!("export, {format}"), reader.get(&path)).await?;
    }
    measure_read(&store, "tree, 10,000 entries, 500 branches", "/api/conversations/tree/tree")
        .await?;
    for (name, view) in [
        ("page of all nodes", "tree?all=true&limit=100"),
        ("page of entries", "entries?limit=100"),
        ("page of messages", "messages?limit=100"),
    ] {
        measure_read(&store, name, &format!("/api/conversations/tree/{view}")).await?;
    }
    let forker = Worker::new(&store)?;
    let last = json!({"entryId": format!("{:08x}", ENTRIES - 1), "position": "at"});
    let started = Instant::now();
    forker.post("/api/conversations/chain/fork", &last).await?;
    print("fork, 10,000 entries", &millis(started.elapsed()))?;
    worker.import("small", &session_file(100, 1)).await?;
    measure_cold_turns(&store, "first turn of a cold worker, 100 entries", "small").await?;
    measure_cold_turns(&store, "the same, 10,000 entries in 500 branches", "tree").await?;
    compact(&worker, "chain").await?;
    measure_cold_turns(&store, "the same, 10,000 entries, compacted", "chain").await?;
    Ok(())
}

fn main() -> Outcome<()> {
    let parent = std::env::args().nth(1).filter(|argument| !argument.starts_with('-'));
    let parent = parent.map_or_else(std::env::temp_dir, PathBuf::from);
    let folder = tempfile::tempdir_in(parent)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(Box::pin(run(folder.path())))
}
