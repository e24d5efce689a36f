//! Changes of the memory: kills, lost responses, concurrent writers, bounds, and the deletion of a user.

use std::sync::Arc;

use serde_json::{Value, json};

use super::compaction::handle_until_idle;
use super::memory::{PROJECT, notes_of, remember, remembers_then_looks, texts};
use super::parallel_calls::result_texts;
use super::test_env::{PauseFailPoint, TestEnv, kill_at, owner, text};
use turnwheel_commands::delete_user::delete_user_data;
use turnwheel_commands::knowledge::Knowledge;
use turnwheel_commands::memory::{MemoryTarget, clear_memory, delete_note, replace_memory};
use turnwheel_conversation::memory::{ForgetTarget, MEMORY_BYTES_MAX, Memory, NOTE_CHARS_MAX};
use turnwheel_json::raw::RawJson;
use turnwheel_platform::fail_points::NoFailPoints;
use turnwheel_platform::ids::{EffectId, UserId};
use turnwheel_queries::memory::memory_etag;
use turnwheel_record::contract::{CommandError, Owner};
use turnwheel_record::user_documents::{load_user_documents, user_partition};
use turnwheel_storage::store::memory::StoreFaults;
use turnwheel_storage::store::{DocumentKind, Freshness, Selection};
use turnwheel_tools::memory::{NewNote, UserMemoryStore};

fn forgets(results: usize, _input: &str) -> Vec<Value> {
    let arguments = json!({"text": "likes tea"});
    match results {
        0 => {
            vec![json!({"type": "toolCall", "id": "c1", "name": "forget", "arguments": arguments})]
        }
        _ => vec![text("done")],
    }
}

#[tokio::test(start_paused = true)]
async fn full_memory_refuses_notes_until_one_is_forgotten() {
    let mut env = TestEnv::with_script(1, remembers_then_looks);
    let services = env.new_worker(Arc::new(NoFailPoints));
    let key = TestEnv::key();
    let text = "ü".repeat(NOTE_CHARS_MAX);
    let add = async |number: usize| {
        let effect = EffectId::from_call(&key.conversation_id, "0a1b2c3d", 9, number);
        let note = NewNote { effect: &effect, project: PROJECT, text: &text };
        UserMemoryStore::remember(&Knowledge::new(&services), &key, note).await
    };
    let mut count = 0;
    let reason = loop {
        match add(count).await {
            Ok(()) => count += 1,
            Err(reason) => break reason,
        }
    };
    assert!(reason.contains("at most 65536 are allowed. Forget notes"), "{reason}");
    let partition = user_partition(&owner().tenant, &owner().user);
    let stored = load_user_documents(&*services.store, &partition).await.unwrap().memories;
    let memory = &stored[PROJECT].document;
    let bytes = RawJson::from_value(memory).text().len();
    assert_eq!(memory.items.len(), count, "nothing is lost");
    let note = bytes / count;
    assert!(bytes <= MEMORY_BYTES_MAX && bytes + note > MEMORY_BYTES_MAX, "{count} notes, {bytes}");
    let oldest = ForgetTarget::Id(memory.items[0].id.clone());
    assert_eq!(
        UserMemoryStore::forget(&Knowledge::new(&services), &key, PROJECT, &oldest).await,
        Ok(1)
    );
    assert_eq!(add(count).await, Ok(()));
}

#[tokio::test(start_paused = true)]
async fn kill_around_the_write_leaves_one_note() {
    for fail_point in ["tool.before", "user.write", "user.written", "result.before"] {
        let mut env = TestEnv::with_script(33, remembers_then_looks);
        env.set_memory("auto", false);
        let pause = Arc::new(PauseFailPoint::new(fail_point));
        let victim = env.new_worker(pause.clone());
        env.send_prompt(&victim).await;
        kill_at(victim, &pause).await;
        env.run_until_idle().await;
        let services = env.new_worker(Arc::new(NoFailPoints));
        assert_eq!(texts(&services).await, ["likes tea"], "{fail_point}");
        assert_eq!(result_texts(&env).await[0], "Remembered.", "{fail_point}");
    }
}

