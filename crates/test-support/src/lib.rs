//! Helpers of tests that need nothing of the product: fuzz tests with corpora, log
//! lines, and bounds on time.

pub mod captured_log;
pub mod fuzz;
pub mod time_bound;
