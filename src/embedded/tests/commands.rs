//! Tests of commands of extensions in an in-process agent.

use super::*;
use turnwheel_commands::bash::BashRecord;
use turnwheel_commands::prompt::Mode;
use turnwheel_conversation::entry::PromptState;
use turnwheel_extensions::{
    CommandCall, CommandOutcome, CommandSpec, Extension, ForkPosition, HookContext, HookError,
    InputDecision, PendingFork, Permissions, PromptText, SessionDecision,
};
use turnwheel_json::raw::RawJson;

#[derive(Debug)]
struct Desk;

#[async_trait]
impl Extension for Desk {
    fn name(&self) -> &'static str {
        "desk"
    }

    fn commands(&self) -> Vec<CommandSpec> {
        ["greet", "fail"].map(|name| CommandSpec::new(name, "")).into()
    }

    async fn run_command(
        &self,
        cx: &HookContext,
        call: &CommandCall<'_>,
    ) -> Result<CommandOutcome, HookError> {
        if call.name == "fail" {
            return Err(HookError::new("no such desk"));
        }
        let state = if cx.is_idle() { "idle" } else { "busy" };
        Ok(CommandOutcome::text(format!("hello {}, {state}", call.args)))
    }

    async fn transform_input(
        &self,
        _cx: &HookContext,
        input: &PromptText,
    ) -> Result<InputDecision, HookError> {
        let is_handled = input.text == "stop";
        Ok(if is_handled { InputDecision::Handled } else { InputDecision::Continue })
    }
}

async fn desk_agent(model: &Arc<TestModel>) -> Agent {
    let model = Arc::clone(model) as Arc<dyn Model>;
    Agent::builder().models(model).extension(Desk).start().await.unwrap()
}

fn output_text(prompt: &PromptView) -> Option<String> {
    let output = serde_json::to_value(prompt.output.first()?).unwrap();
    output["content"].as_str().map(str::to_owned)
}

#[tokio::test]
async fn prompt_runs_a_command_without_the_model() {
    let model = TestModel::new(&[json!("hi")]);
    let agent = desk_agent(&model).await;
    let greeted = agent.prompt("/greet Ann").await.unwrap();
    assert_eq!(output_text(&greeted).as_deref(), Some("hello Ann, idle"));
    assert_eq!((greeted.state, greeted.error), (PromptState::Completed, None));
    let failed = agent.prompt("/fail").await.unwrap();
    assert_eq!(failed.state, PromptState::Failed);
    assert_eq!(failed.error.unwrap().message, "no such desk");
    let handled = agent.prompt("stop").await.unwrap();
    assert_eq!((handled.state, handled.output.len()), (PromptState::Completed, 0));
    assert!(model.requests().is_empty() && agent.state().messages.is_empty());
    assert_eq!(output_text(&agent.prompt("go").await.unwrap()).as_deref(), Some("hi"));
}

#[tokio::test]
async fn command_runs_during_a_run_and_cannot_be_queued() {
    let model = TestModel::new(&[json!("hi")]);
    let permits = model.permits.forget_permits(Semaphore::MAX_PERMITS);
    let agent = desk_agent(&model).await;
    let (prompt, greeted) = tokio::join!(agent.prompt("go"), async {
        while model.requests().is_empty() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let greeted = agent.prompt("/greet Ann").await.unwrap();
        assert!(matches!(agent.prompt("more").await, Err(AgentError::Busy(_))));
        for queued in [agent.steer("/greet Ann").await, agent.follow_up("/greet Ann").await] {
            assert_eq!(
                queued.unwrap_err().to_string(),
                "Extension command \"/greet\" cannot be queued. Use prompt() or execute the command when not streaming."
            );
        }
        model.permits.add_permits(permits);
        greeted
    });
    assert_eq!(output_text(&greeted).as_deref(), Some("hello Ann, busy"));
    assert_eq!(output_text(&prompt.unwrap()).as_deref(), Some("hi"));
}

#[tokio::test]
async fn user_message_is_never_a_command() {
    let model = TestModel::new(&[json!("hi")]);
    let agent = desk_agent(&model).await;
    agent.send_user_message("/greet Ann", Mode::Prompt).await.unwrap();
    assert_eq!(model.requests(), [["user:/greet Ann"]]);
}

#[tokio::test]
async fn run_command_returns_output_or_failure() {
    let agent = desk_agent(&TestModel::new(&[])).await;
    let outcome = agent.run_command("greet", "Ann").await.unwrap();
    assert_eq!(outcome, CommandOutcome::text("hello Ann, idle"));
    let failure = agent.run_command("fail", "").await.unwrap_err();
    assert!(matches!(&failure, AgentError::Command(text) if text == "no such desk"));
    let unknown = agent.run_command("fly", "").await.unwrap_err();
    assert!(matches!(unknown, AgentError::Refused(CommandError::UnknownCommand)));
}

/// Asks before it greets, and before a fork; its greeting is a setting.
#[derive(Debug)]
struct Careful;

