//! The open calls of one answer: which may start, which run, and whose result comes next.

use crate::agent::phase::{CallState, CallStatus, Phase};

/// Calls that may run at once, whatever the settings say: what one worker can hold, and a take-over can ask about.
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
    /// Indexes of what is under way, in source order.
    pub fn started(self) -> impl Iterator<Item = usize> + 'a {
        let calls = self.calls.iter().enumerate();
        calls.filter(|(_, call)| call.is_started()).map(|(index, _)| index)
    }

    pub fn is_running(self) -> bool {
        self.calls.iter().any(CallState::is_started)
    }

    /// Ready calls for which nothing has to happen first, in source order. Where calls run one after the other, that is the
    /// first that is not done, or none.
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

    /// The next call to look at, when one more may run. `passed_over`: those up to there were looked at and stay ready.
    pub fn next(self, passed_over: Option<usize>) -> Option<usize> {
        let is_free = self.started().count() < usize::try_from(self.at_once).unwrap_or(1);
        let is_new = |index: &usize| passed_over.is_none_or(|last| *index > last);
        self.startable().find(|index| is_free && is_new(index))
    }

    /// The call whose result is the next one on the path.
    pub fn next_placed(self) -> Option<usize> {
        self.calls.iter().position(|call| !call.is_placed())
    }

    /// Whether results that are known only have to be put in their place.
    pub fn is_placing(self) -> bool {
        !self.calls.is_empty() && self.calls.iter().all(CallState::is_done)
    }

    /// Whether this delivery goes on with it.
    pub fn is_performing(self) -> bool {
        self.is_running() || self.is_placing()
    }

    /// Whether somebody can go on with it now: nobody else has to move first.
    pub fn is_owed(self) -> bool {
        self.is_performing() || self.startable().next().is_some()
    }

    /// Whether every result asks for an end without another answer.
    pub fn terminates(self) -> bool {
        !self.calls.is_empty() && self.calls.iter().all(|call| call.terminates)
    }

    fn is_done(self, index: usize) -> bool {
        self.calls.get(index).is_none_or(CallState::is_done)
    }
}
