//! `turnwheel export` and `turnwheel import` with a running `dev`.

use std::path::Path;
use std::process::{Command, Output};

use serde_json::{Value, json};

use crate::support::dev_process::DevProcess;
use crate::support::openapi_check::SendValidated as _;

fn run_turnwheel(arguments: &[&str], data: &Path) -> Output {
    Command::new(env!("CARGO_BIN_EXE_turnwheel"))
        .args(arguments)
        .args(["--data", data.to_str().unwrap()])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .env_clear()
        .output()
        .unwrap()
}

#[tokio::test]
async fn exported_conversation_is_imported_by_command() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let dev = DevProcess::start(&data, &[]);
    let client = reqwest::Client::new();
    let body = json!({"id": "c", "agent": "assistant", "messages": [{"role": "user", "content": "<b>hi</b>", "timestamp": 1}]});
    let created =
        client.post(dev.url("/api/conversations")).json(&body).send_validated().await.unwrap();
    assert_eq!(created.status().as_u16(), 201);
    let exported = run_turnwheel(&["export", "c", "--format", "pi"], &data);
    assert!(exported.status.success(), "{exported:?}");
    let file = folder.path().join("c.jsonl");
    let torn = [exported.stdout.as_slice(), b"{torn"].concat();
    std::fs::write(&file, torn).unwrap();
    let imported =
        run_turnwheel(&["import", file.to_str().unwrap(), "--agent", "assistant", "--json"], &data);
    let report: Value = serde_json::from_slice(&imported.stdout).unwrap();
    assert_eq!((&report["imported"], &report["skipped"][0]["line"]), (&json!(1), &json!(3)));
    let id = report["conversationId"].as_str().unwrap();
    let page = run_turnwheel(&["export", id, "--format", "html"], &data);
    let page = String::from_utf8(page.stdout).unwrap();
    assert!(page.contains("&lt;b&gt;hi&lt;/b&gt;") && page.ends_with("</html>\n"), "{page}");
    let missing = run_turnwheel(&["export", "none"], &data);
    let text = String::from_utf8(missing.stderr).unwrap();
    assert!(!missing.status.success() && text.contains("does not exist"), "{text}");
    let missing = run_turnwheel(&["import", "none.jsonl"], &data);
    let text = String::from_utf8(missing.stderr).unwrap();
    assert!(!missing.status.success() && text.contains("none.jsonl: it cannot be read"), "{text}");
    drop(dev);
    let stopped = run_turnwheel(&["export", "c"], &data);
    let text = String::from_utf8(stopped.stderr).unwrap();
    assert!(!stopped.status.success() && text.contains("start it"), "{text}");
}
