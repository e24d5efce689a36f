//! Reads that the web console needs: identity, lists with filters, the newest entries, approvals with their call, agents.

use std::sync::Arc;

use http::Method;
use serde_json::{Value, json};
use turnwheel::testing::fail_points::NoFailPoints;
use turnwheel::testing::http::api::Api;
use turnwheel::testing::http::auth::Access;
use turnwheel::testing::http::doctor::{Doctor, ServiceChecks};
use turnwheel::testing::http::router;
use turnwheel::testing::services::Services;
use turnwheel::testing::settings::links::Auth;
use turnwheel::testing::store::memory::MemoryStore;

use super::test_app::TestApp;

const OPERATOR_ROLE: &str = "Turnwheel.Operator";
const LIST: &str = "/api/conversations";

/// Creates a conversation, and runs a prompt in it.
async fn run_in(app: &TestApp, id: &str, input: &str) {
    let body = json!({"conversationId": id, "input": input});
    app.post("/api/prompts", &body).send().await.expect_status(202);
    app.work().await;
}

async fn list_ids(app: &TestApp, query: &str) -> Vec<String> {
    let page = app.get_json(&format!("{LIST}?{query}")).await;
    let items = page["items"].as_array().unwrap().iter();
    items.map(|item| item["id"].as_str().unwrap().to_owned()).collect()
}

#[tokio::test]
async fn identity_names_caller_and_mode() {
    let app = TestApp::new();
    let own = app.get("/api/me").user("ann", &format!("Boss,{OPERATOR_ROLE}")).send().await;
    let own = own.expect_status(200).json();
    assert_eq!((&own["tenantId"], &own["userId"]), (&json!("default"), &json!("ann")));
    assert_eq!(
        (&own["roles"], &own["isOperator"]),
        (&json!(["Boss", OPERATOR_ROLE]), &json!(true))
    );
    assert_eq!((&own["auth"], &own["isDev"]), (&json!("header"), &json!(true)));
    let store = Arc::new(MemoryStore::new());
    let access = Access { auth: Auth::SignIn, is_dev: false, ..Access::dev() };
    let app = TestApp::with_access(store, Arc::new(NoFailPoints), access);
    app.get("/api/me").send().await.expect_problem(401, "unauthorized");
}

#[tokio::test]
async fn list_filters_conversations() {
    let app = TestApp::new();
    run_in(&app, "one", "say hello   to\nAda").await;
    run_in(&app, "two", "use pay with {\"amount\": 500} then say done").await;
    run_in(&app, "three", "say fail").await;
    let rename = json!({"name": "Invoice 4711"});
    app.patch(&format!("{LIST}/three"), &rename).send().await.expect_status(200);
    assert_eq!(list_ids(&app, "").await.len(), 3);
    assert_eq!(list_ids(&app, "state=waiting_for_approval").await, ["two"]);
    assert_eq!(list_ids(&app, "state=failed").await, [""; 0]);
    assert_eq!(list_ids(&app, "q=ADA").await, ["one"]);
    assert_eq!(list_ids(&app, "q=invoice").await, ["three"]);
    assert_eq!(list_ids(&app, "agent=clerk&state=idle&q=o").await.len(), 2);
    assert_eq!(list_ids(&app, "agent=absent").await, [""; 0]);
    let page = app.get_json(&format!("{LIST}?q=hello")).await;
    assert_eq!(page["items"][0]["preview"], "say hello to Ada");
    let why = page["items"][0]["why"].as_str().unwrap();
    assert!(why.starts_with("No work is pending: the last prompt"), "{why}");
    let waiting = app.get_json(&format!("{LIST}?q=two")).await;
    let explained = app.get_json(&format!("{LIST}/two/why")).await;
    assert_eq!(waiting["items"][0]["why"], explained["why"]);
    for bad in ["state=ended", "order=name", "updatedAfter=now"] {
        let refused = app.get(&format!("{LIST}?{bad}")).send().await;
        let problem = refused.expect_problem(400, "bad-request");
        let name = bad.split('=').next().unwrap();
        assert_eq!(problem["errors"][0]["pointer"], format!("?{name}"));
    }
}

