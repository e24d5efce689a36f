//! Clients of the cluster test: each repeats a request, with its key, until it succeeds.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use turnwheel::payments::Payment;

use super::story::{Ending, Kind, Seen, Story};
use super::{Cluster, INSTANCES};

/// Time limit of one conversation, with all faults, on a machine that runs other tests too.
const PATIENCE: Duration = Duration::from_mins(10);
const STEER: &str = "Be quick.";

#[expect(clippy::disallowed_methods, reason = "it is compared with times from other processes")]
fn now() -> jiff::Timestamp {
    jiff::Timestamp::now()
}

impl Cluster {
    /// Returns the address of a running instance, round robin.
    fn some_address(&self) -> Option<String> {
        let addresses = self.addresses.lock().unwrap();
        let first = self.next.fetch_add(1, Ordering::Relaxed);
        (first..first + INSTANCES).find_map(|number| addresses[number % INSTANCES].clone())
    }

    /// `None`: no response, or a server error; the caller repeats the request.
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

    /// Runs one conversation to its end and repeats every request, with its key, until it succeeds.
    pub(super) async fn play(&self, number: usize) -> Ending {
        let story = Story::new(number);
        let deadline = Instant::now() + PATIENCE;
        let mut seen = Seen::default();
        loop {
            let is_late = Instant::now() > deadline;
            let stuck = if is_late { self.told_of(&story).await } else { String::new() };
            assert!(stuck.is_empty(), "{stuck}");
            if let Some((prompt, entries)) = self.round(&story, &mut seen).await {
                return Ending { story, entries, prompt, seen };
            }
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
    }

    /// Sends a steer while the prompt runs. True once it is applied.
    async fn steer(&self, story: &Story) -> Option<bool> {
        let (tenant, base) = (&story.tenant, &story.base);
        let key = format!("steer-{}", story.conversation);
        let body = json!({"input": STEER, "mode": "steer"});
        let accepted = self.ask(tenant, &format!("{base}/prompts"), Some((&key, &body))).await?;
        let input_id = accepted["inputId"].as_str().unwrap();
        let input = self.ask(tenant, &format!("{base}/inbox/{input_id}"), None).await?;
        Some(input["state"] == "landed")
    }

    /// Sends each request once. Returns the prompt and its entries when everything has ended.
    async fn round(&self, story: &Story, seen: &mut Seen) -> Option<(Value, Vec<Value>)> {
        let Story { tenant, conversation, base, body, kind } = story;
        let key = format!("begin-{conversation}");
        let accepted = self.ask(tenant, "/api/prompts", Some((&key, body))).await?;
        seen.accepted_at.get_or_insert_with(now);
        let has_landed = *kind != Kind::Steered || self.steer(story).await?;
        let prompt_id = accepted["promptId"].as_str().unwrap();
        let prompt = self.ask(tenant, &format!("{base}/prompts/{prompt_id}?wait=5"), None).await?;
        let shown = self.ask(tenant, base, None).await?;
        for approval in shown["pendingApprovals"].as_array().unwrap() {
            let decision = if approval["kind"] == "outcome" {
                seen.is_asked_for_outcome = true;
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
        // A late steer has its own prompt, which may still run.
        if shown["state"] != "idle" || prompt["state"] == "running" || !has_landed {
            return None;
        }
        let entries = self.ask(tenant, &format!("{base}/entries?limit=100"), None).await?;
        Some((prompt, entries["items"].as_array().unwrap().clone()))
    }

    /// Number of requests for each payment of the conversation.
    pub(super) fn payments_of(&self, conversation: &str) -> Vec<u32> {
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

    /// Describes a stuck conversation: its `why`, its view, its log lines and its last errors.
    async fn told_of(&self, story: &Story) -> String {
        let Story { tenant, conversation, base, .. } = story;
        let why = self.ask(tenant, &format!("{base}/why"), None).await;
        let shown = self.ask(tenant, base, None).await;
        let mut told =
            vec![format!("{conversation} did not complete: why {why:?}\n{shown:?}")];
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
}
