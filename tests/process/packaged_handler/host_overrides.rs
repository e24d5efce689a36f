//! App settings that override `host.json` for the Functions host.

use std::fs;
use std::path::Path;
use std::process::Command;

use super::Handler;

/// Returns the log of a handler whose start is refused because of a setting.
async fn refused_start(name: &str, value: &str) -> String {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("log");
    let command = |program: &Path| {
        let mut command = Command::new(program);
        command.stderr(fs::File::create(&log).unwrap());
        command
    };
    let settings = [("TURNWHEEL_MODEL", "scripted"), (name, value)];
    let mut handler = Handler::spawn(&settings, command).await;
    let status = handler.wait_for_end().await;
    let log = fs::read_to_string(&log).unwrap();
    assert_eq!(status.code(), Some(1), "{log}");
    log
}

/// The host compares the name without case.
#[tokio::test]
async fn function_timeout_setting_is_read_in_any_case() {
    let log = refused_start("AzureFunctionsJobHost__FunctionTimeout", "00:03:20").await;
    let refusal = "AzureFunctionsJobHost__FunctionTimeout: `functionTimeout` is 200 s";
    assert!(log.contains(refusal), "{log}");
}

#[tokio::test]
async fn override_that_misroutes_requests_refuses_start() {
    let name = "AzureFunctionsJobHost__Extensions__HTTP__RoutePrefix";
    let log = refused_start(name, "").await;
    let refusal =
        format!("{name}: remove or correct this app setting, which overrides host.json: ");
    assert!(log.contains(&refusal) && log.contains("routePrefix` is ``"), "{log}");
}
