//! Journeys through the web console in Chromium, with the scripts of `tests/console`.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::support::dev_process::DevProcess;
use crate::support::npm;

const FILES: [(&str, &str); 2] = [
    ("package.json", include_str!("../console/package.json")),
    ("package-lock.json", include_str!("../console/package-lock.json")),
];

/// Journeys that `cargo test` runs. `.ci/run console` runs all, on an idle machine.
const JOURNEYS: &str = "first visit,bounds of the first load,approve in the chat,it ran desktop,\
     notes of projects,approval rules,checks of the service,chat page,hostile text,\
     keyboard only,announcements in turn,another site";

/// Runs the journeys whose names contain one of the parts, which commas separate.
pub(crate) fn run_journeys(dev: &DevProcess, selected: &str) {
    let installed = npm::install_pinned("console-tests", &FILES);
    // Node.js finds packages in the folders above a script.
    let scripts = tempfile::tempdir_in(&installed).unwrap();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/console");
    for entry in fs::read_dir(source).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "mjs") {
            fs::copy(&path, scripts.path().join(path.file_name().unwrap())).unwrap();
        }
    }
    let mut journeys = Command::new("node");
    journeys.arg("run.mjs").arg(dev.url("")).arg("screenshots").arg(selected);
    journeys.current_dir(scripts.path());
    npm::run(&mut journeys);
}

#[test]
#[expect(clippy::disallowed_methods, reason = "the variable selects a stage")]
fn console_journeys_pass_in_chromium() {
    let data = tempfile::tempdir().unwrap();
    let dev = DevProcess::start_supervised(data.path(), &[]);
    let selected = std::env::var("TURNWHEEL_JOURNEYS").unwrap_or_else(|_| JOURNEYS.to_owned());
    run_journeys(&dev, &selected);
}
