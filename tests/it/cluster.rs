//! Three instances on one storage account and one Cosmos account, killed and started at random: every conversation comes to
//! its end, with the record of a day without faults, and no payment is made twice.
//!
//! `TURNWHEEL_CLUSTER` says how many conversations; without it, few enough for every day.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use futures_util::StreamExt as _;
use serde_json::{Value, json};
use turnwheel::payments::PaymentsServer;

use crate::support::azure::Azure;
use crate::support::normal::normal;
use crate::support::process::Dev;

const INSTANCES: usize = 3;
const EVERY_DAY: usize = 20;
/// The whole run; killing stops long before.
const PATIENCE: Duration = Duration::from_mins(5);
const KILLING: Duration = Duration::from_secs(75);
/// A conversation whose worker was killed goes on within this (99 of 100 of them).
const RECOVERY_MAX: Duration = Duration::from_secs(150);
/// Tenants lie in different physical partitions.
const TENANTS: usize = 8;
const PARTITIONS: u32 = 64;
/// Clients that speak at the same time: so many that there is always work to kill, so few that it lasts a while.
const AT_ONCE: std::ops::RangeInclusive<usize> = 4..=60;

/// Where the instances are now; `None`: it was killed and is not back yet.
type Addresses = Arc<Mutex<Vec<Option<String>>>>;

struct Cluster {
    azure: Azure,
    payments: PaymentsServer,
    addresses: Addresses,
    client: reqwest::Client,
    next: AtomicUsize,
    folder: tempfile::TempDir,
}

/// How a conversation ended.
struct Ending {
    conversation: String,
    entries: Vec<Value>,
    prompt: Value,
    was_asked_for_outcome: bool,
}

impl Cluster {
    async fn start() -> Self {
        Self {
            azure: Azure::start(PARTITIONS).await,
            payments: PaymentsServer::start().await.unwrap(),
            addresses: Arc::new(Mutex::new(vec![None; INSTANCES])),
            client: reqwest::Client::new(),
            next: AtomicUsize::new(0),
            folder: tempfile::tempdir().unwrap(),
        }
    }

    fn start_instance(&self, number: usize) -> Dev {
        let mut settings = self.azure.settings();
        settings.push(("PAYMENTS_URL", self.payments.base_url.clone()));
        let data = self.folder.path().join(number.to_string());
        let dev = tokio::task::block_in_place(|| {
            let arguments = ["--storage", "azure", "--queue-prefix", "cluster"];
            Dev::start_with(Path::new(env!("CARGO_MANIFEST_DIR")), &data, &arguments, &settings)
        });
        self.addresses.lock().unwrap()[number] = Some(dev.url(""));
        dev
    }

    /// Kills one after the other, and starts it again, until everything is done or it has been long enough. Answers how often.
    async fn disturb(&self, mut instances: Vec<Dev>, is_done: &AtomicBool) -> (usize, Vec<Dev>) {
        let mut dice = fastrand::Rng::with_seed(7);
        let began = Instant::now();
        let mut kills = 0;
        while !is_done.load(Ordering::SeqCst) && began.elapsed() < KILLING {
            tokio::time::sleep(Duration::from_millis(dice.u64(200..2_000))).await;
            let number = dice.usize(..INSTANCES);
            self.addresses.lock().unwrap()[number] = None;
            instances[number].kill();
            kills += 1;
            tokio::time::sleep(Duration::from_millis(dice.u64(..1_500))).await;
            instances[number] = self.start_instance(number);
        }
        (kills, instances)
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
        let answer = request.send().await.ok()?;
        let status = answer.status();
        let text = answer.text().await.ok()?;
        assert!(status.is_success() || status.is_server_error(), "{path}: {status} {text}");
        if status.is_success() { serde_json::from_str(&text).ok() } else { None }
    }

