//! Finds data shared between checkouts: recordings, conformance cases.

use std::path::PathBuf;

/// A file or folder there. `None`, said aloud, where the data is not; with `CI=true` it must be there.
#[expect(clippy::disallowed_methods, reason = "these two variables are all that tests read")]
#[expect(clippy::print_stderr, reason = "whoever runs the tests should know what was passed over")]
pub(crate) fn shared(path: &str) -> Option<PathBuf> {
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
    eprintln!("passed over: {} is missing", found.display());
    None
}
