//! `AGENTS.md` of a workspace in the system prompt: as of the start of the prompt, on every worker.

use std::sync::Arc;

use async_trait::async_trait;
use serde_json::{Value, json};

use super::compaction::handle_until_idle;
use super::recorded_requests::{RecordedEnv, RecordingModel, system_text};
use super::store_requests::{handle_next_nudge, queued_nudges};
use super::test_env::{LoggedRequests as _, RequestLogStore, Script, TestEnv, call, text};
use crate::delivery::handle;
use turnwheel_agent_files::workspace_plugin;
use turnwheel_conversation::phase::Phase;
use turnwheel_conversation::settings::CompactionSettings;
use turnwheel_model::{Listener, Model, ModelRecord, ModelRequest, ModelResponse};
use turnwheel_platform::fail_points::NoFailPoints;
use turnwheel_platform::ids::fault_plan::FaultPlan;
use turnwheel_storage::artifacts::ArtifactFaults;
use turnwheel_storage::queue;

const NOTE: &str = "Tools wrote this file of the workspace.";

fn write(content: &str) -> Value {
    let arguments = json!({"path": "AGENTS.md", "content": content});
    json!({"type": "toolCall", "id": "w1", "name": "write", "arguments": arguments})
}

/// Writes the rest of the input as the file in the first round; `look` runs in the second.
fn writes_the_input(results: usize, input: &str) -> Vec<Value> {
    match (results, input.strip_prefix("write ")) {
        (0, Some(content)) => vec![write(content)],
        (1, _) => vec![call("c2", "look", 0)],
        _ => vec![text("done")],
    }
}

/// A model with a small context window.
#[derive(Debug)]
struct SmallWindow(Arc<RecordingModel>);

#[async_trait]
impl Model for SmallWindow {
    async fn respond(&self, request: ModelRequest<'_>, listener: &dyn Listener) -> ModelResponse {
        self.0.respond(request, listener).await
    }

    fn record(&self, model: &str) -> Result<ModelRecord, String> {
        Ok(ModelRecord { context_window: 1_200, ..self.0.record(model)? })
    }
}

fn make_artifacts_unavailable(env: &TestEnv) {
    let faults = ArtifactFaults { unavailable: 1.0, ..ArtifactFaults::default() };
    env.artifacts.set_faults(&FaultPlan::new(1), faults);
}

fn recorded_env(script: Script) -> RecordedEnv {
    let mut env = TestEnv::with_script(1, script);
    env.change_agent(|agent| agent.plugins = vec![workspace_plugin(false)]);
    RecordedEnv::new(env)
}

fn system_texts(bodies: &[Value]) -> Vec<String> {
    bodies.iter().map(system_text).collect()
}

