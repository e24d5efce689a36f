//! Processor time of turns with ten extensions, which run at every event and do nothing, against that
//! of turns without extensions. The store is the embedded one, SQLite with one fsync for each commit as
//! in `dev`, and then in memory. Queue and model are in memory.
//!
//! `cargo bench --bench hooks` compares in interleaved pairs. `-- PARENT` names the parent of the data
//! folder, on the disk to measure. `-- alone 10 500` runs 500 prompts in memory with ten extensions and
//! no measurement, for a profiler that counts instructions or allocations.

#[path = "support/clerk.rs"]
mod clerk;

use std::error::Error;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use turnwheel::extensions::Extension;
use turnwheel::models::ScriptedModel;
use turnwheel::testing::agent::entry::Source;
use turnwheel::testing::artifacts::MemoryArtifacts;
use turnwheel::testing::clock::SystemClock;
use turnwheel::testing::commands::contract::Owner;
use turnwheel::testing::commands::idempotency::Idempotency;
use turnwheel::testing::commands::prompt::{
    FirstPromptRequest, Sender, WhenBusy, begin_conversation,
};
use turnwheel::testing::ids::{SeededIds, TenantId, UserId};
use turnwheel::testing::live::EmbeddedLive;
use turnwheel::testing::queue::{self, MemoryQueue, Queue as _, QueueFaults};
use turnwheel::testing::services::{ServicePorts, Services};
use turnwheel::testing::store::ConversationStore;
use turnwheel::testing::store::embedded::EmbeddedStore;
use turnwheel::testing::store::memory::MemoryStore;
use turnwheel::testing::turn::delivery;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const EXTENSIONS: usize = 10;
const PAIRS: usize = 40;
/// Prompts of each half of a pair, in memory. A prompt has two model responses and a tool call.
const PROMPTS_IN_MEMORY: usize = 250;
/// The same on disk, where a turn takes longer.
const PROMPTS_ON_DISK: usize = 60;

#[derive(Debug)]
struct Idle;

impl Extension for Idle {
    fn name(&self) -> &'static str {
        "idle"
    }
}

#[derive(Clone, Copy)]
enum Store<'a> {
    Memory,
    /// The parent of the data folder.
    Disk(&'a Path),
}

struct Bench {
    services: Services,
    queue: Arc<MemoryQueue>,
    /// Removed with the bench.
    _data: Option<tempfile::TempDir>,
}

impl Bench {
    fn new(store: Store<'_>, extensions: usize) -> Result<Self, Box<dyn Error>> {
        let (store, data): (Arc<dyn ConversationStore>, _) = match store {
            Store::Memory => (Arc::new(MemoryStore::new()), None),
            Store::Disk(parent) => {
                let data = tempfile::tempdir_in(parent)?;
                (Arc::new(EmbeddedStore::open(data.path())?), Some(data))
            }
        };
        let clock = Arc::new(SystemClock::default());
        let queue = Arc::new(MemoryQueue::new(Arc::clone(&clock) as _, 0, QueueFaults::default()));
        let ports = ServicePorts {
            store,
            queue: Arc::clone(&queue) as _,
            artifacts: Arc::new(MemoryArtifacts::new(0, 0)),
            live: Arc::new(EmbeddedLive::default()),
            model: Arc::new(ScriptedModel),
            clock,
            ids: Arc::new(SeededIds::new(0)),
        };
        let services = Services {
            extensions: (0..extensions).map(|_| Arc::new(Idle) as Arc<dyn Extension>).collect(),
            ..clerk::services(ports)
        };
        Ok(Self { services, queue, _data: data })
    }

