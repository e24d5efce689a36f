//! The figures: as a table, as JSON, and compared with those of an earlier run.

use std::fmt::{self, Write as _};
use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::bench::case::Case;
use crate::bench::load::LoadResult;
use crate::bench::process::number_after;

/// Number of timed appends that measure the disk.
const SYNC_COUNT: usize = 50;

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct BenchReport {
    pub version: String,
    /// `release` or `debug`: figures of a debug build mean nothing.
    pub build: String,
    pub binary_bytes: u64,
    pub machine: Machine,
    pub cases: Vec<MeasuredCase>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct MeasuredCase {
    pub case: Case,
    pub figures: Figures,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Machine {
    pub processor: String,
    pub cores: usize,
    pub memory_bytes: Option<u64>,
    pub system: String,
    /// Median of some synced appends of 4 KB.
    pub fsync_ms: f64,
}

/// A figure is absent if this system does not report it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Figures {
    pub turns: usize,
    pub seconds: f64,
    pub turns_per_second: f64,
    /// Time of one turn without the model: from the end of a response to the next request.
    pub turn_ms_p50: f64,
    pub turn_ms_p99: f64,
    /// From sending a prompt to its end.
    pub prompt_ms_p50: f64,
    pub prompt_ms_p99: f64,
    pub cpu_ms_per_turn: Option<f64>,
    pub fsyncs_per_round: f64,
    pub written_bytes_per_turn: Option<f64>,
    /// Growth of the data folder.
    pub stored_bytes_per_turn: f64,
    /// Bytes sent to the model; they grow with the conversation.
    pub request_bytes_per_turn: f64,
    pub peak_bytes: Option<u64>,
    /// From the start of the process to the first response.
    pub cold_start_ms: f64,
}

/// One column: its name, its figure, and for the comparison the better direction.
type Column = (&'static str, fn(&Figures) -> Option<f64>, Better);

#[derive(Clone, Copy, PartialEq, Eq)]
enum Better {
    More,
    Less,
}

const COLUMNS: [Column; 11] = [
    ("turns/s", |f| Some(f.turns_per_second), Better::More),
    ("turn p50 ms", |f| Some(f.turn_ms_p50), Better::Less),
    ("turn p99 ms", |f| Some(f.turn_ms_p99), Better::Less),
    ("prompt p50 ms", |f| Some(f.prompt_ms_p50), Better::Less),
    ("CPU ms/turn", |f| f.cpu_ms_per_turn, Better::Less),
    ("fsyncs/round", |f| Some(f.fsyncs_per_round), Better::Less),
    ("written KB/turn", |f| f.written_bytes_per_turn.map(|bytes| bytes / 1024.0), Better::Less),
    ("stored KB/turn", |f| Some(f.stored_bytes_per_turn / 1024.0), Better::Less),
    ("sent KB/turn", |f| Some(f.request_bytes_per_turn / 1024.0), Better::Less),
    ("peak MB", |f| f.peak_bytes.map(|bytes| ratio(bytes, 1024 * 1024)), Better::Less),
    ("start ms", |f| Some(f.cold_start_ms), Better::Less),
];

impl Machine {
    /// # Errors
    /// The folder cannot be written to.
    pub fn measure(folder: &Path) -> std::io::Result<Self> {
        let read = |file: &str| std::fs::read_to_string(file).unwrap_or_default();
        let processor = read("/proc/cpuinfo");
        let processor = processor.lines().find_map(|line| {
            let (name, value) = line.split_once(':')?;
            (name.trim() == "model name").then(|| value.trim().to_owned())
        });
        let memory = number_after(&read("/proc/meminfo"), "MemTotal:");
        Ok(Self {
            processor: processor.unwrap_or_else(|| std::env::consts::ARCH.to_owned()),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            memory_bytes: memory.map(|kibibytes| kibibytes * 1024),
            system: format!("{} {}", std::env::consts::OS, std::env::consts::ARCH),
            fsync_ms: to_ms(measure_fsync(folder)?),
        })
    }
}

fn measure_fsync(folder: &Path) -> std::io::Result<Duration> {
    let mut file: File = tempfile::tempfile_in(folder)?;
    let mut times = Vec::with_capacity(SYNC_COUNT);
    for _ in 0..SYNC_COUNT {
        let started_at = Instant::now();
        Write::write_all(&mut file, &[b'x'; 4096])?;
        file.sync_data()?;
        times.push(started_at.elapsed());
    }
    Ok(percentile(times, 50))
}

impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { processor, cores, memory_bytes, system, fsync_ms } = self;
        write!(f, "{system}, {cores} cores of {processor}")?;
        if let Some(bytes) = memory_bytes {
            write!(f, ", {:.0} GB", ratio(*bytes, 1024 * 1024 * 1024))?;
        }
        write!(f, ", an fsync takes {fsync_ms:.2} ms")
    }
}

