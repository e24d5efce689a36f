//! The blocks of README.md and docs/quickstart.md, run as printed in a copy of the tracked files, and those of the tutorials
//! in an empty folder.
//!
//! | block | test |
//! |---|---|
//! | `sh start` | one of [`STARTS`], which the tests replace; in an empty folder `turnwheel dev`, which starts with the settings before it |
//! | `sh tour` | runs with bash beside `dev` |
//! | `json output`, `text output` | is part of the output of the `sh tour` block before it |
//! | `markdown agents/NAME.agent.md` | is written; `dev` loads it |
//! | `LANGUAGE FILE` in an empty folder | is written, and parsed if a parser of the language is at hand |
//! | `sh`, `python` in an empty folder | is parsed, not run |
//! | `sh model` | `getting_started` starts `dev` with these settings |
//!
//! Any other block fails with page and line, so no page prints a command that no test runs.

mod tutorials;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::support::dev_process::DevProcess;

/// Address in the pages. The tests replace it with that of their process.
const ADDRESS: &str = "http://127.0.0.1:7071";
const RESTART: &str = "<!-- tour: kill -9, start again -->";
/// Commands that the tests replace: they start `dev` themselves, and they are what `cargo test` runs.
const STARTS: [&str; 2] = ["cargo run -- dev", "cargo test"];
/// Time for `dev` to load an agent file.
const LOADING_MAX: Duration = Duration::from_mins(2);

/// A fenced block of a page, or a restart marker.
pub(crate) struct Block {
    /// Page and line, such as `README.md:20`.
    pub(crate) location: String,
    /// Text after the opening fence; [`RESTART`] for a marker.
    pub(crate) info: String,
    pub(crate) text: String,
}

/// Returns the blocks and restart markers of a page in order.
pub(crate) fn blocks(page: &str) -> Vec<Block> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(page);
    let text = std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{page}: {error}"));
    let mut blocks: Vec<Block> = Vec::new();
    let mut is_open = false;
    for (number, line) in text.lines().enumerate() {
        let location = format!("{page}:{}", number + 1);
        if is_open {
            if line.trim_end() == "```" {
                is_open = false;
            } else if let Some(block) = blocks.last_mut() {
                block.text.push_str(line);
                block.text.push('\n');
            }
        } else if let Some(info) = line.strip_prefix("```") {
            is_open = true;
            blocks.push(Block { location, info: info.trim().to_owned(), text: String::new() });
        } else if line.contains(RESTART) {
            blocks.push(Block { location, info: RESTART.to_owned(), text: String::new() });
        }
    }
    assert!(!is_open, "{page}: the last block has no closing fence");
    blocks
}

/// Copies the files that git tracks, as in a fresh clone.
fn copy_tracked(to: &Path) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let listed = Command::new("git")
        .args(["ls-files", "-z"])
        .current_dir(root)
        .output()
        .expect("git must list the files");
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

/// `dev` in a folder, with the outputs of the commands so far. Drops the process before its folder.
struct Tour {
    /// `None` before the block `sh start` of a page that begins in an empty folder.
    dev: Option<DevProcess>,
    folder: PathBuf,
    _root: tempfile::TempDir,
    /// Settings of `dev` and of the commands.
    settings: Vec<(String, String)>,
    outputs: Vec<String>,
}

impl Tour {
    /// Runs all blocks of a page. Panics with page and line of the first failing block.
    fn of(page: &str) -> Self {
        let mut tour = Self::new(tempfile::tempdir().unwrap());
        copy_tracked(&tour.folder);
        tour.start_dev();
        tour.run_page(page, Self::run_block);
        tour
    }

    fn new(root: tempfile::TempDir) -> Self {
        let folder = root.path().to_owned();
        Self { dev: None, folder, _root: root, settings: Vec::new(), outputs: Vec::new() }
    }

    fn run_page(
        &mut self,
        page: &str,
        run_block: impl Fn(&mut Self, &Block) -> Result<(), String>,
    ) {
        for block in blocks(page) {
            if let Err(problem) = run_block(self, &block) {
                let Block { location, info, text } = block;
                panic!("{location}: `{info}`: {problem}\n\n{text}\nlog:\n{}", self.log());
            }
        }
    }

