//! The load: a number of slots, each with one conversation after the other, prompted over HTTP at
//! alternating workers.

use std::time::Duration;

use futures_util::future::try_join_all;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::bench::case::{Case, Storage};
use crate::bench::model::{FakeModel, Heard};
use crate::bench::process::{Used, folder_bytes, used};
use crate::bench::wire::{Sent, Wire};
use crate::bench::worker::{AGENT, Counted, Worker};
use crate::bench::{BenchError, io};

/// Seconds of one wait; a longer prompt is polled again.
const WAIT_SECONDS: u64 = 60;
/// A prompt that takes longer hangs.
const PATIENCE: Duration = Duration::from_mins(10);

/// Measurements between the end of the warm-up and the last response.
#[derive(Debug)]
pub(super) struct Loaded {
    pub(super) elapsed: Duration,
    /// From sending a prompt to its end.
    pub(super) prompts: Vec<Duration>,
    pub(super) heard: Heard,
    pub(super) before: Used,
    pub(super) after: Used,
    pub(super) counted: Counted,
    pub(super) folder_bytes: u64,
    /// Storage requests, if they are counted.
    pub(super) sent: Vec<Sent>,
}

/// The work of a case, and its observers.
pub(super) struct Load<'a> {
    pub(super) case: &'a Case,
    pub(super) model: &'a FakeModel,
    /// Prefix of the ids of all conversations.
    pub(super) tag: &'a str,
    pub(super) wire: Option<&'a Wire>,
}

impl Load<'_> {
    pub(super) async fn drive(&self, workers: &mut [Worker]) -> Result<Loaded, BenchError> {
        let Self { case, model, tag, wire } = self;
        let client = reqwest::Client::builder().no_proxy().timeout(PATIENCE).build();
        let client = client.map_err(io("make an HTTP client"))?;
        let base_urls = workers.iter().map(|worker| worker.base_url.clone()).collect();
        let tenant = (case.storage == Storage::Embedded).then(|| format!("bench-{tag}"));
        let user = User { client, base_urls, tag: (*tag).to_owned(), tenant };
        // Warms up connections, statements and memory: every slot once.
        let warm = (0..case.conversations).map(|place| user.converse("warm", (place, 0), &[1]));
        try_join_all(warm).await?;
        if let Some(wire) = wire {
            wire.settled().await?;
        }
        let (before_counted, before_bytes) = (counted(workers).await?, kept(workers));
        let before = used_by(workers);
        drop(model.heard());
        let began = Instant::now();
        let rounds = case.prompts();
        let places = (0..case.conversations).map(|place| user.hold(place, case.repeat, &rounds));
        let prompts = try_join_all(places).await?.concat();
        let elapsed = began.elapsed();
        let after = used_by(workers);
        let after_counted = counted(workers).await?;
        let sent = match wire {
            Some(wire) => wire.settled().await?,
            None => Vec::new(),
        };
        Ok(Loaded {
            elapsed,
            prompts,
            heard: model.heard(),
            before,
            after,
            counted: Counted {
                commits: after_counted.commits - before_counted.commits,
                checkpoints: after_counted.checkpoints - before_counted.checkpoints,
            },
            folder_bytes: kept(workers).saturating_sub(before_bytes),
            sent,
        })
    }
}

async fn counted(workers: &mut [Worker]) -> Result<Counted, BenchError> {
    let mut sum = Counted::default();
    for worker in workers {
        let counted = worker.counted().await?;
        sum.commits += counted.commits;
        sum.checkpoints += counted.checkpoints;
    }
    Ok(sum)
}

/// Bytes in the workers' data folders.
fn kept(workers: &[Worker]) -> u64 {
    workers.iter().map(|worker| folder_bytes(&worker.data)).sum()
}

/// Sum over all workers; for memory the sum of their peaks.
fn used_by(workers: &[Worker]) -> Used {
    let used: Vec<Used> = workers.iter().map(|worker| used(worker.pid)).collect();
    Used {
        cpu: used.iter().map(|used| used.cpu).sum(),
        written_bytes: used.iter().map(|used| used.written_bytes).sum(),
        peak_bytes: used.iter().map(|used| used.peak_bytes).sum(),
    }
}

/// The client that sends prompts.
struct User {
    client: reqwest::Client,
    /// One per worker.
    base_urls: Vec<String>,
    tag: String,
    /// `None`: each conversation has its own tenant, named by its id. The emulator keeps a tenant
    /// in one physical partition, and copies a whole one for each batch.
    tenant: Option<String>,
}

impl User {
    async fn hold(
        &self,
        place: usize,
        repeat: usize,
        rounds: &[usize],
    ) -> Result<Vec<Duration>, BenchError> {
        let mut prompts = Vec::with_capacity(repeat * rounds.len());
        for number in 0..repeat {
            prompts.extend(self.converse("c", (place, number), rounds).await?);
        }
        Ok(prompts)
    }

    /// Runs one conversation, with a prompt for each number of rounds.
    async fn converse(
        &self,
        name: &str,
        (place, number): (usize, usize),
        rounds: &[usize],
    ) -> Result<Vec<Duration>, BenchError> {
        let id = format!("{name}-{}-{place}-{number}", self.tag);
        let tenant = self.tenant.as_ref().unwrap_or(&id);
        let workers = self.base_urls.len().max(1);
        let base_url = self.base_urls.get((place + number) % workers);
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
            let began = Instant::now();
            let url = format!("{base_url}/api/{path}?wait={WAIT_SECONDS}");
            let mut shown = self.ask(tenant, self.client.post(url).json(&prompt)).await?;
            // The prompt was accepted and still ran at the end of the wait: such a response has no
            // state.
            while let Some(prompt_id) = shown.get("promptId").and_then(Value::as_str)
                && matches!(shown.get("state").and_then(Value::as_str), None | Some("running"))
                && began.elapsed() < PATIENCE
            {
                let path = format!("conversations/{id}/prompts/{prompt_id}");
                let url = format!("{base_url}/api/{path}?wait={WAIT_SECONDS}");
                shown = self.ask(tenant, self.client.get(url)).await?;
            }
            prompts.push(began.elapsed());
            if shown.get("state").and_then(Value::as_str) != Some("completed") {
                return Err(BenchError::Prompt(shown.to_string()));
            }
        }
        Ok(prompts)
    }

    async fn ask(
        &self,
        tenant: &str,
        request: reqwest::RequestBuilder,
    ) -> Result<Value, BenchError> {
        let request = request.header("turnwheel-tenant", tenant);
        let answer = request.send().await.map_err(io("reach the worker"))?;
        let is_good = answer.status().is_success();
        let text = answer.text().await.map_err(io("read from the worker"))?;
        match serde_json::from_str(&text) {
            Ok(shown) if is_good => Ok(shown),
            _ => Err(BenchError::Prompt(text)),
        }
    }
}
