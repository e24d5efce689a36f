//! The tutorials, each in an empty folder beside a clone, and the page for coding agents of the templates.

use std::path::Path;
use std::process::Command;

use serde_json::Value;

use super::{Block, RESTART, Tour, blocks};

/// Runs a program that reads a text, such as a parser.
fn parse(program: &str, arguments: &[&str], text: &str) -> Result<(), String> {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("text.mjs");
    std::fs::write(&file, text).unwrap();
    let output = Command::new(program).args(arguments).arg(&file).output();
    let output = output.map_err(|error| format!("install {program}: {error}"))?;
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    if output.status.success() { Ok(()) } else { Err(errors) }
}

/// Parses a text in a language of the pages.
fn check_syntax(language: &str, text: &str) -> Result<(), String> {
    const PYTHON: &str = "import ast, sys; ast.parse(open(sys.argv[1]).read())";
    match language {
        "sh" => parse("bash", &["-n"], text),
        "python" => parse("python3", &["-c", PYTHON], text),
        "js" => parse("node", &["--check"], text),
        "json" => serde_json::from_str::<Value>(text).map(drop).map_err(|error| error.to_string()),
        "yaml" => {
            serde_saphyr::from_str::<Value>(text).map(drop).map_err(|error| error.to_string())
        }
        // The test of the console opens the page in a browser.
        "html" => Ok(()),
        _ => Err("no test runs such a block: see tests/process/tour.rs".to_owned()),
    }
}

impl Tour {
    /// Runs the blocks of a page that begins in an empty folder. A clone is beside it.
    fn in_empty_folder(page: &str) -> Self {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let parent = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink(root, parent.path().join("turnwheel")).unwrap();
        let folder = parent.path().join("project");
        std::fs::create_dir(&folder).unwrap();
        let mut tour = Self { folder, ..Self::new(parent) };
        tour.run_page(page, Self::run_tutorial_block);
        tour
    }

    fn run_tutorial_block(&mut self, block: &Block) -> Result<(), String> {
        let Block { info, text, .. } = block;
        if text.contains("packages/python-tools") {
            self.install_python_package()?;
        }
        match info.as_str() {
            "sh start" => self.start(text),
            RESTART | "sh tour" | "json output" | "text output" => self.run_block(block),
            info => {
                let (language, path) = info.split_once(' ').unwrap_or((info, ""));
                if language == "markdown" && self.dev.is_some() {
                    return self.add_agent(path, text);
                }
                if language != "markdown" {
                    check_syntax(language, text)?;
                }
                if path.is_empty() {
                    return Ok(());
                }
                let file = self.folder.join(path);
                std::fs::create_dir_all(file.parent().unwrap()).unwrap();
                std::fs::write(file, text).map_err(|error| error.to_string())
            }
        }
    }

    /// Makes the environment of the page and adds the package: `pip` would load what builds it.
    fn install_python_package(&mut self) -> Result<(), String> {
        let package = Path::new(env!("CARGO_MANIFEST_DIR")).join("packages/python-tools/src");
        self.run("python3 -m venv --without-pip .venv")?;
        let library =
            self.run(".venv/bin/python -c 'import site; print(site.getsitepackages()[0])'")?;
        let link = Path::new(library.trim()).join("turnwheel_tools.pth");
        std::fs::write(link, package.display().to_string()).map_err(|error| error.to_string())?;
        let path = format!("{}:{}", self.folder.join(".venv/bin").display(), self.search_path());
        self.settings.push(("PATH".to_owned(), path));
        Ok(())
    }

    /// Starts `dev` with the settings before `turnwheel dev`.
    fn start(&mut self, text: &str) -> Result<(), String> {
        let settings = text.trim_end().strip_suffix("turnwheel dev");
        for setting in settings.ok_or("not `turnwheel dev`")?.split_whitespace() {
            let (name, value) = setting.split_once('=').ok_or("not NAME=VALUE")?;
            self.settings.push((name.to_owned(), value.to_owned()));
        }
        self.start_dev();
        Ok(())
    }
}

#[test]
fn first_tool_in_python_runs_as_printed() {
    let tour = Tour::in_empty_folder("docs/first-tool-python.md");
    assert_eq!(tour.outputs.len(), 8, "{:?}", tour.outputs);
}

#[test]
fn chat_front_end_runs_as_printed() {
    let tour = Tour::in_empty_folder("docs/chat-front-end.md");
    for file in ["index.html", "chat.mjs", "turnwheel.mjs"] {
        assert!(tour.folder.join("web").join(file).is_file(), "{file}");
    }
}

#[test]
fn calls_from_ci_run_as_printed() {
    let tour = Tour::in_empty_folder("docs/call-from-ci.md");
    let [_, _, _, again] = &tour.outputs[..] else { panic!("{:?}", tour.outputs) };
    let ids: Vec<&str> = again.lines().collect();
    let [first, second] = ids[..] else { panic!("{again}") };
    assert_eq!(first, second, "the same key returns the same prompt");
}

#[test]
fn examples_of_comparisons_run_as_printed() {
    for page in ["docs/from-azure-functions-agents.md", "docs/from-langgraph.md"] {
        assert_eq!(Tour::in_empty_folder(page).outputs.len(), 2, "{page}");
    }
}

#[test]
fn installation_page_prints_the_version() {
    let tour = Tour::in_empty_folder("docs/install.md");
    let version = concat!("turnwheel ", env!("CARGO_PKG_VERSION"), " (");
    let [printed] = &tour.outputs[..] else { panic!("{:?}", tour.outputs) };
    assert!(printed.starts_with(version), "{printed}");
}

/// `AGENTS.md` of the templates: an agent, a prompt for it, and its prompts of `certify`.
#[test]
fn example_of_the_page_for_coding_agents_works() {
    let page = blocks("templates/common/AGENTS.md");
    let [agent, prompt, certify] = &page[..] else { panic!("{} blocks", page.len()) };
    let kinds = [agent, prompt, certify].map(|block| block.info.as_str());
    assert_eq!(kinds, ["markdown", "sh", "yaml"]);
    let mut tour = Tour::new(tempfile::tempdir().unwrap());
    std::fs::create_dir(tour.folder.join("agents")).unwrap();
    std::fs::write(tour.folder.join("agents/shop.agent.md"), &agent.text).unwrap();
    std::fs::write(tour.folder.join("agents/shop.certify.yaml"), &certify.text).unwrap();
    let settings =
        [("SHOP_URL", "https://shop.example"), ("SHOP_KEY", "k"), ("TURNWHEEL_MODEL", "scripted")];
    tour.settings = settings.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec();
    let run = |tour: &Tour, commands: &str| {
        tour.run(commands).unwrap_or_else(|problem| panic!("{commands}: {problem}"))
    };
    run(&tour, "turnwheel doctor --offline");
    let agents = run(&tour, "turnwheel agents shop");
    assert!(agents.contains("get_order: Reads one order."), "{agents}");
    let report = run(&tour, "turnwheel certify shop");
    assert!(report.contains(", 0 broken,"), "{report}");
    tour.start_dev();
    let sent = run(&tour, &prompt.text.replace("NAME", "shop"));
    let prompt: Value = serde_json::from_str(&sent).unwrap();
    assert_eq!(prompt["state"], "completed", "{prompt}");
    let outputs = prompt["output"].as_array().unwrap();
    assert_eq!(
        (&outputs[0]["function"], &outputs[1]["content"]),
        (&"get_order".into(), &"Done.".into()),
        "{prompt}"
    );
}
