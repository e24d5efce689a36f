//! Tests of messages that change before, between and during runs.

use super::*;
use crate::agent::content::Content;
use crate::agent::message::UserMessage;
use crate::agent::raw::Extra;
use crate::clock::Timestamp;

pub(super) fn user(text: &str) -> Message {
    Message::User(UserMessage {
        content: Content::Text(text.to_owned()),
        timestamp: Timestamp(0),
        extra: Extra::new(),
    })
}

#[tokio::test]
async fn what_is_changed_during_a_run_counts_from_the_next_and_the_run_is_still_talked_to() {
    let script =
        [json!([call("echo", &json!({"value": "x"}))]), json!("1"), json!("2"), json!("3")];
    let model = Played::new(&script);
    model.gate.forget_permits(Semaphore::MAX_PERMITS);
    let agent = agent_of(&model).await;
    let running = beside(&agent, "go");
    until(|| !model.requests().is_empty() && !agent.state().messages.is_empty()).await;
    agent.replace_messages(vec![user("before")]);
    agent.append_message(user("also"));
    agent.steer("stop, do this").await.unwrap();
    agent.follow_up("and then this").await.unwrap();
    model.gate.add_permits(8);
    soon(running).await.unwrap().unwrap();
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
    assert_eq!(messages(&agent.state()), run);
    agent.clear_messages();
    soon(agent.prompt("anew")).await.unwrap();
    assert_eq!(model.requests()[3], ["user:anew"]);
}

#[tokio::test]
async fn what_was_queued_comes_along_once_wherever_a_crash_cuts_the_move() {
    for brought in 0..=2 {
        let folder = tempfile::tempdir().unwrap();
        let model = Played::new(&[json!("1"), json!("2"), json!("3"), json!("4")]);
        let agent = made_on(folder.path(), &model).await;
        agent.prompt("before").await.unwrap();
        agent.follow_up("one").await.unwrap();
        agent.follow_up("two").await.unwrap();
        agent.clear_messages();
        // The steps of the next prompt until the crash.
        let before = agent.inner.key.borrow().clone();
        agent.inner.begin(Some(&before)).await.unwrap();
        let waiting = load::inbox(&agent.inner.world, &before).await.unwrap();
        assert_eq!(waiting.len(), 2);
        for item in &waiting[..brought] {
            agent.inner.bring(item).await.unwrap();
        }
        drop(agent);
        let agent = made_on(folder.path(), &model).await;
        assert!(agent.state().messages.is_empty());
        soon(agent.prompt("go")).await.unwrap();
        let mut said = messages(&agent.state());
        said.retain(|said| said.starts_with("user"));
        said.sort();
        assert_eq!(said, ["user:go", "user:one", "user:two"], "after {brought}");
        assert!(load::inbox(&agent.inner.world, &before).await.unwrap().is_empty());
    }
}

#[tokio::test]
async fn what_cannot_come_along_now_comes_with_the_next_try() {
    let model = Played::new(&[json!("1")]);
    let agent = agent_of(&model).await;
    agent.follow_up("later").await.unwrap();
    agent.clear_messages();
    // The state after the caller dropped its future between two steps.
    let before = agent.inner.key.borrow().clone();
    {
        let mut moving = agent.inner.moving.lock().await;
        moving.begun_with = agent.inner.begin(Some(&before)).await.unwrap();
        moving.left = Some(before);
    }
    soon(agent.prompt("go")).await.unwrap();
    let all = messages(&agent.state());
    assert_eq!(all[..3], ["user:go", "assistant:1", "user:later"]);
}

#[tokio::test]
async fn an_agent_remembers_any_number_of_messages() {
    let model = Played::new(&[json!("1")]);
    let agent = agent_of(&model).await;
    let all: Vec<Message> = (0..1_001).map(|number| user(&number.to_string())).collect();
    agent.replace_messages(all);
    soon(agent.prompt("go")).await.unwrap();
    assert_eq!(model.requests()[0].len(), 1_002);
    assert_eq!(messages(&agent.state())[1_000..], ["user:1000", "user:go", "assistant:1"]);
}
