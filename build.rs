//! Passes the target and the commit of a release to the program, for `--version`.
#![expect(
    clippy::disallowed_methods,
    reason = "Cargo gives the target by the environment, and reads the output"
)]

fn main() {
    let target = std::env::var("TARGET").unwrap_or_default();
    // Not read from git: each commit would compile the program again.
    let commit = std::env::var("TURNWHEEL_COMMIT").unwrap_or_else(|_| "no release".to_owned());
    let commit: String = commit.chars().take(12).collect();
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-env-changed=TURNWHEEL_COMMIT");
    // `cargo run` passes it to the program, which refuses an unknown setting: no name that begins with `TURNWHEEL_`.
    println!("cargo:rustc-env=BUILD_OF_PROGRAM={commit}, {target}");
}
