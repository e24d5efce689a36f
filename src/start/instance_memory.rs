//! The memory of this instance, and the parts of it that the process may use.

use std::fs;

/// cgroup memory limits in bytes (v2 and v1).
const GROUP_LIMITS: [&str; 2] =
    ["/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"];
/// Memory of the smallest instance, if the system reports none.
const KB_MIN: u64 = 512 * 1024;

/// Memory that this process shares with the Functions host.
#[derive(Clone, Copy, Debug)]
pub(crate) struct InstanceMemory {
    kb: u64,
}

impl InstanceMemory {
    /// Reads the memory of the machine and the limits of the control group: the least of them counts.
    pub(crate) fn read() -> Self {
        let limits = GROUP_LIMITS.map(|file| fs::read_to_string(file).unwrap_or_default());
        Self::from_texts(&limits, &fs::read_to_string("/proc/meminfo").unwrap_or_default())
    }

    fn from_texts(group_limits: &[String], machine: &str) -> Self {
        // A group without a limit has a word or a huge number.
        let limits = group_limits.iter().filter_map(|text| text.trim().parse::<u64>().ok());
        let kb = limits.map(|bytes| bytes / 1024).chain(kb_after(machine, "MemTotal:")).min();
        Self { kb: kb.unwrap_or(KB_MIN) }
    }

    /// Above this resident memory the process takes no turns itself.
    pub(crate) fn resident_kb_max(self) -> u64 {
        self.kb / 5 * 3
    }

    /// Bytes of the entry cache as stored. In memory they take an eighth of the instance.
    pub(crate) fn entry_cache_bytes(self) -> u64 {
        self.kb * 1024 / 16
    }
}

/// Resident memory of this process. `None`: unknown on this system.
pub(crate) fn resident_kb() -> Option<u64> {
    kb_after(&fs::read_to_string("/proc/self/status").ok()?, "VmRSS:")
}

/// The value of a line such as `VmRSS:  1234 kB`.
fn kb_after(text: &str, name: &str) -> Option<u64> {
    let value = text.lines().find_map(|line| line.strip_prefix(name))?;
    value.trim().strip_suffix("kB")?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(target_os = "linux")]
    #[test]
    fn resident_memory_is_read() {
        assert!(resident_kb().is_some_and(|kb| kb > 1_000));
    }

    #[test]
    fn least_limit_is_the_memory_of_the_instance() {
        let memory = |groups: [&str; 2], machine: &str| {
            InstanceMemory::from_texts(&groups.map(str::to_owned), machine).kb
        };
        let machine = "MemTotal:        2097152 kB\nMemFree:          512 kB\n";
        assert_eq!(memory(["max\n", ""], machine), 2_097_152);
        assert_eq!(memory(["536870912\n", ""], machine), 524_288);
        assert_eq!(memory(["", "9223372036854771712\n"], machine), 2_097_152);
        assert_eq!(memory(["", ""], ""), KB_MIN);
    }

    #[test]
    fn full_entry_cache_leaves_memory_for_turns() {
        for mb in [512, 2_048, 4_096] {
            let memory = InstanceMemory { kb: mb * 1024 };
            let program_kb = 70 * 1024;
            let resident_kb = program_kb + memory.entry_cache_bytes() * 2 / 1024;
            assert!(resident_kb + 100 * 1024 < memory.resident_kb_max(), "{mb} MB");
        }
    }
}
