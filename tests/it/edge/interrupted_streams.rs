//! Streams of events that end after any byte: clients that nobody here wrote resume without a loss.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde::Deserialize;
use serde_json::{Value, json};

use super::event_streams::frames;
use super::test_app::TestApp;
use crate::support::npm::install_pinned;
use crate::support::python::install_python_packages;

const EVENTS: &str = "/api/conversations/c/events";

/// Result of one client for a recorded stream that ended after each byte: by turns by its end and by a
/// broken connection.
#[derive(Debug, Deserialize)]
struct Outcome {
    recording: String,
    client: String,
    bytes: usize,
    cuts: usize,
    /// The bytes after which it lost events.
    lost: Vec<usize>,
    /// Events that it received twice under one id.
    repeated: usize,
}

/// A recorded stream of conversation `c` with its continuations after each event.
async fn record(app: &TestApp, name: &str, whole: String, query: &str) -> Value {
    let mut rests: Vec<String> = Vec::new();
    let newest = frames(&whole).iter().filter_map(|frame| frame.id).max().unwrap();
    for after in 0..=newest {
        let request = app.get(&format!("{EVENTS}?follow=false{query}"));
        let request = request.header("last-event-id", &after.to_string());
        rests.push(request.send().await.expect_status(200).text);
    }
    json!({"name": name, "whole": whole, "rests": rests})
}

async fn record_stored(name: &str, query: &str) -> Value {
    let app = TestApp::new();
    app.run("use pay with {\"amount\": 500} then say done").await;
    let whole = app.get(&format!("{EVENTS}?follow=false{query}")).send().await;
    record(&app, name, whole.expect_status(200).text, query).await
}

/// The events of a prompt while it runs, most of them without an id.
async fn record_live() -> Value {
    let app = TestApp::new();
    app.prompt("say größer\u{2028}more").await;
    let stream = app.get(&format!("{EVENTS}?until=settled")).send();
    let (response, ()) = tokio::join!(stream, app.work());
    let whole = response.expect_status(200).text;
    assert!(whole.contains("\n\nid: "), "no event was confirmed: {whole}");
    record(&app, "live", whole, "").await
}

fn run_clients(command: &mut Command) -> Vec<Outcome> {
    let output = command.output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {errors}");
    serde_json::from_slice(&output.stdout).unwrap()
}

/// The clients of the pages lose nothing. Parsers that take an id before the end of its frame lose
/// events only between the last two bytes of a frame, whatever the order of its lines.
#[expect(clippy::print_stderr, reason = "the figures are part of the report")]
fn check(recordings: &[Value], outcomes: &[Outcome]) {
    for outcome in outcomes {
        let Outcome { recording, client, bytes, cuts, lost, repeated } = outcome;
        let lost_count = lost.len();
        eprintln!(
            "{recording}: {client}: {bytes} bytes, {cuts} cuts, {lost_count} lost, {repeated} repeated"
        );
        assert_eq!(*cuts, bytes + 1, "{client}");
        let found = recordings.iter().find(|found| found["name"] == recording.as_str()).unwrap();
        let whole = found["whole"].as_str().unwrap().as_bytes();
        assert_eq!(whole.len(), *bytes, "{client}");
        let is_early = ["SseParser.LastEventId", "fetch-event-source without its setting"]
            .contains(&client.as_str());
        let is_within_frame_end = |cut: &usize| whole[cut - 1..=*cut] == *b"\n\n";
        assert!(lost.iter().all(|cut| is_early && is_within_frame_end(cut)), "{outcome:?}");
        assert_eq!(is_early, !lost.is_empty(), "{outcome:?}");
    }
}

#[tokio::test]
async fn stream_cut_at_any_byte_loses_no_event() {
    let packages = [
        ("package.json", include_str!("../../../typescript/package.json")),
        ("package-lock.json", include_str!("../../../typescript/package-lock.json")),
    ];
    let tools = install_pinned("typescript", &packages);
    let folder = tempfile::tempdir_in(&tools).unwrap();
    let (script, input) = (folder.path().join("clients.mjs"), folder.path().join("streams.json"));
    fs::write(&script, include_str!("../../../typescript/stream_clients.mjs")).unwrap();
    let recordings = vec![
        record_stored("stored", "").await,
        record_live().await,
        record_stored("protocol", "&format=protocol&stream=token").await,
    ];
    fs::write(&input, json!(recordings).to_string()).unwrap();
    let outcomes = run_clients(Command::new("node").arg(script).arg(input));
    assert_eq!(outcomes.len(), 8 * recordings.len());
    check(&recordings, &outcomes);
}

/// Runs only with `TURNWHEEL_CLIENTS`, in the CI stage `clients`: it installs packages of Python.
#[tokio::test]
#[expect(clippy::print_stderr, reason = "the output of a test run names what it skips")]
async fn stream_cut_at_any_byte_loses_no_event_in_python() {
    if std::env::var_os("TURNWHEEL_CLIENTS").is_none() {
        eprintln!("skipped: `.ci/run clients` runs this test");
        return;
    }
    let python = install_python_packages();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/clients/python/stream_cuts.py");
    let folder = tempfile::tempdir().unwrap();
    let input = folder.path().join("streams.json");
    let recordings = vec![record_stored("stored", "").await];
    fs::write(&input, json!(recordings).to_string()).unwrap();
    let outcomes = run_clients(Command::new(python).arg(script).arg(input));
    assert_eq!(outcomes.len(), recordings.len());
    check(&recordings, &outcomes);
}
