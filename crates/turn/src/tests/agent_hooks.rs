//! Hooks on agent runs and their turns: order, results, actions, failures, and crashes.

use std::borrow::Cow;
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use serde_json::{Value, json};

use super::compaction::handle_until_idle;
use super::recorded_requests::RecordingModel;
use super::test_env::{
    Script, TestEnv, call, idempotency, rejecting_sender, text, usual_store_faults,
};
use turnwheel_commands::delete::delete_conversation;
use turnwheel_commands::patch::patch_conversation;
use turnwheel_commands::prompt::{PromptRequest, accept_prompt};
use turnwheel_conversation::action::{MessageSpec, UserMessageQueue};
use turnwheel_conversation::entry::{CustomMessageEntry, Entry, EntryBody, PromptState};
use turnwheel_conversation::event::Severity;
use turnwheel_conversation::inbox::DeliverAs;
use turnwheel_conversation::message::Message;
use turnwheel_conversation::settings::ThinkingLevel;
use turnwheel_extensions::{
    ClosingTurn, Extension, FinishTurn, FinishedRun, FinishedToolCall, Hook, HookContext,
    HookError, Observation, PendingToolCall, ResultChanges, RunChanges, StartingRun,
    ToolCallDecision,
};
use turnwheel_platform::fail_points::NoFailPoints;
use turnwheel_platform::ids::fault_plan::FaultPlan;
use turnwheel_record::services::Services;
use turnwheel_storage::store::memory::StoreFaults;

type Log = Arc<Mutex<Vec<String>>>;
type ActFn = fn(&HookContext) -> Result<(), HookError>;
type StartFn = fn(&StartingRun<'_>) -> RunChanges;

/// Records every hook, and acts in it.
#[derive(Debug)]
pub(super) struct Recorder {
    name: &'static str,
    log: Log,
    act: ActFn,
    start: StartFn,
}

impl Recorder {
    fn new(name: &'static str, log: &Log) -> Self {
        Self { name, log: Arc::clone(log), act: |_| Ok(()), start: |_| RunChanges::default() }
    }

    fn record(&self, cx: &HookContext, data: &str) -> Result<(), HookError> {
        let event = cx.hook().name();
        self.log.lock().unwrap().push(format!("{} {event} {data}", self.name).trim().to_owned());
        (self.act)(cx)
    }
}

#[async_trait]
impl Extension for Recorder {
    fn name(&self) -> &str {
        self.name
    }

    async fn before_agent_start(
        &self,
        cx: &HookContext,
        run: &StartingRun<'_>,
    ) -> Result<RunChanges, HookError> {
        self.record(cx, run.system_prompt)?;
        Ok((self.start)(run))
    }

    async fn finish_run(&self, cx: &HookContext, run: &FinishedRun<'_>) -> Result<(), HookError> {
        self.record(cx, &format!("{} messages", run.messages.len()))
    }

    async fn observe(&self, cx: &HookContext, fact: &Observation) -> Result<(), HookError> {
        let data = match fact {
            Observation::TurnStart { turn_index } => turn_index.to_string(),
            Observation::ModelSelect(change) => change.model_id.clone(),
            Observation::SessionSwitch { previous } | Observation::SessionFork { previous } => {
                previous.to_string()
            }
            Observation::SessionTree { summary, .. } => summary.clone().unwrap_or_default(),
            Observation::AgentStart
            | Observation::SessionStart { .. }
            | Observation::SessionShutdown => String::new(),
            other => panic!("{other:?}"),
        };
        self.record(cx, &data)
    }

    async fn transform_context<'a>(
        &self,
        cx: &HookContext,
        messages: Vec<Cow<'a, Message>>,
    ) -> Result<Vec<Cow<'a, Message>>, HookError> {
        self.record(cx, "")?;
        Ok(messages)
    }

    async fn before_tool_call(
        &self,
        cx: &HookContext,
        call: &PendingToolCall<'_>,
    ) -> Result<ToolCallDecision, HookError> {
        self.record(cx, call.tool_name)?;
        Ok(ToolCallDecision::Allow)
    }

    async fn after_tool_call(
        &self,
        cx: &HookContext,
        call: &FinishedToolCall<'_>,
    ) -> Result<ResultChanges, HookError> {
        self.record(cx, call.tool_name)?;
        Ok(ResultChanges::default())
    }

    async fn finish_turn(
        &self,
        cx: &HookContext,
        turn: &ClosingTurn<'_>,
    ) -> Result<Option<FinishTurn>, HookError> {
        self.record(cx, &turn.turn_index.to_string())?;
        Ok(None)
    }
}

