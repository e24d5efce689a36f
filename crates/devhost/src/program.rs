//! Checks if Azure can start a program: reads the ELF file for the loader, libraries and glibc
//! version that it needs.

use std::fmt;
use std::fs::File;
use std::io::Read as _;
use std::path::Path;

use object::read::elf::{FileHeader as _, ProgramHeader as _};
use object::read::{ReadCache, ReadRef};
use object::{Endianness, elf};

#[cfg(any(test, feature = "testing"))]
pub mod sample;
#[cfg(test)]
mod tests;

/// glibc of Debian 12, the oldest base of an image of the Functions host that is still updated
/// (`docs/deploy.md`, "The program").
pub(crate) const AZURE_GLIBC: GlibcVersion = GlibcVersion { major: 2, minor: 36 };

/// glibc of Debian 11: every image of the Functions host has this version or a newer one.
const OLDEST_IMAGE_GLIBC: GlibcVersion = GlibcVersion { major: 2, minor: 31 };

const LOADER: &str = "/lib64/ld-linux-x86-64.so.2";

/// The libraries of glibc, and those that every image with .NET has.
const AVAILABLE_LIBRARIES: [&str; 8] = [
    "ld-linux-x86-64.so.2",
    "libc.so.6",
    "libdl.so.2",
    "libgcc_s.so.1",
    "libm.so.6",
    "libpthread.so.0",
    "librt.so.1",
    "libutil.so.1",
];

/// The command that builds a suitable program; `docs/deploy.md` lists it and others.
const BUILD_COMMAND: &str = "`cargo zigbuild --release --target x86_64-unknown-linux-gnu.2.31`";

/// A version of glibc.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct GlibcVersion {
    pub major: u32,
    pub minor: u32,
}

impl fmt::Display for GlibcVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

/// Requirements of a program that Azure can start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Requirements {
    /// Linked statically.
    Nothing,
    /// This version or a newer one.
    Glibc(GlibcVersion),
}

impl Requirements {
    /// Returns a warning for a program that an older image of the Functions host could not start.
    pub fn warning(self) -> Option<String> {
        match self {
            Self::Glibc(version) if version > OLDEST_IMAGE_GLIBC => Some(format!(
                "it needs glibc {version}, so it starts on Debian 12 and not on an older image: to be safe, build with {BUILD_COMMAND}"
            )),
            Self::Glibc(_) | Self::Nothing => None,
        }
    }
}

impl fmt::Display for Requirements {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nothing => f.write_str("static"),
            Self::Glibc(version) => write!(f, "glibc {version}"),
        }
    }
}

/// The reason why Azure could not start a program, and what to do.
#[derive(Debug, thiserror::Error)]
pub enum Incompatibility {
    #[error("cannot be read: {0}")]
    Unreadable(std::io::Error),
    #[error("is {0}, and Azure runs programs for Linux on x86-64: build one with {BUILD_COMMAND}")]
    WrongPlatform(&'static str),
    #[error("is a damaged program: build it again ({0})")]
    Damaged(object::read::Error),
    #[error(
        "has no table of library versions: build it again, and let Cargo strip it (`strip = true`)"
    )]
    NoVersionTable,
    #[error(
        "is started by `{0}`, which Azure's images do not have: link musl statically (Cargo's default for x86_64-unknown-linux-musl), or build with {BUILD_COMMAND}"
    )]
    OtherLoader(String),
    #[error(
        "needs {}, which Azure's images need not have: link it into the program", .0.join(", ")
    )]
    MissingLibraries(Vec<String>),
    #[error("needs {0}, and Azure's images have glibc {AZURE_GLIBC}: build with {BUILD_COMMAND}")]
    NewerGlibc(String),
}

/// Reads only the parts of the file that hold its requirements.
///
/// # Errors
/// Azure could not start the program: show the text after the file's name.
pub fn read_requirements(path: &Path) -> Result<Requirements, Incompatibility> {
    let mut header = Vec::with_capacity(20);
    let file = File::open(path).map_err(Incompatibility::Unreadable)?;
    file.take(20).read_to_end(&mut header).map_err(Incompatibility::Unreadable)?;
    if let Some(kind) = foreign_kind(&header) {
        return Err(Incompatibility::WrongPlatform(kind));
    }
    let cache = ReadCache::new(File::open(path).map_err(Incompatibility::Unreadable)?);
    check_compatibility(&ElfFacts::read(&cache).map_err(Incompatibility::Damaged)?)
}

