//! The tool calls of one response, run concurrently under one lease. Each result is committed when
//! it arrives.

use std::future::Future;
use std::sync::{Arc, OnceLock};

use futures_util::FutureExt as _;
use futures_util::future::{BoxFuture, join_all};
use futures_util::stream::{FuturesUnordered, StreamExt as _};
use tokio_util::sync::CancellationToken;

use crate::abort_signal::{self, WRITE_GRACE};
use crate::commit::CommitKind;
use crate::inbox;
use crate::leased_conversation::LeasedConversation;
use crate::spans::ToolCallSpan;
use turnwheel_conversation::phase::{CallState, Phase};
use turnwheel_conversation::request::Effect;
use turnwheel_conversation::step::Input;
use turnwheel_record::error::TurnError;

/// A call that was sent.
pub(crate) struct CallInFlight<'w> {
    pub index: usize,
    /// Absent if the call ended before it was sent.
    pub call_span: Option<Arc<ToolCallSpan<'w>>>,
    pub effect: Effect,
    /// Resolves to the input that reports the outcome, and the actions of hooks after it.
    pub work: BoxFuture<'w, Vec<Input>>,
    pub raw: RawOutcome,
}

/// The input that reports a known outcome without the hooks that still run.
pub(crate) type RawOutcome = Arc<OnceLock<Input>>;

struct RunningCall<'w> {
    index: usize,
    call_span: Option<Arc<ToolCallSpan<'w>>>,
    raw: RawOutcome,
}

struct EndedCall {
    index: usize,
    /// `None`: an abort cancelled the call.
    inputs: Option<Vec<Input>>,
}

/// Running calls, and finished calls that are not yet committed. Dropping it cancels the running
/// calls.
#[derive(Default)]
struct CallBatch<'w> {
    work: FuturesUnordered<BoxFuture<'w, EndedCall>>,
    running: Vec<RunningCall<'w>>,
    finished: Vec<(usize, Vec<Input>)>,
    /// Cancelled when the prompt is aborted: repeatable calls end at once, and writes are notified.
    abort: CancellationToken,
}

impl<'w> CallBatch<'w> {
    fn add(&mut self, call: CallInFlight<'w>) {
        let CallInFlight { index, call_span, effect, work, raw } = call;
        self.running.push(RunningCall { index, call_span, raw });
        let abort = self.abort.clone();
        self.work.push(Box::pin(async move {
            if effect == Effect::Write {
                return EndedCall { index, inputs: Some(work.await) };
            }
            tokio::select! {
                biased;
                inputs = work => EndedCall { index, inputs: Some(inputs) },
                () = abort.cancelled() => EndedCall { index, inputs: None },
            }
        }));
    }

    fn contains(&self, index: usize) -> bool {
        self.running.iter().any(|running| running.index == index)
            || self.finished.iter().any(|(finished, _)| *finished == index)
    }

    fn is_empty(&self) -> bool {
        self.running.is_empty() && self.finished.is_empty()
    }

    fn finish(&mut self, ended: EndedCall) {
        // A cancelled call stays in `running`: it did not finish.
        let EndedCall { index, inputs: Some(inputs) } = ended else { return };
        self.running.retain(|running| running.index != index);
        self.finished.push((index, inputs));
    }

    /// Signals the abort to all calls, and waits for those that finish by themselves.
    async fn abort_and_drain(&mut self) {
        self.abort.cancel();
        while let Some(finished) = self.work.next().await {
            self.finish(finished);
        }
    }

    /// Drops the remaining calls.
    fn cancel_remaining(&mut self) {
        for call_span in self.drop_running() {
            call_span.end_aborted();
        }
    }

    /// Drops the running calls. Those whose outcome is known are finished. Returns the spans of the
    /// others.
    fn drop_running(&mut self) -> Vec<Arc<ToolCallSpan<'w>>> {
        self.work = FuturesUnordered::new();
        let mut spans = Vec::new();
        for RunningCall { index, call_span, raw } in self.running.drain(..) {
            match raw.get() {
                Some(input) => self.finished.push((index, vec![input.clone()])),
                None => spans.extend(call_span),
            }
        }
        spans
    }

    /// Waits until one call finishes, and collects all that have finished by then. Returns at once
    /// if none runs.
    async fn wait_for_one(&mut self) {
        if self.finished.is_empty()
            && let Some(finished) = self.work.next().await
        {
            self.finish(finished);
        }
        while let Some(Some(finished)) = self.work.next().now_or_never() {
            self.finish(finished);
        }
    }

    /// Awaits another future while the calls run, so that a commit does not delay them.
    async fn run_alongside<T>(&mut self, other: impl Future<Output = T>) -> T {
        let mut other = Box::pin(other);
        loop {
            tokio::select! {
                biased;
                Some(ended) = self.work.next() => self.finish(ended),
                done = &mut other => return done,
            }
        }
    }

    /// All finished calls, in source order: calls that finish together have no other order.
    fn take_finished(&mut self) -> Vec<(usize, Vec<Input>)> {
        let mut finished = std::mem::take(&mut self.finished);
        finished.sort_by_key(|(index, _)| *index);
        finished
    }

    /// Cancels all running calls and records the error on their spans.
    fn fail_running(&mut self, error: &TurnError) {
        for call_span in self.drop_running() {
            call_span.end(Err(error));
        }
    }
}

