//! The open tool calls of one model response: ready, running, and next in source order.

use crate::agent::phase::{CallState, CallStatus, Phase};

/// Upper bound for parallel calls, whatever the settings are: one worker can run so many, and a
/// take-over can request decisions on so many.
pub const AT_ONCE_MAX: u32 = 16;

/// A view of [`Phase::Calls`]; empty in every other phase.
#[derive(Clone, Copy, Debug)]
pub struct Batch<'a> {
    pub calls: &'a [CallState],
    at_once: u32,
}

impl Phase {
    pub fn batch(&self) -> Batch<'_> {
        match self {
            Self::Calls { calls, at_once, .. } => Batch { calls, at_once: *at_once },
            Self::Idle | Self::Model { .. } | Self::Summary { .. } | Self::Deleted => {
                Batch { calls: &[], at_once: 1 }
            }
        }
    }
}

impl<'a> Batch<'a> {
    /// Indexes of the running calls, in source order.
    pub fn started(self) -> impl Iterator<Item = usize> + 'a {
        let calls = self.calls.iter().enumerate();
        calls.filter(|(_, call)| call.is_started()).map(|(index, _)| index)
    }

    pub fn is_running(self) -> bool {
        self.calls.iter().any(CallState::is_started)
    }

    /// Ready calls whose prerequisites are done, in source order. With a concurrency of 1 that is
    /// the first call that is not done, or none.
    pub fn startable(self) -> impl Iterator<Item = usize> + 'a {
        let first_open = self.calls.iter().position(|call| !call.is_done());
        let calls = self.calls.iter().enumerate();
        calls
            .filter(move |(index, call)| {
                call.status == CallStatus::Ready
                    && (self.at_once > 1 || Some(*index) == first_open)
                    && call.behind.is_none_or(|earlier| self.is_done(earlier))
            })
            .map(|(index, _)| index)
    }

    /// The next call to check, if one more may run. `skipped_until`: calls up to this index were
    /// checked and stay ready.
    pub fn next(self, passed_over: Option<usize>) -> Option<usize> {
        let is_free = self.started().count() < usize::try_from(self.at_once).unwrap_or(1);
        let is_new = |index: &usize| passed_over.is_none_or(|last| *index > last);
        self.startable().find(|index| is_free && is_new(index))
    }

    /// Index of the first call whose result is not on the path.
    pub fn next_placed(self) -> Option<usize> {
        self.calls.iter().position(|call| !call.is_placed())
    }

    /// True if every call is done and only buffered results are left to append.
    pub fn is_placing(self) -> bool {
        !self.calls.is_empty() && self.calls.iter().all(CallState::is_done)
    }

    /// True if the current delivery continues this batch.
    pub fn is_performing(self) -> bool {
        self.is_running() || self.is_placing()
    }

    /// True if a worker can continue the batch without waiting for a decision or another
    /// conversation.
    pub fn is_owed(self) -> bool {
        self.is_performing() || self.startable().next().is_some()
    }

    /// True if every result requests the end of the run without another model response.
    pub fn terminates(self) -> bool {
        !self.calls.is_empty() && self.calls.iter().all(|call| call.terminates)
    }

    fn is_done(self, index: usize) -> bool {
        self.calls.get(index).is_none_or(CallState::is_done)
    }
}
