//! Checks of the project root: required files, and agreement of documents with the code.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::Path;

use serde_json::Value;
use turnwheel_platform::settings::table;
use turnwheel_platform::settings::table::{ReadBy, SetBy};

use super::{files, is_rust, read, root};

const REQUIRED_FILES: &[&str] = &[
    ".ci/run",
    ".funcignore",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "Cargo.lock",
    "Cargo.toml",
    "LICENSE",
    "README.md",
    "azure.yaml",
    "docs/architecture.md",
    "docs/decisions/README.md",
    "docs/deploy.md",
    "docs/local.md",
    "docs/quickstart.md",
    "docs/settings.md",
    "docs/telemetry.md",
    "host.json",
    "infra/README.md",
    "infra/main.bicep",
    "local.settings.sample.json",
    "src/lib.rs",
    "src/main.rs",
    "tests/it/main.rs",
    "tests/process/main.rs",
];

const REQUIRED_FUNCTIONS: &[&str] = &[
    "approve",
    "console",
    "health",
    "notify",
    "notify-poison",
    "openapi",
    "openapi-3-0",
    "preflight",
    "prompt",
    "sweep",
    "turn",
    "turn-poison",
    "web",
];

pub(super) fn is_markdown(path: &str) -> bool {
    Path::new(path).extension().is_some_and(|extension| extension == "md")
}

/// Names of the existing functions.
fn existing_functions() -> Vec<String> {
    let files = files("functions", |path| path.ends_with("/function.json"));
    let mut names: Vec<String> =
        files.iter().filter_map(|path| path.split('/').nth(1)).map(str::to_owned).collect();
    names.sort();
    names
}

fn read_json(path: &str) -> Value {
    serde_json::from_str(&read(path))
        .unwrap_or_else(|error| Value::from(format!("{path}: {error}")))
}

/// Paths of documents and code.
fn text_files() -> Vec<String> {
    let is_text = |path: &str| {
        is_rust(path)
            || [".md", ".json", ".toml", ".yml", ".yaml", ".bicep", ".sh", ".ps1"]
                .iter()
                .any(|end| path.ends_with(end))
    };
    let folders =
        ["src", "crates", "tests", "functions", "agents", "docs", "infra", "examples", "benches"];
    let mut texts: Vec<String> = folders.iter().flat_map(|folder| files(folder, is_text)).collect();
    texts.extend(
        REQUIRED_FILES.iter().filter(|path| !path.contains('/')).map(|path| (*path).to_owned()),
    );
    texts.push(".ci/run".to_owned());
    texts
}

#[test]
fn required_files_exist() {
    let missing: Vec<&&str> =
        REQUIRED_FILES.iter().filter(|path| !root().join(path).is_file()).collect();
    assert!(missing.is_empty(), "missing: {missing:?}");
    assert_eq!(existing_functions(), REQUIRED_FUNCTIONS);
    assert!(
        !files("agents", |path| path.ends_with(".agent.md")).is_empty(),
        "agents/ must contain an agent file"
    );
}

/// The program contains these folders: a file that git ignores is missing in a clone.
#[test]
fn files_of_the_program_are_not_ignored() {
    let ignored = read(".gitignore");
    let names: Vec<&str> = ignored.lines().filter(|line| !line.starts_with(['/', '*'])).collect();
    let is_ignored = |path: &str| path.split('/').any(|part| names.contains(&part));
    let folders = ["agents", "console", "functions", "infra", "templates", "packages"];
    let found: Vec<String> = folders.iter().flat_map(|folder| files(folder, is_ignored)).collect();
    let is_installed =
        |path: &String| path.contains("node_modules") || path.contains("__pycache__");
    let found: Vec<&String> = found.iter().filter(|path| !is_installed(path)).collect();
    assert!(found.is_empty(), "git ignores {found:?}: add `.template` to the names");
}

#[test]
fn every_function_has_a_handler() {
    let handlers: String =
        files("crates/http/src", is_rust).iter().map(|path| read(path)).collect();
    for name in existing_functions() {
        let bindings = read_json(&format!("functions/{name}/function.json"));
        let trigger =
            bindings["bindings"].as_array().into_iter().flatten().find(|binding| {
                binding["type"].as_str().is_some_and(|kind| kind.ends_with("Trigger"))
            });
        let trigger = trigger.unwrap_or(&Value::Null);
        // A proxied request has its own path; every other one has the function's name as its path.
        let wanted = match trigger["route"].as_str().and_then(|route| route.split('/').next()) {
            Some(route) if !route.starts_with('{') => route.to_owned(),
            Some(_) => "/api".to_owned(),
            None => format!("\"{name}\""),
        };
        assert!(trigger["type"].is_string(), "{name} has no trigger");
        assert!(handlers.contains(&wanted), "no handler in crates/http for `{wanted}` of {name}");
    }
}

