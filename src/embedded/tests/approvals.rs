//! Tests of approvals: the agent stays usable after every kind of decision.

use super::*;
use turnwheel_conversation::entry::PromptState;
use turnwheel_conversation::settings::{Settings, ToolExecution};
use turnwheel_extensions::{
    CallBlock, Extension, HookContext, HookError, PendingToolCall, ToolCallDecision,
};
use turnwheel_json::raw::RawJson;

fn decision_request(decision: &str) -> DecisionRequest {
    DecisionRequest { decision: decision.to_owned(), reason: None, value: None }
}

fn secret_call(number: u32) -> Value {
    numbered_call("echo", number, &json!({"value": format!("secret {number}")}))
}

#[tokio::test]
async fn decision_on_unknown_approval_has_no_effect() {
    let model = TestModel::new(&[json!("done")]);
    let agent = start_agent(&model).await;
    let error = agent.decide("unknown", decision_request("approve")).await.unwrap_err();
    assert!(matches!(error, AgentError::Refused(CommandError::NotFound(_))), "{error}");
    with_timeout(agent.wait_for_idle()).await;
    assert!(!agent.state().is_streaming);
    with_timeout(agent.prompt("go")).await.unwrap();
    assert_eq!(message_texts(&agent.state()), ["user:go", "assistant:done"]);
}

#[tokio::test]
async fn repeated_decision_succeeds_and_different_one_fails() {
    let model = TestModel::new(&[json!([secret_call(1)]), json!("done"), json!("more")]);
    let agent = start_agent(&model).await;
    agent.prompt("go").await.unwrap();
    let error = agent.decide("1_echo", decision_request("perhaps")).await.unwrap_err();
    assert!(matches!(error, AgentError::Refused(CommandError::Invalid(_))), "{error}");
    Box::pin(with_timeout(agent.decide("1_echo", decision_request("approve")))).await.unwrap();
    assert_eq!(message_texts(&agent.state()).last().unwrap(), "assistant:done");
    Box::pin(with_timeout(agent.decide("1_echo", decision_request("approve")))).await.unwrap();
    let error = agent.decide("1_echo", decision_request("reject")).await.unwrap_err();
    assert!(matches!(error, AgentError::Refused(CommandError::AlreadyDecided(_))), "{error}");
    with_timeout(agent.prompt("again")).await.unwrap();
    assert_eq!(message_texts(&agent.state()).last().unwrap(), "assistant:more");
}

/// Asks for the value of each call.
#[derive(Debug)]
struct Asks;

#[async_trait]
impl Extension for Asks {
    fn name(&self) -> &'static str {
        "asks"
    }

    async fn before_tool_call(
        &self,
        cx: &HookContext,
        _call: &PendingToolCall<'_>,
    ) -> Result<ToolCallDecision, HookError> {
        let reason = cx.select("why", "Why?", &["fun", "work"])?;
        Ok(ToolCallDecision::Block(CallBlock { reason, terminate: false }))
    }
}

#[tokio::test]
async fn question_of_an_extension_is_answered_or_declined() {
    let value = Some(RawJson::from_value(&"fun"));
    let answer = DecisionRequest { value, ..decision_request("answer") };
    for (decision, result) in [(answer, "fun"), (decision_request("reject"), "was blocked")] {
        let call = numbered_call("echo", 1, &json!({"value": "plain"}));
        let model = TestModel::new(&[json!([call]), json!("done")]);
        let agent = Agent::builder()
            .models(Arc::clone(&model) as Arc<dyn Model>)
            .tool(Echo::default())
            .extension(Asks)
            .start()
            .await
            .unwrap();
        let prompt = with_timeout(agent.prompt("go")).await.unwrap();
        assert_eq!(prompt.state, PromptState::WaitingForApproval);
        let questions = agent.approvals().await.unwrap();
        let [question] = questions.as_slice() else { panic!("{questions:?}") };
        assert_eq!(
            (question.reason.as_str(), question.extension.as_deref()),
            ("Why?", Some("asks"))
        );
        Box::pin(with_timeout(agent.decide(question.id.as_str(), decision))).await.unwrap();
        let texts = message_texts(&agent.state());
        assert_eq!(texts.last().unwrap(), "assistant:done", "{texts:?}");
        assert!(texts.iter().any(|text| text.ends_with(result)), "{texts:?}");
    }
}

#[tokio::test]
async fn parallel_approvals_are_decided_separately() {
    let model = TestModel::new(&[json!([secret_call(1), secret_call(2)]), json!("done")]);
    let agent = Agent::builder()
        .models(Arc::clone(&model) as Arc<dyn Model>)
        .settings(Settings { tool_execution: Some(ToolExecution::Parallel), ..Settings::default() })
        .tool(Echo::default())
        .start()
        .await
        .unwrap();
    let prompt = with_timeout(agent.prompt("go")).await.unwrap();
    assert_eq!(prompt.state, PromptState::WaitingForApproval);
    wait_for_approvals(&agent, 2).await;
    Box::pin(with_timeout(agent.decide("1_echo", decision_request("approve")))).await.unwrap();
    assert!(!agent.state().is_streaming, "the other approval is pending");
    wait_for_approvals(&agent, 1).await;
    assert!(matches!(agent.prompt("too early").await, Err(AgentError::Busy(_))));
    Box::pin(with_timeout(agent.decide("2_echo", decision_request("reject")))).await.unwrap();
    assert_eq!(message_texts(&agent.state()).last().unwrap(), "assistant:done");
    with_timeout(agent.wait_for_idle()).await;
}

async fn wait_for_approvals(agent: &Agent, count: usize) {
    let waiting = async {
        while agent.approvals().await.unwrap().len() != count {
            tokio::task::yield_now().await;
        }
    };
    with_timeout(waiting).await;
}

#[tokio::test]
async fn restarted_agent_keeps_pending_approval() {
    let folder = tempfile::tempdir().unwrap();
    let model = TestModel::new(&[json!([secret_call(1)]), json!("done")]);
    let agent = start_agent_in(folder.path(), &model).await;
    agent.prompt("go").await.unwrap();
    drop(agent);
    let agent = start_agent_in(folder.path(), &model).await;
    assert!(!agent.state().is_streaming);
    assert!(matches!(agent.prompt("too early").await, Err(AgentError::Busy(_))));
    Box::pin(with_timeout(agent.decide("1_echo", decision_request("approve")))).await.unwrap();
    assert_eq!(message_texts(&agent.state()).last().unwrap(), "assistant:done");
}
