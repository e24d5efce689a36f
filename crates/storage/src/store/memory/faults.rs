//! Injected faults of the in-memory store, and their source of randomness.

use turnwheel_platform::ids::fault_plan::FaultPlan;

/// Fault probabilities from 0 to 1, per operation. All are 0 by default.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StoreFaults {
    /// A conflict although the conditions hold; the batch is not applied.
    pub conflict: f64,
    /// The batch is applied and reports a conflict, as if the SDK had sent it twice.
    pub conflict_after: f64,
    /// Throttling: this batch and the operations right after it fail, reads included.
    pub throttled: f64,
    /// Unknown outcome; the batch is not applied.
    pub unavailable_before: f64,
    /// Unknown outcome; the batch is applied if its conditions hold.
    pub unavailable_after: f64,
    /// Unknown outcome; the batch arrives some operations later and is applied if its conditions
    /// still hold.
    pub unavailable_late: f64,
    /// Failed reads, lease requests and lists.
    pub unavailable_reads: f64,
    /// Reads with [`crate::store::Freshness::Any`], and lists of heads, from an older snapshot.
    pub stale_reads: f64,
    /// Pages that end early, or are empty, although more follow.
    pub short_pages: f64,
    /// Yields to other tasks first: varies races under a single-threaded runtime.
    pub yield_to_others: f64,
}

impl StoreFaults {
    /// Every request fails as unavailable, and no batch is applied.
    pub fn unavailable() -> Self {
        Self { unavailable_before: 1.0, unavailable_reads: 1.0, ..Self::default() }
    }
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

/// The source of injected faults.
#[derive(Debug)]
pub(super) enum FaultSource {
    /// A sequence of random numbers from one seed (splitmix64).
    Seeded(u64),
    /// A fault plan, which draws for each site independently.
    Plan(FaultPlan),
}

impl Default for FaultSource {
    fn default() -> Self {
        Self::Seeded(0)
    }
}

fn next_random(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut mixed = *state;
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

/// Returns a number from 0 to just under 1.
fn random_fraction(state: &mut u64) -> f64 {
    f64::from(u32::try_from(next_random(state) >> 32).unwrap_or(0)) / f64::from(u32::MAX).next_up()
}

impl FaultSource {
    /// True if the fault occurs. Draws no number at probability 0, so that a disabled fault does
    /// not change the others.
    pub(super) fn should_inject(&mut self, what: &'static str, at: &str, probability: f64) -> bool {
        match self {
            Self::Seeded(state) => probability > 0.0 && random_fraction(state) < probability,
            Self::Plan(plan) => plan.should_inject(what, at, probability),
        }
    }

    /// Like `should_inject`, for events that are no faults.
    pub(super) fn should_happen(&mut self, what: &'static str, at: &str, probability: f64) -> bool {
        match self {
            Self::Seeded(_) => self.should_inject(what, at, probability),
            Self::Plan(plan) => probability > 0.0 && plan.should_happen(what, at, probability),
        }
    }

    /// Returns a number from 0 to `bound - 1`.
    pub(super) fn random_below(&mut self, what: &'static str, at: &str, bound: u64) -> u64 {
        match self {
            Self::Seeded(state) => next_random(state) % bound.max(1),
            Self::Plan(plan) => plan.fault_size(what, at, bound),
        }
    }

    pub(super) fn write_fault(&mut self, at: &str, faults: StoreFaults) -> Option<WriteFault> {
        let table = [
            (faults.conflict, "a batch met a conflict", WriteFault::Conflict),
            (
                faults.conflict_after,
                "a batch was written and sent twice",
                WriteFault::ConflictAfter,
            ),
            (faults.throttled, "the store was throttled", WriteFault::Throttled),
            (faults.unavailable_before, "a batch was lost", WriteFault::UnavailableBefore),
            (
                faults.unavailable_after,
                "a batch was written and its response lost",
                WriteFault::UnavailableAfter,
            ),
            (faults.unavailable_late, DELAYED_BATCH, WriteFault::UnavailableLate),
        ];
        let happens =
            table.into_iter().find(|(share, what, _)| self.should_inject(what, at, *share));
        happens.map(|(_, _, fault)| fault)
    }
}

/// Fault name of a batch with unknown outcome that arrives later.
pub(super) const DELAYED_BATCH: &str = "a batch came late";
