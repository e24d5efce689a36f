//! Three instances on one storage account and one Cosmos account, under random kills, freezes,
//! starts and account faults. Every conversation completes with the record of a run without faults,
//! and no payment is made twice. Each instance runs the recovery sweep, as `dev` does; in Azure one
//! instance runs it.
//!
//! Half of the clients wait, or read event streams, at instances that then run the turns.
//!
//! `TURNWHEEL_CLUSTER` sets the number of conversations (default: 12). Faults are injected until
//! the work is done, for at most 75 s, or longer with many conversations. `TURNWHEEL_OTHER_BUILD`
//! names a program of another build: the last instance runs it, as during a rolling update.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use futures_util::StreamExt as _;
use turnwheel::testing::payments::PaymentsServer;

use self::scenario::{
    ScenarioKind, ScenarioResult, check_result, comparable_entries, count_responses, longest_pause,
};
use crate::support::azure::LocalAzure;
use crate::support::dev_process::{DevProcess, ProcessLog};
use crate::support::payments_model::PaymentsModel;

mod clients;
mod faults;
mod scenario;

const INSTANCES: usize = 3;
const QUEUE_PREFIX: &str = "cluster";
const AGENTS: &str = "agents";
const CONVERSATIONS_DEFAULT: usize = 12;
/// Longest time with faults while work is left; `FAULT_SPAN_PER_CONVERSATION` extends it for many
/// conversations.
const FAULT_SPAN: Duration = Duration::from_secs(75);
const FAULT_SPAN_PER_CONVERSATION: Duration = Duration::from_millis(375);
/// Time limit for the start of an instance on a machine that runs all other tests too. The storage
/// emulator, one process, then responds after many seconds.
const START_MAX: Duration = Duration::from_mins(10);
/// Recovery time limit after a kill, for 99 of 100 conversations: 60 s of lease, 20 s of grace, and
/// up to a minute until the next sweep.
const RECOVERY_MAX: Duration = Duration::from_secs(150);
/// The recovery sweep queries each partition.
const PARTITIONS_MIN: usize = 16;
const CONVERSATIONS_PER_PARTITION: usize = 16;
/// Number of concurrent clients: enough that each kill hits work, few enough that the work lasts.
const CONCURRENCY: std::ops::RangeInclusive<usize> = 4..=60;

/// Address of each instance; `None`: it was killed or frozen and is not back yet.
type Addresses = Arc<Mutex<Vec<Option<String>>>>;

struct Cluster {
    azure: LocalAzure,
    payments: PaymentsServer,
    clerk: PaymentsModel,
    addresses: Addresses,
    client: reqwest::Client,
    next_instance: AtomicUsize,
    /// Logs of all instances, also of killed ones.
    logs: Mutex<Vec<ProcessLog>>,
    /// Last error by request path.
    last_errors: Mutex<BTreeMap<String, String>>,
    folder: tempfile::TempDir,
}

impl Cluster {
    /// Starts the accounts and servers for `count` conversations.
    async fn start(count: usize) -> Self {
        let partitions = PARTITIONS_MIN.max(count / CONVERSATIONS_PER_PARTITION);
        let folder = tempfile::tempdir().unwrap();
        write_agent(folder.path());
        Self {
            azure: LocalAzure::start(u32::try_from(partitions).unwrap()).await,
            payments: PaymentsServer::start().await.unwrap(),
            clerk: PaymentsModel::start().await,
            addresses: Arc::new(Mutex::new(vec![None; INSTANCES])),
            client: reqwest::Client::new(),
            next_instance: AtomicUsize::new(0),
            logs: Mutex::default(),
            last_errors: Mutex::default(),
            folder,
        }
    }

    /// Starts an instance on a blocking thread, so that conversations continue.
    async fn start_instance(&self, number: usize) -> DevProcess {
        let mut settings = self.azure.settings();
        settings.push(("PAYMENTS_URL", self.payments.base_url.clone()));
        settings.push(("TURNWHEEL_MODEL", "gpt-5.1".to_owned()));
        settings.push(("AZURE_OPENAI_BASE_URL", self.clerk.url.clone()));
        settings.push(("AZURE_OPENAI_API_KEY", "a-key".to_owned()));
        let data = self.folder.path().join(number.to_string());
        let program = program_of(number);
        let starting = tokio::task::spawn_blocking(move || {
            let agents = data.with_file_name(AGENTS);
            let agents = agents.to_str().unwrap();
            let arguments =
                ["--storage", "azure", "--queue-prefix", QUEUE_PREFIX, "--agents", agents];
            let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
            // A busy account can fail a start; an operator starts the instance again.
            let deadline = Instant::now() + START_MAX;
            loop {
                let folders = (folder, data.as_path());
                match DevProcess::try_start_program(&program, folders, &arguments, &settings) {
                    Ok(dev) => return dev,
                    Err(log) => assert!(Instant::now() < deadline, "{log}"),
                }
            }
        });
        let dev = starting.await.unwrap();
        self.addresses.lock().unwrap()[number] = Some(dev.url(""));
        self.logs.lock().unwrap().push(dev.shared_log());
        dev
    }

