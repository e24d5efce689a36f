//! What goes wrong, how often, and the dice that decide it.

use crate::ids::fate::Fate;

/// Probabilities from 0 to 1, per operation. None by default.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Faults {
    /// Refused though its conditions held; not applied.
    pub conflict: f64,
    /// Applied, and answered as a conflict: the driver sent it twice and saw the second answer.
    pub conflict_after: f64,
    /// Too much is asked: this batch and what comes right after it, reads too, are refused.
    pub throttled: f64,
    /// Not applied, and nothing is known.
    pub unavailable_before: f64,
    /// Applied if its conditions held, and nothing is known.
    pub unavailable_after: f64,
    /// Nothing is known, and it arrives some operations later: applied then if its conditions still hold.
    pub unavailable_late: f64,
    /// Reads, claims and lists that are not answered.
    pub unavailable_reads: f64,
    /// Reads with [`crate::store::Freshness::Any`], and lists of heads, that answer from an older snapshot.
    pub stale_reads: f64,
    /// Pages that end early, or are empty, though more follow.
    pub short_pages: f64,
    /// Others run first: moves races about under a single-threaded runtime.
    pub step_aside: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WriteFault {
    Conflict,
    ConflictAfter,
    Throttled,
    UnavailableBefore,
    UnavailableAfter,
    UnavailableLate,
}

/// Who decides.
#[derive(Debug)]
pub(super) enum Dice {
    /// Numbers of one seed, one after the other: splitmix64.
    Numbers(u64),
    /// Each place by itself.
    Fate(Fate),
}

impl Default for Dice {
    fn default() -> Self {
        Self::Numbers(0)
    }
}

fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut mixed = *state;
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

/// From 0 to just under 1.
fn roll(state: &mut u64) -> f64 {
    f64::from(u32::try_from(next(state) >> 32).unwrap_or(0)) / f64::from(u32::MAX).next_up()
}

impl Dice {
    /// Rolls only when there is something to decide, so that a fault that is off moves no other.
    pub(super) fn says(&mut self, what: &'static str, at: &str, probability: f64) -> bool {
        match self {
            Self::Numbers(state) => probability > 0.0 && roll(state) < probability,
            Self::Fate(fate) => fate.says(what, at, probability),
        }
    }

    /// The same for what is no fault.
    pub(super) fn turns(&mut self, what: &'static str, at: &str, probability: f64) -> bool {
        match self {
            Self::Numbers(_) => self.says(what, at, probability),
            Self::Fate(fate) => probability > 0.0 && fate.turns(what, at, probability),
        }
    }

    /// From 0 to `bound - 1`.
    pub(super) fn below(&mut self, what: &'static str, at: &str, bound: u64) -> u64 {
        match self {
            Self::Numbers(state) => next(state) % bound.max(1),
            Self::Fate(fate) => fate.size(what, at, bound),
        }
    }

    pub(super) fn write_fault(&mut self, at: &str, faults: Faults) -> Option<WriteFault> {
        let table = [
            (faults.conflict, "a batch met a conflict", WriteFault::Conflict),
            (
                faults.conflict_after,
                "a batch was written, sent twice, and met itself",
                WriteFault::ConflictAfter,
            ),
            (faults.throttled, "the store was throttled", WriteFault::Throttled),
            (faults.unavailable_before, "a batch was lost", WriteFault::UnavailableBefore),
            (
                faults.unavailable_after,
                "a batch was written and its answer lost",
                WriteFault::UnavailableAfter,
            ),
            (faults.unavailable_late, LATE, WriteFault::UnavailableLate),
        ];
        let happens = table.into_iter().find(|(share, what, _)| self.says(what, at, *share));
        happens.map(|(_, _, fault)| fault)
    }
}

/// A batch of which nothing is known, and that arrives later.
pub(super) const LATE: &str = "a batch came late";
