//! The benchmark itself: it runs, counts what it says, and compares; what it measures is nobody's promise here.

use std::path::Path;
use std::process::Command;

use turnwheel::bench::report::{Measured, Report};

fn bench(folder: &Path, arguments: &[&str]) -> String {
    let run = Command::new(env!("CARGO_BIN_EXE_turnwheel"))
        .args(["bench", "--data"])
        .arg(folder)
        .args(arguments)
        .current_dir(folder)
        .output()
        .unwrap();
    let (out, error) = (String::from_utf8_lossy(&run.stdout), String::from_utf8_lossy(&run.stderr));
    assert!(run.status.success(), "{out}{error}");
    out.into_owned()
}

#[test]
fn every_turn_is_driven_by_http_counted_and_compared() {
    let folder = tempfile::tempdir().unwrap();
    let cases = ["--conversations", "2", "--rounds", "3", "--repeat", "2", "--deltas", "4"];
    bench(
        folder.path(),
        &[&cases[..], &["--continuation", "queue,inline", "--json", "a.json"]].concat(),
    );
    let text = std::fs::read_to_string(folder.path().join("a.json")).unwrap();
    let report: Report = serde_json::from_str(&text).unwrap();
    assert_eq!(report.cases.len(), 2);
    for Measured { case, figures } in &report.cases {
        assert_eq!(figures.turns, 2 * 2 * 4, "{case:?}");
        assert!(figures.turns_per_second > 0.0 && figures.turn_ms_p50 > 0.0, "{case:?}");
        // Two for each round, and what four prompts cost for themselves; conversations may share them.
        assert!(figures.fsyncs_per_round > 0.9 && figures.fsyncs_per_round < 8.0, "{case:?}");
        assert!(figures.cold_start_ms > 0.0 && figures.stored_bytes_per_turn > 0.0, "{case:?}");
        #[cfg(target_os = "linux")]
        assert!(figures.peak_bytes.is_some() && figures.cpu_ms_per_turn.is_some(), "{case:?}");
    }
    let shown = bench(folder.path(), &[&cases[..], &["--compare", "a.json"]].concat());
    assert!(shown.contains("before → now"), "{shown}");
    assert!(!shown.contains("not measured before"), "{shown}");
    let left: Vec<_> = std::fs::read_dir(folder.path()).unwrap().flatten().collect();
    assert_eq!(left.len(), 1, "data folders are taken away again: {left:?}");
}
