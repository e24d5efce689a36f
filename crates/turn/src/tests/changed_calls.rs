//! Tools that change while their calls wait for a decision: nothing else is sent than was approved.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use serde_json::{Value, json};

use super::call_approval::{handle_nudges, only_request};
use super::parallel_calls::result_texts;
use super::questions::answer;
use super::test_env::{HookFailPoint, TestEnv, call, text};
use crate::delivery::handle;
use turnwheel_conversation::destination::Destination;
use turnwheel_conversation::request::{Effect, RequestKind};
use turnwheel_extensions::{
    ApprovalRequest, Extension, HookContext, HookError, PendingToolCall, ToolCallDecision,
};
use turnwheel_platform::fail_points::NoFailPoints;
use turnwheel_record::services::Services;
use turnwheel_tools::destination::BoundDestination;
use turnwheel_tools::{
    ApprovalRequirement, Arguments, CallableTool, ToolContext, ToolDefinition, ToolOutcome,
    ToolResult,
};

/// Hosts that received a call.
type SentTo = Arc<Mutex<Vec<String>>>;

/// The tool `send`, which records where its calls go.
#[derive(Clone, Debug)]
struct SendTool {
    definition: ToolDefinition,
    host: &'static str,
    path: &'static str,
    gate: Option<&'static str>,
    is_lost: bool,
    sent_to: SentTo,
}

impl SendTool {
    fn new(env: &TestEnv) -> Self {
        let catalog = env.agents.current();
        let tools = &catalog.agents["clerk"].tools;
        let pay = tools.iter().find(|tool| tool.definition().name == "pay").unwrap();
        let definition = ToolDefinition { name: "send".to_owned(), ..pay.definition().clone() };
        Self {
            definition,
            host: "pay.example",
            path: "/",
            gate: Some("Gated"),
            is_lost: false,
            sent_to: SentTo::default(),
        }
    }

    fn use_in(&self, env: &mut TestEnv) {
        env.set_only_tool(&(Arc::new(self.clone()) as Arc<dyn CallableTool>));
    }

    fn sent(&self) -> Vec<String> {
        self.sent_to.lock().unwrap().clone()
    }
}

#[async_trait]
impl CallableTool for SendTool {
    fn definition(&self) -> &ToolDefinition {
        &self.definition
    }

    fn required_approval(&self, _arguments: &Arguments) -> Option<ApprovalRequirement> {
        Some(ApprovalRequirement {
            reason: self.gate?.to_owned(),
            approvers: vec!["owner".to_owned(), "link".to_owned()],
            is_requester_excluded: false,
            expires_after: Duration::from_hours(1),
        })
    }

    fn destination(&self) -> BoundDestination {
        let shown = Destination {
            kind: "http".to_owned(),
            method: Some("POST".to_owned()),
            host: Some(self.host.to_owned()),
            ..Destination::default()
        };
        BoundDestination::new(Some(shown), self.path)
    }

    async fn call(&self, arguments: Arguments, _context: ToolContext) -> ToolOutcome {
        let sent = format!("{}{} {}", self.host, self.path, arguments.text.text());
        self.sent_to.lock().unwrap().push(sent);
        if self.is_lost {
            return ToolOutcome::Unknown { reason: "cut".to_owned() };
        }
        ToolOutcome::Returned(ToolResult::text("sent"))
    }
}

fn sends(results: usize, _input: &str) -> Vec<Value> {
    if results == 0 { vec![call("c1", "send", 1)] } else { vec![text("done")] }
}

/// Runs a prompt with the tool until it waits.
async fn env_with(change: fn(&mut SendTool), hook: Option<Hook>) -> (TestEnv, Services, SendTool) {
    let mut env = TestEnv::with_script(41, sends);
    let mut tool = SendTool::new(&env);
    change(&mut tool);
    tool.use_in(&mut env);
    env.extensions = hook.map(|hook| Arc::new(Hooked(hook)) as _).into_iter().collect();
    let worker = env.new_worker(Arc::new(NoFailPoints));
    env.send_prompt(&worker).await;
    handle_nudges(&env, &worker).await;
    (env, worker, tool)
}

