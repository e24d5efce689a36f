//! Tests of which programs Azure can start, and of the texts for the others.

use super::sample::Sample;
use super::*;

fn told(bytes: &[u8]) -> String {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("turnwheel");
    std::fs::write(&path, bytes).unwrap();
    match needs(&path) {
        Ok(needs) => needs.to_string(),
        Err(misfit) => misfit.to_string(),
    }
}

#[test]
fn the_newest_version_that_is_asked_for_counts() {
    assert_eq!(told(&Sample::default().bytes()), "glibc 2.34");
    let of = |versions| told(&Sample { versions, ..Sample::default() }.bytes());
    assert_eq!(of(&["GLIBC_2.9", "GLIBC_2.31"]), "glibc 2.31");
    // A version with three parts is older than the version that the next number of its second part
    // names.
    assert_eq!(of(&["GLIBC_2.2.5"]), "glibc 2.2");
    // GCC_… belongs to the compiler's own library, which has other numbers.
    assert_eq!(of(&["GLIBC_2.17", "GCC_12.0.0"]), "glibc 2.17");
    assert_eq!(of(&["GLIBC_2.17", "GLIBC_ABI_DT_RELR"]), "glibc 2.36");
}

#[test]
fn program_for_newer_glibc_is_warned_about() {
    let warning = |minor| Needs::Glibc(Version { major: 2, minor }).warning();
    assert_eq!(warning(17), None);
    assert_eq!(warning(31), None);
    let text = warning(32).unwrap();
    assert!(text.starts_with("it needs glibc 2.32, so it starts on Debian 12"), "{text}");
    assert!(warning(36).is_some());
    assert_eq!(Needs::Nothing.warning(), None);
}

#[test]
fn a_static_program_needs_nothing() {
    let program = Sample { loader: None, libraries: &[], versions: &[], ..Sample::default() };
    assert_eq!(told(&program.bytes()), "static");
}

#[test]
fn what_azure_cannot_start_says_what_to_do() {
    let fits = Sample::default();
    let programs = [
        Sample { versions: &["GLIBC_2.34", "GLIBC_2.38"], ..fits },
        Sample { versions: &["GLIBC_2.34", "GLIBC_ABI_GNU2_TLS"], ..fits },
        Sample { versions: &[], ..fits },
        Sample { loader: Some("/lib/ld-musl-x86_64.so.1"), libraries: &["libc.so"], ..fits },
        Sample { libraries: &["libc.so.6", "libssl.so.3", "libcrypto.so.3"], ..fits },
        Sample { machine: 183, ..fits },
        Sample { machine: 243, ..fits },
        Sample { loader: None, ..fits },
    ];
    let mut lines: Vec<String> = programs.iter().map(|program| told(&program.bytes())).collect();
    for begin in [
        &b"MZ\x90\0"[..],
        b"\xcf\xfa\xed\xfe",
        b"#!/bin/sh\nexec ./other\n",
        b"",
        // 32 bits.
        b"\x7fELF\x01\x01\x01\0\0\0\0\0\0\0\0\0\x03\0\x03\0",
        b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0\x03\0>\0 and then nothing",
    ] {
        lines.push(told(begin));
    }
    insta::assert_snapshot!(lines.join("\n"));
}

/// Only on such machines; the hand-made files cover the same everywhere.
#[cfg(all(target_os = "linux", target_arch = "x86_64", target_env = "gnu"))]
#[test]
fn a_program_of_the_real_linker_is_read() {
    let path = std::env::current_exe().unwrap();
    let cache = ReadCache::new(File::open(path).unwrap());
    let facts = Facts::read(&cache).unwrap();
    assert_eq!(facts.loader.as_deref(), Some(LOADER));
    assert!(facts.libraries.iter().any(|name| name == "libc.so.6"), "{:?}", facts.libraries);
    // Every program with Rust's standard library needs this version.
    assert!(facts.versions.iter().any(|name| name == "GLIBC_2.2.5"), "{:?}", facts.versions);
    assert!(facts.versions.iter().filter_map(|name| glibc(name)).count() > 3);
}
