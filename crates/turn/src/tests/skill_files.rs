//! Skills whose files are in the workspace: the model reads them with `read`, and nothing is stored.

use std::sync::Arc;

use serde_json::{Value, json};

use super::frame::tool_names;
use super::parallel_calls::result_texts;
use super::recorded_requests::{RecordedEnv, system_text};
use super::store_requests::{handle_next_nudge, queued_nudges};
use super::test_env::{LoggedRequests as _, RequestLogStore, Script, TestEnv, text};
use turnwheel_agent_files::{
    ResourcePath, ResourcePaths, Resources, Skill, SkillIndex, file_skill_plugin,
};
use turnwheel_tools::CallableTool;
use turnwheel_tools::workspace::builtins;

const SKILL: &str = "---\nname: restart\ndescription: How to restart.\ntools: [pay]\n---\nRead `notes/check list.md`.\n";

fn tool_call(name: &str, arguments: &Value) -> Value {
    json!({"type": "toolCall", "id": "c1", "name": name, "arguments": arguments})
}

fn read(path: &str) -> Value {
    tool_call("read", &json!({"path": path}))
}

struct SkillApp {
    recorded: RecordedEnv,
    log: Arc<RequestLogStore>,
    _folder: tempfile::TempDir,
}

/// The skills of a folder with `restart`, which has a folder of its own, and `report`.
fn load_skills(folder: &tempfile::TempDir) -> Vec<Arc<Skill>> {
    for (path, text) in [
        ("skills/restart/SKILL.md", SKILL),
        ("skills/restart/notes/check list.md", "1. Wait.\n"),
        ("skills/restart/.secret", "hidden"),
        ("skills/report.skill.md", "---\ndescription: Reports.\n---\nReport.\n"),
        ("outside.md", "not a file of the skill"),
    ] {
        let path = folder.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }
    #[cfg(unix)]
    std::os::unix::fs::symlink("../../outside.md", folder.path().join("skills/restart/link.md"))
        .unwrap();
    let path = ResourcePath {
        path: folder.path().join("skills"),
        display: "skills".to_owned(),
        location: "skills".to_owned(),
        is_required: true,
    };
    let paths = ResourcePaths { skills: vec![path], ..ResourcePaths::default() };
    let resources = Resources::load(&paths, &Resources::default());
    assert_eq!(resources.mistakes, []);
    resources.skills
}

impl SkillApp {
    /// An agent with the file tools, whose skill `restart` offers `pay`.
    fn new(script: Script, active: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let skills = load_skills(&folder);
        let mut env = TestEnv::with_script(1, script);
        env.settings.active_tools = Some(active.iter().map(|&name| name.to_owned()).collect());
        env.change_agent(|agent| {
            let is_pay = |tool: &&Arc<dyn CallableTool>| tool.definition().name == "pay";
            let of_skills: Vec<_> = agent.tools.iter().filter(is_pay).cloned().collect();
            let (plugin, files) = file_skill_plugin(&skills, &of_skills);
            agent.plugins = vec![plugin];
            agent.package_files = files;
            agent.skill_index = SkillIndex::Files;
            agent.skills.clone_from(&skills);
            let others = builtins().into_iter();
            agent.tools.retain(|tool| {
                !["pay", "read", "write", "edit"].contains(&tool.definition().name.as_str())
            });
            agent.tools.extend(others);
        });
        let log = RequestLogStore::wrap(env.store.clone());
        env.worker_store = log.clone();
        Self { recorded: RecordedEnv::new(env), log, _folder: folder }
    }
}

#[tokio::test(start_paused = true)]
async fn read_loads_a_skill_and_its_other_files() {
    let mut app = SkillApp::new(
        |results, _| match results {
            0 => vec![read("/.turnwheel/skills/restart/SKILL.md")],
            1 => vec![read(".turnwheel/skills/restart/notes/check list.md")],
            2 => vec![read("/.turnwheel/skills/report/SKILL.md")],
            _ => vec![text("done")],
        },
        &["read"],
    );
    let bodies = app.recorded.run("go").await;
    assert_eq!(
        result_texts(&app.recorded.env).await,
        [SKILL, "1. Wait.\n", "---\ndescription: Reports.\n---\nReport.\n"]
    );
    let location = "\n    <location>/.turnwheel/skills/restart/SKILL.md</location>\n";
    assert!(system_text(&bodies[0]).contains(location), "{}", system_text(&bodies[0]));
    assert!(!system_text(&bodies[0]).contains("load_skill"));
    assert_eq!(tool_names(&bodies[0]), ["read"]);
    assert_eq!(tool_names(&bodies[1]), ["read", "pay"], "the tools of the skill that was read");
    assert_eq!(tool_names(&bodies[3]), ["read", "pay"]);
    // Nothing is in the workspace of the conversation.
    let entries: Vec<_> = app.recorded.env.entries().await.into_iter().map(Arc::new).collect();
    let stored = format!("{:?}", turnwheel_conversation::workspace::collect_files(&entries));
    assert_eq!(stored, "{}");
}

