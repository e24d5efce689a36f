//! A kill at every fail point of a prompt with a tool, an approval and a response: nothing is lost,
//! and no payment is made twice.

use std::io::Write as _;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::StreamExt as _;
use serde_json::{Value, json};
use turnwheel::testing::payments::PaymentsServer;

use crate::support::dev_process::DevProcess;
use crate::support::normalise::normalise_entries;
use crate::support::openapi_check;
use turnwheel_test_support::time_bound::check_time;

/// Fail points of a turn with a call, in order. The intent is committed between the first two, the
/// result between the last two. In between the outcome may be unknown: an approver settles it.
const CALL_FAIL_POINTS: [&str; 8] = [
    "pending-work.before",
    "pending-work.after",
    "tool.before",
    "tool-result.before",
    "tool-result.after",
    "tool.after",
    "result.before",
    "result.after",
];

const TIMEOUT: Duration = Duration::from_mins(2);
/// Time limit from the start of a process until it continues pending work, for 99 of 100 kills.
const RECOVERY_MAX: Duration = Duration::from_secs(5);

struct Scenario<'a> {
    data: &'a Path,
    payments: &'a PaymentsServer,
    client: reqwest::Client,
    loop_kind: &'a str,
}

/// Observations of the client.
#[derive(Default)]
struct Observations {
    has_outcome_request: bool,
    /// True if the prompt waits for an approver or has ended.
    has_progressed: bool,
}

/// Result of one scenario.
struct ScenarioResult {
    entries: Vec<Value>,
    prompt: Value,
    has_outcome_request: bool,
    /// Fail points that were hit before the kill; empty if the process was not killed.
    fail_points_hit: Vec<String>,
    /// Time from the first response of the next process to the first progress of the prompt.
    recovery: Option<Duration>,
}

impl ScenarioResult {
    /// True if a write may have run at the kill: in the task at the fail point or in a parallel
    /// turn.
    fn had_running_write(&self, kill_point: &str) -> bool {
        let last = self
            .fail_points_hit
            .iter()
            .rev()
            .find(|fail_point| CALL_FAIL_POINTS.contains(&fail_point.as_str()));
        match last.map(String::as_str) {
            None | Some("result.after") => false,
            Some("pending-work.before") => kill_point != "pending-work.before",
            Some(_) => true,
        }
    }
}

impl Scenario<'_> {
    fn start(&self, fail_point: Option<&str>) -> DevProcess {
        let mut settings = vec![("PAYMENTS_URL", self.payments.base_url.clone())];
        settings.extend(fail_point.map(|name| ("TURNWHEEL_HALT_AT", name.to_owned())));
        DevProcess::start(self.data, &settings)
    }

    /// Runs the whole scenario; every request is repeated, with its key, until it succeeds.
    async fn run(&self, fail_point: Option<&str>) -> ScenarioResult {
        let mut dev = self.start(fail_point);
        let mut fail_points_hit = Vec::new();
        let mut observed = Observations::default();
        let (mut ready, mut recovery) = (None, None);
        let deadline = Instant::now() + TIMEOUT;
        loop {
            assert!(
                Instant::now() < deadline,
                "the scenario did not end with a kill at {fail_point:?}: {}",
                dev.log()
            );
            let halted = self.data.join("halted");
            if halted.exists() {
                dev.kill();
                let text = std::fs::read_to_string(&halted).unwrap();
                fail_points_hit = text.lines().map(str::to_owned).collect();
                std::fs::remove_file(&halted).unwrap();
                observed.has_progressed = false;
                dev = self.start(None);
                ready = Some(Instant::now());
            }
            let ended = self.run_round(&dev, &mut observed).await;
            if observed.has_progressed && recovery.is_none() {
                recovery = ready.map(|ready: Instant| ready.elapsed());
            }
            let Some(prompt) = ended else { continue };
            let entries = self.get(&dev, "/api/conversations/story/entries?limit=100").await;
            let Some(entries) = entries else { continue };
            let entries = entries["items"].as_array().unwrap().clone();
            dev.kill();
            let has_outcome_request = observed.has_outcome_request;
            return ScenarioResult {
                entries,
                prompt,
                has_outcome_request,
                fail_points_hit,
                recovery,
            };
        }
    }

    /// One round of the client. Returns the prompt once it has ended.
    async fn run_round(&self, dev: &DevProcess, observed: &mut Observations) -> Option<Value> {
        let body =
            json!({"id": "story", "agent": "payments-clerk", "settings": {"loop": self.loop_kind}});
        self.post(dev, "/api/conversations", "create", &body).await?;
        let settings = json!({"loop": self.loop_kind});
        let body = json!({"id": "story", "agent": "payments-clerk", "settings": settings});
        self.post(dev, "/api/conversations", "create", &body).await?;
        let path = "/api/conversations/story/prompts";
        let body = json!({"input": "Pay 250 to Ada"});
        let accepted = self.post(dev, path, "begin", &body).await?;
        let prompt_id = accepted["promptId"].as_str().unwrap();
        let prompt =
            self.get(dev, &format!("/api/conversations/story/prompts/{prompt_id}?wait=1")).await?;
        observed.has_progressed |= prompt["state"] != "running";
        match prompt["state"].as_str().unwrap() {
            "running" => None,
            "waiting_for_approval" => {
                let conversation = self.get(dev, "/api/conversations/story").await?;
                for approval in conversation["pendingApprovals"].as_array().unwrap() {
                    let decision = if approval["kind"] == "outcome" {
                        observed.has_outcome_request = true;
                        let is_paid = !self.payments.payments().is_empty();
                        if is_paid { "happened" } else { "did_not_happen" }
                    } else {
                        "approve"
                    };
                    let id = approval["id"].as_str().unwrap();
                    let path = format!("/api/conversations/story/approvals/{id}");
                    self.post(dev, &path, &format!("decide-{id}"), &json!({"decision": decision}))
                        .await?;
                }
                None
            }
            _ => Some(prompt),
        }
    }

    async fn get(&self, dev: &DevProcess, path: &str) -> Option<Value> {
        let request = self.client.get(dev.url(path)).timeout(Duration::from_secs(3));
        let response = openapi_check::send(request).await.ok()?;
        response.status.is_success().then(|| response.json())
    }

    /// `None`: the process was killed before the response; the caller repeats the request.
    async fn post(&self, dev: &DevProcess, path: &str, key: &str, body: &Value) -> Option<Value> {
        let request = self.client.post(dev.url(path)).header("Idempotency-Key", key).json(body);
        let response = openapi_check::send(request.timeout(Duration::from_secs(2))).await.ok()?;
        let status = response.status;
        assert!(status.is_success() || status.is_server_error(), "{path}: {response:?}");
        status.is_success().then(|| response.json())
    }
}