    fn start_dev(&mut self) {
        // The process before it has the data folder.
        self.dev = None;
        let settings = self.settings.iter().map(|(name, value)| (name.as_str(), value.clone()));
        let settings: Vec<_> = settings.collect();
        let data = self.folder.join(".turnwheel");
        self.dev = Some(DevProcess::start_in(&self.folder, &data, &settings));
    }

    fn log(&self) -> String {
        self.dev.as_ref().map(|dev| dev.log().to_string()).unwrap_or_default()
    }

    /// Replaces the address of the pages by that of `dev`.
    fn with_address(&self, text: &str) -> String {
        let address = self.dev.as_ref().map(|dev| dev.url(""));
        address.map_or_else(|| text.to_owned(), |address| text.replace(ADDRESS, &address))
    }

    fn run_block(&mut self, block: &Block) -> Result<(), String> {
        match block.info.as_str() {
            RESTART => {
                self.start_dev();
                Ok(())
            }
            "sh start" => check_starts(&block.text),
            "sh tour" => {
                let output = self.run(&block.text)?;
                self.outputs.push(output);
                Ok(())
            }
            "json output" => self.check_json(&block.text),
            "text output" => self.check_lines(&block.text),
            "sh model" => Ok(()),
            info => {
                let path = info.strip_prefix("markdown ");
                let path = path.ok_or("no test runs such a block: see tests/process/tour.rs")?;
                self.add_agent(path, &block.text)
            }
        }
    }

    /// The folders with the programs that the commands find.
    fn search_path(&self) -> String {
        let own = self.settings.iter().find(|(name, _)| name == "PATH");
        own.map_or_else(
            || std::env::var_os("PATH").unwrap().into_string().unwrap(),
            |(_, path)| path.clone(),
        )
    }

    /// Runs commands with bash and returns their output.
    fn run(&self, commands: &str) -> Result<String, String> {
        let commands = self.with_address(commands);
        let program = Path::new(env!("CARGO_BIN_EXE_turnwheel"));
        let programs = program.parent().unwrap().display();
        let ran = Command::new("bash")
            .args(["-euo", "pipefail", "-c"])
            .arg(commands.replace("cargo run -- ", "\"$PROGRAM\" "))
            .current_dir(&self.folder)
            .env_clear()
            .envs(self.settings.iter().map(|(name, value)| (name, value)))
            .env("PATH", format!("{programs}:{}", self.search_path()))
            .env("HOME", std::env::var_os("HOME").unwrap_or_default())
            .env("PROGRAM", program)
            .output()
            .map_err(|error| format!("bash: {error}"))?;
        let output = String::from_utf8_lossy(&ran.stdout).into_owned();
        if ran.status.success() {
            return Ok(output);
        }
        Err(format!("{}\n{output}{}", ran.status, String::from_utf8_lossy(&ran.stderr)))
    }

    fn last_output(&self) -> Result<&str, String> {
        self.outputs.last().map(String::as_str).ok_or_else(|| "no command before it".to_owned())
    }

    fn check_json(&self, printed: &str) -> Result<(), String> {
        let output = self.last_output()?;
        let found: Value = serde_json::from_str(output)
            .map_err(|error| format!("the output is not JSON: {error}\n{output}"))?;
        let printed: Value =
            serde_json::from_str(printed).map_err(|error| format!("not JSON: {error}"))?;
        if includes(&found, &printed) {
            return Ok(());
        }
        Err(format!("the output differs:\n{output}"))
    }

    fn check_lines(&self, printed: &str) -> Result<(), String> {
        let output = self.last_output()?;
        let mut lines = output.lines();
        let missing =
            printed.lines().find(|line| !lines.any(|found| is_like(found.trim_end(), line)));
        missing.map_or(Ok(()), |line| Err(format!("the output has no line `{line}`:\n{output}")))
    }

