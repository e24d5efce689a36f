//! Bounds on the time of a test. They hold on an idle machine, so only `.ci/run timing` asserts them.

use std::time::Duration;

/// Prints the figure. Asserts the bound if `TURNWHEEL_TIMING` is set.
#[expect(clippy::disallowed_methods, reason = "the variable selects a stage")]
#[expect(clippy::print_stderr, reason = "the output of a test run has the figure")]
pub fn check_time(subject: &str, took: Duration, max: Duration) {
    eprintln!("{subject}: {took:?}, at most {max:?} on an idle machine");
    let is_idle = std::env::var("TURNWHEEL_TIMING").is_ok();
    assert!(!is_idle || took <= max, "{subject} took {took:?}, more than {max:?}");
}
