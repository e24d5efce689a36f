//! Tools of a plugin read and set its state, which is stored with their results.

use std::sync::Arc;

use serde_json::{Value, json};

use super::{SendArguments, stored_state};
use crate::delivery::handle;
use crate::tests::compaction::handle_until_idle;
use crate::tests::leases::take_over_lease;
use crate::tests::parallel_calls::result_texts;
use crate::tests::test_env::{PauseFailPoint, Script, TestEnv, call, kill_at, text};
use turnwheel_conversation::entry::{Custom, EntryBody};
use turnwheel_conversation::request::Effect;
use turnwheel_extensions::plugin::RegisteredPlugin;
use turnwheel_extensions::{Plugin, PluginError, PluginTools, Prepare};
use turnwheel_platform::fail_points::{FailPoints, NoFailPoints};
use turnwheel_record::error::TurnError;
use turnwheel_record::services::Services;
use turnwheel_tools::ToolResult;
use turnwheel_tools::code::{CallContext, ServiceRegistry, Tool, ToolError, build_code_tool};

/// Adds its argument to the state of its plugin, and returns the sum.
struct AddTool {
    name: &'static str,
    effect: Effect,
    writes_state: bool,
}

impl AddTool {
    const fn new(name: &'static str, effect: Effect) -> Self {
        Self { name, effect, writes_state: true }
    }
}

impl Tool for AddTool {
    type Args = SendArguments;

    fn name(&self) -> &str {
        self.name
    }

    fn description(&self) -> &'static str {
        "Adds."
    }

    fn effect(&self) -> Effect {
        self.effect
    }

    fn writes_state(&self) -> bool {
        self.writes_state
    }

    async fn call(&self, args: SendArguments, cx: CallContext) -> Result<ToolResult, ToolError> {
        let before: u32 = cx.state()?.unwrap_or_default();
        // Parallel calls would all read the state before the first one sets it.
        tokio::time::sleep(std::time::Duration::from_secs(1)).await;
        let sum = before + args.n;
        if sum > 1_000 {
            cx.set_state(&"x".repeat(9_000))?;
        }
        cx.set_state(&sum)?;
        assert_eq!(cx.state::<u32>()?, Some(sum), "a call sees its own change");
        if args.n == 13 {
            return Err(ToolError::failed("unlucky"));
        }
        Ok(ToolResult::text(sum.to_string()))
    }
}

/// Offers its tools. Its state is a number, or a text.
#[derive(Debug)]
struct Counter;

impl Plugin for Counter {
    type State = Value;

    fn name(&self) -> &'static str {
        "counter"
    }

    fn tools(&self, tools: &mut PluginTools) {
        tools.tool(AddTool::new("add", Effect::Read));
        tools.tool(AddTool::new("book", Effect::Write));
        tools.tool(AddTool { writes_state: false, ..AddTool::new("read_only", Effect::Read) });
    }

    async fn prepare(&self, cx: &mut Prepare<'_, Value>) -> Result<(), PluginError> {
        ["add", "book", "read_only"].into_iter().try_for_each(|tool| cx.activate(tool))
    }
}

async fn env_with(script: Script, fail_points: Arc<dyn FailPoints>) -> (TestEnv, Services) {
    let mut env = TestEnv::with_script(31, script);
    env.enable_parallel_calls(4);
    env.set_plugins(&[Arc::new(
        RegisteredPlugin::new(Counter, ServiceRegistry::default()).unwrap(),
    )]);
    let services = env.new_worker(fail_points);
    env.send_prompt(&services).await;
    (env, services)
}

async fn run(script: Script) -> TestEnv {
    let (env, services) = env_with(script, Arc::new(NoFailPoints)).await;
    handle_until_idle(&env, &services).await;
    env
}

async fn change_count(env: &TestEnv) -> usize {
    let entries = env.entries().await;
    let is_change = |body: &EntryBody| matches!(body, EntryBody::Custom(Custom { custom_type, .. }) if custom_type == "turnwheel/state");
    entries.iter().filter(|entry| is_change(&entry.body)).count()
}