fn looks_then_replies(results: usize, _input: &str) -> Vec<Value> {
    if results == 0 { vec![call("c1", "look", 0)] } else { vec![text("done")] }
}

fn replies(_results: usize, _input: &str) -> Vec<Value> {
    vec![text("done")]
}

async fn run(script: Script, extensions: Vec<Recorder>) -> (TestEnv, Services, Vec<Value>) {
    let mut env = TestEnv::with_script(1, script);
    env.extensions = extensions.into_iter().map(|it| Arc::new(it) as Arc<dyn Extension>).collect();
    let model = RecordingModel::install_scripted(&mut env);
    let services = env.new_worker(Arc::new(NoFailPoints));
    env.send_prompt(&services).await;
    handle_until_idle(&env, &services).await;
    let bodies = model.bodies();
    (env, services, bodies)
}

/// Types of entries and texts of custom messages.
async fn entry_kinds(env: &TestEnv) -> Vec<String> {
    let kind = |entry: Entry| match &entry.body {
        EntryBody::CustomMessage(message) => format!("custom_message {}", message.custom_type),
        EntryBody::Custom(custom) => format!("custom {}", custom.custom_type),
        body => serde_json::to_value(body).unwrap()["type"].as_str().unwrap().to_owned(),
    };
    env.entries().await.into_iter().map(kind).collect()
}

fn adds(run: &StartingRun<'_>, name: &str) -> RunChanges {
    RunChanges {
        messages: vec![CustomMessageEntry::new(name, format!("from {name}"))],
        system_prompt: Some(format!("{} {name}", run.system_prompt)),
    }
}

async fn event_names(env: &TestEnv) -> Vec<String> {
    env.events().await.iter().map(|event| event.body.kind().name().to_owned()).collect()
}

async fn send(services: &Services, key: &str, text: &str) {
    let request = PromptRequest { input: Some(text.into()), ..PromptRequest::default() };
    accept_prompt(services, &TestEnv::key(), request, &idempotency(key), &rejecting_sender())
        .await
        .unwrap();
}

#[tokio::test(start_paused = true)]
async fn hooks_run_in_the_order_of_the_source() {
    let log = Log::default();
    let (_env, ..) =
        run(looks_then_replies, vec![Recorder::new("a", &log), Recorder::new("b", &log)]).await;
    let events = [
        "session_start",
        "before_agent_start Be good.",
        "agent_start",
        "turn_start 0",
        "context",
        "tool_call look",
        "tool_result look",
        "turn_end 0",
        "turn_start 1",
        "context",
        "turn_end 1",
        "agent_end 4 messages",
    ];
    let both = events.iter().flat_map(|event| [format!("a {event}"), format!("b {event}")]);
    assert_eq!(*log.lock().unwrap(), both.collect::<Vec<_>>());
}

#[tokio::test(start_paused = true)]
async fn changed_model_and_deletion_are_observed() {
    let log = Log::default();
    let (_env, services, _) = run(replies, vec![Recorder::new("a", &log)]).await;
    log.lock().unwrap().clear();
    let patch = json!({"settings": {"model": "high"}, "name": "bills"});
    let patch = patch.as_object().unwrap();
    for _ in 0..2 {
        patch_conversation(&services, &TestEnv::key(), patch, &idempotency("patch"), |_| true)
            .await
            .unwrap();
    }
    delete_conversation(&services, &TestEnv::key()).await.unwrap();
    let log = log.lock().unwrap();
    let model = services.model.record("high").unwrap().id;
    assert_eq!(*log, [format!("a model_select {model}"), "a session_shutdown".to_owned()]);
}