#[tokio::test]
async fn list_by_last_change_pages_through_all() {
    let app = TestApp::new();
    for id in ["a", "b", "c", "d"] {
        run_in(&app, id, "say hello").await;
        app.clock.advance(std::time::Duration::from_secs(1));
    }
    let at = app.get_json(&format!("{LIST}/d")).await["updatedAt"].as_str().unwrap().to_owned();
    let more = json!({"input": "say more"});
    app.post(&format!("{LIST}/b/prompts"), &more).send().await.expect_status(202);
    app.work().await;
    assert_eq!(list_ids(&app, "").await, ["d", "c", "b", "a"]);
    let mut found = Vec::new();
    let mut path = format!("{LIST}?order=updatedAt&limit=1");
    loop {
        let page = app.get(&path).send().await.expect_status(200);
        found.push(page.json()["items"][0]["id"].clone());
        let Some(next) = page.json()["continuation"].as_str().map(str::to_owned) else { break };
        path = format!("{LIST}?order=updatedAt&limit=1&continuation={next}");
    }
    assert_eq!(found, ["b", "d", "c", "a"]);
    assert_eq!(list_ids(&app, &format!("order=updatedAt&updatedAfter={at}")).await, ["b"]);
}

#[tokio::test]
async fn unchanged_list_is_not_sent_again() {
    let app = TestApp::new();
    run_in(&app, "one", "say hello").await;
    let page = app.get(LIST).send().await.expect_status(200);
    let etag = page.header("etag").to_owned();
    let again = app.get(LIST).header("if-none-match", &etag).send_unvalidated().await;
    assert_eq!((again.status.as_u16(), again.text.as_str()), (304, ""));
    run_in(&app, "two", "say hello").await;
    app.get(LIST).header("if-none-match", &etag).send().await.expect_status(200);
}

#[tokio::test]
async fn entries_are_listed_from_the_newest() {
    let app = TestApp::new();
    for number in 0..4 {
        app.run(&format!("say {number}")).await;
    }
    let path = "/api/conversations/c";
    let newest = app.get_json(path).await["seq"].as_u64().unwrap();
    let seqs = async |query: String| -> (Vec<u64>, Option<String>) {
        let page = app.get_json(&format!("{path}/entries?{query}")).await;
        let seqs =
            page["items"].as_array().unwrap().iter().map(|item| item["seq"].as_u64().unwrap());
        (seqs.collect(), page["continuation"].as_str().map(str::to_owned))
    };
    let all: Vec<u64> = (1..=newest).collect();
    let reversed: Vec<u64> = all.iter().rev().copied().collect();
    assert_eq!(seqs("limit=500".to_owned()).await, (all.clone(), None));
    assert_eq!(seqs("order=desc&limit=500".to_owned()).await, (reversed.clone(), None));
    let (mut found, mut next) = seqs("order=desc&limit=3".to_owned()).await;
    while let Some(continuation) = next {
        let page = seqs(format!("order=desc&limit=3&continuation={continuation}")).await;
        found.extend(page.0);
        next = page.1;
    }
    assert_eq!(found, reversed);
    assert_eq!(seqs("beforeSeq=4&order=desc".to_owned()).await.0, [3, 2, 1]);
    assert_eq!(seqs("beforeSeq=6&afterSeq=3&order=desc".to_owned()).await.0, [5, 4]);
    assert_eq!(seqs("beforeSeq=6&afterSeq=3".to_owned()).await.0, [4, 5]);
    assert_eq!(seqs("beforeSeq=1&order=desc".to_owned()).await.0, [0; 0]);
    let last = newest + 1;
    assert_eq!(seqs(format!("afterSeq={newest}&beforeSeq={last}")).await.0, [0; 0]);
    let refused = app.get(&format!("{path}/entries?limit=501")).send().await;
    refused.expect_problem(400, "bad-request");
}

