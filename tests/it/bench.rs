//! The `bench` command: it runs, counts exactly, and compares reports. No time is asserted.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use turnwheel::bench::report::{Measured, Report};
use turnwheel::bench::requests::Requests;

use crate::support::azure::Azure;

/// Small: the recovery sweep queries each partition, and there are few conversations.
const PARTITIONS: u32 = 4;

fn command(folder: &Path, arguments: &[&str], settings: &[(&str, String)]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_turnwheel"));
    command
        .args(["bench", "--data"])
        .arg(folder)
        .args(arguments)
        .envs(settings.iter().map(|(name, value)| (*name, value.as_str())))
        .current_dir(folder);
    command
}

fn bench(folder: &Path, arguments: &[&str]) -> String {
    bench_with(folder, arguments, &[])
}

fn bench_with(folder: &Path, arguments: &[&str], settings: &[(&str, String)]) -> String {
    let run = command(folder, arguments, settings).output().unwrap();
    let (out, error) = (String::from_utf8_lossy(&run.stdout), String::from_utf8_lossy(&run.stderr));
    assert!(run.status.success(), "{out}{error}");
    out.into_owned()
}

fn report(file: &Path) -> Report {
    serde_json::from_str(&std::fs::read_to_string(file).unwrap()).unwrap()
}

#[test]
fn every_turn_is_driven_by_http_counted_and_compared() {
    let folder = tempfile::tempdir().unwrap();
    let cases = ["--conversations", "2", "--rounds", "3", "--repeat", "2", "--deltas", "4"];
    bench(
        folder.path(),
        &[&cases[..], &["--continuation", "queue,inline", "--json", "a.json"]].concat(),
    );
    let report = report(&folder.path().join("a.json"));
    assert_eq!(report.cases.len(), 2);
    for Measured { case, figures } in &report.cases {
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
    let shown = bench(folder.path(), &[&cases[..], &["--compare", "a.json"]].concat());
    assert!(shown.contains("before → after"), "{shown}");
    assert!(!shown.contains("not measured before"), "{shown}");
    let left: Vec<_> = std::fs::read_dir(folder.path()).unwrap().flatten().collect();
    assert_eq!(left.len(), 1, "data folders are removed: {left:?}");
}

/// Number of additional requests, by name, for ten more rounds.
fn of_ten_rounds(few: &Requests, many: &Requests) -> BTreeMap<String, i64> {
    let count = |requests: &Requests, name: &String| {
        i64::try_from(requests.sent.get(name).copied().unwrap_or_default()).unwrap()
    };
    let names = few.sent.keys().chain(many.sent.keys());
    let more = names.map(|name| (name.clone(), count(many, name) - count(few, name)));
    more.filter(|(_, count)| *count != 0).collect()
}

/// Counts requests on the wire, with retries, reads by clients and hosts, and requests that an SDK
/// sends by itself.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tool_round_is_six_requests_to_cosmos_and_three_to_its_queue_on_the_wire() {
    let azure = Azure::start(PARTITIONS).await;
    let folder = tempfile::tempdir().unwrap();
    let run = |arguments: &[&str], file: &str| {
        let fixed = ["--storage", "azure", "--conversations", "1", "--repeat", "1", "--json", file];
        let arguments = [&fixed[..], arguments].concat();
        let shown = tokio::task::block_in_place(|| {
            bench_with(folder.path(), &arguments, &azure.settings())
        });
        (report(&folder.path().join(file)), shown)
    };
    let (found, shown) = run(&["--rounds", "4,14"], "rounds.json");
    assert!(shown.contains("requests of a turn: "), "{shown}");
    let requests: Vec<&Requests> =
        found.cases.iter().map(|case| case.figures.requests.as_ref().unwrap()).collect();
    let [few, many] = requests[..] else { panic!("{shown}") };
    assert_eq!((few.turns, many.turns), (5, 15), "{shown}");
    assert!(few.refused.is_empty() && many.refused.is_empty(), "{shown}");
    assert!(few.bare_turns_per_second > 0.0 && many.bare_turns_per_second > 0.0, "{shown}");
    let mut more = of_ten_rounds(few, many);
    let mut take = |name: &str| more.remove(name).unwrap_or_default();
    // The waiting client reads the head after each event that it receives.
    let reads = take("Cosmos read of a head");
    assert!((0..=40).contains(&reads), "{reads} in {shown}");
    let watches = take("Cosmos read of a watch");
    assert!((0..=15).contains(&watches), "{watches} in {shown}");
    // The local host polls as often as it has time; the recovery sweep queries once a minute.
    let (_, sweeps) = (take("queue get of nothing"), take("Cosmos query of all partitions"));
    // A sweep may re-enqueue a turn that is enqueued but not started: a worker receives the second
    // nudge and reads the inbox.
    let bells = more.get("queue put").map_or(0, |puts| puts - 10);
    if sweeps > 0 && bells == 1 {
        for name in ["Cosmos query", "queue delete", "queue get", "queue put"] {
            *more.entry(name.to_owned()).or_default() -= bells;
        }
    }
    let wanted = [
        ("Cosmos batch", 30),
        ("Cosmos query", 30),
        ("queue delete", 10),
        ("queue get", 10),
        ("queue put", 10),
    ];
    let wanted: BTreeMap<String, i64> =
        wanted.into_iter().map(|(name, count)| (name.to_owned(), count)).collect();
    assert_eq!(more, wanted, "{shown}");
    let (found, shown) = run(&["--rounds", "2", "--workers", "2"], "workers.json");
    let Measured { case, figures } = &found.cases[0];
    assert_eq!((case.workers, figures.turns), (2, 3), "{shown}");
}

/// The log is larger than the buffer of a pipe.
#[test]
fn a_worker_that_logs_much_is_not_held_up() {
    let folder = tempfile::tempdir().unwrap();
    let cases =
        ["--conversations", "1", "--rounds", "10", "--repeat", "20", "--continuation", "queue"];
    let log = [("RUST_LOG", "debug".to_owned())];
    let run = command(folder.path(), &cases, &log).output().unwrap();
    let (out, error) = (String::from_utf8_lossy(&run.stdout), String::from_utf8_lossy(&run.stderr));
    assert!(run.status.success(), "{out}{error}");
    assert!(run.stderr.len() > 80_000, "only {} bytes", run.stderr.len());
}

#[test]
fn what_cannot_be_measured_is_refused_and_says_what_can() {
    let folder = tempfile::tempdir().unwrap();
    let refused = |arguments: &[&str], settings: &[(&str, String)]| {
        let run = command(folder.path(), arguments, settings).output().unwrap();
        assert!(!run.status.success());
        String::from_utf8_lossy(&run.stderr).into_owned()
    };
    let said = refused(&["--workers", "2"], &[]);
    assert!(said.contains("--storage azure") && said.contains("one process"), "{said}");
    let said = refused(&["--storage", "azure"], &[("AzureWebJobsStorage", String::new())]);
    assert!(said.contains("cosmos_emulator"), "{said}");
}
