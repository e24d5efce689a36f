//! Approvals that extensions require: one request with the tool's own, and hooks that run again
//! after the decision.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use serde_json::Value;

use super::parallel_calls::result_texts;
use super::store_requests::calls_gated;
use super::test_env::{TestEnv, call, text};
use crate::delivery::handle;
use turnwheel_commands::routing::already_processing;
use turnwheel_conversation::entry::PromptState;
use turnwheel_conversation::prompt_view::build_prompt_view;
use turnwheel_conversation::request::Request;
use turnwheel_extensions::{
    ApprovalRequest, CallBlock, Extension, HookContext, HookError, PendingToolCall,
    ToolCallDecision,
};
use turnwheel_platform::fail_points::NoFailPoints;
use turnwheel_queries::prompts::read_receipt;
use turnwheel_record::contract::RequestIntent;
use turnwheel_record::services::Services;
use turnwheel_storage::queue::{self, Queue as _};

/// Makes the same decision for each call, until a test sets another. Counts its calls.
#[derive(Debug)]
struct Guard {
    name: &'static str,
    decision: Mutex<ToolCallDecision>,
    calls: Mutex<u32>,
}

impl Guard {
    fn new(name: &'static str, decision: ToolCallDecision) -> Arc<Self> {
        Arc::new(Self { name, decision: Mutex::new(decision), calls: Mutex::default() })
    }

    fn requiring(name: &'static str) -> Arc<Self> {
        Self::new(name, requires(ApprovalRequest::because(format!("{name} asks"))))
    }

    fn decide(&self, decision: ToolCallDecision) {
        *self.decision.lock().unwrap() = decision;
    }
}

fn requires(request: ApprovalRequest) -> ToolCallDecision {
    ToolCallDecision::RequireApproval(request)
}

#[async_trait]
impl Extension for Guard {
    fn name(&self) -> &'static str {
        self.name
    }

    async fn before_tool_call(
        &self,
        _cx: &HookContext,
        _call: &PendingToolCall<'_>,
    ) -> Result<ToolCallDecision, HookError> {
        *self.calls.lock().unwrap() += 1;
        Ok(self.decision.lock().unwrap().clone())
    }
}

fn calls_pay(results: usize, _input: &str) -> Vec<Value> {
    if results == 0 { vec![call("c1", "pay", 0)] } else { vec![text("done")] }
}

/// Runs a prompt until it waits.
async fn env_with(script: super::test_env::Script, guards: &[&Arc<Guard>]) -> (TestEnv, Services) {
    let mut env = TestEnv::with_script(21, script);
    let mut worker = env.new_worker(Arc::new(NoFailPoints));
    worker.extensions =
        guards.iter().map(|guard| Arc::clone(guard) as Arc<dyn Extension>).collect();
    env.send_prompt(&worker).await;
    handle_nudges(&env, &worker).await;
    (env, worker)
}

/// Handles nudges until none is left: the prompt has ended or waits for a decision.
pub(super) async fn handle_nudges(env: &TestEnv, worker: &Services) {
    let mut idle_polls = 0;
    while idle_polls < 5 {
        let received = env.queue.receive(queue::TURNS, 1, Duration::from_mins(1)).await.unwrap();
        let Some(message) = received.into_iter().next() else {
            idle_polls += 1;
            tokio::time::sleep(Duration::from_secs(1)).await;
            continue;
        };
        let nudge = serde_json::from_str(&message.text).unwrap();
        handle(worker, &nudge).await.unwrap();
        env.queue.delete(queue::TURNS, &message.id, &message.pop_receipt).await.unwrap();
        idle_polls = 0;
    }
}

pub(super) async fn only_request(env: &TestEnv) -> Request {
    let requests = env.head().await.unwrap().requests;
    let [request] = requests.as_slice() else { panic!("{requests:?}") };
    request.clone()
}

async fn decide(env: &mut TestEnv, worker: &Services, decision: &str) {
    env.decide_all(decision).await;
    handle_nudges(env, worker).await;
}

#[tokio::test(start_paused = true)]
async fn tool_and_extension_share_one_request() {
    let one = Guard::requiring("one");
    let two = Guard::new(
        "two",
        requires(ApprovalRequest {
            is_requester_excluded: true,
            expires_after: Duration::from_mins(2),
            refusal: Some("Blocked by two".to_owned()),
            ..ApprovalRequest::because("two asks")
        }),
    );
    let (env, _) = env_with(calls_gated, &[&one, &two]).await;
    let request = only_request(&env).await;
    assert_eq!(request.reason, "Gated\n\none asks\n\ntwo asks");
    assert_eq!(request.approvers, ["owner"]);
    assert!(request.is_requester_excluded);
    assert_eq!(request.expires_at, Some(request.requested_at.plus(Duration::from_mins(2))));
    assert_eq!(request.refusal.as_deref(), Some("Blocked by two"));
}

#[tokio::test(start_paused = true)]
async fn extension_never_widens_approvers() {
    for (script, approvers, expected) in [
        (calls_gated as super::test_env::Script, &["owner", "link"][..], "owner"),
        (calls_gated, &["role:boss"], "owner"),
        (calls_pay, &["role:boss"], "role:boss"),
        (calls_pay, &[], "owner"),
    ] {
        let approvers = approvers.iter().map(|&it| it.to_owned()).collect();
        let guard = Guard::new(
            "guard",
            requires(ApprovalRequest { approvers, ..ApprovalRequest::because("why") }),
        );
        let (env, _) = env_with(script, &[&guard]).await;
        assert_eq!(only_request(&env).await.approvers, [expected]);
    }
}

