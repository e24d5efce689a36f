//! Tests of usage reports, budget approvals and rate limits.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use turnwheel::testing::ledger::spending_limits::SpendingLimits;
use turnwheel::testing::settings::budgets::Budgets;
use turnwheel::testing::settings::rate_limits::{Rate, RateLimits};
use turnwheel::testing::turn::sweep;

use super::test_app::TestApp;

/// Advances the clock until the usage ledger is up to date.
async fn advance_until_ledger_updated(app: &TestApp) {
    app.clock.advance(Duration::from_mins(11));
    sweep::sweep(&*app.services, Duration::ZERO).await.unwrap();
    app.work().await;
}

#[tokio::test]
async fn usage_report_is_visible_to_user_and_operator() {
    let app = TestApp::new();
    let prompt = app.run("use pay with {\"amount\": 5} then say done").await;
    advance_until_ledger_updated(&app).await;
    let spent = app.get_json(&format!("/api/conversations/c/prompts/{prompt}")).await;
    for (by, name) in
        [("tenant", "default"), ("user", "default"), ("agent", "clerk"), ("day", "2023-11-14")]
    {
        let report = app.get_json(&format!("/api/usage?by={by}")).await;
        assert_eq!((&report["by"], &report["to"]), (&json!(by), &json!("2023-11-14")));
        let [item] = report["items"].as_array().unwrap().as_slice() else { panic!("{report}") };
        assert_eq!((&item["name"], &item["modelCalls"]), (&json!(name), &json!(2)));
        assert_eq!(item["usage"]["totalTokens"], spent["usage"]["totalTokens"]);
    }
    let as_bob = |role: &str| app.get("/api/usage?by=user").user("bob", role);
    assert_eq!(as_bob("Clerk").send().await.expect_status(200).json()["items"], json!([]));
    let whole = as_bob("Turnwheel.Operator").send().await.expect_status(200).json();
    assert_eq!(whole["items"][0]["name"], "default");
    let before = app.get_json("/api/usage?from=2023-11-01&to=2023-11-13").await;
    assert_eq!(before["items"], json!([]));
    for (query, at) in [
        ("by=week", "?by"),
        ("from=x", "?from"),
        ("to=2023-02-30", "?to"),
        ("from=2020-01-01", "?from"),
        ("from=2023-11-15&to=2023-11-14", "?from"),
    ] {
        let refused = app.get(&format!("/api/usage?{query}")).send().await;
        let refused = refused.expect_problem(400, "bad-request");
        assert_eq!(refused["errors"][0]["pointer"], at, "{query}: {refused}");
    }
}

#[tokio::test]
async fn limits_are_visible_with_their_usage() {
    let budgets = r#"{"user": {"day": {"usd": 5}, "total": {"tokens": 100000}}, "tenant": {"month": {"tokens": 900000}}, "agent:clerk": {"day": {"tokens": 50000}}}"#;
    let budgets: Budgets = serde_json::from_str(budgets).unwrap();
    let app = TestApp::new().with_services(|services| {
        services.spending_limits = Arc::new(SpendingLimits::new(&budgets, &RateLimits::default()));
    });
    let before = app.get_json("/api/budgets").await;
    assert_eq!(before["items"].as_array().unwrap().len(), 2, "{before}");
    assert_eq!(before["items"][0]["used"], json!(0.0), "{before}");
    let prompt = app.run("use pay with {\"amount\": 5} then say done").await;
    advance_until_ledger_updated(&app).await;
    let spent = app.get_json(&format!("/api/conversations/c/prompts/{prompt}")).await;
    let tokens = &spent["usage"]["totalTokens"];
    let own = app.get_json("/api/budgets").await;
    let [day, total] = own["items"].as_array().unwrap().as_slice() else { panic!("{own}") };
    assert_eq!(
        (&day["level"], &day["period"], &day["unit"], &day["limit"], &day["reserved"]),
        (&json!("user"), &json!("day"), &json!("usd"), &json!(5.0), &json!(0.0))
    );
    assert_eq!(day["resetsAt"], "2023-11-15T00:00:00.000Z");
    assert_eq!((&total["used"], &total["limit"]), (tokens, &json!(100_000)), "{own}");
    assert!(total["resetsAt"].is_null() && total["date"].is_null(), "{own}");
    let operator = app.get("/api/budgets").user("bob", "Turnwheel.Operator").send().await;
    let all = operator.expect_status(200).json();
    let of = |level: &str| {
        let items = all["items"].as_array().unwrap();
        items.iter().find(|it| it["level"] == level).unwrap().clone()
    };
    assert_eq!(of("user")["name"], "bob");
    assert_eq!((&of("agent")["name"], &of("agent")["used"]), (&json!("clerk"), tokens));
    assert_eq!((&of("tenant")["name"], &of("tenant")["used"]), (&json!("default"), tokens));
    assert_eq!(of("tenant")["resetsAt"], "2023-12-01T00:00:00.000Z");
}