/// Names of `${NAME}` references in the agent files.
fn agent_file_settings() -> BTreeSet<String> {
    let name =
        regex::Regex::new(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}").expect("the pattern must be valid");
    let files = files("agents", |path| path.ends_with(".agent.md"));
    files
        .iter()
        .flat_map(|path| {
            let text = read(path);
            name.captures_iter(&text).map(|found| found[1].to_owned()).collect::<Vec<_>>()
        })
        .collect()
}

#[test]
fn sample_settings_equal_settings_table() {
    let sample = read_json("local.settings.sample.json");
    assert_eq!(sample["IsEncrypted"], false);
    let values = sample["Values"].as_object().expect("the sample must have `Values`");
    let mut wanted: BTreeMap<String, String> = table::ROWS
        .iter()
        .filter(|row| row.set_by == SetBy::Operator)
        .map(|row| (row.name.to_owned(), row.sample.to_owned()))
        .collect();
    wanted.extend(agent_file_settings().into_iter().map(|name| (name, String::new())));
    let found: BTreeMap<String, String> = values
        .iter()
        .map(|(name, value)| (name.clone(), value.as_str().unwrap_or("not a text").to_owned()))
        .collect();
    assert_eq!(found, wanted);
}

#[test]
fn settings_page_equals_settings_table() {
    let mut page = "# Settings\n\nApp settings in Azure, environment variables or `local.settings.json` elsewhere. An empty value counts as absent.\nAll errors are reported at once, at start-up and by `turnwheel doctor`.\n".to_owned();
    let sections = [
        (SetBy::Operator, "Yours", "Each is in `local.settings.sample.json`."),
        (
            SetBy::OpenTelemetry,
            "OpenTelemetry",
            "[docs/telemetry.md](telemetry.md) lists the exported telemetry. All are optional.",
        ),
        (SetBy::Platform, "Set by Azure or the Functions host", "Read-only: do not set them."),
        (SetBy::Tests, "For crash tests", "Refused in Azure."),
        (
            SetBy::FutureRelease,
            "Reserved for later releases",
            "Setting one is an error, because it has no effect yet.",
        ),
    ];
    for (set_by, title, text) in sections {
        let _ = write!(
            page,
            "\n## {title}\n\n{text}\n\n| setting | purpose | default | example |\n|---|---|---|---|\n"
        );
        for row in table::ROWS.iter().filter(|row| row.set_by == set_by) {
            let host = if row.read_by == ReadBy::FunctionsHost {
                " Read by the Functions host."
            } else {
                ""
            };
            let secret = if row.is_secret { " Secret." } else { "" };
            let example =
                if row.example.is_empty() { String::new() } else { format!("`{}`", row.example) };
            let absent = row.default.unwrap_or_default();
            let _ = writeln!(
                page,
                "| `{}` | {}{host}{secret} | {absent} | {example} |",
                row.name, row.purpose
            );
        }
    }
    assert_eq!(read("docs/settings.md"), page, "docs/settings.md differs from settings::table");
}

#[test]
fn readme_has_commands_and_tour() {
    let readme = read("README.md");
    for command in ["cargo run -- dev", "cargo test"] {
        assert!(readme.contains(command), "README.md does not mention `{command}`");
    }
    let tour: Vec<&str> = readme.split("```sh tour\n").skip(1).collect();
    assert!(!tour.is_empty(), "README.md has no ```sh tour blocks");
    for block in tour {
        let block = block.split("```").next().unwrap_or_default();
        let strays = block
            .match_indices("://")
            .filter(|(at, _)| !block.split_at(at + 3).1.starts_with("127.0.0.1:7071"));
        assert_eq!(strays.count(), 0, "the tour leaves this machine:\n{block}");
    }
}