impl BenchReport {
    pub(super) fn new(machine: Machine, binary_bytes: u64) -> Self {
        let build = if cfg!(debug_assertions) { "debug" } else { "release" };
        let version = env!("CARGO_PKG_VERSION").to_owned();
        Self { version, build: build.to_owned(), binary_bytes, machine, cases: Vec::new() }
    }

    pub(super) fn add(&mut self, case: Case, figures: Figures) {
        self.cases.push(MeasuredCase { case, figures });
    }

    /// The text above the lines of the cases.
    pub(super) fn heading(&self) -> String {
        let mut text = format!(
            "turnwheel {}, {} build of {:.1} MB\n",
            self.version,
            self.build,
            ratio(self.binary_bytes, 1024 * 1024)
        );
        if self.build != "release" {
            text += "Figures of a debug build mean nothing: cargo run --release -- bench\n";
        }
        let columns: Vec<String> = COLUMNS.iter().map(|(name, ..)| (*name).to_owned()).collect();
        text + &format!("\n{}", format_row("conversations × rounds", &columns))
    }

    /// Compares each figure with the earlier one, for the cases that both have.
    pub fn compare_with(&self, earlier: &Self) -> String {
        let mut text = format!("before → after, compared with turnwheel {}", earlier.version);
        for MeasuredCase { case, figures } in &self.cases {
            let _ = write!(text, "\n\n{}", case_name(case));
            let Some(before) =
                earlier.cases.iter().find(|before| before.case.is_comparable_with(case))
            else {
                text += "\n  not measured before";
                continue;
            };
            for (name, figure, better) in COLUMNS {
                let (Some(old), Some(new)) = (figure(&before.figures), figure(figures)) else {
                    continue;
                };
                let _ = write!(text, "\n  {name:<16} {}", format_change(old, new, better));
            }
        }
        text
    }
}

fn format_change(old: f64, new: f64, better: Better) -> String {
    let (old_text, new_text) = (format_number(old), format_number(new));
    if old_text == new_text || old <= 0.0 {
        return format!("{old_text} → {new_text}");
    }
    let percent = (new / old - 1.0) * 100.0;
    let is_better = (percent > 0.0) == (better == Better::More);
    format!(
        "{old_text} → {new_text}  {percent:+.0} % {}",
        if is_better { "better" } else { "worse" }
    )
}

impl Figures {
    pub(super) fn from_load(case: &Case, result: &LoadResult, cold_start: Duration) -> Self {
        let (turns, rounds) = (count_to_f64(case.turns()), count_to_f64(case.tool_rounds()));
        let seconds = result.elapsed.as_secs_f64();
        let (before, after) = (&result.usage_before, &result.usage_after);
        let cpu =
            after.cpu.zip(before.cpu).map(|(after, before)| to_ms(after.saturating_sub(before)));
        let written = after.written_bytes.zip(before.written_bytes);
        let turn = |part| to_ms(percentile(result.model_measurements.turn_durations.clone(), part));
        let prompt = |part| to_ms(percentile(result.prompt_durations.clone(), part));
        Self {
            turns: case.turns(),
            seconds,
            turns_per_second: turns / seconds,
            turn_ms_p50: turn(50),
            turn_ms_p99: turn(99),
            prompt_ms_p50: prompt(50),
            prompt_ms_p99: prompt(99),
            cpu_ms_per_turn: cpu.map(|cpu| cpu / turns),
            fsyncs_per_round: to_f64(result.store_counters.fsyncs()) / rounds,
            written_bytes_per_turn: written
                .map(|(after, before)| to_f64(after.saturating_sub(before)) / turns),
            stored_bytes_per_turn: to_f64(result.folder_bytes) / turns,
            request_bytes_per_turn: to_f64(result.model_measurements.request_bytes) / turns,
            peak_bytes: after.peak_bytes,
            cold_start_ms: to_ms(cold_start),
        }
    }

