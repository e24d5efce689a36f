//! Tests of the profile routes: two users, two tenants, operators, versions and deletion.

use serde_json::{Value, json};
use turnwheel::testing::agents::{AgentFileContext, McpServers, ToolSet, load_folder};
use turnwheel::testing::tools::http::address_rules::AddressRules;
use turnwheel::testing::tools::http::client::HttpClient;

use super::test_app::{TestApp, TestRequest};

const PATH: &str = "/api/me/profile";

fn app() -> TestApp {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("clerk.agent.md"), "---\nprofile: true\n---\nHelp.").unwrap();
    let context = AgentFileContext {
        tools: &ToolSet::new(),
        plugins: &[],
        extensions: &[],
        skills: &[],
        context_files: &[],
        mcp: McpServers::none(),
        app_settings: &|_| None,
        client: &HttpClient::new(AddressRules::default()).unwrap(),
    };
    let loaded = load_folder(folder.path(), "agents", &context);
    assert!(loaded.mistakes.is_empty(), "{:?}", loaded.mistakes);
    TestApp::new().with_services(|services| services.agents = loaded.catalog.into())
}

/// Runs one prompt of a user in each of `count` new conversations of a tenant.
async fn say(app: &TestApp, (user, tenant): (&str, &str), count: usize) {
    for number in 1..=count {
        let id = format!("{user}-{tenant}-{number}");
        let body = json!({"conversationId": id, "input": format!("say {user} {tenant} {number}")});
        let request = app.post("/api/prompts", &body).user(user, "");
        request.header("turnwheel-tenant", tenant).send().await.expect_status(202);
        app.work().await;
    }
}

fn get<'a>(app: &'a TestApp, user: &str, tenant: &str) -> TestRequest<'a> {
    app.get(PATH).user(user, "").header("turnwheel-tenant", tenant)
}

async fn read(app: &TestApp, user: &str, tenant: &str) -> Value {
    get(app, user, tenant).send().await.expect_status(200).json()
}

#[tokio::test]
async fn users_read_and_delete_only_their_own_profile() {
    let app = app();
    assert_eq!(read(&app, "ada", "one").await, json!({"unseenMessages": []}));
    for user in [("ada", "one"), ("eve", "one"), ("ada", "two")] {
        say(&app, user, 5).await;
    }
    for (user, tenant) in [("ada", "one"), ("eve", "one"), ("ada", "two")] {
        let view = read(&app, user, tenant).await;
        let (newest, unseen) = (format!("say {user} {tenant} 5"), &view["unseenMessages"]);
        assert!(view["profile"]["misc"].as_str().unwrap().starts_with(&newest), "{view}");
        assert_eq!((unseen, view["lastLearnedAt"].is_string()), (&json!([]), true));
        assert_eq!(view["profile"].as_object().unwrap().len(), 1, "without `_meta`");
    }
    let delete = app.delete(PATH).user("ada", "").header("turnwheel-tenant", "one");
    delete.send().await.expect_status(204);
    assert_eq!(read(&app, "ada", "one").await, json!({"unseenMessages": []}));
    let delete = app.delete(PATH).user("ada", "").header("turnwheel-tenant", "one");
    delete.send().await.expect_status(204);
    for (user, tenant) in [("eve", "one"), ("ada", "two")] {
        assert!(read(&app, user, tenant).await["profile"].is_object(), "{user} {tenant}");
    }
}

#[tokio::test]
async fn operators_read_profiles_and_change_none() {
    let app = app();
    say(&app, ("ada", "default"), 2).await;
    let operator = "Turnwheel.Operator";
    let path = format!("{PATH}?userId=ada");
    let foreign = app.get(&path).user("eve", "");
    foreign.send().await.expect_problem(403, "forbidden");
    let read = app.get(&path).user("ops", operator).send().await.expect_status(200).json();
    assert_eq!(read["unseenMessages"][1]["text"], "say ada default 2");
    assert_eq!(read["unseenMessages"][1]["conversationId"], "ada-default-2");
    app.delete(PATH).user("ops", operator).send().await.expect_problem(403, "forbidden");
}

#[tokio::test]
async fn profile_has_a_version() {
    let app = app();
    say(&app, ("ada", "default"), 1).await;
    let first = app.get(PATH).user("ada", "").send().await.expect_status(200);
    let etag = first.header("etag").to_owned();
    let same = app.get(PATH).user("ada", "").header("if-none-match", &etag);
    same.send().await.expect_status(304);
    let body = json!({"conversationId": "new", "input": "say more"});
    app.post("/api/prompts", &body).user("ada", "").send().await.expect_status(202);
    app.work().await;
    let delete = app.delete(PATH).user("ada", "").header("if-match", &etag);
    delete.send().await.expect_problem(412, "precondition-failed");
    let newer = app.get(PATH).user("ada", "").send().await.expect_status(200);
    let delete = app.delete(PATH).user("ada", "").header("if-match", newer.header("etag"));
    delete.send().await.expect_status(204);
}

#[tokio::test]
async fn deletion_of_the_user_deletes_the_profile() {
    let app = app();
    say(&app, ("default", "default"), 5).await;
    assert!(app.get_json(PATH).await["profile"].is_object());
    let deletion = app.delete("/api/me").send().await.expect_status(200).json();
    assert_eq!(
        deletion,
        json!({"conversations": 5, "schedules": 0, "documents": 1, "isComplete": true})
    );
    assert_eq!(app.get_json(PATH).await, json!({"unseenMessages": []}));
}

#[tokio::test]
async fn other_messages_do_not_count() {
    let app = app();
    let hidden = json!({"conversationId": "a", "input": "say hidden", "visible": false});
    app.post("/api/prompts", &hidden).send().await.expect_status(202);
    app.work().await;
    let failing = json!({"conversationId": "b", "input": "fail with 400"});
    app.post("/api/prompts", &failing).send().await.expect_status(202);
    app.work().await;
    assert_eq!(app.get_json(PATH).await, json!({"unseenMessages": []}));
    let shown = json!({"conversationId": "c", "input": "say shown"});
    app.post("/api/prompts", &shown).send().await.expect_status(202);
    app.work().await;
    assert_eq!(app.get_json(PATH).await["unseenMessages"][0]["text"], "say shown");
    // The responses of the API about a conversation have no copy of the messages.
    let view = app.get("/api/conversations/c").send().await.expect_status(200).text;
    assert!(!view.contains("profileMessages"), "{view}");
}
