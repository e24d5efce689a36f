//! Tests of changed, invalid and deleted agent files.

use std::path::Path;

use super::*;
use crate::app::ports::Storage;
use crate::telemetry::Telemetry;

fn files(root: &Path) -> AgentFiles {
    let options = ServiceOptions {
        root: root.to_owned(),
        data: root.join(".turnwheel"),
        agents: None,
        port: 0,
        handler_port: 0,
        storage: Storage::Embedded,
        is_hosted: false,
        is_dev: true,
        telemetry: Telemetry::default(),
    };
    let settings = Settings::read(|_| None).expect("empty settings are valid");
    AgentFiles::new(&App::new(), &settings, &options, &Credentials::default()).unwrap()
}

/// A folder with one agent, its catalog and the watcher of its files.
struct TestFolder {
    root: tempfile::TempDir,
    agents: Agents,
    watched: Watched,
}

impl TestFolder {
    fn new() -> Self {
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir(root.path().join("agents")).unwrap();
        std::fs::write(root.path().join("agents/ops.agent.md"), "Be kind.").unwrap();
        let mut files = files(root.path());
        let agents = Agents::from(files.load().unwrap().catalog);
        Self { watched: Watched::new(files), agents, root }
    }

    fn write(&self, name: &str, text: &str) {
        std::fs::write(self.root.path().join("agents").join(name), text).unwrap();
    }

    /// Polls twice, so that a change takes effect. Returns true if the files were reloaded.
    fn poll(&mut self) -> bool {
        (0..2).any(|_| self.watched.poll(&self.agents))
    }

    fn instructions(&self, agent: &str) -> Option<String> {
        self.agents.find(Some(agent)).ok().map(|agent| agent.instructions.clone())
    }

    fn problem(&self) -> String {
        let broken = &self.agents.now().broken;
        broken.get("ops").map(|broken| broken.problem.clone()).unwrap_or_default()
    }
}

#[test]
fn changed_agent_file_takes_effect_without_restart() {
    let mut folder = TestFolder::new();
    assert!(!folder.poll(), "no file has changed");
    folder.write("ops.agent.md", "Be very kind.");
    folder.write("new.agent.md", "I am new.");
    assert!(!folder.watched.poll(&folder.agents), "the file may be incomplete");
    assert!(folder.poll());
    assert_eq!(folder.instructions("ops").as_deref(), Some("Be very kind."));
    assert_eq!(folder.instructions("new").as_deref(), Some("I am new."));
    assert!(!folder.poll(), "unchanged files are not reloaded");
    std::fs::remove_file(folder.root.path().join("agents/new.agent.md")).unwrap();
    assert!(folder.poll());
    assert_eq!(folder.instructions("new"), None);
}

#[test]
fn wrong_agent_file_leaves_its_revision_in_force() {
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
fn change_between_start_and_first_look_is_seen() {
    let root = tempfile::tempdir().unwrap();
    let mut files = files(root.path());
    let agents = Agents::from(files.load().unwrap().catalog);
    std::fs::create_dir(root.path().join("agents")).unwrap();
    std::fs::write(root.path().join("agents/ops.agent.md"), "Be kind.").unwrap();
    let mut folder = TestFolder { watched: Watched::new(files), agents, root };
    assert!(folder.poll());
    assert_eq!(folder.instructions("ops").as_deref(), Some("Be kind."));
}

#[test]
fn vanished_agents_folder_is_read_again_when_it_returns() {
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
fn service_starts_and_commands_stop_at_a_wrong_file() {
    let folder = TestFolder::new();
    folder.write("bad.agent.md", "---\nmodl: x\n---\nx");
    let mut files = files(folder.root.path());
    let loaded = files.load().unwrap().catalog;
    assert!(loaded.find(Some("ops")).is_ok());
    let refused = loaded.find(Some("bad")).unwrap_err().to_string();
    assert!(refused.contains("`bad` is unavailable: agents/bad.agent.md:2: "), "{refused}");
    let Err(StartError::Agents(mistakes)) = files.load_all() else { panic!("no error") };
    assert!(mistakes[0].starts_with("agents/bad.agent.md:2: "), "{mistakes:?}");
}
