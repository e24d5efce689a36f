//! The `bench` command: it runs, counts exactly, and compares reports. No time is asserted.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use turnwheel::bench::report::{MeasuredCase, Report};
use turnwheel::bench::requests::RequestFigures;

use crate::support::azure::LocalAzure;

/// Small: the recovery sweep queries each partition, and there are few conversations.
const PARTITIONS: u32 = 4;

fn bench_command(folder: &Path, arguments: &[&str], settings: &[(&str, String)]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_turnwheel"));
    command
        .args(["bench", "--data"])
        .arg(folder)
        .args(arguments)
        .envs(settings.iter().map(|(name, value)| (*name, value.as_str())))
        .current_dir(folder);
    command
}

fn run_bench(folder: &Path, arguments: &[&str]) -> String {
    run_bench_with_settings(folder, arguments, &[])
}

fn run_bench_with_settings(
    folder: &Path,
    arguments: &[&str],
    settings: &[(&str, String)],
) -> String {
    let run = bench_command(folder, arguments, settings).output().unwrap();
    let (out, error) = (String::from_utf8_lossy(&run.stdout), String::from_utf8_lossy(&run.stderr));
    assert!(run.status.success(), "{out}{error}");
    out.into_owned()
}

fn read_report(file: &Path) -> Report {
    serde_json::from_str(&std::fs::read_to_string(file).unwrap()).unwrap()
}

#[test]
fn bench_counts_turns_over_http_and_compares_reports() {
    let folder = tempfile::tempdir().unwrap();
    let cases = ["--conversations", "2", "--rounds", "3", "--repeat", "2", "--deltas", "4"];
    run_bench(
        folder.path(),
        &[&cases[..], &["--continuation", "queue,inline", "--json", "a.json"]].concat(),
    );
    let report = read_report(&folder.path().join("a.json"));
    assert_eq!(report.cases.len(), 2);
    for MeasuredCase { case, figures } in &report.cases {
        assert_eq!(figures.turns, 2 * 2 * 4, "{case:?}");
        assert!(figures.turns_per_second > 0.0 && figures.turn_ms_p50 > 0.0, "{case:?}");
        // Two per round, and the cost of the four prompts; conversations may share fsyncs.
        let fsyncs = figures.fsyncs_per_round.unwrap();
        assert!(fsyncs > 0.9 && fsyncs < 8.0, "{case:?}");
        assert!(
            figures.cold_start_ms > 0.0 && figures.stored_bytes_per_turn > Some(0.0),
            "{case:?}"
        );
        #[cfg(target_os = "linux")]
        assert!(figures.peak_bytes.is_some() && figures.cpu_ms_per_turn.is_some(), "{case:?}");
    }
    let output = run_bench(folder.path(), &[&cases[..], &["--compare", "a.json"]].concat());
    assert!(output.contains("before → after"), "{output}");
    assert!(!output.contains("not measured before"), "{output}");
    let left: Vec<_> = std::fs::read_dir(folder.path()).unwrap().flatten().collect();
    assert_eq!(left.len(), 1, "data folders are removed: {left:?}");
}

/// Number of additional requests, by name, for ten more rounds.
fn requests_of_ten_rounds(few: &RequestFigures, many: &RequestFigures) -> BTreeMap<String, i64> {
    let count = |requests: &RequestFigures, name: &String| {
        i64::try_from(requests.operations.get(name).copied().unwrap_or_default()).unwrap()
    };
    let names = few.operations.keys().chain(many.operations.keys());
    let more = names.map(|name| (name.clone(), count(many, name) - count(few, name)));
    more.filter(|(_, count)| *count != 0).collect()
}

