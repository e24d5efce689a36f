//! Plugins: their tools and texts reach the model; their state is stored with complete responses.

mod registration;
mod tool_state;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};

use super::compaction::handle_until_idle;
use super::frame::tool_names;
use super::parallel_calls::result_texts;
use super::recorded_requests::RecordingModel;
use super::store_requests::{calls_look_twice, handle_next_nudge};
use super::test_env::{LoggedRequests as _, RequestLogStore, Script, TestEnv, call, text};
use crate::context::TurnContext;
use turnwheel_conversation::entry::EntryBody;
use turnwheel_conversation::plugin_state::PluginState;
use turnwheel_conversation::request::Effect;
use turnwheel_extensions::plugin::RegisteredPlugin;
use turnwheel_extensions::{Plugin, PluginError, PluginTools, Prepare};
use turnwheel_model::tokens::count_tokens;
use turnwheel_platform::fail_points::NoFailPoints;
use turnwheel_record::services::Services;
use turnwheel_tools::ToolResult;
use turnwheel_tools::code::{Approval, CallContext, ServiceRegistry, Tool, ToolError};

const DAY: Duration = Duration::from_hours(24);

/// The tool `send_NAME` of a plugin; each call needs an approval.
struct SendTool {
    name: String,
    needs_approval: bool,
}

#[derive(Deserialize, JsonSchema)]
struct SendArguments {
    n: u32,
}

impl Tool for SendTool {
    type Args = SendArguments;

    fn name(&self) -> &str {
        &self.name
    }

    fn description(&self) -> &'static str {
        "Sends a message."
    }

    fn effect(&self) -> Effect {
        Effect::Write
    }

    fn approval(&self, _: &SendArguments) -> Option<Approval> {
        self.needs_approval.then(|| Approval::because("it is public").within(30 * DAY))
    }

    async fn call(&self, args: SendArguments, _: CallContext) -> Result<ToolResult, ToolError> {
        Ok(ToolResult::text(format!("sent {}", args.n)))
    }
}