#[async_trait]
impl Extension for Careful {
    fn name(&self) -> &'static str {
        "careful"
    }

    fn permissions(&self) -> Permissions {
        Permissions::new().with_settings(["greeting"])
    }

    fn commands(&self) -> Vec<CommandSpec> {
        vec![CommandSpec::new("greet", "")]
    }

    async fn run_command(
        &self,
        cx: &HookContext,
        call: &CommandCall<'_>,
    ) -> Result<CommandOutcome, HookError> {
        let greeting: Option<String> = cx.setting("greeting")?;
        let greeting = greeting.unwrap_or_else(|| "hello".to_owned());
        let is_sure = cx.confirm("sure", "Greet?")?;
        let text = if is_sure { format!("{greeting} {}", call.args) } else { "silent".to_owned() };
        Ok(CommandOutcome::text(text))
    }

    async fn before_session_fork(
        &self,
        cx: &HookContext,
        _fork: &PendingFork<'_>,
    ) -> Result<SessionDecision, HookError> {
        let is_sure = cx.confirm("sure", "Fork?")?;
        Ok(if is_sure { SessionDecision::Continue } else { SessionDecision::Cancel })
    }
}

/// Answers the next question.
async fn answer_next(agent: &Agent, value: bool) {
    loop {
        if let [question] = &agent.approvals().await.unwrap()[..] {
            let value = Some(RawJson::from_value(&value));
            let decision = DecisionRequest { decision: "answer".to_owned(), reason: None, value };
            return agent.decide(question.id.as_str(), decision).await.unwrap();
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

async fn careful_agent(model: &Arc<TestModel>) -> Agent {
    let model = Arc::clone(model) as Arc<dyn Model>;
    let builder = Agent::builder().models(model).extension(Careful);
    builder.extension_setting("careful", "greeting", "moin").start().await.unwrap()
}

#[tokio::test]
async fn command_that_asks_returns_after_the_answer() {
    let agent = careful_agent(&TestModel::new(&[])).await;
    let (outcome, ()) = tokio::join!(agent.run_command("greet", "Ann"), answer_next(&agent, true));
    assert_eq!(outcome.unwrap(), CommandOutcome::text("moin Ann"));
    let (prompt, ()) = tokio::join!(agent.prompt("/greet Ann"), answer_next(&agent, false));
    assert_eq!(output_text(&prompt.unwrap()).as_deref(), Some("silent"));
}

#[tokio::test]
async fn fork_that_asks_returns_after_the_answer() {
    let agent = careful_agent(&TestModel::new(&[json!("hi")])).await;
    agent.prompt("go").await.unwrap();
    let first = agent.conversation_id();
    let services = &agent.inner.services;
    let (head, _) = load::head(services, &agent.inner.key()).await.unwrap();
    let entries = load::all_entries(services, &head).await.unwrap();
    let entry_id = entries.last().unwrap().base.entry_id.clone();
    let (refused, ()) =
        tokio::join!(agent.fork(&entry_id, ForkPosition::At), answer_next(&agent, false));
    assert_eq!((refused.unwrap(), agent.conversation_id()), (None, first.clone()));
    let (fork, ()) =
        tokio::join!(agent.fork(&entry_id, ForkPosition::At), answer_next(&agent, true));
    assert_eq!(fork.unwrap().unwrap().conversation_id, agent.conversation_id());
    assert_ne!(agent.conversation_id(), first);
}

#[tokio::test]
async fn undeclared_setting_fails_the_start() {
    let builder = Agent::builder().models(TestModel::new(&[])).extension(Careful);
    let start = builder.extension_setting("careful", "volume", 3).start();
    let Err(AgentError::Mistakes(mistakes)) = start.await else { panic!("it started") };
    assert!(mistakes[0].contains("does not declare the setting `volume`"), "{mistakes:?}");
}

#[tokio::test]
async fn recorded_shell_command_precedes_the_next_prompt() {
    let model = TestModel::new(&[json!("hi")]);
    let agent = desk_agent(&model).await;
    let output = Some("a b".to_owned());
    let record = BashRecord { command: "ls".to_owned(), output, ..BashRecord::default() };
    agent.record_bash(record).await.unwrap();
    let refused = agent.record_bash(BashRecord::default()).await.unwrap_err();
    assert!(matches!(refused, AgentError::Refused(CommandError::Invalid(_))));
    agent.prompt("go").await.unwrap();
    assert_eq!(model.requests(), [["user:Ran `ls`\n```\na b\n```", "user:go"]]);
}

#[tokio::test]
async fn equal_names_fail_the_start() {
    let start =
        Agent::builder().models(TestModel::new(&[])).extension(Desk).extension(Desk).start();
    let Err(AgentError::Mistakes(mistakes)) = start.await else { panic!("it started") };
    assert_eq!(mistakes.len(), 3, "the name of the extension, and two commands: {mistakes:?}");
}
