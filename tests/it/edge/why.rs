//! Tests of access to diagnostics: owners read their own, operators their tenant's.

use serde_json::json;

use super::test_app::TestApp;

#[tokio::test]
async fn diagnostics_are_visible_to_owner_and_operator() {
    let app = TestApp::new();
    app.run("use pay with {\"amount\": 500}").await;
    let path = "/api/conversations/c/why";
    let view = app.get_json(path).await;
    assert_eq!((&view["id"], &view["agent"]), (&json!("c"), &json!("clerk")));
    assert_eq!(view["owner"], json!({"tenantId": "default", "userId": "default"}));
    assert_eq!(
        (&view["state"], &view["waitsFor"]),
        (&json!("waiting_for_approval"), &json!("approval"))
    );
    assert_eq!(
        view["why"],
        "An approver must decide whether `pay` may run; requested at 2023-11-14T22:13:20.000Z."
    );
    assert_eq!(view["since"], "2023-11-14T22:13:20.000Z");
    let text = view.to_string();
    assert!(!text.contains("500"), "the view must not contain call arguments: {text}");
    app.get(path).user("eve", "").send().await.expect_problem(404, "not-found");
    app.get("/api/conversations/x/why").send().await.expect_problem(404, "not-found");
    let operator = "Turnwheel.Operator";
    assert_eq!(app.get(path).user("ops", operator).send().await.expect_status(200).json(), view);

    app.get("/api/work").send().await.expect_problem(403, "forbidden");
    let all = app
        .get("/api/work?waiting=true")
        .user("ops", operator)
        .send()
        .await
        .expect_status(200)
        .json();
    assert_eq!(all["items"], json!([view]));
    let stuck =
        app.get("/api/work?stuck=600").user("ops", operator).send().await.expect_status(200).json();
    assert_eq!(
        stuck,
        json!({"items": [], "unreadable": [], "isCut": false, "notices": 0, "schedules": 0})
    );
    let other = app.get("/api/work").user("ops", operator).header("turnwheel-tenant", "other");
    assert_eq!(other.send().await.expect_status(200).json()["items"], json!([]));
    let wrong = app.get("/api/work?stuck=soon").user("ops", operator).send().await;
    assert_eq!(wrong.expect_problem(400, "bad-request")["errors"][0]["pointer"], "?stuck");
}