#[tokio::test(start_paused = true)]
async fn approval_for_the_tool_alone_does_not_cover_the_extension() {
    let guard = Guard::new("guard", ToolCallDecision::Allow);
    let (mut env, worker) = env_with(calls_gated, &[&guard]).await;
    assert_eq!(only_request(&env).await.reason, "Gated");
    guard.decide(requires(ApprovalRequest::because("guard asks")));
    decide(&mut env, &worker, "approve").await;
    assert!(env.executions.lock().unwrap().is_empty());
    assert_eq!(
        only_request(&env).await.reason,
        "An extension requires an approval that the earlier decision does not cover. Gated\n\nguard asks"
    );
    decide(&mut env, &worker, "approve").await;
    assert_eq!(result_texts(&env).await, ["gated done"]);
}

#[tokio::test(start_paused = true)]
async fn approval_for_both_covers_the_tool_alone() {
    let guard = Guard::requiring("guard");
    let (mut env, worker) = env_with(calls_gated, &[&guard]).await;
    guard.decide(ToolCallDecision::Allow);
    decide(&mut env, &worker, "approve").await;
    assert_eq!(result_texts(&env).await, ["gated done"]);
}

#[tokio::test(start_paused = true)]
async fn hooks_run_again_after_approval() {
    let guard = Guard::requiring("guard");
    let (mut env, worker) = env_with(calls_pay, &[&guard]).await;
    assert_eq!(*guard.calls.lock().unwrap(), 1);
    decide(&mut env, &worker, "approve").await;
    assert_eq!(*guard.calls.lock().unwrap(), 2);
    assert_eq!(result_texts(&env).await, ["pay done"]);

    let guard = Guard::requiring("guard");
    let (mut env, worker) = env_with(calls_pay, &[&guard]).await;
    let reason = Some("No longer.".to_owned());
    guard.decide(ToolCallDecision::Block(CallBlock { reason, terminate: false }));
    decide(&mut env, &worker, "approve").await;
    assert_eq!(result_texts(&env).await, ["No longer."]);
    assert!(env.executions.lock().unwrap().is_empty());
}

/// The text of the source (AP-07).
#[tokio::test(start_paused = true)]
async fn approved_call_of_removed_tool_fails() {
    let (mut env, worker) = env_with(calls_gated, &[]).await;
    let without =
        env.changed_agents(|agent| agent.tools.retain(|it| it.definition().name != "gated"));
    worker.agents.replace(without);
    decide(&mut env, &worker, "approve").await;
    assert_eq!(result_texts(&env).await, [r#"Tool "gated" no longer available"#]);
    assert!(env.executions.lock().unwrap().is_empty());
}

#[tokio::test(start_paused = true)]
async fn refusal_is_the_text_of_a_rejection_and_of_an_expiry() {
    let refusing = || {
        let refusal = Some("Blocked by guard".to_owned());
        Guard::new(
            "guard",
            requires(ApprovalRequest { refusal, ..ApprovalRequest::because("why") }),
        )
    };
    let (mut env, worker) = env_with(calls_pay, &[&refusing()]).await;
    decide(&mut env, &worker, "reject").await;
    assert_eq!(result_texts(&env).await, ["Blocked by guard"]);
    let head = env.head().await.unwrap();
    let entries: Vec<_> = env.entries().await.into_iter().map(Arc::new).collect();
    let view = build_prompt_view(&head.prompts[0].id, &head, &entries).unwrap();
    let view = serde_json::to_value(view).unwrap();
    assert_eq!(view["output"][0]["result"]["error"], "Blocked by guard");

    let (mut env, _) = env_with(calls_pay, &[&refusing()]).await;
    tokio::time::sleep(Duration::from_hours(24 * 8)).await;
    env.extensions = vec![refusing()];
    env.undecided_percent = 100;
    env.run_until_idle().await;
    assert_eq!(result_texts(&env).await, ["Blocked by guard"]);
}

#[tokio::test(start_paused = true)]
async fn receipt_and_refusal_name_the_open_approval() {
    let (mut env, worker) = env_with(calls_gated, &[]).await;
    let head = env.head().await.unwrap();
    let id = head.prompts[0].id.clone();
    let receipt = read_receipt(&worker, &head, &id).await.unwrap();
    assert_eq!(receipt.state, PromptState::WaitingForApproval);
    let refused =
        already_processing(&worker, &head, id.clone(), RequestIntent::Prompt).await.unwrap();
    let expected = format!("The prompt {id} of this conversation waits for an approval: ");
    assert!(refused.to_string().starts_with(&expected), "{refused}");
    // Decided, and not applied yet.
    env.decide_all("approve").await;
    let head = env.head().await.unwrap();
    assert_eq!(read_receipt(&worker, &head, &id).await.unwrap().state, PromptState::Running);
    let refused =
        already_processing(&worker, &head, id.clone(), RequestIntent::Prompt).await.unwrap();
    assert!(refused.to_string().starts_with("A prompt is already running"), "{refused}");
    handle_nudges(&env, &worker).await;
    let head = env.head().await.unwrap();
    assert_eq!(read_receipt(&worker, &head, &id).await.unwrap().state, PromptState::Completed);
}
