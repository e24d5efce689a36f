//! Azurite instance that all integration tests of this process share.

use std::io::Write as _;
use std::path::Path;

use tokio::sync::OnceCell;
use turnwheel::testing::azurite::{Azurite, AzuriteOptions};

/// Ends with this process: a static runs no destructor, but its pipe closes. Use your own prefix.
pub(crate) async fn shared_azurite() -> &'static Azurite {
    static SHARED: OnceCell<Azurite> = OnceCell::const_new();
    let install = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/azurite");
    let options = AzuriteOptions { install, ..AzuriteOptions::default() };
    // Written past the capture of test output, so that the reason of the wait is visible.
    let log_line = |line: &str| drop(writeln!(std::io::stderr(), "{line}"));
    SHARED.get_or_try_init(|| Azurite::start(options, log_line)).await.unwrap()
}
