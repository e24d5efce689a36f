//! Data shared between checkouts: recordings, conformance cases.

use std::path::PathBuf;

/// Finds a shared file or folder. If it is missing, prints that and returns `None`; with `CI=true`
/// it must exist.
#[expect(clippy::disallowed_methods, reason = "these two variables are all that tests read")]
#[expect(clippy::print_stderr, reason = "the output of a test run names its skipped data")]
pub(crate) fn find_shared_data(path: &str) -> Option<PathBuf> {
    let root = std::env::var("TURNWHEEL_SHARED").map_or_else(
        |_| PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../shared"),
        PathBuf::from,
    );
    let found = root.join(path);
    if found.exists() {
        return Some(found);
    }
    assert!(
        std::env::var("CI").as_deref() != Ok("true"),
        "{} is missing: set TURNWHEEL_SHARED",
        found.display()
    );
    eprintln!("skipped: {} is missing", found.display());
    None
}
