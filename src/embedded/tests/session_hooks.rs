//! Hooks on the conversations of an in-process agent.

use std::sync::Mutex;

use super::*;
use turnwheel_extensions::{
    Extension, ForkPosition, HookContext, HookError, Observation, PendingSwitch, SessionDecision,
};
use turnwheel_platform::ids::EntryId;
use turnwheel_record::load;

/// Records the switches and cancels those to new conversations while it is closed.
#[derive(Debug, Default)]
struct Door {
    is_closed: Mutex<bool>,
    events: Mutex<Vec<String>>,
}

#[derive(Debug, Clone)]
struct SharedDoor(Arc<Door>);

#[async_trait]
impl Extension for SharedDoor {
    fn name(&self) -> &'static str {
        "door"
    }

    async fn before_session_switch(
        &self,
        cx: &HookContext,
        switch: &PendingSwitch<'_>,
    ) -> Result<SessionDecision, HookError> {
        let kind = if switch.target.is_some() { "other" } else { "new" };
        self.0.events.lock().unwrap().push(format!("{} {kind}", cx.hook().name()));
        let is_cancelled = *self.0.is_closed.lock().unwrap() && switch.target.is_none();
        Ok(if is_cancelled { SessionDecision::Cancel } else { SessionDecision::Continue })
    }

    async fn observe(&self, cx: &HookContext, fact: &Observation) -> Result<(), HookError> {
        if matches!(fact, Observation::SessionStart { .. } | Observation::SessionSwitch { .. }) {
            self.0.events.lock().unwrap().push(cx.hook().name().to_owned());
        }
        Ok(())
    }
}

#[tokio::test]
async fn extension_cancels_and_observes_switches() {
    let model = TestModel::new(&[json!("hi")]);
    let door = SharedDoor(Arc::default());
    let builder = Agent::builder().models(Arc::clone(&model) as Arc<dyn Model>);
    let agent = builder.extension(door.clone()).start().await.unwrap();
    agent.prompt("go").await.unwrap();
    let first = agent.conversation_id();
    *door.0.is_closed.lock().unwrap() = true;
    assert!(!agent.new_session().await.unwrap());
    assert_eq!(agent.conversation_id(), first);
    assert_eq!(agent.state().messages.len(), 2);
    *door.0.is_closed.lock().unwrap() = false;
    assert!(agent.new_session().await.unwrap());
    assert!(agent.switch_session(&first).await.unwrap());
    let events = door.0.events.lock().unwrap();
    let switches = [
        "session_before_switch new",
        "session_before_switch new",
        "session_start",
        "session_switch",
        "session_before_switch other",
        "session_switch",
    ];
    assert_eq!(events[events.len() - switches.len()..], switches, "{events:?}");
}

#[tokio::test]
async fn agent_continues_its_fork() {
    let model = TestModel::new(&[json!("one"), json!("two"), json!("three")]);
    let agent = Agent::builder().models(Arc::clone(&model) as Arc<dyn Model>);
    let agent = agent.start().await.unwrap();
    agent.prompt("first").await.unwrap();
    agent.prompt("second").await.unwrap();
    let source = agent.conversation_id();
    let key = agent.inner.key();
    let (head, _) = load::head(&agent.inner.services, &key).await.unwrap();
    let entries = load::all_entries(&agent.inner.services, &head).await.unwrap();
    let mut newest = entries.iter().rev();
    let second = newest.find(|entry| matches!(entry.body.message(), Some(Message::User(_))));
    let second = second.unwrap().base.entry_id.clone();
    let fork = Box::pin(agent.fork(&second, ForkPosition::Before)).await.unwrap().unwrap();
    assert_eq!(fork.text.as_deref(), Some("second"));
    assert_eq!(agent.conversation_id(), fork.conversation_id);
    assert_eq!(agent.state().messages.len(), 2);
    agent.prompt("another").await.unwrap();
    assert_eq!(agent.state().messages.len(), 4);
    assert!(Box::pin(agent.fork(&EntryId::new("none"), ForkPosition::At)).await.is_err());
    assert!(agent.switch_session(&source).await.unwrap());
    assert_eq!(agent.state().messages.len(), 4, "the source has its own two prompts");
}
