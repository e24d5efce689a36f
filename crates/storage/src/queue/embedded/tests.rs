//! Tests of the queues of `dev`: restarts, disk errors and listener latency.

use std::sync::Arc;
use std::time::Duration;

use tempfile::TempDir;

use super::super::{NOTIFY, PROMPTS, TURNS, contract};
use super::*;
use turnwheel_platform::clock::{ManualClock, SystemClock, Timestamp};
use turnwheel_platform::ids::{SeededIds, SystemIds};

const HIDE: Duration = Duration::from_secs(30);
const NOW: Duration = Duration::ZERO;

/// A clock on Tokio's time, which a paused runtime advances when all tasks wait.
#[derive(Debug)]
struct TokioClock(tokio::time::Instant);

impl Clock for TokioClock {
    fn now(&self) -> Timestamp {
        Timestamp(1_000_000).plus(self.monotonic())
    }

    fn monotonic(&self) -> Duration {
        self.0.elapsed()
    }
}

struct TestQueueFolder {
    folder: TempDir,
    clock: Arc<ManualClock>,
    ids: Arc<SystemIds>,
}

impl TestQueueFolder {
    fn new() -> Self {
        Self {
            folder: tempfile::tempdir().unwrap(),
            clock: Arc::new(ManualClock::new(Timestamp(1_000_000))),
            ids: Arc::new(SystemIds),
        }
    }

    fn file(&self) -> std::path::PathBuf {
        self.folder.path().join("data/queue.sqlite")
    }

    async fn try_open(&self) -> Result<EmbeddedQueue, QueueError> {
        let (clock, ids) = (Arc::clone(&self.clock), Arc::clone(&self.ids));
        EmbeddedQueue::open(&self.file(), &[PROMPTS, "agent-prompts-poison"], clock, ids).await
    }

    async fn open(&self) -> EmbeddedQueue {
        self.try_open().await.unwrap()
    }
}

fn source_text(error: &QueueError) -> String {
    std::error::Error::source(error).unwrap().to_string()
}

#[tokio::test]
async fn embedded_queue_passes_contract() {
    let place = TestQueueFolder::new();
    let queue = place.open().await;
    let pass = |span| {
        place.clock.advance(span);
        contract::time_passed()
    };
    contract::assert_queue_contract(&queue, TURNS, &pass).await;
    contract::assert_queue_contract(&queue, PROMPTS, &pass).await;
}

#[tokio::test]
async fn prompts_survive_restart_and_nudges_do_not() {
    let place = TestQueueFolder::new();
    let queue = place.open().await;
    for number in 0..3 {
        queue.send(PROMPTS, format!("prompt {number}"), NOW).await.unwrap();
        queue.send(TURNS, format!("nudge {number}"), NOW).await.unwrap();
    }
    let first = queue.receive(PROMPTS, 1, HIDE).await.unwrap().remove(0);
    queue.delete(PROMPTS, &first.id, &first.pop_receipt).await.unwrap();
    drop(queue);

    let queue = place.open().await;
    assert_eq!(queue.length(TURNS).await.unwrap(), 0);
    let texts: Vec<_> = queue
        .receive(PROMPTS, 10, HIDE)
        .await
        .unwrap()
        .into_iter()
        .map(|message| message.text)
        .collect();
    assert_eq!(texts, ["prompt 1", "prompt 2"]);
}

/// A test cannot cut the power; it checks that SQLite syncs each commit.
#[tokio::test]
async fn queue_file_syncs_each_commit() {
    let queue = TestQueueFolder::new().open().await;
    assert_eq!(queue.disk.pragma("synchronous"), "Integer(2)");
    assert_eq!(queue.disk.pragma("journal_mode"), "Text(\"wal\")");
}

#[tokio::test]
async fn committed_messages_survive_killed_process() {
    let place = TestQueueFolder::new();
    let queue = place.open().await;
    for text in ["done", "owed"] {
        queue.send(PROMPTS, text.to_owned(), NOW).await.unwrap();
    }
    let done = queue.receive(PROMPTS, 1, HIDE).await.unwrap().remove(0);
    queue.delete(PROMPTS, &done.id, &done.pop_receipt).await.unwrap();
    // A killed process leaves its files unclosed.
    let after = TestQueueFolder::new();
    let folder = after.file().parent().unwrap().to_owned();
    std::fs::create_dir_all(&folder).unwrap();
    for entry in std::fs::read_dir(place.file().parent().unwrap()).unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), folder.join(entry.file_name())).unwrap();
    }
    let queue = after.open().await;
    let log = std::fs::metadata(after.file().with_extension("sqlite-wal")).unwrap();
    assert_eq!(log.len(), 0, "the log has no text of the deleted message");
    let all = queue.receive(PROMPTS, 10, HIDE).await.unwrap();
    let texts: Vec<_> = all.iter().map(|message| message.text.as_str()).collect();
    assert_eq!(texts, ["owed"]);
}

