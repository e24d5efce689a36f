//! Tests of access to diagnostics: owners read their own, operators their tenant's.

use serde_json::json;

use super::rig::Rig;

#[tokio::test]
async fn owners_ask_about_their_own_and_operators_about_all_of_their_tenant() {
    let rig = Rig::new();
    rig.run("use pay with {\"amount\": 500}").await;
    let path = "/api/conversations/c/why";
    let view = rig.seen(path).await;
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
    rig.get(path).user("eve", "").send().await.fails(404, "not-found");
    rig.get("/api/conversations/x/why").send().await.fails(404, "not-found");
    let operator = "Turnwheel.Operator";
    assert_eq!(rig.get(path).user("ops", operator).send().await.is(200).json(), view);

    rig.get("/api/work").send().await.fails(403, "forbidden");
    let all = rig.get("/api/work?waiting=true").user("ops", operator).send().await.is(200).json();
    assert_eq!(all["items"], json!([view]));
    let stuck = rig.get("/api/work?stuck=600").user("ops", operator).send().await.is(200).json();
    assert_eq!(
        stuck,
        json!({"items": [], "unreadable": [], "isCut": false, "notices": 0, "schedules": 0})
    );
    let other = rig.get("/api/work").user("ops", operator).header("turnwheel-tenant", "other");
    assert_eq!(other.send().await.is(200).json()["items"], json!([]));
    let wrong = rig.get("/api/work?stuck=soon").user("ops", operator).send().await;
    assert_eq!(wrong.fails(400, "bad-request")["errors"][0]["pointer"], "?stuck");
}
