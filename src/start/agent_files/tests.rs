//! Tests of changed, invalid and deleted agent files.

use std::path::Path;

use super::*;
use turnwheel_test_support::captured_log::CapturedLog;

fn agent_files(root: &Path) -> AgentFiles {
    let options = ServiceOptions {
        root: root.to_owned(),
        data: root.join(".turnwheel"),
        is_dev: true,
        ..ServiceOptions::default()
    };
    let settings = ServiceSettings::read(|_| None).expect("empty settings are valid");
    AgentFiles::new(&App::new(), &settings, &options, &Credentials::default()).unwrap()
}

/// A folder with one agent, its catalog and the watcher of its files.
struct TestFolder {
    root: tempfile::TempDir,
    agents: SharedCatalog,
    watcher: AgentFileWatcher,
}

impl TestFolder {
    fn new() -> Self {
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir(root.path().join("agents")).unwrap();
        std::fs::write(root.path().join("agents/ops.agent.md"), "Be kind.").unwrap();
        let mut files = agent_files(root.path());
        let agents = SharedCatalog::from(files.load().unwrap().catalog);
        Self { watcher: AgentFileWatcher::new(files), agents, root }
    }

    fn write(&self, name: &str, text: &str) {
        std::fs::write(self.root.path().join("agents").join(name), text).unwrap();
    }

    /// Polls twice, so that a change takes effect. Returns true if the files were reloaded.
    fn poll(&mut self) -> bool {
        (0..2).any(|_| self.watcher.poll(&self.agents))
    }

    fn instructions(&self, agent: &str) -> Option<String> {
        self.agents.find(Some(agent)).ok().map(|agent| agent.instructions.to_string())
    }

    fn problem(&self) -> String {
        let broken = &self.agents.current().broken;
        broken.get("ops").map(|broken| broken.problem.clone()).unwrap_or_default()
    }
}

#[test]
fn changed_agent_file_takes_effect_without_restart() {
    let mut folder = TestFolder::new();
    assert!(!folder.poll(), "no file has changed");
    folder.write("ops.agent.md", "Be very kind.");
    folder.write("new.agent.md", "I am new.");
    assert!(!folder.watcher.poll(&folder.agents), "the file may be incomplete");
    assert!(folder.poll());
    assert_eq!(folder.instructions("ops").as_deref(), Some("Be very kind."));
    assert_eq!(folder.instructions("new").as_deref(), Some("I am new."));
    assert!(!folder.poll(), "unchanged files are not reloaded");
    std::fs::remove_file(folder.root.path().join("agents/new.agent.md")).unwrap();
    assert!(folder.poll());
    assert_eq!(folder.instructions("new"), None);
}

#[test]
fn invalid_agent_file_keeps_previous_revision() {
    let mut folder = TestFolder::new();
    folder.write("ops.agent.md", "---\nmodl: x\n---\nBe rude.");
    assert!(folder.poll());
    assert_eq!(folder.instructions("ops").as_deref(), Some("Be kind."));
    assert!(folder.problem().starts_with("agents/ops.agent.md:2: "), "{}", folder.problem());
    folder.write("ops.agent.md", "---\ntoools: x\n---\nBe ruder.");
    assert!(folder.poll());
    assert_eq!(folder.instructions("ops").as_deref(), Some("Be kind."), "first revision");
    folder.write("ops.agent.md", "Be kind again.");
    assert!(folder.poll());
    assert_eq!(folder.instructions("ops").as_deref(), Some("Be kind again."));
    assert_eq!(folder.problem(), "");
}

#[test]
fn change_between_start_and_first_poll_is_loaded() {
    let root = tempfile::tempdir().unwrap();
    let mut files = agent_files(root.path());
    let agents = SharedCatalog::from(files.load().unwrap().catalog);
    std::fs::create_dir(root.path().join("agents")).unwrap();
    std::fs::write(root.path().join("agents/ops.agent.md"), "Be kind.").unwrap();
    let mut folder = TestFolder { watcher: AgentFileWatcher::new(files), agents, root };
    assert!(folder.poll());
    assert_eq!(folder.instructions("ops").as_deref(), Some("Be kind."));
}

