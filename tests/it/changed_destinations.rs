//! Tools that change while an approval waits, in `dev`: nothing goes to an address that nobody
//! approved.

use std::path::Path;

use serde_json::{Value, json};

use crate::http_tools::server::{Reply, Server};
use crate::support::dev_client::DevClient;

const INPUT: &str = r#"use pay with {"amount": 250} then say done"#;

/// Writes the agent with the tool `pay`.
fn write_agent(folder: &Path, url: &str, more: &str) {
    std::fs::create_dir_all(folder.join("agents")).unwrap();
    let agent = format!(
        "---\ntools:\n  - http:\n      name: pay\n      method: POST\n      url: {url}\n      parameters: {{ properties: {{ amount: {{ type: number }} }} }}\n      {more}\n---\nWork.\n"
    );
    std::fs::write(folder.join("agents/clerk.agent.md"), agent).unwrap();
}

async fn wait_until_reloaded(app: &DevClient) {
    app.dev.wait_for_log(&["agent reloaded"]).await;
}

fn shown(server: &Server) -> Value {
    let host = server.url.strip_prefix("http://").unwrap();
    json!({"type": "http", "method": "POST", "host": host})
}

async fn open_request(app: &DevClient) -> Value {
    app.get("/api/conversations/c").await["pendingApprovals"][0].clone()
}

/// Approves the open request, and waits for the one that replaces it.
async fn approve_and_wait_for_another(app: &DevClient) -> Value {
    let first = app.decide("c", "approve").await;
    let is_another = |seen: &Value| {
        let open = &seen["pendingApprovals"][0]["id"];
        open.is_string() && *open != first["id"]
    };
    app.wait_for("c", is_another).await;
    open_request(app).await
}

#[tokio::test(flavor = "multi_thread")]
async fn decision_sends_nothing_to_another_url() {
    let folder = tempfile::tempdir().unwrap();
    let (first, second) = (Server::start(&[Reply::text("a")]), Server::start(&[Reply::text("b")]));
    write_agent(folder.path(), &format!("{}/pay", first.url), "approval: always");
    let app = DevClient::start(folder.path(), &[]);
    let prompt = app.prompt("c", INPUT).await;
    assert_eq!(prompt["state"], "waiting_for_approval", "{prompt}\n{}", app.dev.log());
    assert_eq!(open_request(&app).await["destination"], shown(&first));

    write_agent(folder.path(), &format!("{}/pay", second.url), "effect: read");
    wait_until_reloaded(&app).await;
    let request = approve_and_wait_for_another(&app).await;
    assert_eq!((first.requests().len(), second.requests().len()), (0, 0));
    assert_eq!(request["destination"], shown(&second));
    let reason = request["reason"].as_str().unwrap();
    let (old, new) = (shown(&first), shown(&second));
    let says = format!(
        "It would go to POST {}, and it was approved for POST {}.",
        new["host"].as_str().unwrap(),
        old["host"].as_str().unwrap()
    );
    assert!(reason.contains(&says), "{reason}");

    app.decide("c", "approve").await;
    app.wait_until_idle("c").await;
    assert_eq!((first.requests().len(), second.requests().len()), (0, 1));
    assert_eq!(second.only_request().body, r#"{"amount":250}"#);
}

#[tokio::test(flavor = "multi_thread")]
async fn decision_sends_nothing_after_a_setting_of_the_url_changed() {
    let folder = tempfile::tempdir().unwrap();
    let (first, second) = (Server::start(&[Reply::text("a")]), Server::start(&[Reply::text("b")]));
    let more = "approval: always\n      headers: { x-key: '${PAY_KEY}' }";
    write_agent(folder.path(), "${PAY_BASE}/pay", more);
    let settings = |server: &Server, key: &str| {
        [("PAY_BASE", server.url.clone()), ("PAY_KEY", key.to_owned())]
    };
    let app = DevClient::start(folder.path(), &settings(&first, "key-one"));
    app.prompt("c", INPUT).await;
    let app = app.restart(folder.path(), &settings(&second, "key-one"));
    let request = approve_and_wait_for_another(&app).await;
    assert_eq!((first.requests().len(), second.requests().len()), (0, 0));
    assert_eq!(request["destination"], shown(&second));

    // Another value of a secret needs no decision.
    let app = app.restart(folder.path(), &settings(&second, "key-two"));
    app.decide("c", "approve").await;
    app.wait_until_idle("c").await;
    assert_eq!(second.only_request().header("x-key"), Some("key-two"));
    assert_eq!(first.requests().len(), 0);
}