#[tokio::test(start_paused = true)]
async fn changes_of_a_start_are_chained_and_last_for_the_run() {
    let log = Log::default();
    let first = Recorder { start: |run| adds(run, "a"), ..Recorder::new("a", &log) };
    let second = Recorder { start: |run| adds(run, "b"), ..Recorder::new("b", &log) };
    let (env, services, bodies) = run(looks_then_replies, vec![first, second]).await;
    assert_eq!(bodies.len(), 2);
    for body in &bodies {
        let body = body.to_string();
        assert!(body.contains("Be good. a b"), "{body}");
        assert!(body.contains("from a") && body.contains("from b"), "{body}");
    }
    let kinds = entry_kinds(&env).await;
    assert_eq!(
        kinds[..6],
        [
            "prompt",
            "message",
            "custom_message a",
            "custom_message b",
            "custom turnwheel/system_prompt",
            "frame"
        ]
    );
    assert_eq!(kinds.iter().filter(|kind| *kind == "frame").count(), 1);
    // The next run begins with the agent's own system prompt.
    log.lock().unwrap().clear();
    send(&services, "second", "more").await;
    handle_until_idle(&env, &services).await;
    assert_eq!(log.lock().unwrap()[0], "a before_agent_start Be good.");
}

#[tokio::test(start_paused = true)]
async fn failed_and_oversized_changes_of_a_start_are_left_out() {
    let log = Log::default();
    let act = |cx: &HookContext| match cx.hook() {
        Hook::BeforeAgentStart => Err(HookError::new("no rules")),
        _ => Ok(()),
    };
    let fails = Recorder { act, ..Recorder::new("a", &log) };
    let start = |_: &StartingRun<'_>| RunChanges {
        system_prompt: Some("x".repeat(64 * 1024 + 1)),
        ..RunChanges::default()
    };
    let too_large = Recorder { start, ..Recorder::new("b", &log) };
    let panics = Recorder { start: |_| panic!("no rules"), ..Recorder::new("c", &log) };
    let (env, _, bodies) = run(replies, vec![fails, too_large, panics]).await;
    assert!(bodies[0].to_string().contains("Be good."), "{}", bodies[0]);
    assert_eq!(entry_kinds(&env).await, ["prompt", "message", "frame", "message", "prompt_end"]);
}

fn acts_in_tool_hooks(cx: &HookContext) -> Result<(), HookError> {
    match cx.hook() {
        Hook::ToolCall => cx.append_entry("checked", &json!({"by": "a"})),
        Hook::ToolResult => cx.send_message(MessageSpec {
            deliver_as: Some(DeliverAs::NextTurn),
            ..MessageSpec::new("hint", "look again")
        }),
        Hook::TurnEnd => cx.set_session_name("looked"),
        Hook::AgentEnd => cx.notify("done", Severity::Info),
        Hook::BeforeAgentStart => cx.set_thinking_level(ThinkingLevel::High),
        _ => {
            let refused = cx.abort().unwrap_err().to_string();
            assert_eq!(refused, format!("a hook of {} has no actions", cx.hook().name()));
            Ok(())
        }
    }
}

#[tokio::test(start_paused = true)]
async fn actions_land_in_the_commit_of_their_hook() {
    let log = Log::default();
    let acts = Recorder { act: acts_in_tool_hooks, ..Recorder::new("a", &log) };
    let (env, ..) = run(looks_then_replies, vec![acts]).await;
    let kinds = entry_kinds(&env).await;
    let count = |kind: &str| kinds.iter().filter(|it| *it == kind).count();
    assert_eq!(
        (count("custom checked"), env.head().await.unwrap().items_made),
        (1, 1),
        "{kinds:?}"
    );
    assert_eq!((count("session_info"), count("thinking_level_change")), (1, 1), "{kinds:?}");
    let head = env.head().await.unwrap();
    assert_eq!(head.name.as_deref(), Some("looked"));
    let names = event_names(&env).await;
    assert_eq!(names.iter().filter(|name| *name == "notify").count(), 1, "{names:?}");
}

#[tokio::test(start_paused = true)]
async fn actions_of_a_failed_hook_are_dropped() {
    let log = Log::default();
    let act = |cx: &HookContext| {
        if cx.hook() == Hook::AgentEnd {
            cx.notify("done", Severity::Info)?;
            return Err(HookError::new("no mail"));
        }
        Ok(())
    };
    let (env, ..) = run(replies, vec![Recorder { act, ..Recorder::new("a", &log) }]).await;
    assert!(!event_names(&env).await.contains(&"notify".to_owned()));
    assert_eq!(env.head().await.unwrap().prompts[0].state, PromptState::Completed);
}

