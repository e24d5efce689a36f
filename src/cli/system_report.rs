//! The system below the handler, for the log: Microsoft does not publish the image of custom handlers.

use std::path::Path;

/// The banner in glibc's file, before the version.
const GLIBC_BANNER: &[u8] = b"stable release version ";

/// The C library and the system of this process.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct SystemReport {
    /// Version of the loaded glibc, or `none` for a static program.
    pub glibc: String,
    /// The distribution's own name, or `unknown`.
    pub system: String,
}

impl SystemReport {
    /// Reads both. A file that cannot be read costs only its part of the report.
    pub(crate) fn read() -> Self {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
        let glibc = find_libc(&maps).map(|path| std::fs::read(path).unwrap_or_default());
        let release = std::fs::read_to_string("/etc/os-release").unwrap_or_default();
        Self {
            glibc: glibc.map_or_else(
                || "none".to_owned(),
                |library| glibc_version(&library).unwrap_or_else(|| "unknown".to_owned()),
            ),
            system: system_name(&release).unwrap_or("unknown").to_owned(),
        }
    }
}

/// The file of the C library among the mapped files of a process.
fn find_libc(maps: &str) -> Option<&Path> {
    maps.lines()
        .filter_map(|line| line.find('/').and_then(|start| line.get(start..)))
        .map(Path::new)
        .find(|path| path.file_name().is_some_and(|name| name == "libc.so.6"))
}

fn glibc_version(library: &[u8]) -> Option<String> {
    let start = library.windows(GLIBC_BANNER.len()).position(|window| window == GLIBC_BANNER)?;
    let rest = library.get(start + GLIBC_BANNER.len()..)?;
    let version = rest.iter().take_while(|byte| byte.is_ascii_digit() || **byte == b'.');
    let version: String = version.map(|byte| char::from(*byte)).collect();
    Some(version.trim_end_matches('.').to_owned()).filter(|version| !version.is_empty())
}

fn system_name(release: &str) -> Option<&str> {
    let value = release.lines().find_map(|line| line.strip_prefix("PRETTY_NAME="))?;
    Some(value.trim_matches('"')).filter(|name| !name.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn report_reads_banner_and_name_of_the_system() {
        let maps = "7f00-7f01 r--p 0 08:01 1  /app/turnwheel\n7f02-7f03 r-xp 0 08:01 2                          /lib/x86_64-linux-gnu/libc.so.6\n7f04-7f05 rw-p 0 00:00 0 [heap]\n";
        assert_eq!(find_libc(maps), Some(Path::new("/lib/x86_64-linux-gnu/libc.so.6")));
        assert_eq!(find_libc("7f00-7f01 r--p 0 08:01 1  /app/turnwheel\n"), None);
        let banner =
            b"\0GNU C Library (Debian GLIBC 2.36-9) stable release version 2.36.\nCopyright";
        assert_eq!(glibc_version(banner).as_deref(), Some("2.36"));
        assert_eq!(glibc_version(b"GNU C Library"), None);
        let release = "NAME=Debian\nPRETTY_NAME=\"Debian GNU/Linux 12 (bookworm)\"\n";
        assert_eq!(system_name(release), Some("Debian GNU/Linux 12 (bookworm)"));
    }

    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    #[test]
    fn report_of_this_machine_names_glibc() {
        let glibc = SystemReport::read().glibc;
        assert!(glibc.starts_with("2."), "{glibc}");
    }
}