async fn decide(env: &mut TestEnv, worker: &Services, decision: &str) {
    env.decide_all(decision).await;
    handle_nudges(env, worker).await;
}

type Hook = fn(&HookContext) -> Result<ToolCallDecision, HookError>;

#[derive(Debug)]
struct Hooked(Hook);

#[async_trait]
impl Extension for Hooked {
    fn name(&self) -> &'static str {
        "hooked"
    }

    async fn before_tool_call(
        &self,
        cx: &HookContext,
        _call: &PendingToolCall<'_>,
    ) -> Result<ToolCallDecision, HookError> {
        (self.0)(cx)
    }
}

type Change = fn(&mut SendTool);

#[tokio::test(start_paused = true)]
async fn changed_call_is_not_sent_without_a_new_approval() {
    let changes: [(&str, Change); 6] = [
        ("another host, no gate", |tool| (tool.host, tool.gate) = ("evil.example", None)),
        ("another host", |tool| tool.host = "evil.example"),
        ("another path, no gate", |tool| (tool.path, tool.gate) = ("/admin", None)),
        ("a read at another host", |tool| {
            (tool.host, tool.gate) = ("evil.example", None);
            tool.definition.effect = Effect::Read;
            tool.definition.revision = "2".to_owned();
        }),
        ("another definition, no gate", |tool| {
            tool.gate = None;
            tool.definition.revision = "2".to_owned();
        }),
        ("another definition", |tool| tool.definition.revision = "2".to_owned()),
    ];
    for (name, change) in changes {
        let (mut env, worker, mut tool) = env_with(|_| (), None).await;
        let first = only_request(&env).await;
        assert_eq!(first.destination.unwrap().to_string(), "POST pay.example");
        change(&mut tool);
        tool.use_in(&mut env);
        decide(&mut env, &worker, "approve").await;
        assert!(tool.sent().is_empty(), "{name}: {:?}", tool.sent());
        let second = only_request(&env).await;
        assert_eq!(second.approvers, ["owner", "link"], "{name}");
        assert!(second.reason.starts_with("The tool changed after"), "{name}: {}", second.reason);
        assert_eq!(second.destination.unwrap().host.as_deref(), Some(tool.host), "{name}");
        decide(&mut env, &worker, "approve").await;
        assert_eq!(tool.sent().len(), 1, "{name}");
        assert_eq!(result_texts(&env).await, ["sent"]);
    }
}

