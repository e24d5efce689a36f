//! `why`, `ls` and operator pauses, through the API and the commands.

use std::path::Path;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::support::dev_process::DevProcess;
use crate::support::openapi_check;

const TIMEOUT: Duration = Duration::from_mins(2);

fn run_turnwheel(arguments: &[&str], data: &Path) -> Output {
    Command::new(env!("CARGO_BIN_EXE_turnwheel"))
        .args(arguments)
        .args(["--data", data.to_str().unwrap()])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .env_clear()
        .output()
        .unwrap()
}

/// Runs a command that must succeed, and returns its stdout.
fn stdout_of(arguments: &[&str], data: &Path) -> String {
    let output = run_turnwheel(arguments, data);
    let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{stdout}{}", String::from_utf8_lossy(&output.stderr));
    stdout
}

fn json_of(arguments: &[&str], data: &Path) -> Value {
    serde_json::from_str(&stdout_of(arguments, data)).unwrap()
}

/// Reads a view without its lease, which a worker may have at this moment.
fn json_without_lease(arguments: &[&str], data: &Path) -> Value {
    let mut view = json_of(arguments, data);
    view.as_object_mut().unwrap().remove("claim");
    view
}

async fn get(dev: &DevProcess, path: &str) -> Value {
    let request = reqwest::Client::new().get(dev.url(path));
    openapi_check::send(request).await.unwrap().json()
}

/// Waits until the sentence of `why` starts with this text and no worker has the lease.
async fn poll_why(dev: &DevProcess, id: &str, beginning: &str) -> Value {
    let deadline = Instant::now() + TIMEOUT;
    loop {
        let view = get(dev, &format!("/api/conversations/{id}/why")).await;
        let is_matching = view["why"].as_str().is_some_and(|why| why.starts_with(beginning));
        if is_matching && view["claim"].is_null() {
            return view;
        }
        assert!(Instant::now() < deadline, "{view}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

async fn send_prompt(dev: &DevProcess, id: &str, input: &str) {
    let body = json!({"agent": "payments-clerk", "conversationId": id, "input": input});
    let request = reqwest::Client::new().post(dev.url("/api/prompts")).json(&body);
    let response = openapi_check::send(request).await.unwrap();
    assert_eq!(response.status, 202, "prompts are accepted during a pause");
}

#[tokio::test]
async fn api_and_command_give_the_same_sentence() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path();
    let mut dev = DevProcess::start(data, &[]);
    send_prompt(&dev, "big", "Pay 250 to Ada").await;
    let by_api = poll_why(&dev, "big", "An approver must decide whether `").await;
    let sentence = by_api["why"].as_str().unwrap();
    let request = by_api["unblock"][0].as_str().unwrap();
    assert!(request.starts_with("POST /api/conversations/big/approvals/rq_big_"), "{request}");
    assert_eq!(json_without_lease(&["why", "big", "--json"], data), by_api);
    assert!(stdout_of(&["why", "big", "--user", "default"], data).starts_with(sentence));
    let listed = json_of(&["ls", "--waiting", "--json"], data);
    assert_eq!(listed["items"][0]["why"], by_api["why"]);
    assert_eq!(stdout_of(&["ls", "--stuck"], data), "Nothing is stuck.\n");
    let missing = run_turnwheel(&["why", "small"], data);
    assert_eq!(missing.status.code(), Some(1));
    let error_text = String::from_utf8_lossy(&missing.stderr).into_owned();
    assert!(error_text.contains("The conversation does not exist"), "{error_text}");
    dev.kill();
    // From the data folder alone.
    assert_eq!(json_of(&["why", "big", "--json"], data), by_api);
    assert_eq!(json_of(&["ls", "--json"], data)["items"], json!([by_api]));
    let missing = run_turnwheel(&["why", "small"], data);
    let error_text = String::from_utf8_lossy(&missing.stderr).into_owned();
    assert!(error_text.contains("there is no conversation small of the tenant"), "{error_text}");
}

#[tokio::test]
async fn pause_survives_restart_until_removed() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path();
    let paused = |on: &str| vec![("TURNWHEEL_PAUSED", on.to_owned())];
    let mut dev = DevProcess::start(data, &paused("agent:payments-clerk"));
    send_prompt(&dev, "c", "Pay 40 to Ada").await;
    let view =
        poll_why(&dev, "c", "The agent `payments-clerk` is paused by TURNWHEEL_PAUSED").await;
    assert_eq!(view["waitsFor"], "paused");
    dev.kill();
    let mut dev = DevProcess::start(data, &paused("tool:send_payment"));
    let view = poll_why(&dev, "c", "The tool `send_payment` is paused").await;
    let since = view["since"].as_str().unwrap().to_owned();
    dev.kill();
    let dev = DevProcess::start(data, &[]);
    let view = poll_why(&dev, "c", "No work is pending: the last prompt was completed").await;
    assert!(view["since"].as_str().unwrap() > since.as_str(), "{view}");
    let prompts = get(&dev, "/api/conversations/c/prompts").await;
    assert_eq!(prompts["items"][0]["state"], "completed", "{prompts}");
}

#[test]
fn unknown_pause_target_fails_startup() {
    let folder = tempfile::tempdir().unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_turnwheel"))
        .args(["dev", "--no-supervisor", "--port", "0", "--data", folder.path().to_str().unwrap()])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .env_clear()
        .env("TURNWHEEL_MODEL", "scripted")
        .env("TURNWHEEL_PAUSED", "agent:clerk,tool:sendpayment,tool:send_payment")
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    let error_text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        error_text.contains("`agent:clerk`: there is no agent `clerk`; there are: "),
        "{error_text}"
    );
    assert!(
        error_text.contains("`tool:sendpayment`: no agent has a tool `sendpayment`"),
        "{error_text}"
    );
    assert!(!error_text.contains("`tool:send_payment`"), "{error_text}");
}
