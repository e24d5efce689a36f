//! The load: a number of slots, each with one conversation after the other, prompted over HTTP.

use std::time::Duration;

use futures_util::future::try_join_all;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::bench::case::Case;
use crate::bench::fake_model::{FakeModel, Measurements};
use crate::bench::process::{ResourceUsage, folder_bytes, read_usage};
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
}

/// The work of a case, and its model.
pub(super) struct Load<'a> {
    pub(super) case: &'a Case,
    pub(super) model: &'a FakeModel,
}

impl Load<'_> {
    pub(super) async fn drive(&self, worker: &mut Worker) -> Result<LoadResult, BenchError> {
        let Self { case, model } = self;
        let client = reqwest::Client::builder().no_proxy().timeout(PROMPT_TIMEOUT).build();
        let client = client.map_err(io_error("make an HTTP client"))?;
        let user = LoadClient { client, base_url: worker.base_url.clone() };
        // Warms up connections, statements and memory: every slot once.
        let warm =
            (0..case.conversations).map(|place| user.run_conversation("warm", place, 0, &[1]));
        try_join_all(warm).await?;
        let (counters_before, bytes_before) =
            (worker.read_counters().await?, folder_bytes(&worker.data));
        let before = read_usage(worker.pid);
        drop(model.take_measurements());
        let started_at = Instant::now();
        let rounds = case.rounds_per_prompt();
        let slots = (0..case.conversations).map(|place| user.run_slot(place, case.repeat, &rounds));
        let prompts = try_join_all(slots).await?.concat();
        let elapsed = started_at.elapsed();
        let after = read_usage(worker.pid);
        let counters_after = worker.read_counters().await?;
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
            folder_bytes: folder_bytes(&worker.data).saturating_sub(bytes_before),
        })
    }
}

/// The client that sends prompts.
struct LoadClient {
    client: reqwest::Client,
    base_url: String,
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
            prompts.extend(self.run_conversation("c", slot, number, rounds).await?);
        }
        Ok(prompts)
    }

    /// Runs one conversation, with a prompt for each number of rounds.
    async fn run_conversation(
        &self,
        name: &str,
        slot: usize,
        number: usize,
        rounds: &[usize],
    ) -> Result<Vec<Duration>, BenchError> {
        let (id, base_url) = (format!("{name}-{slot}-{number}"), &self.base_url);
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
            let mut prompt_state = self.send_request(self.client.post(url).json(&prompt)).await?;
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
                prompt_state = self.send_request(self.client.get(url)).await?;
            }
            prompts.push(started_at.elapsed());
            if prompt_state.get("state").and_then(Value::as_str) != Some("completed") {
                return Err(BenchError::PromptFailed(prompt_state.to_string()));
            }
        }
        Ok(prompts)
    }

    async fn send_request(&self, request: reqwest::RequestBuilder) -> Result<Value, BenchError> {
        let response = request.send().await.map_err(io_error("reach the worker"))?;
        let is_success = response.status().is_success();
        let text = response.text().await.map_err(io_error("read from the worker"))?;
        match serde_json::from_str(&text) {
            Ok(body) if is_success => Ok(body),
            _ => Err(BenchError::PromptFailed(text)),
        }
    }
}
