//! The load: a number of slots, each with one conversation after the other, prompted over HTTP at
//! alternating workers.

use std::time::Duration;

use futures_util::future::try_join_all;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::bench::case::{Case, Storage};
use crate::bench::fake_model::{FakeModel, Measurements};
use crate::bench::process::{ResourceUsage, folder_bytes, read_usage};
use crate::bench::recording_proxy::{RecordedRequest, RecordingProxy};
use crate::bench::worker::{AGENT, StoreCounters, Worker};
use crate::bench::{BenchError, io_error};

/// Seconds of one wait; a longer prompt is polled again.
const WAIT_SECONDS: u64 = 60;
/// A prompt that takes longer hangs.
const PROMPT_TIMEOUT: Duration = Duration::from_mins(10);

/// Measurements between the end of the warm-up and the last response.
#[derive(Debug)]
pub(super) struct LoadResult {
    pub(super) elapsed: Duration,
    /// From sending a prompt to its end.
    pub(super) prompt_durations: Vec<Duration>,
    pub(super) model_measurements: Measurements,
    pub(super) usage_before: ResourceUsage,
    pub(super) usage_after: ResourceUsage,
    pub(super) store_counters: StoreCounters,
    pub(super) folder_bytes: u64,
    /// Storage requests, if they are counted.
    pub(super) requests: Vec<RecordedRequest>,
}

/// The work of a case, and its observers.
pub(super) struct Load<'a> {
    pub(super) case: &'a Case,
    pub(super) model: &'a FakeModel,
    /// Prefix of the ids of all conversations.
    pub(super) tag: &'a str,
    pub(super) wire: Option<&'a RecordingProxy>,
}

impl Load<'_> {
    pub(super) async fn drive(&self, workers: &mut [Worker]) -> Result<LoadResult, BenchError> {
        let Self { case, model, tag, wire } = self;
        let client = reqwest::Client::builder().no_proxy().timeout(PROMPT_TIMEOUT).build();
        let client = client.map_err(io_error("make an HTTP client"))?;
        let base_urls = workers.iter().map(|worker| worker.base_url.clone()).collect();
        let tenant = (case.storage == Storage::Embedded).then(|| format!("bench-{tag}"));
        let user = LoadClient { client, base_urls, tag: (*tag).to_owned(), tenant };
        // Warms up connections, statements and memory: every slot once.
        let warm =
            (0..case.conversations).map(|place| user.run_conversation("warm", (place, 0), &[1]));
        try_join_all(warm).await?;
        if let Some(wire) = wire {
            wire.take_settled().await?;
        }
        let (counters_before, bytes_before) = (sum_counters(workers).await?, data_bytes(workers));
        let before = sum_usage(workers);
        drop(model.take_measurements());
        let started_at = Instant::now();
        let rounds = case.rounds_per_prompt();
        let slots = (0..case.conversations).map(|place| user.run_slot(place, case.repeat, &rounds));
        let prompts = try_join_all(slots).await?.concat();
        let elapsed = started_at.elapsed();
        let after = sum_usage(workers);
        let counters_after = sum_counters(workers).await?;
        let sent = match wire {
            Some(wire) => wire.take_settled().await?,
            None => Vec::new(),
        };
        Ok(LoadResult {
            elapsed,
            prompt_durations: prompts,
            model_measurements: model.take_measurements(),
            usage_before: before,
            usage_after: after,
            store_counters: StoreCounters {
                commits: counters_after.commits - counters_before.commits,
                checkpoints: counters_after.checkpoints - counters_before.checkpoints,
            },
            folder_bytes: data_bytes(workers).saturating_sub(bytes_before),
            requests: sent,
        })
    }
}

async fn sum_counters(workers: &mut [Worker]) -> Result<StoreCounters, BenchError> {
    let mut sum = StoreCounters::default();
    for worker in workers {
        let counted = worker.read_counters().await?;
        sum.commits += counted.commits;
        sum.checkpoints += counted.checkpoints;
    }
    Ok(sum)
}

