//! Tests assert no upper bound on real time, which would fail on a busy machine: paused time is
//! exact, and `.ci/run timing` asserts the bounds of `check_time`.

use std::collections::BTreeSet;

use super::{files, is_rust, product_sources, read};

/// Time limits that only stop a test that would never end: file, function and reason.
const LIMITS: &[(&str, &str, &str)] = &[
    (
        "crates/azure/src/storage/error.rs",
        "unreachable_service_error_omits_signature",
        "half a minute",
    ),
    ("crates/tools/src/validate/bounds_tests.rs", "exponential_schemas_are_refused", "minutes"),
    ("crates/tools/src/validate/bounds_tests.rs", "checks_that_grow_with_the_value_end", "minutes"),
    ("tests/process/isolation.rs", "first_restarts_during_model_call_delay_nothing", "minutes"),
    ("tests/process/isolation.rs", "killer_fails_alone_and_all_neighbours_complete", "minutes"),
    ("tests/process/isolation.rs", "random_kills_fail_no_prompt", "minutes"),
];

/// The lines of a file, each with the function that it is in, and true if that is a test with
/// paused time.
fn lines_with_functions(text: &str) -> Vec<(&str, &str, bool)> {
    let name = regex::Regex::new(r"^(?:pub(?:\([a-z]+\))? )?(?:async )?fn (\w+)").unwrap();
    let (mut function, mut is_paused, mut is_next_paused) = ("", false, false);
    let mut found = Vec::new();
    for line in text.lines().map(str::trim) {
        if line.starts_with("#[tokio::test") {
            is_next_paused = line.contains("start_paused = true");
        } else if let Some(named) = name.captures(line).and_then(|named| named.get(1)) {
            (function, is_paused, is_next_paused) = (named.as_str(), is_next_paused, false);
        }
        found.push((line, function, is_paused));
    }
    found
}

/// Functions of tests that assert an upper bound on the time since a real instant.
fn functions_with_bounds(text: &str) -> BTreeSet<String> {
    let is_bound = |line: &str| line.contains(".elapsed() <") && !line.starts_with("while");
    let lines = lines_with_functions(text).into_iter();
    let bounds = lines.filter(|(line, _, is_paused)| is_bound(line) && !is_paused);
    bounds.map(|(_, function, _)| function.to_owned()).collect()
}

/// Files of packages and `tests` that have tests, with the text that is not of the product.
fn test_texts() -> Vec<(String, String)> {
    let products = product_sources();
    let paths = ["src", "crates", "tests"].iter().flat_map(|folder| files(folder, is_rust));
    let test_text = |path: &str| {
        let text = read(path);
        let Some(product) = products.iter().find(|product| product.path == path) else {
            return text;
        };
        // Code of the product is not blank there.
        let code = product.code.lines();
        let lines = text.lines().zip(code).filter(|(_, code)| !code.contains(".elapsed() <"));
        lines.flat_map(|(line, _)| [line, "\n"]).collect()
    };
    paths.map(|path| (path.clone(), test_text(&path))).collect()
}

#[test]
fn tests_assert_no_upper_bound_on_real_time() {
    let mut found = BTreeSet::new();
    for (path, text) in test_texts().into_iter().filter(|(path, _)| !path.ends_with(file!())) {
        found.extend(functions_with_bounds(&text).into_iter().map(|name| (path.clone(), name)));
    }
    let listed: BTreeSet<(String, String)> =
        LIMITS.iter().map(|(path, name, _)| ((*path).to_owned(), (*name).to_owned())).collect();
    let new: Vec<_> = found.difference(&listed).collect();
    assert!(new.is_empty(), "use paused time, or `check_time`: {new:?}");
    let unused: Vec<_> = listed.difference(&found).collect();
    assert!(unused.is_empty(), "remove from LIMITS: {unused:?}");
}

#[test]
fn bounds_on_real_time_are_detected() {
    let bound = "assert!(began.elapsed() < SECOND);";
    for (attribute, is_found) in [
        ("#[test]", true),
        ("#[tokio::test]", true),
        ("#[tokio::test(flavor = \"multi_thread\")]", true),
        ("#[tokio::test(start_paused = true)]", false),
    ] {
        let text = format!("{attribute}\nasync fn waits() {{\n    {bound}\n}}\n");
        assert_eq!(functions_with_bounds(&text).contains("waits"), is_found, "{attribute}");
    }
    let helper = format!("#[tokio::test(start_paused = true)]\nfn a() {{}}\nfn b() {{ }}\n{bound}");
    assert_eq!(functions_with_bounds(&helper), BTreeSet::from(["b".to_owned()]));
}

#[test]
fn stage_timing_names_each_test_with_check_time() {
    let stages = read(".ci/run");
    let stage = stages.lines().find(|line| line.trim().starts_with("timing)")).unwrap();
    let (_, names) = stage.split_once(" -- ").unwrap();
    let named: BTreeSet<&str> =
        names.split(' ').filter(|word| word.contains('_') && !word.starts_with('-')).collect();
    let texts = test_texts();
    let callers: BTreeSet<&str> = texts
        .iter()
        .filter(|(path, _)| !path.ends_with(file!()))
        .flat_map(|(_, text)| lines_with_functions(text))
        .filter(|(line, function, _)| line.contains("check_time(") && *function != "check_time")
        .map(|(_, function, _)| function)
        .collect();
    assert_eq!(named, callers);
}