#[tokio::test]
async fn received_message_is_visible_after_restart() {
    let place = TestQueueFolder::new();
    let queue = place.open().await;
    queue.send(PROMPTS, "held".to_owned(), NOW).await.unwrap();
    let before = queue.receive(PROMPTS, 1, HIDE).await.unwrap().remove(0);
    drop(queue);

    let queue = place.open().await;
    for receipt in [before.pop_receipt.as_str(), ""] {
        let late = queue.delete(PROMPTS, &before.id, receipt).await;
        assert!(matches!(late, Err(QueueError::Gone)), "the message is not received yet");
    }
    let after = queue.receive(PROMPTS, 1, HIDE).await.unwrap().remove(0);
    assert_eq!((after.id, after.dequeue_count), (before.id, 2));
    assert_eq!(after.inserted_at, before.inserted_at);
}

#[tokio::test]
async fn delay_continues_after_restart_and_clock_change() {
    let mut place = TestQueueFolder::new();
    let queue = place.open().await;
    queue.send(PROMPTS, "later".to_owned(), Duration::from_mins(10)).await.unwrap();
    drop(queue);

    place.clock.advance(Duration::from_mins(4));
    let queue = place.open().await;
    place.clock.advance(Duration::from_mins(5));
    assert!(queue.receive(PROMPTS, 1, HIDE).await.unwrap().is_empty());
    place.clock.advance(Duration::from_mins(1));
    assert_eq!(queue.receive(PROMPTS, 1, HIDE).await.unwrap().len(), 1);
    drop(queue);

    place.clock = Arc::new(ManualClock::new(Timestamp(0)));
    let queue = place.open().await;
    place.clock.advance(Duration::from_mins(10));
    assert_eq!(queue.receive(PROMPTS, 1, HIDE).await.unwrap().len(), 1);
}

/// The number under `extensions.queues` of host.json.
fn host_setting(name: &str) -> usize {
    let file: serde_json::Value =
        serde_json::from_str(include_str!("../../../../../host.json")).unwrap();
    let number = file["extensions"]["queues"][name].as_u64().unwrap();
    usize::try_from(number).unwrap()
}

