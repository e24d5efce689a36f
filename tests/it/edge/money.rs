//! Tests of usage reports, budget approvals and rate limits.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use turnwheel::settings::budgets::Budgets;
use turnwheel::settings::rates::{Rate, RateLimits};
use turnwheel::turn::money::Money;
use turnwheel::turn::sweep;

use super::rig::Rig;

/// Advances the clock until the usage ledger is up to date.
async fn later(rig: &Rig) {
    rig.clock.advance(Duration::from_mins(11));
    sweep::sweep(&rig.world, Duration::ZERO).await.unwrap();
    rig.work().await;
}

#[tokio::test]
async fn usage_is_shown_to_its_user_and_to_operators() {
    let rig = Rig::new();
    let prompt = rig.run("use pay with {\"amount\": 5} then say done").await;
    later(&rig).await;
    let spent = rig.seen(&format!("/api/conversations/c/prompts/{prompt}")).await;
    for (by, name) in
        [("tenant", "default"), ("user", "default"), ("agent", "clerk"), ("day", "2023-11-14")]
    {
        let report = rig.seen(&format!("/api/usage?by={by}")).await;
        assert_eq!((&report["by"], &report["to"]), (&json!(by), &json!("2023-11-14")));
        let [item] = report["items"].as_array().unwrap().as_slice() else { panic!("{report}") };
        assert_eq!((&item["name"], &item["modelCalls"]), (&json!(name), &json!(2)));
        assert_eq!(item["usage"]["totalTokens"], spent["usage"]["totalTokens"]);
    }
    let as_bob = |role: &str| rig.get("/api/usage?by=user").user("bob", role);
    assert_eq!(as_bob("Clerk").send().await.is(200).json()["items"], json!([]));
    let whole = as_bob("Turnwheel.Operator").send().await.is(200).json();
    assert_eq!(whole["items"][0]["name"], "default");
    let before = rig.seen("/api/usage?from=2023-11-01&to=2023-11-13").await;
    assert_eq!(before["items"], json!([]));
    for (query, at) in [
        ("by=week", "?by"),
        ("from=x", "?from"),
        ("to=2023-02-30", "?to"),
        ("from=2020-01-01", "?from"),
        ("from=2023-11-15&to=2023-11-14", "?from"),
    ] {
        let refused = rig.get(&format!("/api/usage?{query}")).send().await;
        let refused = refused.fails(400, "bad-request");
        assert_eq!(refused["errors"][0]["pointer"], at, "{query}: {refused}");
    }
}

#[tokio::test]
async fn a_used_up_budget_asks_and_its_receipt_says_who_agreed() {
    let rig = Rig::new();
    let wrong = json!({"id": "x", "settings": {"budget": {"prompt": {"usd": 0}}}});
    let refused = rig.post("/api/conversations", &wrong).send().await.fails(400, "bad-request");
    assert_eq!(refused["errors"][0]["pointer"], "/settings/budget", "{refused}");
    let made = json!({"id": "c", "settings": {"budget": {"prompt": {"tokens": 1}}}});
    rig.post("/api/conversations", &made).send().await.is(201);
    let prompt = rig.run("use pay with {\"amount\": 5} then say done").await;
    let path = format!("/api/conversations/c/prompts/{prompt}");
    assert_eq!(rig.seen(&path).await["state"], "waiting_for_approval");
    let asked = rig.seen("/api/approvals").await["items"][0].clone();
    assert_eq!(
        (&asked["kind"], &asked["decisions"]),
        (&json!("budget"), &json!(["approve", "reject"]))
    );
    assert_eq!(
        (&asked["budget"]["level"], &asked["budget"]["limit"]),
        (&json!("prompt"), &json!(1))
    );
    let decide = format!("/api/conversations/c/approvals/{}", asked["id"].as_str().unwrap());
    let too_little = json!({"decision": "approve", "value": 1});
    rig.post(&decide, &too_little).send().await.fails(400, "bad-request");
    rig.post(&decide, &json!({"decision": "approve"})).send().await.fails(400, "bad-request");
    let link = rig.link().await;
    let page = rig.get(&link).header("accept", "text/html").send().await.is(200).text;
    assert!(page.contains("New limit in tokens"), "{page}");
    let enough = json!({"decision": "approve", "value": 1_000_000, "reason": "go on"});
    rig.post(&decide, &enough).send().await.is(200);
    rig.work().await;
    let seen = rig.seen(&path).await;
    assert_eq!((&seen["state"], &seen["stopReason"]), (&json!("completed"), &json!("end")));
    let receipt = rig.seen(&format!("{path}/receipt")).await;
    assert_eq!(receipt["usage"], seen["usage"]);
    let counted = ["turns", "modelCalls", "toolCalls"].map(|name| receipt[name].clone());
    assert_eq!(counted, [json!(2), json!(2), json!(1)]);
    let writes =
        json!({"done": 1, "failed": 0, "unknown": 0, "open": 0, "again": 0, "repeated": 0});
    assert_eq!(receipt["writes"], writes);
    let request = &receipt["requests"][0];
    assert_eq!(
        (&request["decision"], &request["decidedBy"], &request["value"], &request["reason"]),
        (&json!("approve"), &json!("default"), &json!(1_000_000), &json!("go on"))
    );
    assert!(receipt["startedAt"].is_string() && receipt["endedAt"].is_string());
    rig.get("/api/conversations/c/prompts/pr_x/receipt").send().await.fails(404, "not-found");
}

#[tokio::test]
async fn who_asks_too_fast_is_told_when_to_come_again() {
    let rate = Rate { count: 2, period: Duration::from_mins(1) };
    let rates = RateLimits { requests: Some(rate), model_calls: None };
    let rig = Rig::new().with_world(|world| {
        world.money = Arc::new(Money::new(&Budgets::default(), &rates));
    });
    for _ in 0..2 {
        rig.get("/api/conversations").send().await.is(200);
    }
    let refused = rig.get("/api/conversations").send().await;
    assert_eq!(refused.header("retry-after"), "30");
    let told: Value = refused.fails(429, "rate-limited");
    assert_eq!(
        told["detail"],
        "The request rate exceeds TURNWHEEL_RATE_LIMITS. Try again in 30 s."
    );
    rig.get("/api/health").send().await.is(200);
    rig.get("/api/conversations").user("bob", "").send().await.is(200);
    rig.clock.advance(Duration::from_secs(30));
    rig.get("/api/conversations").send().await.is(200);
}
