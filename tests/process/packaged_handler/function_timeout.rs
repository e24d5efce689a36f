//! The app setting that replaces `functionTimeout` for the Functions host.

use std::fs;
use std::path::Path;
use std::process::Command;

use super::Handler;

/// The host compares the name without case.
#[tokio::test]
async fn function_timeout_setting_is_read_in_any_case() {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("log");
    let command = |program: &Path| {
        let mut command = Command::new(program);
        command.stderr(fs::File::create(&log).unwrap());
        command
    };
    let settings =
        [("TURNWHEEL_MODEL", "scripted"), ("AzureFunctionsJobHost__FunctionTimeout", "00:03:20")];
    let mut handler = Handler::spawn(&settings, command).await;
    let status = handler.wait_for_end().await;
    let log = fs::read_to_string(&log).unwrap();
    assert_eq!(status.code(), Some(1), "{log}");
    let refusal = "AzureFunctionsJobHost__functionTimeout: `functionTimeout` is 200 s";
    assert!(log.contains(refusal), "{log}");
}
