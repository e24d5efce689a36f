//! Root of the sandbox: programs and libraries of the machine, read-only, and folders in memory.

use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::unistd::{chdir, pivot_root};

use super::{TEMP, TEMP_BYTES, WORKSPACE, setup_error};
use crate::shell::ShellLimits;

/// Folder over which the new root is mounted until it replaces the old one.
const NEW_ROOT: &str = "/tmp";
const ROOT_BYTES: u64 = 1024 * 1024;
const PROGRAM_FOLDERS: [&str; 8] =
    ["usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32", "etc/alternatives"];
/// Without `/dev/zero`: a shared mapping of it is memory that no process accounts for.
const DEVICES: [&str; 3] = ["dev/null", "dev/random", "dev/urandom"];

/// Replaces the root of this process. Afterwards no other path of the machine is reachable.
///
/// # Errors
/// Returns the text for the user, with the remedy.
pub(super) fn enter(limits: &ShellLimits) -> Result<(), String> {
    let fail = |step: &'static str| move |error: io::Error| setup_error(step, &error);
    mount_at("/", None, MsFlags::MS_PRIVATE | MsFlags::MS_REC, None)
        .map_err(fail("separate the mounts"))?;
    mount_memory(Path::new(NEW_ROOT), ROOT_BYTES, 4_096).map_err(fail("mount its root"))?;
    for folder in PROGRAM_FOLDERS {
        bind_programs(folder).map_err(fail("mount the programs"))?;
    }
    for device in DEVICES {
        bind_device(device).map_err(fail("mount the devices"))?;
    }
    let inner = |path: &str| PathBuf::from(format!("{NEW_ROOT}{path}"));
    for folder in ["/proc", WORKSPACE, TEMP] {
        fs::create_dir(inner(folder)).map_err(fail("create its folders"))?;
    }
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
    mount(Some("proc"), &inner("/proc"), Some("proc"), flags, None::<&str>)
        .map_err(|error| setup_error("mount /proc", &error))?;
    mount_memory(&inner(WORKSPACE), limits.workspace_bytes, limits.files)
        .and_then(|()| mount_memory(&inner(TEMP), TEMP_BYTES, limits.files))
        .map_err(fail("mount its folders"))?;
    restrict_mounts_below(NEW_ROOT).map_err(fail("make the programs read-only"))?;
    replace_root().map_err(fail("replace the root"))
}

fn replace_root() -> io::Result<()> {
    chdir(NEW_ROOT)?;
    pivot_root(".", ".")?;
    umount2(".", MntFlags::MNT_DETACH)?;
    chdir("/")?;
    let flags = MsFlags::MS_REMOUNT | MsFlags::MS_BIND | MsFlags::MS_RDONLY;
    mount_at("/", None, flags | MsFlags::MS_NOSUID | MsFlags::MS_NODEV, None)
}

fn mount_at(at: &str, from: Option<&str>, flags: MsFlags, data: Option<&str>) -> io::Result<()> {
    Ok(mount(from, at, None::<&str>, flags, data)?)
}

fn mount_memory(at: &Path, bytes: u64, files: u64) -> io::Result<()> {
    let options = format!("size={bytes},nr_inodes={files},mode=0755");
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
    Ok(mount(Some("tmpfs"), at, Some("tmpfs"), flags, Some(options.as_str()))?)
}

/// Shows a folder of programs or libraries. A symbolic link such as `/bin` is created again.
fn bind_programs(folder: &str) -> io::Result<()> {
    let (from, at) = (format!("/{folder}"), format!("{NEW_ROOT}/{folder}"));
    let Ok(metadata) = fs::symlink_metadata(&from) else { return Ok(()) };
    if metadata.is_symlink() {
        return symlink(fs::read_link(&from)?, &at);
    }
    fs::create_dir_all(&at)?;
    mount_at(&at, Some(&from), MsFlags::MS_BIND | MsFlags::MS_REC, None)
}

fn bind_device(device: &str) -> io::Result<()> {
    let (from, at) = (format!("/{device}"), format!("{NEW_ROOT}/{device}"));
    fs::create_dir_all(format!("{NEW_ROOT}/dev"))?;
    fs::write(&at, "")?;
    mount_at(&at, Some(&from), MsFlags::MS_BIND, None)
}

/// Makes every bound mount below `root` read-only, also those that came with a folder.
fn restrict_mounts_below(root: &str) -> io::Result<()> {
    let mounts = fs::read_to_string("/proc/self/mountinfo")?;
    let points = mounts.lines().filter_map(|line| line.split(' ').nth(4));
    for point in points.filter_map(|point| point.strip_prefix(root)?.strip_prefix('/')) {
        let at = format!("{root}/{}", unescape(point));
        let is_writable = [WORKSPACE, TEMP, "/proc"].iter().any(|own| own.get(1..) == Some(point));
        if is_writable {
            continue;
        }
        let device = if point.starts_with("dev/") { MsFlags::empty() } else { MsFlags::MS_NODEV };
        let flags = MsFlags::MS_REMOUNT | MsFlags::MS_BIND | MsFlags::MS_RDONLY;
        mount_at(&at, None, flags | MsFlags::MS_NOSUID | device, None)?;
    }
    Ok(())
}

/// The kernel writes a space in a path as `\040`, a tab as `\011`, a backslash as `\134`.
fn unescape(path: &str) -> String {
    path.replace("\\040", " ").replace("\\011", "\t").replace("\\012", "\n").replace("\\134", "\\")
}