#[tokio::test(start_paused = true)]
async fn approved_call_is_sent_when_only_its_gate_is_gone() {
    let (mut env, worker, mut tool) = env_with(|_| (), None).await;
    tool.gate = None;
    tool.use_in(&mut env);
    decide(&mut env, &worker, "approve").await;
    assert_eq!(tool.sent().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn repeated_write_is_not_sent_to_another_host() {
    let (mut env, worker, mut tool) =
        env_with(|tool| (tool.gate, tool.is_lost) = (None, true), None).await;
    let outcome = only_request(&env).await;
    assert_eq!(outcome.kind, RequestKind::Outcome);
    assert_eq!(outcome.destination.unwrap().to_string(), "POST pay.example");
    (tool.host, tool.is_lost) = ("evil.example", false);
    tool.use_in(&mut env);
    decide(&mut env, &worker, "again").await;
    assert_eq!(tool.sent(), ["pay.example/ {\"n\":1}"]);
    assert_eq!(only_request(&env).await.kind, RequestKind::Tool);
    decide(&mut env, &worker, "approve").await;
    assert_eq!(tool.sent(), ["pay.example/ {\"n\":1}", "evil.example/ {\"n\":1}"]);
}

#[tokio::test(start_paused = true)]
async fn approval_of_an_extension_covers_only_its_call() {
    let requires: Hook =
        |_| Ok(ToolCallDecision::RequireApproval(ApprovalRequest::because("guard asks")));
    // The host changes, and the extension is gone with its approval.
    let (mut env, _, mut tool) = env_with(|tool| tool.gate = None, Some(requires)).await;
    assert_eq!(only_request(&env).await.reason, "guard asks");
    tool.host = "evil.example";
    tool.use_in(&mut env);
    env.extensions.clear();
    let worker = env.new_worker(Arc::new(NoFailPoints));
    decide(&mut env, &worker, "approve").await;
    assert!(tool.sent().is_empty());
    assert!(only_request(&env).await.reason.contains("evil.example"));

    // Only the extension is gone.
    let (mut env, _, tool) = env_with(|tool| tool.gate = None, Some(requires)).await;
    env.extensions.clear();
    let worker = env.new_worker(Arc::new(NoFailPoints));
    decide(&mut env, &worker, "approve").await;
    assert_eq!(tool.sent().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn arguments_of_a_removed_extension_need_a_new_approval() {
    let changes: Hook = |_| Ok(ToolCallDecision::Change(json!({"n": 5})));
    let (mut env, _, mut tool) = env_with(|_| (), Some(changes)).await;
    assert_eq!(only_request(&env).await.arguments.unwrap().text(), r#"{"n":5}"#);
    tool.gate = None;
    tool.use_in(&mut env);
    env.extensions.clear();
    let worker = env.new_worker(Arc::new(NoFailPoints));
    decide(&mut env, &worker, "approve").await;
    assert!(tool.sent().is_empty(), "the model's arguments were not approved");
    assert!(only_request(&env).await.reason.contains("Its arguments changed."));
}

#[tokio::test(start_paused = true)]
async fn answer_about_a_changed_call_is_asked_for_again() {
    let asks: Hook = |cx| {
        let is_confirmed = cx.confirm("sure", "Send it?")?;
        Ok(if is_confirmed { ToolCallDecision::Allow } else { panic!("declined") })
    };
    let (mut env, worker, mut tool) = env_with(|tool| tool.gate = None, Some(asks)).await;
    let question = only_request(&env).await;
    assert_eq!(question.destination.unwrap().to_string(), "POST pay.example");
    tool.host = "evil.example";
    tool.use_in(&mut env);
    answer(&mut env, &worker, json!(true)).await;
    assert!(tool.sent().is_empty());
    let question = only_request(&env).await;
    assert_eq!(question.kind, RequestKind::Question);
    assert_eq!(question.destination.unwrap().to_string(), "POST evil.example");
    answer(&mut env, &worker, json!(true)).await;
    assert_eq!(tool.sent().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn tool_that_changes_after_the_check_is_not_called() {
    let mut env = TestEnv::with_script(41, sends);
    let mut tool = SendTool::new(&env);
    tool.gate = None;
    tool.use_in(&mut env);
    let moved = SendTool { host: "evil.example", ..tool.clone() };
    let changed = env.changed_agents(|agent| agent.tools = vec![Arc::new(moved.clone()) as _]);
    let (agents, changed) = (env.agents.clone(), Mutex::new(Some(changed)));
    // The commit of the response has the intent of the call.
    let worker = env.new_worker(Arc::new(HookFailPoint("response.after", move || {
        if let Some(changed) = changed.lock().unwrap().take() {
            agents.replace(changed);
        }
    })));
    env.send_prompt(&worker).await;
    handle(&worker, &TestEnv::nudge()).await.unwrap();
    handle_nudges(&env, &worker).await;
    assert!(tool.sent().is_empty(), "{:?}", tool.sent());
    let results = result_texts(&env).await;
    assert!(results[0].contains("changed before this call was sent"), "{results:?}");
}