    /// Plays one conversation as a patient client would: every request is repeated, with its key, until it is answered.
    async fn play(&self, number: usize, deadline: Instant) -> Ending {
        let tenant = format!("tenant-{}", number % TENANTS);
        let conversation = format!("c{number}");
        let amount = if number.is_multiple_of(2) { 250 } else { 40 };
        let body = json!({"agent": "payments-clerk", "conversationId": conversation, "input": format!("Pay {amount} to Ada")});
        let mut was_asked_for_outcome = false;
        loop {
            assert!(Instant::now() < deadline, "{conversation} did not come to its end");
            let round = self.round(&tenant, &conversation, &body, &mut was_asked_for_outcome);
            if let Some((prompt, entries)) = round.await {
                return Ending { conversation, entries, prompt, was_asked_for_outcome };
            }
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
    }

    /// What a client does once; the prompt and the record when it has ended.
    async fn round(
        &self,
        tenant: &str,
        conversation: &str,
        body: &Value,
        was_asked_for_outcome: &mut bool,
    ) -> Option<(Value, Vec<Value>)> {
        let key = format!("begin-{conversation}");
        let accepted = self.ask(tenant, "/api/prompts", Some((&key, body))).await?;
        let prompt_id = accepted["promptId"].as_str().unwrap();
        let base = format!("/api/conversations/{conversation}");
        let prompt = self.ask(tenant, &format!("{base}/prompts/{prompt_id}?wait=5"), None).await?;
        match prompt["state"].as_str().unwrap() {
            "running" => None,
            "waiting_for_approval" => {
                let shown = self.ask(tenant, &base, None).await?;
                for approval in shown["pendingApprovals"].as_array().unwrap() {
                    let decision = if approval["kind"] == "outcome" {
                        *was_asked_for_outcome = true;
                        let is_paid = !self.payments_of(conversation).is_empty();
                        if is_paid { "happened" } else { "did_not_happen" }
                    } else {
                        "approve"
                    };
                    let id = approval["id"].as_str().unwrap();
                    let decided = json!({"decision": decision});
                    let key = format!("decide-{id}");
                    self.ask(tenant, &format!("{base}/approvals/{id}"), Some((&key, &decided)))
                        .await?;
                }
                None
            }
            _ => {
                let entries = self.ask(tenant, &format!("{base}/entries?limit=100"), None).await?;
                Some((prompt, entries["items"].as_array().unwrap().clone()))
            }
        }
    }

    /// How often each payment of the conversation was asked for.
    fn payments_of(&self, conversation: &str) -> Vec<u32> {
        let prefix = format!("tw_{conversation}_");
        let made = self.payments.payments();
        made.iter().filter(|made| made.key.starts_with(&prefix)).map(|made| made.requests).collect()
    }
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_instances_under_kills_lose_nothing_and_pay_once() {
    let count = conversations();
    let cluster = Cluster::start().await;
    let mut instances: Vec<Dev> =
        (0..INSTANCES).map(|number| cluster.start_instance(number)).collect();
    let began = Instant::now();
    let deadline = began + PATIENCE;
    // One of each kind before anything is disturbed: what the record looks like.
    let mut expected = BTreeMap::new();
    for number in [count, count + 1] {
        let faultless = cluster.play(number, deadline).await;
        assert_eq!(faultless.prompt["state"], "completed", "{}", faultless.prompt);
        expected.insert(number % 2, normal(&faultless.entries));
    }
    let is_done = AtomicBool::new(false);
    let playing = async {
        let stories = (0..count).map(|number| cluster.play(number, deadline));
        let at_once = (count / 4).clamp(*AT_ONCE.start(), *AT_ONCE.end());
        let endings: Vec<Ending> =
            futures_util::stream::iter(stories).buffered(at_once).collect().await;
        is_done.store(true, Ordering::SeqCst);
        endings
    };
    let (endings, (kills, left)) = tokio::join!(playing, cluster.disturb(instances, &is_done));
    instances = left;
    let mut pauses = Vec::new();
    let mut asked = 0;
    for (number, ending) in endings.iter().enumerate() {
        let conversation = &ending.conversation;
        assert_eq!(ending.prompt["state"], "completed", "{conversation}: {}", ending.prompt);
        let requests = cluster.payments_of(conversation);
        assert!(requests.len() <= 1, "{conversation} paid {} times", requests.len());
        assert!(requests.iter().all(|times| *times == 1), "{conversation}: sent {requests:?}");
        if ending.was_asked_for_outcome {
            asked += 1;
        } else {
            assert_eq!(requests.len(), 1, "{conversation} did not pay");
            let record = normal(&ending.entries);
            assert_eq!(record, expected[&(number % 2)], "{conversation}: the record differs");
        }
        pauses.push(longest_pause(&ending.entries));
    }
    pauses.sort();
    let p99 = pauses[(pauses.len() * 99).div_ceil(100) - 1];
    let told = format!(
        "{count} conversations, {kills} kills, {asked} outcomes asked for, {:?}: longest pause p50 {:?}, p99 {p99:?}, max {:?}",
        began.elapsed(),
        pauses[pauses.len() / 2],
        pauses[pauses.len() - 1],
    );
    writeln!(std::io::stderr(), "{told}").unwrap();
    assert!(p99 <= RECOVERY_MAX, "recovery took {p99:?}");
    assert!(kills >= 3, "only {kills} kills: nothing was proved");
    drop(instances);
}
