//! Tools of a service cannot call the service itself as a user.

use serde_json::{Value, json};

use crate::support::dev_process::DevProcess;
use crate::support::openapi_check::SendValidated as _;

const REFUSED: &str = "the address is private or local";

#[tokio::test]
async fn tools_reach_no_port_of_the_service() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("agents")).unwrap();
    let agent = "---\ntools:\n  - scrape\n---\nYou help.\n";
    std::fs::write(folder.path().join("agents/helper.agent.md"), agent).unwrap();
    // `func start` sets the variable. Nothing listens at the ports 8 and 9.
    let settings = [("WEBSITE_HOSTNAME", "localhost:9".to_owned())];
    let dev = DevProcess::start_in(folder.path(), &folder.path().join("data"), &settings);
    let client = reqwest::Client::new();
    for (id, url, expected) in [
        ("host", dev.url("/api/health"), REFUSED),
        ("functions", "http://127.0.0.1:9/".to_owned(), REFUSED),
        ("other", "http://127.0.0.1:8/".to_owned(), "could not be"),
    ] {
        let input = format!("use scrape with {} then say done", json!({"url": url}));
        let body = json!({"conversationId": id, "input": input});
        let prompt = client.post(dev.url("/api/prompts?wait=60")).json(&body);
        assert_eq!(prompt.send_validated().await.unwrap().status(), 200, "{}", dev.log());
        let messages = client.get(dev.url(&format!("/api/conversations/{id}/messages")));
        let messages: Value = messages.send_validated().await.unwrap().json().await.unwrap();
        assert!(messages.to_string().contains(expected), "{id}: {messages}");
    }
}
