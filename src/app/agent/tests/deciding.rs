//! Tests of approvals: the agent stays usable after every kind of decision.

use super::*;
use crate::agent::entry::PromptState;
use crate::agent::settings::{Settings, ToolExecution};

fn says(decision: &str) -> Said {
    Said { decision: decision.to_owned(), reason: None, value: None }
}

fn secret(number: u32) -> Value {
    numbered("echo", number, &json!({"value": format!("secret {number}")}))
}

#[tokio::test]
async fn a_decision_about_nothing_changes_nothing() {
    let model = Played::new(&[json!("done")]);
    let agent = agent_of(&model).await;
    let refused = agent.decide("unknown", says("approve")).await.unwrap_err();
    assert!(matches!(refused, AgentError::Refused(Refusal::NotFound(_))), "{refused}");
    soon(agent.wait_for_idle()).await;
    assert!(!agent.state().is_streaming);
    soon(agent.prompt("go")).await.unwrap();
    assert_eq!(messages(&agent.state()), ["user:go", "assistant:done"]);
}

#[tokio::test]
async fn the_same_decision_again_is_no_news_and_another_is_refused() {
    let model = Played::new(&[json!([secret(1)]), json!("done"), json!("more")]);
    let agent = agent_of(&model).await;
    agent.prompt("go").await.unwrap();
    let refused = agent.decide("1_echo", says("perhaps")).await.unwrap_err();
    assert!(matches!(refused, AgentError::Refused(Refusal::Invalid(_))), "{refused}");
    soon(agent.decide("1_echo", says("approve"))).await.unwrap();
    assert_eq!(messages(&agent.state()).last().unwrap(), "assistant:done");
    soon(agent.decide("1_echo", says("approve"))).await.unwrap();
    let refused = agent.decide("1_echo", says("reject")).await.unwrap_err();
    assert!(matches!(refused, AgentError::Refused(Refusal::AlreadyDecided(_))), "{refused}");
    soon(agent.prompt("again")).await.unwrap();
    assert_eq!(messages(&agent.state()).last().unwrap(), "assistant:more");
}

#[tokio::test]
async fn of_two_that_are_asked_each_is_decided_by_itself() {
    let model = Played::new(&[json!([secret(1), secret(2)]), json!("done")]);
    let agent = Agent::builder()
        .models(Arc::clone(&model) as Arc<dyn Model>)
        .settings(Settings { tool_execution: Some(ToolExecution::Parallel), ..Settings::default() })
        .tool(Echo::default())
        .start()
        .await
        .unwrap();
    let prompt = soon(agent.prompt("go")).await.unwrap();
    assert_eq!(prompt.state, PromptState::WaitingForApproval);
    until_asked(&agent, 2).await;
    soon(agent.decide("1_echo", says("approve"))).await.unwrap();
    assert!(!agent.state().is_streaming, "the other approval is pending");
    until_asked(&agent, 1).await;
    assert!(matches!(agent.prompt("too early").await, Err(AgentError::Busy(_))));
    soon(agent.decide("2_echo", says("reject"))).await.unwrap();
    assert_eq!(messages(&agent.state()).last().unwrap(), "assistant:done");
    soon(agent.wait_for_idle()).await;
}

async fn until_asked(agent: &Agent, count: usize) {
    let asked = async {
        while agent.approvals().await.unwrap().len() != count {
            tokio::task::yield_now().await;
        }
    };
    soon(asked).await;
}

#[tokio::test]
async fn an_agent_that_is_made_again_still_waits_for_the_person() {
    let folder = tempfile::tempdir().unwrap();
    let model = Played::new(&[json!([secret(1)]), json!("done")]);
    let agent = made_on(folder.path(), &model).await;
    agent.prompt("go").await.unwrap();
    drop(agent);
    let agent = made_on(folder.path(), &model).await;
    assert!(!agent.state().is_streaming);
    assert!(matches!(agent.prompt("too early").await, Err(AgentError::Busy(_))));
    soon(agent.decide("1_echo", says("approve"))).await.unwrap();
    assert_eq!(messages(&agent.state()).last().unwrap(), "assistant:done");
}
