//! Clients of the cluster test: each repeats a request, with its key, until it succeeds.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::task::JoinSet;
use turnwheel::testing::payments::Payment;

use super::scenario::{ClientKind, Observations, Scenario, ScenarioKind, ScenarioResult};
use super::{Cluster, INSTANCES};
use crate::support::openapi_check;

/// Time limit of one conversation, with all faults, on a machine that runs other tests too.
const CONVERSATION_TIMEOUT: Duration = Duration::from_mins(10);
const STEER: &str = "Be quick.";

#[expect(clippy::disallowed_methods, reason = "it is compared with times from other processes")]
fn now() -> jiff::Timestamp {
    jiff::Timestamp::now()
}

impl Cluster {
    /// Returns the address of a running instance, round robin.
    fn next_address(&self) -> Option<String> {
        let addresses = self.addresses.lock().unwrap();
        let first = self.next_instance.fetch_add(1, Ordering::Relaxed);
        (first..first + INSTANCES).find_map(|number| addresses[number % INSTANCES].clone())
    }

    /// `None`: no response, or a server error; the caller repeats the request.
    async fn try_request(
        &self,
        tenant: &str,
        path: &str,
        post: Option<(&str, &Value)>,
    ) -> Option<Value> {
        let url = format!("{}{path}", self.next_address()?);
        let request = match post {
            Some((key, body)) => self.client.post(url).header("idempotency-key", key).json(body),
            None => self.client.get(url),
        };
        let request = request.header("turnwheel-tenant", tenant).timeout(Duration::from_secs(15));
        let failure = match openapi_check::send(request).await {
            Ok(response) if response.status.is_success() => return Some(response.json()),
            Ok(response) => {
                assert!(response.status.is_server_error(), "{path}: {response:?}");
                format!("{response:?}")
            }
            Err(error) => error.to_string(),
        };
        self.last_errors.lock().unwrap().insert(path.to_owned(), failure);
        None
    }

    /// Runs one conversation to its end and repeats every request, with its key, until it succeeds.
    pub(super) async fn run_scenario(&self, number: usize) -> ScenarioResult {
        let scenario = Scenario::new(number);
        let deadline = Instant::now() + CONVERSATION_TIMEOUT;
        let mut observed = Observations::default();
        loop {
            let is_late = Instant::now() > deadline;
            let stuck = if is_late { self.describe_stuck(&scenario).await } else { String::new() };
            assert!(stuck.is_empty(), "{stuck}");
            if let Some((prompt, entries)) = self.run_round(&scenario, &mut observed).await {
                return ScenarioResult { scenario, entries, prompt, observed };
            }
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
    }

    /// Sends a steer while the prompt runs. True once it is applied.
    async fn send_steer(&self, scenario: &Scenario) -> Option<bool> {
        let (tenant, base) = (&scenario.tenant, &scenario.base);
        let key = format!("steer-{}", scenario.conversation);
        let body = json!({"input": STEER, "mode": "steer"});
        let accepted =
            self.try_request(tenant, &format!("{base}/prompts"), Some((&key, &body))).await?;
        let input_id = accepted["inputId"].as_str().unwrap();
        let input = self.try_request(tenant, &format!("{base}/inbox/{input_id}"), None).await?;
        Some(input["state"] == "landed")
    }

    /// Sends each request once. Returns the prompt and its entries when everything has ended.
    async fn run_round(
        &self,
        scenario: &Scenario,
        observed: &mut Observations,
    ) -> Option<(Value, Vec<Value>)> {
        let Scenario { tenant, conversation, base, body, kind, client } = scenario;
        let key = format!("begin-{conversation}");
        let waits = *client == ClientKind::Waits;
        let path = if waits { "/api/prompts?wait=2" } else { "/api/prompts" };
        let accepted = self.try_request(tenant, path, Some((&key, body))).await?;
        let streams = (*client == ClientKind::Streams).then(|| self.open_streams(scenario));
        observed.accepted_at.get_or_insert_with(now);
        let has_landed = *kind != ScenarioKind::Steered || self.send_steer(scenario).await?;
        let prompt_id = accepted["promptId"].as_str().unwrap();
        let prompt =
            self.try_request(tenant, &format!("{base}/prompts/{prompt_id}?wait=5"), None).await?;
        let view = self.try_request(tenant, base, None).await?;
        for approval in view["pendingApprovals"].as_array().unwrap() {
            let decision = if approval["kind"] == "outcome" {
                observed.has_outcome_request = true;
                let is_paid = self.is_paid(conversation, &approval["arguments"]);
                if is_paid { "happened" } else { "did_not_happen" }
            } else {
                "approve"
            };
            let id = approval["id"].as_str().unwrap();
            let decided = json!({"decision": decision});
            let key = format!("decide-{id}");
            self.try_request(tenant, &format!("{base}/approvals/{id}"), Some((&key, &decided)))
                .await?;
        }
        // A late steer has its own prompt, which may still run.
        if view["state"] != "idle" || prompt["state"] == "running" || !has_landed {
            return None;
        }
        drop(streams);
        let entries = self.try_request(tenant, &format!("{base}/entries?limit=100"), None).await?;
        Some((prompt, entries["items"].as_array().unwrap().clone()))
    }

    /// Reads the conversation's events at each instance until the set is dropped. Faults end streams.
    fn open_streams(&self, scenario: &Scenario) -> JoinSet<()> {
        let addresses = self.addresses.lock().unwrap().clone();
        let mut streams = JoinSet::new();
        for address in addresses.into_iter().flatten() {
            let url = format!("{address}{}/events?until=settled", scenario.base);
            let request = self.client.get(url).header("turnwheel-tenant", &scenario.tenant);
            streams.spawn(async move {
                let _ = openapi_check::send(request).await;
            });
        }
        streams
    }

    /// Number of requests for each payment of the conversation.
    pub(super) fn payments_of(&self, conversation: &str) -> Vec<u32> {
        self.find_payments(conversation).iter().map(|payment| payment.requests).collect()
    }

    fn is_paid(&self, conversation: &str, arguments: &Value) -> bool {
        self.find_payments(conversation)
            .iter()
            .any(|payment| arguments["to"] == payment.to.as_str())
    }

    fn find_payments(&self, conversation: &str) -> Vec<Payment> {
        let prefix = format!("tw_{conversation}_");
        let payment = self.payments.payments();
        payment.into_iter().filter(|payment| payment.key.starts_with(&prefix)).collect()
    }

    /// Describes a stuck conversation: its `why`, its view, its log lines and its last errors.
    async fn describe_stuck(&self, scenario: &Scenario) -> String {
        let Scenario { tenant, conversation, base, .. } = scenario;
        let why = self.try_request(tenant, &format!("{base}/why"), None).await;
        let view = self.try_request(tenant, base, None).await;
        let mut lines = vec![format!("{conversation} did not complete: why {why:?}\n{view:?}")];
        for (instance, log) in self.logs.lock().unwrap().iter().enumerate() {
            let is_named = |line: &&str| {
                let mut words = line.split(|letter: char| !letter.is_alphanumeric());
                words.any(|word| word == conversation || word == "sweep")
            };
            let log = log.lock().unwrap();
            let named = log.lines().filter(is_named);
            lines.extend(named.map(|line| format!("{instance}: {line}")));
        }
        let refusals = self.last_errors.lock().unwrap();
        let matching_errors = refusals.iter().filter(|(path, _)| path.starts_with(base));
        lines.extend(matching_errors.map(|(path, error)| format!("{path}: {error}")));
        lines.join("\n")
    }
}
