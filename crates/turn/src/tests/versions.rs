//! Conversations that require a newer version: an older worker neither processes, changes nor
//! misreads them.

use std::sync::Arc;

use serde_json::{Value, json};

use super::test_env::{PauseFailPoint, TestEnv, idempotency};
use crate::delivery::handle;
use turnwheel_commands::patch::patch_conversation;
use turnwheel_conversation::head::READER_VERSION;
use turnwheel_json::raw::RawJson;
use turnwheel_platform::fail_points::NoFailPoints;
use turnwheel_record::contract::CommandError;
use turnwheel_record::load;
use turnwheel_record::services::{Limits, Services};
use turnwheel_storage::store::{
    ConversationStore as _, Document, HEAD_ID, Partition, StoredDocument, Write,
};

fn stored_head(env: &TestEnv) -> StoredDocument {
    env.store.read_newest(&Partition::Conversation(TestEnv::key()), HEAD_ID).unwrap()
}

/// Returns a conversation with a pending model call, whose head a newer version has changed.
async fn env_with_newer_head(change: impl Fn(&mut Value)) -> (TestEnv, Services) {
    let mut env = TestEnv::new(1);
    let services = env.new_worker(Arc::new(NoFailPoints));
    env.send_prompt(&services).await;
    write_head_as_newer(&env, change).await;
    (env, services)
}

async fn write_head_as_newer(env: &TestEnv, change: impl Fn(&mut Value)) {
    let StoredDocument { document, etag } = stored_head(env);
    let mut body = document.body.to_value();
    body["minReader"] = json!(READER_VERSION + 1);
    change(&mut body);
    let document = Document { body: RawJson::from_value(&body), ..document };
    let write = Write::Replace(document, Some(etag));
    env.store.write(&Partition::Conversation(TestEnv::key()), vec![write]).await.unwrap();
}

/// An older worker and an older client's patch leave the head unchanged.
async fn check_head_stays_unchanged(env: &TestEnv, services: &Services) {
    let before = stored_head(env).etag;
    handle(services, &TestEnv::nudge()).await.expect("a failed delivery would be repeated");
    let patch = json!({"name": "mine"});
    let key = idempotency("patch");
    let patched =
        patch_conversation(services, &TestEnv::key(), patch.as_object().unwrap(), &key, |_| true)
            .await;
    let Err(refusal @ CommandError::Unavailable { .. }) = patched else { panic!("{patched:?}") };
    assert!(refusal.to_string().contains("newer version"), "{refusal}");
    assert_eq!(stored_head(env).etag, before);
}

#[tokio::test(start_paused = true)]
async fn older_worker_skips_readable_newer_conversation() {
    let (env, services) = env_with_newer_head(|_| ()).await;
    check_head_stays_unchanged(&env, &services).await;
    let limits = Limits { reader_version: READER_VERSION + 1, ..services.limits };
    let newer = Services { limits, ..services };
    handle(&newer, &TestEnv::nudge()).await.unwrap();
    assert_eq!(env.head().await.unwrap().response_count, 1, "a newer worker processes it");
}

#[tokio::test(start_paused = true)]
async fn older_worker_skips_unreadable_newer_conversation() {
    let changes: [fn(&mut Value); 2] = [
        |head| head["phase"] = json!({"owed": "something new"}),
        |head| head["settings"] = json!({"aSettingOfLater": 1}),
    ];
    for change in changes {
        let (env, services) = env_with_newer_head(change).await;
        check_head_stays_unchanged(&env, &services).await;
        let shown = load::head(&services, &TestEnv::key()).await;
        assert!(matches!(shown, Err(CommandError::Unavailable { .. })), "{shown:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn unreadable_head_of_current_version_is_corrupt() {
    let unreadable = |head: &mut Value| {
        head["minReader"] = json!(READER_VERSION);
        head["phase"] = json!({"owed": "something else"});
    };
    let (_bench, services) = env_with_newer_head(unreadable).await;
    handle(&services, &TestEnv::nudge()).await.unwrap_err();
    let shown = load::head(&services, &TestEnv::key()).await;
    assert!(matches!(shown, Err(CommandError::Corrupt(_))), "{shown:?}");
}

#[tokio::test(start_paused = true)]
async fn older_worker_discards_its_turn_after_a_write_of_a_newer_version() {
    let mut env = TestEnv::new(1);
    let pause = Arc::new(PauseFailPoint::new("model.after"));
    let older = env.new_worker(pause.clone());
    env.send_prompt(&older).await;
    let nudge = TestEnv::nudge();
    let (handled, before) = tokio::join!(handle(&older, &nudge), async {
        pause.reached.notified().await;
        write_head_as_newer(&env, |_| ()).await;
        pause.resume.notify_one();
        stored_head(&env).etag
    });
    assert_eq!(stored_head(&env).etag, before, "{handled:?}");
}