    /// Writes an agent file and waits until `dev` has loaded it.
    fn add_agent(&self, path: &str, text: &str) -> Result<(), String> {
        let name = path.strip_prefix("agents/").and_then(|name| name.strip_suffix(".agent.md"));
        let name = name.ok_or("not the path of an agent file")?;
        let file = self.folder.join(path);
        if file.exists() {
            return Err(format!("{path} exists in the repository: use another name"));
        }
        std::fs::write(file, self.with_address(text))
            .map_err(|error| format!("{path}: {error}"))?;
        let deadline = Instant::now() + LOADING_MAX;
        loop {
            let listed = self.run(&format!("curl -sS {ADDRESS}/api/agents"))?;
            let agents: Value = serde_json::from_str(&listed).unwrap_or_default();
            let mut items = agents["items"].as_array().into_iter().flatten();
            if items.any(|agent| agent["name"] == name && agent["available"] == true) {
                return Ok(());
            }
            if Instant::now() > deadline {
                return Err(format!("`dev` did not load the agent: {listed}"));
            }
        }
    }
}

fn check_starts(text: &str) -> Result<(), String> {
    let mut commands = text.lines().filter_map(|line| line.split('#').next()).map(str::trim);
    let unknown = commands.find(|command| !STARTS.contains(command));
    unknown.map_or(Ok(()), |command| Err(format!("`{command}` is not one of {STARTS:?}")))
}

/// True if `found` has all members of `printed`. Arrays have the same length.
fn includes(found: &Value, printed: &Value) -> bool {
    match (found, printed) {
        (Value::Object(found), Value::Object(printed)) => printed
            .iter()
            .all(|(name, value)| found.get(name).is_some_and(|found| includes(found, value))),
        (Value::Array(found), Value::Array(printed)) => {
            found.len() == printed.len()
                && found.iter().zip(printed).all(|(found, printed)| includes(found, printed))
        }
        (Value::String(found), Value::String(printed)) => is_like(found, printed),
        (found, printed) => found == printed,
    }
}

/// True if the texts are equal, where `…` in `printed` matches any text.
fn is_like(found: &str, printed: &str) -> bool {
    let Some((start, others)) = printed.split_once('…') else { return found == printed };
    let Some(mut rest) = found.strip_prefix(start) else { return false };
    let mut parts: Vec<&str> = others.split('…').collect();
    let end = parts.pop().unwrap_or_default();
    for part in parts {
        let Some((_, after)) = rest.split_once(part) else { return false };
        rest = after;
    }
    rest.ends_with(end)
}

#[test]
fn output_with_ellipsis_matches_any_text() {
    assert!(is_like("371 runs ok, 0 broken, 2 not possible.", "… ok, 0 broken, …"));
    assert!(!is_like("370 runs ok, 1 broken, 2 not possible.", "… ok, 0 broken, …"));
    assert!(is_like("Receipt rcpt_1.", "Receipt rcpt_…."));
    assert!(!is_like("Receipt rcpt_1!", "Receipt rcpt_…."));
    let found = serde_json::json!({"state": "completed", "output": [{"id": "a", "content": "Hi"}]});
    assert!(includes(&found, &serde_json::json!({"output": [{"content": "H…"}]})));
    assert!(!includes(&found, &serde_json::json!({"output": []})));
    assert!(!includes(&found, &serde_json::json!({"error": null})));
}

#[test]
fn readme_commands_run_as_printed() {
    let tour = Tour::of("README.md");
    let [paid, _, _, restarted] = &tour.outputs[..] else {
        panic!("README.md has {} blocks `sh tour`, not four", tour.outputs.len());
    };
    assert!(paid.contains(r#""state":"waiting_for_approval""#), "{paid}");
    assert!(restarted.contains("Restart web?"), "{restarted}\n{}", tour.log());
}

#[test]
fn quickstart_commands_run_as_printed() {
    let page = "docs/quickstart.md";
    let mut tour = Tour::of(page);
    let agents = &tour.outputs[0];
    assert!(agents.contains("payments-clerk") && agents.contains("assistant"), "{agents}");
    assert!(tour.outputs.iter().any(|output| output.contains("Sending 250 to Ada requires")));
    let blocks = blocks(page);
    let first = blocks.iter().find(|block| block.text.contains("idempotency-key")).unwrap();
    let again = tour.run(&first.text).unwrap_or_else(|error| panic!("{}: {error}", first.location));
    let id = |prompt: &str| serde_json::from_str::<Value>(prompt).unwrap()["promptId"].clone();
    assert_eq!(id(&again), id(&tour.outputs[1]), "{}: {again}", first.location);
    let status = tour.dev.as_mut().unwrap().interrupt(Duration::from_mins(1));
    assert!(status.is_some_and(|status| status.success()), "{}", tour.log());
}