fn adds_in_two_rounds(results: usize, _input: &str) -> Vec<Value> {
    match results {
        0 => vec![call("c1", "add", 2), call("c2", "add", 3), call("c3", "book", 4)],
        3 => vec![call("c4", "add", 5)],
        _ => vec![text("done")],
    }
}

#[tokio::test(start_paused = true)]
async fn state_is_stored_with_each_result_and_parallel_calls_are_sequential() {
    let env = run(adds_in_two_rounds).await;
    assert_eq!(result_texts(&env).await, ["2", "5", "9", "14"]);
    assert_eq!(stored_state(&env, "counter").await, Some((1, json!(14))));
    assert_eq!(change_count(&env).await, 4);
}

#[tokio::test(start_paused = true)]
async fn failed_calls_and_large_states_store_nothing() {
    let env = run(|results, _| match results {
        0 => vec![call("c1", "add", 13)],
        1 => vec![call("c2", "add", 1_001)],
        2 => vec![call("c3", "read_only", 1)],
        _ => vec![text("done")],
    })
    .await;
    let results = result_texts(&env).await;
    assert_eq!(results[0], "Error in tool \"add\": unlucky");
    assert!(
        results[1].contains("The state of plugin \"counter\" is 9002 bytes; the maximum is 8192"),
        "{results:?}"
    );
    assert!(results[2].contains("`Tool::writes_state` must return true"), "{results:?}");
    assert_eq!((stored_state(&env, "counter").await, change_count(&env).await), (None, 0));
}

#[tokio::test(start_paused = true)]
async fn tool_without_a_plugin_has_no_state() {
    let mut env = TestEnv::with_script(31, |results, _| match results {
        0 => vec![call("c1", "look", 1)],
        _ => vec![text("done")],
    });
    let tool = build_code_tool(AddTool::new("look", Effect::Read)).unwrap();
    env.set_only_tool(&tool);
    let services = env.new_worker(Arc::new(NoFailPoints));
    env.send_prompt(&services).await;
    handle_until_idle(&env, &services).await;
    let expected = "this tool belongs to no plugin: declare it in `Plugin::tools`";
    assert!(result_texts(&env).await[0].ends_with(expected));
}

/// A repeated call starts from the stored state, so that each result changes the state once.
#[tokio::test(start_paused = true)]
async fn crash_around_a_call_changes_the_state_once() {
    let fail_points =
        ["pending-work.after", "tool.before", "tool.after", "result.before", "result.after"];
    for fail_point in fail_points {
        let pause = Arc::new(PauseFailPoint::new(fail_point));
        let (mut env, victim) = env_with(
            |results, _| match results {
                0..2 => vec![call("c1", "add", 2)],
                _ => vec![text("done")],
            },
            pause.clone(),
        )
        .await;
        kill_at(victim, &pause).await;
        env.run_until_idle().await;
        assert_eq!(result_texts(&env).await, ["2", "4"], "{fail_point}");
        assert_eq!(stored_state(&env, "counter").await, Some((1, json!(4))), "{fail_point}");
    }
}

#[tokio::test(start_paused = true)]
async fn late_result_brings_its_state() {
    let pause = Arc::new(PauseFailPoint::new("result.before"));
    let script: Script = |results, _| match results {
        0 => vec![call("c1", "book", 7), call("c2", "add", 1)],
        _ => vec![text("done")],
    };
    let (mut env, worker) = env_with(script, pause.clone()).await;
    let (store, nudge) = (env.store.clone(), TestEnv::nudge());
    let (handled, ()) = tokio::join!(handle(&worker, &nudge), async {
        pause.reached.notified().await;
        take_over_lease(&store).await;
        pause.resume.notify_one();
    });
    assert!(matches!(handled, Err(TurnError::LeaseLost { .. })), "{handled:?}");
    env.run_until_idle().await;
    assert_eq!(result_texts(&env).await, ["7", "8"]);
    assert_eq!(stored_state(&env, "counter").await, Some((1, json!(8))));
}