#[tokio::test]
async fn exceeded_budget_requires_approval_recorded_in_summary() {
    let app = TestApp::new();
    let wrong = json!({"id": "x", "settings": {"budget": {"prompt": {"usd": 0}}}});
    let refused =
        app.post("/api/conversations", &wrong).send().await.expect_problem(400, "bad-request");
    assert_eq!(refused["errors"][0]["pointer"], "/settings/budget", "{refused}");
    let made = json!({"id": "c", "settings": {"budget": {"prompt": {"tokens": 1}}}});
    app.post("/api/conversations", &made).send().await.expect_status(201);
    let prompt = app.run("use pay with {\"amount\": 5} then say done").await;
    let path = format!("/api/conversations/c/prompts/{prompt}");
    assert_eq!(app.get_json(&path).await["state"], "waiting_for_approval");
    let approval = app.get_json("/api/approvals").await["items"][0].clone();
    assert_eq!(
        (&approval["kind"], &approval["decisions"]),
        (&json!("budget"), &json!(["approve", "reject"]))
    );
    assert_eq!(
        (&approval["budget"]["level"], &approval["budget"]["limit"]),
        (&json!("prompt"), &json!(1))
    );
    let decide = format!("/api/conversations/c/approvals/{}", approval["id"].as_str().unwrap());
    let too_little = json!({"decision": "approve", "value": 1});
    app.post(&decide, &too_little).send().await.expect_problem(400, "bad-request");
    app.post(&decide, &json!({"decision": "approve"}))
        .send()
        .await
        .expect_problem(400, "bad-request");
    let link = app.approval_link().await;
    let page = app.get(&link).header("accept", "text/html").send().await.expect_status(200).text;
    assert!(page.contains("New limit in tokens"), "{page}");
    let enough = json!({"decision": "approve", "value": 1_000_000, "reason": "go on"});
    app.post(&decide, &enough).send().await.expect_status(200);
    app.work().await;
    let seen = app.get_json(&path).await;
    assert_eq!((&seen["state"], &seen["stopReason"]), (&json!("completed"), &json!("end")));
    let receipt = app.get_json(&format!("{path}/receipt")).await;
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
    app.get("/api/conversations/c/prompts/pr_x/receipt")
        .send()
        .await
        .expect_problem(404, "not-found");
}

#[tokio::test]
async fn rate_limited_request_states_retry_time() {
    let rate = Rate { count: 2, period: Duration::from_mins(1) };
    let rates = RateLimits { requests: Some(rate), model_calls: None };
    let app = TestApp::new().with_services(|services| {
        services.spending_limits = Arc::new(SpendingLimits::new(&Budgets::default(), &rates));
    });
    for _ in 0..2 {
        app.get("/api/conversations").send().await.expect_status(200);
    }
    let refused = app.get("/api/conversations").send().await;
    assert_eq!(refused.header("retry-after"), "30");
    let problem: Value = refused.expect_problem(429, "rate-limited");
    assert_eq!(
        problem["detail"],
        "The request rate exceeds TURNWHEEL_RATE_LIMITS. Try again in 30 s."
    );
    app.get("/api/health").send().await.expect_status(200);
    app.get("/api/conversations").user("bob", "").send().await.expect_status(200);
    app.clock.advance(Duration::from_secs(30));
    app.get("/api/conversations").send().await.expect_status(200);
}
