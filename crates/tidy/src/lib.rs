//! Checks of this repository's files that no compiler makes: layers, visibility, purity of the core, file sizes, documents.
//! A package of its own, so that they compile in seconds and without the product.

#![cfg(test)]

use std::path::{Path, PathBuf};

use self::source::SourceFile;

mod counters;
mod layers;
mod root;
mod source;
mod time_bounds;
mod visibility;
mod words;

const LINES_MAX: usize = 500;

/// Sources of the core.
const CORE: &str = "crates/conversation/src/";

/// Packages that only tests use.
const TEST_PACKAGES: [&str; 3] = ["cosmos-emulator", "test-support", "tidy"];

/// Effects forbidden in the core: waiting, time, randomness, I/O.
const IMPURE: &str = r"\basync\b|\.await\b|\btokio\b|\b(System|Manual)?Clock\b|\bSystemTime\b|\bInstant\b|\.fresh\(|\bgetrandom\b|\btracing\b|\bstd::(env|fs|io|net|process|thread)\b|\bsettings::environment\b";

/// Clippy denies these too; this check also finds them where an attribute silences clippy.
const UNFINISHED_CODE: &str = r"\.unwrap\(\)|\btodo!|\bunimplemented!|\bdbg!|#!?\[allow\(";

/// The project's folder.
fn root() -> PathBuf {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    package.ancestors().nth(2).expect("a folder of `crates`").to_owned()
}

/// Files below `folder` (relative to the project) that pass `is_wanted`, sorted, as relative paths
/// with `/`.
fn files(folder: &str, is_wanted: impl Fn(&str) -> bool) -> Vec<String> {
    let mut found = Vec::new();
    let mut open = vec![root().join(folder)];
    while let Some(dir) = open.pop() {
        for entry in std::fs::read_dir(&dir).into_iter().flatten().flatten() {
            let path = entry.path();
            if path.is_dir() {
                open.push(path);
                continue;
            }
            let name = path.strip_prefix(root()).unwrap_or(&path).to_string_lossy().into_owned();
            let name = name.replace('\\', "/");
            if is_wanted(&name) {
                found.push(name);
            }
        }
    }
    found.sort();
    found
}

fn is_rust(name: &str) -> bool {
    Path::new(name).extension().is_some_and(|extension| extension == "rs")
}

fn read(path: &str) -> String {
    let text = std::fs::read_to_string(root().join(path));
    text.unwrap_or_else(|error| format!("{path} cannot be read: {error}"))
}

/// Rust files of all packages, without those of the integration tests, benchmarks and examples.
fn package_files() -> Vec<String> {
    let is_source = |path: &str| is_rust(path) && path.contains("/src/");
    files("crates", is_source).into_iter().chain(files("src", is_rust)).collect()
}

/// All files that belong to the product, without tests.
fn product_sources() -> Vec<SourceFile> {
    let paths = package_files().into_iter();
    let paths = paths.filter(|path| {
        !TEST_PACKAGES.iter().any(|name| path.starts_with(&format!("crates/{name}/")))
    });
    let sources = paths.map(|path| SourceFile::new(&path, &read(&path)));
    source::without_test_files(sources.collect())
}

/// All matches as `path:line: text`.
fn find_matches(sources: &[SourceFile], pattern: &str) -> Vec<String> {
    let pattern = regex::Regex::new(pattern).expect("the pattern must be valid");
    let mut found = Vec::new();
    for source in sources {
        for (number, line) in source.code.lines().enumerate() {
            if pattern.is_match(line) {
                found.push(format!("{}:{}: {}", source.path, number + 1, line.trim()));
            }
        }
    }
    found
}

fn in_core(source: &SourceFile) -> bool {
    source.path.starts_with(CORE)
}

#[test]
fn agent_is_pure() {
    let core: Vec<SourceFile> = product_sources().into_iter().filter(in_core).collect();
    assert!(core.len() > 5, "{CORE} must contain the core");
    assert_eq!(find_matches(&core, IMPURE), [""; 0]);
}

#[test]
fn impure_core_is_detected() {
    let count_matches = |text: &str| {
        find_matches(&[SourceFile::new("crates/conversation/src/step.rs", text)], IMPURE).len()
    };
    for impure in [
        "async fn step() {}",
        "let now = clock.now(); use crate::clock::{Clock, Timestamp};",
        "let id = ids.fresh();",
        "tracing::info!(1);",
        "std::time::SystemTime::now()",
        "Instant::now()",
        "std::fs::read(p)",
    ] {
        assert_eq!(count_matches(impure), 1, "{impure}");
    }
    for pure in ["use crate::clock::Timestamp;", "/// async, Clock", "let s = \"tokio\";"] {
        assert_eq!(count_matches(pure), 0, "{pure}");
    }
    assert_eq!(
        count_matches("#[cfg(test)]\nmod tests {\n    fn f() { async {} }\n}\nfn g() {}"),
        0
    );
}