#[test]
fn tests_named_in_documents_exist() {
    let named = regex::Regex::new(r"(?m)— tests?: (.+)$").unwrap();
    let name = regex::Regex::new(r"`(?:\w+::)*(\w+)`").unwrap();
    let code: String = ["src", "crates", "tests"]
        .iter()
        .flat_map(|folder| files(folder, is_rust))
        .map(|path| read(&path))
        .collect();
    let page = read("docs/architecture.md");
    let mut count = 0;
    for names in named.captures_iter(&page) {
        for test in name.captures_iter(&names[1]) {
            count += 1;
            // A function, or a row of the table of cases.
            let exists = [format!("fn {}(", &test[1]), format!(" {} \"", &test[1])];
            let exists = exists.iter().any(|text| code.contains(text));
            assert!(exists, "there is no test `{}`", &test[1]);
        }
    }
    assert!(count > 0, "docs/architecture.md names no test");
    let path = regex::Regex::new(r"`(?:\w+::)+(\w+)`").unwrap();
    for page in ["docs/threats.md", "docs/guarantees.md"] {
        let text = read(page);
        let names: Vec<&str> = path
            .captures_iter(&text)
            .filter_map(|name| name.get(1))
            .map(|name| name.as_str())
            .collect();
        assert!(names.len() > 20, "{page} must name its tests: {names:?}");
        for name in names {
            assert!(code.contains(&format!("fn {name}(")), "{page}: there is no test `{name}`");
        }
    }
    for page in files("docs/decisions", is_markdown) {
        let text = read(&page);
        let tests = text.split("\n## Tests\n").nth(1).unwrap_or_default();
        for test in path.captures_iter(tests) {
            // A function, or a row of the table of cases.
            let exists = [format!("fn {}(", &test[1]), format!(" {} \"", &test[1])];
            let exists = exists.iter().any(|text| code.contains(text));
            assert!(exists, "{page}: there is no test `{}`", &test[1]);
        }
    }
}

#[test]
fn invariants_are_numbered_and_name_tests() {
    let page = read("docs/architecture.md");
    let section = page.split("\n## Invariants\n").nth(1).unwrap_or_default();
    let section = section.split("\n## ").next().unwrap_or_default();
    let first = regex::Regex::new(r"(?m)^(\d+)\. \*\*").unwrap();
    let starts: Vec<(usize, &str)> = first
        .captures_iter(section)
        .filter_map(|found| Some((found.get(0)?.start(), found.get(1)?.as_str())))
        .collect();
    let ends = starts.iter().skip(1).map(|(start, _)| *start).chain([section.len()]);
    let invariants: Vec<(&str, &str)> = starts
        .iter()
        .zip(ends)
        .filter_map(|((start, number), end)| Some((*number, section.get(*start..end)?)))
        .collect();
    assert_eq!(invariants.len(), 14, "docs/architecture.md must list 14 invariants");
    for (expected, (number, text)) in (1..).zip(invariants) {
        assert_eq!(number, expected.to_string(), "invariants must have consecutive numbers");
        assert!(text.contains("— test: `"), "invariant {number} names no test");
    }
}

#[test]
fn walkthrough_functions_exist_in_their_files() {
    let page = read("docs/architecture.md");
    let quoted = regex::Regex::new("`([^`]+)`").unwrap();
    let names_in = |cell: &str| -> Vec<String> {
        quoted.captures_iter(cell).map(|name| name[1].to_owned()).collect()
    };
    let rows = page.split("\n## Walkthrough").skip(1).flat_map(str::lines);
    let mut steps = 0;
    for row in rows.filter(|line| line.starts_with("| ") && line.contains(".rs`")) {
        let cells: Vec<&str> = row.trim_matches('|').split(" | ").collect();
        let [_, functions, paths] = cells[..] else { panic!("three cells: {row}") };
        let code: String = names_in(paths).iter().map(|path| read(path)).collect();
        for name in names_in(functions) {
            let exists =
                code.contains(&format!("fn {name}(")) || code.contains(&format!("fn {name}<"));
            assert!(exists, "docs/architecture.md: no `{name}` in {paths}");
        }
        steps += 1;
    }
    assert!(steps > 20, "docs/architecture.md has only {steps} steps in its walkthroughs");
}

