//! Tests of runs: length, start and configuration.

use futures_util::FutureExt as _;

use super::*;
use turnwheel_agent_files::SharedCatalog;
use turnwheel_commands::prompt::accept_prompt;
use turnwheel_conversation::settings::{Continuation, Settings};
use turnwheel_extensions::runner::ErrorListeners;
use turnwheel_extensions::{
    ClosingTurn, Extension, ExtensionError, FinishTurn, HookContext, HookError,
};
use turnwheel_tools::code::DynTool;

#[tokio::test]
async fn agent_run_exceeds_round_limit_of_service() {
    let rounds = 26;
    let mut script: Vec<Value> = (0..rounds)
        .map(|round| json!([numbered_call("echo", round, &json!({"value": round.to_string()}))]))
        .collect();
    script.push(json!("done"));
    let model = TestModel::new(&script);
    let agent = start_agent(&model).await;
    let prompt = with_timeout(agent.prompt("go")).await.unwrap();
    assert_eq!(prompt.state, turnwheel_conversation::entry::PromptState::Completed);
    assert_eq!(model.requests().len(), rounds + 1);
    assert_eq!(message_texts(&agent.state()).last().unwrap(), "assistant:done");
}

#[tokio::test]
async fn setters_apply_to_next_model_call_in_turn() {
    let model =
        TestModel::new(&[json!([tool_call("echo", &json!({"value": "x"}))]), json!("done")]);
    model.permits.forget_permits(Semaphore::MAX_PERMITS);
    let agent = Agent::builder()
        .models(Arc::clone(&model) as Arc<dyn Model>)
        .settings(Settings { continuation: Some(Continuation::Inline), ..Settings::default() })
        .system_prompt("Be brief.")
        .start()
        .await
        .unwrap();
    let running = spawn_prompt(&agent, "go");
    wait_until(|| !model.requests().is_empty()).await;
    agent.set_system_prompt("Be long.");
    agent.set_session_id(Some("mine".to_owned()));
    agent.set_tools(vec![DynTool::new(Echo::default()).unwrap()]).unwrap();
    assert!(
        agent.set_tools((0..2).map(|_| DynTool::new(Echo::default()).unwrap()).collect()).is_err()
    );
    model.permits.add_permits(8);
    with_timeout(running).await.unwrap().unwrap();
    assert_eq!(*lock(&model.systems), ["Be brief.", "Be long."]);
    assert_eq!(lock(&model.sessions)[1], "mine");
    assert_eq!(message_texts(&agent.state())[2..], ["toolResult:echo:x", "assistant:done"]);
    assert_eq!(agent.state().tools, ["echo"]);
}

#[tokio::test]
async fn session_id_is_sent_after_restart() {
    let folder = tempfile::tempdir().unwrap();
    let model = TestModel::new(&[json!("1"), json!("2")]);
    for _ in 0..2 {
        let starting = async {
            loop {
                let builder = Agent::builder()
                    .models(Arc::clone(&model) as Arc<dyn Model>)
                    .session_id("support desk 7")
                    .messages(vec![replace_messages::user_message("before")])
                    .data(folder.path());
                match builder.start().await {
                    Ok(agent) => break agent,
                    Err(AgentError::Start(_)) => tokio::task::yield_now().await,
                    Err(error) => panic!("{error}"),
                }
            }
        };
        let agent = with_timeout(starting).await;
        with_timeout(agent.prompt("go")).await.unwrap();
    }
    assert_eq!(model.requests()[1], ["user:before", "user:go"]);
    assert_eq!(*lock(&model.sessions), ["support desk 7", "support desk 7"]);
}

#[tokio::test]
async fn start_reports_all_configuration_mistakes() {
    let settings = Settings { temperature: Some(7.0), max_rounds: Some(0), ..Settings::default() };
    let error = Agent::builder()
        .models(TestModel::new(&[]))
        .settings(settings)
        .tool(Echo::default())
        .tool(Echo::default())
        .start()
        .await
        .unwrap_err();
    let AgentError::Mistakes(mistakes) = error else { panic!("{error}") };
    let expected = [
        "two tools are called `echo`: `turnwheel::embedded::tests::Echo` and `turnwheel::embedded::tests::Echo`. Rename one of them",
        "`temperature` is 0 to 2",
        "`maxRounds` is at least 1",
    ];
    assert_eq!(mistakes, expected);
}

#[tokio::test]
async fn restarted_agent_runs_unprocessed_prompt() {
    let folder = tempfile::tempdir().unwrap();
    let model = TestModel::new(&[json!("1")]);
    let agent = start_agent_in(folder.path(), &model).await;
    let key = agent.inner.key();
    let agents = agent.inner.services.agents.clone();
    drop(agent);
    let services = open_when_free(folder.path(), &model, agents).await;
    accept_prompt(&services, &key, go_request(), &idempotency("1"), &setup::user_sender())
        .await
        .unwrap();
    drop(services);

    model.permits.forget_permits(Semaphore::MAX_PERMITS);
    let agent = start_agent_in(folder.path(), &model).await;
    assert!(agent.state().is_streaming);
    assert!(matches!(agent.prompt("too early").await, Err(AgentError::Busy(_))));
    model.permits.add_permits(1);
    with_timeout(agent.wait_for_idle()).await;
    assert_eq!(message_texts(&agent.state()), ["user:go", "assistant:1"]);
}

