//! Memory that the processes and folders of the sandbox use.

use std::fs;
use std::io;

use nix::sys::statvfs::statvfs;

use super::{TEMP, WORKSPACE};

/// Bytes of all processes except this one, and of the files in memory.
///
/// # Errors
/// A value cannot be read. The command must then end.
pub(super) fn used_bytes() -> io::Result<u64> {
    let mut total = folder_bytes(WORKSPACE)? + folder_bytes(TEMP)?;
    for entry in fs::read_dir("/proc")? {
        let name = entry?.file_name();
        let Some(pid) = name.to_str().and_then(|name| name.parse::<u32>().ok()) else { continue };
        if pid == 1 {
            continue;
        }
        match fs::read_to_string(format!("/proc/{pid}/status")) {
            Ok(status) => total = total.saturating_add(process_bytes(&status)),
            Err(error) if is_ended(&error) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(total)
}

fn is_ended(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound
        || error.raw_os_error() == Some(nix::errno::Errno::ESRCH as i32)
}

fn folder_bytes(folder: &str) -> io::Result<u64> {
    let state = statvfs(folder)?;
    Ok(state.blocks().saturating_sub(state.blocks_free()).saturating_mul(state.fragment_size()))
}

/// Without the pages of files, which other processes share.
fn process_bytes(status: &str) -> u64 {
    let own = |line: &str| {
        let value = line.strip_prefix("RssAnon:").or_else(|| line.strip_prefix("RssShmem:"))?;
        value.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()
    };
    status.lines().filter_map(own).sum::<u64>().saturating_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_bytes_omit_pages_of_files() {
        let status =
            "VmRSS:\t 900 kB\nRssAnon:\t     100 kB\nRssFile:\t  700 kB\nRssShmem:\t 20 kB\n";
        assert_eq!(process_bytes(status), 120 * 1024);
        assert_eq!(process_bytes("Name:\tzombie\n"), 0);
    }
}
