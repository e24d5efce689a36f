//! Ends of the packaged program while a collector of telemetry is silent, or while it starts; and
//! requests that no Functions host sends.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use super::{END_MAX, Handler, TIMEOUT, silent_model};
use crate::support::openapi_check::SendValidated as _;
use turnwheel_test_support::time_bound::check_time;

/// Waits for the first line of the handler.
const UNTIL_FIRST_LINE: &str = "until grep -q 'handler starting' handler.log; do sleep 0.01; done";

/// A host that starts the handler in the background, and then runs the rest of a script.
fn host(rest: &'static str) -> impl FnOnce(&Path) -> Command {
    move |program| {
        let mut shell = Command::new("/bin/sh");
        let program = program.display();
        let script = format!("'{program}' > handler.log & echo $! > handler.pid; {rest}");
        shell.args(["-c", &script]);
        shell
    }
}

impl Handler {
    fn id_of_orphan(&self) -> String {
        let file = self.folder.path().join("dist/handler.pid");
        std::fs::read_to_string(file).unwrap().trim().to_owned()
    }
}

async fn wait_for_end_of_orphan(id: &str) {
    let deadline = Instant::now() + TIMEOUT;
    loop {
        let alive = Command::new("kill").args(["-0", id]).stderr(Stdio::null()).status().unwrap();
        if !alive.success() {
            return;
        }
        assert!(Instant::now() < deadline, "the handler lives on");
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
}

#[tokio::test]
async fn handler_whose_host_dies_during_the_start_ends() {
    // The handler knows its parent when it logs its first line.
    let host = host(UNTIL_FIRST_LINE);
    let mut handler = Handler::spawn(&[("TURNWHEEL_MODEL", "scripted")], host).await;
    assert!(handler.wait_for_end().await.success(), "the host has ended");
    wait_for_end_of_orphan(&handler.id_of_orphan()).await;
}

#[tokio::test]
async fn first_line_names_version_and_system() {
    let host = host(UNTIL_FIRST_LINE);
    let mut handler = Handler::spawn(&[("TURNWHEEL_MODEL", "scripted")], host).await;
    assert!(handler.wait_for_end().await.success(), "the host has ended");
    wait_for_end_of_orphan(&handler.id_of_orphan()).await;
    let log = std::fs::read_to_string(handler.folder.path().join("dist/handler.log")).unwrap();
    let line = log.lines().find(|line| line.contains("handler starting")).unwrap();
    assert!(line.contains(env!("CARGO_PKG_VERSION")), "{line}");
    for field in ["version", "glibc", "system"] {
        let has_value = line.split(field).skip(1).any(|rest| {
            let value = rest.strip_prefix('=').or_else(|| rest.strip_prefix("\":\""));
            value.is_some_and(|value| value.starts_with(char::is_alphanumeric))
        });
        assert!(has_value, "{field}: {line}");
    }
}

#[tokio::test]
async fn silent_collector_does_not_delay_an_end_without_host() {
    let (_collector, endpoint) = silent_model();
    let settings =
        [("TURNWHEEL_MODEL", "scripted"), ("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint.as_str())];
    let mut handler = Handler::start_as(&settings, host("exec sleep 600")).await;
    handler.prompt("silent-collector").await;
    let id = handler.id_of_orphan();
    let killed = Instant::now();
    handler.process.kill().unwrap();
    handler.process.wait().unwrap();
    wait_for_end_of_orphan(&id).await;
    check_time("end after the host", killed.elapsed(), END_MAX);
}

#[tokio::test]
async fn foreign_host_names_reach_no_function() {
    let handler = Handler::start(&[("TURNWHEEL_MODEL", "scripted")]).await;
    for path in ["prompt", "sweep", "turn", "api/health", ""] {
        let url = format!("{}/{path}", handler.base);
        let request = if path.is_empty() || path.starts_with("api") {
            handler.client.get(url)
        } else {
            handler.client.post(url).body(r#"{"Data": {}, "Metadata": {}}"#)
        };
        let response = request.header("host", "evil.example").send_validated().await.unwrap();
        assert_eq!(response.status(), 421, "{path}");
    }
    assert_eq!(handler.client.get(&handler.base).send_validated().await.unwrap().status(), 200);
}