#[tokio::test(start_paused = true)]
async fn files_of_skills_cost_no_store_request() {
    let mut app = SkillApp::new(
        |results, _| match results {
            0 | 1 => vec![read("/.turnwheel/skills/report/SKILL.md")],
            _ => vec![text("done")],
        },
        &["read"],
    );
    app.recorded.env.send_prompt(&app.recorded.services).await;
    handle_next_nudge(&app.recorded.env, &app.recorded.services, &app.log).await;
    let requests = handle_next_nudge(&app.recorded.env, &app.recorded.services, &app.log).await;
    insta::assert_snapshot!(requests, @r"
    write head
    write head, commit
    write head, commit
    ");
}

#[tokio::test(start_paused = true)]
async fn file_tools_find_files_of_skills_and_change_none() {
    let mut app = SkillApp::new(
        |results, _| match results {
            0 => vec![tool_call("ls", &json!({"path": ".turnwheel/skills/restart"}))],
            1 => vec![tool_call("find", &json!({"pattern": "**/*.md"}))],
            2 => vec![tool_call("grep", &json!({"pattern": "Wait"}))],
            3 => {
                let arguments =
                    json!({"path": ".turnwheel/skills/restart/SKILL.md", "content": "x"});
                vec![tool_call("write", &arguments)]
            }
            4 => vec![tool_call(
                "edit",
                &json!({"path": ".turnwheel/skills/report/SKILL.md", "old_text": "Report.", "new_text": "x"}),
            )],
            5 => vec![read(".turnwheel/skills/restart/link.md")],
            6 => vec![read(".turnwheel/skills/restart/.secret")],
            7 => vec![read(".turnwheel/skills/restart/../../outside.md")],
            _ => vec![text("done")],
        },
        &["read", "ls", "find", "grep", "write", "edit"],
    );
    app.recorded.run("go").await;
    let results = result_texts(&app.recorded.env).await;
    assert_eq!(results[0], "link.md\nnotes/\nSKILL.md");
    assert_eq!(
        results[1],
        ".turnwheel/skills/report/SKILL.md\n.turnwheel/skills/restart/SKILL.md\n.turnwheel/skills/restart/link.md\n.turnwheel/skills/restart/notes/check list.md"
    );
    assert!(results[2].contains("check list.md:1: 1. Wait."), "{}", results[2]);
    assert!(!results[2].contains("not a file of the skill"));
    for refused in &results[3..5] {
        assert!(refused.contains("is reserved for Turnwheel"), "{refused}");
    }
    assert!(results[5].contains("outside of the folder"), "{}", results[5]);
    assert!(results[6].contains("File not found"), "{}", results[6]);
    assert!(results[7].contains("`..` is not allowed"), "{}", results[7]);
}

#[tokio::test(start_paused = true)]
async fn agent_without_active_read_has_the_list() {
    let mut app = SkillApp::new(
        |results, _| match results {
            0 => vec![tool_call("load_skill", &json!({"name": "report"}))],
            _ => vec![text("done")],
        },
        &["ls"],
    );
    let bodies = app.recorded.run("go").await;
    assert!(
        system_text(&bodies[0]).contains("- report: Reports.\n"),
        "{}",
        system_text(&bodies[0])
    );
    assert!(!system_text(&bodies[0]).contains("<available_skills>"));
    assert_eq!(tool_names(&bodies[0]), ["ls", "load_skill"]);
    assert_eq!(result_texts(&app.recorded.env).await, ["Report."]);
}

#[tokio::test(start_paused = true)]
async fn skill_of_a_user_input_names_readable_files() {
    let mut app = SkillApp::new(
        |results, _| match results {
            0 => vec![read("/.turnwheel/skills/restart/notes/check list.md")],
            _ => vec![text("done")],
        },
        &["read"],
    );
    let bodies = app.recorded.run("/skill:restart now").await;
    let sent = bodies[0]["input"].to_string();
    assert!(sent.contains("References are relative to /.turnwheel/skills/restart."), "{sent}");
    assert_eq!(result_texts(&app.recorded.env).await, ["1. Wait.\n"]);
    assert_eq!(tool_names(&bodies[0]), ["read", "pay"]);
    assert_eq!(queued_nudges(&app.recorded.env).await, 0);
}
