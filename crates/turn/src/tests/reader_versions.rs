//! The reader version of heads: each writer computes it, and an older worker leaves a head that it
//! does not support.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use super::test_env::{PauseFailPoint, TestEnv, call, idempotency, owner, text};
use crate::delivery::handle;
use turnwheel_commands::compact::{CompactRequest, compact};
use turnwheel_commands::conversation::{NewConversation, create_conversation};
use turnwheel_commands::delete::delete_conversation;
use turnwheel_commands::patch::patch_conversation;
use turnwheel_json::raw::RawJson;
use turnwheel_platform::fail_points::NoFailPoints;
use turnwheel_platform::ids::ConversationKey;
use turnwheel_record::contract::CommandError;
use turnwheel_record::documents;
use turnwheel_record::services::{Limits, Services};
use turnwheel_storage::store::{
    ConversationStore as _, Document, HEAD_ID, Partition, StoredDocument, Write,
};

fn looks_twice(results: usize, _input: &str) -> Vec<Value> {
    if results < 2 { vec![call(&format!("c{results}"), "look", 0)] } else { vec![text("done")] }
}

/// Checks each stored version of the head. Returns the highest reader version.
fn check_heads(env: &TestEnv, key: &ConversationKey) -> u32 {
    let history = env.store.history(&Partition::Conversation(key.clone()), HEAD_ID);
    let heads = history.iter().flatten().map(|stored| documents::read_head(stored).unwrap());
    let versions = heads.map(|head| {
        assert!(head.min_reader >= head.required_reader(), "{head:#?}");
        head.min_reader
    });
    versions.max().unwrap()
}

/// Changes the stored head as a worker of this version may.
async fn change_head(env: &TestEnv, change: impl Fn(&mut Value)) {
    let partition = Partition::Conversation(TestEnv::key());
    let StoredDocument { document, etag } = env.store.read_newest(&partition, HEAD_ID).unwrap();
    let mut body = document.body.to_value();
    change(&mut body);
    let document = Document { body: RawJson::from_value(&body), ..document };
    env.store.write(&partition, vec![Write::Replace(document, Some(etag))]).await.unwrap();
}

/// The run has a system prompt of its own, as after the hook `before_agent_start`.
async fn set_system_prompt(env: &TestEnv) {
    change_head(env, |head| {
        head["prompt"]["systemPromptSeq"] = json!(1);
        head["minReader"] = json!(5);
    })
    .await;
}

async fn patch(services: &Services, patch: Value) -> Result<(), CommandError> {
    let (key, idempotency) = (TestEnv::key(), idempotency(&format!("patch {patch}")));
    let patch = patch.as_object().unwrap();
    patch_conversation(services, &key, patch, &idempotency, |_| true).await.map(|_| ())
}

/// Runs a delivery that is killed during its model call. The next one counts the death.
async fn kill_during_model_call(env: &mut TestEnv) {
    let pause = Arc::new(PauseFailPoint::new("model.before"));
    let worker = env.new_worker(pause.clone());
    let nudge = TestEnv::nudge();
    pause.kill(handle(&worker, &nudge)).await;
    tokio::time::sleep(Duration::from_secs(66)).await;
}

/// Returns an environment whose first model call died, with a system prompt of the run.
async fn env_with_system_prompt() -> (TestEnv, Services) {
    let mut env = TestEnv::with_script(1, looks_twice);
    let services = env.new_worker(Arc::new(NoFailPoints));
    env.send_prompt(&services).await;
    kill_during_model_call(&mut env).await;
    set_system_prompt(&env).await;
    (env, services)
}

#[tokio::test(start_paused = true)]
async fn every_head_writer_sets_the_required_reader() {
    // First prompt, patch, take-overs, turns.
    let (mut env, services) = env_with_system_prompt().await;
    patch(&services, json!({"settings": {"budget": {"conversation": {"tokens": 1_000_000}}}}))
        .await
        .unwrap();
    // The second death makes the step suspect.
    kill_during_model_call(&mut env).await;
    env.run_until_idle().await;
    assert_eq!(check_heads(&env, &TestEnv::key()), 5);
    let head = env.head().await.unwrap();
    assert_eq!((head.prompt, head.min_reader), (None, 2), "a turn lowers it again");
    // Compaction, and deletion during a model call.
    compact(&services, &TestEnv::key(), CompactRequest::default(), &idempotency("compact"))
        .await
        .unwrap();
    env.run_until_idle().await;
    env.queue_prompt(&services, &TestEnv::key(), "again").await.unwrap();
    kill_during_model_call(&mut env).await;
    set_system_prompt(&env).await;
    delete_conversation(&services, &TestEnv::key()).await.unwrap();
    handle(&services, &TestEnv::nudge()).await.unwrap();
    check_heads(&env, &TestEnv::key());
    // Creation and import.
    let settings = json!({"budget": {"conversation": {"tokens": 9}}});
    for (id, messages) in [
        ("new", None),
        ("imported", Some(json!({"role": "user", "content": "hi", "timestamp": 0}))),
    ] {
        let request = NewConversation {
            id: Some(id.to_owned()),
            settings: serde_json::from_str(&settings.to_string()).unwrap(),
            messages: messages.map(|message| vec![RawJson::from_value(&message)]),
            ..NewConversation::default()
        };
        create_conversation(&services, &owner(), request, &idempotency(id)).await.unwrap();
        assert_eq!(check_heads(&env, &owner().conversation_key(id)), 2, "{id}");
    }
}

#[tokio::test(start_paused = true)]
async fn version_4_leaves_heads_with_a_system_prompt() {
    let (mut env, services) = env_with_system_prompt().await;
    let limits = Limits { reader_version: 4, ..services.limits };
    let older = Services { limits, ..env.new_worker(Arc::new(NoFailPoints)) };
    let before = env.head().await.unwrap();
    handle(&older, &TestEnv::nudge()).await.expect("a failed delivery would be repeated");
    let refused = patch(&older, json!({"name": "mine"})).await;
    assert!(matches!(refused, Err(CommandError::Unavailable { .. })), "{refused:?}");
    assert_eq!(env.head().await.unwrap(), before);
    env.run_until_idle().await;
    assert!(env.is_idle().await, "a newer worker processes it");
}
