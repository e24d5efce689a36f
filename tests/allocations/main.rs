//! Memory allocations of a durable tool round: unlike times, they do not vary. A binary of its own,
//! because it counts those of the whole process.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

#[path = "../support/tool_rounds.rs"]
mod tool_rounds;

use std::sync::Arc;

use dhat::{Alloc, HeapStats, Profiler};
use turnwheel::testing::store::embedded::EmbeddedStore;

use crate::tool_rounds::{ROUNDS, handle_next, start_rounds};

#[global_allocator]
static ALLOC: Alloc = Alloc;

/// Rounds before the first count: caches are filled, and the trees of the database have grown.
const WARM_UP: usize = 20;
/// Bounds 5 % above the counts of a round of the test build, 1,093 allocations of 298,923 bytes, when
/// each entry had a document of its own; now 1,099 of 310,582. Lower them after an improvement; with
/// bounds of 0 the failure shows the counts.
const ALLOCATIONS_MAX: u64 = 1_148;
const BYTES_MAX: u64 = 313_870;
/// Bound of the most bytes in use at one time. The tables of the tokenizer, which a small conversation
/// does not need, take more.
const PEAK_MAX: usize = 2_000_000;

#[tokio::test]
async fn tool_round_allocates_no_more_than_before() {
    let _profiler = Profiler::builder().testing().build();
    let folder = tempfile::tempdir().unwrap();
    let store = Arc::new(EmbeddedStore::open(folder.path()).unwrap());
    let services = start_rounds(store).await;
    for _ in 0..WARM_UP {
        assert!(handle_next(&services).await);
    }
    let before = HeapStats::get();
    for _ in WARM_UP..ROUNDS {
        assert!(handle_next(&services).await);
    }
    let after = HeapStats::get();
    let peak = after.max_bytes;
    assert!(peak <= PEAK_MAX, "the rounds had {peak} bytes in use, at most {PEAK_MAX}");
    let rounds = (ROUNDS - WARM_UP) as u64;
    let allocations = (after.total_blocks - before.total_blocks) / rounds;
    let bytes = (after.total_bytes - before.total_bytes) / rounds;
    assert!(
        allocations <= ALLOCATIONS_MAX && bytes <= BYTES_MAX,
        "a tool round makes {allocations} allocations of {bytes} bytes, at most {ALLOCATIONS_MAX} of {BYTES_MAX}"
    );
}
