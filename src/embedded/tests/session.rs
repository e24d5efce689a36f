//! Tests of the methods of the source's `AgentSession`.

use super::*;
use turnwheel_commands::message::MessageRequest;
use turnwheel_conversation::entry::PromptState;
use turnwheel_conversation::settings::{CompactionSettings, Settings};
use turnwheel_platform::ids::ConversationId;

#[tokio::test]
async fn custom_message_is_recorded_or_starts_run() {
    let model = TestModel::new(&[json!("1"), json!("2")]);
    let agent = start_agent(&model).await;
    let error = agent.send_custom_message(MessageRequest::new("", "x")).await.unwrap_err();
    assert!(matches!(error, AgentError::Refused(CommandError::Invalid(_))), "{error}");
    agent.send_custom_message(MessageRequest::new("note", "noted")).await.unwrap();
    wait_until(|| agent.state().messages.len() == 1).await;
    assert!(model.requests().is_empty());
    let message = MessageRequest { trigger_turn: Some(true), ..MessageRequest::new("note", "go") };
    with_timeout(Box::pin(agent.send_custom_message(message.clone()))).await.unwrap();
    assert_eq!(message_texts(&agent.state()), ["custom:noted", "custom:go", "assistant:1"]);
    agent.clear_messages();
    with_timeout(Box::pin(agent.send_custom_message(message.clone()))).await.unwrap();
    assert_eq!(message_texts(&agent.state()), ["custom:go", "assistant:2"]);
    agent.set_model("missing");
    let error = agent.send_custom_message(message).await.unwrap_err();
    assert!(matches!(error, AgentError::NoModel(_)), "{error}");
    assert!(!agent.state().is_streaming);
}

#[tokio::test]
async fn user_message_is_queued_while_prompt_runs() {
    let calls = json!([tool_call("echo", &json!({"value": "x"}))]);
    let model = TestModel::new(&[calls, json!("1"), json!("2"), json!("3")]);
    model.permits.forget_permits(Semaphore::MAX_PERMITS);
    let agent = start_agent(&model).await;
    let running = spawn_prompt(&agent, "go");
    wait_until(|| !model.requests().is_empty()).await;
    let busy = agent.send_user_message("too early", Mode::Prompt).await;
    assert!(matches!(busy, Err(AgentError::Busy(_))));
    agent.send_user_message("then this", Mode::FollowUp).await.unwrap();
    agent.send_user_message("stop", Mode::Steer).await.unwrap();
    model.permits.add_permits(8);
    with_timeout(running).await.unwrap().unwrap();
    with_timeout(Box::pin(agent.send_user_message("idle", Mode::Steer))).await.unwrap();
    let texts = message_texts(&agent.state());
    let expected =
        ["user:stop", "assistant:1", "user:then this", "assistant:2", "user:idle", "assistant:3"];
    assert_eq!(texts[3..], expected);
}

#[tokio::test]
async fn compaction_returns_summary_or_reason() {
    let model = TestModel::new(&[json!("1"), json!("2"), json!("summary"), json!("summary")]);
    let compaction = CompactionSettings { keep_recent_tokens: 1, ..CompactionSettings::default() };
    let builder = Agent::builder()
        .settings(Settings { compaction: Some(compaction), ..Settings::default() })
        .models(Arc::clone(&model) as Arc<dyn Model>);
    let agent = builder.start().await.unwrap();
    let error = with_timeout(Box::pin(agent.compact(None))).await.unwrap_err().to_string();
    assert_eq!(error, "Nothing to compact (session too small)");
    for input in ["a long text ".repeat(200), "b".to_owned()] {
        with_timeout(Box::pin(agent.prompt(input))).await.unwrap();
    }
    let done = with_timeout(Box::pin(agent.compact(Some("the numbers".to_owned())))).await.unwrap();
    assert!(done.summary.contains("summary"), "{}", done.summary);
    let error = with_timeout(Box::pin(agent.compact(None))).await.unwrap_err();
    assert!(matches!(&error, AgentError::Compaction(text) if text == "Already compacted"));
    let prompt = with_timeout(Box::pin(agent.prompt("c"))).await.unwrap();
    assert_eq!(prompt.state, PromptState::Completed);
}

