//! Three instances on one storage account and one Cosmos account, killed, stopped in their middle and started at random, while
//! the accounts have bad hours of their own: every conversation comes to its end, with the record of a day without faults, and
//! no payment is made twice.
//!
//! `TURNWHEEL_CLUSTER` says how many conversations; without it, few enough for every day. The faults last as long as the work.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use futures_util::StreamExt as _;
use serde_json::{Value, json};
use turnwheel::payments::{Payment, PaymentsServer};

use crate::support::azure::{Azure, signal};
use crate::support::clerk::Clerk;
use crate::support::normal::normal;
use crate::support::process::{Dev, Log};

const INSTANCES: usize = 3;
const EVERY_DAY: usize = 20;
/// For one conversation from its beginning to its end, whatever comes between, on a machine that does other things too.
const PATIENCE: Duration = Duration::from_mins(10);
/// For how long there are faults: at least so long, and longer with more conversations.
const FAULTS: Duration = Duration::from_secs(75);
const FAULTS_EACH: Duration = Duration::from_millis(375);
/// For an instance to come up, on a machine that is busy with all the others.
const START_MAX: Duration = Duration::from_mins(2);
/// Longer than any claim holds: who goes on after it finds that others have done the work.
const LONG_STOP: Duration = Duration::from_secs(70);
/// A conversation whose worker was killed goes on within this (99 of 100 of them).
const RECOVERY_MAX: Duration = Duration::from_secs(150);
/// Tenants lie in different physical partitions.
const TENANTS: usize = 8;
const PARTITIONS_MIN: usize = 64;
/// The emulator copies a whole partition for each batch: it grew slower and slower, until it no longer answered, where long
/// runs had no more partitions than short ones.
const CONVERSATIONS_OF_PARTITION: usize = 4;
/// Clients that speak at the same time: so many that there is always work to kill, so few that it lasts a while.
const AT_ONCE: std::ops::RangeInclusive<usize> = 4..=60;

const STEER: &str = "Be quick.";

/// Where the instances are now; `None`: it was killed and is not back yet.
type Addresses = Arc<Mutex<Vec<Option<String>>>>;

struct Cluster {
    azure: Azure,
    payments: PaymentsServer,
    clerk: Clerk,
    addresses: Addresses,
    client: reqwest::Client,
    next: AtomicUsize,
    /// Of every instance there was.
    logs: Mutex<Vec<Log>>,
    /// What was answered last to each path that is not answered well.
    refusals: Mutex<BTreeMap<String, String>>,
    folder: tempfile::TempDir,
}

/// How a conversation ended.
struct Ending {
    story: Story,
    entries: Vec<Value>,
    prompt: Value,
    was_asked_for_outcome: bool,
}

/// What a conversation is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    /// One payment that a person has to agree to.
    Large,
    /// One that nobody is asked about.
    Small,
    /// Three at once, one of which a person has to agree to.
    Several,
    /// One, and somebody steers meanwhile.
    Steered,
}

impl Kind {
    const ALL: [Self; 4] = [Self::Large, Self::Small, Self::Several, Self::Steered];

    fn input(self) -> &'static str {
        match self {
            Self::Large => "Pay 250 to Ada",
            Self::Small | Self::Steered => "Pay 40 to Ada",
            Self::Several => "Pay 40 to Ada and 250 to Bob and 50 to Cleo",
        }
    }

    fn payments(self) -> usize {
        match self {
            Self::Large | Self::Small | Self::Steered => 1,
            Self::Several => 3,
        }
    }
}

/// A conversation and what it begins with.
struct Story {
    tenant: String,
    conversation: String,
    /// Below the address.
    base: String,
    body: Value,
    kind: Kind,
}

impl Story {
    fn new(number: usize) -> Self {
        let conversation = format!("c{number}");
        let kind = Kind::ALL[number % Kind::ALL.len()];
        let mut body = json!({"agent": "payments-clerk", "conversationId": conversation, "input": kind.input()});
        if kind == Kind::Several {
            body["settings"] = json!({"toolExecution": "parallel"});
        }
        let base = format!("/api/conversations/{conversation}");
        Self { tenant: format!("tenant-{}", number % TENANTS), conversation, base, body, kind }
    }
}

/// What happened to the instances and their accounts.
#[derive(Debug, Default)]
struct Faults {
    kills: usize,
    stops: usize,
    long_stops: usize,
    restarts_of_cosmos: usize,
    throttled: usize,
    silences_of_storage: usize,
    restarts_of_storage: usize,
}

impl Faults {
    fn count(&self) -> usize {
        let stops = self.stops + self.long_stops;
        let of_storage = self.silences_of_storage + self.restarts_of_storage;
        self.kills + stops + self.restarts_of_cosmos + self.throttled + of_storage
    }
}