/// Parts of a model request beside the messages. Only the frame and its document read them.
const FRAME_PARTS: &str =
    r"ToolOffer \{|\.instructions\b|agent\.system_prompt|agent\.response_schema";

const FRAME_FILES: [&str; 2] = ["crates/turn/src/frame.rs", "crates/turn/src/frame_document.rs"];

#[test]
fn one_place_makes_the_frame() {
    let turn = product_sources().into_iter().filter(|it| it.path.starts_with("crates/turn/src/"));
    let (frame, others): (Vec<SourceFile>, Vec<SourceFile>) =
        turn.partition(|it| FRAME_FILES.contains(&it.path.as_str()));
    assert_eq!(find_matches(&frame, FRAME_PARTS).len(), 5);
    assert_eq!(find_matches(&others, FRAME_PARTS), [""; 0]);
}

#[test]
fn fail_points_are_listed() {
    let named = regex::Regex::new(r#"hit\("([^"]+)"\)"#).unwrap();
    let mut found = 0;
    for name in package_files() {
        for fail_point in named.captures_iter(&read(&name)) {
            found += 1;
            assert!(
                turnwheel_platform::fail_points::FAIL_POINTS.contains(&&fail_point[1]),
                "{name}: {}",
                &fail_point[1]
            );
        }
    }
    assert!(found > 20, "the product must name its fail points");
}

#[test]
fn product_has_no_unfinished_code() {
    assert_eq!(find_matches(&product_sources(), UNFINISHED_CODE), [""; 0]);
}

#[test]
fn files_are_short_and_state_their_purpose() {
    let mut violations = Vec::new();
    for folder in ["src", "crates", "tests", "benches", "examples"] {
        for path in files(folder, is_rust) {
            let text = read(&path);
            let lines = text.lines().count();
            if lines > LINES_MAX {
                violations.push(format!(
                    "{path} has {lines} lines: split it by noun ({LINES_MAX} at most)"
                ));
            }
            let first = text.lines().next().unwrap_or_default();
            if first.strip_prefix("//! ").is_none_or(|purpose| purpose.len() <= 10) {
                violations.push(format!(
                    "{path} does not begin with a `//!` line that states its purpose"
                ));
            }
        }
    }
    assert_eq!(violations, [""; 0]);
}

#[test]
fn corpora_are_small_and_have_targets() {
    let fuzz_tests: String = package_files()
        .into_iter()
        .filter(|path| path.ends_with("/fuzz.rs"))
        .map(|path| read(&path))
        .collect();
    let inputs = files("tests/corpus", |_| true);
    for name in inputs.iter().filter_map(|path| path.split('/').nth(2)) {
        let call = format!("check(\"{name}\", ");
        assert!(fuzz_tests.contains(&call), "no fuzz.rs has `{call}`");
    }
    let sizes = inputs.iter().map(|path| std::fs::metadata(root().join(path)).unwrap().len());
    let bytes: u64 = sizes.sum();
    assert!(
        (1..=200 * 1024).contains(&bytes),
        "the corpora have {bytes} bytes: remove redundant inputs"
    );
}

/// Requests of the HTTP client in tests, by file. Streams are validated as they arrive; the process of a kill ends before
/// its response.
const UNVALIDATED_REQUESTS: [(&str, usize); 8] = [
    ("tests/process/interrupt.rs", 1),
    ("tests/process/kill_demonstration.rs", 3),
    ("tests/process/packaged_handler.rs", 1),
    ("tests/process/packaged_handler/waiting_clients.rs", 1),
    // A proxy between a command and the service.
    ("tests/process/terminal/bounds.rs", 1),
    ("tests/support/event_stream.rs", 1),
    ("tests/support/openapi_check.rs", 1),
    ("tests/process/tool_programs.rs", 1),
];

/// `openapi_check` validates each response of the service, except those of the handlers that
/// `host_contract` runs behind the host. `send` of the requests in `edge` validates too.
#[test]
fn responses_to_test_clients_are_validated() {
    let folders = ["tests/it", "tests/process", "tests/support"];
    let sources = folders.iter().flat_map(|folder| files(folder, is_rust)).filter(|path| {
        !["tests/it/edge/", "tests/process/host_contract/"]
            .iter()
            .any(|folder| path.starts_with(folder))
    });
    let sources: Vec<SourceFile> =
        sources.map(|path| SourceFile::new(&path, &read(&path))).collect();
    let mut counts = std::collections::BTreeMap::new();
    for found in find_matches(&sources, r"\.send\(\)|\.execute\(|\breqwest::get\b") {
        let (path, _) = found.split_once(':').unwrap();
        *counts.entry(path.to_owned()).or_insert(0) += 1;
    }
    let expected = UNVALIDATED_REQUESTS.map(|(path, count)| (path.to_owned(), count));
    assert_eq!(counts, expected.into(), "use `SendValidated::send_validated`");
}
