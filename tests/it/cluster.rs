//! Three instances on one storage account and one Cosmos account, under random kills, freezes,
//! starts and account faults. Every conversation completes with the record of a run without faults,
//! and no payment is made twice. Each instance runs the recovery sweep, as `dev` does; in Azure one
//! instance runs it.
//!
//! `TURNWHEEL_CLUSTER` sets the number of conversations (default: 40). Faults are injected until
//! the work is done, for at most 75 s, or longer with many conversations.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use futures_util::StreamExt as _;
use turnwheel::payments::PaymentsServer;

use self::story::{Ending, Kind, answers, check, longest_pause, record};
use crate::support::azure::Azure;
use crate::support::clerk::Clerk;
use crate::support::process::{Dev, Log};

mod clients;
mod faults;
mod story;

const INSTANCES: usize = 3;
const QUEUE_PREFIX: &str = "cluster";
const EVERY_DAY: usize = 40;
/// Longest time with faults while work is left; `FAULT_SPAN_PER_CONVERSATION` extends it for many
/// conversations.
const FAULTS: Duration = Duration::from_secs(75);
const FAULTS_EACH: Duration = Duration::from_millis(375);
/// Time limit for the start of an instance on a machine that runs all other tests too.
const START_MAX: Duration = Duration::from_mins(2);
/// Recovery time limit after a kill, for 99 of 100 conversations: 60 s of lease, 20 s of grace, and
/// up to a minute until the next sweep.
const RECOVERY_MAX: Duration = Duration::from_secs(150);
/// Recovery time limit for every conversation of the default run, which shares the processors with
/// other tests.
const RECOVERY_MAX_BESIDE_OTHERS: Duration = Duration::from_mins(4);
/// The recovery sweep queries each partition.
const PARTITIONS_MIN: usize = 16;
const CONVERSATIONS_OF_PARTITION: usize = 16;
/// Number of concurrent clients: enough that each kill hits work, few enough that the work lasts.
const AT_ONCE: std::ops::RangeInclusive<usize> = 4..=60;

/// Address of each instance; `None`: it was killed or frozen and is not back yet.
type Addresses = Arc<Mutex<Vec<Option<String>>>>;

struct Cluster {
    azure: Azure,
    payments: PaymentsServer,
    clerk: Clerk,
    addresses: Addresses,
    client: reqwest::Client,
    next: AtomicUsize,
    /// Logs of all instances, also of killed ones.
    logs: Mutex<Vec<Log>>,
    /// Last error by request path.
    refusals: Mutex<BTreeMap<String, String>>,
    folder: tempfile::TempDir,
}

impl Cluster {
    /// Starts the accounts and servers for `count` conversations.
    async fn start(count: usize) -> Self {
        let partitions = PARTITIONS_MIN.max(count / CONVERSATIONS_OF_PARTITION);
        Self {
            azure: Azure::start(u32::try_from(partitions).unwrap()).await,
            payments: PaymentsServer::start().await.unwrap(),
            clerk: Clerk::start().await,
            addresses: Arc::new(Mutex::new(vec![None; INSTANCES])),
            client: reqwest::Client::new(),
            next: AtomicUsize::new(0),
            logs: Mutex::default(),
            refusals: Mutex::default(),
            folder: tempfile::tempdir().unwrap(),
        }
    }

