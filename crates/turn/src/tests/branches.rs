//! Moves of the leaf: the source's case, and what belongs to the conversation instead of a branch.

mod random;
mod summaries;

use std::sync::Arc;

use serde_json::json;

use super::test_env::{TestEnv, idempotency};
use crate::invariants::{self, IdleConversation};
use turnwheel_commands::append_entries::append_entries;
use turnwheel_commands::conversation::{NewConversation, create_conversation};
use turnwheel_commands::insert::insert_prompt;
use turnwheel_commands::label::{LabelRequest, set_label};
use turnwheel_commands::leaf::{LeafRequest, move_leaf};
use turnwheel_commands::patch::patch_conversation;
use turnwheel_conversation::branch::left_behind;
use turnwheel_conversation::entry::{Entry, EntryBody, MessageEntry};
use turnwheel_conversation::message::Message;
use turnwheel_conversation::path::path_to_leaf;
use turnwheel_conversation::projection;
use turnwheel_json::raw::RawJson;
use turnwheel_platform::fail_points::NoFailPoints;
use turnwheel_record::contract::{CommandError, Owner};
use turnwheel_record::services::Services;

impl TestEnv {
    /// Creates conversation `c` without entries.
    async fn empty_conversation(&mut self) -> Services {
        let services = self.new_worker(Arc::new(NoFailPoints));
        let request = NewConversation { id: Some("c".to_owned()), ..NewConversation::default() };
        let owner = Owner::from_key(&Self::key());
        create_conversation(&services, &owner, request, &idempotency("new")).await.unwrap();
        services
    }

    async fn path(&self) -> Vec<Arc<Entry>> {
        let entries: Vec<_> = self.entries().await.into_iter().map(Arc::new).collect();
        path_to_leaf(&entries, self.head().await.unwrap().leaf_id.as_ref())
    }

    /// Roles and texts of the messages at the leaf.
    async fn context(&self) -> Vec<String> {
        let path = self.path().await;
        projection::project_messages(&path)
            .iter()
            .map(|message| match message.as_ref() {
                Message::User(user) => format!("user:{}", user.content.joined_text()),
                Message::Assistant(response) => {
                    format!(
                        "assistant:{}",
                        turnwheel_conversation::content::joined_text(&response.content)
                    )
                }
                Message::BranchSummary(branch) => format!("branchSummary:{}", branch.summary),
                other => other.role(),
            })
            .collect()
    }

    async fn leaf(&self) -> Option<String> {
        self.head().await.unwrap().leaf_id.map(|id| id.to_string())
    }
}

/// Appends a message and returns the id of its entry.
async fn append(env: &TestEnv, services: &Services, role: &str, text: &str) -> String {
    let content = match role {
        "assistant" => json!([{"type": "text", "text": text}]),
        _ => json!(text),
    };
    let message = json!({
        "role": role, "content": content, "api": "a", "provider": "p", "model": "m", "usage": {}, "stopReason": "stop", "timestamp": 1,
    });
    let message = Message::from_raw(RawJson::from_value(&message)).unwrap();
    let body = EntryBody::Message(MessageEntry::new(message));
    append_entries(services, &TestEnv::key(), &[body]).await.unwrap();
    env.leaf().await.unwrap()
}

async fn move_to(
    services: &Services,
    entry_id: Option<&str>,
    summary: Option<&str>,
) -> Result<serde_json::Value, CommandError> {
    let request = LeafRequest {
        entry_id: entry_id.map(ToOwned::to_owned),
        summary: summary.map(ToOwned::to_owned),
        ..LeafRequest::default()
    };
    let key = idempotency(&services.ids.new_id());
    let response = move_leaf(services, &TestEnv::key(), &request, &key).await?;
    Ok(response.body.unwrap().to_value())
}

async fn label(services: &Services, entry_id: &str, label: &str) -> Result<(), CommandError> {
    let request = LabelRequest { label: label.to_owned() };
    let key = idempotency(&services.ids.new_id());
    set_label(services, &TestEnv::key(), entry_id, &request, &key).await.map(drop)
}

