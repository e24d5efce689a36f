//! Notifications as messages of chat services, checked with the services' own packages.

use std::process::Command;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::routing::post;
use serde_json::{Value, json};
use turnwheel::App;

use crate::support::npm::{install_pinned, run};
use crate::support::openapi_check::SendValidated as _;
use crate::support::service::Service;

type Messages = Arc<Mutex<Vec<Value>>>;

async fn receive(State(messages): State<Messages>, body: Bytes) {
    messages.lock().unwrap().push(serde_json::from_slice(&body).unwrap());
}

/// Runs a payment that needs an approval, and lets it complete. Returns the messages of the channel.
async fn messages_of_a_payment(format: &str) -> Vec<Value> {
    let messages = Messages::default();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/hook", listener.local_addr().unwrap());
    let router = Router::new().route("/hook", post(receive)).with_state(Arc::clone(&messages));
    #[expect(clippy::disallowed_methods, reason = "it ends with the test's runtime")]
    tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("agents")).unwrap();
    let agent = "agents/payments-clerk.agent.md";
    let repository = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    std::fs::copy(repository.join(agent), folder.path().join(agent)).unwrap();
    let settings = [("TURNWHEEL_WEBHOOK_URL", url.as_str()), ("TURNWHEEL_WEBHOOK_FORMAT", format)];
    let service = Service::start(App::new(), folder.path(), &settings).await;
    let request = json!({"conversationId": "c", "input": "Pay 250 to Ada"});
    let (status, prompt) = service.post("/api/prompts?wait=60", &request).await;
    assert_eq!((status, &prompt["state"]), (200, &json!("waiting_for_approval")), "{prompt}");
    let arrival = async {
        while messages.lock().unwrap().is_empty() {
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(std::time::Duration::from_mins(1), arrival).await.unwrap();
    let link = find_link(&messages.lock().unwrap()[0]);
    let page = service.client.get(&link).header("accept", "text/html");
    let page = page.send_validated().await.unwrap().text().await.unwrap();
    let quoted = "<p><b>User</b></p><blockquote>Pay 250 to Ada</blockquote>";
    assert!(page.contains(quoted) && page.contains(" left)</dd>"), "{page}");
    let (status, _) = service.post(&path_of(&link), &json!({"decision": "approve"})).await;
    assert_eq!(status, 200);
    service.wait_for_prompt("c", prompt["id"].as_str().unwrap()).await;
    service.stop().await;
    let messages = messages.lock().unwrap();
    messages.clone()
}

/// The approval link of a message.
fn find_link(message: &Value) -> String {
    let text = message.to_string();
    let (_, rest) = text.split_once("http://127.0.0.1").unwrap();
    let end = rest.find(['"', '|', '>', '\\']).unwrap();
    let (address, _) = rest.split_at(end);
    format!("http://127.0.0.1{address}")
}

fn path_of(link: &str) -> String {
    let (_, path) = link.split_once("/api/").unwrap();
    format!("/api/{path}")
}

#[tokio::test(flavor = "multi_thread")]
async fn chat_messages_pass_the_checks_of_their_services() {
    let tools = install_pinned(
        "chat-messages",
        &[
            ("package.json", include_str!("../chat-messages/package.json")),
            ("package-lock.json", include_str!("../chat-messages/package-lock.json")),
            ("check.mjs", include_str!("../chat-messages/check.mjs")),
        ],
    );
    let folder = tempfile::tempdir().unwrap();
    let mut check = Command::new("node");
    check.arg(tools.join("check.mjs"));
    for format in ["slack", "teams"] {
        let messages = messages_of_a_payment(format).await;
        assert_eq!(messages.len(), 1, "a completed prompt is not sent: {messages:?}");
        let file = folder.path().join(format!("{format}.json"));
        std::fs::write(&file, messages[0].to_string()).unwrap();
        check.arg(file);
    }
    run(&mut check);
}

#[tokio::test(flavor = "multi_thread")]
async fn emails_have_subject_html_and_text() {
    let messages = messages_of_a_payment("email").await;
    assert_eq!(messages.len(), 1, "a completed prompt is not sent: {messages:?}");
    let part = |name: &str| messages[0][name].as_str().unwrap();
    assert_eq!(part("subject"), "May send_payment run?");
    assert!(part("html").starts_with("<!doctype html>") && !part("html").contains("<script"));
    let link = find_link(&messages[0]);
    assert!(part("text").ends_with(&link), "{}", part("text"));
}
