//! Helpers of tests that need nothing of the product: fuzz tests with corpora, and bounds on time.

pub mod fuzz;
pub mod time_bound;