#[tokio::test]
async fn prompt_aborted_before_processing_ends() {
    let folder = tempfile::tempdir().unwrap();
    let model = TestModel::new(&[json!("1")]);
    let agent = start_agent_in(folder.path(), &model).await;
    let key = agent.inner.key();
    let agents = agent.inner.services.agents.clone();
    drop(agent);
    let services = open_when_free(folder.path(), &model, agents).await;
    accept_prompt(&services, &key, go_request(), &idempotency("1"), &setup::user_sender())
        .await
        .unwrap();
    abort(&services, &key, AbortRequest::default(), &idempotency("2")).await.unwrap();
    drop(services);
    let agent = start_agent_in(folder.path(), &model).await;
    with_timeout(agent.wait_for_idle()).await;
    with_timeout(agent.prompt("again")).await.unwrap();
    assert_eq!(message_texts(&agent.state()).last().unwrap(), "assistant:1");
}

fn go_request() -> PromptRequest {
    PromptRequest { input: Some("go".into()), ..PromptRequest::default() }
}

fn idempotency(key: &str) -> Idempotency {
    Idempotency {
        key: key.to_owned(),
        is_repeatable: false,
        route: "agent".to_owned(),
        body_hash: String::new(),
    }
}

/// Opens the services over the folder once it is unlocked.
async fn open_when_free(
    folder: &std::path::Path,
    model: &Arc<TestModel>,
    agents: SharedCatalog,
) -> Services {
    let opening = async {
        loop {
            let models = Arc::clone(model) as Arc<dyn Model>;
            let (extensions, listeners) = (Vec::new(), ErrorListeners::default());
            let opened =
                setup::open_services(folder, models, agents.clone(), extensions, listeners).await;
            match opened {
                Ok(services) => break services,
                Err(AgentError::Start(_)) => tokio::task::yield_now().await,
                Err(error) => panic!("{error}"),
            }
        }
    };
    with_timeout(opening).await
}

#[tokio::test]
async fn dropped_prompt_future_leaves_agent_idle() {
    let model = TestModel::new(&[json!("1")]);
    let agent = start_agent(&model).await;
    let switch_lock = agent.inner.switch.lock().await;
    let mut prompt = Box::pin(agent.prompt("never"));
    assert!(prompt.as_mut().now_or_never().is_none());
    assert!(agent.state().is_streaming);
    drop(prompt);
    drop(switch_lock);
    assert!(!agent.state().is_streaming);
    with_timeout(agent.prompt("go")).await.unwrap();
    assert_eq!(message_texts(&agent.state()), ["user:go", "assistant:1"]);
}

/// Extension that continues after the first response and ends the prompt after the second.
#[derive(Debug)]
struct ContinueOnce;

#[async_trait]
impl Extension for ContinueOnce {
    fn name(&self) -> &'static str {
        "checks-once"
    }

    async fn finish_turn(
        &self,
        _cx: &HookContext,
        turn: &ClosingTurn<'_>,
    ) -> Result<Option<FinishTurn>, HookError> {
        Ok(Some(if turn.rounds == 1 { FinishTurn::Continue } else { FinishTurn::End }))
    }
}

#[derive(Debug)]
struct FailingExtension;

#[async_trait]
impl Extension for FailingExtension {
    fn name(&self) -> &'static str {
        "fails"
    }

    async fn finish_turn(
        &self,
        cx: &HookContext,
        _turn: &ClosingTurn<'_>,
    ) -> Result<Option<FinishTurn>, HookError> {
        Err(HookError::new(format!("no opinion of {}", cx.agent())))
    }
}

#[tokio::test]
async fn error_of_extension_reaches_listener_of_agent() {
    let model = TestModel::new(&[json!("one")]);
    let errors = Arc::<Mutex<Vec<ExtensionError>>>::default();
    let to = Arc::clone(&errors);
    let builder = Agent::builder().models(model as Arc<dyn Model>).extension(FailingExtension);
    let builder = builder.on_extension_error(move |error| lock(&to).push(error.clone()));
    let agent = builder.start().await.unwrap();
    with_timeout(agent.prompt("go")).await.unwrap();
    let expected = ExtensionError {
        extension: "fails".to_owned(),
        event: "turn_end",
        text: "no opinion of agent".to_owned(),
    };
    assert_eq!(*lock(&errors), [expected]);
}

#[tokio::test]
async fn extension_controls_end_of_agent_turn() {
    let model = TestModel::new(&[json!("one"), json!("two"), json!("three")]);
    model.permits.forget_permits(Semaphore::MAX_PERMITS);
    let builder = Agent::builder().models(Arc::clone(&model) as Arc<dyn Model>);
    let agent = builder.extension(ContinueOnce).start().await.unwrap();
    let running = spawn_prompt(&agent, "go");
    wait_until(|| !model.requests().is_empty()).await;
    Box::pin(with_timeout(agent.follow_up("and then"))).await.unwrap();
    model.permits.add_permits(2);
    let prompt = with_timeout(running).await.unwrap().unwrap();
    assert_eq!(prompt.stop_reason, Some(turnwheel_conversation::entry::PromptStop::End));
    assert_eq!(model.requests()[1], ["user:go", "assistant:one"], "the context is the same");
    assert_eq!(model.requests().len(), 2, "the follow-up stays queued");
    model.permits.add_permits(8);
    Box::pin(with_timeout(agent.continue_())).await.unwrap();
    assert_eq!(model.requests()[2].last().unwrap(), "user:and then");
}
