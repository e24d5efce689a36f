//! The commands of docs/local.md for the Functions host.

use std::fs;
use std::process::Command;

use serde_json::Value;

use super::{Handler, deliver_until_completed};
use crate::support::openapi_check::SendValidated as _;

const PAGE: &str = include_str!("../../../docs/local.md");

/// The text between two others.
fn between<'t>(text: &'t str, start: &str, end: &str) -> &'t str {
    let (_, rest) = text.split_once(start).unwrap_or_else(|| panic!("no `{start}`"));
    rest.split_once(end).unwrap_or_else(|| panic!("no `{end}`")).0
}

/// The host shows a line of stderr that quotes "warn" as a warning, and any other as an error.
#[tokio::test]
async fn first_command_of_local_page_completes_without_errors() {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("log");
    let command = |program: &std::path::Path| {
        let mut command = Command::new(program);
        command.stderr(fs::File::create(&log).unwrap());
        command
    };
    // The page's commands write these settings.
    assert!(PAGE.contains(r#"|"TURNWHEEL_MODEL": "scripted"|"#));
    let handler = Handler::start_as(&[("TURNWHEEL_MODEL", "scripted")], command).await;

    let call = between(PAGE, "curl -s 'http://localhost:7071/api/prompts?wait=20'", "```");
    let body: Value = serde_json::from_str(between(call, "-d '", "'")).unwrap();
    let url = format!("{}/api/prompts", handler.base);
    let accepted = handler.client.post(url).json(&body).send_validated().await.unwrap();
    let status = accepted.status();
    let accepted: Value = accepted.json().await.unwrap();
    assert_eq!(status, 202, "{accepted}");
    let [conversation, prompt] =
        ["conversationId", "promptId"].map(|name| accepted[name].as_str().unwrap());
    let path = format!("{}/api/conversations/{conversation}/prompts/{prompt}", handler.base);
    deliver_until_completed(&handler, conversation, &path).await;

    let log = fs::read_to_string(&log).unwrap();
    let errors: Vec<&str> =
        log.lines().filter(|line| !line.to_ascii_lowercase().contains("warn")).collect();
    assert_eq!(errors, [""; 0], "{log}");
    assert!(log.contains("PAYMENTS_URL"), "the clerk is unavailable: {log}");
}
