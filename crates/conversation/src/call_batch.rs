//! The open tool calls of one model response: ready, running, and next in source order.

use crate::phase::{CallState, CallStatus, Phase};
use crate::request::Effect;

/// A view of [`Phase::Calls`]; empty in every other phase.
#[derive(Clone, Copy, Debug)]
pub struct CallBatch<'a> {
    pub calls: &'a [CallState],
    concurrency: u32,
}

impl Phase {
    pub fn call_batch(&self) -> CallBatch<'_> {
        match self {
            Self::Calls { calls, concurrency: at_once, .. } => {
                CallBatch { calls, concurrency: *at_once }
            }
            Self::Idle | Self::Model { .. } | Self::Summary { .. } | Self::Deleted => {
                CallBatch { calls: &[], concurrency: 1 }
            }
        }
    }
}

impl<'a> CallBatch<'a> {
    /// Indexes of the running calls, in source order.
    pub fn started_calls(self) -> impl Iterator<Item = usize> + 'a {
        let calls = self.calls.iter().enumerate();
        calls.filter(|(_, call)| call.is_started()).map(|(index, _)| index)
    }

    /// True if a call runs whose lost response an approver has to settle.
    pub fn has_running_write(self) -> bool {
        let is_write = |call: &CallState| {
            matches!(call.status, CallStatus::Started { effect: Effect::Write, .. })
        };
        self.calls.iter().any(is_write)
    }

    pub fn is_running(self) -> bool {
        self.calls.iter().any(CallState::is_started)
    }

    /// Ready calls whose prerequisites are done, in source order. With a concurrency of 1 that is
    /// the first call that is not done, or none.
    pub(crate) fn startable_calls(self) -> impl Iterator<Item = usize> + 'a {
        let first_open = self.calls.iter().position(|call| !call.is_done());
        let calls = self.calls.iter().enumerate();
        calls
            .filter(move |(index, call)| {
                call.status == CallStatus::Ready
                    && (self.concurrency > 1 || Some(*index) == first_open)
                    && call.depends_on.is_none_or(|earlier| self.is_done(earlier))
            })
            .map(|(index, _)| index)
    }

    /// The next call to check, if one more may run. `skipped_until`: calls up to this index were
    /// checked and stay ready.
    pub fn next_startable(self, skipped_until: Option<usize>) -> Option<usize> {
        let is_free = self.started_calls().count() < usize::try_from(self.concurrency).unwrap_or(1);
        let is_new = |index: &usize| skipped_until.is_none_or(|last| *index > last);
        self.startable_calls().find(|index| is_free && is_new(index))
    }

    /// Index of the first call whose result is not on the path.
    pub(crate) fn next_in_order(self) -> Option<usize> {
        self.calls.iter().position(|call| !call.is_on_path())
    }

    /// True if every call is done and only buffered results are left to append.
    pub fn is_flushing(self) -> bool {
        !self.calls.is_empty() && self.calls.iter().all(CallState::is_done)
    }

    /// True if the current delivery continues this batch.
    pub fn is_in_progress(self) -> bool {
        self.is_running() || self.is_flushing()
    }

    /// True if a worker can continue the batch without waiting for a decision or another
    /// conversation.
    pub fn has_pending_work(self) -> bool {
        self.is_in_progress() || self.startable_calls().next().is_some()
    }

    /// True if every result requests the end of the run without another model response.
    pub(crate) fn should_terminate(self) -> bool {
        !self.calls.is_empty() && self.calls.iter().all(|call| call.should_terminate)
    }

    fn is_done(self, index: usize) -> bool {
        self.calls.get(index).is_none_or(CallState::is_done)
    }
}