#[tokio::test]
async fn approval_names_agent_and_whether_caller_decides() {
    let app = TestApp::new();
    // Above 1,000 the requester is no approver, above 10,000 only a boss is.
    app.run("use pay with {\"amount\": 500} then say done").await;
    let own = app.get_json("/api/conversations/c").await["pendingApprovals"][0].clone();
    assert_eq!((&own["agent"], &own["canDecide"]), (&json!("clerk"), &json!(true)));
    let listed = app.get_json("/api/approvals").await["items"][0].clone();
    assert_eq!((&listed["agent"], &listed["canDecide"]), (&json!("clerk"), &json!(true)));
    run_in(&app, "big", "use pay with {\"amount\": 5000} then say done").await;
    let excluded = app.get_json("/api/conversations/big").await;
    assert_eq!(excluded["pendingApprovals"][0]["canDecide"], false);
}

/// Reports one check.
struct OneCheck;

#[async_trait::async_trait]
impl Doctor for OneCheck {
    async fn run_checks(&self) -> Result<ServiceChecks, String> {
        let check =
            json!({"area": "agents", "name": "agent files", "outcome": "ok", "detail": "x"});
        Ok(serde_json::from_value(json!({"ok": true, "checks": [check]})).unwrap())
    }
}

#[tokio::test]
async fn checks_of_the_service_are_for_operators_and_dev() {
    let path = "/api/doctor";
    let app_with = |is_dev: bool| {
        let mut app = TestApp::new();
        let access = Access { is_dev, ..Access::dev() };
        let api = Api::new(Services::clone(&app.services), access, app.keys.clone());
        app.router = router(Arc::new(Api { doctor: Some(Arc::new(OneCheck)), ..api }));
        app
    };
    let app = app_with(true);
    assert_eq!(app.get_json(path).await["checks"][0]["name"], "agent files");
    assert_eq!(app.get_json("/api/me").await["features"], json!(["doctor"]));
    let app = app_with(false);
    app.get(path).user("ann", "Boss").send().await.expect_problem(403, "forbidden");
    let as_operator = async |path: &str| {
        app.get(path).user("ann", OPERATOR_ROLE).send().await.expect_status(200).json()
    };
    assert_eq!(as_operator(path).await["ok"], true);
    assert_eq!(as_operator("/api/me").await["features"], json!(["doctor"]));
    let own = app.get("/api/me").user("ann", "").send().await.expect_status(200).json();
    assert_eq!(own["features"], json!([]));
    let refused = TestApp::new().get(path).send().await.expect_problem(503, "unavailable");
    assert!(refused["detail"].as_str().unwrap().contains("run `turnwheel doctor`"), "{refused}");
}

#[tokio::test]
async fn agent_detail_has_instructions_only_for_operators_and_dev() {
    let path = "/api/agents/clerk";
    let app = TestApp::new();
    let detail = app.get_json(path).await;
    assert_eq!(detail["instructions"], "Pay what you are asked to.");
    let tool = &detail["toolDefinitions"][0];
    assert_eq!((&tool["name"], &tool["effect"]), (&json!("pay"), &json!("write")));
    assert_eq!(tool["parameters"]["properties"]["amount"]["type"], "number");
    assert_eq!(tool["timeoutMs"], 30_000);
    assert_eq!(tool["approval"], json!({"rule": "code"}), "only the code of the tool knows");
    app.get("/api/agents/absent").send().await.expect_problem(404, "not-found");
    let store = Arc::new(MemoryStore::new());
    let access = Access { is_dev: false, ..Access::dev() };
    let app = TestApp::with_access(store, Arc::new(NoFailPoints), access);
    let read = async |roles: &str| -> Value {
        let request = app.request(Method::GET, path).user("ann", roles);
        request.send().await.expect_status(200).json()["instructions"].clone()
    };
    assert_eq!(read("").await, Value::Null);
    assert_eq!(read(OPERATOR_ROLE).await, "Pay what you are asked to.");
}