#[test]
fn deleted_agents_folder_is_reloaded_when_restored() {
    let mut folder = TestFolder::new();
    let (there, away) = (folder.root.path().join("agents"), folder.root.path().join("away"));
    std::fs::rename(&there, &away).unwrap();
    assert!(folder.poll());
    assert_eq!(folder.instructions("ops"), None);
    std::fs::rename(&away, &there).unwrap();
    assert!(folder.poll());
    assert_eq!(folder.instructions("ops").as_deref(), Some("Be kind."));
}

#[test]
fn invalid_file_fails_commands_but_not_service_start() {
    let folder = TestFolder::new();
    folder.write("bad.agent.md", "---\nmodl: x\n---\nx");
    let mut files = agent_files(folder.root.path());
    let loaded = files.load().unwrap().catalog;
    assert!(loaded.find(Some("ops")).is_ok());
    let refused = loaded.find(Some("bad")).unwrap_err().to_string();
    assert!(refused.contains("`bad` is unavailable: agents/bad.agent.md:2: "), "{refused}");
    let Err(StartError::Agents(mistakes)) = files.load_all() else { panic!("no error") };
    assert!(mistakes[0].starts_with("agents/bad.agent.md:2: "), "{mistakes:?}");
}

#[test]
fn unknown_server_of_the_setting_for_programs_is_logged() {
    let root = tempfile::tempdir().unwrap();
    let servers = r#"{"servers": {"desk": {"command": "desk"}}}"#;
    std::fs::write(root.path().join("mcp.json"), servers).unwrap();
    let lookup = |name: &str| (name == "TURNWHEEL_MCP_STDIO").then(|| "desk,nope".to_owned());
    let settings = ServiceSettings::read(lookup).unwrap();
    let options = ServiceOptions { is_dev: true, ..ServiceOptions::default() };
    let options = ServiceOptions { root: root.path().to_owned(), ..options };
    let mut files =
        AgentFiles::new(&App::new(), &settings, &options, &Credentials::default()).unwrap();
    let log = CapturedLog::start();
    files.load().unwrap();
    let text = log.text();
    let message = "TURNWHEEL_MCP_STDIO names a server that mcp.json does not list";
    let warnings: Vec<&str> = text.lines().filter(|line| line.contains(message)).collect();
    let [warning] = warnings.as_slice() else { panic!("{text}") };
    assert!(warning.contains("WARN") && warning.contains("mcp.server=\"nope\""), "{warning}");
}

#[test]
fn changed_mcp_file_takes_effect_without_restart() {
    let mut folder = TestFolder::new();
    folder.write("ops.agent.md", "---\ntools:\n  - mcp: desk\n---\nBe kind.");
    let path = folder.root.path().join("mcp.json");
    std::fs::write(&path, r#"{"servers": {"desk": {"url": "https://a.example/mcp"}}}"#).unwrap();
    assert!(folder.poll());
    let identity = |folder: &TestFolder| {
        let agent = folder.agents.find(Some("ops")).unwrap();
        agent.mcp.first().map(|source| source.server.identity.clone())
    };
    let first = identity(&folder);
    assert!(first.is_some());
    std::fs::write(&path, r#"{"servers": {"desk": {"url": "https://other.example/mcp"}}}"#)
        .unwrap();
    assert!(folder.poll());
    let second = identity(&folder);
    assert!(second.is_some() && second != first);
    std::fs::write(&path, "{").unwrap();
    assert!(folder.poll());
    assert_eq!(identity(&folder), second, "the agent keeps its previous revision");
    assert!(folder.problem().contains("there is no server `desk` in mcp.json"));
    let mistakes = folder.watcher.files.load_all().map(drop).unwrap_err();
    let StartError::Agents(mistakes) = mistakes else { panic!("{mistakes}") };
    assert!(mistakes[0].starts_with("mcp.json:1: the file is not JSON"), "{mistakes:?}");
}
