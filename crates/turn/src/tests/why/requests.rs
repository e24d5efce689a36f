//! Each request that `why` proposes is accepted in the state in which it proposes the request.

use async_trait::async_trait;
use serde_json::json;

use super::super::budgets::limit_users;
use super::super::test_env::{
    APPROVAL_EXPIRES, idempotency, owner, owner_decider, rejecting_sender,
};
use super::*;
use turnwheel_commands::abort::abort;
use turnwheel_commands::continue_prompt::accept_continue;
use turnwheel_commands::conversation::{NewConversation, create_conversation};
use turnwheel_commands::leaf::{LeafRequest, move_leaf};
use turnwheel_commands::message::{MessageRequest, accept_message};
use turnwheel_commands::patch::patch_conversation;
use turnwheel_commands::prompt::{Mode, PromptRequest, accept_prompt};
use turnwheel_conversation::inbox::{DeliverAs, WhenIdle};
use turnwheel_conversation::usage::Usage;
use turnwheel_extensions::{
    ApprovalRequest, Extension, HookContext, HookError, PendingToolCall, ToolCallDecision,
};
use turnwheel_json::raw::RawJson;
use turnwheel_queries::why::UnblockRequest;
use turnwheel_record::contract::{CommandError, CommandResponse, INBOX_ITEMS_MAX};

/// A state of conversation `c`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Case {
    WithoutPrompt,
    Completed,
    FailedCall,
    /// With an entry after the end of the prompt.
    FailedCallAndPatch,
    /// The leaf is before the prompt.
    FailedCallLeft,
    /// The last message is a whole response.
    FailedSchema,
    HeldInNewConversation,
    HeldAfterResponse,
    HeldAfterFailure,
    /// A message that only the prompt of a user takes.
    HeldForUser,
    FullInbox,
    WithoutModel,
    Retrying,
    Approval,
    ExpiredApproval,
    ApprovalOfRole,
    LostResponse,
    Budget,
    Question,
}

/// The states, each with the proposed decisions and routes.
const CASES: [(Case, &[&str]); 19] = [
    (Case::WithoutPrompt, &["prompts"]),
    (Case::Completed, &["prompts"]),
    (Case::FailedCall, &["continue", "prompts", "leaf"]),
    (Case::FailedCallAndPatch, &["continue", "prompts", "leaf"]),
    (Case::FailedCallLeft, &["prompts"]),
    (Case::FailedSchema, &["prompts"]),
    (Case::HeldInNewConversation, &["prompts"]),
    (Case::HeldAfterResponse, &["continue", "prompts"]),
    (Case::HeldAfterFailure, &["continue", "prompts", "leaf"]),
    (Case::HeldForUser, &["prompts"]),
    (Case::FullInbox, &[]),
    (Case::WithoutModel, &[]),
    (Case::Retrying, &["abort"]),
    (Case::Approval, &["approve", "reject", "abort"]),
    (Case::ExpiredApproval, &["abort"]),
    (Case::ApprovalOfRole, &["abort"]),
    (Case::LostResponse, &["happened", "did_not_happen", "again", "abort"]),
    (Case::Budget, &["approve", "reject", "abort"]),
    (Case::Question, &["answer", "reject", "abort"]),
];

/// Requires the approval of a role for each call, or a confirmation.
#[derive(Debug)]
struct Guard {
    is_role_required: bool,
}

#[async_trait]
impl Extension for Guard {
    fn name(&self) -> &'static str {
        "guard"
    }

    async fn before_tool_call(
        &self,
        cx: &HookContext,
        _call: &PendingToolCall<'_>,
    ) -> Result<ToolCallDecision, HookError> {
        if self.is_role_required {
            let approvers = vec!["role:lead".to_owned()];
            let request = ApprovalRequest { approvers, ..ApprovalRequest::because("It pays.") };
            return Ok(ToolCallDecision::RequireApproval(request));
        }
        cx.confirm("sure", "Run it?")?;
        Ok(ToolCallDecision::Allow)
    }
}

fn calls_pay(results: usize, _input: &str) -> Vec<Value> {
    if results == 0 { vec![call("c1", "pay", 0)] } else { vec![text("done")] }
}

async fn send_held_steers(services: &Services, count: u32) {
    for number in 0..count {
        let text = format!("held {number}");
        let request = PromptRequest {
            input: Some(text.as_str().into()),
            mode: Some(Mode::Steer),
            when_idle: Some(WhenIdle::Hold),
            ..PromptRequest::default()
        };
        let own = idempotency(&text);
        Box::pin(accept_prompt(services, &TestEnv::key(), request, &own, &rejecting_sender()))
            .await
            .unwrap();
    }
}

impl Case {
    fn has_no_prompt(self) -> bool {
        matches!(self, Self::WithoutPrompt | Self::HeldInNewConversation)
    }

    fn new_env(self) -> TestEnv {
        let script: Script = match self {
            Self::Approval | Self::ExpiredApproval => calls_gated,
            Self::ApprovalOfRole | Self::LostResponse | Self::Budget | Self::Question => calls_pay,
            _ => replies_hello,
        };
        let mut env = TestEnv::with_script(1, script);
        if matches!(self, Self::ApprovalOfRole | Self::Question) {
            let is_role_required = self == Self::ApprovalOfRole;
            env.extensions.push(Arc::new(Guard { is_role_required }));
        }
        if self == Self::FailedSchema {
            env.set_response_schema(&json!({"type": "object"}));
        }
        if self == Self::Budget {
            env.budget_limits = limit_users(100);
            let usage = Usage { input: 60, output: 40, total_tokens: 100, ..Usage::default() };
            *env.model.usage.lock().unwrap() = usage;
        }
        *env.model.failures_left.lock().unwrap() = match self {
            Self::FailedCall
            | Self::FailedCallAndPatch
            | Self::FailedCallLeft
            | Self::HeldAfterFailure => u32::MAX,
            Self::Retrying => 1,
            _ => 0,
        };
        env
    }

