//! The cost of a check: its steps, and the memory of its failures.

use super::SHORT_STEPS_MAX;
use super::failures::Failures;

/// Times that the validator makes a check again at most, and the unfinished searches from which it
/// reaches them.
const REPETITIONS_MAX: u64 = 64;
const UNFINISHED_MAX: u64 = 6;

/// Number of checks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct CheckCost {
    pub(crate) steps: u64,
    /// Steps of searches that may not be finished. While they are counted, they are not in `steps`.
    pub(super) searches: u64,
    /// Number of these searches. One that is repeated with the same text has the same outcome.
    pub(super) unfinished: u64,
    /// All failures that the check may have.
    pub(super) failures: Failures,
    /// Failures of the largest `anyOf` or `oneOf`, which are one failure.
    pub(super) alternatives: Failures,
    /// Size of the values that a coercion copies, one for each alternative.
    pub(crate) copies: u64,
}

impl CheckCost {
    /// True if the check leaves the threads that serve requests.
    pub(crate) fn is_long(self) -> bool {
        self.repeated_steps().max(self.copies) > SHORT_STEPS_MAX
    }

    /// Memory of all failures.
    pub(crate) fn failure_bytes(self) -> u64 {
        self.failures.bytes.saturating_mul(1 + self.repetitions())
    }

    /// Memory of a check that ends with its first failure.
    pub(crate) fn first_failure_bytes(self) -> u64 {
        // The validator collects all of them if a search is unfinished.
        if self.unfinished > 0 { self.failure_bytes() } else { self.alternatives.bytes }
    }

    /// Number of times that the validator makes the check again if each search is unfinished: once
    /// for each combination of the outcomes of the first ones, from one of them to all.
    fn repetitions(self) -> u64 {
        let combinations = (2_u64 << self.unfinished.min(UNFINISHED_MAX)) - 2;
        combinations.min(REPETITIONS_MAX)
    }

    pub(super) fn with_searches(self) -> Self {
        Self { steps: self.steps.saturating_add(self.searches), ..self }
    }

    /// The steps with those of repetitions, which do not repeat unfinished searches.
    pub(super) fn repeated_steps(self) -> u64 {
        let repeated = self.steps.saturating_sub(self.searches);
        self.steps.saturating_add(repeated.saturating_mul(self.repetitions()))
    }

    pub(super) fn is_over(self, steps_max: u64) -> bool {
        self.steps.saturating_add(self.searches) > steps_max
    }

    pub(super) fn add(&mut self, other: Self) {
        self.steps = self.steps.saturating_add(other.steps);
        self.searches = self.searches.saturating_add(other.searches);
        self.unfinished = self.unfinished.saturating_add(other.unfinished);
        self.failures.add(other.failures);
        self.alternatives = self.alternatives.max(other.alternatives);
        self.copies = self.copies.saturating_add(other.copies);
    }

    /// Multiplies the steps. Checks that are repeated have the same failures.
    pub(super) fn multiply(&mut self, times: u64) {
        self.steps = self.steps.saturating_mul(times);
        self.searches = self.searches.saturating_mul(times);
    }

    pub(super) fn max(self, other: Self) -> Self {
        Self {
            steps: self.steps.max(other.steps),
            searches: self.searches.max(other.searches),
            unfinished: self.unfinished.max(other.unfinished),
            failures: self.failures.max(other.failures),
            alternatives: self.alternatives.max(other.alternatives),
            copies: self.copies.max(other.copies),
        }
    }

    /// The cost of a check that only decides about another one.
    pub(super) fn without_failures(self) -> Self {
        let none = Failures::default();
        Self { failures: none, alternatives: none, ..self }
    }

    /// Adds a part of that many bytes to the paths of each failure.
    pub(super) fn lengthen_paths(&mut self, part: usize) {
        self.failures.lengthen(part);
        self.alternatives.lengthen(part);
    }
}
