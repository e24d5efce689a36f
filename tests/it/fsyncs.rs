//! Disk cost of a durable tool round, as exact counts: unlike times, they do not vary.

use std::sync::Arc;

use turnwheel::testing::store::embedded::{DATABASE_FILE, EmbeddedStore};

use crate::support::tool_rounds::{ROUNDS, handle_next, start_rounds};

/// Number of fsyncs of a checkpoint, measured with strace.
const SYNCS_PER_CHECKPOINT: u64 = 3;

#[tokio::test]
async fn tool_round_costs_two_fsyncs_and_constant_bytes() {
    let folder = tempfile::tempdir().unwrap();
    let store = Arc::new(EmbeddedStore::open(folder.path()).unwrap());
    let services = start_rounds(Arc::clone(&store)).await;
    let (commits, checkpoints) = (store.commit_count(), store.checkpoint_count());
    let log = folder.path().join(format!("{DATABASE_FILE}-wal"));
    let log_bytes = || std::fs::metadata(&log).unwrap().len();
    let mut bytes = vec![log_bytes()];
    let mut deliveries = 0;
    while handle_next(&services).await {
        deliveries += 1;
        if deliveries % (ROUNDS / 2) == 0 {
            bytes.push(log_bytes());
        }
    }
    assert_eq!(deliveries, ROUNDS + 1, "one message is one turn");
    // The commits of the prompt and of the last response are not tool rounds.
    let commits = store.commit_count() - commits - 2;
    let syncs = commits + SYNCS_PER_CHECKPOINT * (store.checkpoint_count() - checkpoints);
    let rounds = ROUNDS as u64;
    assert!(10 * syncs <= 22 * rounds, "{syncs} fsyncs in {rounds} tool rounds");
    assert_eq!(commits, 2 * rounds, "the response with its intent, and the result");
    assert_eq!(store.checkpoint_count(), checkpoints, "without a checkpoint the log alone grows");
    let (first, second) = (bytes[1] - bytes[0], bytes[2] - bytes[1]);
    // B-trees grow by a level at the start. Writing the history again would double the bytes.
    assert!(second * 4 <= first * 5, "{first} bytes, then {second} for as many rounds");
}
