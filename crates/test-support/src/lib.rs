//! Helpers of tests that need nothing of the product: fuzz tests with corpora, log
//! lines, numbers of property tests, and bounds on time.

pub mod captured_log;
pub mod fuzz;
pub mod numbers;
pub mod time_bound;