#[tokio::test(start_paused = true)]
async fn kill_around_forget_removes_no_other_note() {
    for fail_point in ["user.write", "user.written", "result.before"] {
        let mut env = TestEnv::with_script(33, forgets);
        env.set_memory("auto", false);
        let pause = Arc::new(PauseFailPoint::new(fail_point));
        let services = env.new_worker(Arc::new(NoFailPoints));
        for (number, note) in ["likes tea", "likes tea with milk"].into_iter().enumerate() {
            remember(&services, &TestEnv::key(), number, note).await;
        }
        let victim = env.new_worker(pause.clone());
        env.send_prompt(&victim).await;
        kill_at(victim, &pause).await;
        env.run_until_idle().await;
        assert_eq!(texts(&services).await, ["likes tea with milk"], "{fail_point}");
        assert_eq!(result_texts(&env).await, ["Forgotten."], "{fail_point}");
    }
}

#[tokio::test(start_paused = true)]
async fn lost_response_of_the_write_leaves_one_note() {
    for faults in [
        StoreFaults { unavailable_after: 0.5, ..Default::default() },
        StoreFaults { conflict_after: 0.5, ..Default::default() },
    ] {
        let mut env = TestEnv::with_script(7, remembers_then_looks);
        let services = env.new_worker(Arc::new(NoFailPoints));
        env.store.set_faults(faults);
        for number in 0..20 {
            let key = TestEnv::key();
            let effect = EffectId::from_call(&key.conversation_id, "0a1b2c3d", 9, number);
            let text = format!("note {number}");
            let note = || NewNote { effect: &effect, project: PROJECT, text: &text };
            while UserMemoryStore::remember(&Knowledge::new(&services), &key, note()).await.is_err()
            {
            }
        }
        env.store.set_faults(StoreFaults::default());
        assert_eq!(texts(&services).await.len(), 20);
    }
}

#[tokio::test(start_paused = true)]
async fn concurrent_writes_of_two_conversations_keep_both_notes() {
    let mut env = TestEnv::with_script(1, remembers_then_looks);
    let pause = Arc::new(PauseFailPoint::new("user.write"));
    let (slow, quick) = (env.new_worker(pause.clone()), env.new_worker(Arc::new(NoFailPoints)));
    let other = owner().conversation_key("other");
    let key = TestEnv::key();
    tokio::join!(remember(&slow, &key, 0, "slow"), async {
        pause.reached.notified().await;
        remember(&quick, &other, 0, "quick").await;
        pause.resume.notify_one();
    });
    assert_eq!(texts(&quick).await, ["quick", "slow"]);
}