#[tokio::test(start_paused = true)]
async fn message_at_the_end_of_a_run_starts_the_next_run() {
    let log = Log::default();
    let act = |cx: &HookContext| match (cx.hook(), cx.session_name()) {
        (Hook::AgentEnd, None) => {
            cx.set_session_name("asked twice")?;
            cx.send_user_message("once more", UserMessageQueue::FollowUp)
        }
        _ => Ok(()),
    };
    let (env, ..) = run(replies, vec![Recorder { act, ..Recorder::new("a", &log) }]).await;
    assert_eq!(env.head().await.unwrap().prompts.len(), 2);
    let starts =
        log.lock().unwrap().iter().filter(|event| event.contains("before_agent_start")).count();
    assert_eq!(starts, 2);
    let names = event_names(&env).await;
    let settled = names.iter().filter(|name| *name == "agent_settled").count();
    assert_eq!((settled, names.last().unwrap().as_str()), (1, "agent_settled"), "{names:?}");
}

#[tokio::test(start_paused = true)]
async fn abort_of_a_tool_hook_starts_no_call() {
    let log = Log::default();
    let act = |cx: &HookContext| if cx.hook() == Hook::ToolCall { cx.abort() } else { Ok(()) };
    let (env, ..) =
        run(looks_then_replies, vec![Recorder { act, ..Recorder::new("a", &log) }]).await;
    assert_eq!(env.head().await.unwrap().prompts[0].state, PromptState::Aborted);
    assert!(!entry_kinds(&env).await.contains(&"tool_started".to_owned()));
}

#[tokio::test(start_paused = true)]
async fn follow_up_continues_the_run_and_counts_its_turns() {
    let log = Log::default();
    let act = |cx: &HookContext| match (cx.hook(), cx.session_name()) {
        (Hook::TurnEnd, None) => {
            cx.set_session_name("asked twice")?;
            cx.send_user_message("once more", UserMessageQueue::FollowUp)
        }
        _ => Ok(()),
    };
    let _env = run(replies, vec![Recorder { act, ..Recorder::new("a", &log) }]).await;
    let log = log.lock().unwrap();
    let turns: Vec<&String> = log.iter().filter(|event| event.contains("turn_start")).collect();
    assert_eq!(turns, ["a turn_start 0", "a turn_start 1"], "{log:?}");
    assert_eq!(log.iter().filter(|event| event.contains("agent_end")).count(), 1);
}

#[tokio::test(start_paused = true)]
async fn model_selected_by_a_hook_is_observed() {
    let log = Log::default();
    let act = |cx: &HookContext| match cx.hook() {
        Hook::BeforeAgentStart => cx.set_model("high"),
        _ => Ok(()),
    };
    let _env = run(replies, vec![Recorder { act, ..Recorder::new("a", &log) }]).await;
    let log = log.lock().unwrap();
    assert_eq!(log.iter().filter(|event| event.contains("model_select")).count(), 1, "{log:?}");
}

/// Each run has the changes of its start, once, under all faults.
#[tokio::test(start_paused = true)]
async fn faults_repeat_no_change_and_lose_none() {
    for seed in 0..30 {
        let plan = FaultPlan::new(seed);
        let mut env = TestEnv::with_fault_plan(seed, &plan, looks_then_replies, 0.0);
        env.store.set_faults(usual_store_faults());
        env.crash_percent = 4;
        let log = Log::default();
        let start = |run: &StartingRun<'_>| RunChanges {
            messages: vec![CustomMessageEntry::new("date", "Monday")],
            system_prompt: Some(format!("{} Be brief.", run.system_prompt)),
        };
        let act = |cx: &HookContext| match cx.hook() {
            Hook::AgentEnd => cx.append_entry("ended", &json!({})),
            Hook::ToolResult => cx.append_entry("seen", &json!({})),
            _ => Ok(()),
        };
        env.extensions = vec![Arc::new(Recorder { act, start, ..Recorder::new("a", &log) })];
        let services = env.new_worker(Arc::new(NoFailPoints));
        env.send_prompt(&services).await;
        assert!(env.try_run_until_idle().await);
        env.store.set_faults(StoreFaults::default());
        let kinds = entry_kinds(&env).await;
        let count = |kind: &str| kinds.iter().filter(|it| *it == kind).count();
        let starts = count("prompt");
        assert_eq!(count("custom_message date"), starts, "seed {seed}: {kinds:?}");
        assert_eq!(count("custom turnwheel/system_prompt"), starts, "seed {seed}: {kinds:?}");
        assert!(count("custom ended") <= 1, "seed {seed}: {kinds:?}");
    }
}
