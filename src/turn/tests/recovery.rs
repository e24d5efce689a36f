//! Deferred work: purges, notifications, start-up after a crash.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::bench::{Bench, PauseProbe, text};
use crate::agent::entry::PromptState;
use crate::agent::inbox::{Admission, InboxBody, InboxItem};
use crate::agent::notice::Notice;
use crate::agent::phase::Phase;
use crate::agent::raw::RawJson;
use crate::clock::Clock as _;
use crate::ids::{ConversationKey, InputId};
use crate::store::{ConversationStore as _, Document, HEAD_ID, Kind, Partition, Write};
use crate::turn::admission::delete::{TOMBSTONE, delete_conversation};
use crate::turn::delivery::handle;
use crate::turn::notify::{Herald, Told, notify};
use crate::turn::{Limits, NoProbe, record, recount};

fn says_hello(_results: usize, _said: &str) -> Vec<Value> {
    vec![text("hello")]
}

fn partition() -> Partition {
    Partition::Conversation(Bench::key())
}

#[tokio::test(start_paused = true)]
async fn what_comes_after_a_deletion_is_purged_and_the_tombstone_ends() {
    let mut bench = Bench::with(1, says_hello);
    let world = bench.worker(Arc::new(NoProbe));
    bench.ask(&world).await;
    bench.run().await;
    delete_conversation(&world, &Bench::key()).await.unwrap();
    // A worker that lost its lease to the deletion stores its result a moment later.
    let item = InboxItem {
        input_id: InputId::new("late-1"),
        accepted_at: bench.clock.now(),
        admission: Admission::default(),
        traceparent: None,
        body: serde_json::from_value::<InboxBody>(json!({"abort": {}})).unwrap(),
    };
    let orphan = record::inbox_document(&item, Some(item.accepted_at));
    bench.store.write(&partition(), vec![Write::Create(orphan)]).await.unwrap();
    tokio::time::sleep(Duration::from_mins(2)).await;
    bench.sweep().await;
    while bench.deliver().await {}
    let left: Vec<_> = bench.store.documents(&partition());
    let left: Vec<&str> = left.iter().map(|stored| stored.document.id.as_str()).collect();
    assert_eq!(left, [HEAD_ID]);
    tokio::time::sleep(TOMBSTONE).await;
    bench.sweep().await;
    while bench.deliver().await {}
    assert!(bench.store.documents(&partition()).is_empty(), "the id can be used again");
}

#[tokio::test(start_paused = true)]
async fn a_conversation_that_cannot_be_read_does_not_keep_the_others_from_starting() {
    let mut bench = Bench::with(2, says_hello);
    let world = bench.worker(Arc::new(NoProbe));
    bench.ask(&world).await;
    let broken = Partition::Conversation(super::bench::owner().key("broken"));
    let head = Document {
        id: HEAD_ID.to_owned(),
        kind: Kind::Head,
        body: RawJson::of(&json!({"phase": "unheard of"})),
        due: Some(bench.clock.now()),
        created_at: Some(bench.clock.now()),
        state: Some("running".to_owned()),
        ttl: None,
    };
    bench.store.write(&broken, vec![Write::Create(head)]).await.unwrap();
    recount::start_up(&world).await.unwrap();
    bench.run().await;
    assert_eq!(bench.head().await.unwrap().phase, Phase::Idle);
}

/// Responds slowly, with a retryable failure.
#[derive(Debug, Default)]
struct Deaf {
    told: Mutex<u32>,
}

#[async_trait]
impl Herald for Deaf {
    async fn tell(&self, _key: &ConversationKey, _notice: &Notice) -> Told {
        *self.told.lock().unwrap() += 1;
        tokio::time::sleep(Duration::from_secs(15)).await;
        Told::NotNow("deaf".to_owned())
    }
}

/// Records the ids of the notifications sent to it.
#[derive(Debug, Default)]
struct Scribe {
    ids: Mutex<Vec<String>>,
}

#[async_trait]
impl Herald for Scribe {
    async fn tell(&self, _key: &ConversationKey, notice: &Notice) -> Told {
        self.ids.lock().unwrap().push(notice.id.clone());
        Told::Taken
    }
}