#[tokio::test(start_paused = true)]
async fn user_replaces_and_deletes_notes_with_versions() {
    let mut env = TestEnv::with_script(1, remembers_then_looks);
    let services = env.new_worker(Arc::new(NoFailPoints));
    remember(&services, &TestEnv::key(), 0, "likes tea").await;
    let known = notes_of(&services, &owner(), PROJECT).await[0].clone();
    let owner = owner();
    let change = |items: Value| serde_json::from_value(json!({"items": items})).unwrap();
    let stale = |etag: &str| etag == "\"old\"";
    let target = MemoryTarget { owner: &owner, project: PROJECT, is_wanted: &stale };
    let refused = replace_memory(&services, &target, change(json!([{"text": "x"}]))).await;
    assert!(matches!(refused, Err(CommandError::PreconditionFailed { .. })), "{refused:?}");
    let refused = clear_memory(&services, &target).await;
    assert!(matches!(refused, Err(CommandError::PreconditionFailed { .. })), "{refused:?}");
    let current = memory_etag(&Memory { items: vec![known.clone()], ..Memory::default() });
    let is_current = |etag: &str| etag == current;
    let target = MemoryTarget { is_wanted: &is_current, ..target };
    let items = json!([{"id": known.id, "text": "likes tea"}, {"text": "# two\nlines"}]);
    let stored = replace_memory(&services, &target, change(items)).await.unwrap();
    assert_eq!(stored.items[0], known, "an unchanged note keeps its author and time");
    assert_eq!(stored.items[1].text, "two lines");
    let any = |_: &str| true;
    let target = MemoryTarget { is_wanted: &any, ..target };
    let invalid = json!([{"text": ""}, {"id": "a", "text": "b"}, {"id": "a", "text": "c"}]);
    let refused = replace_memory(&services, &target, change(invalid)).await.unwrap_err();
    let CommandError::Invalid(errors) = refused else { panic!("{refused:?}") };
    let pointers: Vec<&str> = errors.iter().map(|error| error.pointer.as_str()).collect();
    assert_eq!(pointers, ["/items/0/text", "/items/2/id"]);
    let text = "x".repeat(490);
    let many: Vec<Value> = (0..200).map(|_| json!({"text": text})).collect();
    let refused = replace_memory(&services, &target, change(json!(many))).await;
    assert!(matches!(refused, Err(CommandError::TooLarge(_))), "{refused:?}");
    for project in (0..15).map(|number| format!("p{number}")) {
        let target = MemoryTarget { project: &project, ..target };
        replace_memory(&services, &target, change(json!([{"text": "x"}]))).await.unwrap();
    }
    let target = MemoryTarget { project: "p15", ..target };
    let refused = replace_memory(&services, &target, change(json!([{"text": "x"}]))).await;
    assert!(matches!(refused, Err(CommandError::TooLarge(_))), "{refused:?}");
    delete_note(&services, &owner, &known.id).await.unwrap();
    assert_eq!(texts(&services).await, ["two lines"]);
    let target = MemoryTarget { project: PROJECT, ..target };
    clear_memory(&services, &target).await.unwrap();
    clear_memory(&services, &target).await.unwrap();
    assert_eq!(texts(&services).await.len(), 0);
}

#[tokio::test(start_paused = true)]
async fn deleted_user_leaves_nothing_even_after_a_kill() {
    for fail_point in ["user.conversation", "admission.purged", "user.documents", "none"] {
        let mut env = TestEnv::with_script(5, remembers_then_looks);
        env.set_memory("auto", false);
        let services = env.new_worker(Arc::new(NoFailPoints));
        env.send_prompt(&services).await;
        handle_until_idle(&env, &services).await;
        let eve = Owner { user: UserId::new("eve"), ..owner() };
        remember(&services, &eve.conversation_key("c"), 0, "stays").await;
        let pause = Arc::new(PauseFailPoint::new(fail_point));
        let victim = env.new_worker(pause.clone());
        let owner = owner();
        tokio::select! {
            biased;
            () = pause.reached.notified() => {}
            deleted = delete_user_data(&victim, &owner) => assert!(deleted.unwrap().is_complete),
        }
        let deletion = delete_user_data(&services, &owner).await.unwrap();
        assert!(deletion.is_complete, "{fail_point}");
        let again = delete_user_data(&services, &owner).await.unwrap();
        assert_eq!((again.conversations, again.documents), (0, 0), "{fail_point}");
        let partition = user_partition(&owner.tenant, &owner.user);
        let all = Selection::all(DocumentKind::Scope);
        let left = services.store.select(&partition, &all, Freshness::Latest).await.unwrap();
        assert_eq!(left.len(), 0, "{fail_point}");
        assert_eq!(notes_of(&services, &eve, PROJECT).await.len(), 1, "{fail_point}");
        env.run_sweep().await;
        assert_eq!(env.entries().await.len(), 0, "{fail_point}");
    }
}
