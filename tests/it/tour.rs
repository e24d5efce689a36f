//! The README's tour, run as printed from a copy of the tracked files.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support::process::Dev;

/// A block that the tour marks `sh tour`, or the marker for a kill and a restart.
enum Step {
    Run(String),
    PullThePlug,
}

fn steps(readme: &str) -> Vec<Step> {
    let mut steps = Vec::new();
    let mut block: Option<String> = None;
    for line in readme.lines() {
        match (&mut block, line.trim_end()) {
            (None, "```sh tour") => block = Some(String::new()),
            (Some(_), "```") => steps.extend(block.take().map(Step::Run)),
            (Some(text), line) => {
                text.push_str(line);
                text.push('\n');
            }
            (None, line) if line.contains("<!-- tour: kill -9, start again -->") => {
                steps.push(Step::PullThePlug);
            }
            (None, _) => {}
        }
    }
    steps
}

/// Copies the files that git tracks, as in a fresh clone.
fn copy_tracked(to: &Path) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let listed = Command::new("git")
        .args(["ls-files", "-z"])
        .current_dir(root)
        .output()
        .expect("git lists the files");
    assert!(listed.status.success(), "install git, and run the tests in a clone");
    for name in
        String::from_utf8(listed.stdout).unwrap().split('\0').filter(|name| !name.is_empty())
    {
        let (from, to) = (root.join(name), to.join(name));
        if !from.exists() {
            continue;
        }
        std::fs::create_dir_all(to.parent().unwrap()).unwrap();
        std::fs::copy(from, to).unwrap();
    }
}

fn shell(text: &str, folder: &Path) -> String {
    let ran = Command::new("bash")
        .args(["-euo", "pipefail", "-c", text])
        .current_dir(folder)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&ran.stdout).into_owned();
    assert!(ran.status.success(), "{text}\n{said}{}", String::from_utf8_lossy(&ran.stderr));
    said
}

#[test]
fn the_readme_tour_runs_as_it_is_printed() {
    let clone = tempfile::tempdir().unwrap();
    copy_tracked(clone.path());
    let readme = std::fs::read_to_string(clone.path().join("README.md")).unwrap();
    let data: PathBuf = clone.path().join(".turnwheel");
    let mut dev = Dev::start_in(clone.path(), &data, &[]);
    let mut said = Vec::new();
    for step in steps(&readme) {
        match step {
            Step::Run(text) => {
                let text = text.replace("http://127.0.0.1:7071", &dev.url(""));
                said.push(shell(&text, clone.path()));
            }
            Step::PullThePlug => {
                dev.kill();
                dev = Dev::start_in(clone.path(), &data, &[]);
            }
        }
    }
    let [agents, asked, events, approvals, decided, settled, record] = &said[..] else {
        panic!("the tour has {} blocks, not seven: {said:#?}", said.len());
    };
    assert!(agents.contains("payments-clerk"), "{agents}");
    assert!(asked.contains(r#""state":"waiting_for_approval""#), "{asked}");
    assert!(events.contains("event: prompt.approval-requested"), "{events}");
    assert!(approvals.contains("Sending 250 to Ada requires approval."), "{approvals}");
    assert!(decided.contains(r#""decision":"approve""#), "{decided}");
    assert!(settled.contains("event: agent_settled"), "{settled}");
    assert!(record.contains("rcpt_") && record.contains(r#""state":"completed""#), "{record}");
    assert!(
        dev.interrupt(std::time::Duration::from_secs(15)).is_some_and(|status| status.success()),
        "{}",
        dev.log()
    );
}
