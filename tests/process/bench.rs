//! The `bench` command: it runs, counts exactly, and compares reports. No time is asserted.

use std::path::Path;
use std::process::Command;

use turnwheel::testing::bench::report::{BenchReport, MeasuredCase};

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
    let run = bench_command(folder, arguments, &[]).output().unwrap();
    let (out, error) = (String::from_utf8_lossy(&run.stdout), String::from_utf8_lossy(&run.stderr));
    assert!(run.status.success(), "{out}{error}");
    out.into_owned()
}

fn read_report(file: &Path) -> BenchReport {
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
        let fsyncs = figures.fsyncs_per_round;
        assert!(fsyncs > 0.9 && fsyncs < 8.0, "{case:?}");
        assert!(figures.cold_start_ms > 0.0 && figures.stored_bytes_per_turn > 0.0, "{case:?}");
        #[cfg(target_os = "linux")]
        assert!(figures.peak_bytes.is_some() && figures.cpu_ms_per_turn.is_some(), "{case:?}");
    }
    let output = run_bench(folder.path(), &[&cases[..], &["--compare", "a.json"]].concat());
    assert!(output.contains("before → after"), "{output}");
    assert!(!output.contains("not measured before"), "{output}");
    let left: Vec<_> = std::fs::read_dir(folder.path()).unwrap().flatten().collect();
    assert_eq!(left.len(), 1, "data folders are removed: {left:?}");
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