fn notice(number: u32, bench: &Bench) -> Write {
    let notice = Notice {
        id: format!("nt_{number}"),
        kind: "prompt.completed".to_owned(),
        at: bench.clock.now(),
        data: RawJson::of(&json!({})),
        text: "A prompt is complete.".to_owned(),
        attempts: 0,
        settled_at: None,
        gave_up: false,
    };
    Write::Create(record::notice_document(&notice, Some(notice.at)))
}

#[tokio::test(start_paused = true)]
async fn a_receiver_that_is_down_does_not_hold_a_delivery_beyond_its_time() {
    let mut bench = Bench::with(3, says_hello);
    let deaf = Arc::new(Deaf::default());
    let mut world = bench.worker(Arc::new(NoProbe));
    world.herald = Some(deaf.clone());
    let notices = (0..40).map(|number| notice(number, &bench)).collect();
    bench.store.write(&partition(), notices).await.unwrap();
    let began = Instant::now();
    notify(&world, &Bench::nudge()).await.unwrap();
    assert!(began.elapsed() < world.limits.turn, "{:?}", began.elapsed());
    notify(&world, &Bench::nudge()).await.unwrap();
    notify(&world, &Bench::nudge()).await.unwrap();
    assert!(*deaf.told.lock().unwrap() >= 30, "each notification is tried");
}

#[tokio::test(start_paused = true)]
async fn retry_found_by_message_and_sweep_at_once_is_sent_once() {
    let mut bench = Bench::with(3, says_hello);
    let deaf = Arc::new(Deaf::default());
    let mut world = bench.worker(Arc::new(NoProbe));
    world.herald = Some(deaf.clone());
    let first = notice(1, &bench);
    bench.store.write(&partition(), vec![first]).await.unwrap();
    let nudge = Bench::nudge();
    notify(&world, &nudge).await.unwrap();
    tokio::time::sleep(Duration::from_mins(1)).await;
    let (one, other) = tokio::join!(notify(&world, &nudge), notify(&world, &nudge));
    assert!(one.is_ok() && other.is_ok());
    assert_eq!(*deaf.told.lock().unwrap(), 2, "the first try and one retry");
}

#[tokio::test(start_paused = true)]
async fn notices_of_a_webhook_that_was_taken_away_wait_for_one_and_ring_less_and_less() {
    let mut bench = Bench::with(4, says_hello);
    let mut world = bench.worker(Arc::new(NoProbe));
    let first = notice(1, &bench);
    bench.store.write(&partition(), vec![first]).await.unwrap();
    notify(&world, &Bench::nudge()).await.unwrap();
    let due = bench.store.documents(&partition())[0].document.due.unwrap();
    assert!(due > bench.clock.now(), "the retry is deferred");
    let scribe = Arc::new(Scribe::default());
    world.herald = Some(scribe.clone());
    tokio::time::sleep(Duration::from_mins(1)).await;
    notify(&world, &Bench::nudge()).await.unwrap();
    notify(&world, &Bench::nudge()).await.unwrap();
    assert_eq!(*scribe.ids.lock().unwrap(), ["nt_1"], "sent once");
}

#[tokio::test(start_paused = true)]
async fn a_worker_that_stood_still_until_its_turn_was_over_fails_no_prompt() {
    let mut bench = Bench::new(1);
    let client = bench.worker(Arc::new(NoProbe));
    bench.ask(&client).await;
    let pause = Arc::new(PauseProbe::new("model.before"));
    let worker = bench.worker(pause.clone());
    let nudge = Bench::nudge();
    let (handled, ()) = tokio::join!(handle(&worker, &nudge), async {
        pause.reached.notified().await;
        tokio::time::sleep(Limits::default().turn + Duration::from_secs(10)).await;
        pause.go.notify_one();
    });
    handled.unwrap();
    bench.run().await;
    let head = bench.head().await.unwrap();
    assert_eq!(head.prompts.last().unwrap().state, PromptState::Completed, "{:#?}", bench.story);
}