    /// Runs prompts, each in its own conversation. Returns the processor time of their turns, which
    /// `clock` reads.
    async fn run(&self, prompts: usize, clock: CpuClock) -> Result<Duration, Box<dyn Error>> {
        let owner = Owner { tenant: TenantId::new("t"), user: UserId::new("u") };
        let mut used = Duration::ZERO;
        for number in 0..prompts {
            let request = FirstPromptRequest {
                input: Some("use ls with {} then say done".into()),
                ..FirstPromptRequest::default()
            };
            let idempotency = Idempotency {
                key: number.to_string(),
                is_repeatable: true,
                route: "POST /prompts".to_owned(),
                body_hash: String::new(),
            };
            let sender = Sender {
                source: Source::User,
                traceparent: None,
                when_busy: WhenBusy::Reject,
                clients: None,
            };
            begin_conversation(&self.services, &owner, request, &idempotency, &sender).await?;
            let mut deliveries = 0;
            loop {
                let received = self.queue.receive(queue::TURNS, 1, Duration::from_mins(1)).await?;
                let Some(message) = received.into_iter().next() else { break };
                let nudge = serde_json::from_str(&message.text)?;
                let before = clock()?;
                Box::pin(delivery::handle(&self.services, &nudge)).await?;
                used += clock()?.saturating_sub(before);
                self.queue.delete(queue::TURNS, &message.id, &message.pop_receipt).await?;
                deliveries += 1;
            }
            assert_eq!(deliveries, 2, "a prompt has two turns");
        }
        Ok(used)
    }
}

/// Reads the processor time used so far.
type CpuClock = fn() -> Result<Duration, Box<dyn Error>>;

/// Processor time of the whole process. The embedded store works on threads of its own.
fn cpu_time() -> Result<Duration, Box<dyn Error>> {
    Ok(clock_gettime(ClockId::ProcessCPUTime).try_into()?)
}

/// Percent by which turns with extensions take longer, of each pair. The halves of a pair alternate in
/// their order.
async fn compare(store: Store<'_>, prompts: usize) -> Result<(), Box<dyn Error>> {
    // A new store for each half: it grows with each conversation.
    let run = async |extensions| Bench::new(store, extensions)?.run(prompts, cpu_time).await;
    let (mut shares, mut all_plain, mut all_idle) = (Vec::new(), Duration::ZERO, Duration::ZERO);
    for pair in 0..=PAIRS {
        let (plain, idle) = if pair % 2 == 0 {
            let plain = run(0).await?;
            (plain, run(EXTENSIONS).await?)
        } else {
            let idle = run(EXTENSIONS).await?;
            (run(0).await?, idle)
        };
        // The first pair warms up.
        if pair > 0 {
            shares.push((idle.as_secs_f64() / plain.as_secs_f64() - 1.0) * 100.0);
            (all_plain, all_idle) = (all_plain + plain, all_idle + idle);
        }
    }
    shares.sort_by(f64::total_cmp);
    let turns = f64::from(u32::try_from(PAIRS * prompts * 2)?);
    let micros = |time: Duration| time.as_secs_f64() * 1e6 / turns;
    let quartile = |number: usize| shares.get(PAIRS * number / 4).copied().unwrap_or_default();
    let name = match store {
        Store::Memory => "in memory",
        Store::Disk(_) => "on disk",
    };
    writeln!(
        std::io::stdout(),
        "{name}: CPU of a turn: {:.1} µs without extensions, {:.1} µs with {EXTENSIONS} idle ones\n\
         {name}: median of {PAIRS} pairs: {:+.1} %, quartiles {:+.1} % and {:+.1} %",
        micros(all_plain),
        micros(all_idle),
        quartile(2),
        quartile(1),
        quartile(3),
    )?;
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|it| it != "--bench").collect();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    if let [alone, extensions, prompts] = &arguments[..]
        && alone == "alone"
    {
        let (extensions, prompts) = (extensions.parse()?, prompts.parse()?);
        // Profilers do not support the clock.
        runtime
            .block_on(Bench::new(Store::Memory, extensions)?.run(prompts, || Ok(Duration::ZERO)))?;
        return Ok(());
    }
    let parent = arguments.first().map_or_else(std::env::temp_dir, PathBuf::from);
    runtime.block_on(compare(Store::Disk(&parent), PROMPTS_ON_DISK))?;
    runtime.block_on(compare(Store::Memory, PROMPTS_IN_MEMORY))
}
