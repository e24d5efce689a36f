//! A kill at every fail point of a prompt with a tool, an approval and a response: nothing is lost,
//! and no payment is made twice.

use std::io::Write as _;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::StreamExt as _;
use serde_json::{Value, json};
use turnwheel::payments::PaymentsServer;

use crate::support::normal::normal;
use crate::support::process::Dev;

/// Fail points of a turn with a call, in order. The intent is committed between the first two, the
/// result between the last two. In between the outcome may be unknown: an approver settles it.
const CALL: [&str; 6] = [
    "take-in.before",
    "take-in.after",
    "tool.before",
    "tool.after",
    "result.before",
    "result.after",
];

const PATIENCE: Duration = Duration::from_secs(30);
/// Time limit from the start of a process until it continues pending work, for 99 of 100 kills.
const RECOVERY_MAX: Duration = Duration::from_secs(5);

struct Story<'a> {
    data: &'a Path,
    payments: &'a PaymentsServer,
    client: reqwest::Client,
}

/// Observations of the client.
#[derive(Default)]
struct Seen {
    was_asked_for_outcome: bool,
    /// True if the prompt waits for an approver or has ended.
    has_moved: bool,
}

/// Result of one scenario.
struct Ending {
    entries: Vec<Value>,
    prompt: Value,
    was_asked_for_outcome: bool,
    /// Fail points that were hit before the kill; empty if the process was not killed.
    reached: Vec<String>,
    /// Time from the first response of the next process to the first progress of the prompt.
    recovery: Option<Duration>,
}

impl Ending {
    /// True if a write may have run at the kill: in the task at the fail point or in a parallel
    /// turn.
    fn had_write_under_way(&self, cut_at: &str) -> bool {
        let last = self.reached.iter().rev().find(|boundary| CALL.contains(&boundary.as_str()));
        match last.map(String::as_str) {
            None | Some("result.after") => false,
            Some("take-in.before") => cut_at != "take-in.before",
            Some(_) => true,
        }
    }
}

