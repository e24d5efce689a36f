//! Conversations that require a newer version: an older worker neither processes, changes nor
//! misreads them.

use std::sync::Arc;

use serde_json::{Value, json};

use super::bench::{Bench, idempotency};
use crate::agent::head::READER;
use crate::agent::raw::RawJson;
use crate::store::{ConversationStore as _, Document, HEAD_ID, Partition, Stored, Write};
use crate::turn::admission::Refusal;
use crate::turn::admission::patch::patch_conversation;
use crate::turn::delivery::handle;
use crate::turn::views::load;
use crate::turn::{Limits, NoProbe, World};

fn stored(bench: &Bench) -> Stored {
    bench.store.newest(&Partition::Conversation(Bench::key()), HEAD_ID).unwrap()
}

/// Returns a conversation with a pending model call, whose head a newer version has changed.
async fn stage(change: impl Fn(&mut Value)) -> (Bench, World) {
    let mut bench = Bench::new(1);
    let world = bench.worker(Arc::new(NoProbe));
    bench.ask(&world).await;
    let Stored { document, etag } = stored(&bench);
    let mut body = document.body.value();
    body["minReader"] = json!(READER + 1);
    change(&mut body);
    let document = Document { body: RawJson::of(&body), ..document };
    let write = Write::Replace(document, Some(etag));
    bench.store.write(&Partition::Conversation(Bench::key()), vec![write]).await.unwrap();
    (bench, world)
}

/// An older worker and an older client's patch leave the head unchanged.
async fn touch(bench: &Bench, world: &World) {
    let before = stored(bench).etag;
    handle(world, &Bench::nudge()).await.expect("a failed delivery would be repeated");
    let patch = json!({"name": "mine"});
    let key = idempotency("patch");
    let patched =
        patch_conversation(world, &Bench::key(), patch.as_object().unwrap(), &key, |_| true).await;
    let Err(refusal @ Refusal::Unavailable { .. }) = patched else { panic!("{patched:?}") };
    assert!(refusal.to_string().contains("newer version"), "{refusal}");
    assert_eq!(stored(bench).etag, before);
}

#[tokio::test(start_paused = true)]
async fn an_older_worker_leaves_alone_what_it_could_read() {
    let (bench, world) = stage(|_| ()).await;
    touch(&bench, &world).await;
    let limits = Limits { reader: READER + 1, ..world.limits };
    let newer = World { limits, ..world };
    handle(&newer, &Bench::nudge()).await.unwrap();
    assert_eq!(bench.head().await.unwrap().answers, 1, "a newer worker processes it");
}

#[tokio::test(start_paused = true)]
async fn an_older_worker_leaves_alone_what_it_cannot_even_read() {
    let changes: [fn(&mut Value); 2] = [
        |head| head["phase"] = json!({"owed": "something new"}),
        |head| head["settings"] = json!({"aSettingOfLater": 1}),
    ];
    for change in changes {
        let (bench, world) = stage(change).await;
        touch(&bench, &world).await;
        let shown = load::head(&world, &Bench::key()).await;
        assert!(matches!(shown, Err(Refusal::Unavailable { .. })), "{shown:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn what_nobody_can_read_and_no_newer_version_wrote_is_told_as_corrupt() {
    let unreadable = |head: &mut Value| {
        head["minReader"] = json!(READER);
        head["phase"] = json!({"owed": "something else"});
    };
    let (_bench, world) = stage(unreadable).await;
    handle(&world, &Bench::nudge()).await.unwrap_err();
    let shown = load::head(&world, &Bench::key()).await;
    assert!(matches!(shown, Err(Refusal::Corrupt(_))), "{shown:?}");
}