    async fn enter(self) -> (TestEnv, Services) {
        let mut env = self.new_env();
        let services = env.new_worker(Arc::new(NoFailPoints));
        if self.has_no_prompt() {
            let request =
                NewConversation { id: Some("c".to_owned()), ..NewConversation::default() };
            create_conversation(&services, &owner(), request, &idempotency("new")).await.unwrap();
        } else {
            env.send_prompt(&services).await;
        }
        match self {
            Self::WithoutPrompt | Self::HeldInNewConversation => {}
            Self::Retrying
            | Self::Approval
            | Self::ExpiredApproval
            | Self::ApprovalOfRole
            | Self::Budget
            | Self::Question => while env.deliver().await {},
            Self::LostResponse => {
                drop_delivery_at(&mut env, "tool.before").await;
                tokio::time::sleep(Duration::from_mins(5)).await;
                handle(&services, &TestEnv::nudge()).await.unwrap();
            }
            _ => env.run_until_idle().await,
        }
        *env.model.failures_left.lock().unwrap() = 0;
        Box::pin(self.change(&mut env, &services)).await;
        (env, services)
    }

    /// Changes what the first prompt has left.
    async fn change(self, env: &mut TestEnv, services: &Services) {
        let (key, own) = (TestEnv::key(), idempotency("change"));
        match self {
            Self::FailedCallAndPatch => {
                let patch = json!({"name": "Greeting"});
                let patch = patch.as_object().unwrap();
                patch_conversation(services, &key, patch, &own, |_| true).await.unwrap();
            }
            Self::FailedCallLeft => {
                move_leaf(services, &key, &LeafRequest::default(), &own).await.unwrap();
            }
            Self::HeldInNewConversation | Self::HeldAfterResponse | Self::HeldAfterFailure => {
                send_held_steers(services, 1).await;
            }
            Self::FullInbox => send_held_steers(services, INBOX_ITEMS_MAX).await,
            Self::HeldForUser => {
                let deliver_as = Some(DeliverAs::NextTurn);
                let message = MessageRequest { deliver_as, ..MessageRequest::new("note", "hi") };
                Box::pin(accept_message(services, &key, message, &own, None)).await.unwrap();
            }
            Self::WithoutModel => {
                env.change_agent(|agent| agent.settings.model = Some(" ".to_owned()));
            }
            Self::ExpiredApproval => {
                tokio::time::sleep(APPROVAL_EXPIRES + Duration::from_secs(1)).await;
            }
            _ => {}
        }
    }
}

/// The decision of a proposed request, or its route.
fn name(request: &UnblockRequest) -> &str {
    let decision = request.body.get("decision").and_then(Value::as_str);
    decision.or_else(|| request.path.rsplit('/').next()).unwrap()
}

async fn send(
    services: &Services,
    request: &UnblockRequest,
) -> Result<CommandResponse, CommandError> {
    assert_eq!(request.method, "POST");
    let (key, own) = (TestEnv::key(), idempotency("proposed"));
    let body = RawJson::from_value(&request.body);
    let route = request.path.strip_prefix("/api/conversations/c/").unwrap();
    match route {
        "continue" => accept_continue(services, &key, &own, &rejecting_sender()).await,
        "prompts" => {
            let request = body.read().unwrap();
            Box::pin(accept_prompt(services, &key, request, &own, &rejecting_sender())).await
        }
        "leaf" => move_leaf(services, &key, &body.read().unwrap(), &own).await,
        "abort" => abort(services, &key, body.read().unwrap(), &own).await,
        _ => {
            let id = route.strip_prefix("approvals/").unwrap();
            decide(services, &key, id, body.read().unwrap(), &owner_decider()).await
        }
    }
}

#[tokio::test(start_paused = true)]
async fn each_proposed_request_is_accepted() {
    for (case, expected) in CASES {
        for number in 0..expected.len().max(1) {
            let (mut env, services) = Box::pin(case.enter()).await;
            let (key, now) = (TestEnv::key(), services.clock.now());
            let service = ServiceStatus::Local(&services);
            let view = explain_conversation(&*services.store, &key, service, now).await.unwrap();
            let names: Vec<&str> = view.requests.iter().map(name).collect();
            assert_eq!(names, expected, "{case:?}: {}", view.why);
            let has_hint = view.unblock.iter().any(|hint| hint.contains("/continue"));
            assert_eq!(has_hint, names.contains(&"continue"), "{case:?}: {:?}", view.unblock);
            let Some(request) = view.requests.get(number) else { continue };
            let earlier = env.head().await.unwrap().prompts.len();
            let sent = Box::pin(send(&services, request)).await;
            assert!(sent.is_ok(), "{case:?}: {}: {sent:?}", name(request));
            env.run_until_idle().await;
            let is_started = env.head().await.unwrap().prompts.len() > earlier;
            let is_start = matches!(name(request), "continue" | "prompts");
            assert_eq!(is_started, is_start, "{case:?}: {}", name(request));
        }
    }
}