impl<'w> LeasedConversation<'w> {
    /// Runs the started calls, and starts further ones as calls finish. Each commit holds a result
    /// and the intents of the calls it makes room for.
    ///
    /// # Errors
    /// Running calls are cancelled. Uncommitted results are stored for the next worker: stop the
    /// delivery.
    pub(crate) async fn run_calls(&mut self) -> Result<(), TurnError> {
        let Some(response) = self.state.response.clone() else { return Ok(()) };
        let mut calls = CallBatch::default();
        let outcome = Box::pin(self.run_batch(&mut calls)).await;
        if let Err(error) = &outcome {
            calls.fail_running(error);
            let (finished, conversation) = (calls.take_finished(), &*self);
            // Actions of hooks are left out: they belong to the commit of the result.
            let inputs = finished.iter().filter_map(|(_, inputs)| inputs.first());
            // Together: each write may wait for the store.
            let writes: Vec<_> =
                inputs.map(|input| conversation.store_late_result(input, &response)).collect();
            join_all(writes).await;
        }
        outcome
    }

    async fn run_batch(&mut self, calls: &mut CallBatch<'w>) -> Result<(), TurnError> {
        let response_seq = self.open_response_seq();
        let mut stopped = std::pin::pin!(abort_signal::wait_for_abort(
            self.services,
            &self.state.key,
            self.state.prompt_id()
        ));
        while response_seq.is_some() && self.open_response_seq() == response_seq {
            let started: Vec<usize> = self.state.head.phase.call_batch().started_calls().collect();
            for index in started {
                if !calls.contains(index) {
                    let abort = calls.abort.clone();
                    let call = calls.run_alongside(Box::pin(self.send_call(index, &abort))).await?;
                    calls.add(call);
                }
            }
            if calls.is_empty() && !self.state.head.phase.call_batch().is_flushing() {
                return Ok(());
            }
            // Renews the lease meanwhile; a lost lease cancels all calls.
            tokio::select! {
                biased;
                () = calls.wait_for_one() => {}
                () = &mut stopped => return Box::pin(self.abort_calls(calls)).await,
                error = self.renew_until_lost() => return Err(error),
            }
            self.services.fail_points.hit("tool.after").await;
            self.progress.record_tools();
            self.commit_finished(calls).await?;
        }
        Ok(())
    }

    /// Handles an abort of the prompt: cancels repeatable calls and gives writes [`WRITE_GRACE`] to
    /// finish.
    async fn abort_calls(&mut self, calls: &mut CallBatch<'w>) -> Result<(), TurnError> {
        tokio::select! {
            biased;
            () = calls.abort_and_drain() => {}
            () = tokio::time::sleep(WRITE_GRACE) => {}
            error = self.renew_until_lost() => return Err(error),
        }
        calls.cancel_remaining();
        self.services.fail_points.hit("tool.after").await;
        calls.finished.sort_by_key(|(index, _)| *index);
        let done = calls.finished.iter().flat_map(|(_, inputs)| inputs.clone()).collect();
        self.commit_abort(done).await?;
        calls.finished.clear();
        Ok(())
    }

    /// Commits the end of a prompt whose calls were cancelled, after the inputs of the finished
    /// calls. The state machine derives the outcome of the others from their declared effects.
    ///
    /// # Errors
    /// The abort was not applied, or the commit failed: stop, and leave the calls to the worker
    /// that takes over. Otherwise the cancelled calls would seem to run and be sent again.
    async fn commit_abort(&mut self, done: Vec<Input>) -> Result<(), TurnError> {
        let prompt = self.state.prompt_id();
        self.refresh_head().await?;
        let read = self.state.read_inbox(self.services).await;
        let mut inbox = read.map_err(|source| self.state.error("read the inbox of", source))?;
        abort_signal::add_abort_decisions(self.services, &self.state.head, &mut inbox);
        let inputs: Vec<Input> = [inbox::inbox_input(&inbox)]
            .into_iter()
            .chain(done)
            .chain([Input::DrainInbox])
            .collect();
        let plan = self.state.plan(self.services, inputs);
        self.commit(CommitKind::ToolResults, plan).await?;
        if self.state.prompt_id() == prompt {
            return Err(self.state.lease_lost());
        }
        Ok(())
    }

    /// `seq` of the response whose calls are open.
    fn open_response_seq(&self) -> Option<u64> {
        if let Phase::Calls { response_seq: response, .. } = self.state.head.phase {
            Some(response)
        } else {
            None
        }
    }

    async fn commit_finished(&mut self, calls: &mut CallBatch<'w>) -> Result<(), TurnError> {
        let finished = calls.take_finished();
        let mut done: Vec<Input> = finished.iter().flat_map(|(_, inputs)| inputs.clone()).collect();
        if done.is_empty() {
            done.push(Input::FlushBufferedResults);
        }
        let committed =
            calls.run_alongside(self.commit_with_inbox(CommitKind::ToolResults, done)).await;
        let is_open = |index: usize| {
            self.state.head.phase.call_batch().calls.get(index).is_some_and(CallState::is_started)
        };
        // One commit may not have had room for all of them.
        calls.finished.extend(finished.into_iter().filter(|(index, _)| is_open(*index)));
        committed
    }
}