impl Cluster {
    /// For so many conversations.
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

    /// On a thread that may wait: conversations go on meanwhile.
    async fn start_instance(&self, number: usize) -> Dev {
        let mut settings = self.azure.settings();
        settings.push(("PAYMENTS_URL", self.payments.base_url.clone()));
        settings.push(("TURNWHEEL_MODEL", "gpt-5.1".to_owned()));
        settings.push(("AZURE_OPENAI_BASE_URL", self.clerk.url.clone()));
        settings.push(("AZURE_OPENAI_API_KEY", "a-key".to_owned()));
        let data = self.folder.path().join(number.to_string());
        let starting = tokio::task::spawn_blocking(move || {
            let arguments = ["--storage", "azure", "--queue-prefix", "cluster"];
            let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
            // An account that is too busy for a moment ends a start; whoever runs the service starts it again.
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

    /// What a person would look at who finds a conversation stuck.
    async fn told_of(&self, story: &Story) -> String {
        let Story { tenant, conversation, base, .. } = story;
        let why = self.ask(tenant, &format!("{base}/why"), None).await;
        let shown = self.ask(tenant, base, None).await;
        let mut told =
            vec![format!("{conversation} did not come to its end: why {why:?}\n{shown:?}")];
        for (instance, log) in self.logs.lock().unwrap().iter().enumerate() {
            let is_named = |line: &&str| {
                let mut words = line.split(|letter: char| !letter.is_alphanumeric());
                words.any(|word| word == conversation || word == "sweep")
            };
            let log = log.lock().unwrap();
            let named = log.lines().filter(is_named);
            told.extend(named.map(|line| format!("{instance}: {line}")));
        }
        let refusals = self.refusals.lock().unwrap();
        let refused = refusals.iter().filter(|(path, _)| path.starts_with(base));
        told.extend(refused.map(|(path, refusal)| format!("{path}: {refusal}")));
        told.join("\n")
    }

    /// One fault after the other, until everything is done or it has been long enough.
    async fn disturb(
        &self,
        mut instances: Vec<Dev>,
        (span, is_long): (Duration, bool),
        is_done: &AtomicBool,
    ) -> (Faults, Vec<Dev>) {
        let mut dice = fastrand::Rng::with_seed(7);
        let began = Instant::now();
        let mut faults = Faults::default();
        while !is_done.load(Ordering::SeqCst) && began.elapsed() < span {
            tokio::time::sleep(Duration::from_millis(dice.u64(200..2_000))).await;
            let number = dice.usize(..INSTANCES);
            let shortly = Duration::from_millis(dice.u64(..1_500));
            match dice.u8(..20) {
                0..10 => {
                    self.addresses.lock().unwrap()[number] = None;
                    instances[number].kill();
                    faults.kills += 1;
                    tokio::time::sleep(shortly).await;
                    instances[number] = self.start_instance(number).await;
                }
                10..14 => {
                    self.stop(&instances[number], number, shortly).await;
                    faults.stops += 1;
                }
                14 if is_long => {
                    self.stop(&instances[number], number, LONG_STOP).await;
                    faults.long_stops += 1;
                }
                14..16 => {
                    self.azure.restart_cosmos(shortly).await;
                    faults.restarts_of_cosmos += 1;
                }
                16 | 17 => {
                    self.azure.throttle_cosmos(shortly).await;
                    faults.throttled += 1;
                }
                18 => {
                    self.azure.silence_storage(shortly).await;
                    faults.silences_of_storage += 1;
                }
                _ => {
                    self.azure.restart_storage(shortly).await;
                    faults.restarts_of_storage += 1;
                }
            }
        }
        (faults, instances)
    }

    /// Stands still in its middle, as a frozen machine does, and knows nothing of it afterwards.
    async fn stop(&self, instance: &Dev, number: usize, span: Duration) {
        let address = self.addresses.lock().unwrap()[number].take();
        signal("-STOP", instance.id());
        tokio::time::sleep(span).await;
        signal("-CONT", instance.id());
        self.addresses.lock().unwrap()[number] = address;
    }

    /// One of the instances that are up.
    fn some_address(&self) -> Option<String> {
        let addresses = self.addresses.lock().unwrap();
        let first = self.next.fetch_add(1, Ordering::Relaxed);
        (first..first + INSTANCES).find_map(|number| addresses[number % INSTANCES].clone())
    }

    /// `None`: nobody answered, or not well; ask again.
    async fn ask(&self, tenant: &str, path: &str, post: Option<(&str, &Value)>) -> Option<Value> {
        let url = format!("{}{path}", self.some_address()?);
        let request = match post {
            Some((key, body)) => self.client.post(url).header("idempotency-key", key).json(body),
            None => self.client.get(url),
        };
        let request = request.header("turnwheel-tenant", tenant).timeout(Duration::from_secs(15));
        let answered = async {
            let answer = request.send().await?;
            Ok::<_, reqwest::Error>((answer.status(), answer.text().await?))
        };
        let refusal = match answered.await {
            Ok((status, text)) if status.is_success() => return serde_json::from_str(&text).ok(),
            Ok((status, text)) => {
                assert!(status.is_server_error(), "{path}: {status} {text}");
                format!("{status} {text}")
            }
            Err(error) => error.to_string(),
        };
        self.refusals.lock().unwrap().insert(path.to_owned(), refusal);
        None
    }

    /// Plays one conversation as a patient client would: every request is repeated, with its key, until it is answered.
    async fn play(&self, number: usize) -> Ending {
        let story = Story::new(number);
        let deadline = Instant::now() + PATIENCE;
        let mut was_asked_for_outcome = false;
        loop {
            let is_late = Instant::now() > deadline;
            let stuck = if is_late { self.told_of(&story).await } else { String::new() };
            assert!(stuck.is_empty(), "{stuck}");
            if let Some((prompt, entries)) = self.round(&story, &mut was_asked_for_outcome).await {
                return Ending { story, entries, prompt, was_asked_for_outcome };
            }
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
    }

    /// Says something meanwhile; whether it has landed.
    async fn steer(&self, story: &Story) -> Option<bool> {
        let (tenant, base) = (&story.tenant, &story.base);
        let key = format!("steer-{}", story.conversation);
        let body = json!({"input": STEER, "mode": "steer"});
        let accepted = self.ask(tenant, &format!("{base}/prompts"), Some((&key, &body))).await?;
        let input_id = accepted["inputId"].as_str().unwrap();
        let input = self.ask(tenant, &format!("{base}/inbox/{input_id}"), None).await?;
        Some(input["state"] == "landed")
    }

    /// What a client does once; the prompt and the record when everything has ended.
    async fn round(
        &self,
        story: &Story,
        was_asked_for_outcome: &mut bool,
    ) -> Option<(Value, Vec<Value>)> {
        let Story { tenant, conversation, base, body, kind } = story;
        let key = format!("begin-{conversation}");
        let accepted = self.ask(tenant, "/api/prompts", Some((&key, body))).await?;
        let has_landed = *kind != Kind::Steered || self.steer(story).await?;
        let prompt_id = accepted["promptId"].as_str().unwrap();
        let prompt = self.ask(tenant, &format!("{base}/prompts/{prompt_id}?wait=5"), None).await?;
        let shown = self.ask(tenant, base, None).await?;
        for approval in shown["pendingApprovals"].as_array().unwrap() {
            let decision = if approval["kind"] == "outcome" {
                *was_asked_for_outcome = true;
                let is_paid = self.is_paid(conversation, &approval["arguments"]);
                if is_paid { "happened" } else { "did_not_happen" }
            } else {
                "approve"
            };
            let id = approval["id"].as_str().unwrap();
            let decided = json!({"decision": decision});
            let key = format!("decide-{id}");
            self.ask(tenant, &format!("{base}/approvals/{id}"), Some((&key, &decided))).await?;
        }
        // A steer that came last has a prompt of its own, which may still run.
        if shown["state"] != "idle" || prompt["state"] == "running" || !has_landed {
            return None;
        }
        let entries = self.ask(tenant, &format!("{base}/entries?limit=100"), None).await?;
        Some((prompt, entries["items"].as_array().unwrap().clone()))
    }

    /// How often each payment of the conversation was asked for.
    fn payments_of(&self, conversation: &str) -> Vec<u32> {
        self.made_in(conversation).iter().map(|made| made.requests).collect()
    }

    fn is_paid(&self, conversation: &str, arguments: &Value) -> bool {
        self.made_in(conversation).iter().any(|made| arguments["to"] == made.to.as_str())
    }

    fn made_in(&self, conversation: &str) -> Vec<Payment> {
        let prefix = format!("tw_{conversation}_");
        let made = self.payments.payments();
        made.into_iter().filter(|made| made.key.starts_with(&prefix)).collect()
    }
}

/// Answers that stand in the record.
fn answers(entries: &[Value]) -> usize {
    entries.iter().filter(|entry| entry["message"]["role"] == "assistant").count()
}

/// The longest time in which nothing happened: nobody waits for a person for long here, so it bounds every recovery.
fn longest_pause(entries: &[Value]) -> Duration {
    let times: Vec<jiff::Timestamp> =
        entries.iter().map(|entry| entry["timestamp"].as_str().unwrap().parse().unwrap()).collect();
    let pauses = times.windows(2).map(|pair| pair[1].duration_since(pair[0]).unsigned_abs());
    pauses.max().unwrap_or_default()
}

#[expect(clippy::disallowed_methods, reason = "the long run is asked for by it")]
fn conversations() -> usize {
    match std::env::var("TURNWHEEL_CLUSTER") {
        Ok(count) => count.parse().expect("TURNWHEEL_CLUSTER is a number of conversations"),
        Err(_) => EVERY_DAY,
    }
}

/// What the record of a conversation has to be, whatever happened; how often a write was sent again.
fn check(ending: &Ending, payments: &[u32], expected: &BTreeMap<Kind, Vec<Value>>) {
    let Ending { story, entries, prompt, was_asked_for_outcome } = ending;
    let Story { conversation, kind, .. } = story;
    assert_eq!(prompt["state"], "completed", "{conversation}: {prompt}");
    assert!(payments.len() <= kind.payments(), "{conversation} paid {} times", payments.len());
    assert!(payments.iter().all(|times| *times == 1), "{conversation}: sent {payments:?}");
    let said = |role: &str| {
        let messages = entries.iter().map(|entry| &entry["message"]);
        messages.filter(|message| message["role"] == role).collect::<Vec<_>>()
    };
    let calls: usize = said("assistant")
        .iter()
        .flat_map(|answer| answer["content"].as_array().unwrap())
        .filter(|block| block["type"] == "toolCall")
        .count();
    assert_eq!(said("toolResult").len(), calls, "{conversation}: each call has one result");
    let words = usize::from(*kind == Kind::Steered) + 1;
    assert_eq!(said("user").len(), words, "{conversation}: what is said lands once");
    if *was_asked_for_outcome || *kind == Kind::Steered {
        // Where the steer lands is a matter of moments.
        return;
    }
    assert_eq!(payments.len(), kind.payments(), "{conversation} did not pay");
    assert_eq!(record(*kind, entries), expected[kind], "{conversation}: the record differs");
}

/// Of calls that run at once only what the model reads has an order.
fn record(kind: Kind, entries: &[Value]) -> Vec<Value> {
    let is_ordered = |entry: &&Value| kind != Kind::Several || entry["type"] == "message";
    let kept: Vec<Value> = entries.iter().filter(is_ordered).cloned().collect();
    normal(&kept)
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
    // One of each kind before anything is disturbed: what the record looks like.
    let mut expected = BTreeMap::new();
    let mut kept = 0;
    for number in count..count + Kind::ALL.len() {
        let faultless = cluster.play(number).await;
        assert_eq!(faultless.prompt["state"], "completed", "{}", faultless.prompt);
        kept += answers(&faultless.entries);
        let kind = faultless.story.kind;
        expected.insert(kind, record(kind, &faultless.entries));
    }
    assert_eq!(cluster.clerk.asked(), kept, "without faults every answer is paid once");
    let is_done = AtomicBool::new(false);
    let at_once = (count / 4).clamp(*AT_ONCE.start(), *AT_ONCE.end());
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
    let (mut pauses, mut asked, mut paid) = (Vec::new(), 0, 0);
    for ending in &endings {
        let payments = cluster.payments_of(&ending.story.conversation);
        check(ending, &payments, &expected);
        asked += usize::from(ending.was_asked_for_outcome);
        paid += payments.len();
        kept += answers(&ending.entries);
        pauses.push(longest_pause(&ending.entries));
    }
    pauses.sort();
    let p99 = pauses[(pauses.len() * 99).div_ceil(100) - 1];
    let twice = cluster.clerk.asked() - kept;
    let sweeps: usize = {
        let logs = cluster.logs.lock().unwrap();
        logs.iter().map(|log| log.lock().unwrap().matches("the sweep rang").count()).sum()
    };
    let told = format!(
        "{count} prompts accepted, {} finished; {paid} writes done, 0 repeated, {asked} prompts asked for an outcome; {kept} answers kept, {twice} paid for in vain; {faults:?} in {:?}; {sweeps} sweeps rang; longest pause p50 {:?}, p99 {p99:?}, max {:?}",
        endings.len(),
        began.elapsed(),
        pauses[pauses.len() / 2],
        pauses[pauses.len() - 1],
    );
    writeln!(std::io::stderr(), "{told}").unwrap();
    assert!(p99 <= RECOVERY_MAX, "recovery took {p99:?}");
    assert!(faults.count() >= 3, "only {faults:?}: nothing was proved");
    // A fault meets at most what is under way.
    assert!(twice <= faults.count() * at_once, "{twice} answers were paid for in vain");
    drop(instances);
}