#[tokio::test(start_paused = true)]
async fn file_is_part_of_the_prompt_after_the_one_that_writes_it() {
    let mut app = recorded_env(writes_the_input);
    let first = system_texts(&app.run("write Be brief.").await);
    assert_eq!(first.len(), 3);
    assert!(first.iter().all(|system| !system.contains("AGENTS.md")), "{first:?}");
    let second = system_texts(&app.run("write Be long.").await);
    insta::assert_snapshot!(second[0], @r"
    Be good.

    # Project Context

    Project-specific instructions and guidelines:

    ## AGENTS.md

    Tools wrote this file of the workspace. The rules above come first where they differ.

    Be brief.
    ");
    assert!(second.iter().all(|system| *system == second[0]), "fixed for the prompt");
    let third = system_texts(&app.run("go").await);
    assert!(third[0].ends_with("\n\nBe long."), "{}", third[0]);
}

#[tokio::test(start_paused = true)]
async fn another_worker_continues_with_the_same_file() {
    let mut app = recorded_env(writes_the_input);
    system_texts(&app.run("write Be brief.").await);
    app.model.clear();
    app.env.queue_prompt(&app.services, &TestEnv::key(), "write Be long.").await.unwrap();
    handle(&app.services, &TestEnv::nudge()).await.unwrap();
    let other = app.env.new_worker(Arc::new(NoFailPoints));
    handle_until_idle(&app.env, &other).await;
    let systems = system_texts(&app.model.bodies());
    assert_eq!(systems.len(), 3);
    assert!(systems.iter().all(|system| system.ends_with("\n\nBe brief.")), "{systems:?}");
}

#[tokio::test(start_paused = true)]
async fn compaction_within_the_prompt_keeps_the_file() {
    fn long_rounds(results: usize, input: &str) -> Vec<Value> {
        match (results, input.strip_prefix("write ")) {
            (0, Some(content)) => vec![write(content)],
            (1..=8, _) => {
                vec![text(&"a long answer ".repeat(20)), call("c2", "look", results)]
            }
            _ => vec![text("done")],
        }
    }
    let mut app = recorded_env(long_rounds);
    app.env.settings.active_tools = Some(["look", "write"].map(str::to_owned).into());
    app.env.settings.compaction =
        Some(CompactionSettings { enabled: true, reserve_tokens: 500, keep_recent_tokens: 100 });
    app.env.model_override = Some(Arc::new(SmallWindow(app.model.clone())));
    app.services = app.env.new_worker(Arc::new(NoFailPoints));
    system_texts(&app.run("write Be brief.").await);
    app.model.clear();
    app.env.queue_prompt(&app.services, &TestEnv::key(), "write Be long.").await.unwrap();
    let from = app.env.head().await.unwrap().seq;
    while app.env.head().await.unwrap().phase != Phase::Idle || queued_nudges(&app.env).await > 0 {
        app.env.queue.drop_queue(queue::TURNS);
        // No worker has a cache.
        let services = app.env.new_worker(Arc::new(NoFailPoints));
        handle(&services, &TestEnv::nudge()).await.unwrap();
    }
    let entries = app.env.entries().await;
    let of_prompt = || entries.iter().filter(|entry| entry.base.seq > from);
    let compacted = of_prompt().position(|entry| entry.body.compaction().is_some());
    let compacted = compacted.expect("the prompt is compacted");
    assert!(of_prompt().skip(compacted).count() > 4, "it goes on after the compaction");
    let systems = system_texts(&app.model.bodies());
    let calls: Vec<_> = systems.iter().filter(|system| system.contains("Be good.")).collect();
    assert!(calls.len() > 4, "{systems:?}");
    assert!(calls.iter().all(|system| system.ends_with("\n\nBe brief.")), "{calls:?}");
}

#[tokio::test(start_paused = true)]
async fn file_that_cannot_be_shown_is_named_with_the_reason() {
    let mut app = recorded_env(|results, input| match (results, input) {
        (0, "large") => vec![write(&"x".repeat(12 * 1024 + 1))],
        (0, "largest") => vec![write(&"y".repeat(12 * 1024))],
        _ => vec![text("done")],
    });
    system_texts(&app.run("large").await);
    let systems = system_texts(&app.run("largest").await);
    let expected = "The file AGENTS.md of the workspace is not shown: it has 12289 bytes, and at most 12288 are shown.";
    assert!(systems[0].contains(expected) && !systems[0].contains(NOTE), "{}", systems[0]);
    let systems = system_texts(&app.run("go").await);
    assert!(systems[0].contains(NOTE) && systems[0].ends_with("yyy"));
}

#[tokio::test(start_paused = true)]
async fn unavailable_artifacts_repeat_the_turn() {
    let mut app = recorded_env(writes_the_input);
    system_texts(&app.run("write Be brief.").await);
    app.env.queue_prompt(&app.services, &TestEnv::key(), "go").await.unwrap();
    let other = app.env.new_worker(Arc::new(NoFailPoints));
    app.model.clear();
    make_artifacts_unavailable(&app.env);
    handle(&other, &TestEnv::nudge()).await.unwrap_err();
    assert!(
        system_texts(&app.model.bodies()).is_empty(),
        "the model is not called without the file"
    );
    app.env.artifacts.clear_faults();
    app.env.run_until_idle().await;
    assert!(system_texts(&app.model.bodies())[0].ends_with("\n\nBe brief."));
}

#[tokio::test(start_paused = true)]
async fn context_file_costs_no_store_request_and_one_artifact_read() {
    let mut app = recorded_env(writes_the_input);
    let log = RequestLogStore::wrap(app.env.store.clone());
    app.env.worker_store = log.clone();
    app.services = app.env.new_worker(Arc::new(NoFailPoints));
    system_texts(&app.run("write Be brief.").await);
    let services = app.services.clone();
    app.env.queue_prompt(&services, &TestEnv::key(), "write Be long.").await.unwrap();
    let first = handle_next_nudge(&app.env, &services, &log).await;
    insta::assert_snapshot!(first, @r"
    lease (head)
    select inbox
    write head, entry, commit, receipt
    write head, commit
    write head, commit
    ");
    // The second call uses the cached text, though no artifact can be read.
    make_artifacts_unavailable(&app.env);
    let second = handle_next_nudge(&app.env, &services, &log).await;
    insta::assert_snapshot!(second, @r"
    write head
    write head, commit
    write head, commit
    ");
    let expected = "\n\nBe brief.";
    assert!(system_texts(&app.model.bodies()).last().unwrap().ends_with(expected));
}
