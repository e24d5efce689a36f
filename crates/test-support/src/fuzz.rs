//! Fuzz tests of every parser of untrusted input, with its corpus and mutations of it.
//!
//! A target is a function that panics if an invariant is violated: no input stops the process, the
//! output is bounded by the input, a parsed value round-trips, and no error contains a secret.
//! `cargo test` replays `tests/corpus/<target>` and tries 100 mutations of it with a fixed seed.
//! `TURNWHEEL_FUZZ=600 cargo test --lib fuzz::` runs each target for ten minutes.
#![expect(
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test fails by panicking, in its helpers too"
)]

use std::fs;
use std::panic::catch_unwind;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Placeholder of a secret in the corpora. Errors that leave the process must not contain it.
pub const SECRET: &str = "s3cret";

/// Number of mutations of each corpus in a normal run.
const MUTATIONS: usize = 100;
/// Bytes of a mutated input.
const INPUT_BYTES_MAX: usize = 16 * 1024;
/// Bytes of a failing input that the failure message prints.
const PRINTED_BYTES_MAX: usize = 2_000;

/// Runs a target on its corpus `tests/corpus/<name>` and on mutations of it.
pub fn check(name: &str, target: fn(&[u8])) {
    let corpus = read_corpus(name);
    assert!(!corpus.is_empty(), "tests/corpus/{name} is empty: add a valid input");
    for (file, input) in &corpus {
        run_target(target, input, file);
    }
    let long_run_time = long_run_time();
    let salt = long_run_time.map_or(0, |time| time.as_secs());
    let seed =
        name.bytes().fold(7 + salt, |seed: u64, byte| seed.wrapping_mul(31) + u64::from(byte));
    let mut rng = fastrand::Rng::with_seed(seed);
    let started = Instant::now();
    let mut number = 0;
    while number < MUTATIONS || long_run_time.is_some_and(|time| started.elapsed() < time) {
        let input = mutate(&corpus, &mut rng);
        run_target(target, &input, &format!("{name}, mutation {number}"));
        number += 1;
    }
    if long_run_time.is_some() {
        #[expect(clippy::print_stdout, reason = "a long run reports its number of mutations")]
        {
            println!("{name}: {number} mutations passed");
        }
    }
}

/// Duration of a long run per target; `None` for a normal run. Each duration has its own seed.
#[expect(
    clippy::disallowed_methods,
    reason = "the only variable of the fuzz tests, which selects a long run"
)]
fn long_run_time() -> Option<Duration> {
    let text = std::env::var("TURNWHEEL_FUZZ").ok()?;
    let seconds =
        text.parse().unwrap_or_else(|_| panic!("TURNWHEEL_FUZZ is `{text}`: write seconds"));
    Some(Duration::from_secs(seconds))
}

fn run_target(target: fn(&[u8]), input: &[u8], name: &str) {
    let shown = &input[..input.len().min(PRINTED_BYTES_MAX)];
    assert!(
        catch_unwind(|| target(input)).is_ok(),
        "{name} violates an invariant. Add it to the corpus under a descriptive name:\n{}",
        shown.escape_ascii()
    );
}

fn corpus_root() -> PathBuf {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).join("tests/corpus")
}

/// Reads a corpus in the order of file names, so that every machine runs the same inputs.
fn read_corpus(name: &str) -> Vec<(String, Vec<u8>)> {
    let folder = corpus_root().join(name);
    let files =
        fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut files: Vec<PathBuf> = files.map(|file| file.unwrap().path()).collect();
    files.sort();
    files.into_iter().map(|file| (file.display().to_string(), fs::read(file).unwrap())).collect()
}

/// Tokens that are difficult for parsers.
const TOKENS: [&str; 28] = [
    "\"",
    "\\",
    "\\u0000",
    "\\ud83d",
    "{",
    "}",
    "[",
    "]",
    ":",
    ",",
    "null",
    "true",
    "-1",
    "1e999",
    "0.1",
    "18446744073709551616",
    "\n",
    "\r\n",
    "\n\n",
    "\t",
    "\u{feff}",
    "\u{202e}",
    "é",
    "😀",
    "../",
    "*a",
    "&a ",
    "---\n",
];

fn mutate(corpus: &[(String, Vec<u8>)], rng: &mut fastrand::Rng) -> Vec<u8> {
    let pick = |rng: &mut fastrand::Rng| corpus[rng.usize(..corpus.len())].1.clone();
    let mut input = pick(rng);
    for _ in 0..rng.usize(1..=4) {
        let from = rng.usize(..=input.len());
        let to = rng.usize(from..=input.len().min(from + 64));
        match rng.u8(..9) {
            0 => input.truncate(from),
            1 => drop(input.drain(from..to)),
            2 => {
                let token = TOKENS[rng.usize(..TOKENS.len())].repeat(rng.usize(1..=3));
                drop(input.splice(from..to, token.into_bytes()));
            }
            3 => {
                let token = TOKENS[rng.usize(..TOKENS.len())].repeat(rng.usize(1..=2_000));
                drop(input.splice(from..from, token.into_bytes()));
            }
            4 => {
                let part = input[from..to].repeat(rng.usize(1..=50));
                drop(input.splice(from..from, part));
            }
            5 => {
                let other = pick(rng);
                let begin = rng.usize(..=other.len());
                drop(input.splice(from.., other[begin..].iter().copied()));
            }
            6 => drop(input.splice(from..from, [rng.u8(..)])),
            7 => drop(input.splice(from..to, rng.u64(..).to_string().into_bytes())),
            _ => {
                if let Some(byte) = input.get_mut(from) {
                    *byte ^= 1 << rng.u8(..8);
                }
            }
        }
    }
    input.truncate(INPUT_BYTES_MAX);
    input
}
