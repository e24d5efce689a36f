//! Tests of the events for subscribers and of the state between them.

use super::*;
use crate::agent::settings::{Retry, Settings};

/// Records all events.
fn events(agent: &Agent) -> (Arc<Mutex<Vec<AgentEvent>>>, Subscription) {
    let told: Arc<Mutex<Vec<AgentEvent>>> = Arc::default();
    let kept = Arc::clone(&told);
    let subscription = agent.subscribe(move |event| lock(&kept).push(event.clone()));
    (told, subscription)
}

#[tokio::test]
async fn every_event_of_the_sources_is_one_of_ours() {
    let model = Played::new(&[json!([call("echo", &json!({"value": "x"}))]), json!("done")]);
    let agent = agent_of(&model).await;
    let (told, _subscription) = events(&agent);
    agent.prompt("go").await.unwrap();
    let told = lock(&told).clone();
    for event in &told {
        if let AgentEvent::Other { name, data } = event {
            assert!(name.starts_with("prompt."), "{name}: {data}");
        }
    }
    let begins: Vec<&AssistantMessage> = told
        .iter()
        .filter_map(|event| {
            let AgentEvent::MessageStart { message, .. } = event else { return None };
            message.as_assistant()
        })
        .collect();
    assert_eq!(begins.len(), 2, "{told:#?}");
    let record = model.record("scripted").unwrap();
    for begun in begins {
        assert!(begun.content.is_empty() && begun.stop_reason == StopReason::Stop);
        assert_eq!(
            (&begun.api, &begun.provider, &begun.model),
            (&record.api, &record.provider, &record.id)
        );
    }
}

#[tokio::test]
async fn the_state_begins_with_nothing() {
    let agent = Agent::builder().models(Played::new(&[])).start().await.unwrap();
    let state = agent.state();
    assert_eq!(state, AgentState::default());
    assert_eq!((state.thinking_level, state.is_streaming), (ThinkingLevel::Off, false));
}

#[tokio::test]
async fn the_state_has_the_answer_so_far_and_what_was_begun_when_it_is_stopped_stays() {
    let model = Played::new(&[json!({"begins": "par"})]);
    model.gate.forget_permits(Semaphore::MAX_PERMITS);
    let agent = agent_of(&model).await;
    let running = beside(&agent, "go");
    until(|| agent.state().stream_message == Some(vec![Block::text("par")])).await;
    assert!(agent.state().is_streaming);
    agent.abort().await.unwrap();
    running.await.unwrap().unwrap();
    let state = agent.state();
    assert_eq!(messages(&state), ["user:go", "assistant:par"]);
    let answer = state.messages[1].as_assistant().unwrap();
    assert_eq!(answer.stop_reason, StopReason::Aborted);
    assert_eq!((state.is_streaming, state.stream_message), (false, None));
}

/// Tool that returns when it gets a permit.
struct Slow(Arc<Semaphore>);

impl Tool for Slow {
    type Args = Spoken;

    fn name(&self) -> &'static str {
        "slow"
    }

    fn description(&self) -> &'static str {
        "Takes its time."
    }

    fn effect(&self) -> Effect {
        Effect::Read
    }

    async fn call(&self, args: Spoken, _cx: CallContext) -> Result<ToolResult, ToolError> {
        self.0.acquire().await.unwrap().forget();
        Ok(ToolResult::text(args.value))
    }
}

#[tokio::test]
async fn the_state_has_the_calls_that_run() {
    let model = Played::new(&[json!([call("slow", &json!({"value": "x"}))]), json!("done")]);
    let gate = Arc::new(Semaphore::new(0));
    let agent = agent_of(&model).await;
    agent.add_tool(Slow(Arc::clone(&gate))).unwrap();
    let running = beside(&agent, "go");
    until(|| agent.state().pending_tool_calls.contains("c_slow")).await;
    assert!(agent.state().is_streaming);
    gate.add_permits(1);
    running.await.unwrap().unwrap();
    assert!(agent.state().pending_tool_calls.is_empty());
}

#[tokio::test]
async fn a_call_of_the_model_that_fails_in_passing_is_made_once_more() {
    let model = Played::new(&[json!({"error": "overloaded", "passes": true}), json!("done")]);
    let retry = Retry { base_delay_ms: 1, ..Retry::default() };
    let agent = Agent::builder()
        .models(Arc::clone(&model) as Arc<dyn Model>)
        .settings(Settings { retry: Some(retry), ..Settings::default() })
        .start()
        .await
        .unwrap();
    let (told, _subscription) = events(&agent);
    let prompt = soon(agent.prompt("go")).await.unwrap();
    assert_eq!(prompt.state, crate::agent::entry::PromptState::Completed);
    let ends: Vec<bool> = lock(&told)
        .iter()
        .filter_map(|event| {
            let AgentEvent::AgentEnd { will_retry, .. } = event else { return None };
            Some(*will_retry)
        })
        .collect();
    assert_eq!(ends, [true, false]);
    let state = agent.state();
    assert_eq!((messages(&state).last().unwrap().as_str(), state.error), ("assistant:done", None));
}
