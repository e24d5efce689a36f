//! The load: so many places, in each one conversation after the other, prompted and waited for by HTTP.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::try_join_all;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::bench::case::Case;
use crate::bench::model::{FakeModel, Heard};
use crate::bench::process::{Used, folder_bytes, used};
use crate::bench::worker::{AGENT, Counted, Worker};
use crate::bench::{BenchError, io};

/// Seconds of one wait; a prompt that takes longer is asked for again.
const WAIT_SECONDS: u64 = 60;
/// A prompt that takes longer hangs.
const PATIENCE: Duration = Duration::from_mins(10);

/// What was seen between the end of the warm-up and the last answer.
#[derive(Debug)]
pub(super) struct Loaded {
    pub(super) elapsed: Duration,
    /// From sending a prompt to having its end.
    pub(super) prompts: Vec<Duration>,
    pub(super) heard: Heard,
    pub(super) before: Used,
    pub(super) after: Used,
    pub(super) counted: Counted,
    pub(super) folder_bytes: u64,
}

pub(super) async fn drive(
    case: &Case,
    worker: &mut Worker,
    model: &FakeModel,
) -> Result<Loaded, BenchError> {
    let client = reqwest::Client::builder().no_proxy().timeout(PATIENCE).build();
    let client = client.map_err(io("make an HTTP client"))?;
    let user = Arc::new(User { client, base_url: worker.base_url.clone() });
    // Connections, statements and memory as they are after a while; every place once.
    let warm = (0..case.conversations).map(|place| user.converse(format!("warm-{place}"), &[1]));
    try_join_all(warm).await?;
    let before_counted = worker.counted().await?;
    let (before, before_bytes) = (used(worker.pid), folder_bytes(&worker.data));
    drop(model.heard());
    let began = Instant::now();
    let rounds = case.prompts();
    let places = (0..case.conversations).map(|place| user.hold(place, case.repeat, &rounds));
    let prompts = try_join_all(places).await?.concat();
    let elapsed = began.elapsed();
    let after = used(worker.pid);
    let after_counted = worker.counted().await?;
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
        folder_bytes: folder_bytes(&worker.data).saturating_sub(before_bytes),
    })
}

/// Who prompts.
struct User {
    client: reqwest::Client,
    base_url: String,
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
            prompts.extend(self.converse(format!("c-{place}-{number}"), rounds).await?);
        }
        Ok(prompts)
    }

    /// One conversation, with a prompt for each number of rounds.
    async fn converse(&self, id: String, rounds: &[usize]) -> Result<Vec<Duration>, BenchError> {
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
            let url = format!("{}/api/{path}?wait={WAIT_SECONDS}", self.base_url);
            let mut shown = self.ask(self.client.post(url).json(&prompt)).await?;
            // Accepted, and still running when the wait was over.
            while let Some(prompt_id) = shown.get("promptId").and_then(Value::as_str)
                && began.elapsed() < PATIENCE
            {
                let path = format!("conversations/{id}/prompts/{prompt_id}");
                let url = format!("{}/api/{path}?wait={WAIT_SECONDS}", self.base_url);
                let seen = self.ask(self.client.get(url)).await?;
                if seen.get("state").and_then(Value::as_str) != Some("running") {
                    shown = seen;
                }
            }
            prompts.push(began.elapsed());
            if shown.get("state").and_then(Value::as_str) != Some("completed") {
                return Err(BenchError::Prompt(shown.to_string()));
            }
        }
        Ok(prompts)
    }

    async fn ask(&self, request: reqwest::RequestBuilder) -> Result<Value, BenchError> {
        let answer = request.send().await.map_err(io("reach the worker"))?;
        let is_good = answer.status().is_success();
        let text = answer.text().await.map_err(io("read from the worker"))?;
        match serde_json::from_str(&text) {
            Ok(shown) if is_good => Ok(shown),
            _ => Err(BenchError::Prompt(text)),
        }
    }
}
