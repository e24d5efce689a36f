//! The tool calls of one response, run concurrently under one lease. Each result is committed when
//! it arrives.

use std::future::Future;
use std::sync::Arc;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use futures_util::stream::{FuturesUnordered, StreamExt as _};
use tokio_util::sync::CancellationToken;

use crate::agent::phase::{CallState, Phase};
use crate::agent::request::Effect;
use crate::agent::step::Input;
use crate::turn::delivery::TurnError;
use crate::turn::hold::Hold;
use crate::turn::spans::Calling;
use crate::turn::stopping::{self, GRACE};

/// A call that was sent.
pub(super) struct Running<'w> {
    pub(super) index: usize,
    /// Absent if the call ended before it was sent.
    pub(super) calling: Option<Arc<Calling<'w>>>,
    pub(super) effect: Effect,
    /// Resolves to the input that reports the outcome.
    pub(super) work: BoxFuture<'w, Input>,
}

/// Running calls, and finished calls that are not yet committed. Dropping it cancels the running
/// calls.
#[derive(Default)]
struct Calls<'w> {
    /// Resolves to `None` if an abort cancelled the call.
    work: FuturesUnordered<BoxFuture<'w, (usize, Option<Input>)>>,
    running: Vec<(usize, Option<Arc<Calling<'w>>>)>,
    ended: Vec<(usize, Input)>,
    /// Cancelled when the prompt is aborted: repeatable calls end at once, and writes are notified.
    stop: CancellationToken,
}

impl<'w> Calls<'w> {
    fn add(&mut self, call: Running<'w>) {
        let Running { index, calling, effect, work } = call;
        self.running.push((index, calling));
        let stop = self.stop.clone();
        self.work.push(Box::pin(async move {
            if effect == Effect::Write {
                return (index, Some(work.await));
            }
            tokio::select! {
                biased;
                ended = work => (index, Some(ended)),
                () = stop.cancelled() => (index, None),
            }
        }));
    }

    fn has(&self, index: usize) -> bool {
        self.running.iter().any(|(running, _)| *running == index)
            || self.ended.iter().any(|(ended, _)| *ended == index)
    }

    fn is_empty(&self) -> bool {
        self.running.is_empty() && self.ended.is_empty()
    }

    fn end(&mut self, (index, ended): (usize, Option<Input>)) {
        // A cancelled call stays in `running`: it did not finish.
        let Some(ended) = ended else { return };
        self.running.retain(|(running, _)| *running != index);
        self.ended.push((index, ended));
    }

    /// Signals the abort to all calls, and waits for those that finish by themselves.
    async fn run_out(&mut self) {
        self.stop.cancel();
        while let Some(ended) = self.work.next().await {
            self.end(ended);
        }
    }

    /// Drops the remaining calls.
    fn cut(&mut self) {
        self.work = FuturesUnordered::new();
        for calling in self.running.drain(..).filter_map(|(_, calling)| calling) {
            calling.cut();
        }
    }

    /// Waits until one call finishes, and collects all that have finished by then. Returns at once
    /// if none runs.
    async fn wait(&mut self) {
        if self.ended.is_empty()
            && let Some(ended) = self.work.next().await
        {
            self.end(ended);
        }
        while let Some(Some(ended)) = self.work.next().now_or_never() {
            self.end(ended);
        }
    }

    /// Awaits another future while the calls run, so that a commit does not delay them.
    async fn beside<T>(&mut self, other: impl Future<Output = T>) -> T {
        let mut other = Box::pin(other);
        loop {
            tokio::select! {
                biased;
                Some(ended) = self.work.next() => self.end(ended),
                done = &mut other => return done,
            }
        }
    }

    /// All finished calls, in source order: calls that finish together have no other order.
    fn take_ended(&mut self) -> Vec<(usize, Input)> {
        let mut ended = std::mem::take(&mut self.ended);
        ended.sort_by_key(|(index, _)| *index);
        ended
    }

    /// Cancels all running calls and records the error on their spans.
    fn stop(&mut self, why: &TurnError) {
        self.work = FuturesUnordered::new();
        for calling in self.running.drain(..).filter_map(|(_, calling)| calling) {
            calling.end(Err(why));
        }
    }
}

impl<'w> Hold<'w> {
    /// Runs the started calls, and starts further ones as calls finish. Each commit holds a result
    /// and the intents of the calls it makes room for.
    ///
    /// # Errors
    /// Running calls are cancelled. Uncommitted results are stored for the next worker: stop the
    /// delivery.
    pub(super) async fn run_calls(&mut self) -> Result<(), TurnError> {
        let Some(answer) = self.answer.clone() else { return Ok(()) };
        let mut calls = Calls::default();
        let outcome = Box::pin(self.run_all(&mut calls)).await;
        if let Err(error) = &outcome {
            calls.stop(error);
            for (_, ended) in calls.take_ended() {
                self.keep_late(&ended, &answer).await;
            }
        }
        outcome
    }

    async fn run_all(&mut self, calls: &mut Calls<'w>) -> Result<(), TurnError> {
        let of = self.open_seq();
        let mut stopped = std::pin::pin!(stopping::comes(self.world, &self.key, self.prompt_id()));
        while of.is_some() && self.open_seq() == of {
            let started: Vec<usize> = self.head.phase.batch().started().collect();
            for index in started {
                if !calls.has(index) {
                    let stop = calls.stop.clone();
                    let call = calls.beside(self.send(index, &stop)).await?;
                    calls.add(call);
                }
            }
            if calls.is_empty() && !self.head.phase.batch().is_placing() {
                return Ok(());
            }
            // Renews the lease meanwhile; a lost lease cancels all calls.
            tokio::select! {
                biased;
                () = calls.wait() => {}
                () = &mut stopped => return self.stop_calls(calls).await,
                error = self.keep() => return Err(error),
            }
            self.world.probe.reached("tool.after").await;
            self.has_run_tools = true;
            self.commit_ended(calls).await?;
        }
        Ok(())
    }

    /// Handles an abort of the prompt: cancels repeatable calls and gives writes [`WRITE_GRACE`] to
    /// finish.
    async fn stop_calls(&mut self, calls: &mut Calls<'w>) -> Result<(), TurnError> {
        tokio::select! {
            biased;
            () = calls.run_out() => {}
            () = tokio::time::sleep(GRACE) => {}
            error = self.keep() => return Err(error),
        }
        calls.cut();
        self.world.probe.reached("tool.after").await;
        calls.ended.sort_by_key(|(index, _)| *index);
        let done = calls.ended.iter().map(|(_, input)| input.clone()).collect();
        self.commit_stop(done).await?;
        calls.ended.clear();
        Ok(())
    }

    /// `seq` of the response whose calls are open.
    fn open_seq(&self) -> Option<u64> {
        if let Phase::Calls { answer, .. } = self.head.phase { Some(answer) } else { None }
    }

    async fn commit_ended(&mut self, calls: &mut Calls<'w>) -> Result<(), TurnError> {
        let ended = calls.take_ended();
        let mut done: Vec<Input> = ended.iter().map(|(_, input)| input.clone()).collect();
        if done.is_empty() {
            done.push(Input::Placing);
        }
        let committed = calls.beside(self.commit_done("result", done)).await;
        let is_open = |index: usize| {
            self.head.phase.batch().calls.get(index).is_some_and(CallState::is_started)
        };
        // One commit may not have had room for all of them.
        calls.ended.extend(ended.into_iter().filter(|(index, _)| is_open(*index)));
        committed
    }
}
