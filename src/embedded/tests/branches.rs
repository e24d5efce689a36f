//! Moves of an in-process agent to other branches.

use super::*;
use turnwheel_platform::ids::EntryId;
use turnwheel_record::load;

impl Agent {
    /// Id of the user message with this text.
    async fn message_id(&self, text: &str) -> EntryId {
        let (head, _) = load::head(&self.inner.services, &self.inner.key()).await.unwrap();
        let entries = load::all_entries(&self.inner.services, &head).await.unwrap();
        let is_message = |entry: &&Arc<turnwheel_conversation::entry::Entry>| matches!(entry.body.message(), Some(Message::User(user)) if user.content.joined_text() == text);
        entries.iter().find(is_message).unwrap().base.entry_id.clone()
    }
}

#[tokio::test]
async fn agent_continues_from_an_earlier_message() {
    let script = [json!("one"), json!("two"), json!("three")];
    let model = TestModel::new(&script);
    let agent =
        Agent::builder().models(Arc::clone(&model) as Arc<dyn Model>).start().await.unwrap();
    agent.prompt("first").await.unwrap();
    agent.prompt("second").await.unwrap();
    let text = agent.branch(Some(&agent.message_id("second").await)).await.unwrap();
    assert_eq!(text.as_deref(), Some("second"));
    assert_eq!(agent.state().messages.len(), 2, "the state follows the leaf");
    agent.prompt("third").await.unwrap();
    assert_eq!(
        model.requests().last().unwrap(),
        &["user:first", "assistant:one", "user:third"].map(str::to_owned)
    );
    let error = agent.branch(Some(&EntryId::new("zzz"))).await.unwrap_err();
    assert_eq!(error.to_string(), "Entry zzz not found");
    assert_eq!(agent.state().messages.len(), 4);
}

#[tokio::test]
async fn agent_leaves_a_branch_with_a_summary_of_the_model() {
    let script = [json!("one"), json!("two"), json!("SUMMARY"), json!("three")];
    let model = TestModel::new(&script);
    let agent =
        Agent::builder().models(Arc::clone(&model) as Arc<dyn Model>).start().await.unwrap();
    agent.prompt("first").await.unwrap();
    agent.prompt("second").await.unwrap();
    let target = agent.message_id("second").await;
    let options = NavigateOptions { summarize: true, ..NavigateOptions::default() };
    let navigation = agent.navigate(Some(&target), options).await.unwrap();
    assert!(navigation.is_moved && !navigation.is_cancelled);
    assert_eq!(navigation.text.as_deref(), Some("second"));
    agent.prompt("third").await.unwrap();
    let requests = model.requests();
    assert!(requests[2][0].contains("[User]: second"), "{requests:?}");
    assert!(!requests[2][0].contains("first"), "only the branch is summarised: {requests:?}");
    let last = requests.last().unwrap();
    assert_eq!((last.len(), last[3].as_str()), (4, "user:third"), "{last:?}");
    assert!(last[2].contains("SUMMARY"), "{last:?}");
}

#[tokio::test]
async fn agent_shows_the_tree_of_its_conversation() {
    let model = TestModel::new(&[json!("one"), json!("two"), json!("three")]);
    let agent =
        Agent::builder().models(Arc::clone(&model) as Arc<dyn Model>).start().await.unwrap();
    agent.prompt("first").await.unwrap();
    agent.prompt("second").await.unwrap();
    agent.branch(Some(&agent.message_id("second").await)).await.unwrap();
    agent.prompt("third").await.unwrap();
    let tree = agent.tree().await.unwrap();
    let previews = |on_path: bool| -> Vec<&str> {
        let users = tree.items.iter().filter(|node| node.role.as_deref() == Some("user"));
        users
            .filter(|node| node.on_path == on_path)
            .filter_map(|it| it.preview.as_deref())
            .collect()
    };
    assert_eq!((previews(true), previews(false)), (vec!["first", "third"], vec!["second"]));
    assert!(tree.items.iter().any(|node| node.children.len() == 2), "{tree:?}");
    assert!(tree.items.iter().any(|node| Some(&node.id) == tree.leaf_id.as_ref()));
}

#[tokio::test]
async fn agent_names_its_conversation_once() {
    let model = TestModel::new(&[json!("one"), json!("Paying two invoices"), json!("two")]);
    let agent = Agent::builder()
        .models(Arc::clone(&model) as Arc<dyn Model>)
        .automatic_title()
        .start()
        .await
        .unwrap();
    let (sender, mut named) = tokio::sync::mpsc::unbounded_channel();
    let _subscription = agent.subscribe(move |event| {
        if let AgentEvent::Other { name, data } = event
            && name == "session_info_changed"
        {
            let _ = sender.send(data["name"].clone());
        }
    });
    agent.prompt("first").await.unwrap();
    assert_eq!(named.recv().await, Some(json!("Paying two invoices")));
    agent.prompt("second").await.unwrap();
    assert!(model.systems.lock().unwrap()[1].starts_with("You write titles"));
    assert_eq!(model.requests().len(), 3, "one title for one conversation");
}