type PrepareFn = fn(&mut Prepare<'_, Value>) -> Result<(), PluginError>;

#[derive(Clone)]
struct ScriptedPlugin {
    name: &'static str,
    version: u32,
    is_optional: bool,
    needs_approval: bool,
    prepare: PrepareFn,
}

impl fmt::Debug for ScriptedPlugin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

impl ScriptedPlugin {
    fn new(name: &'static str, prepare: PrepareFn) -> Self {
        Self { name, version: 1, is_optional: false, needs_approval: false, prepare }
    }

    fn register(self) -> Arc<RegisteredPlugin> {
        Arc::new(RegisteredPlugin::new(self, ServiceRegistry::default()).unwrap())
    }
}

impl Plugin for ScriptedPlugin {
    type State = Value;

    fn name(&self) -> &str {
        self.name
    }

    fn schema_version(&self) -> u32 {
        self.version
    }

    fn tools(&self, tools: &mut PluginTools) {
        let name = format!("send_{}", self.name);
        tools.tool(SendTool { name, needs_approval: self.needs_approval });
    }

    fn is_optional(&self) -> bool {
        self.is_optional
    }

    async fn prepare(&self, cx: &mut Prepare<'_, Value>) -> Result<(), PluginError> {
        tokio::task::yield_now().await;
        (self.prepare)(cx)
    }
}

fn rounds(cx: &Prepare<'_, Value>) -> u64 {
    cx.state().and_then(Value::as_u64).unwrap_or_default()
}

/// Counts the complete responses.
fn counts(cx: &mut Prepare<'_, Value>) -> Result<(), PluginError> {
    cx.set_state(json!(rounds(cx) + 1))
}

/// Returns an environment whose agent has the plugins, and an accepted prompt.
async fn env_with(
    script: Script,
    plugins: &[ScriptedPlugin],
) -> (TestEnv, Services, Arc<RecordingModel>) {
    let mut env = TestEnv::with_script(1, script);
    let plugins: Vec<_> = plugins.iter().cloned().map(ScriptedPlugin::register).collect();
    env.set_plugins(&plugins);
    let model = RecordingModel::install_scripted(&mut env);
    let services = env.new_worker(Arc::new(NoFailPoints));
    env.send_prompt(&services).await;
    (env, services, model)
}

async fn run(script: Script, plugins: &[ScriptedPlugin]) -> (TestEnv, Vec<Value>) {
    let (env, services, model) = env_with(script, plugins).await;
    handle_until_idle(&env, &services).await;
    let bodies = model.bodies();
    (env, bodies)
}

/// Type and text of the error of the last prompt.
async fn prompt_error(env: &TestEnv) -> Option<(String, String)> {
    let entries = env.entries().await;
    let ended = entries.iter().rev().find_map(|entry| match &entry.body {
        EntryBody::PromptEnd(end) => Some(end.error.clone()),
        _ => None,
    });
    ended.flatten().map(|error| (error.kind.clone(), error.message.clone()))
}

/// `seq` of each frame entry, and the frame that each response names.
async fn frames(env: &TestEnv) -> (Vec<u64>, Vec<Option<u64>>) {
    let entries = env.entries().await;
    let is_frame = |body: &EntryBody| matches!(body, EntryBody::Frame(_));
    let frames = entries.iter().filter(|entry| is_frame(&entry.body)).map(|entry| entry.base.seq);
    let named = entries.iter().filter_map(|entry| match &entry.body {
        EntryBody::Message(message) if message.message.as_assistant().is_some() => {
            Some(message.frame)
        }
        _ => None,
    });
    (frames.collect(), named.collect())
}

async fn stored_state(env: &TestEnv, plugin: &str) -> Option<(u32, Value)> {
    let head = env.head().await.unwrap();
    let stored: Option<&PluginState> = head.plugin_state.get(plugin);
    stored.map(|stored| (stored.schema, stored.value.to_value()))
}

fn looks_then_sends(results: usize, _input: &str) -> Vec<Value> {
    match results {
        0 => vec![call("c1", "look", 0)],
        1 => vec![call("c2", "send_skills", 1)],
        _ => vec![text("done")],
    }
}

fn sends(results: usize, _input: &str) -> Vec<Value> {
    if results == 0 { vec![call("c1", "send_skills", 7)] } else { vec![text("done")] }
}

/// Activates the tool after the first round.
fn activates_later(cx: &mut Prepare<'_, Value>) -> Result<(), PluginError> {
    if cx.prompt().rounds > 0 {
        cx.activate("send_skills")?;
        cx.context("Email skill is active");
    }
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn tool_activated_in_round_1_is_offered_in_round_2() {
    let (env, bodies) =
        run(looks_then_sends, &[ScriptedPlugin::new("skills", activates_later)]).await;
    let offers = |body: &Value| tool_names(body).contains(&"send_skills".to_owned());
    assert_eq!(bodies.iter().map(offers).collect::<Vec<_>>(), [false, true, true]);
    assert_eq!(result_texts(&env).await, ["look done", "sent 1"]);
    let (frames, named) = frames(&env).await;
    assert_eq!(named, [Some(frames[0]), Some(frames[1]), Some(frames[1])]);
    assert_eq!(frames.len(), 2, "the third round has the frame of the second");
}

#[tokio::test(start_paused = true)]
async fn items_join_into_one_system_message() {
    let first = ScriptedPlugin::new("first", |cx| {
        cx.volatile_context("It is Monday.");
        cx.context("Email skill is active");
        Ok(())
    });
    let second = ScriptedPlugin::new("second", |cx| {
        cx.context(format!("{} messages for {}", cx.history().len(), cx.user()));
        Ok(())
    });
    let (_, bodies) = run(calls_look_twice, &[first, second]).await;
    let joined = r"Be good.\n\nEmail skill is active\n\n1 messages for u\n\nIt is Monday.";
    assert!(bodies[0].to_string().contains(joined), "{}", bodies[0]);
}

#[tokio::test(start_paused = true)]
async fn frame_entry_only_on_change() {
    let (env, _) = run(calls_look_twice, &[ScriptedPlugin::new("idle", |_| Ok(()))]).await;
    assert_eq!(frames(&env).await, (vec![3], vec![Some(3); 3]), "the agent's own frame");
    let returns = ScriptedPlugin::new("skills", |cx| {
        if cx.prompt().rounds == 1 {
            cx.activate("send_skills")?;
        }
        Ok(())
    });
    let (env, bodies) = run(calls_look_twice, &[returns]).await;
    let (seqs, named) = frames(&env).await;
    assert_eq!(
        named,
        [Some(seqs[0]), Some(seqs[1]), Some(seqs[2])],
        "the own frame is recorded after another"
    );
    assert_eq!(tool_names(&bodies[0]), tool_names(&bodies[2]));
}

#[tokio::test(start_paused = true)]
async fn prefix_is_stable() {
    let stable = ScriptedPlugin::new("skills", |cx| {
        cx.activate("send_skills")?;
        cx.context("Email skill is active");
        counts(cx)
    });
    let (_, mut bodies) = run(calls_look_twice, &[stable]).await;
    let inputs: Vec<Value> = bodies.iter_mut().map(|body| body["input"].take()).collect();
    assert_eq!(bodies[0].to_string(), bodies[2].to_string(), "everything but the input is equal");
    let (first, last) = (inputs[0].as_array().unwrap(), inputs[2].as_array().unwrap());
    assert_eq!(first[..], last[..first.len()]);
}

#[tokio::test(start_paused = true)]
async fn later_plugin_sees_earlier_state() {
    let reads = |cx: &mut Prepare<'_, Value>| {
        let counter = ScriptedPlugin::new("counter", counts);
        cx.context(format!("round {:?}", cx.state_of(&counter)?.and_then(|n| n.as_u64())));
        Ok(())
    };
    let (before, after) =
        (ScriptedPlugin::new("before", reads), ScriptedPlugin::new("after", reads));
    let counter = ScriptedPlugin::new("counter", counts);
    let (env, bodies) = run(calls_look_twice, &[before, counter, after]).await;
    assert!(bodies[0].to_string().contains(r"round None\n\nround Some(1)"), "{}", bodies[0]);
    assert!(bodies[2].to_string().contains(r"round Some(2)\n\nround Some(3)"), "{}", bodies[2]);
    assert_eq!(stored_state(&env, "counter").await, Some((1, json!(3))));
}

#[tokio::test(start_paused = true)]
async fn tool_of_an_old_frame_is_found_after_days() {
    let once = ScriptedPlugin::new("skills", |cx| {
        if cx.prompt().rounds == 0 {
            cx.activate("send_skills")?;
        }
        Ok(())
    });
    let gated = ScriptedPlugin { needs_approval: true, ..once };
    let (mut env, services, _) = env_with(sends, &[gated]).await;
    let received = env.head().await.unwrap();
    assert!(received.requests.is_empty());
    crate::delivery::handle(&services, &TestEnv::nudge()).await.unwrap();
    assert_eq!(env.head().await.unwrap().requests.len(), 1);
    tokio::time::sleep(9 * DAY).await;
    env.decide_all("approve").await;
    let other = env.new_worker(Arc::new(NoFailPoints));
    handle_until_idle(&env, &other).await;
    assert_eq!(result_texts(&env).await, ["sent 7"]);
}

#[tokio::test(start_paused = true)]
async fn tool_not_offered_is_not_found() {
    let silent: PrepareFn = |_| Ok(());
    let talks: PrepareFn = |cx| {
        cx.context("No tools today.");
        Ok(())
    };
    for prepare in [silent, talks] {
        let (env, _) = run(sends, &[ScriptedPlugin::new("skills", prepare)]).await;
        let results = result_texts(&env).await;
        assert!(results[0].starts_with("Tool \"send_skills\" not found"), "{results:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn failing_plugin_fails_the_call_and_optional_one_does_not() {
    let fails: PrepareFn = |_| Err(PluginError::new("the directory is away"));
    let panics: PrepareFn = |_| panic!("a secret of the conversation");
    let unknown: PrepareFn = |cx| cx.activate("pay");
    let cases = [
        (fails, "the directory is away"),
        (panics, "it panicked"),
        (unknown, "it has no tool \"pay\""),
    ];
    for (prepare, cause) in cases {
        let counter = ScriptedPlugin::new("counter", counts);
        let bad = ScriptedPlugin::new("crm", prepare);
        let (env, bodies) = run(calls_look_twice, &[counter.clone(), bad.clone()]).await;
        assert_eq!(bodies, Vec::<Value>::new(), "the model is not called");
        let text = format!("plugin \"crm\" failed in prepare: {cause}");
        assert_eq!(prompt_error(&env).await, Some(("plugin".to_owned(), text)));
        assert_eq!(stored_state(&env, "counter").await, None);
        let optional = ScriptedPlugin { is_optional: true, ..bad };
        let (env, bodies) = run(calls_look_twice, &[counter, optional]).await;
        assert_eq!((bodies.len(), prompt_error(&env).await), (3, None));
        assert_eq!(stored_state(&env, "counter").await, Some((1, json!(3))));
    }
}

#[tokio::test(start_paused = true)]
async fn retryable_failure_is_retried() {
    let retries: PrepareFn = |_| Err(PluginError::retryable("busy"));
    let (env, bodies) = run(calls_look_twice, &[ScriptedPlugin::new("crm", retries)]).await;
    assert_eq!(bodies, Vec::<Value>::new());
    let (_, responses) = frames(&env).await;
    assert!(responses.len() > 1, "{responses:?}");
    assert_eq!(prompt_error(&env).await.unwrap().0, "plugin");
}

#[tokio::test(start_paused = true)]
async fn oversized_state_and_items_are_refused() {
    let state: PrepareFn = |cx| cx.set_state(json!("x".repeat(8 * 1024)));
    let items: PrepareFn = |cx| {
        cx.context("x".repeat(40_000));
        Ok(())
    };
    for (prepare, cause) in [
        (state, "The state of plugin \"crm\" is 8194 bytes; the maximum is 8192"),
        (items, "its context items are 40000 bytes; the maximum is 32768"),
    ] {
        let (env, _) = run(sends, &[ScriptedPlugin::new("crm", prepare)]).await;
        let text = format!("plugin \"crm\" failed in prepare: {cause}");
        assert_eq!(prompt_error(&env).await.unwrap().1, text);
    }
}

#[tokio::test(start_paused = true)]
async fn failed_migration_keeps_the_stored_state() {
    let plugin = |version| ScriptedPlugin { version, ..ScriptedPlugin::new("counter", counts) };
    let (mut env, services, _) = env_with(calls_look_twice, &[plugin(3)]).await;
    handle_until_idle(&env, &services).await;
    for (version, cause) in [
        (4, "its stored state has schema 3, and it has no migration to 4"),
        (2, "its stored state has schema 3, this version reads 2"),
    ] {
        env.set_plugins(&[plugin(version).register()]);
        env.queue_prompt(&services, &TestEnv::key(), &format!("go {version}")).await.unwrap();
        handle_until_idle(&env, &services).await;
        let text = format!("plugin \"counter\" failed in prepare: {cause}");
        assert_eq!(prompt_error(&env).await.unwrap().1, text);
        assert_eq!(stored_state(&env, "counter").await, Some((3, json!(3))));
    }
}

#[tokio::test(start_paused = true)]
async fn failed_and_aborted_responses_store_nothing() {
    let (env, services, _) =
        env_with(calls_look_twice, &[ScriptedPlugin::new("counter", counts)]).await;
    *env.model.failures_left.lock().unwrap() = 2;
    handle_until_idle(&env, &services).await;
    assert_eq!(
        stored_state(&env, "counter").await,
        Some((1, json!(3))),
        "three complete responses"
    );
}

#[tokio::test(start_paused = true)]
async fn state_changes_once_per_committed_response() {
    let mut total = 0;
    for seed in 0..12 {
        let mut env = TestEnv::new(seed);
        env.set_plugins(&[ScriptedPlugin::new("counter", counts).register()]);
        env.crash_percent = 10;
        env.stall_percent = 5;
        let services = env.new_worker(Arc::new(NoFailPoints));
        env.send_prompt(&services).await;
        *env.model.failures_left.lock().unwrap() = u32::try_from(seed % 3).unwrap();
        env.run_until_idle().await;
        let entries = env.entries().await;
        let complete = entries.iter().filter(|entry| {
            let message = entry.body.message().and_then(|message| message.as_assistant());
            message.is_some_and(|message| !message.is_failed())
        });
        let complete = complete.count();
        let states = entries.iter().filter_map(|entry| match &entry.body {
            EntryBody::Custom(custom) if custom.custom_type == "turnwheel/state" => {
                custom.data.as_ref().map(|data| data.to_value()["state"]["value"].clone())
            }
            _ => None,
        });
        let expected: Vec<Value> = (1..=complete).map(|n| json!(n)).collect();
        assert_eq!(states.collect::<Vec<_>>(), expected, "seed {seed}");
        let expected = (complete > 0).then(|| (1, json!(complete)));
        assert_eq!(stored_state(&env, "counter").await, expected, "seed {seed}");
        total += complete;
    }
    assert!(total > 24, "only {total} responses");
}

#[tokio::test(start_paused = true)]
async fn window_check_and_estimate_count_the_frame() {
    let plugin = ScriptedPlugin::new("skills", |cx| {
        cx.activate("send_skills")?;
        cx.context("word ".repeat(100));
        Ok(())
    });
    let (env, services, _) = env_with(calls_look_twice, &[plugin]).await;
    let head = env.head().await.unwrap();
    let context = TurnContext::resolve(&services, &head, None);
    let own = context.own_frame();
    let before = context.frame_tokens(&head, &count_tokens);
    assert!(before > own.tokens(&count_tokens), "all tools of plugins count before the first call");
    assert!(context.frame_bytes_max() > own.bytes() + 32 * 1024);
    handle_until_idle(&env, &services).await;
    let head = env.head().await.unwrap();
    let context = TurnContext::resolve(&services, &head, None);
    let after = context.frame_tokens(&head, &count_tokens);
    assert!(after >= before + 100, "{after} {before}");
    assert_eq!(after, head.frame.unwrap().tokens);
}

#[tokio::test(start_paused = true)]
async fn prepare_adds_no_request() {
    let mut costs = Vec::new();
    for plugins in [vec![], vec![ScriptedPlugin::new("counter", counts).register()]] {
        let mut env = TestEnv::with_script(1, calls_look_twice);
        env.set_plugins(&plugins);
        let counting = RequestLogStore::wrap(env.store.clone());
        env.worker_store = counting.clone();
        let services = env.new_worker(Arc::new(NoFailPoints));
        env.send_prompt(&services).await;
        costs.push(handle_next_nudge(&env, &services, &counting).await.lines().count());
    }
    assert_eq!(costs[0], costs[1]);
}