    /// Starts an instance on a blocking thread, so that conversations continue.
    async fn start_instance(&self, number: usize) -> Dev {
        let mut settings = self.azure.settings();
        settings.push(("PAYMENTS_URL", self.payments.base_url.clone()));
        settings.push(("TURNWHEEL_MODEL", "gpt-5.1".to_owned()));
        settings.push(("AZURE_OPENAI_BASE_URL", self.clerk.url.clone()));
        settings.push(("AZURE_OPENAI_API_KEY", "a-key".to_owned()));
        let data = self.folder.path().join(number.to_string());
        let starting = tokio::task::spawn_blocking(move || {
            let arguments = ["--storage", "azure", "--queue-prefix", QUEUE_PREFIX];
            let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
            // A busy account can fail a start; an operator starts the instance again.
            let deadline = Instant::now() + START_MAX;
            loop {
                match Dev::try_start_with(folder, &data, &arguments, &settings) {
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
    fn paid_in_vain(&self, ending: &Ending) -> usize {
        self.clerk.asked_in(&ending.story.conversation) - answers(&ending.entries)
    }
}

#[expect(clippy::disallowed_methods, reason = "the variable selects the long run")]
fn conversations() -> usize {
    match std::env::var("TURNWHEEL_CLUSTER") {
        Ok(count) => count.parse().expect("TURNWHEEL_CLUSTER is a number of conversations"),
        Err(_) => EVERY_DAY,
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_instances_under_kills_lose_nothing_and_pay_once() {
    let count = conversations();
    let cluster = Cluster::start(count).await;
    let mut instances = Vec::new();
    for number in 0..INSTANCES {
        instances.push(cluster.start_instance(number).await);
    }
    let began = Instant::now();
    let span = FAULTS.max(FAULTS_EACH * u32::try_from(count).unwrap());
    // One conversation of each kind runs without faults; its record is the expected one.
    let mut expected = BTreeMap::new();
    for number in count..count + Kind::ALL.len() {
        let faultless = cluster.play(number).await;
        assert_eq!(faultless.prompt["state"], "completed", "{}", faultless.prompt);
        assert_eq!(cluster.paid_in_vain(&faultless), 0, "without faults each response is billed once");
        let kind = faultless.story.kind;
        expected.insert(kind, record(kind, &faultless.entries));
    }
    let is_done = AtomicBool::new(false);
    let at_once = (count / 8).clamp(*AT_ONCE.start(), *AT_ONCE.end());
    let playing = async {
        let stories = (0..count).map(|number| cluster.play(number));
        let endings: Vec<Ending> =
            futures_util::stream::iter(stories).buffer_unordered(at_once).collect().await;
        is_done.store(true, Ordering::SeqCst);
        endings
    };
    let how_long = (span, count > EVERY_DAY);
    let (endings, (faults, instances)) =
        tokio::join!(playing, cluster.disturb(instances, how_long, &is_done));
    let (mut pauses, mut asked, mut paid, mut kept, mut in_vain) = (Vec::new(), 0, 0, 0, 0);
    for ending in &endings {
        let payments = cluster.payments_of(&ending.story.conversation);
        check(ending, &payments, &expected);
        asked += usize::from(ending.seen.is_asked_for_outcome);
        paid += payments.len();
        kept += answers(&ending.entries);
        let lost = cluster.paid_in_vain(ending);
        let conversation = &ending.story.conversation;
        assert!(lost <= faults.count(), "{conversation}: {lost} responses billed and lost");
        in_vain += lost;
        pauses.push(longest_pause(ending));
    }
    pauses.sort();
    let p99 = pauses[(pauses.len() * 99).div_ceil(100) - 1];
    let sweeps: usize = {
        let logs = cluster.logs.lock().unwrap();
        let has_found =
            |line: &&str| line.contains("sweep enqueued") || line.contains("sweep was slow");
        logs.iter().map(|log| log.lock().unwrap().lines().filter(has_found).count()).sum()
    };
    let told = format!(
        "{count} prompts accepted, {} finished; {paid} writes done, 0 repeated, {asked} prompts with an outcome request; {kept} responses recorded, {in_vain} billed and lost; {faults:?} in {:?}; {sweeps} sweeps found work; longest pause p50 {:?}, p99 {p99:?}, max {:?}",
        endings.len(),
        began.elapsed(),
        pauses[pauses.len() / 2],
        pauses[pauses.len() - 1],
    );
    writeln!(std::io::stderr(), "{told}").unwrap();
    let bound = if count > EVERY_DAY { RECOVERY_MAX } else { RECOVERY_MAX_BESIDE_OTHERS };
    assert!(p99 <= bound, "recovery took {p99:?}");
    assert!(faults.count() >= 3, "only {faults:?}: too few faults");
    drop(instances);
}
