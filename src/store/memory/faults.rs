//! What goes wrong, how often, and the dice that decide it.

/// Probabilities from 0 to 1, per operation. None by default.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Faults {
    /// Refused though its conditions held; not applied.
    pub conflict: f64,
    /// Applied, and answered as a conflict: the driver sent it twice and saw the second answer.
    pub conflict_after: f64,
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
    UnavailableBefore,
    UnavailableAfter,
    UnavailableLate,
}

/// Numbers of one seed: splitmix64.
#[derive(Debug, Default)]
pub(super) struct Dice(u64);

impl Dice {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// From 0 to just under 1.
    fn roll(&mut self) -> f64 {
        f64::from(u32::try_from(self.next() >> 32).unwrap_or(0)) / f64::from(u32::MAX).next_up()
    }

    /// Rolls only when there is something to decide, so that a fault that is off moves no other.
    pub(super) fn says(&mut self, probability: f64) -> bool {
        probability > 0.0 && self.roll() < probability
    }

    /// From 0 to `bound - 1`.
    pub(super) fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound.max(1)
    }

    pub(super) fn write_fault(&mut self, faults: Faults) -> Option<WriteFault> {
        let table = [
            (faults.conflict, WriteFault::Conflict),
            (faults.conflict_after, WriteFault::ConflictAfter),
            (faults.unavailable_before, WriteFault::UnavailableBefore),
            (faults.unavailable_after, WriteFault::UnavailableAfter),
            (faults.unavailable_late, WriteFault::UnavailableLate),
        ];
        table.into_iter().find(|(probability, _)| self.says(*probability)).map(|(_, fault)| fault)
    }
}