#[tokio::test]
async fn turn_of_another_owner_waits_for_no_other_turn() {
    let place = TestQueueFolder::new();
    let queue = place.open().await;
    let nudge = |user: &str, number: u32| {
        format!(r#"{{"tenant":"t","user":"{user}","conversationId":"{number}"}}"#)
    };
    for number in 0..10_000 {
        queue.send(TURNS, nudge("ann", number), NOW).await.unwrap();
    }
    let (batch, threshold) = (host_setting("batchSize"), host_setting("newBatchThreshold"));
    let mut running = 0;
    for user in ["ann", "bob", "cy", "dan", "eve", "fay", "gil", "hal", "ivy", "joe"] {
        if user != "ann" {
            queue.send(TURNS, nudge(user, 0), NOW).await.unwrap();
        }
        let mut has_started = false;
        loop {
            assert!(running <= threshold, "the host receives nothing while {running} turns run");
            let received = queue.receive(TURNS, batch, HIDE).await.unwrap();
            if received.is_empty() {
                break;
            }
            has_started |= received.iter().any(|message| message.text == nudge(user, 0));
            running += received.len();
        }
        assert!(has_started, "{user}");
    }
}

#[tokio::test]
async fn turn_of_another_owner_is_the_next_when_one_ends() {
    let place = TestQueueFolder::new();
    let queue = place.open().await;
    let nudge = |user: u32, number: u32| {
        format!(r#"{{"tenant":"t","user":"u{user}","conversationId":"{number}"}}"#)
    };
    for number in 0..1_000 {
        queue.send(TURNS, nudge(number % 2, number), NOW).await.unwrap();
    }
    for _ in 0..4 {
        queue.receive(TURNS, 32, HIDE).await.unwrap();
    }
    queue.send(TURNS, nudge(2, 0), NOW).await.unwrap();
    // Two owners with waiting turns were served before.
    let next = queue.receive(TURNS, 3, HIDE).await.unwrap();
    assert!(next.iter().any(|message| message.text == nudge(2, 0)), "{next:?}");
}

#[tokio::test]
async fn messages_of_formerly_durable_queue_are_deleted() {
    let place = TestQueueFolder::new();
    let queue = place.open().await;
    queue.send(PROMPTS, "once".to_owned(), NOW).await.unwrap();
    drop(queue);
    let ids = Arc::new(SeededIds::new(2));
    let queue = EmbeddedQueue::open(
        &place.file(),
        &[],
        Arc::<ManualClock>::clone(&place.clock),
        Arc::<SeededIds>::clone(&ids),
    )
    .await
    .unwrap();
    let message = queue.receive(PROMPTS, 1, HIDE).await.unwrap().remove(0);
    queue.delete(PROMPTS, &message.id, &message.pop_receipt).await.unwrap();
    drop(queue);
    assert_eq!(place.open().await.length(PROMPTS).await.unwrap(), 0);
}

#[tokio::test]
async fn deleted_messages_leave_no_text_in_the_files() {
    let place = TestQueueFolder::new();
    let queue = place.open().await;
    queue.send(PROMPTS, "a very particular prompt ".repeat(400), NOW).await.unwrap();
    let message = queue.receive(PROMPTS, 1, HIDE).await.unwrap().remove(0);
    queue.delete(PROMPTS, &message.id, &message.pop_receipt).await.unwrap();
    assert_no_text_is_left(&place);
}

fn assert_no_text_is_left(place: &TestQueueFolder) {
    for file in std::fs::read_dir(place.file().parent().unwrap()).unwrap() {
        let path = file.unwrap().path();
        let bytes = std::fs::read(&path).unwrap();
        assert!(!bytes.windows(15).any(|part| part == b"very particular"), "{}", path.display());
    }
}

#[tokio::test]
async fn texts_of_a_backlog_leave_the_log_with_a_later_deletion() {
    let place = TestQueueFolder::new();
    let queue = place.open().await;
    for text in ["a very particular prompt ".repeat(400), "two".to_owned(), "three".to_owned()] {
        queue.send(PROMPTS, text, NOW).await.unwrap();
    }
    for _ in 0..2 {
        let message = queue.receive(PROMPTS, 1, HIDE).await.unwrap().remove(0);
        queue.delete(PROMPTS, &message.id, &message.pop_receipt).await.unwrap();
        place.clock.advance(LOG_AGE_MAX);
    }
    assert_eq!(queue.length(PROMPTS).await.unwrap(), 1);
    assert_no_text_is_left(&place);
}

#[tokio::test]
async fn log_is_emptied_with_the_last_message() {
    let place = TestQueueFolder::new();
    let queue = place.open().await;
    for text in ["one", "two", "three"] {
        queue.send(PROMPTS, text.to_owned(), NOW).await.unwrap();
    }
    let log_bytes = || std::fs::metadata(place.file().with_extension("sqlite-wal")).unwrap().len();
    for (left, message) in [2, 1, 0].into_iter().zip(queue.receive(PROMPTS, 3, HIDE).await.unwrap())
    {
        queue.delete(PROMPTS, &message.id, &message.pop_receipt).await.unwrap();
        assert_eq!(queue.length(PROMPTS).await.unwrap(), left);
        assert_eq!(log_bytes() == 0, left == 0, "{left} left");
    }
}

#[tokio::test]
async fn unusable_queue_file_is_rejected_with_advice() {
    let place = TestQueueFolder::new();
    let queue = place.open().await;
    let second = place.try_open().await.unwrap_err();
    assert!(source_text(&second).contains("stop the other process"), "{}", source_text(&second));
    drop(queue);

    let connection = rusqlite::Connection::open(place.file()).unwrap();
    connection.execute_batch("PRAGMA user_version = 99").unwrap();
    drop(connection);
    let newer = place.try_open().await.unwrap_err();
    assert!(source_text(&newer).contains("newer version (99"), "{}", source_text(&newer));

    std::fs::write(place.file(), "this was a database once".repeat(100)).unwrap();
    let broken = place.try_open().await.unwrap_err();
    assert!(source_text(&broken).contains("queue.sqlite"), "{}", source_text(&broken));
}

#[tokio::test]
async fn queue_rejects_writes_when_disk_fails() {
    let place = TestQueueFolder::new();
    let queue = place.open().await;
    queue.send(PROMPTS, "kept".to_owned(), NOW).await.unwrap();
    let message = queue.receive(PROMPTS, 1, HIDE).await.unwrap().remove(0);
    queue.disk.fail_writes();
    let refused = queue.send(PROMPTS, "not kept".to_owned(), NOW).await;
    assert!(matches!(refused, Err(QueueError::Unavailable(_))));
    let refused = queue.delete(PROMPTS, &message.id, &message.pop_receipt).await;
    assert!(matches!(refused, Err(QueueError::Unavailable(_))));
    assert_eq!(queue.length(PROMPTS).await.unwrap(), 1, "memory agrees with the file");
    queue.send(TURNS, "a nudge".to_owned(), NOW).await.unwrap();
}

/// Opens a queue in Tokio's paused time, with a listener.
async fn open_with_listener(folder: &TempDir) -> (EmbeddedQueue, watch::Receiver<u64>) {
    let clock = Arc::new(TokioClock(tokio::time::Instant::now()));
    let file = folder.path().join("queue.sqlite");
    let queue = EmbeddedQueue::open(&file, &[PROMPTS], clock, Arc::new(SystemIds)).await.unwrap();
    let mut arrivals = queue.arrivals(TURNS).unwrap();
    assert!(arrivals.has_changed().unwrap(), "a listener polls first");
    arrivals.mark_unchanged();
    (queue, arrivals)
}

/// Waits for a notification and receives. Returns the delay of the message.
async fn measure_lateness(
    queue: &EmbeddedQueue,
    arrivals: &mut watch::Receiver<u64>,
    visible_at: tokio::time::Instant,
) -> Duration {
    loop {
        arrivals.changed().await.unwrap();
        if !queue.receive(TURNS, 1, HIDE).await.unwrap().is_empty() {
            return tokio::time::Instant::now().duration_since(visible_at);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn listener_is_notified_within_20_ms() {
    let folder = tempfile::tempdir().unwrap();
    let (queue, mut arrivals) = open_with_listener(&folder).await;
    let start = tokio::time::Instant::now();
    let soon = Duration::from_millis(20);

    queue.send(TURNS, "now".to_owned(), NOW).await.unwrap();
    assert!(measure_lateness(&queue, &mut arrivals, start).await < soon);
    let visible_again = start + HIDE;

    // The later message first, so that the earlier one must wake the timer.
    queue.send(TURNS, "in 20 s".to_owned(), Duration::from_secs(20)).await.unwrap();
    queue.send(TURNS, "in 10 s".to_owned(), Duration::from_secs(10)).await.unwrap();
    for seconds in [10, 20] {
        let visible_at = start + Duration::from_secs(seconds);
        assert!(measure_lateness(&queue, &mut arrivals, visible_at).await < soon);
    }
    assert!(measure_lateness(&queue, &mut arrivals, visible_again).await < soon);

    let renewed_at = tokio::time::Instant::now();
    queue.send(TURNS, "given back".to_owned(), NOW).await.unwrap();
    let held = queue.receive(TURNS, 1, HIDE).await.unwrap().remove(0);
    arrivals.mark_unchanged();
    queue.renew(TURNS, &held.id, &held.pop_receipt, Duration::from_secs(1)).await.unwrap();
    let visible_at = renewed_at + Duration::from_secs(1);
    assert!(measure_lateness(&queue, &mut arrivals, visible_at).await < soon);
}

#[tokio::test(start_paused = true)]
async fn listener_ignores_messages_of_other_queues() {
    let folder = tempfile::tempdir().unwrap();
    let (queue, arrivals) = open_with_listener(&folder).await;
    queue.send(NOTIFY, "not yours".to_owned(), NOW).await.unwrap();
    queue.send(NOTIFY, "nor this".to_owned(), Duration::from_secs(1)).await.unwrap();
    tokio::time::advance(Duration::from_mins(1)).await;
    assert_eq!(queue.receive(NOTIFY, 10, HIDE).await.unwrap().len(), 2);
    assert!(!arrivals.has_changed().unwrap());
}

#[tokio::test(start_paused = true)]
async fn listener_is_notified_of_delayed_message_after_restart() {
    let folder = tempfile::tempdir().unwrap();
    let (queue, _) = open_with_listener(&folder).await;
    queue.send(PROMPTS, "later".to_owned(), HIDE).await.unwrap();
    drop(queue);
    let (queue, _) = open_with_listener(&folder).await;
    let mut arrivals = queue.arrivals(PROMPTS).unwrap();
    arrivals.mark_unchanged();
    arrivals.changed().await.unwrap();
    assert_eq!(queue.receive(PROMPTS, 1, HIDE).await.unwrap().len(), 1);
}

#[tokio::test]
async fn listener_ends_when_queue_is_dropped() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("queue.sqlite");
    let clock = Arc::new(SystemClock::default());
    let queue = EmbeddedQueue::open(&file, &[], clock, Arc::new(SystemIds)).await.unwrap();
    let mut arrivals = queue.arrivals(TURNS).unwrap();
    arrivals.mark_unchanged();
    drop(queue);
    assert!(arrivals.changed().await.is_err());
}