#[tokio::test]
async fn cycle_model_goes_round() {
    let model = TestModel::new(&[]);
    let agent = start_agent(&model).await;
    let cycle = |direction| agent.cycle_model(direction).unwrap().id;
    assert_eq!(cycle(CycleDirection::Forward), "high");
    assert_eq!(agent.state().model.as_deref(), Some("high"));
    assert_eq!(cycle(CycleDirection::Forward), "scripted");
    assert_eq!(cycle(CycleDirection::Backward), "high");
    let builder = Agent::builder().models(Arc::new(turnwheel_model::scripted::ScriptedModel));
    let only_one = builder.start().await.unwrap();
    assert_eq!(only_one.cycle_model(CycleDirection::Forward), None);
}

#[tokio::test]
async fn new_and_switch_session_abort_clear_and_restore() {
    let model = TestModel::new(&[json!("1"), json!("never"), json!("2"), json!("3"), json!("4")]);
    let agent = start_agent(&model).await;
    agent.prompt("a").await.unwrap();
    agent.set_model("high");
    agent.set_thinking_level(ThinkingLevel::High);
    let first = agent.conversation_id();
    model.permits.forget_permits(Semaphore::MAX_PERMITS);
    let running = spawn_prompt(&agent, "b");
    wait_until(|| model.requests().len() == 2).await;
    agent.follow_up("withdrawn").await.unwrap();
    assert!(with_timeout(Box::pin(agent.new_session())).await.unwrap());
    assert_eq!(with_timeout(running).await.unwrap().unwrap().state, PromptState::Aborted);
    assert!(agent.state().messages.is_empty());
    model.permits.add_permits(8);
    agent.set_model("normal");
    agent.set_thinking_level(ThinkingLevel::Low);
    with_timeout(Box::pin(agent.prompt("c"))).await.unwrap();
    let second = agent.conversation_id();
    assert_ne!(second, first);

    let (names, _subscription) = record_event_names(&agent);
    assert!(with_timeout(Box::pin(agent.switch_session(&first))).await.unwrap());
    let state = agent.state();
    assert_eq!(message_texts(&state), ["user:a", "assistant:1", "user:b", "assistant:"]);
    let settings = (state.model.as_deref(), state.thinking_level);
    assert_eq!(settings, (Some("high"), ThinkingLevel::High));
    with_timeout(Box::pin(agent.prompt("d"))).await.unwrap();
    assert_eq!(model.requests()[3], ["user:a", "assistant:1", "user:b", "user:d"]);
    assert_eq!(message_texts(&agent.state())[4..], ["user:d", "assistant:3"]);
    assert_eq!(lock(&names).iter().filter(|name| *name == "agent_start").count(), 1);

    with_timeout(Box::pin(agent.switch_session(&second))).await.unwrap();
    let state = agent.state();
    assert_eq!(message_texts(&state), ["user:c", "assistant:2"]);
    let settings = (state.model.as_deref(), state.thinking_level);
    assert_eq!(settings, (Some("scripted"), ThinkingLevel::Low));
    let error = agent.switch_session(&ConversationId::new("unknown")).await.unwrap_err();
    assert!(matches!(error, AgentError::Refused(CommandError::NotFound(_))), "{error}");
    assert_eq!(agent.conversation_id(), second);
}

#[tokio::test]
async fn new_session_ends_prompt_that_waits_for_approval() {
    let model =
        TestModel::new(&[json!([tool_call("echo", &json!({"value": "secret"}))]), json!("done")]);
    let agent = start_agent(&model).await;
    let prompt = agent.prompt("go").await.unwrap();
    assert_eq!(prompt.state, PromptState::WaitingForApproval);
    let first = agent.conversation_id();
    with_timeout(Box::pin(agent.new_session())).await.unwrap();
    with_timeout(Box::pin(agent.switch_session(&first))).await.unwrap();
    assert!(agent.approvals().await.unwrap().is_empty());
    with_timeout(Box::pin(agent.prompt("again"))).await.unwrap();
    assert_eq!(message_texts(&agent.state()).last().unwrap(), "assistant:done");
}

#[tokio::test]
async fn session_name_is_stored_and_validated() {
    let model = TestModel::new(&[]);
    let agent = start_agent(&model).await;
    agent.set_session_name("Orders").await.unwrap();
    let (head, _) = load::head(&agent.inner.services, &agent.inner.key()).await.unwrap();
    assert_eq!(head.name.as_deref(), Some("Orders"));
    let error = agent.set_session_name("two\nlines").await.unwrap_err();
    assert!(matches!(error, AgentError::Refused(CommandError::Invalid(_))), "{error}");
}