impl Story<'_> {
    fn start(&self, halt_at: Option<&str>) -> Dev {
        let mut settings = vec![("PAYMENTS_URL", self.payments.base_url.clone())];
        settings.extend(halt_at.map(|boundary| ("TURNWHEEL_HALT_AT", boundary.to_owned())));
        Dev::start(self.data, &settings)
    }

    /// Runs the whole scenario; every request is repeated, with its key, until it succeeds.
    async fn play(&self, halt_at: Option<&str>) -> Ending {
        let mut dev = self.start(halt_at);
        let mut reached = Vec::new();
        let mut seen = Seen::default();
        let (mut ready, mut recovery) = (None, None);
        let deadline = Instant::now() + PATIENCE;
        loop {
            assert!(
                Instant::now() < deadline,
                "the scenario did not end with a kill at {halt_at:?}: {}",
                dev.log()
            );
            let halted = self.data.join("halted");
            if halted.exists() {
                dev.kill();
                let text = std::fs::read_to_string(&halted).unwrap();
                reached = text.lines().map(str::to_owned).collect();
                std::fs::remove_file(&halted).unwrap();
                seen.has_moved = false;
                dev = self.start(None);
                ready = Some(Instant::now());
            }
            let ended = self.go_on(&dev, &mut seen).await;
            if seen.has_moved && recovery.is_none() {
                recovery = ready.map(|ready: Instant| ready.elapsed());
            }
            let Some(prompt) = ended else { continue };
            let entries = self.get(&dev, "/api/conversations/story/entries?limit=100").await;
            let Some(entries) = entries else { continue };
            let entries = entries["items"].as_array().unwrap().clone();
            dev.kill();
            let was_asked_for_outcome = seen.was_asked_for_outcome;
            return Ending { entries, prompt, was_asked_for_outcome, reached, recovery };
        }
    }

    /// One round of the client. Returns the prompt once it has ended.
    async fn go_on(&self, dev: &Dev, seen: &mut Seen) -> Option<Value> {
        let body = json!({"agent": "payments-clerk", "conversationId": "story", "input": "Pay 250 to Ada"});
        let accepted = self.post(dev, "/api/prompts", "begin", &body).await?;
        let prompt_id = accepted["promptId"].as_str().unwrap();
        let prompt =
            self.get(dev, &format!("/api/conversations/story/prompts/{prompt_id}?wait=1")).await?;
        seen.has_moved |= prompt["state"] != "running";
        match prompt["state"].as_str().unwrap() {
            "running" => None,
            "waiting_for_approval" => {
                let conversation = self.get(dev, "/api/conversations/story").await?;
                for approval in conversation["pendingApprovals"].as_array().unwrap() {
                    let decision = if approval["kind"] == "outcome" {
                        seen.was_asked_for_outcome = true;
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

    async fn get(&self, dev: &Dev, path: &str) -> Option<Value> {
        let answer =
            self.client.get(dev.url(path)).timeout(Duration::from_secs(3)).send().await.ok()?;
        if answer.status().is_success() { answer.json().await.ok() } else { None }
    }

    /// `None`: the process was killed before the response; the caller repeats the request.
    async fn post(&self, dev: &Dev, path: &str, key: &str, body: &Value) -> Option<Value> {
        let request = self.client.post(dev.url(path)).header("Idempotency-Key", key).json(body);
        let answer = request.timeout(Duration::from_secs(2)).send().await.ok()?;
        let status = answer.status();
        let text = answer.text().await.ok()?;
        assert!(status.is_success() || status.is_server_error(), "{path}: {status} {text}");
        if status.is_success() { serde_json::from_str(&text).ok() } else { None }
    }
}

async fn tell(halt_at: Option<&str>) -> (Ending, usize, u32) {
    let folder = tempfile::tempdir().unwrap();
    let payments = PaymentsServer::start().await.unwrap();
    let story = Story { data: folder.path(), payments: &payments, client: reqwest::Client::new() };
    let ending = story.play(halt_at).await;
    let made = payments.payments();
    let requests = made.iter().map(|payment| payment.requests).max().unwrap_or(0);
    (ending, made.len(), requests)
}

/// Number of concurrent scenarios; each has three processes that mostly wait.
const AT_ONCE: usize = 6;

/// Runs a scenario with a kill at a fail point. Returns the recovery time; `None` without a kill.
async fn check(at: String, expected: Arc<Vec<Value>>) -> Option<Duration> {
    let (ending, paid, requests) = tell(Some(&at)).await;
    assert!(requests <= 1, "{at}: the payment was sent {requests} times");
    assert_eq!(ending.prompt["state"], "completed", "{at}: {}", ending.prompt);
    if ending.was_asked_for_outcome {
        let boundary = at.split('#').next().unwrap();
        assert!(
            ending.had_write_under_way(boundary),
            "{at} asked for an outcome after {:?}",
            ending.reached
        );
    } else {
        assert_eq!(paid, 1, "{at}");
        assert_eq!(
            normal(&ending.entries),
            *expected,
            "{at}: the record differs from that without a kill"
        );
    }
    if ending.reached.is_empty() { None } else { ending.recovery }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_kill_at_any_boundary_loses_nothing_and_pays_once() {
    // The same concurrency as below, to measure the duration of a scenario under this load.
    let began = Instant::now();
    let faultless = futures_util::future::join_all((0..AT_ONCE).map(|_| tell(None))).await;
    let whole_story = began.elapsed();
    for (ending, paid, _) in &faultless {
        assert_eq!(ending.prompt["state"], "completed", "{}", ending.prompt);
        assert_eq!(*paid, 1);
    }
    let expected = Arc::new(normal(&faultless[0].0.entries));
    let told = futures_util::stream::iter(turnwheel::turn::BOUNDARIES).map(|boundary| {
        let expected = Arc::clone(&expected);
        async move {
            // Kill at the n-th hit, until a scenario has fewer hits.
            let mut recoveries = Vec::new();
            loop {
                let at = format!("{boundary}#{}", recoveries.len() + 1);
                match check(at.clone(), Arc::clone(&expected)).await {
                    Some(took) => recoveries.push((took, at)),
                    None => return recoveries,
                }
            }
        }
    });
    let told = told.buffer_unordered(AT_ONCE).collect::<Vec<_>>().await;
    let mut recoveries: Vec<(Duration, String)> = told.into_iter().flatten().collect();
    let halted = recoveries.len();
    assert!(halted >= 25, "only {halted} kills at fail points");
    recoveries.sort();
    let (half, _) = recoveries[halted / 2];
    let (most, at) = &recoveries[halted * 99 / 100];
    let told = format!(
        "{halted} kills, recovery after the next start p50 {half:?}, p99 {most:?} ({at}); a whole scenario takes {whole_story:?}"
    );
    writeln!(std::io::stderr(), "{told}").unwrap();
    // The bound adds the duration of a scenario, which depends on the load. `turn::tests::soon`
    // checks the recovery alone.
    assert!(*most <= RECOVERY_MAX + whole_story, "{told}");
}