    /// Formats a line of the table.
    pub(super) fn to_line(&self, case: &Case) -> String {
        let cells: Vec<String> = COLUMNS
            .iter()
            .map(|(_, figure, _)| figure(self).map_or_else(|| "-".to_owned(), format_number))
            .collect();
        format_row(&case_name(case), &cells)
    }
}

fn case_name(case: &Case) -> String {
    let Case { conversations, rounds, continuation, deltas, repeat: _ } = case;
    let mut name = format!("{conversations} × {rounds} {}", continuation.into_str());
    if *deltas > 0 {
        let _ = write!(name, ", {deltas} deltas");
    }
    name
}

fn format_row(name: &str, cells: &[String]) -> String {
    cells.iter().fold(format!("{name:<32}"), |row, cell| row + &format!(" {cell:>15}"))
}

/// Formats with three digits: more than the precision of a measurement, and enough to compare.
fn format_number(value: f64) -> String {
    if value >= 100.0 {
        format!("{value:.0}")
    } else if value >= 10.0 {
        format!("{value:.1}")
    } else {
        format!("{value:.3}")
    }
}

fn to_ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1_000.0
}

#[expect(clippy::cast_precision_loss, reason = "counts and bytes far below 2^52")]
fn to_f64(number: u64) -> f64 {
    number as f64
}

fn count_to_f64(number: usize) -> f64 {
    to_f64(u64::try_from(number).unwrap_or(u64::MAX))
}

fn ratio(number: u64, of: u64) -> f64 {
    to_f64(number) / to_f64(of)
}

/// Zero for an empty list.
fn percentile(mut times: Vec<Duration>, percent: usize) -> Duration {
    times.sort_unstable();
    let at = times.len().saturating_sub(1) * percent / 100;
    times.get(at).copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::case::NextTurn;

    fn new_report(turns_per_second: f64, rounds: usize) -> BenchReport {
        let machine = Machine {
            processor: "one".to_owned(),
            cores: 2,
            memory_bytes: None,
            system: "linux".to_owned(),
            fsync_ms: 1.0,
        };
        let figures = Figures {
            turns: 11,
            seconds: 1.0,
            turns_per_second,
            turn_ms_p50: 0.5,
            turn_ms_p99: 0.0,
            prompt_ms_p50: 1.0,
            prompt_ms_p99: 1.0,
            cpu_ms_per_turn: None,
            fsyncs_per_round: 2.0,
            written_bytes_per_turn: Some(2048.0),
            stored_bytes_per_turn: 1024.0,
            request_bytes_per_turn: 1024.0,
            peak_bytes: Some(30 * 1024 * 1024),
            cold_start_ms: 40.0,
        };
        let continuation = NextTurn::Queue;
        let case = Case { conversations: 1, rounds, continuation, deltas: 0, repeat: 1 };
        let mut report = BenchReport::new(machine, 1);
        report.add(case, figures);
        report
    }

    #[test]
    fn comparison_marks_worse_and_unmeasured_figures() {
        let text = new_report(500.0, 10).compare_with(&new_report(1_000.0, 10));
        assert!(text.contains("turns/s          1000 → 500  -50 % worse"), "{text}");
        assert!(text.contains("peak MB          30.0 → 30.0\n"), "{text}");
        assert!(!text.contains("CPU"), "{text}");
        let text = new_report(500.0, 20).compare_with(&new_report(1_000.0, 10));
        assert!(text.ends_with("1 × 20 queue\n  not measured before"), "{text}");
    }

    #[test]
    fn report_survives_json_round_trip() {
        let report = new_report(500.0, 10);
        let text = serde_json::to_string(&report).unwrap();
        let read: BenchReport = serde_json::from_str(&text).unwrap();
        assert_eq!(serde_json::to_string(&read).unwrap(), text);
    }

    #[test]
    fn percentile_returns_nearest_measured_value() {
        let times: Vec<Duration> = (1..=100).rev().map(Duration::from_millis).collect();
        assert_eq!(percentile(times.clone(), 50), Duration::from_millis(50));
        assert_eq!(percentile(times, 99), Duration::from_millis(99));
        assert_eq!(percentile(Vec::new(), 50), Duration::ZERO);
    }
}
