//! `why`, `ls` and operator pauses, through the API and the commands.

use std::path::Path;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::support::process::Dev;

const PATIENCE: Duration = Duration::from_secs(30);

fn turnwheel(arguments: &[&str], data: &Path) -> Output {
    Command::new(env!("CARGO_BIN_EXE_turnwheel"))
        .args(arguments)
        .args(["--data", data.to_str().unwrap()])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .env_clear()
        .output()
        .unwrap()
}

/// Runs a command that must succeed, and returns its stdout.
fn said(arguments: &[&str], data: &Path) -> String {
    let output = turnwheel(arguments, data);
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    said
}

fn read(arguments: &[&str], data: &Path) -> Value {
    serde_json::from_str(&said(arguments, data)).unwrap()
}

/// Reads a view without its lease, which a worker may have at this moment.
fn unheld(arguments: &[&str], data: &Path) -> Value {
    let mut view = read(arguments, data);
    view.as_object_mut().unwrap().remove("claim");
    view
}

async fn get(dev: &Dev, path: &str) -> Value {
    reqwest::get(dev.url(path)).await.unwrap().json().await.unwrap()
}

/// Waits until the sentence of `why` starts with this text and no worker has the lease.
async fn stands(dev: &Dev, id: &str, beginning: &str) -> Value {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let view = get(dev, &format!("/api/conversations/{id}/why")).await;
        let is_said = view["why"].as_str().is_some_and(|why| why.starts_with(beginning));
        if is_said && view["claim"].is_null() {
            return view;
        }
        assert!(Instant::now() < deadline, "{view}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

async fn ask(dev: &Dev, id: &str, input: &str) {
    let body = json!({"agent": "payments-clerk", "conversationId": id, "input": input});
    let asked = reqwest::Client::new().post(dev.url("/api/prompts")).json(&body).send().await;
    assert_eq!(asked.unwrap().status(), 202, "prompts are accepted during a pause");
}

#[tokio::test]
async fn the_same_sentence_by_api_and_by_command() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path();
    let mut dev = Dev::start(data, &[]);
    ask(&dev, "big", "Pay 250 to Ada").await;
    let by_api = stands(&dev, "big", "An approver must decide whether `").await;
    let sentence = by_api["why"].as_str().unwrap();
    let request = by_api["unblock"][0].as_str().unwrap();
    assert!(request.starts_with("POST /api/conversations/big/approvals/rq_big_"), "{request}");
    assert_eq!(unheld(&["why", "big", "--json"], data), by_api);
    assert!(said(&["why", "big", "--user", "default"], data).starts_with(sentence));
    let listed = read(&["ls", "--waiting", "--json"], data);
    assert_eq!(listed["items"][0]["why"], by_api["why"]);
    assert_eq!(said(&["ls", "--stuck"], data), "Nothing is stuck.\n");
    let nobody = turnwheel(&["why", "small"], data);
    assert_eq!(nobody.status.code(), Some(1));
    let complaint = String::from_utf8_lossy(&nobody.stderr).into_owned();
    assert!(complaint.contains("The conversation does not exist"), "{complaint}");
    dev.kill();
    // From the data folder alone.
    assert_eq!(read(&["why", "big", "--json"], data), by_api);
    assert_eq!(read(&["ls", "--json"], data)["items"], json!([by_api]));
    let nobody = turnwheel(&["why", "small"], data);
    let complaint = String::from_utf8_lossy(&nobody.stderr).into_owned();
    assert!(complaint.contains("there is no conversation small of the tenant"), "{complaint}");
}

#[tokio::test]
async fn a_brake_holds_over_starts_and_lets_go_when_it_is_taken_out() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path();
    let paused = |on: &str| vec![("TURNWHEEL_PAUSED", on.to_owned())];
    let mut dev = Dev::start(data, &paused("agent:payments-clerk"));
    ask(&dev, "c", "Pay 40 to Ada").await;
    let view = stands(&dev, "c", "The agent `payments-clerk` is paused by TURNWHEEL_PAUSED").await;
    assert_eq!(view["waitsFor"], "paused");
    dev.kill();
    let mut dev = Dev::start(data, &paused("tool:send_payment"));
    let view = stands(&dev, "c", "The tool `send_payment` is paused").await;
    let since = view["since"].as_str().unwrap().to_owned();
    dev.kill();
    let dev = Dev::start(data, &[]);
    let view = stands(&dev, "c", "No work is pending: the last prompt was completed").await;
    assert!(view["since"].as_str().unwrap() > since.as_str(), "{view}");
    let prompts = get(&dev, "/api/conversations/c/prompts").await;
    assert_eq!(prompts["items"][0]["state"], "completed", "{prompts}");
}

#[test]
fn a_brake_on_nothing_is_a_mistake_of_the_start() {
    let folder = tempfile::tempdir().unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_turnwheel"))
        .args(["dev", "--port", "0", "--data", folder.path().to_str().unwrap()])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .env_clear()
        .env("TURNWHEEL_MODEL", "scripted")
        .env("TURNWHEEL_PAUSED", "agent:clerk,tool:sendpayment,tool:send_payment")
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    let complaint = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        complaint.contains("`agent:clerk`: there is no agent `clerk`; there are: "),
        "{complaint}"
    );
    assert!(
        complaint.contains("`tool:sendpayment`: no agent has a tool `sendpayment`"),
        "{complaint}"
    );
    assert!(!complaint.contains("`tool:send_payment`"), "{complaint}");
}
