//! Approval requests of an exhausted budget: nothing runs until an approver grants a higher limit.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use super::super::bench::{Bench, idempotency};
use super::{is_paused, looks_then_says, pass, say, stage};
use crate::agent::entry::{PromptState, PromptStop};
use crate::agent::raw::RawJson;
use crate::ids::{TenantId, UserId};
use crate::turn::admission::decide::{Decider, Said, decide};
use crate::turn::admission::patch::patch_conversation;
use crate::turn::views::approvals::approval;
use crate::turn::views::load::inbox_then_head;
use crate::turn::views::prompts::{prompt, receipt};
use crate::turn::{NoProbe, World};

pub(super) async fn set_budget(world: &World, budget: Value) {
    let patch = json!({"settings": {"budget": budget}});
    let key = idempotency(&patch.to_string());
    patch_conversation(world, &Bench::key(), patch.as_object().unwrap(), &key, |_| true)
        .await
        .unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_used_up_prompt_asks_and_goes_on_with_the_new_limit() {
    let mut bench = stage(looks_then_says);
    let world = bench.worker(Arc::new(NoProbe));
    bench.ask(&world).await;
    set_budget(&world, json!({"prompt": {"usd": 0.01}})).await;
    pass(&mut bench, 1).await;
    let head = bench.head().await.unwrap();
    assert!(is_paused(&head), "{head:?}");
    assert_eq!(head.requests[0].reason, "The budget of this prompt is used up: $0.01 of $0.01.");
    assert_eq!(head.claim, None, "no worker has the lease");
    assert_eq!(*bench.model.answers.lock().unwrap(), 1);
    pass(&mut bench, 5).await;
    assert_eq!(*bench.model.answers.lock().unwrap(), 1, "further deliveries call no model");
    let (_, head) = inbox_then_head(&world, &Bench::key()).await.unwrap();
    let view = approval(&world, &head, &head.requests[0].id).await;
    let view = serde_json::to_value(view.unwrap().unwrap().view()).unwrap();
    assert_eq!(view["kind"], "budget");
    assert_eq!(
        view["budget"],
        json!({"level": "prompt", "unit": "usd", "limit": 0.01, "used": 0.01})
    );
    say(&world, &Bench::key(), "approve", Some(json!({"usd": 0.5}))).await;
    pass(&mut bench, 1).await;
    let head = bench.head().await.unwrap();
    assert_eq!(head.prompts[0].stop_reason, Some(PromptStop::End));
    // The limit increase applied to that prompt only.
    bench.queue_up(&world, &Bench::key(), "again").await.unwrap();
    pass(&mut bench, 1).await;
    assert!(is_paused(&bench.head().await.unwrap()));
}

#[tokio::test(start_paused = true)]
async fn a_limit_below_what_is_used_is_refused() {
    let mut bench = stage(looks_then_says);
    let world = bench.worker(Arc::new(NoProbe));
    bench.ask(&world).await;
    set_budget(&world, json!({"conversation": {"tokens": 100}})).await;
    pass(&mut bench, 1).await;
    let request = bench.head().await.unwrap().requests[0].id.clone();
    let who =
        Decider::Person { tenant: TenantId::new("t"), user: UserId::new("u"), roles: Vec::new() };
    for value in
        [None, Some(json!(100)), Some(json!("more")), Some(json!({"usd": 5})), Some(json!(1.5))]
    {
        let said = Said {
            decision: "approve".to_owned(),
            reason: None,
            value: value.as_ref().map(RawJson::of),
        };
        let refused = decide(&world, &Bench::key(), request.as_str(), said, &who).await;
        assert!(refused.is_err(), "{value:?}");
    }
    say(&world, &Bench::key(), "approve", Some(json!({"tokens": 101}))).await;
    pass(&mut bench, 1).await;
    assert_eq!(bench.head().await.unwrap().prompts[0].stop_reason, Some(PromptStop::End));
}

#[tokio::test(start_paused = true)]
async fn who_says_no_or_nothing_ends_the_prompt_and_the_prompt_says_why() {
    for is_said in [true, false] {
        let mut bench = stage(looks_then_says);
        let world = bench.worker(Arc::new(NoProbe));
        bench.ask(&world).await;
        set_budget(&world, json!({"conversation": {"tokens": 50}})).await;
        pass(&mut bench, 1).await;
        assert!(is_paused(&bench.head().await.unwrap()));
        if is_said {
            say(&world, &Bench::key(), "reject", None).await;
        } else {
            tokio::time::sleep(Duration::from_hours(7 * 24)).await;
        }
        pass(&mut bench, 2).await;
        let head = bench.head().await.unwrap();
        let span = &head.prompts[0];
        assert_eq!(
            (span.state, span.stop_reason),
            (PromptState::Completed, Some(PromptStop::Budget))
        );
        let (_, head) = inbox_then_head(&world, &Bench::key()).await.unwrap();
        let view = prompt(&world, &head, &span.id).await.unwrap();
        let view = serde_json::to_value(&view).unwrap();
        let last = view["output"].as_array().unwrap().last().unwrap();
        let said = "Stopped: The budget of this conversation is used up: 100 of 50 tokens.";
        assert_eq!(last["content"], said);
        let receipt = receipt(&world, &head, &span.id).await.unwrap();
        let receipt = serde_json::to_value(&receipt).unwrap();
        assert_eq!((&receipt["modelCalls"], &receipt["turns"]), (&json!(1), &json!(1)));
        let by = if is_said { "u" } else { "expiry" };
        assert_eq!(receipt["requests"][0]["decidedBy"], by);
    }
}

#[tokio::test(start_paused = true)]
async fn a_budget_that_is_set_higher_frees_by_itself() {
    let mut bench = stage(looks_then_says);
    let world = bench.worker(Arc::new(NoProbe));
    bench.ask(&world).await;
    set_budget(&world, json!({"prompt": {"tokens": 50}})).await;
    pass(&mut bench, 1).await;
    assert!(is_paused(&bench.head().await.unwrap()));
    set_budget(&world, json!({"prompt": {"tokens": 5_000}})).await;
    pass(&mut bench, 4).await;
    assert_eq!(bench.head().await.unwrap().prompts[0].stop_reason, Some(PromptStop::End));
}