async fn run_scenario(fail_point: Option<&str>, loop_kind: &str) -> (ScenarioResult, usize, u32) {
    let folder = tempfile::tempdir().unwrap();
    let payments = PaymentsServer::start().await.unwrap();
    let client = reqwest::Client::new();
    let scenario = Scenario { data: folder.path(), payments: &payments, client, loop_kind };
    let result = scenario.run(fail_point).await;
    let payments_made = payments.payments();
    let requests = payments_made.iter().map(|payment| payment.requests).max().unwrap_or(0);
    (result, payments_made.len(), requests)
}

/// Number of concurrent scenarios; each has three processes that mostly wait.
const CONCURRENCY: usize = 6;

/// Runs a scenario with a kill at a fail point. Returns the recovery time; `None` without a kill.
async fn check_fail_point(
    at: String,
    expected: Arc<Vec<Value>>,
    loop_kind: &str,
) -> Option<Duration> {
    let (result, paid, requests) = run_scenario(Some(&at), loop_kind).await;
    assert!(requests <= 1, "{at}: the payment was sent {requests} times");
    assert_eq!(result.prompt["state"], "completed", "{at}: {}", result.prompt);
    if result.has_outcome_request {
        let fail_point = at.split('#').next().unwrap();
        assert!(
            result.had_running_write(fail_point),
            "{at} asked for an outcome after {:?}",
            result.fail_points_hit
        );
    } else {
        assert_eq!(paid, 1, "{at}");
        assert_eq!(
            normalise_entries(&result.entries),
            *expected,
            "{at}: the record differs from that without a kill"
        );
    }
    if result.fail_points_hit.is_empty() { None } else { result.recovery }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kill_at_any_fail_point_pays_once() {
    // The same concurrency as below, to measure the duration of a scenario under this load.
    let began = Instant::now();
    let references =
        futures_util::future::join_all((0..CONCURRENCY).map(|_| run_scenario(None, "prompt")))
            .await;
    let scenario_time = began.elapsed();
    for (result, paid, _) in &references {
        assert_eq!(result.prompt["state"], "completed", "{}", result.prompt);
        assert_eq!(*paid, 1);
    }
    let expected = Arc::new(normalise_entries(&references[0].0.entries));
    let report = futures_util::stream::iter(turnwheel::testing::fail_points::FAIL_POINTS).map(
        |fail_point| {
            let expected = Arc::clone(&expected);
            async move {
                // Kill at the n-th hit, until a scenario has fewer hits.
                let mut recoveries = Vec::new();
                loop {
                    let at = format!("{fail_point}#{}", recoveries.len() + 1);
                    match check_fail_point(at.clone(), Arc::clone(&expected), "prompt").await {
                        Some(took) => recoveries.push((took, at)),
                        None => return recoveries,
                    }
                }
            }
        },
    );
    let report = report.buffer_unordered(CONCURRENCY).collect::<Vec<_>>().await;
    let mut recoveries: Vec<(Duration, String)> = report.into_iter().flatten().collect();
    let kills = recoveries.len();
    assert!(kills >= 25, "only {kills} kills at fail points");
    recoveries.sort();
    let (median, _) = recoveries[kills / 2];
    let (p99, at) = &recoveries[kills * 99 / 100];
    let report = format!(
        "{kills} kills, recovery after the next start p50 {median:?}, p99 {p99:?} ({at}); a whole scenario takes {scenario_time:?}"
    );
    writeln!(std::io::stderr(), "{report}").unwrap();
    // The bound adds the duration of a scenario, which depends on the load. `turn::tests::take_over_latency`
    // checks the recovery alone.
    check_time("p99 of the recovery", *p99, RECOVERY_MAX + scenario_time);
}

/// The fake model of `dev` reads and writes protocol text.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kill_in_protocol_mode_pays_once() {
    let (reference, paid, _) = run_scenario(None, "protocol").await;
    assert_eq!((reference.prompt["state"].as_str(), paid), (Some("completed"), 1));
    let expected = Arc::new(normalise_entries(&reference.entries));
    let points = [
        "model.before#1",
        "model.after#1",
        "pending-work.after#2",
        "tool.after#1",
        "model.after#2",
    ];
    let checks =
        points.map(|at| check_fail_point(at.to_owned(), Arc::clone(&expected), "protocol"));
    let kills = futures_util::future::join_all(checks).await.into_iter().flatten().count();
    assert!(kills >= 4, "only {kills} kills");
}
