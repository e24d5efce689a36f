//! Tests of which programs Azure can start, and of the texts for the others.

use super::sample::SampleElf;
use super::*;

fn describe_program(bytes: &[u8]) -> String {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("turnwheel");
    std::fs::write(&path, bytes).unwrap();
    match read_requirements(&path) {
        Ok(needs) => needs.to_string(),
        Err(misfit) => misfit.to_string(),
    }
}

#[test]
fn newest_required_glibc_version_decides() {
    assert_eq!(describe_program(&SampleElf::default().to_bytes()), "glibc 2.34");
    let of =
        |versions| describe_program(&SampleElf { versions, ..SampleElf::default() }.to_bytes());
    assert_eq!(of(&["GLIBC_2.9", "GLIBC_2.31"]), "glibc 2.31");
    // A version with three parts is older than the version that the next number of its second part
    // names.
    assert_eq!(of(&["GLIBC_2.2.5"]), "glibc 2.2");
    // GCC_… belongs to the compiler's own library, which has other numbers.
    assert_eq!(of(&["GLIBC_2.17", "GCC_12.0.0"]), "glibc 2.17");
    assert_eq!(of(&["GLIBC_2.17", "GLIBC_ABI_DT_RELR"]), "glibc 2.36");
}

#[test]
fn program_warns_about_newer_glibc() {
    let warning = |minor| Requirements::Glibc(GlibcVersion { major: 2, minor }).warning();
    assert_eq!(warning(17), None);
    assert_eq!(warning(31), None);
    let text = warning(32).unwrap();
    assert!(text.starts_with("it needs glibc 2.32, so it starts on Debian 12"), "{text}");
    assert!(warning(36).is_some());
    assert_eq!(Requirements::Nothing.warning(), None);
}

#[test]
fn static_program_has_no_requirements() {
    let program = SampleElf { loader: None, libraries: &[], versions: &[], ..SampleElf::default() };
    assert_eq!(describe_program(&program.to_bytes()), "static");
}

#[test]
fn incompatible_program_error_states_the_fix() {
    let fits = SampleElf::default();
    let programs = [
        SampleElf { versions: &["GLIBC_2.34", "GLIBC_2.38"], ..fits },
        SampleElf { versions: &["GLIBC_2.34", "GLIBC_ABI_GNU2_TLS"], ..fits },
        SampleElf { versions: &[], ..fits },
        SampleElf { loader: Some("/lib/ld-musl-x86_64.so.1"), libraries: &["libc.so"], ..fits },
        SampleElf { libraries: &["libc.so.6", "libssl.so.3", "libcrypto.so.3"], ..fits },
        SampleElf { machine: 183, ..fits },
        SampleElf { machine: 243, ..fits },
        SampleElf { loader: None, ..fits },
    ];
    let mut lines: Vec<String> =
        programs.iter().map(|program| describe_program(&program.to_bytes())).collect();
    for header in [
        &b"MZ\x90\0"[..],
        b"\xcf\xfa\xed\xfe",
        b"#!/bin/sh\nexec ./other\n",
        b"",
        // 32 bits.
        b"\x7fELF\x01\x01\x01\0\0\0\0\0\0\0\0\0\x03\0\x03\0",
        b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0\x03\0>\0 and then nothing",
    ] {
        lines.push(describe_program(header));
    }
    insta::assert_snapshot!(lines.join("\n"));
}

/// Only on such machines; the hand-made files cover the same everywhere.
#[cfg(all(target_os = "linux", target_arch = "x86_64", target_env = "gnu"))]
#[test]
fn program_of_real_linker_is_read() {
    let path = std::env::current_exe().unwrap();
    let cache = ReadCache::new(File::open(path).unwrap());
    let facts = ElfFacts::read(&cache).unwrap();
    assert_eq!(facts.loader.as_deref(), Some(LOADER));
    assert!(facts.libraries.iter().any(|name| name == "libc.so.6"), "{:?}", facts.libraries);
    // Every program with Rust's standard library needs this version.
    assert!(facts.versions.iter().any(|name| name == "GLIBC_2.2.5"), "{:?}", facts.versions);
    assert!(facts.versions.iter().filter_map(|name| parse_glibc_version(name)).count() > 3);
}