/// Returns the kind of a file that is not a 64-bit little-endian x86-64 ELF file.
fn foreign_kind(header: &[u8]) -> Option<&'static str> {
    match header {
        [0x7f, b'E', b'L', b'F', class, order, ..] => {
            let machine = header.get(18..20).unwrap_or_default();
            let is_x86_64 = (*class, *order) == (2, 1) && machine == [62, 0];
            let is_arm = machine == [183, 0];
            (!is_x86_64).then_some(if is_arm {
                "a program for ARM"
            } else {
                "a program for another processor"
            })
        }
        [b'M', b'Z', ..] => Some("a program for Windows"),
        [0xcf | 0xce, 0xfa, 0xed, 0xfe, ..] | [0xca, 0xfe, 0xba, 0xbe, ..] => {
            Some("a program for macOS")
        }
        [b'#', b'!', ..] => Some("a script"),
        _ => Some("not a program"),
    }
}

#[derive(Default)]
struct ElfFacts {
    loader: Option<String>,
    /// Names of shared libraries.
    libraries: Vec<String>,
    /// `GLIBC_…` versions that the symbols require.
    versions: Vec<String>,
}

impl ElfFacts {
    fn read<'data>(data: impl ReadRef<'data>) -> object::read::Result<Self> {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let header = elf::FileHeader64::<Endianness>::parse(data)?;
        let endian = header.endian()?;
        let mut facts = Self::default();
        for segment in header.program_headers(endian, data)? {
            if let Some(loader) = segment.interpreter(endian, data)? {
                facts.loader = Some(text(loader));
            }
        }
        let sections = header.sections(endian, data)?;
        let dynamic = sections.dynamic_table(endian, data)?;
        for entry in dynamic.iter().filter(|entry| entry.tag == elf::DT_NEEDED) {
            facts.libraries.push(text(dynamic.string(entry)?));
        }
        if let Some((mut files, link)) = sections.gnu_verneed(endian, data)? {
            let strings = sections.strings(endian, data, link)?;
            while let Some((_, mut versions)) = files.next()? {
                while let Some(version) = versions.next()? {
                    let name = text(version.name(endian, strings)?);
                    if name.starts_with("GLIBC_") {
                        facts.versions.push(name);
                    }
                }
            }
        }
        Ok(facts)
    }
}

fn check_compatibility(facts: &ElfFacts) -> Result<Requirements, Incompatibility> {
    match &facts.loader {
        None if facts.libraries.is_empty() => return Ok(Requirements::Nothing),
        None => return Err(Incompatibility::WrongPlatform("a shared library")),
        Some(loader) if loader != LOADER => {
            return Err(Incompatibility::OtherLoader(loader.clone()));
        }
        Some(_) => {}
    }
    let missing: Vec<String> = facts
        .libraries
        .iter()
        .filter(|name| !AVAILABLE_LIBRARIES.contains(&name.as_str()))
        .cloned()
        .collect();
    if !missing.is_empty() {
        return Err(Incompatibility::MissingLibraries(missing));
    }
    let mut newest = None;
    for name in &facts.versions {
        let version = parse_glibc_version(name)
            .ok_or_else(|| Incompatibility::NewerGlibc(format!("`{name}`")))?;
        newest = newest.max(Some(version));
    }
    match newest {
        // Every C program requires some version: the table of this one was removed.
        None => Err(Incompatibility::NoVersionTable),
        Some(version) if version > AZURE_GLIBC => {
            Err(Incompatibility::NewerGlibc(format!("glibc {version}")))
        }
        Some(version) => Ok(Requirements::Glibc(version)),
    }
}

/// Parses `GLIBC_2.34`, also with a third part. `None`: not a version that every later glibc has.
fn parse_glibc_version(name: &str) -> Option<GlibcVersion> {
    // A feature of the loader, which has a name instead of a number.
    if name == "GLIBC_ABI_DT_RELR" {
        return Some(GlibcVersion { major: 2, minor: 36 });
    }
    let mut parts = name.strip_prefix("GLIBC_")?.split('.');
    let version =
        GlibcVersion { major: parts.next()?.parse().ok()?, minor: parts.next()?.parse().ok()? };
    parts.all(|part| part.parse::<u32>().is_ok()).then_some(version)
}