/// Case S05 of the sources: entries `i1` to `i7`, summary `s1`.
#[tokio::test(start_paused = true)]
async fn s05_branches_have_the_contexts_of_the_source() {
    let mut env = TestEnv::new(1);
    let services = env.empty_conversation().await;
    let i1 = append(&env, &services, "user", "1").await;
    let i2 = append(&env, &services, "assistant", "2").await;
    append(&env, &services, "user", "3").await;
    let i4 = append(&env, &services, "assistant", "4").await;
    assert_eq!(env.context().await, ["user:1", "assistant:2", "user:3", "assistant:4"]);

    move_to(&services, Some(&i2), None).await.unwrap();
    assert_eq!(env.leaf().await.as_ref(), Some(&i2));
    assert_eq!(env.context().await, ["user:1", "assistant:2"]);
    append(&env, &services, "user", "5").await;
    assert_eq!(env.context().await, ["user:1", "assistant:2", "user:5"]);

    let entries: Vec<Arc<Entry>> = env.entries().await.into_iter().map(Arc::new).collect();
    let of = |leaf: &str| {
        let is_leaf = |entry: &&Arc<Entry>| entry.base.entry_id.as_str() == leaf;
        path_to_leaf(&entries, entries.iter().find(is_leaf).map(|entry| &entry.base.entry_id))
    };
    let (old, new) = (of(&i4), env.path().await);
    let left: Vec<u64> = left_behind(&old, &new).iter().map(|entry| entry.base.seq).collect();
    assert_eq!(left, [3, 4], "from the old leaf back to the common ancestor");

    let moved = move_to(&services, Some(&i2), Some("left branch summary")).await.unwrap();
    assert_eq!(moved["leafId"].as_str(), env.leaf().await.as_deref());
    let summarised = ["user:1", "assistant:2", "branchSummary:left branch summary"];
    assert_eq!(env.context().await, summarised);
    let EntryBody::BranchSummary(summary) = &env.path().await.last().unwrap().body.clone() else {
        panic!("the leaf is a summary")
    };
    assert_eq!(Some(summary.from_id.as_str()), moved["oldLeafId"].as_str(), "the leaf left");
    append(&env, &services, "user", "6").await;
    assert_eq!(env.context().await[..3], summarised);

    label(&services, &i1, "start").await.unwrap();
    label(&services, &i1, " start2 ").await.unwrap();
    let labels = env.head().await.unwrap().labels;
    assert_eq!(labels.into_iter().collect::<Vec<_>>(), [(i1.clone(), "start2".to_owned())]);
    assert_eq!(env.context().await.len(), 4, "labels are silent");

    let moved = move_to(&services, None, None).await.unwrap();
    assert_eq!((&moved["leafId"], env.leaf().await), (&json!(null), None));
    assert_eq!(env.context().await, [""; 0]);
    append(&env, &services, "assistant", "7").await;
    assert_eq!(env.context().await, ["assistant:7"]);
    let roots = env.entries().await;
    assert_eq!(roots.iter().filter(|entry| entry.base.parent_id.is_none()).count(), 2);

    for error in [
        move_to(&services, Some("zzz"), None).await.unwrap_err(),
        move_to(&services, Some("zzz"), Some("text")).await.unwrap_err(),
        label(&services, "zzz", "text").await.unwrap_err(),
        label(&services, "zzz", "").await.unwrap_err(),
    ] {
        assert_eq!(error.to_string(), "Entry zzz not found");
    }
}

#[tokio::test(start_paused = true)]
async fn move_restores_thinking_level_and_counters_stay() {
    let mut env = TestEnv::new(1);
    let services = env.empty_conversation().await;
    let set_level = async |level: &str, services: &Services| {
        let patch = json!({"settings": {"thinkingLevel": level}});
        let key = idempotency(&services.ids.new_id());
        let patch = patch.as_object().unwrap();
        patch_conversation(services, &TestEnv::key(), patch, &key, |_| true).await.unwrap();
    };
    set_level("low", &services).await;
    let low = append(&env, &services, "assistant", "2").await;
    set_level("high", &services).await;
    let high = append(&env, &services, "assistant", "3").await;
    let before = env.head().await.unwrap();
    move_to(&services, Some(&low), None).await.unwrap();
    let after = env.head().await.unwrap();
    let level = |head: &turnwheel_conversation::head::Head| json!(head.settings.thinking_level);
    assert_eq!((level(&before), level(&after)), (json!("high"), json!("low")));
    assert_eq!((after.usage, after.turn, after.seq), (before.usage, before.turn, before.seq));
    move_to(&services, Some(&high), None).await.unwrap();
    assert_eq!(level(&env.head().await.unwrap()), json!("high"));
    let names: Vec<String> = env.events().await.iter().map(|event| event.body.name()).collect();
    assert_eq!(names, ["session_tree"; 2]);
}

/// The last model of the path counts: that of a change or of a response, but not of a message that
/// the service wrote.
#[tokio::test(start_paused = true)]
async fn move_restores_the_last_model_of_the_path() {
    let mut env = TestEnv::with_script(1, |_, input| vec![super::test_env::text(input)]);
    let services = env.empty_conversation().await;
    let model = async |env: &TestEnv| env.head().await.unwrap().settings.model;
    let set_model = async |model: &str, services: &Services| {
        let patch = json!({"settings": {"model": model}});
        let key = idempotency(&services.ids.new_id());
        let patch = patch.as_object().unwrap();
        patch_conversation(services, &TestEnv::key(), patch, &key, |_| true).await.unwrap();
    };
    set_model("one", &services).await;
    let one = env.leaf().await;
    set_model("two", &services).await;
    let two = env.leaf().await;
    // A response of the model `m`, as after a prompt with a model of its own.
    let own = append(&env, &services, "assistant", "own").await;
    let request = json!({"input": "made elsewhere", "source": "user", "output": [{"type": "text", "content": "x"}]});
    let request = RawJson::from_value(&request).read().unwrap();
    let key = idempotency("insert");
    insert_prompt(&services, &TestEnv::key(), request, &key).await.unwrap();
    env.run_until_idle().await;
    let inserted = env.leaf().await;
    for (target, expected) in [(&one, "one"), (&two, "two"), (&one, "one"), (&Some(own), "m")] {
        let moved = move_to(&services, target.as_deref(), None).await.unwrap();
        assert_eq!(model(&env).await.as_deref(), Some(expected), "{moved}");
        assert!(moved.get("unavailableModel").is_none(), "{moved}");
    }
    move_to(&services, one.as_deref(), None).await.unwrap();
    let moved = move_to(&services, inserted.as_deref(), None).await.unwrap();
    assert_eq!(model(&env).await.as_deref(), Some("m"), "not that of the inserted response");
    assert!(moved.get("unavailableModel").is_none(), "{moved}");
}
