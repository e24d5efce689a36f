//! The assembled system prompt: active tools, and the date of the prompt.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use serde_json::{Value, json};

use super::compaction::handle_until_idle;
use super::recorded_requests::{RecordingModel, system_text};
use super::store_requests::calls_look_twice;
use super::test_env::{TestEnv, idempotency};
use crate::context::TurnContext;
use crate::delivery::handle;
use turnwheel_agent_files::{SecuritySection, date_plugin};
use turnwheel_commands::extension_command::{CommandRequest, NamedCommand, run_extension_command};
use turnwheel_commands::patch::patch_conversation;
use turnwheel_conversation::schedule::zone::Zone;
use turnwheel_extensions::{
    CommandCall, CommandOutcome, CommandSpec, Extension, HookContext, HookError,
};
use turnwheel_model::protocol::system_prompt::SECURITY;
use turnwheel_platform::fail_points::NoFailPoints;
use turnwheel_record::services::Services;

fn last_lines(body: &Value) -> Vec<String> {
    let text = system_text(body);
    text.lines().rev().take(3).map(str::to_owned).collect()
}

/// An environment whose agent has the default prompt and the date, after the first response.
async fn new_env() -> (TestEnv, Services, Arc<RecordingModel>) {
    let mut env = TestEnv::with_script(1, calls_look_twice);
    env.settings.active_tools = Some(["read", "edit", "look"].map(str::to_owned).into());
    env.change_agent(|agent| {
        agent.has_default_prompt = true;
        agent.instructions = "Be kind.".into();
        agent.plugins = vec![date_plugin(Zone::from_name("Asia/Tokyo").unwrap())];
    });
    let model = RecordingModel::install_scripted(&mut env);
    let services = env.new_worker(Arc::new(NoFailPoints));
    env.send_prompt(&services).await;
    handle(&services, &TestEnv::nudge()).await.unwrap();
    (env, services, model)
}

#[tokio::test(start_paused = true)]
async fn date_is_that_of_the_start_of_the_prompt() {
    let (env, services, model) = new_env().await;
    let started = Zone::from_name("Asia/Tokyo").unwrap().to_local(services.clock.now()).date();
    // Another worker continues two days later.
    tokio::time::advance(Duration::from_hours(48)).await;
    handle_until_idle(&env, &services).await;
    env.queue_prompt(&services, &TestEnv::key(), "and now").await.unwrap();
    handle_until_idle(&env, &services).await;
    let bodies = model.bodies();
    let date = format!("Current date: {started}");
    let expected = ["Current working directory: /", date.as_str(), ""];
    assert_eq!(last_lines(&bodies[0]), expected);
    assert_eq!(system_text(&bodies[0]), system_text(&bodies[1]), "same bytes after two days");
    let today = started.checked_add(jiff::Span::new().days(2)).unwrap();
    assert_eq!(last_lines(&bodies[3])[1], format!("Current date: {today}"));
}

#[tokio::test(start_paused = true)]
async fn default_prompt_has_the_active_tools() {
    let (env, services, model) = new_env().await;
    let text = system_text(&model.bodies()[0]);
    let listed: Vec<_> = text.lines().filter_map(|line| line.strip_prefix("- ")).collect();
    assert_eq!(listed.len(), 4, "{text}");
    assert!(listed[3].starts_with("Use read to examine"), "{text}");
    assert!(text.contains("\n\nBe kind.\n\nCurrent date: "), "{text}");
    // What extensions see, and what the record keeps, is the same text.
    let head = env.head().await.unwrap();
    let context = TurnContext::resolve(&services, &head, None);
    assert!(text.starts_with(&*context.system_prompt), "{text}");
    let settings = json!({"settings": {"activeTools": ["read"]}});
    let key = idempotency("patch");
    let patch = settings.as_object().unwrap();
    patch_conversation(&services, &TestEnv::key(), patch, &key, |_| true).await.unwrap();
    let head = env.head().await.unwrap();
    let context = TurnContext::resolve(&services, &head, None);
    assert!(!context.system_prompt.contains("Guidelines"), "{}", context.system_prompt);
}

/// The key `security` in the loop that has no section by default.
#[tokio::test(start_paused = true)]
async fn security_section_follows_the_agent_file() {
    let sections = [
        (SecuritySection::Default, None),
        (SecuritySection::Off, None),
        (SecuritySection::On, Some(SECURITY)),
        (SecuritySection::Text("Never delete.".to_owned()), Some("Never delete.")),
    ];
    for (section, expected) in sections {
        let (mut env, _, model) = new_env().await;
        env.change_agent(|agent| agent.security = section.clone());
        let services = env.new_worker(Arc::new(NoFailPoints));
        handle_until_idle(&env, &services).await;
        let bodies = model.bodies();
        let text = system_text(bodies.last().unwrap());
        let parts: Vec<&str> = ["Be good."].into_iter().chain(expected).collect();
        assert_eq!(text, parts.join("\n\n"), "{section:?}");
    }
}

/// Keeps the system prompt that its command sees.
#[derive(Debug, Default)]
struct PromptReader(Mutex<String>);

#[async_trait]
impl Extension for PromptReader {
    fn name(&self) -> &'static str {
        "reader"
    }

    fn commands(&self) -> Vec<CommandSpec> {
        vec![CommandSpec::new("read", "")]
    }

    async fn run_command(
        &self,
        cx: &HookContext,
        _call: &CommandCall<'_>,
    ) -> Result<CommandOutcome, HookError> {
        cx.system_prompt().clone_into(&mut self.0.lock().unwrap());
        Ok(CommandOutcome::text("read"))
    }
}

#[tokio::test(start_paused = true)]
async fn command_sees_the_assembled_prompt() {
    let (mut env, _, model) = new_env().await;
    let reader = Arc::<PromptReader>::default();
    env.extensions = vec![Arc::clone(&reader) as Arc<dyn Extension>];
    let services = env.new_worker(Arc::new(NoFailPoints));
    let key = idempotency("read");
    let command = NamedCommand { name: "read", request: CommandRequest { args: None } };
    let run = run_extension_command(&services, &TestEnv::key(), command, &key, None).await;
    assert_eq!(run.unwrap().status, 200);
    let seen = reader.0.lock().unwrap().clone();
    assert!(seen.contains("- read: ") && seen.contains("\n\nBe kind."), "{seen}");
    assert!(system_text(&model.bodies()[0]).starts_with(&seen), "{seen}");
}
