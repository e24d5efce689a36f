//! Tests of messages that change before, between and during runs.

use super::*;
use turnwheel_conversation::content::Content;
use turnwheel_conversation::message::UserMessage;
use turnwheel_conversation::unknown_members::Extra;
use turnwheel_platform::clock::Timestamp;

pub(super) fn user_message(text: &str) -> Message {
    Message::User(UserMessage {
        content: Content::Text(text.to_owned()),
        timestamp: Timestamp(0),
        extra: Extra::new(),
    })
}

#[tokio::test]
async fn replaced_messages_apply_after_active_run() {
    let script =
        [json!([tool_call("echo", &json!({"value": "x"}))]), json!("1"), json!("2"), json!("3")];
    let model = TestModel::new(&script);
    model.permits.forget_permits(Semaphore::MAX_PERMITS);
    let agent = start_agent(&model).await;
    let running = spawn_prompt(&agent, "go");
    wait_until(|| !model.requests().is_empty() && !agent.state().messages.is_empty()).await;
    agent.replace_messages(vec![user_message("before")]);
    agent.append_message(user_message("also"));
    agent.steer("stop, do this").await.unwrap();
    agent.follow_up("and then this").await.unwrap();
    model.permits.add_permits(8);
    with_timeout(running).await.unwrap().unwrap();
    let result = "toolResult:Skipped due to queued user message.";
    assert_eq!(model.requests()[1], ["user:go", "assistant:", result, "user:stop, do this"]);
    let run = [
        "user:before",
        "user:also",
        "assistant:",
        result,
        "user:stop, do this",
        "assistant:1",
        "user:and then this",
        "assistant:2",
    ];
    assert_eq!(message_texts(&agent.state()), run);
    agent.clear_messages();
    with_timeout(agent.prompt("anew")).await.unwrap();
    assert_eq!(model.requests()[3], ["user:anew"]);
}

#[tokio::test]
async fn crash_during_move_keeps_queued_inputs_once() {
    for moved_count in 0..=2 {
        let folder = tempfile::tempdir().unwrap();
        let model = TestModel::new(&[json!("1"), json!("2"), json!("3"), json!("4")]);
        let agent = start_agent_in(folder.path(), &model).await;
        agent.prompt("before").await.unwrap();
        agent.follow_up("one").await.unwrap();
        agent.follow_up("two").await.unwrap();
        agent.clear_messages();
        // The steps of the next prompt until the crash.
        let previous = agent.inner.key();
        agent.inner.create_conversation(Some(&previous)).await.unwrap();
        let queued = load::inbox(&agent.inner.services, &previous).await.unwrap();
        assert_eq!(queued.len(), 2);
        for item in &queued[..moved_count] {
            agent.inner.move_input(item).await.unwrap();
        }
        drop(agent);
        let agent = start_agent_in(folder.path(), &model).await;
        assert!(agent.state().messages.is_empty());
        with_timeout(agent.prompt("go")).await.unwrap();
        let mut inputs = message_texts(&agent.state());
        inputs.retain(|inputs| inputs.starts_with("user"));
        inputs.sort();
        assert_eq!(inputs, ["user:go", "user:one", "user:two"], "after {moved_count}");
        assert!(load::inbox(&agent.inner.services, &previous).await.unwrap().is_empty());
    }
}

#[tokio::test]
async fn interrupted_move_completes_with_next_prompt() {
    let model = TestModel::new(&[json!("1")]);
    let agent = start_agent(&model).await;
    agent.follow_up("later").await.unwrap();
    agent.clear_messages();
    // The state after the caller dropped its future between two steps.
    let previous = agent.inner.key();
    {
        let mut switch = agent.inner.switch.lock().await;
        switch.messages_version = agent.inner.create_conversation(Some(&previous)).await.unwrap();
        switch.previous = Some(previous);
    }
    with_timeout(agent.prompt("go")).await.unwrap();
    let all = message_texts(&agent.state());
    assert_eq!(all[..3], ["user:go", "assistant:1", "user:later"]);
}

#[tokio::test]
async fn agent_accepts_over_thousand_messages() {
    let model = TestModel::new(&[json!("1")]);
    let agent = start_agent(&model).await;
    let all: Vec<Message> = (0..1_001).map(|number| user_message(&number.to_string())).collect();
    agent.replace_messages(all);
    with_timeout(agent.prompt("go")).await.unwrap();
    assert_eq!(model.requests()[0].len(), 1_002);
    assert_eq!(message_texts(&agent.state())[1_000..], ["user:1000", "user:go", "assistant:1"]);
}