/// Counts requests on the wire, with retries, reads by clients and hosts, and requests that an SDK
/// sends by itself.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tool_round_sends_six_cosmos_three_queue_requests() {
    let azure = LocalAzure::start(PARTITIONS).await;
    let folder = tempfile::tempdir().unwrap();
    let run = |arguments: &[&str], file: &str| {
        let fixed = ["--storage", "azure", "--conversations", "1", "--repeat", "1", "--json", file];
        let arguments = [&fixed[..], arguments].concat();
        let output = tokio::task::block_in_place(|| {
            run_bench_with_settings(folder.path(), &arguments, &azure.settings())
        });
        (read_report(&folder.path().join(file)), output)
    };
    let (report, output) = run(&["--rounds", "4,14"], "rounds.json");
    assert!(output.contains("requests of a turn: "), "{output}");
    let requests: Vec<&RequestFigures> =
        report.cases.iter().map(|case| case.figures.requests.as_ref().unwrap()).collect();
    let [few, many] = requests[..] else { panic!("{output}") };
    assert_eq!((few.turns, many.turns), (5, 15), "{output}");
    assert!(few.failures.is_empty() && many.failures.is_empty(), "{output}");
    assert!(
        few.baseline_turns_per_second > 0.0 && many.baseline_turns_per_second > 0.0,
        "{output}"
    );
    let mut more = requests_of_ten_rounds(few, many);
    let mut take = |name: &str| more.remove(name).unwrap_or_default();
    // The waiting client reads the head after each event that it receives.
    let reads = take("Cosmos read of a head");
    assert!((0..=40).contains(&reads), "{reads} in {output}");
    let watches = take("Cosmos read of a watch");
    assert!((0..=15).contains(&watches), "{watches} in {output}");
    // The local host polls as often as it has time; the recovery sweep queries once a minute.
    let (_, sweeps) = (take("queue get of nothing"), take("Cosmos query of all partitions"));
    // A sweep may re-enqueue a turn that is enqueued but not started: a worker receives the second
    // nudge and reads the inbox.
    let extra_nudges = more.get("queue put").map_or(0, |puts| puts - 10);
    if sweeps > 0 && extra_nudges == 1 {
        for name in ["Cosmos query", "queue delete", "queue get", "queue put"] {
            *more.entry(name.to_owned()).or_default() -= extra_nudges;
        }
    }
    let expected = [
        ("Cosmos batch", 30),
        ("Cosmos query", 30),
        ("queue delete", 10),
        ("queue get", 10),
        ("queue put", 10),
    ];
    let expected: BTreeMap<String, i64> =
        expected.into_iter().map(|(name, count)| (name.to_owned(), count)).collect();
    assert_eq!(more, expected, "{output}");
    let (report, output) = run(&["--rounds", "2", "--workers", "2"], "workers.json");
    let MeasuredCase { case, figures } = &report.cases[0];
    assert_eq!((case.workers, figures.turns), (2, 3), "{output}");
}

/// The log is larger than the buffer of a pipe.
#[test]
fn worker_with_large_log_is_not_blocked() {
    let folder = tempfile::tempdir().unwrap();
    let cases =
        ["--conversations", "1", "--rounds", "10", "--repeat", "20", "--continuation", "queue"];
    let log = [("RUST_LOG", "debug".to_owned())];
    let run = bench_command(folder.path(), &cases, &log).output().unwrap();
    let (out, error) = (String::from_utf8_lossy(&run.stdout), String::from_utf8_lossy(&run.stderr));
    assert!(run.status.success(), "{out}{error}");
    assert!(run.stderr.len() > 80_000, "only {} bytes", run.stderr.len());
}

#[test]
fn unsupported_bench_options_are_rejected_with_advice() {
    let folder = tempfile::tempdir().unwrap();
    let refused = |arguments: &[&str], settings: &[(&str, String)]| {
        let run = bench_command(folder.path(), arguments, settings).output().unwrap();
        assert!(!run.status.success());
        String::from_utf8_lossy(&run.stderr).into_owned()
    };
    let error_text = refused(&["--workers", "2"], &[]);
    assert!(
        error_text.contains("--storage azure") && error_text.contains("one process"),
        "{error_text}"
    );
    let error_text = refused(&["--storage", "azure"], &[("AzureWebJobsStorage", String::new())]);
    assert!(error_text.contains("cosmos_emulator"), "{error_text}");
}
