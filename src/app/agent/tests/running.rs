//! Tests of runs: length, start and configuration.

use futures_util::FutureExt as _;

use super::*;
use crate::agent::settings::{Continuation, Settings};
use crate::agents::Agents;
use crate::extensions::{ClosingTurn, Extension, FinishTurn, HookError};
use crate::tools::code::code_tool;
use crate::turn::admission::prompt::accept_prompt;

#[tokio::test]
async fn a_run_goes_on_for_more_rounds_than_a_prompt_of_the_service() {
    let rounds = 26;
    let mut script: Vec<Value> = (0..rounds)
        .map(|round| json!([numbered("echo", round, &json!({"value": round.to_string()}))]))
        .collect();
    script.push(json!("done"));
    let model = Played::new(&script);
    let agent = agent_of(&model).await;
    let prompt = soon(agent.prompt("go")).await.unwrap();
    assert_eq!(prompt.state, crate::agent::entry::PromptState::Completed);
    assert_eq!(model.requests().len(), rounds + 1);
    assert_eq!(messages(&agent.state()).last().unwrap(), "assistant:done");
}

#[tokio::test]
async fn what_is_set_in_the_middle_of_a_turn_counts_from_its_next_answer_on() {
    let model = Played::new(&[json!([call("echo", &json!({"value": "x"}))]), json!("done")]);
    model.gate.forget_permits(Semaphore::MAX_PERMITS);
    let agent = Agent::builder()
        .models(Arc::clone(&model) as Arc<dyn Model>)
        .settings(Settings { continuation: Some(Continuation::Inline), ..Settings::default() })
        .system_prompt("Be brief.")
        .start()
        .await
        .unwrap();
    let running = beside(&agent, "go");
    until(|| !model.requests().is_empty()).await;
    agent.set_system_prompt("Be long.");
    agent.set_session_id(Some("mine".to_owned()));
    agent.set_tools(vec![code_tool(Echo::default()).unwrap()]).unwrap();
    assert!(
        agent.set_tools((0..2).map(|_| code_tool(Echo::default()).unwrap()).collect()).is_err()
    );
    model.gate.add_permits(8);
    soon(running).await.unwrap().unwrap();
    assert_eq!(*lock(&model.systems), ["Be brief.", "Be long."]);
    assert_eq!(lock(&model.sessions)[1], "mine");
    assert_eq!(messages(&agent.state())[2..], ["toolResult:echo:x", "assistant:done"]);
    assert_eq!(agent.state().tools, ["echo"]);
}

#[tokio::test]
async fn an_agent_is_made_again_in_the_same_session_and_the_model_is_told_of_it() {
    let folder = tempfile::tempdir().unwrap();
    let model = Played::new(&[json!("1"), json!("2")]);
    for _ in 0..2 {
        let made = async {
            loop {
                let builder = Agent::builder()
                    .models(Arc::clone(&model) as Arc<dyn Model>)
                    .session_id("support desk 7")
                    .messages(vec![moving::user("before")])
                    .data(folder.path());
                match builder.start().await {
                    Ok(agent) => break agent,
                    Err(AgentError::Start(_)) => tokio::task::yield_now().await,
                    Err(error) => panic!("{error}"),
                }
            }
        };
        let agent = soon(made).await;
        soon(agent.prompt("go")).await.unwrap();
    }
    assert_eq!(model.requests()[1], ["user:before", "user:go"]);
    assert_eq!(*lock(&model.sessions), ["support desk 7", "support desk 7"]);
}

#[tokio::test]
async fn what_cannot_be_is_told_at_the_start() {
    let settings = Settings { temperature: Some(7.0), max_rounds: Some(0), ..Settings::default() };
    let refused = Agent::builder()
        .models(Played::new(&[]))
        .settings(settings)
        .tool(Echo::default())
        .tool(Echo::default())
        .start()
        .await
        .unwrap_err();
    let AgentError::Mistakes(mistakes) = refused else { panic!("{refused}") };
    let expected = [
        "two tools are called `echo`: `turnwheel::app::agent::tests::Echo` and `turnwheel::app::agent::tests::Echo`. Rename one of them",
        "`temperature` is 0 to 2",
        "`maxRounds` is at least 1",
    ];
    assert_eq!(mistakes, expected);
}

