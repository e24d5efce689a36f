//! Tests assert no upper bound on real time, which would fail on a busy machine: paused time is
//! exact, and `.ci/run timing` asserts the bounds of `check_time`.

use std::collections::BTreeSet;
use std::sync::LazyLock;

use super::{files, is_rust, product_sources, read};

/// The names that a `let` or an assignment gives a value.
static BINDING: LazyLock<regex::Regex> =
    LazyLock::new(|| regex::Regex::new(r"^(?:let )?([\w(), ]+)(?:: [^=]+)? =(?: |$)").unwrap());

/// A name before `<`, or a time since an instant.
static BOUND: LazyLock<regex::Regex> = LazyLock::new(|| {
    let operand = r"(?:\b(\w+)|\.elapsed\(\)|duration_since\(.*\))";
    regex::Regex::new(&format!(r"{operand}(?:\.as_\w+\(\))? <")).unwrap()
});

/// Time limits that only stop a test that would never end, and those of helpers whose tests have paused time: file,
/// function and reason.
const LIMITS: &[(&str, &str, &str)] = &[
    (
        "crates/azure/src/storage/error.rs",
        "unreachable_service_error_omits_signature",
        "half a minute",
    ),
    ("crates/tools/src/validate/bounds_tests.rs", "exponential_schemas_are_refused", "minutes"),
    ("crates/tools/src/validate/bounds_tests.rs", "checks_that_grow_with_the_value_end", "minutes"),
    ("crates/turn/src/tests/store_outages.rs", "recovery_time", "paused time"),
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

/// Functions of tests that assert an upper bound on the time since a real instant, or on a variable with that time.
fn functions_with_bounds(text: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let (mut current, mut names) = ("", Vec::new());
    let mut times: BTreeSet<&str> = BTreeSet::new();
    for (line, function, is_paused) in lines_with_functions(text) {
        if function != current {
            (current, names, times) = (function, Vec::new(), BTreeSet::new());
        }
        if let Some(pattern) = BINDING.captures(line).and_then(|binding| binding.get(1)) {
            names = pattern.as_str().split(|c: char| !c.is_alphanumeric() && c != '_').collect();
        }
        if line.contains(".elapsed()") || line.contains("duration_since(") {
            times.extend(names.iter().copied());
        }
        if line.ends_with(';') {
            names.clear();
        }
        let mut operands = BOUND.captures_iter(line).map(|operand| operand.get(1));
        let is_bound = operands.any(|name| name.is_none_or(|name| times.contains(name.as_str())));
        if is_bound && !is_paused && !line.starts_with("while") {
            found.insert(function.to_owned());
        }
    }
    found
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
        let lines = text.lines().zip(code).filter(|(_, code)| code.trim().is_empty());
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
fn bounds_on_variables_with_real_times_are_detected() {
    for (code, is_found) in [
        ("let took = began.elapsed();\nassert!(took < SECOND);", true),
        ("let took = began.elapsed();\nassert!(took.as_millis() <= 20, \"{took:?}\");", true),
        ("let took: Duration = end.duration_since(began);\nassert!(\ntook < SECOND,\n);", true),
        ("let (status, took) = (send(),\nbegan.elapsed());\nassert!(took < SECOND);", true),
        ("longest = longest.max(began.elapsed());\nassert!(longest < SECOND);", true),
        ("assert!(end.duration_since(began()) < SECOND);", true),
        ("assert!(began.elapsed().as_secs() < 1);", true),
        ("let took = began.elapsed();\nassert!(took >= SECOND);", false),
        ("let took = began.elapsed();\ncheck_time(\"start\", took, SECOND);", false),
        ("let count = 3;\nlet took = began.elapsed();\nassert!(count < 4);", false),
        ("let took = began.elapsed();\n}\nfn other() {\nassert!(took < SECOND);", false),
    ] {
        let text = format!("#[test]\nfn waits() {{\n{code}\n}}\n");
        assert_eq!(!functions_with_bounds(&text).is_empty(), is_found, "{code}");
    }
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
