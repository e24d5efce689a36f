//! Approval requests of an exhausted budget: nothing runs until an approver grants a higher limit.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use super::super::test_env::{TestEnv, idempotency};
use super::{
    calls_look_then_replies, decide_first_request, new_env, pass_minutes, waits_for_budget,
};
use turnwheel_commands::decide::{DecisionRequest, decide};
use turnwheel_commands::patch::patch_conversation;
use turnwheel_conversation::entry::{PromptState, PromptStop};
use turnwheel_json::raw::RawJson;
use turnwheel_platform::fail_points::NoFailPoints;
use turnwheel_platform::ids::{TenantId, UserId};
use turnwheel_queries::approvals::load_approval;
use turnwheel_queries::prompts::{read_prompt, read_receipt};
use turnwheel_record::contract::Decider;
use turnwheel_record::load::inbox_then_head;
use turnwheel_record::services::Services;

pub(super) async fn set_budget(services: &Services, budget: Value) {
    let patch = json!({"settings": {"budget": budget}});
    let key = idempotency(&patch.to_string());
    patch_conversation(services, &TestEnv::key(), patch.as_object().unwrap(), &key, |_| true)
        .await
        .unwrap();
}

#[tokio::test(start_paused = true)]
async fn exhausted_prompt_budget_continues_after_approved_increase() {
    let mut env = new_env(calls_look_then_replies);
    let services = env.new_worker(Arc::new(NoFailPoints));
    env.send_prompt(&services).await;
    set_budget(&services, json!({"prompt": {"usd": 0.01}})).await;
    pass_minutes(&mut env, 1).await;
    let head = env.head().await.unwrap();
    assert!(waits_for_budget(&head), "{head:?}");
    assert_eq!(head.requests[0].reason, "The budget of this prompt is used up: $0.01 of $0.01.");
    assert_eq!(head.lease, None, "no worker has the lease");
    assert_eq!(*env.model.calls.lock().unwrap(), 1);
    pass_minutes(&mut env, 5).await;
    assert_eq!(*env.model.calls.lock().unwrap(), 1, "further deliveries call no model");
    let (_, head) = inbox_then_head(&services, &TestEnv::key()).await.unwrap();
    let view = load_approval(&services, &head, &head.requests[0].id).await;
    let view = serde_json::to_value(view.unwrap().unwrap().view()).unwrap();
    assert_eq!(view["kind"], "budget");
    assert_eq!(
        view["budget"],
        json!({"level": "prompt", "unit": "usd", "limit": 0.01, "used": 0.01})
    );
    decide_first_request(&services, &TestEnv::key(), "approve", Some(json!({"usd": 0.5}))).await;
    pass_minutes(&mut env, 1).await;
    let head = env.head().await.unwrap();
    assert_eq!(head.prompts[0].stop_reason, Some(PromptStop::End));
    // The limit increase applied to that prompt only.
    env.queue_prompt(&services, &TestEnv::key(), "again").await.unwrap();
    pass_minutes(&mut env, 1).await;
    assert!(waits_for_budget(&env.head().await.unwrap()));
}

#[tokio::test(start_paused = true)]
async fn limit_increase_below_usage_is_rejected() {
    let mut env = new_env(calls_look_then_replies);
    let services = env.new_worker(Arc::new(NoFailPoints));
    env.send_prompt(&services).await;
    set_budget(&services, json!({"conversation": {"tokens": 100}})).await;
    pass_minutes(&mut env, 1).await;
    let request = env.head().await.unwrap().requests[0].id.clone();
    let approver =
        Decider::User { tenant: TenantId::new("t"), user: UserId::new("u"), roles: Vec::new() };
    for value in
        [None, Some(json!(100)), Some(json!("more")), Some(json!({"usd": 5})), Some(json!(1.5))]
    {
        let request_body = DecisionRequest {
            decision: "approve".to_owned(),
            reason: None,
            value: value.as_ref().map(RawJson::from_value),
        };
        let outcome =
            decide(&services, &TestEnv::key(), request.as_str(), request_body, &approver).await;
        assert!(outcome.is_err(), "{value:?}");
    }
    decide_first_request(&services, &TestEnv::key(), "approve", Some(json!({"tokens": 101}))).await;
    pass_minutes(&mut env, 1).await;
    assert_eq!(env.head().await.unwrap().prompts[0].stop_reason, Some(PromptStop::End));
}

#[tokio::test(start_paused = true)]
async fn rejected_or_expired_increase_ends_prompt_with_reason() {
    for is_rejected in [true, false] {
        let mut env = new_env(calls_look_then_replies);
        let services = env.new_worker(Arc::new(NoFailPoints));
        env.send_prompt(&services).await;
        set_budget(&services, json!({"conversation": {"tokens": 50}})).await;
        pass_minutes(&mut env, 1).await;
        assert!(waits_for_budget(&env.head().await.unwrap()));
        if is_rejected {
            decide_first_request(&services, &TestEnv::key(), "reject", None).await;
        } else {
            tokio::time::sleep(Duration::from_hours(7 * 24)).await;
        }
        pass_minutes(&mut env, 2).await;
        let head = env.head().await.unwrap();
        let span = &head.prompts[0];
        assert_eq!(
            (span.state, span.stop_reason),
            (PromptState::Completed, Some(PromptStop::Budget))
        );
        let (_, head) = inbox_then_head(&services, &TestEnv::key()).await.unwrap();
        let view = read_prompt(&services, &head, &span.id).await.unwrap();
        let view = serde_json::to_value(&view).unwrap();
        let last = view["output"].as_array().unwrap().last().unwrap();
        let expected = "Stopped: The budget of this conversation is used up: 100 of 50 tokens.";
        assert_eq!(last["content"], expected);
        let receipt = read_receipt(&services, &head, &span.id).await.unwrap();
        let receipt = serde_json::to_value(&receipt).unwrap();
        assert_eq!((&receipt["modelCalls"], &receipt["turns"]), (&json!(1), &json!(1)));
        let by = if is_rejected { "u" } else { "expiry" };
        assert_eq!(receipt["requests"][0]["decidedBy"], by);
    }
}

#[tokio::test(start_paused = true)]
async fn higher_budget_setting_resumes_prompt_without_decision() {
    let mut env = new_env(calls_look_then_replies);
    let services = env.new_worker(Arc::new(NoFailPoints));
    env.send_prompt(&services).await;
    set_budget(&services, json!({"prompt": {"tokens": 50}})).await;
    pass_minutes(&mut env, 1).await;
    assert!(waits_for_budget(&env.head().await.unwrap()));
    set_budget(&services, json!({"prompt": {"tokens": 5_000}})).await;
    pass_minutes(&mut env, 4).await;
    assert_eq!(env.head().await.unwrap().prompts[0].stop_reason, Some(PromptStop::End));
}