#[tokio::test]
async fn an_agent_that_is_made_again_knows_of_a_prompt_that_nobody_has_taken_in() {
    let folder = tempfile::tempdir().unwrap();
    let model = Played::new(&[json!("1")]);
    let agent = made_on(folder.path(), &model).await;
    let key = agent.inner.key.borrow().clone();
    let agents = agent.inner.world.agents.clone();
    drop(agent);
    let world = opened(folder.path(), &model, agents).await;
    accept_prompt(&world, &key, go(), &name("1"), &setup::sender()).await.unwrap();
    drop(world);

    model.gate.forget_permits(Semaphore::MAX_PERMITS);
    let agent = made_on(folder.path(), &model).await;
    assert!(agent.state().is_streaming);
    assert!(matches!(agent.prompt("too early").await, Err(AgentError::Busy(_))));
    model.gate.add_permits(1);
    soon(agent.wait_for_idle()).await;
    assert_eq!(messages(&agent.state()), ["user:go", "assistant:1"]);
}

#[tokio::test]
async fn a_prompt_that_is_stopped_before_anybody_has_taken_it_in_comes_to_its_end() {
    let folder = tempfile::tempdir().unwrap();
    let model = Played::new(&[json!("1")]);
    let agent = made_on(folder.path(), &model).await;
    let key = agent.inner.key.borrow().clone();
    let agents = agent.inner.world.agents.clone();
    drop(agent);
    let world = opened(folder.path(), &model, agents).await;
    accept_prompt(&world, &key, go(), &name("1"), &setup::sender()).await.unwrap();
    abort(&world, &key, AbortRequest::default(), &name("2")).await.unwrap();
    drop(world);
    let agent = made_on(folder.path(), &model).await;
    soon(agent.wait_for_idle()).await;
    soon(agent.prompt("again")).await.unwrap();
    assert_eq!(messages(&agent.state()).last().unwrap(), "assistant:1");
}

fn go() -> PromptRequest {
    PromptRequest { input: Some("go".into()), ..PromptRequest::default() }
}

fn name(key: &str) -> Idempotency {
    Idempotency {
        key: key.to_owned(),
        is_repeatable: false,
        route: "agent",
        body_hash: String::new(),
    }
}

/// Opens the services over the folder once it is unlocked.
async fn opened(folder: &std::path::Path, model: &Arc<Played>, agents: Agents) -> World {
    let opened = async {
        loop {
            let models = Arc::clone(model) as Arc<dyn Model>;
            match setup::world(folder, models, agents.clone(), Vec::new()).await {
                Ok(world) => break world,
                Err(AgentError::Start(_)) => tokio::task::yield_now().await,
                Err(error) => panic!("{error}"),
            }
        }
    };
    soon(opened).await
}

#[tokio::test]
async fn who_gives_up_while_a_prompt_is_being_kept_leaves_the_agent_idle() {
    let model = Played::new(&[json!("1")]);
    let agent = agent_of(&model).await;
    let held = agent.inner.moving.lock().await;
    let mut asked = Box::pin(agent.prompt("never"));
    assert!(asked.as_mut().now_or_never().is_none());
    assert!(agent.state().is_streaming);
    drop(asked);
    drop(held);
    assert!(!agent.state().is_streaming);
    soon(agent.prompt("go")).await.unwrap();
    assert_eq!(messages(&agent.state()), ["user:go", "assistant:1"]);
}

/// Extension that continues after the first response and ends the prompt after the second.
#[derive(Debug)]
struct ChecksOnce;

#[async_trait]
impl Extension for ChecksOnce {
    fn name(&self) -> &'static str {
        "checks-once"
    }

    async fn finish_turn(&self, turn: &ClosingTurn<'_>) -> Result<Option<FinishTurn>, HookError> {
        Ok(Some(if turn.rounds == 1 { FinishTurn::Continue } else { FinishTurn::End }))
    }
}

#[tokio::test]
async fn extension_finishes_turns_of_an_agent() {
    let model = Played::new(&[json!("one"), json!("two"), json!("three")]);
    model.gate.forget_permits(Semaphore::MAX_PERMITS);
    let builder = Agent::builder().models(Arc::clone(&model) as Arc<dyn Model>);
    let agent = builder.extension(ChecksOnce).start().await.unwrap();
    let running = beside(&agent, "go");
    until(|| !model.requests().is_empty()).await;
    Box::pin(soon(agent.follow_up("and then"))).await.unwrap();
    model.gate.add_permits(2);
    let prompt = soon(running).await.unwrap().unwrap();
    assert_eq!(prompt.stop_reason, Some(crate::agent::entry::PromptStop::End));
    assert_eq!(model.requests()[1], ["user:go", "assistant:one"], "the context is the same");
    assert_eq!(model.requests().len(), 2, "the follow-up stays queued");
    model.gate.add_permits(8);
    Box::pin(soon(agent.continue_())).await.unwrap();
    assert_eq!(model.requests()[2].last().unwrap(), "user:and then");
}