    /// Number of model responses that were billed but are not in the record.
    fn count_lost_responses(&self, result: &ScenarioResult) -> usize {
        self.clerk.request_count(&result.scenario.conversation) - count_responses(&result.entries)
    }
}

/// Writes the clerk of the examples, whose waiting clients run its turns where they wait.
fn write_agent(folder: &Path) {
    let clerk = Path::new(env!("CARGO_MANIFEST_DIR")).join("agents/payments-clerk.agent.md");
    let clerk = std::fs::read_to_string(clerk).unwrap();
    let clerk = clerk.replacen("---\n", "---\nexecution: here\n", 1);
    std::fs::create_dir(folder.join(AGENTS)).unwrap();
    std::fs::write(folder.join(AGENTS).join("payments-clerk.agent.md"), clerk).unwrap();
}

/// The program of an instance.
fn program_of(number: usize) -> PathBuf {
    let built = PathBuf::from(env!("CARGO_BIN_EXE_turnwheel"));
    if number < INSTANCES - 1 {
        return built;
    }
    std::env::var_os("TURNWHEEL_OTHER_BUILD").map_or(built, PathBuf::from)
}

#[expect(clippy::disallowed_methods, reason = "the variable selects the long run")]
fn conversation_count() -> usize {
    match std::env::var("TURNWHEEL_CLUSTER") {
        Ok(count) => count.parse().expect("TURNWHEEL_CLUSTER is a number of conversations"),
        Err(_) => CONVERSATIONS_DEFAULT,
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_instances_under_kills_complete_and_pay_once() {
    let count = conversation_count();
    let cluster = Cluster::start(count).await;
    let mut instances = Vec::new();
    for number in 0..INSTANCES {
        instances.push(cluster.start_instance(number).await);
    }
    let began = Instant::now();
    let span = FAULT_SPAN.max(FAULT_SPAN_PER_CONVERSATION * u32::try_from(count).unwrap());
    // One conversation of each kind runs without faults; its record is the expected one.
    let mut expected = BTreeMap::new();
    for number in count..count + ScenarioKind::ALL.len() {
        let reference = cluster.run_scenario(number).await;
        assert_eq!(reference.prompt["state"], "completed", "{}", reference.prompt);
        assert_eq!(
            cluster.count_lost_responses(&reference),
            0,
            "without faults each response is billed once"
        );
        let kind = reference.scenario.kind;
        expected.insert(kind, comparable_entries(kind, &reference.entries));
    }
    let is_done = AtomicBool::new(false);
    let concurrency = (count / 8).clamp(*CONCURRENCY.start(), *CONCURRENCY.end());
    let clients = async {
        let scenario_runs = (0..count).map(|number| cluster.run_scenario(number));
        let finished: Vec<ScenarioResult> =
            futures_util::stream::iter(scenario_runs).buffer_unordered(concurrency).collect().await;
        is_done.store(true, Ordering::SeqCst);
        finished
    };
    let fault_span = (span, count > CONVERSATIONS_DEFAULT);
    let (finished, (faults, instances)) =
        tokio::join!(clients, cluster.inject_faults(instances, fault_span, &is_done));
    let (mut pauses, mut outcome_requests, mut paid, mut recorded, mut lost_total) =
        (Vec::new(), 0, 0, 0, 0);
    for result in &finished {
        let payments = cluster.payments_of(&result.scenario.conversation);
        check_result(result, &payments, &expected);
        outcome_requests += usize::from(result.observed.has_outcome_request);
        paid += payments.len();
        recorded += count_responses(&result.entries);
        let lost = cluster.count_lost_responses(result);
        let conversation = &result.scenario.conversation;
        assert!(lost <= faults.count(), "{conversation}: {lost} responses billed and lost");
        lost_total += lost;
        pauses.push(longest_pause(result));
    }
    pauses.sort();
    let p99 = pauses[(pauses.len() * 99).div_ceil(100) - 1];
    let sweeps: usize = {
        let logs = cluster.logs.lock().unwrap();
        let has_found_work =
            |line: &&str| line.contains("sweep enqueued") || line.contains("sweep was slow");
        logs.iter().map(|log| log.lock().unwrap().lines().filter(has_found_work).count()).sum()
    };
    let summary = format!(
        "{count} prompts accepted, {} finished; {paid} writes done, 0 repeated, {outcome_requests} prompts with an outcome request; {recorded} responses recorded, {lost_total} billed and lost; {faults:?} in {:?}; {sweeps} sweeps found work; longest pause p50 {:?}, p99 {p99:?}, max {:?}",
        finished.len(),
        began.elapsed(),
        pauses[pauses.len() / 2],
        pauses[pauses.len() - 1],
    );
    writeln!(std::io::stderr(), "{summary}").unwrap();
    // The default run shares the processors with other tests.
    assert!(count <= CONVERSATIONS_DEFAULT || p99 <= RECOVERY_MAX, "recovery took {p99:?}");
    assert!(faults.count() >= 3, "only {faults:?}: too few faults");
    drop(instances);
}