/// Bytes in the workers' data folders.
fn data_bytes(workers: &[Worker]) -> u64 {
    workers.iter().map(|worker| folder_bytes(&worker.data)).sum()
}

/// Sum over all workers; for memory the sum of their peaks.
fn sum_usage(workers: &[Worker]) -> ResourceUsage {
    let usages: Vec<ResourceUsage> = workers.iter().map(|worker| read_usage(worker.pid)).collect();
    ResourceUsage {
        cpu: usages.iter().map(|usages| usages.cpu).sum(),
        written_bytes: usages.iter().map(|usages| usages.written_bytes).sum(),
        peak_bytes: usages.iter().map(|usages| usages.peak_bytes).sum(),
    }
}

/// The client that sends prompts.
struct LoadClient {
    client: reqwest::Client,
    /// One per worker.
    base_urls: Vec<String>,
    tag: String,
    /// `None`: each conversation has its own tenant, named by its id. The emulator keeps a tenant
    /// in one physical partition, and copies a whole one for each batch.
    tenant: Option<String>,
}

impl LoadClient {
    async fn run_slot(
        &self,
        slot: usize,
        repeat: usize,
        rounds: &[usize],
    ) -> Result<Vec<Duration>, BenchError> {
        let mut prompts = Vec::with_capacity(repeat * rounds.len());
        for number in 0..repeat {
            prompts.extend(self.run_conversation("c", (slot, number), rounds).await?);
        }
        Ok(prompts)
    }

    /// Runs one conversation, with a prompt for each number of rounds.
    async fn run_conversation(
        &self,
        name: &str,
        (slot, number): (usize, usize),
        rounds: &[usize],
    ) -> Result<Vec<Duration>, BenchError> {
        let id = format!("{name}-{}-{slot}-{number}", self.tag);
        let tenant = self.tenant.as_ref().unwrap_or(&id);
        let workers = self.base_urls.len().max(1);
        let base_url = self.base_urls.get((slot + number) % workers);
        let base_url = base_url.map(String::as_str).unwrap_or_default();
        let mut prompts = Vec::with_capacity(rounds.len());
        for (number, rounds) in rounds.iter().enumerate() {
            let input = format!("Rounds: {rounds}");
            let (path, prompt) = if number == 0 {
                let prompt = json!({"agent": AGENT, "conversationId": id, "input": input});
                ("prompts".to_owned(), prompt)
            } else {
                (format!("conversations/{id}/prompts"), json!({"input": input}))
            };
            let started_at = Instant::now();
            let url = format!("{base_url}/api/{path}?wait={WAIT_SECONDS}");
            let mut prompt_state =
                self.send_request(tenant, self.client.post(url).json(&prompt)).await?;
            // The prompt was accepted and still ran at the end of the wait: such a response has no
            // state.
            while let Some(prompt_id) = prompt_state.get("promptId").and_then(Value::as_str)
                && matches!(
                    prompt_state.get("state").and_then(Value::as_str),
                    None | Some("running")
                )
                && started_at.elapsed() < PROMPT_TIMEOUT
            {
                let path = format!("conversations/{id}/prompts/{prompt_id}");
                let url = format!("{base_url}/api/{path}?wait={WAIT_SECONDS}");
                prompt_state = self.send_request(tenant, self.client.get(url)).await?;
            }
            prompts.push(started_at.elapsed());
            if prompt_state.get("state").and_then(Value::as_str) != Some("completed") {
                return Err(BenchError::PromptFailed(prompt_state.to_string()));
            }
        }
        Ok(prompts)
    }

    async fn send_request(
        &self,
        tenant: &str,
        request: reqwest::RequestBuilder,
    ) -> Result<Value, BenchError> {
        let request = request.header("turnwheel-tenant", tenant);
        let response = request.send().await.map_err(io_error("reach the worker"))?;
        let is_success = response.status().is_success();
        let text = response.text().await.map_err(io_error("read from the worker"))?;
        match serde_json::from_str(&text) {
            Ok(body) if is_success => Ok(body),
            _ => Err(BenchError::PromptFailed(text)),
        }
    }
}
