//! What a process has used, as Linux tells it in `/proc`; elsewhere nobody tells, and the figures are absent.

use std::path::Path;
use std::time::Duration;

/// Ticks in which Linux tells processor time, on every platform there is.
const TICK: Duration = Duration::from_millis(10);

/// Since the process began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Used {
    pub cpu: Option<Duration>,
    /// Sent to the disk, whole pages; what was written and taken back before it got there is not counted.
    pub written_bytes: Option<u64>,
    /// The most memory that was resident.
    pub peak_bytes: Option<u64>,
}

pub fn used(pid: u32) -> Used {
    let read = |name: &str| std::fs::read_to_string(format!("/proc/{pid}/{name}")).ok();
    Used {
        cpu: read("stat").and_then(|text| cpu(&text)),
        written_bytes: read("io").and_then(|text| number_after(&text, "write_bytes:")),
        peak_bytes: read("status")
            .and_then(|text| number_after(&text, "VmHWM:"))
            .map(|kibibytes| kibibytes * 1024),
    }
}

/// The name of the program may hold anything: the figures are counted from its closing bracket.
fn cpu(stat: &str) -> Option<Duration> {
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
pub fn folder_bytes(folder: &Path) -> u64 {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let bytes = entries.map(|entry| match entry.metadata() {
        Ok(found) if found.is_dir() => folder_bytes(&entry.path()),
        Ok(found) => found.len(),
        // Gone since the folder was listed.
        Err(_) => 0,
    });
    bytes.sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_found_behind_any_name() {
        let stat = "77 (a ) b) S 1 2 3 4 5 6 7 8 9 10 250 50 0 0";
        assert_eq!(cpu(stat), Some(Duration::from_secs(3)));
        assert_eq!(cpu("77 (a) S 1"), Some(Duration::ZERO));
        assert_eq!(number_after("VmPeak: 1 kB\nVmHWM:\t 2048 kB\n", "VmHWM:"), Some(2048));
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn this_process_has_used_something() {
        let used = used(std::process::id());
        assert!(used.cpu.is_some() && used.written_bytes.is_some());
        assert!(used.peak_bytes.is_some_and(|bytes| bytes > 1_000_000));
    }
}
