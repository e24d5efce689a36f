//! Resources that a process used, from Linux's `/proc`; absent on other systems.

use std::path::Path;
use std::time::Duration;

/// The unit of Linux's processor times, on every platform.
const TICK: Duration = Duration::from_millis(10);

/// Resources used since the start of the process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ResourceUsage {
    pub cpu: Option<Duration>,
    /// Bytes sent to the disk, in whole pages; excludes data that was deleted before it got there.
    pub written_bytes: Option<u64>,
    /// Peak resident memory.
    pub peak_bytes: Option<u64>,
}

pub(crate) fn read_usage(pid: u32) -> ResourceUsage {
    let read = |name: &str| std::fs::read_to_string(format!("/proc/{pid}/{name}")).ok();
    ResourceUsage {
        cpu: read("stat").and_then(|text| parse_cpu_time(&text)),
        written_bytes: read("io").and_then(|text| number_after(&text, "write_bytes:")),
        peak_bytes: read("status")
            .and_then(|text| number_after(&text, "VmHWM:"))
            .map(|kibibytes| kibibytes * 1024),
    }
}

/// The program's name may hold any character: the fields are counted from its closing bracket.
fn parse_cpu_time(stat: &str) -> Option<Duration> {
    let (_, figures) = stat.rsplit_once(')')?;
    let ticks = figures.split_whitespace().skip(11).take(2);
    let ticks: u32 = ticks.map(str::parse::<u32>).sum::<Result<u32, _>>().ok()?;
    Some(TICK * ticks)
}

pub(super) fn number_after(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().next()?.parse().ok()
}

/// Bytes of all files below a folder.
pub(crate) fn folder_bytes(folder: &Path) -> u64 {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let bytes = entries.map(|entry| match entry.metadata() {
        Ok(found) if found.is_dir() => folder_bytes(&entry.path()),
        Ok(found) => found.len(),
        // Deleted since the folder was listed.
        Err(_) => 0,
    });
    bytes.sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_time_is_parsed_after_any_program_name() {
        let stat = "77 (a ) b) S 1 2 3 4 5 6 7 8 9 10 250 50 0 0";
        assert_eq!(parse_cpu_time(stat), Some(Duration::from_secs(3)));
        assert_eq!(parse_cpu_time("77 (a) S 1"), Some(Duration::ZERO));
        assert_eq!(number_after("VmPeak: 1 kB\nVmHWM:\t 2048 kB\n", "VmHWM:"), Some(2048));
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn usage_of_this_process_is_reported() {
        let used = read_usage(std::process::id());
        assert!(used.cpu.is_some() && used.written_bytes.is_some());
        assert!(used.peak_bytes.is_some_and(|bytes| bytes > 1_000_000));
    }
}