#[test]
fn decision_pages_have_sections_and_index_rows() {
    let index = read("docs/decisions/README.md");
    let pages = files("docs/decisions", |path| is_markdown(path) && !path.ends_with("README.md"));
    assert!(!pages.is_empty(), "docs/decisions has no pages");
    for (number, page) in (1..).zip(&pages) {
        let name = page.rsplit('/').next().unwrap_or_default();
        let text = read(page);
        let prefix = format!("{number:04}");
        assert!(name.starts_with(&prefix), "{page}: the next number is {prefix}");
        assert!(text.starts_with(&format!("# {prefix}: ")), "{page} must begin with its number");
        for section in ["Context", "Decision", "Consequences", "Tests"] {
            assert!(
                text.contains(&format!("\n## {section}\n")),
                "{page} has no section `{section}`"
            );
        }
        let row = format!("| [{prefix}]({name}) |");
        assert!(index.contains(&row), "docs/decisions/README.md has no row `{row}`");
    }
    let rows = index.lines().filter(|line| line.starts_with("| [")).count();
    assert_eq!(rows, pages.len(), "docs/decisions/README.md must have one row for each page");
}

#[test]
fn tls_is_rustls_only() {
    let lock = read("Cargo.lock");
    for name in ["openssl", "openssl-sys", "native-tls"] {
        assert!(
            !lock.contains(&format!("name = \"{name}\"")),
            "{name} is a dependency: `cargo tree -i {name}`"
        );
    }
}

/// Cargo passes the variables of a build script to `cargo run`, and the program refuses settings that
/// it does not know.
#[test]
fn build_script_sets_no_setting() {
    let script = read("build.rs");
    assert!(script.contains("cargo:rustc-env="));
    assert!(!script.contains("rustc-env=TURNWHEEL_"), "the program would refuse it");
}

#[test]
fn emulator_features_are_not_in_release() {
    let tree = std::process::Command::new(env!("CARGO"))
        .args(["tree", "--frozen", "--edges", "normal,build", "--format", "{p} {f}"])
        .current_dir(root())
        .output()
        .expect("cargo tree must run");
    let stderr = String::from_utf8_lossy(&tree.stderr);
    assert!(tree.status.success(), "cargo tree: {stderr}");
    let tree = String::from_utf8_lossy(&tree.stdout);
    let driver = tree.lines().find(|line| line.contains("azure_data_cosmos_driver v"));
    let driver = driver.expect("the Cosmos driver must be a dependency");
    for feature in ["emulator", "fault_injection"] {
        assert!(!driver.contains(feature), "{feature} is enabled: {driver}");
    }
}

#[test]
fn files_contain_no_developer_paths() {
    // Split, so that this file passes its own check.
    let words = [
        ["/wo", "rk/"],
        ["/ho", "me/"],
        ["/Us", "ers/"],
        ["/ro", "ot/"],
        ["co-auth", "ored-by"],
        ["generated", " with ["],
        ["claude", " code"],
    ]
    .map(|pieces| pieces.concat());
    let mut found = Vec::new();
    for path in text_files() {
        for (number, line) in read(&path).lines().enumerate() {
            let line = line.to_lowercase();
            for word in &words {
                let at = line.find(&word.to_lowercase());
                let before = at.and_then(|at| line.split_at(at).0.chars().next_back());
                // A part of a longer path is another folder.
                let is_part = word.starts_with('/')
                    && before.is_some_and(|c| c.is_alphanumeric() || ".})".contains(c));
                if at.is_some() && !is_part {
                    found.push(format!("{path}:{}: {word}", number + 1));
                }
            }
        }
    }
    assert_eq!(found, [""; 0]);
}

#[test]
fn contributor_pages_are_short() {
    for (page, lines_max) in [("CONTRIBUTING.md", 120), ("docs/architecture.md", 225)] {
        let lines = read(page).lines().count();
        assert!(lines <= lines_max, "{page} has {lines} lines: {lines_max} at most");
    }
}

#[cfg(unix)]
#[test]
fn ci_script_is_executable() {
    use std::os::unix::fs::PermissionsExt as _;
    let mode = std::fs::metadata(root().join(".ci/run")).unwrap().permissions().mode();
    assert_eq!(mode & 0o111, 0o111, "chmod +x .ci/run");
}

#[test]
fn pages_name_the_pinned_azurite() {
    let version = read_json("azurite/package.json")["dependencies"]["azurite"].to_string();
    let wanted = format!("npx --yes azurite@{}", version.trim_matches('"'));
    for page in ["docs/local.md", "docs/troubleshooting.md"] {
        assert!(read(page).contains(&wanted), "{page} does not name `{wanted}`");
    }
}
